"""A thread that waits for the answer to a call receives in the place of the I/O thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from wsmux import rpc
from wsmux.runtime.parking import OneShotEvent

from ..helpers.inside import borrowed, channel_of, on_led_round
from ..helpers.rpc.clients import cut
from ..helpers.rpc.procedures import WAIT
from ..helpers.waiting import wait_for

test = rpc.Service("test")
going = OneShotEvent()


@test.rpc()
def same(ctx: rpc.Context, value: int) -> int:
    return value


@test.rpc()
def late(ctx: rpc.Context, value: int) -> int:
    assert going.wait(WAIT)
    return value


@pytest.mark.parametrize("transport", ["websocket", "tcp"])
def test_the_answers_of_one_caller_are_received_by_itself(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    on_led_round(monkeypatch, lambda: rounds.append(threading.get_ident()))
    with rpc.serve([test], transport=transport) as server, rpc.connect(server.url) as client:
        client.wait_connected(WAIT)

        def call() -> int:
            for number in range(20):
                assert client.rpc("test", "same", number, WAIT) == number
            return threading.get_ident()

        with ThreadPoolExecutor(1) as pool:
            assert {pool.submit(call).result(WAIT)} == set(rounds)
        assert not borrowed(channel_of(client))


def test_a_caller_that_leads_gets_its_answer_over_the_next_connection() -> None:
    """And whoever called meanwhile, too: the session goes on, and each call is answered once."""
    with rpc.serve([test]) as server, rpc.connect(server.url) as client:
        client.wait_connected(WAIT)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(client.rpc, "test", "late", 1, WAIT)
            wait_for(lambda: borrowed(channel_of(client)))
            assert cut(client)
            second = pool.submit(client.rpc, "test", "same", 2, WAIT)
            assert second.result(WAIT) == 2
            assert not first.done()
            going.set()
            assert first.result(WAIT) == 1
