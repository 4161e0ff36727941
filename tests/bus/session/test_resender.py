"""Requests that are sent again after a loss."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from wsmux.bus.errors import BusError
from wsmux.bus.session import resender as module
from wsmux.bus.session.resender import Resender, Unanswered
from wsmux.exceptions import NoThreadError
from wsmux.runtime.deadline import Deadline

from ...helpers.timeouts import WAIT
from ...helpers.waiting import wait_for


class Pool:
    """Take what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes, deadline: Deadline, twin: int) -> None:
        if data == b"refused":
            raise BusError(500, "no")
        self.sent.append(data)


def waiting(*data: bytes) -> list[Unanswered]:
    return [Unanswered(each, Deadline(WAIT), 2) for each in data]


def test_all_that_wait_are_sent_once_for_a_loss() -> None:
    pool = Pool()
    resender = Resender("test", pool, lambda: waiting(b"a", b"refused", b"b"))  # type: ignore[arg-type]
    resender.lost()
    wait_for(lambda: pool.sent == [b"a", b"b"])


def test_a_loss_meanwhile_sends_them_again() -> None:
    pool, entered, go_on = Pool(), threading.Event(), threading.Event()

    def unanswered() -> Iterator[Unanswered]:
        entered.set()
        assert go_on.wait(WAIT)
        yield from waiting(b"a")

    resender = Resender("test", pool, unanswered)  # type: ignore[arg-type]
    resender.lost()
    assert entered.wait(WAIT)
    resender.lost()
    resender.lost()
    go_on.set()
    wait_for(lambda: pool.sent == [b"a", b"a"])


@pytest.mark.parametrize("error", [BusError(500, "no"), ValueError("closed"), KeyError("fault")])
def test_a_failure_is_the_last_of_its_loss_alone(error: Exception) -> None:
    pool, failures = Pool(), [error]

    def unanswered() -> list[Unanswered]:
        if failures:
            raise failures.pop()
        return waiting(b"a")

    resender = Resender("test", pool, unanswered)  # type: ignore[arg-type]
    resender.lost()
    wait_for(lambda: not failures)
    resender.lost()
    wait_for(lambda: pool.sent == [b"a"])


def test_a_thread_that_cannot_be_started_is_tried_at_the_next_loss(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise NoThreadError("none is left")

    pool = Pool()
    resender = Resender("test", pool, lambda: waiting(b"a"))  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(module, "start_thread", fail)
        resender.lost()
    assert "requests are not sent again: none is left" in caplog.text
    resender.lost()
    wait_for(lambda: pool.sent == [b"a"])
