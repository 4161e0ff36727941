"""Of the senders of one name the newest has it, in whatever order their threads go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from wsmux.durable import DurableRefused, Refusal, receiver
from wsmux.protocols.durable import Open

from ..helpers.connections import Spawn
from ..helpers.durable import EPOCH
from ..helpers.timeouts import WAIT

OPENED = Open("a", EPOCH, None)


class Sender:
    """A stream whose handler ends when a test lets it."""

    epoch = EPOCH

    def __init__(self) -> None:
        self.superseded = threading.Event()

    def supersede(self) -> None:
        self.superseded.set()


def test_a_sender_that_wakes_behind_a_newer_one_gives_way(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    senders: Any = receiver._Senders(4)
    oldest, older, newer = Sender(), Sender(), Sender()
    ended, woken, go_on = threading.Event(), threading.Event(), threading.Event()
    wait_for_end: Callable[..., None] = receiver._Senders._wait_for_end

    def late(self: Any, *arguments: Any) -> None:
        wait_for_end(self, *arguments)
        if not woken.is_set():
            woken.set()
            assert go_on.wait(WAIT)

    monkeypatch.setattr(receiver._Senders, "_wait_for_end", late)

    def hold(sender: Sender, end: threading.Event) -> None:
        with senders.only(sender, OPENED):
            assert end.wait(WAIT)

    first = spawn(hold, oldest, ended)
    second = spawn(hold, older, ended)
    assert oldest.superseded.wait(WAIT)
    ended.set()
    assert woken.wait(WAIT)
    first.result(WAIT)
    with senders.only(newer, OPENED):
        go_on.set()
        with pytest.raises(DurableRefused, match="another sender has opened 'a'") as raised:
            second.result(WAIT)
        assert raised.value.kind is Refusal.SUPERSEDED
        assert not newer.superseded.is_set()
