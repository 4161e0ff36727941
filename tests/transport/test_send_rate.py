"""A turn is small where a full socket drains slowly, and whole where it does not."""

from __future__ import annotations

import pytest

from wsmux.config import KIB
from wsmux.transport.fair_queue import MIN_QUANTUM, QUANTUM_SECONDS, SPAN, SendRateEstimator

LARGEST = 64 * KIB
LONG = SPAN * 1.01


def drained(rate: float, seconds: float = LONG) -> SendRateEstimator:
    drain = SendRateEstimator(LARGEST)
    drain.full(0.0, 1000)
    drain.full(seconds, 1000 + round(rate * seconds))
    return drain


def test_a_turn_is_whole_at_first() -> None:
    drain = SendRateEstimator(LARGEST)
    assert (drain.quantum, drain.slow, drain.timing) == (LARGEST, False, False)


def test_a_fast_socket_has_whole_turns() -> None:
    drain = drained(100e6)
    assert (drain.quantum, drain.slow) == (LARGEST, False)


def test_a_slow_socket_has_turns_of_the_same_time() -> None:
    drain = drained(4e6)
    assert drain.slow
    assert drain.quantum == pytest.approx(4e6 * QUANTUM_SECONDS, rel=0.01)


@pytest.mark.parametrize("rate", [0, 1e5, 1e6])
def test_a_turn_has_so_many_bytes_at_least(rate: float) -> None:
    assert drained(rate).quantum == MIN_QUANTUM


def test_a_turn_below_the_least_is_never_slow() -> None:
    drain = SendRateEstimator(8 * KIB)
    drain.full(0.0, 0)
    drain.full(1.0, 1)
    assert (drain.quantum, drain.slow) == (8 * KIB, False)


def test_a_short_time_says_nothing() -> None:
    assert not drained(1e5, SPAN / 2).slow


def test_short_times_add_up() -> None:
    drain = drained(1e5, SPAN * 0.6)
    drain.full(SPAN * 1.2, 1000 + round(1e5 * SPAN * 1.2))
    assert drain.slow


def test_the_time_in_which_nothing_waits_does_not_count() -> None:
    drain = drained(100e6)
    sent = 1000 + round(100e6 * LONG)
    drain.emptied(LONG, sent)
    assert not drain.timing
    drain.full(60.0, sent)
    drain.full(60.0 + LONG, sent + round(100e6 * LONG))
    assert not drain.slow


def test_a_slow_socket_that_is_emptied_each_time_is_seen() -> None:
    drain = SendRateEstimator(LARGEST)
    for number in range(3):
        drain.full(float(number), 10_000 * number)
        drain.emptied(number + LONG / 2, 10_000 * (number + 1))
    assert drain.slow


def test_a_socket_becomes_fast_again() -> None:
    drain = drained(1e5)
    drain.full(2 * LONG, 1000 + round(1e5 * LONG + 1e8 * LONG))
    assert (drain.quantum, drain.slow) == (LARGEST, False)


def test_it_tells_when_a_turn_has_become_another() -> None:
    drain = SendRateEstimator(LARGEST)
    told = [drain.full(number * LONG, number * 1000) for number in range(4)]
    assert told == [False, True, False, False]


def test_a_figure_is_of_all_bytes_since_the_last() -> None:
    drain = SendRateEstimator(LARGEST)
    for number in range(3):
        drain.full(number * 0.06, 10**9 + number * 240_000)
    assert drain.quantum == pytest.approx(4e6 * QUANTUM_SECONDS, rel=0.01)


def test_the_time_to_the_end_of_what_was_never_full_does_not_count() -> None:
    drain = SendRateEstimator(LARGEST)
    drain.full(0.0, 0)
    drain.emptied(SPAN / 2, 1000)
    drain.emptied(60.0, 2000)
    assert not drain.slow


def test_a_figure_takes_its_time_exactly() -> None:
    assert drained(1e5, SPAN).slow


def test_as_many_bytes_as_a_fast_path_takes_prove_it_one_at_once() -> None:
    drain = drained(1e5)
    sent = 1000 + round(1e5 * LONG)
    proof = round(LARGEST / QUANTUM_SECONDS * SPAN)
    drain.full(LONG + 0.001, sent + proof - 1)
    assert drain.slow
    drain.full(LONG + 0.002, sent + proof)
    assert not drain.slow


def test_each_figure_begins_anew() -> None:
    drain = drained(4e6)
    turn = drain.quantum
    drain.full(LONG + SPAN / 2, 1000 + round(4e6 * LONG))
    assert drain.quantum == turn
