"""A Deadline counts down once, however many waits share it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import pytest

import wsmux
from wsmux.runtime.clock import monotonic
from wsmux.runtime.deadline import (
    Deadline,
    RealDeadline,
    block_end,
    call_within,
    deadline,
    deadline_in,
    within,
)

from ..helpers.interrupts import interrupted_at


class Clock:
    """Stand in for the module ``clock``."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("wsmux.runtime.deadline.clock", clock)
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


def test_a_block_bounds_every_deadline_made_in_it(clock: Clock) -> None:
    with deadline(5.0) as block:
        clock.now += 2.0
        assert block.remaining() == 3.0
        assert Deadline(None).remaining() == Deadline(9.0).remaining() == 3.0
        assert Deadline(1.0).remaining() == 1.0
        assert deadline_in(None).remaining() == 3.0
    assert Deadline(None).remaining() is deadline_in(None).remaining() is None


def test_of_nested_blocks_the_first_end_counts(clock: Clock) -> None:
    with deadline(5.0):
        with deadline(9.0):
            assert Deadline(None).remaining() == 5.0
        with deadline(2.0), deadline(None):
            assert Deadline(None).remaining() == 2.0
        assert Deadline(None).remaining() == 5.0


def test_what_outlives_a_block_is_not_bounded_by_it(clock: Clock) -> None:
    with deadline(5.0):
        assert Deadline(9.0, outlives=True).remaining() == 9.0
        assert deadline_in(None, outlives=True).remaining() is None


def test_a_block_that_is_left_by_an_error_bounds_nothing_any_more(clock: Clock) -> None:
    with pytest.raises(KeyError), deadline(5.0):
        raise KeyError
    assert Deadline(None).remaining() is None


def test_a_block_bounds_its_own_thread_alone(clock: Clock) -> None:
    found = []
    with deadline(5.0):
        thread = threading.Thread(target=lambda: found.append(Deadline(None).remaining()))
        thread.start()
        thread.join()
    assert found == [None]


def test_a_timeout_that_is_not_a_number_is_refused_wherever_there_is_one() -> None:
    """Waiting for it would neither end nor block."""
    ours, theirs = wsmux.pair()
    with ours, theirs, ours.open_stream() as stream:
        stream.timeout = float("nan")
        for call in (ours.accept_stream, ours.wait_drained, ours.ping, ours.open_stream):
            with pytest.raises(ValueError, match="^a timeout must be a number of seconds or None"):
                call(float("nan"))
        with pytest.raises(ValueError, match="^a timeout must be a number of seconds or None"):
            stream.read(1)


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_what_is_no_number_of_seconds_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="at least 0 seconds"), deadline(timeout):
        pass


def test_a_real_deadline_counts_whatever_the_clock_says(clock: Clock) -> None:
    budget = RealDeadline(1e6)
    clock.now += 1e9
    assert 0 < budget.remaining() <= 1e6
    assert not budget.expired()
    assert RealDeadline(0.0).expired()


def test_a_block_tells_when_it_must_end(clock: Clock) -> None:
    assert block_end() is None
    with deadline(5.0):
        assert block_end() == 105.0
    assert block_end() is None


def test_a_call_within_a_deadline_is_bounded_and_returns_its_result(clock: Clock) -> None:
    def call(*args: object, **options: object) -> object:
        return block_end(), args, options

    assert call_within(Deadline(5.0), call, 1, two=2) == (105.0, (1,), {"two": 2})
    assert block_end() is None


def test_a_call_within_a_deadline_that_fails_bounds_nothing_any_more(clock: Clock) -> None:
    with deadline(9.0):
        with pytest.raises(ZeroDivisionError):
            call_within(Deadline(5.0), lambda: 1 // 0)
        assert block_end() == 109.0


def test_a_call_interrupted_at_any_step_bounds_nothing_any_more() -> None:
    ends, number, interrupted = Deadline(5.0), 0, True
    while interrupted:
        number += 1
        interrupted = interrupted_at(number, lambda: call_within(ends, len, "call"))
        assert block_end() is None
    assert number > 3


@pytest.mark.parametrize("enter", [lambda: deadline(5.0), lambda: within(Deadline(5.0))])
def test_a_block_interrupted_at_any_step_bounds_nothing_any_more(
    enter: Callable[[], AbstractContextManager[Deadline]],
) -> None:
    """Neither while the error is handled, nor behind that; and what is around it still counts."""

    def work() -> None:
        with deadline(1e6):
            try:
                with enter():
                    len("body")
            finally:
                around.append(remaining_of(block_end()))

    number, interrupted = 0, True
    around: list[float] = []
    handled: list[float | None] = []
    while interrupted:
        number += 1
        interrupted = interrupted_at(number, work, handle=lambda: handled.append(block_end()))
        assert block_end() is None, f"interrupted at step {number}"
    assert handled == [None] * (number - 1)
    assert all(left > 5.0 for left in around)
    assert number > 12


def remaining_of(end: float | None) -> float:
    return 0.0 if end is None else end - monotonic()


def test_a_block_of_an_exit_stack_bounds_until_that_ends(clock: Clock) -> None:
    """It asks the class for the methods, where ``with`` asks the block."""
    with ExitStack() as stack:
        assert stack.enter_context(deadline(5.0)).remaining() == 5.0
        stack.enter_context(within(Deadline(2.0)))
        assert block_end() == 102.0
    assert block_end() is None


def test_a_decorated_function_has_the_time_anew_for_each_call(clock: Clock) -> None:
    @deadline(5.0)
    def call(further: int) -> tuple[float | None, int]:
        end = block_end()
        return end, call(further - 1)[1] + 1 if further else 0

    assert call(2) == (105.0, 2)
    clock.now += 7.0
    assert call(0) == (112.0, 0)
    assert block_end() is None


def test_blocks_that_end_in_another_order_bound_while_they_last(clock: Clock) -> None:
    """As those of generators do."""
    first, second = deadline(5.0), deadline(9.0)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert block_end() == 105.0  # the first limited the second when it began
    second.__exit__(None, None, None)
    assert block_end() is None


def test_blocks_that_overlap_without_end_are_not_kept() -> None:
    before = weakref.ref(entered := deadline(5.0))
    entered.__enter__()
    for _ in range(3):
        following = deadline(5.0)
        following.__enter__()
        entered.__exit__(None, None, None)
        entered = following
    assert before() is None
    entered.__exit__(None, None, None)


def test_a_block_is_entered_once() -> None:
    with (block := deadline(5.0)), pytest.raises(RuntimeError, match="entered once"), block:
        pass
    assert block_end() is None
