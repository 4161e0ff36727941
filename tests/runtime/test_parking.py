"""Bells ring once for a sleeper; waiters are woken in order, and found again when they were not."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from wsmux.runtime import parking as parkers
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.parking import (
    Condition,
    OneShotEvent,
    Parker,
    Waiter,
    WaitQueue,
    borrow,
    drop_idle,
    give_back,
    wake,
)

from ..helpers.connections import Spawn
from ..helpers.interrupts import interrupted_at
from ..helpers.waiting import WAIT, wait_for

NO_TIME = 0.0


def no_descriptor(*_: object) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


class GreenLock:
    """A lock that does not come from the interpreter, as under gevent."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self._lock.acquire(blocking, timeout)


@pytest.fixture(params=["event", "lock"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Parker]:
    """Make bells of either kind."""
    drop_idle()
    if request.param == "lock":
        monkeypatch.setattr(os, "eventfd", no_descriptor)
    return borrow


def kind() -> str:
    drop_idle()
    return type(borrow()).__name__


def test_ring_wakes_a_sleeper(made: Callable[[], Parker], spawn: Spawn) -> None:
    parker = made()
    sleeper = spawn(parker.park, Deadline(None))
    parker.unpark()
    sleeper.result(WAIT)


def test_sleep_ends_with_the_time(made: Callable[[], Parker]) -> None:
    parker = made()
    parker.park(Deadline(0.01))


def test_ring_before_the_sleep_is_not_lost(made: Callable[[], Parker]) -> None:
    parker = made()
    parker.unpark()
    parker.park(Deadline(None))


def test_two_rings_wake_once(made: Callable[[], Parker], spawn: Spawn) -> None:
    parker = made()
    parker.unpark()
    parker.unpark()
    parker.park(Deadline(None))
    sleeper = spawn(parker.park, Deadline(None))
    assert not sleeper.done()
    parker.unpark()
    sleeper.result(WAIT)


def test_parker_is_an_event_where_there_are_any() -> None:
    assert kind() == "EventParker"


def test_parker_is_a_lock_when_there_is_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "eventfd", no_descriptor)
    assert kind() == "_LockParker"


def test_parker_is_a_lock_when_descriptors_are_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parkers.resource, "getrlimit", lambda _: (2, 2))
    assert kind() == "_LockParker"


def test_parker_is_a_lock_where_threads_have_been_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parkers._thread, "allocate_lock", GreenLock)
    assert kind() == "_LockParker"


def test_idle_bells_are_bounded() -> None:
    drop_idle()
    borrowed = [borrow() for _ in range(parkers.KEPT + 10)]
    for each in borrowed:
        give_back(each)
    assert len(parkers._idle) == parkers.KEPT


def test_descriptor_stays_while_somebody_may_ring() -> None:
    drop_idle()
    late = borrow()
    give_back(late)
    drop_idle()
    other = os.eventfd(0, os.EFD_NONBLOCK)
    late.unpark()
    with pytest.raises(BlockingIOError):
        os.read(other, 8)
    os.close(other)


# Waiters


@pytest.fixture
def mutex() -> threading.Lock:
    return threading.Lock()


def locked(mutex: threading.Lock, wait: Callable[..., None], deadline: Deadline) -> None:
    with mutex:
        wait(mutex, deadline)


def test_wait_ends_with_the_time_and_holds_the_mutex(mutex: threading.Lock) -> None:
    with mutex:
        Waiter().wait(mutex, Deadline(NO_TIME))
        assert mutex.locked()


def test_waiter_is_collected_once(mutex: threading.Lock, spawn: Spawn) -> None:
    waiter, wakes = Waiter(), list[Parker]()
    waiting = spawn(locked, mutex, waiter.wait, Deadline(WAIT))
    wait_for(waiter.occupied)
    with mutex:
        waiter.notify(wakes)
        waiter.notify(wakes)
        assert (len(wakes), waiter.occupied()) == (1, False)
    wake(wakes)
    waiting.result(WAIT)


def test_waiter_that_was_collected_and_not_woken_is_roused(
    mutex: threading.Lock, spawn: Spawn
) -> None:
    waiter, wakes = Waiter(), list[Parker]()
    waiting = spawn(locked, mutex, waiter.wait, Deadline(WAIT))
    wait_for(waiter.occupied)
    with mutex:
        waiter.notify([])
        waiter.notify_forced(wakes)
    wake(wakes)
    waiting.result(WAIT)


def test_nobody_is_collected_where_nobody_waits(mutex: threading.Lock) -> None:
    waiter, waiters, wakes = Waiter(), WaitQueue(), list[Parker]()
    waiter.notify_forced(wakes)
    waiters.notify_forced(wakes)
    assert not wakes


def test_list_is_woken_in_the_order_of_its_coming(mutex: threading.Lock, spawn: Spawn) -> None:
    waiters = WaitQueue()
    waiting = []
    for count in (1, 2, 3):
        waiting.append(spawn(locked, mutex, waiters.wait, Deadline(WAIT)))
        wait_for(lambda count=count: len(waiters.parked) == count)  # type: ignore[misc]
    for each in waiting:
        wakes: list[Parker] = []
        with mutex:
            waiters.notify(wakes, 1)
        wake(wakes)
        each.result(WAIT)
    assert not waiters.parked


def test_list_that_was_collected_and_not_woken_is_roused(
    mutex: threading.Lock, spawn: Spawn
) -> None:
    waiters, wakes = WaitQueue(), list[Parker]()
    waiting = [spawn(locked, mutex, waiters.wait, Deadline(WAIT)) for _ in range(2)]
    wait_for(lambda: len(waiters.parked) == 2)
    with mutex:
        waiters.notify([], 1)
        waiters.notify_forced(wakes)
    wake(wakes)
    for each in waiting:
        each.result(WAIT)


def test_flag_wakes_all_who_wait_and_lets_later_ones_pass(spawn: Spawn) -> None:
    flag = OneShotEvent()
    waiting = [spawn(flag.wait, WAIT) for _ in range(3)]
    wait_for(lambda: len(flag._parked) == 3)
    flag.set()
    assert all(each.result(WAIT) for each in waiting)
    assert flag.wait(NO_TIME)


def test_wait_for_a_flag_ends_with_the_time() -> None:
    assert not OneShotEvent().wait(NO_TIME)


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_ctrl_c_at_any_step_of_a_condition_leaves_its_lock_free(
    make: Callable[[], Any], spawn: Spawn
) -> None:
    def wait() -> None:
        # After the lock was released and before the wait, the standard library has its own error.
        with suppress(RuntimeError), condition:
            condition.wait(NO_TIME)

    for number in itertools.count(1):
        lock = make()
        condition = Condition(lock)
        interrupted = interrupted_at(number, wait)
        assert spawn(lock.acquire, True, WAIT).result(WAIT)
        if not interrupted:
            break
    assert number > 10


def test_ctrl_c_at_any_step_of_a_wait_for_a_flag_leaves_it_to_be_set(spawn: Spawn) -> None:
    for number in itertools.count(1):
        give_back(borrow())  # a descriptor that is made just then is lost
        flag = OneShotEvent()
        interrupted = interrupted_at(number, partial(flag.wait, 0.001))
        spawn(flag.set).result(WAIT)
        assert flag.is_set()
        if not interrupted:
            break
    assert number > 10
