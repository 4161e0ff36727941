"""With a clock that a test moves, whatever takes time at either end takes none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import wsmux
from wsmux import rpc
from wsmux.rpc import fake_clock, testing
from wsmux.runtime import clock as seam

from ..helpers.inside import (
    call_of,
    calls_of,
    client_engine_of,
    connections_made,
    session_records_of,
    workers_held,
)
from ..helpers.rpc.four_kinds import Part, staged
from ..helpers.rpc.procedures import WAIT
from ..helpers.waiting import wait_for


@pytest.fixture
def clock() -> testing.Clock:
    return testing.Clock()


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Check that a test has waited for no time that it has let pass."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < WAIT
    assert seam.replaced is None
    assert seam.monotonic is time.monotonic


def same(part: Part) -> Any:
    return part.init


def ticking(every: float) -> rpc.Service:
    service = rpc.Service("test")

    @service.subscription()
    def ticks(ctx: rpc.Context, init: int) -> Generator[Any]:
        for number in range(init):
            yield number
            yield from ctx.wait(timeout=every)

    return service


def unread(call: rpc.Subscription[Any]) -> list[Any]:
    """Return what has arrived, and not more."""
    return [call.read(0) for _ in range(call_of(call).reader.unread_messages)]


def test_time_passes_as_it_is_told(clock: testing.Clock) -> None:
    began = clock.monotonic()
    with testing.linked([staged(same)], clock=clock) as link:
        clock.advance(1.5)
        clock.advance(0)
        assert clock.monotonic() == began + 1.5
        assert link.client.rpc("test", "rpc", "x") == "x"
        assert clock.monotonic() == began + 1.5


def test_heartbeats_keep_an_idle_connection(clock: testing.Clock) -> None:
    with testing.linked([staged(same)], clock=clock) as link:
        link.client.rpc("test", "rpc", None)
        before = link.client.session
        clock.advance(100)
        after = link.client.session
        assert before is not None
        assert after is not None
        assert before.session_id == after.session_id
        assert connections_made(link) == 1
        engine = client_engine_of(link.client)
        assert engine.connector.session is not None
        # The server has sent a heartbeat each second, and the client has answered.
        assert engine.connector.session.expected_state().next_expected >= 100


def test_a_call_has_its_timeout(clock: testing.Clock) -> None:
    with testing.linked([staged(Part.lasts)], clock=clock) as link:
        call = link.client.submit("test", "rpc", None, 60.0)
        clock.advance(59)
        assert not call.done()
        assert calls_of(link.handler) == 1
        clock.advance(1)
        assert call.done()
        assert calls_of(link.handler) == 0
        with pytest.raises(TimeoutError):
            call.result()


def test_a_thread_that_waits_for_a_call_is_woken(clock: testing.Clock) -> None:
    ends: list[type[BaseException]] = []
    with testing.linked([staged(Part.lasts)], clock=clock) as link:

        def ask() -> None:
            try:
                with wsmux.deadline(60):
                    link.client.rpc("test", "rpc", None)
            except TimeoutError as error:
                ends.append(type(error))

        asking = threading.Thread(target=ask)
        asking.start()
        wait_for(lambda: calls_of(link.handler) == 1)
        clock.advance(59)
        assert ends == []
        clock.advance(1)
        asking.join(WAIT)
        assert ends == [TimeoutError]


def test_generators_wait_for_its_time(clock: testing.Clock) -> None:
    with testing.linked([ticking(10.0)], clock=clock) as link:
        ticks = link.client.subscribe("test", "ticks", 5)
        clock.advance(0)
        assert unread(ticks) == [0]
        clock.advance(9.5)
        assert unread(ticks) == []
        clock.advance(0.5)
        assert unread(ticks) == [1]
        clock.advance(25)
        assert unread(ticks) == [2, 3]
        clock.advance(20)
        assert list(ticks) == [4]
        assert workers_held(link.handler) == 0


def test_handlers_that_read_wait_for_its_time(clock: testing.Clock) -> None:
    ends: list[str] = []

    def reads(part: Part) -> None:
        assert part.requests is not None
        try:
            part.requests.read(30)
        except TimeoutError as error:
            ends.append(str(error))

    with testing.linked([staged(reads)], clock=clock) as link:
        link.client.upload("test", "upload", None)
        clock.advance(29)
        assert ends == []
        clock.advance(1)
        assert ends == ["no message arrived in time"]


def test_both_ends_keep_a_lost_session_for_its_grace(clock: testing.Clock) -> None:
    with testing.linked([staged(Part.lasts)], clock=clock) as link:
        call = link.client.submit("test", "rpc", None)
        clock.advance(0)
        link.hold()
        clock.advance(4.9)
        assert not call.done()
        assert len(session_records_of(link.handler)) == 1
        clock.advance(0.2)
        with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
            call.result()
        assert session_records_of(link.handler) == []


def test_a_session_that_comes_back_in_time_goes_on(clock: testing.Clock) -> None:
    with testing.linked([ticking(10.0)], clock=clock) as link:
        ticks = link.client.subscribe("test", "ticks", 3)
        clock.advance(0)
        assert unread(ticks) == [0]
        link.hold()
        clock.advance(3)
        link.release()
        clock.advance(7)
        assert unread(ticks) == [1]
        assert connections_made(link) == 2


def test_attempts_go_on_for_ever_and_wait_in_between(clock: testing.Clock) -> None:
    with testing.linked([staged(same)], clock=clock) as link:
        link.client.rpc("test", "rpc", None)
        link.hold()
        clock.advance(600)
        link.release()
        call = link.client.submit("test", "rpc", "again")
        clock.advance(2)
        assert call.result() == "again"


def test_a_call_that_finds_no_worker_is_refused_in_time(clock: testing.Clock) -> None:
    held = threading.Event()
    service = staged(lambda part: held.wait(WAIT))
    with testing.linked([service], {"workers": 1, "max_workers": 1}, clock=clock) as link:
        holds, waits = (link.client.submit("test", "rpc", None) for _ in range(2))
        clock.advance(9.9)
        assert not waits.done()
        clock.advance(0.2)
        assert waits.done()
        assert not holds.done()
        held.set()
        assert holds.result() is True


def test_a_handler_that_waits_for_something_else_is_held_once(clock: testing.Clock) -> None:
    held = threading.Event()
    with testing.linked([staged(lambda part: held.wait(WAIT))], clock=clock) as link:
        call = link.client.submit("test", "rpc", None)
        for _ in range(50):
            clock.advance(1)
        held.set()
        assert call.result() is True


def test_a_handler_that_computes_is_waited_for(clock: testing.Clock) -> None:
    def computes(_: Part) -> bool:
        began = time.thread_time()
        while time.thread_time() < began + 1.2 * fake_clock.HELD:
            pass
        return True

    with testing.linked([staged(computes)], clock=clock) as link:
        call = link.client.submit("test", "rpc", None)
        clock.advance(0)
        assert call.done()


def test_seldom_looks_find_no_thread_held(
    clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine on which all threads are late: who looks rarely knows nothing of the rest."""
    monkeypatch.setattr(fake_clock, "LOOK", 0.4 * fake_clock.HELD)
    held = threading.Event()
    service = staged(lambda part: held.wait(1.8 * fake_clock.HELD))
    with testing.linked([service], clock=clock) as link:
        call = link.client.submit("test", "rpc", None)
        clock.advance(0)
        assert call.done()


