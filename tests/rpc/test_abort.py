"""One event cancels any number of calls, and a client's own time those that have none."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from wsmux import rpc

from ..helpers.inside import requests_waiting
from ..helpers.rpc.clients import session_of
from ..helpers.rpc.procedures import WAIT, Gate, offered
from ..helpers.waiting import wait_for

ABORTED = "CANCEL: the caller aborted the call"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def lasting(gate: Gate) -> rpc.Service:
    """Return the service of the other tests, with calls that last until they are over."""
    service = offered(gate)

    @service.rpc()
    def lasts(ctx: rpc.Context, init: Any) -> None:
        ctx.defer(gate.over.set)
        gate.entered.set()
        ctx.ended.wait(WAIT)

    @service.upload()
    def hears(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> None:
        lasts(ctx, init)

    return service


@pytest.fixture
def client(gate: Gate) -> Iterator[rpc.Client]:
    with rpc.serve([lasting(gate)]) as server, rpc.connect(server.url) as made:
        yield made


@pytest.fixture
def abort() -> rpc.Abort:
    return rpc.Abort()


Ask = Callable[[rpc.Client, rpc.Abort], Any]

# What waits until it is aborted, by what it waits for.
WAITS: dict[str, Ask] = {
    "rpc": lambda client, abort: client.rpc("test", "lasts", None, abort=abort),
    "submit": lambda client, abort: client.submit("test", "lasts", None, abort=abort).result(),
    "subscribe": lambda client, abort: list(client.subscribe("test", "watch", None, abort=abort)),
    "upload": lambda client, abort: client.upload("test", "hears", None, abort=abort).finish(),
    "stream": lambda client, abort: client.stream("test", "echo", None, abort=abort).read(),
    "by name": lambda client, abort: client.test.lasts(abort=abort),
    "subscribe by name": lambda client, abort: list(client.test.watch.subscribe(abort=abort)),
    "upload by name": lambda client, abort: client.test.hears.upload(abort=abort).finish(),
    "stream by name": lambda client, abort: client.test.echo.stream(abort=abort).read(),
}


@pytest.mark.parametrize("ask", WAITS.values(), ids=WAITS)
def test_a_set_event_wakes_a_caller_and_ends_the_call(
    ask: Ask, gate: Gate, abort: rpc.Abort
) -> None:
    with (
        rpc.serve([lasting(gate)]) as server,
        rpc.connect(server.url) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        asking = pool.submit(ask, client, abort)
        wait_for(lambda: abort._calls)
        abort.set()
        with pytest.raises(rpc.RiverError, match=ABORTED):
            asking.result(WAIT)
        assert not abort._calls
        wait_for(lambda: session_of(client).calls == 0)


def test_a_handler_is_told(client: rpc.Client, gate: Gate, abort: rpc.Abort) -> None:
    client.submit("test", "lasts", None, abort=abort)
    assert gate.entered.wait(WAIT)
    abort.set()
    assert gate.over.wait(WAIT)


def test_a_writer_that_waits_is_woken(gate: Gate, abort: rpc.Abort) -> None:
    options = rpc.Options(send_buffer_messages=2)
    with (
        rpc.connect("ws://127.0.0.1:1/", options=options, connect_on_call=False) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        stream = client.stream("test", "echo", None, abort=abort)

        def fill() -> None:
            while True:
                stream.write("x")

        filling = pool.submit(fill)
        wait_for(lambda: requests_waiting(client))
        abort.set()
        with pytest.raises(rpc.RiverError, match=ABORTED):
            filling.result(WAIT)


@pytest.mark.parametrize("ask", WAITS.values(), ids=WAITS)
def test_an_event_that_is_set_lets_no_call_begin(ask: Ask, abort: rpc.Abort) -> None:
    abort.set()
    with rpc.connect("ws://127.0.0.1:1/") as client:
        with pytest.raises(rpc.RiverError, match=ABORTED):
            ask(client, abort)
        assert client.session is None


def test_one_event_cancels_many_calls_without_a_thread_for_each(
    client: rpc.Client, abort: rpc.Abort
) -> None:
    client.wait_connected(WAIT)
    client.rpc("test", "same", None, WAIT)
    before = {thread for thread in threading.enumerate() if "SERVER" not in thread.name}
    calls = client.submit_many("test", "lasts", [None] * 200, abort=abort)
    other = client.submit("test", "same", "alone")
    after = {thread for thread in threading.enumerate() if "SERVER" not in thread.name}
    assert after <= before
    abort.set()
    for call in calls:
        with pytest.raises(rpc.RiverError, match=ABORTED):
            call.result(0)
    assert other.result(WAIT) == "alone"


def test_calls_of_two_clients_have_one_event(gate: Gate, abort: rpc.Abort) -> None:
    with (
        rpc.serve([lasting(gate)]) as server,
        rpc.connect(server.url) as one,
        rpc.connect(server.url) as other,
    ):
        calls = [each.submit("test", "lasts", None, abort=abort) for each in (one, other)]
        abort.set()
        for call in calls:
            with pytest.raises(rpc.RiverError, match=ABORTED):
                call.result(WAIT)


def test_calls_that_have_ended_are_forgotten(client: rpc.Client, abort: rpc.Abort) -> None:
    assert client.rpc("test", "same", 1, WAIT, abort=abort) == 1
    assert list(client.subscribe("test", "count", 3, WAIT, abort=abort)) == [0, 1, 2]
    with client.stream("test", "echo", None, WAIT, abort=abort):
        assert len(abort._calls) == 1
    with pytest.raises(rpc.EncodeError):
        client.rpc("test", "same", object(), WAIT, abort=abort)
    with pytest.raises(rpc.RiverError, match="BAD"):
        client.rpc("test", "fails", "declared", WAIT, abort=abort)
    wait_for(lambda: not abort._calls)
    abort.set()
    assert client.rpc("test", "same", 2, WAIT) == 2


def test_a_closed_client_leaves_nothing_in_an_event(gate: Gate, abort: rpc.Abort) -> None:
    with rpc.connect("ws://127.0.0.1:1/") as client:
        client.submit("test", "same", None, abort=abort)
        assert len(abort._calls) == 1
    assert not abort._calls
    with pytest.raises(rpc.RiverError, match="the client is closed"):
        client.rpc("test", "same", None, abort=abort)


def test_an_event_may_be_used_again(client: rpc.Client, abort: rpc.Abort) -> None:
    abort.set()
    abort.clear()
    assert client.rpc("test", "same", 1, WAIT, abort=abort) == 1


def test_no_call_is_missed_however_close_the_event_comes(client: rpc.Client) -> None:
    client.wait_connected(WAIT)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(300):
            abort = rpc.Abort()
            setting = pool.submit(abort.set)
            call = client.submit("test", "lasts", None, abort=abort)
            setting.result(WAIT)
            with pytest.raises(rpc.RiverError, match=ABORTED):
                call.result(WAIT)


@pytest.mark.parametrize("procedure", ["ask", "asks_late"])
def test_a_handlers_calls_end_with_its_own(gate: Gate, procedure: str) -> None:
    front = rpc.Service("front")

    @front.rpc()
    def ask(ctx: rpc.Context, init: Any) -> Any:
        return ctx.context.rpc("test", "lasts", None, abort=ctx.ended)

    @front.rpc()
    def asks_late(ctx: rpc.Context, init: Any) -> Any:
        gate.entered.set()
        assert ctx.ended.wait(WAIT)
        try:
            ctx.context.rpc("test", "lasts", None, abort=ctx.ended)
        except rpc.RiverError as error:
            gate.seen.append(str(error))
            gate.over.set()

    with (
        rpc.serve([lasting(gate)]) as back,
        rpc.connect(back.url) as behind,
        rpc.serve([front], context=behind) as server,
        rpc.connect(server.url) as client,
    ):
        asking = client.submit("front", procedure, None)
        assert gate.entered.wait(WAIT)
        asking.cancel()
        assert gate.over.wait(WAIT)
    assert gate.seen == ([ABORTED] if procedure == "asks_late" else [])


def test_an_end_that_cancels_nothing_takes_no_thread() -> None:
    service = rpc.Service("test")
    entered = threading.Event()

    @service.rpc()
    def lasts(ctx: rpc.Context, init: Any) -> None:
        ended = ctx.ended
        entered.set()
        ended.wait(WAIT)

    service.rpc(name="same")(lambda ctx, init: init)
    with (
        rpc.serve([service], server_id="IDLE") as server,
        rpc.connect(server.url, server_id="IDLE") as client,
    ):
        call = client.submit("test", "lasts", None)
        assert entered.wait(WAIT)
        call.cancel()
        assert client.rpc("test", "same", 1, WAIT) == 1  # handled after that end
        names = [thread.name for thread in threading.enumerate()]
    assert any("IDLE" in name for name in names)
    assert not any("IDLE-cleanup" in name for name in names)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (threading.Event(), "must be a wsmux.rpc.Abort, not Event; a plain event cannot tell"),
        (5.0, "must be a wsmux.rpc.Abort, not float$"),
    ],
)
def test_other_events_are_refused_in_a_sentence(
    wrong: Any, sentence: str, client: rpc.Client
) -> None:
    for ask in WAITS.values():
        with pytest.raises(TypeError, match=sentence):
            ask(client, wrong)


# The time of a client's calls


TIMED: dict[str, Callable[[rpc.Client], Any]] = {
    "rpc": lambda client: client.rpc("test", "lasts", None),
    "submit": lambda client: client.submit("test", "lasts", None).result(),
    "submit many": lambda client: client.submit_many("test", "lasts", [None])[0].result(),
    "subscribe": lambda client: list(client.subscribe("test", "watch", None)),
    "upload": lambda client: client.upload("test", "hears", None).finish(),
    "stream": lambda client: client.stream("test", "echo", None).read(),
    "by name": lambda client: client.test.lasts(),
}


@pytest.mark.parametrize("ask", TIMED.values(), ids=TIMED)
def test_a_client_has_a_time_for_calls_without_their_own(
    ask: Callable[[rpc.Client], Any], gate: Gate
) -> None:
    with (
        rpc.serve([lasting(gate)]) as server,
        rpc.connect(server.url, timeout=0.2) as client,
        pytest.raises(TimeoutError),
    ):
        ask(client)


@pytest.mark.parametrize("ask", TIMED.values(), ids=TIMED)
def test_a_client_has_an_event_for_calls_without_their_own(
    ask: Callable[[rpc.Client], Any], gate: Gate, abort: rpc.Abort
) -> None:
    abort.set()
    with (
        rpc.serve([lasting(gate)]) as server,
        rpc.connect(server.url, abort=abort) as client,
        pytest.raises(rpc.RiverError, match=ABORTED),
    ):
        ask(client)


def test_the_own_event_of_a_call_comes_first(gate: Gate, abort: rpc.Abort) -> None:
    abort.set()
    with rpc.serve([lasting(gate)]) as server, rpc.connect(server.url, abort=abort) as client:
        assert client.rpc("test", "same", 1, WAIT, abort=rpc.Abort()) == 1


def test_a_function_makes_the_event_of_each_call(gate: Gate) -> None:
    made: list[rpc.Abort] = []

    def make() -> rpc.Abort:
        made.append(rpc.Abort())
        return made[-1]

    with rpc.serve([lasting(gate)]) as server, rpc.connect(server.url, abort=make) as client:
        calls = [client.submit("test", "lasts", None, WAIT) for _ in range(2)]
        many = client.submit_many("test", "same", range(3), WAIT)
        assert [call.result() for call in many] == [0, 1, 2]
        assert len(made) == 3
        made[1].set()
        with pytest.raises(rpc.RiverError, match=ABORTED):
            calls[1].result()
        assert not calls[0].over


@pytest.mark.parametrize("wrong", ["an event", threading.Event()])
def test_a_clients_event_must_be_one_of_ours(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"abort must be a wsmux\.rpc\.Abort"):
        rpc.connect("ws://127.0.0.1:1", abort=wrong)


def test_the_own_time_of_a_call_comes_first(gate: Gate) -> None:
    with rpc.serve([lasting(gate)]) as server, rpc.connect(server.url, timeout=0.1) as client:
        with pytest.raises(TimeoutError, match="did not answer in time"):
            client.rpc("test", "lasts", None)
        for timeout in (WAIT, math.inf):
            call = client.submit("test", "lasts", None, timeout)
            with pytest.raises(TimeoutError, match="the call continues"):
                call.result(0.3)
            assert not call.over
        assert call.remaining() is None


def test_calls_have_no_end_by_default(client: rpc.Client) -> None:
    assert client.submit("test", "lasts", None).remaining() is None


@pytest.mark.parametrize("timeout", [-1.0, math.nan])
def test_a_time_that_none_can_have_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be at least 0 seconds"):
        rpc.connect("ws://127.0.0.1:1/", timeout=timeout)
