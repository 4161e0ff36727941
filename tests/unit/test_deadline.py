"""A Deadline counts down once, however many waits share it."""

from __future__ import annotations

import threading

import pytest

from wsmux.deadline import Deadline


class Clock:
    """Stand in for the module ``time``."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("wsmux.deadline.time", clock)
    return clock


def test_remaining_counts_down(clock: Clock) -> None:
    budget = Deadline(5.0)
    clock.now += 2.0
    assert budget.remaining() == 3.0


def test_remaining_never_falls_below_zero(clock: Clock) -> None:
    budget = Deadline(5.0)
    clock.now += 7.0
    assert budget.remaining() == 0.0


def test_deadline_expires_at_its_last_moment(clock: Clock) -> None:
    budget = Deadline(5.0)
    clock.now += 5.0
    assert budget.expired()


def test_deadline_is_not_expired_before(clock: Clock) -> None:
    budget = Deadline(5.0)
    clock.now += 4.75
    assert not budget.expired()


def test_zero_is_expired_at_once(clock: Clock) -> None:
    assert Deadline(0).expired()


def test_none_never_expires(clock: Clock) -> None:
    budget = Deadline(None)
    clock.now += 1e9
    assert not budget.expired()


def test_none_has_no_remaining(clock: Clock) -> None:
    assert Deadline(None).remaining() is None


def test_park_seconds_is_what_is_left(clock: Clock) -> None:
    budget = Deadline(5.0)
    clock.now += 1.0
    assert budget.park_seconds() == 4.0


def test_park_seconds_of_none_waits_without_limit(clock: Clock) -> None:
    assert Deadline(None).park_seconds() == -1


def test_park_seconds_of_an_expired_deadline_is_zero(clock: Clock) -> None:
    budget = Deadline(1.0)
    clock.now += 9.0
    assert budget.park_seconds() == 0.0


@pytest.mark.parametrize("timeout", [None, 0, 1e-9, 1e300, float("inf")])
def test_park_seconds_is_taken_by_a_lock(clock: Clock, timeout: float | None) -> None:
    assert threading.Lock().acquire(timeout=Deadline(timeout).park_seconds())