class Parks:
    """What a thread parks on; it tells when that waits."""

    def __init__(self) -> None:
        self.entered, self._woken = threading.Event(), threading.Event()

    def unpark(self) -> None:
        self._woken.set()

    def unparked_already(self) -> bool:
        return self._woken.is_set()

    def await_unpark(self) -> None:
        self.entered.set()
        self._woken.wait(WAIT)


def test_a_thread_that_begins_to_wait_while_it_is_looked_at_is_waited_for_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it does after its wait counts as its time outside, and not the wait, too."""
    real = [0.0]
    seen: list[float] = []
    monkeypatch.setattr(
        fake_clock, "time", SimpleNamespace(monotonic=lambda: real[0], sleep=time.sleep)
    )
    clock = testing.Clock()
    begin, works, finish, parks = threading.Event(), threading.Event(), threading.Event(), Parks()

    def run() -> None:
        begin.wait(WAIT)
        clock.park(parks, None)
        works.set()
        finish.wait(WAIT)
        seen.append(clock.monotonic())

    def let_it_wait() -> None:
        begin.set()
        assert parks.entered.wait(WAIT)

    def enumerate_threads() -> list[threading.Thread]:
        next(looks, lambda: None)()
        return threads()

    looks: Iterator[Callable[[], None]] = iter([])
    threads = threading.enumerate
    monkeypatch.setattr(threading, "enumerate", enumerate_threads)
    clock.start()
    try:
        thread = threading.Thread(target=run, name="wsmux-test", daemon=True)
        thread.start()
        looks = iter([let_it_wait])  # after the waits were noted
        clock.advance(0)
        real[0] += 2 * fake_clock.HELD
        parks.unpark()
        assert works.wait(WAIT)
        looks = iter([lambda: None, lambda: None, finish.set])
        clock.advance(1)
    finally:
        clock.stop()
        finish.set()
        thread.join(WAIT)
    assert seen == [0.0]


def test_what_was_due_happens_in_the_same_order_each_time() -> None:
    def run() -> list[Any]:
        seen: list[Any] = []
        clock = testing.Clock()
        service = rpc.Service("test")
        began = clock.monotonic()

        @service.subscription()
        def ticks(ctx: rpc.Context, init: float) -> Generator[Any]:
            for _ in range(10):
                yield from ctx.wait(timeout=init)
                seen.append((round(clock.monotonic() - began, 6), init))
                yield init

        with testing.linked([service], clock=clock) as link:
            calls = []
            for every in (0.5, 0.75, 1.0, 3.0):
                calls.append(link.client.subscribe("test", "ticks", every))
                clock.advance(0)
            clock.advance(30)
        return seen

    first = run()
    assert len(first) == 40
    assert first == sorted(first, key=lambda each: each[0])
    assert [run() for _ in range(3)] == [first] * 3


def test_only_one_is_in_use_at_a_time(clock: testing.Clock) -> None:
    with testing.linked([staged(same)], clock=clock):
        with pytest.raises(RuntimeError, match="another test's clock is in use"):
            testing.Clock().start()
        assert seam.replaced is clock


def test_it_moves_only_in_its_block(clock: testing.Clock) -> None:
    with pytest.raises(RuntimeError, match="the clock is not in use"):
        clock.advance(1)
    with testing.linked([staged(same)], clock=clock):
        clock.advance(1)
    with pytest.raises(RuntimeError, match="the clock is not in use"):
        clock.advance(1)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_time_does_not_go_back(clock: testing.Clock, seconds: float) -> None:
    with (
        testing.linked([staged(same)], clock=clock),
        pytest.raises(ValueError, match="at least 0 seconds"),
    ):
        clock.advance(seconds)


def test_a_link_without_it_has_the_real_one() -> None:
    with testing.linked([ticking(0.01)]) as link:
        assert list(link.client.subscribe("test", "ticks", 3)) == [0, 1, 2]
