"""Delays grow to their longest, with jitter, and begin anew after a success."""

from __future__ import annotations

import random

import pytest

from wsmux.runtime.backoff import Backoff, delay_after


@pytest.mark.parametrize(("least", "lowest"), [(0.0, 0.0), (0.5, 0.5)])
def test_delays_double_up_to_the_longest(least: float, lowest: float) -> None:
    def delays(chance: float) -> list[float]:
        return [delay_after(n, 1.0, 5.0, least, lambda: chance) for n in range(1, 6)]

    assert delays(1.0) == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert delays(0.0) == [lowest * each for each in delays(1.0)]


def test_any_number_of_failures_has_a_delay() -> None:
    assert delay_after(10**9, 0.001, 60.0, 1.0) == 60.0


def test_a_success_begins_anew() -> None:
    backoff = Backoff(1.0, 5.0, least=1.0)
    assert [backoff.next() for _ in range(3)] == [1.0, 2.0, 4.0]
    backoff.reset()
    assert [backoff.next() for _ in range(2)] == [1.0, 2.0]


def test_full_jitter_spreads_over_the_whole_delay() -> None:
    random.seed(1)
    delays = [Backoff(1.0, 1.0).next() for _ in range(200)]
    assert min(delays) < 0.1
    assert max(delays) > 0.9
