"""The limits of twins: counts, sizes, windows, and a table that stays bounded."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.bus.relay.rate_limiter import FixedWindow, NoLimit


def test_no_limit_lets_everything_pass() -> None:
    limiter = NoLimit()
    assert all(limiter.allows(1, 2**40, 0) for _ in range(10_000))


def test_a_count_is_exceeded_and_heals() -> None:
    limiter = FixedWindow(10, 1000, window=5)
    assert [limiter.allows(1, 1, 100) for _ in range(11)] == [True] * 10 + [False]
    assert not limiter.allows(1, 1, 104.9)
    assert limiter.allows(1, 1, 105)


def test_a_size_is_exceeded_and_heals() -> None:
    limiter = FixedWindow(10, 1000, window=5)
    assert limiter.allows(1, 600, 100)
    assert not limiter.allows(1, 600, 101)
    assert limiter.allows(1, 600, 105)


def test_windows_are_aligned_to_the_clock() -> None:
    limiter = FixedWindow(1, 1000)
    assert limiter.allows(1, 1, 59.9)
    assert limiter.allows(1, 1, 60)
    assert not limiter.allows(1, 1, 119.9)
    assert limiter.allows(1, 1, 120)


def test_a_message_above_the_size_does_not_count() -> None:
    limiter = FixedWindow(1, 1000)
    assert not limiter.allows(1, 1001, 0)
    assert limiter.allows(1, 1000, 0)


def test_refused_messages_count() -> None:
    limiter = FixedWindow(10, 1000)
    assert limiter.allows(1, 900, 0)
    assert not limiter.allows(1, 900, 0)
    assert not limiter.allows(1, 1, 0)


def test_twins_do_not_share_a_limit() -> None:
    limiter = FixedWindow(1, 1000)
    assert limiter.allows(1, 1, 0)
    assert limiter.allows(2, 1, 0)
    assert not limiter.allows(1, 1, 0)


def test_use_keeps_a_count_alive_in_a_full_table() -> None:
    limiter = FixedWindow(2, 1000, capacity=3)
    assert limiter.allows(1, 1, 0)
    for other in range(2, 30):
        limiter.allows(other, 1, 0)
        if other == 2:
            assert limiter.allows(1, 1, 0)
        else:
            assert not limiter.allows(1, 1, 0)


def test_the_table_is_bounded() -> None:
    limiter = FixedWindow(2, 1000, capacity=3)
    for twin in range(1, 100):
        limiter.allows(twin, 1, 0)
    assert len(limiter._used) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 0},
        {"size": 0},
        {"count": -1},
        {"capacity": 0},
        {"window": 0},
        {"window": float("nan")},
    ],
    ids=str,
)
def test_limits_are_above_0(wrong: dict[str, float]) -> None:
    options = {"count": 1, "size": 1, **wrong}
    with pytest.raises(ValueError, match="above 0"):
        FixedWindow(**options)  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 120), st.floats(0, 30)), min_size=1, max_size=60
    )
)
def test_no_window_lets_more_pass_than_the_limit(steps: list[tuple[int, int, float]]) -> None:
    limiter = FixedWindow(5, 200, window=60)
    passed: dict[tuple[int, int], list[int]] = defaultdict(list)
    now = 0.0
    for twin, size, pause in steps:
        now += pause
        if limiter.allows(twin, size, now):
            passed[twin, int(now // 60)].append(size)
    assert all(len(sizes) <= 5 and sum(sizes) <= 200 for sizes in passed.values())
