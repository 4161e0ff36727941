"""Pauses grow to their longest, with jitter, and begin anew after a success."""

from __future__ import annotations

import random

import pytest

from wsmux.runtime.backoff import Backoff


@pytest.mark.parametrize(("least", "lowest"), [(0.0, 0.0), (0.5, 0.5)])
def test_pauses_double_up_to_the_longest(
    least: float, lowest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = Backoff(1.0, 5.0, least)
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    assert [pause.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    pause.reset()
    monkeypatch.setattr(random, "uniform", lambda low, high: low)
    assert [pause.next() for _ in range(2)] == [lowest, 2 * lowest]


def test_full_jitter_spreads_over_the_whole_pause() -> None:
    random.seed(1)
    pauses = [Backoff(1.0, 1.0).next() for _ in range(200)]
    assert min(pauses) < 0.1
    assert max(pauses) > 0.9
