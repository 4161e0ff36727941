"""A test's clock takes the place of the real one, and everything that waits waits through it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from wsmux.rpc.fake_clock import Clock
from wsmux.runtime import clock as seam
from wsmux.runtime.deadline import Deadline, RealDeadline, deadline, within
from wsmux.runtime.parking import Parker, Waiter, drop_idle, wake
from wsmux.runtime.thread_pool import ThreadPool

from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    clock.start()
    yield clock
    clock.stop()


@pytest.fixture(params=["eventfd", "lock"])
def parkers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let threads park on one kind of parker."""
    drop_idle()
    if request.param == "lock":
        monkeypatch.delattr(os, "eventfd", raising=False)
    yield
    drop_idle()


class Waits:
    """Have a thread wait for a minute, or until it is woken."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.waiter = Waiter()
        self.woken = False
        self.ends: list[str] = []
        self.thread = threading.Thread(target=self._wait, name="wsmux-waits")
        self.thread.start()
        wait_for(self.waiter.occupied)

    def _wait(self) -> None:
        ends = Deadline(60.0)
        with self.mutex:
            while not self.woken and not ends.expired():
                self.waiter.wait(self.mutex, ends)
            self.ends.append("woken" if self.woken else "late")

    def wake(self) -> None:
        wakes: list[Parker] = []
        with self.mutex:
            self.woken = True
            self.waiter.notify(wakes)
        wake(wakes)


def test_the_real_one_is_there_without_a_test() -> None:
    assert seam.monotonic is time.monotonic
    assert seam.replaced is None


@pytest.mark.usefixtures("parkers")
def test_a_wait_ends_when_its_time_was_let_pass(clock: Clock) -> None:
    waits = Waits()
    clock.advance(59.9)
    assert waits.ends == []
    clock.advance(0.1)
    waits.thread.join(WAIT)
    assert waits.ends == ["late"]


@pytest.mark.usefixtures("parkers")
def test_a_wait_that_is_woken_ends_before(clock: Clock) -> None:
    waits = Waits()
    waits.wake()
    clock.advance(0)
    waits.thread.join(WAIT)
    assert waits.ends == ["woken"]


@pytest.mark.usefixtures("parkers")
def test_a_wait_goes_on_by_the_real_clock_when_the_test_s_one_is_stopped(clock: Clock) -> None:
    waits = Waits()
    clock.stop()
    wait_for(waits.waiter.occupied)
    assert waits.ends == []
    waits.wake()
    waits.thread.join(WAIT)
    assert waits.ends == ["woken"]


def test_blocks_follow_it(clock: Clock) -> None:
    with deadline(10) as block:
        clock.advance(9)
        assert block.remaining() == pytest.approx(1.0)
        with within(Deadline(0.5)):
            clock.advance(0.5)
            assert Deadline(5).expired()
        assert not block.expired()


def test_real_time_does_not_follow_it(clock: Clock) -> None:
    real = RealDeadline(WAIT)
    clock.advance(2 * WAIT)
    assert not real.expired()
    assert 0 < real.remaining() <= WAIT
    assert RealDeadline(0.0).expired()


@pytest.mark.usefixtures("clock")
def test_a_pool_has_its_workers_while_it_stands_still() -> None:
    pool, together = ThreadPool(4, "wsmux-test-pool"), threading.Barrier(5)
    for _ in range(4):
        pool.submit(lambda: together.wait(WAIT) and None)
    together.wait(WAIT)
    pool.close()
    pool.join(Deadline(WAIT))
