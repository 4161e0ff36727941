"""Relays that failed of late are tried last, and heal."""

from __future__ import annotations

from random import random

import pytest

from wsmux.bus.federation.ranker import MAX_DOMAINS, MAX_FAILURES, PERIOD, Ranker


def test_a_relay_that_failed_comes_last() -> None:
    ranker = Ranker(random)
    ranker.downvote("a", 0.0)
    assert ranker.order(["a", "b", "c"], 1.0)[-1] == "a"


def test_relays_are_ordered_by_their_failures() -> None:
    ranker = Ranker(random)
    for domain, failures in {"a": 3, "b": 1, "c": 2}.items():
        for _ in range(failures):
            ranker.downvote(domain, 0.0)
    assert ranker.order(["a", "b", "c", "d"], 1.0) == ["d", "b", "c", "a"]


def test_a_relay_heals_when_its_failures_are_as_old_as_the_period() -> None:
    ranker = Ranker(random, 10.0)
    ranker.downvote("a", 0.0)
    ranker.downvote("a", 5.0)
    ranker.downvote("b", 9.0)
    assert ranker.order(["a", "b"], 9.0) == ["b", "a"]
    assert ranker.failure_rate("a", 10.0) == pytest.approx(360.0)
    assert ranker.failure_rate("a", 15.0) == 0.0
    assert ranker.order(["b", "a"], 15.0) == ["a", "b"]


def test_the_rate_counts_failures_per_hour() -> None:
    ranker = Ranker(random, PERIOD / 2)
    ranker.downvote("a", 0.0)
    assert ranker.failure_rate("a", 1.0) == 2.0


@pytest.mark.parametrize(("numbers", "order"), [([0.9, 0.1], ["b", "a"]), ([0.1, 0.9], ["a", "b"])])
def test_equal_relays_come_in_random_order(numbers: list[float], order: list[str]) -> None:
    draws = iter(numbers)
    assert Ranker(lambda: next(draws)).order(["a", "b"], 0.0) == order


def test_a_domain_that_is_named_twice_is_tried_once() -> None:
    assert Ranker(random).order(["a", "a"], 0.0) == ["a"]


def test_failures_of_one_domain_are_bounded() -> None:
    ranker = Ranker(random)
    for _ in range(MAX_FAILURES + 10):
        ranker.downvote("a", 0.0)
    assert ranker.failure_rate("a", 1.0) == MAX_FAILURES


def test_the_domain_that_failed_longest_ago_is_forgotten_first() -> None:
    ranker = Ranker(random)
    ranker.downvote("first", 0.0)
    ranker.downvote("second", 1.0)
    ranker.downvote("first", 2.0)
    for number in range(MAX_DOMAINS - 1):
        ranker.downvote(f"other-{number}", 3.0)
    assert ranker.failure_rate("second", 4.0) == 0.0
    assert ranker.failure_rate("first", 4.0) == 2.0


@pytest.mark.parametrize("period", [0.0, -1.0, float("nan")])
def test_a_period_is_above_zero(period: float) -> None:
    with pytest.raises(ValueError, match="above 0 seconds"):
        Ranker(random, period)
