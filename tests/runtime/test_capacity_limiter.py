"""Bounds of what is in hand, and the order of what belongs together."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from wsmux.runtime.capacity_limiter import CapacityLimiter
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.thread_pool import SerialExecutor, ThreadPool

from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for

NOW = 0.0


@pytest.mark.parametrize("sizes", [[1, 1, 1], [10, 1], [6, 5]])
def test_beyond_the_bounds_there_is_no_room(sizes: list[int]) -> None:
    room = CapacityLimiter(2, 10)
    *first, last = sizes
    assert all(room.enter(size, Deadline(NOW)) for size in first)
    assert not room.enter(last, Deadline(NOW))
    room.leave(first[0])
    assert room.enter(last, Deadline(NOW))


def test_one_thing_has_room_whatever_its_size() -> None:
    room = CapacityLimiter(2, 10)
    assert room.enter(11, Deadline(NOW))
    assert not room.enter(0, Deadline(NOW))


def test_who_waits_enters_when_another_leaves() -> None:
    room = CapacityLimiter(1, 10)
    entered = threading.Event()
    assert room.enter(1, Deadline(NOW))
    waiting = threading.Thread(target=lambda: room.enter(1, Deadline(WAIT)) and entered.set())
    waiting.start()
    room.leave(1)
    assert entered.wait(WAIT)
    waiting.join(WAIT)


def test_nobody_waits_for_what_is_closed() -> None:
    room = CapacityLimiter(1, 10)
    turned_away: list[bool] = []
    assert room.enter(1, Deadline(NOW))
    waiting = threading.Thread(target=lambda: turned_away.append(room.enter(1, Deadline(None))))
    waiting.start()
    room.close()
    waiting.join(WAIT)
    assert turned_away == [False]
    room.leave(1)
    assert room.enter(1, Deadline(None))
    assert not room.enter(1, Deadline(None))


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    made = ThreadPool(4, "test")
    yield made
    made.close()
    made.join(Deadline(WAIT))


def test_what_belongs_together_stays_in_order(pool: ThreadPool) -> None:
    ordered, done = SerialExecutor(pool), threading.Event()
    ran: dict[int, list[int]] = {key: [] for key in range(3)}

    def run(key: int, number: int) -> None:
        ran[key].append(number)
        if sum(map(len, ran.values())) == 300:
            done.set()

    for number in range(100):
        for key in ran:
            ordered.submit(key, lambda key=key, number=number: run(key, number))  # type: ignore[misc]
    assert done.wait(WAIT)
    assert ran == {key: list(range(100)) for key in range(3)}


def test_others_run_while_one_waits(pool: ThreadPool) -> None:
    ordered, gate, ran = SerialExecutor(pool), threading.Event(), threading.Event()
    ordered.submit("slow", lambda: gate.wait(WAIT) and None)
    ordered.submit("slow", ran.set)
    passed = threading.Event()
    ordered.submit("other", passed.set)
    assert passed.wait(WAIT)
    assert not ran.is_set()
    gate.set()
    assert ran.wait(WAIT)


def test_an_action_that_fails_lets_the_next_run(
    pool: ThreadPool, caplog: pytest.LogCaptureFixture
) -> None:
    ordered, ran = SerialExecutor(pool), threading.Event()
    ordered.submit(1, lambda: 1 / 0 and None)
    ordered.submit(1, ran.set)
    assert ran.wait(WAIT)
    wait_for(lambda: "ZeroDivisionError" in caplog.text)
