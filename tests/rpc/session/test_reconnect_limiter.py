"""Attempts wait longer and longer until a connection holds, and never stop for good."""

from __future__ import annotations

import pytest

from wsmux.rpc.options import Options
from wsmux.rpc.session.reconnect_limiter import MOST, RESTORE_INTERVAL, ReconnectLimiter


def backoff(random: float = 0.0, **options: float) -> ReconnectLimiter:
    settings = {"backoff_base": 0.1, "backoff_jitter": 0.0, "backoff_max": 5.0}
    return ReconnectLimiter(Options(**{**settings, **options}), lambda: random)  # type: ignore[arg-type]


def test_the_first_attempt_waits_nothing() -> None:
    fresh = backoff(random=0.99)
    assert (fresh.consumed(0.0), fresh.attempt(0.0)) == (0, 0.0)


def test_attempts_are_counted() -> None:
    tried = backoff()
    tried.attempt(0.0)
    assert tried.consumed(0.0) == 1


def test_each_wait_is_twice_the_one_before() -> None:
    tried = backoff()
    assert [tried.attempt(0.0) for _ in range(4)] == pytest.approx([0.0, 0.1, 0.2, 0.4])


@pytest.mark.parametrize("random", [0.0, 0.25, 0.5, 0.999])
def test_each_wait_is_drawn_from_nothing_up_to_its_most(random: float) -> None:
    tried = backoff(random=random, backoff_jitter=0.05)
    waits = [tried.attempt(0.0) for _ in range(4)]
    assert waits == pytest.approx([0.0, random * 0.15, random * 0.25, random * 0.45])


def test_the_maximum_holds_less_the_jitter() -> None:
    tried = backoff(random=0.999999, backoff_jitter=0.05, backoff_max=0.05)
    waits = [tried.attempt(0.0) for _ in range(4)]
    assert waits == pytest.approx([0.0, 0.1, 0.1, 0.1], rel=1e-3)


def test_a_server_that_is_down_for_ever_is_tried_for_ever() -> None:
    tried = backoff()
    assert [tried.attempt(0.0) for _ in range(2000)][-1] == 5.0


def test_a_base_of_nothing_never_overflows() -> None:
    tried = backoff(backoff_base=0.0)
    assert {tried.attempt(0.0) for _ in range(2000)} == {0.0}
    assert tried.consumed(0.0) == MOST


def test_nothing_is_forgiven_before_a_success() -> None:
    tried = backoff()
    tried.attempt(0.0)
    tried.attempt(0.0)
    assert tried.consumed(1000.0) == 2


def test_a_success_forgives_attempts_down_to_none() -> None:
    tried = backoff()
    for _ in range(3):
        tried.attempt(0.0)
    tried.succeeded(10.0)
    times = [10.0 + RESTORE_INTERVAL * n + 0.01 for n in range(5)]
    assert [tried.consumed(time) for time in times] == [2, 1, 0, 0, 0]


def test_a_success_forgives_half_of_many_attempts_at_once() -> None:
    tried = backoff()
    for _ in range(11):
        tried.attempt(0.0)
    before = tried.consumed(10.0)
    tried.succeeded(10.0)
    assert tried.consumed(10.0) == before - before // 2


@pytest.mark.parametrize("failed", [0, 1, 30])
def test_connections_that_are_cut_at_once_come_again_soon_but_not_at_once(failed: int) -> None:
    tried = backoff()
    for _ in range(failed):
        tried.attempt(0.0)
    waits = []
    for _ in range(50):
        waits.append(tried.attempt(0.0))
        tried.succeeded(0.0)
    assert set(waits[10:]) <= {0.1, 0.2}


def test_a_wait_may_be_bounded_from_outside() -> None:
    tried = backoff(random=0.5, backoff_jitter=0.1)
    for _ in range(9):
        tried.attempt(0.0)
    assert tried.attempt(0.0, 2.0) == 1.0


def test_a_drop_after_a_healthy_connection_waits_nothing() -> None:
    tried = backoff(random=0.99)
    tried.attempt(0.0)
    tried.succeeded(0.0)
    assert tried.attempt(60.0) == 0.0


def test_a_connection_that_drops_at_once_does_not_count_as_healthy() -> None:
    tried = backoff()
    tried.attempt(0.0)
    tried.succeeded(0.0)
    assert tried.attempt(0.0) == pytest.approx(0.1)


def test_a_further_attempt_stops_the_forgiving() -> None:
    tried = backoff()
    for _ in range(3):
        tried.attempt(0.0)
    tried.succeeded(0.0)
    tried.attempt(0.0)
    assert tried.consumed(1000.0) == 3


def test_a_hurried_attempt_waits_as_the_second_of_a_row() -> None:
    tried = backoff(random=0.5, backoff_jitter=0.05)
    for _ in range(9):
        tried.attempt(0.0)
    assert tried.hurried() == pytest.approx(0.075)
