"""What handlers and middleware put off until their call is over."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from wsmux import rpc

from ..helpers.rpc.four_kinds import HANDLED, KINDS, Gathered, Part, answer, begun, joined, staged
from ..helpers.rpc.procedures import WAIT
from ..helpers.waiting import wait_for


def test_what_is_deferred_last_runs_first() -> None:
    told = Gathered()

    def act(part: Part) -> None:
        for number in (1, 2, 3):
            part.ctx.defer(lambda number=number: told(number))

    with joined(staged(act)) as client:
        assert client.rpc("test", "rpc", None, WAIT) is None
        assert told.first(3) == [3, 2, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_it_runs_whatever_the_kind(kind: rpc.Kind) -> None:
    told = Gathered()
    with joined(staged(lambda part: part.ctx.defer(lambda: told("deferred")))) as client:
        answer(client, kind)
        assert told.first(1) == ["deferred"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_runs_when_the_handler_fails(kind: rpc.Kind) -> None:
    told = Gathered()

    def act(part: Part) -> None:
        part.ctx.defer(lambda: told("deferred"))
        raise LookupError("on purpose")

    with joined(staged(act)) as client:
        with pytest.raises(rpc.RiverError, match="UNCAUGHT_ERROR"):
            answer(client, kind)
        assert told.first(1) == ["deferred"]


@pytest.mark.parametrize("kind", HANDLED)
def test_it_runs_when_the_client_cancels(kind: rpc.Kind) -> None:
    told = Gathered()

    def act(part: Part) -> None:
        part.ctx.defer(lambda: told("deferred"))
        told("entered")
        part.lasts()

    with joined(staged(act)) as client:
        call = begun(client, kind)
        assert told.first(1) == ["entered"]
        call.cancel()
        assert told.first(2) == ["entered", "deferred"]


def test_one_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    told = Gathered()

    def fail() -> None:
        raise LookupError("on purpose")

    def act(part: Part) -> None:
        part.ctx.defer(lambda: told("first"))
        part.ctx.defer(fail)
        part.ctx.defer(lambda: told("last"))

    with joined(staged(act)) as client:
        answer(client, rpc.Kind.RPC)
        assert told.first(2) == ["last", "first"]
    assert "deferred cleanup of test.rpc failed" in caplog.text


def test_each_is_done_before_the_next_begins() -> None:
    told, go = Gathered(), threading.Event()

    def slow() -> None:
        told("slow begins")
        assert go.wait(WAIT)
        told("slow ends")

    def act(part: Part) -> None:
        part.ctx.defer(lambda: told("next"))
        part.ctx.defer(slow)

    with joined(staged(act)) as client:
        answer(client, rpc.Kind.RPC)
        assert told.first(1) == ["slow begins"]
        go.set()
        assert told.first(3) == ["slow begins", "slow ends", "next"]


def test_one_may_defer_another_which_runs_next() -> None:
    told = Gathered()

    def act(part: Part) -> None:
        def more() -> None:
            told("second")
            part.ctx.defer(lambda: told("deferred by the second"))

        part.ctx.defer(lambda: told("first"))
        part.ctx.defer(more)

    with joined(staged(act)) as client:
        answer(client, rpc.Kind.RPC)
        assert told.first(3) == ["second", "deferred by the second", "first"]


def test_it_waits_for_the_end_of_the_call_not_of_the_handler() -> None:
    told = Gathered()

    def act(part: Part) -> None:
        part.ctx.defer(lambda: told("deferred"))
        assert part.responses is not None
        part.responses.write("only")

    with joined(staged(act)) as client, begun(client, rpc.Kind.STREAM) as stream:
        assert isinstance(stream, rpc.StreamCall)
        assert list(stream) == ["only"]  # the handler has returned, and its half is ended
        assert told.said == []
        stream.close_write()
        assert told.first(1) == ["deferred"]


def test_after_the_end_it_runs_at_once() -> None:
    seen: list[Part] = []
    with joined(staged(seen.append)) as client:
        answer(client, rpc.Kind.RPC)
        seen[0].lasts()

        def runs_at_once() -> bool:
            told: list[str] = []
            seen[0].ctx.defer(lambda: told.append("now"))
            return told == ["now"]

        wait_for(runs_at_once)


def test_what_middleware_defers_runs_after_what_the_handler_does() -> None:
    told = Gathered()

    def layer(ctx: rpc.Context, init: Any, step: Callable[[], Any]) -> Any:
        ctx.defer(lambda: told("middleware"))
        return step()

    service = staged(lambda part: part.ctx.defer(lambda: told("handler")))
    with joined(service, middleware=[layer]) as client:
        answer(client, rpc.Kind.RPC)
        assert told.first(2) == ["handler", "middleware"]


# The end itself comes first


def test_the_call_is_over_before_what_was_deferred_runs() -> None:
    told = Gathered()
    service = staged(lambda part: part.ctx.defer(lambda: told(part.ctx.ended.is_set())))
    with joined(service) as client:
        answer(client, rpc.Kind.RPC)
        assert told.first(1) == [True]


def test_handlers_hear_of_the_end_though_they_take_all_workers() -> None:
    told = Gathered()

    def act(part: Part) -> None:
        told("entered")
        part.lasts()
        told("left")

    with joined(staged(act), workers=1) as client:
        with begun(client, rpc.Kind.SUBSCRIPTION):
            told.first(1)
        assert told.first(2) == ["entered", "left"]


def test_what_is_deferred_may_wake_handlers_that_take_all_workers() -> None:
    told = Gathered()
    source: queue.SimpleQueue[str] = queue.SimpleQueue()

    def act(part: Part) -> None:
        part.ctx.defer(lambda: source.put("the end"))
        told("entered")
        told(source.get(timeout=WAIT))

    with joined(staged(act), workers=1) as client:
        with begun(client, rpc.Kind.SUBSCRIPTION):
            told.first(1)
        assert told.first(2) == ["entered", "the end"]
