"""Handlers share the workers of a server; those that are generators hold none while they wait."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

import pytest

import wsmux
from wsmux import rpc
from wsmux.rpc import testing
from wsmux.rpc.engine.call_dispatcher import CallDispatcher
from wsmux.rpc.engine.generator_run import GeneratorRun
from wsmux.rpc.engine.server_calls import ServerCall
from wsmux.runtime.deadline import block_end

from ..helpers.inside import session_records_of, workers_held, writers_waiting
from ..helpers.rpc.four_kinds import joined
from ..helpers.rpc.procedures import WAIT
from ..helpers.rpc.raw_river import CANCEL, CLOSED, RawRiver, cancel
from ..helpers.waiting import wait_for, wait_for_value


class Feed:
    """Serve a value that changes, to generators that wait for it, and an rpc beside them."""

    def __init__(self) -> None:
        self.value = 0
        self.changed = rpc.Signal()
        self.ended: list[str] = []
        self.go = threading.Event()
        self.service = service = rpc.Service("test")
        service.rpc(name="same")(lambda ctx, init: init)
        service.rpc(name="threads")(lambda ctx, init: threading.active_count())
        service.subscription(name="watch")(self._watch)
        service.subscription(name="ticks")(self._ticks)
        service.subscription(name="pours")(self._pours)
        service.rpc(name="blocks")(lambda ctx, init: self.go.wait(WAIT))

    def set(self, value: int) -> None:
        self.value = value
        self.changed.notify()

    def _watch(self, ctx: rpc.Context, init: str) -> Generator[Any]:
        try:
            seen = None
            while True:
                if self.value != seen:
                    seen = self.value
                    yield seen
                assert (yield from ctx.wait(self.changed)) is True
        finally:
            self.ended.append(init)

    def _ticks(self, ctx: rpc.Context, init: float) -> Generator[Any]:
        for number in range(3):
            yield number
            assert (yield from ctx.wait(timeout=init)) is False

    def _pours(self, ctx: rpc.Context, init: Any) -> Iterator[int]:
        yield from range(2_000)


@pytest.fixture
def feed() -> Iterator[Feed]:
    feed = Feed()
    yield feed
    feed.go.set()


def test_a_thousand_subscriptions_that_wait_hold_no_worker(feed: Feed) -> None:
    options = rpc.Options(max_streams=2000)
    with (
        rpc.serve([feed.service], workers=4, max_workers=8, options=options) as server,
        rpc.connect(server.url) as client,
        rpc.connect(server.url) as other,
    ):
        watching = [client.subscribe("test", "watch", str(n), WAIT) for n in range(1000)]
        assert [each.read(WAIT) for each in watching] == [0] * 1000
        wait_for(lambda: workers_held(server.handler) == 0)
        assert other.rpc("test", "threads", None, WAIT) < 60
        with ThreadPoolExecutor(4) as pool:
            same = [pool.submit(other.rpc, "test", "same", n, WAIT) for n in range(200)]
            assert [each.result() for each in same] == list(range(200))
        for value in (1, 2):
            feed.set(value)
            assert [each.read(WAIT) for each in watching] == [value] * 1000
        for each in watching[:500]:
            each.cancel()
        wait_for(lambda: len(feed.ended) == 500)
    assert sorted(feed.ended, key=int) == [str(n) for n in range(1000)]


def test_a_wait_ends_with_its_time(feed: Feed) -> None:
    with joined(feed.service) as client:
        assert list(client.subscribe("test", "ticks", 0.01, WAIT)) == [0, 1, 2]


def test_the_nearest_of_many_times_counts(feed: Feed) -> None:
    with joined(feed.service) as client:
        slow = client.subscribe("test", "ticks", WAIT, WAIT)
        assert slow.read() == 0
        began = time.monotonic()
        assert list(client.subscribe("test", "ticks", 0.01, WAIT)) == [0, 1, 2]
        assert time.monotonic() - began < WAIT
        slow.cancel()


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_generator_that_waits_is_ended_with_its_call(feed: Feed, how: str) -> None:
    clock = testing.Clock()
    with testing.linked([feed.service], clock=clock) as link:
        watching = link.client.subscribe("test", "watch", "label", WAIT)
        assert watching.read() == 0
        if how == "cancel":
            watching.cancel()
        else:
            link.client.close()
            clock.advance(rpc.Options().session_disconnect_grace)
        wait_for(lambda: feed.ended == ["label"])


def test_a_generator_waits_for_room_without_a_worker(feed: Feed) -> None:
    options = rpc.Options(send_buffer_messages=8, ack_messages=4)
    with (
        rpc.serve([feed.service], workers=1, max_workers=1, options=options) as server,
        rpc.connect(server.url, options=rpc.Options(unread_messages=4_000)) as client,
    ):
        pouring = [client.subscribe("test", "pours", None, WAIT) for _ in range(3)]
        for each in pouring:
            assert list(each) == list(range(2_000))
        handler = server.handler  # a worker is let go after its last message has been sent
        wait_for_value(lambda: (writers_waiting(handler), workers_held(handler)), (0, 0))


def test_the_end_of_a_call_wakes_no_others_that_wait_for_room(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[GeneratorRun] = []
    advance = GeneratorRun.advance

    def counted(run: GeneratorRun) -> Any:
        looks.append(run)
        return advance(run)

    monkeypatch.setattr(GeneratorRun, "advance", counted)
    options = rpc.Options(send_buffer_messages=8, heartbeat_interval=WAIT)
    with (
        rpc.serve([feed.service], options=options) as server,
        RawRiver.dial(server.port, "msgpack", websocket=True) as peer,
    ):
        peer.attach("session")
        for number in range(50):
            peer.open(f"stream {number}", "pours", None, CLOSED)
        wait_for_value(lambda: (len(looks) >= 50, workers_held(server.handler)), (True, 0))
        before = len(looks)
        for number in range(50):
            peer.send({"streamId": f"stream {number}", "controlFlags": CANCEL, "payload": cancel()})
            wait_for(lambda: server.handler.list_sessions()[0].calls == 49 - number)  # noqa: B023
        more = before + 50
        wait_for_value(lambda: (len(looks) >= more, workers_held(server.handler)), (True, 0))
        assert len(looks) == more
        (record,) = session_records_of(server.handler)
        assert not record.waiting_runs


def test_a_generator_within_middleware_waits_in_its_thread(feed: Feed) -> None:
    def layer(ctx: rpc.Context, init: Any, step: Any) -> Any:
        return step()

    with rpc.serve([feed.service], middleware=[layer]) as server, rpc.connect(server.url) as client:
        watching = client.subscribe("test", "watch", "label", WAIT)
        assert watching.read() == 0
        assert workers_held(server.handler) == 1
        feed.set(1)
        assert watching.read() == 1
        assert list(client.subscribe("test", "ticks", 0.01, WAIT)) == [0, 1, 2]
        watching.cancel()
        wait_for(lambda: feed.ended == ["label"])


def test_only_signals_are_waited_for(feed: Feed) -> None:
    @feed.service.subscription()
    def confuses(ctx: rpc.Context, init: Any) -> Generator[Any]:
        with pytest.raises(TypeError, match="must be a wsmux.rpc.Signal or None, not Event"):
            yield from ctx.wait(threading.Event())  # type: ignore[arg-type]
        yield "told"

    with joined(feed.service) as client:
        assert list(client.subscribe("test", "confuses", None, WAIT)) == ["told"]


def test_an_error_after_a_wait_ends_the_call(feed: Feed, caplog: pytest.LogCaptureFixture) -> None:
    @feed.service.subscription()
    def fails(ctx: rpc.Context, init: Any) -> Generator[Any]:
        yield from ctx.wait(timeout=0.001)
        raise LookupError("later")
        yield

    with joined(feed.service, expose_errors=True) as client:
        failing = client.subscribe("test", "fails", None, WAIT)
        with pytest.raises(rpc.RiverError, match="UNCAUGHT_ERROR: later"):
            failing.read()
    assert "the handler of test.fails failed" in caplog.text


def test_a_session_that_fills_its_workers_leaves_the_others_theirs(
    feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wsmux.rpc")
    options = rpc.Options(worker_timeout=0.2)
    with (
        rpc.serve([feed.service], workers=4, options=options) as server,
        rpc.connect(server.url, client_id="greedy") as client,
        rpc.connect(server.url) as other,
    ):
        blocked = [client.submit("test", "blocks", None, WAIT) for _ in range(4)]
        late = [client.submit("test", "same", n, WAIT) for n in range(3)]
        assert other.rpc("test", "same", 1, WAIT) == 1
        for call in late:
            with pytest.raises(rpc.RiverError, match=r"CANCEL: no worker was free in 0\.2 s: 4 "):
                call.result()
        feed.go.set()
        assert [call.result() for call in blocked] == [True] * 4
        assert client.rpc("test", "same", 2, WAIT) == 2
    told = [record.getMessage() for record in caplog.records if "greedy" in record.getMessage()]
    assert ["wait for one to end" in told[0], "was refused" in told[1], len(told)] == [
        True,
        True,
        2,
    ]


class Fails(logging.Handler):
    """Fail over one kind of record."""

    def emit(self, record: logging.LogRecord) -> None:
        if "was refused" in record.msg:
            raise LookupError("on purpose")


def test_a_timer_that_fails_ends_no_other(feed: Feed, caplog: pytest.LogCaptureFixture) -> None:
    """A handler of the log raises in the thread of all times."""
    log, fails = logging.getLogger("wsmux.rpc"), Fails()
    log.addHandler(fails)
    try:
        with (
            rpc.serve([feed.service], workers=1, options=rpc.Options(worker_timeout=0.1)) as server,
            rpc.connect(server.url) as client,
            rpc.connect(server.url) as other,
        ):
            blocked = client.submit("test", "blocks", None, WAIT)
            for call in [client.submit("test", "same", n, WAIT) for n in range(3)]:
                with pytest.raises(rpc.RiverError, match="CANCEL: no worker was free"):
                    call.result()
            assert list(other.subscribe("test", "ticks", 0.01, WAIT)) == [0, 1, 2]
            feed.go.set()
            assert blocked.result() is True
    finally:
        log.removeHandler(fails)
    (told,) = [record for record in caplog.records if "a timer of" in record.getMessage()]
    assert told.getMessage() == "a timer of test.same failed"
    assert told.exc_info is not None
    assert told.exc_info[0] is LookupError


def test_the_thread_of_times_survives_whatever_fails_in_it(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failures = CallDispatcher.handle_timers, [LookupError("on purpose")]

    def handle_timers(self: CallDispatcher, now: float) -> None:
        real(self, now)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(CallDispatcher, "handle_timers", handle_timers)
    with joined(feed.service) as client:
        assert list(client.subscribe("test", "ticks", 0.01, WAIT)) == [0, 1, 2]
    assert failures == []
    (told,) = [record for record in caplog.records if "a timer of" in record.getMessage()]
    assert told.exc_info is not None


def test_a_log_handler_may_ask_the_server(feed: Feed) -> None:
    found: list[int] = []

    class Asks(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.extend(session.waiting_calls for session in server.handler.list_sessions())

    log, asks = logging.getLogger("wsmux.rpc"), Asks(logging.INFO)
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(asks)
    try:
        with (
            rpc.serve([feed.service], workers=1) as server,
            rpc.connect(server.url) as client,
        ):
            calls = [client.submit("test", "blocks", None, WAIT) for _ in range(2)]
            wait_for(lambda: found == [1])
            feed.go.set()
            assert [call.result() for call in calls] == [True, True]
    finally:
        log.removeHandler(asks)
        log.setLevel(level)


def test_sessions_that_fill_the_server_leave_a_worker_to_the_next(feed: Feed) -> None:
    options = rpc.Options(worker_timeout=WAIT)
    with (
        rpc.serve([feed.service], workers=100, max_workers=8, options=options) as server,
        ExitStack() as stack,
    ):
        held = 0
        for expected in (4, 2, 1):
            greedy = stack.enter_context(rpc.connect(server.url))
            for _ in range(10):
                greedy.submit("test", "blocks", None, WAIT)
            held += expected
            wait_for(lambda held=held: workers_held(server.handler) == held)  # type: ignore[misc]
        other = stack.enter_context(rpc.connect(server.url))
        assert other.rpc("test", "same", 1, WAIT) == 1
        feed.go.set()


def test_calls_that_wait_for_a_worker_end_with_their_session(feed: Feed) -> None:
    with rpc.serve([feed.service], workers=1) as server:
        with rpc.connect(server.url) as client:
            calls = [client.submit("test", "blocks", None, WAIT) for _ in range(3)]
            wait_for(lambda: workers_held(server.handler) == 1)
        for call in calls:
            with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
                call.result()
        feed.go.set()
        wait_for(lambda: workers_held(server.handler) == 0)


def runs_left() -> int:
    gc.collect()
    return sum(type(each) is GeneratorRun for each in gc.get_objects())


@pytest.mark.parametrize("layers", [[], [lambda ctx, init, step: step()]], ids=["bare", "layered"])
def test_calls_that_waited_and_are_over_leave_nothing(feed: Feed, layers: list[Any]) -> None:
    @feed.service.subscription()
    def patient(ctx: rpc.Context, init: Any) -> Generator[Any]:
        yield "here"
        yield from ctx.wait(feed.changed, timeout=3600)

    before = runs_left()
    with rpc.serve([feed.service], middleware=layers) as server, rpc.connect(server.url) as client:
        for _ in range(200):
            call = client.subscribe("test", "patient", None, WAIT)
            assert call.read() == "here"
            call.cancel()
        wait_for(lambda: client.rpc("test", "same", 1, WAIT) and runs_left() < before + 10)


def test_calls_that_waited_for_a_worker_and_have_run_leave_nothing(feed: Feed) -> None:
    blocked = rpc.Options(worker_timeout=3600)
    with (
        rpc.serve([feed.service], workers=1, options=blocked) as server,
        rpc.connect(server.url) as greedy,
        rpc.connect(server.url) as client,
    ):
        greedy.submit("test", "blocks", None, WAIT)
        greedy.submit("test", "same", None, WAIT)  # waits before all others
        wait_for(lambda: workers_held(server.handler) == 1)
        for _ in range(50):
            calls = [client.submit("test", "same", n, WAIT) for n in range(20)]
            assert [call.result() for call in calls] == list(range(20))
        gc.collect()
        left = sum(type(each) is ServerCall for each in gc.get_objects())
        feed.go.set()
    assert left < 200


def test_what_a_generator_sets_of_its_context_stays_its_own(feed: Feed) -> None:
    own: ContextVar[str] = ContextVar("own", default="nobody's")

    @feed.service.subscription()
    def sets(ctx: rpc.Context, init: str) -> Generator[Any]:
        token = own.set(init)
        while (value := feed.value) < 3:
            yield [value, own.get()]
            yield from ctx.wait(feed.changed)
        own.reset(token)
        yield own.get()

    feed.service.rpc(name="gets")(lambda ctx, init: own.get())
    with joined(feed.service) as client:
        calls = {name: client.subscribe("test", "sets", name, WAIT) for name in "abcdef"}
        for value in range(3):
            feed.set(value)
            for name, call in calls.items():
                while call.read() != [value, name]:
                    pass  # a change that came while it looked
            assert [client.rpc("test", "gets", None, WAIT) for _ in range(20)] == ["nobody's"] * 20
        feed.set(3)
        assert [list(call)[-1] for call in calls.values()] == ["nobody's"] * 6


@pytest.mark.parametrize("layers", [[], [lambda ctx, init, step: step()]], ids=["bare", "layered"])
def test_a_block_with_a_deadline_ends_a_wait_in_it(feed: Feed, layers: list[Any]) -> None:
    @feed.service.subscription()
    def hurries(ctx: rpc.Context, init: Any) -> Generator[Any]:
        try:
            with wsmux.deadline(0.05):
                yield from ctx.wait(feed.changed)
        except TimeoutError:
            yield "late"
        yield (yield from ctx.wait(feed.changed, timeout=0.05))

    began = time.process_time()
    with joined(feed.service, middleware=layers) as client:
        assert list(client.subscribe("test", "hurries", None, WAIT)) == ["late", False]
    assert time.process_time() - began < WAIT


@pytest.mark.parametrize("layers", [[], [lambda ctx, init, step: step()]], ids=["bare", "layered"])
def test_the_time_of_a_call_limits_its_generator_behind_a_wait(
    feed: Feed, layers: list[Any]
) -> None:
    """Then another worker runs it, in the context of the first one."""

    @feed.service.subscription()
    def limits(ctx: rpc.Context, init: Any) -> Generator[Any]:
        for _ in range(3):
            yield block_end() == ctx.deadline.at
            assert (yield from ctx.wait(timeout=0.001)) is False
        yield block_end() == ctx.deadline.at

    with joined(feed.service, middleware=layers) as client:
        assert list(client.subscribe("test", "limits", None, WAIT)) == [True] * 4


@pytest.mark.parametrize("name", ["workers", "max_workers"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_workers_are_counted(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number from 1 up"):
        rpc.handler([], **{name: value})
