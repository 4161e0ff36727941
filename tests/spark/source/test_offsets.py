"""Offsets of a topic: what a checkpoint holds, where to begin, fair limits, what is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from wsmux.rpc import RiverError
from wsmux.spark.source.offsets import (
    Position,
    Span,
    at_time,
    begin_of,
    covered,
    gaps,
    is_other,
    lost,
    shares,
    spans,
    split,
    starting,
    upto,
)
from wsmux.spark.store.base import Heads

from ...helpers.tables import each_case

COUNTS = st.lists(st.integers(0, 50), min_size=1, max_size=6)

HEADS = Heads([10, 0, 5], [20, 0, 9], [1000, 0, 40])


@st.composite
def topics(draw: st.DrawFn) -> tuple[Heads, list[int]]:
    """Return what a topic holds, and offsets within."""
    size = draw(st.integers(1, 5))
    earliest = draw(st.lists(st.integers(0, 50), min_size=size, max_size=size))
    rows = draw(st.lists(st.integers(0, 50), min_size=size, max_size=size))
    begin = [
        first + draw(st.integers(0, count)) for first, count in zip(earliest, rows, strict=True)
    ]
    sizes = [draw(st.integers(count, 100 * count)) for count in rows]
    latest = [first + count for first, count in zip(earliest, rows, strict=True)]
    return Heads(earliest, latest, sizes), begin


# Checkpoints


@given(COUNTS, st.booleans())
def test_a_position_is_read_as_it_was_written(offsets: list[int], first: bool) -> None:
    position = Position("t", "r", tuple(offsets), tuple(offsets[:1]) if first else None)
    assert Position.of(json.loads(json.dumps(position.to_json())), "t") == position


@each_case
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"topic": "t"},
        {"topic": "t", "reader": "r", "offsets": {}},
        {"topic": "t", "reader": "r", "offsets": 3},
        {"topic": "t", "reader": "r", "offsets": {"1": 0}},
        {"topic": "t", "reader": "r", "offsets": {"0": -1}},
        {"topic": "t", "reader": "r", "offsets": {"0": "1"}},
        {"topic": "t", "reader": "r", "offsets": {"0": True}},
        {"topic": "t", "reader": 5, "offsets": {"0": 1}},
        {"topic": "t", "reader": "r", "offsets": {"0": 1}, "from": {"0": 1, "1": 1}},
    ],
)
def test_what_is_no_position_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(RiverError, match=r"^WRONG_CHECKPOINT: this checkpoint holds"):
        Position.of(values, "t")


def test_topics_of_one_name_are_told_apart_where_both_are_known() -> None:
    cases = (("", "", False), ("a", "", False), ("", "a", False), ("a", "a", False))
    for home, there, other in (*cases, ("a", "b", True)):
        assert is_other(home, Heads([0], [0], [0], there)) is other
    position = Position("t", "r", (1,), None, "a")
    assert Position.of(position.to_json(), "t") == position
    assert Position.of({**position.to_json(), "home": ""}, "t").home == ""
    with pytest.raises(RiverError, match="did not write"):
        Position.of({**position.to_json(), "home": 1}, "t")


def test_a_checkpoint_of_another_topic_is_refused() -> None:
    values = Position("a", "r", (1,)).to_json()
    with pytest.raises(RiverError, match="is of topic a, not of b; choose another one"):
        Position.of(values, "b")


def test_the_first_batch_begins_where_it_began_the_first_time() -> None:
    end = Position("t", "r", (9,), (4,))
    assert begin_of(Position("t", "another", (7,), (7,)), end) == (4,)
    assert begin_of(Position("t", "r", (4,), (4,)), end) == (4,)
    assert begin_of(end, Position("t", "r", (12,))) == (9,)


# Where to begin


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, [20, 0, 9]),
        ("earliest", [10, 0, 5]),
        ("latest", [20, 0, 9]),
        ({0: 15, 2: -2}, [15, 0, 5]),
        ({0: -1}, [20, 0, 9]),
        ({0: 3}, [3, 0, 9]),
    ],
)
def test_starting_offsets(asked: Any, found: list[int]) -> None:
    assert starting(asked, "latest", HEADS, "startingOffsets") == found


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({3: 0}, "the topic has 3 partitions, so startingOffsets cannot name 3"),
        ({2: 10}, "partition 2 ends at 9, before 10 of startingOffsets"),
    ],
)
def test_offsets_that_never_were_are_refused(asked: Any, text: str) -> None:
    with pytest.raises(RiverError, match=f"^BAD_OFFSETS: {text}$"):
        starting(asked, "latest", HEADS, "startingOffsets")


def test_offsets_of_a_time_are_within_what_is_held() -> None:
    first, second, third = HEADS.latest
    assert at_time([0, 1, third + 1], HEADS, "error") == [0, min(1, second), third]
    assert at_time([None, 0, None], HEADS, "latest") == [first, 0, third]
    text = "partition 0 has no row of startingTimestamp or later"
    with pytest.raises(RiverError, match=f"^BAD_OFFSETS: {text}") as caught:
        at_time([None, None, 1], HEADS, "error")
    assert "set startingOffsetsByTimestampStrategy=latest" in caught.value.message


# Limits


@given(COUNTS, st.integers(0, 400), st.integers(0, 1000))
def test_shares_are_fair_and_use_the_budget(wanted: list[int], budget: int, turn: int) -> None:
    got = shares(wanted, budget, turn)
    assert sum(got) == min(budget, sum(wanted))
    assert all(0 <= each <= most for each, most in zip(got, wanted, strict=True))
    short = [each for each, most in zip(got, wanted, strict=True) if each < most]
    assert not short or max(got) <= min(short) + 1


@given(st.integers(1, 6), st.integers(1, 6))
def test_everybody_has_a_turn(size: int, budget: int) -> None:
    got, turn = [0] * size, 0
    for _ in range(size):
        for place, each in enumerate(shares([100] * size, budget, turn)):
            got[place] += each
        turn += budget
    assert got == [budget] * size


@given(topics(), st.none() | st.integers(1, 100), st.none() | st.integers(1, 5000))
def test_limits_are_kept_and_something_is_read(
    topic: tuple[Heads, list[int]], rows: int | None, size: int | None
) -> None:
    heads, begin = topic
    end = upto(begin, heads, rows, size)
    took = [last - first for first, last in zip(begin, end, strict=True)]
    left = [last - first for first, last in zip(begin, heads.latest, strict=True)]
    assert all(0 <= each <= most for each, most in zip(took, left, strict=True))
    assert any(took) == any(left)
    assert rows is None or sum(took) <= rows
    if size is not None and sum(took) > 1:
        held = [last - first for first, last in zip(heads.earliest, heads.latest, strict=True)]
        mean = [all_ / max(1, n) for all_, n in zip(heads.bytes, held, strict=True)]
        cost = sum(count * each for count, each in zip(took, mean, strict=True))
        assert cost <= size + 1e-6
    if rows is None and size is None:
        assert end == heads.latest


@given(topics(), st.data())
def test_a_target_is_reached_and_not_passed(
    topic: tuple[Heads, list[int]], data: st.DataObject
) -> None:
    heads, at = topic
    most = [data.draw(st.integers(0, last)) for last in heads.latest]
    for _ in range(sum(heads.latest) + 1):
        before, at = at, upto(at, heads, 3, most=most)
    assert at == before
    begin = topic[1]
    assert at == [max(pair) for pair in zip(begin, most, strict=True)]


def test_a_target_holds_back_partitions_that_came_later() -> None:
    heads = Heads([0, 0], [5, 5], [9, 9])
    assert upto([0, 0], heads, most=[3]) == [3, 0]


# What is lost


@given(topics())
def test_offsets_that_are_held_lack_nothing(topic: tuple[Heads, list[int]]) -> None:
    heads, begin = topic
    assert gaps(begin, heads) == []
    assert covered(begin, heads) == begin
    assert lost(begin, heads.latest, heads) == []


def test_gaps_are_told_by_partition() -> None:
    told = ["partition 0 begins at 10, after 3", "partition 2 ends at 9, before 11"]
    assert gaps([3, 0, 11], HEADS) == told
    assert covered([3, 0, 11], HEADS) == [10, 0, 5]
    assert gaps([10, 0, 5, 7], HEADS) == ["partition 3 ends at 0, before 7"]
    assert covered([10], HEADS) == [10, 0, 5]


def test_a_batch_lacks_only_what_it_would_read() -> None:
    assert lost([3, 0, 5], [3, 0, 9], HEADS) == []
    assert lost([3, 0, 5], [12, 0, 9], HEADS) == ["partition 0 begins at 10, after 3"]
    assert lost([10, 0, 5], [12, 4, 9], HEADS) == ["partition 1 ends at 0, before 4"]
    assert spans([3, 0, 5], [12, 4, 7], HEADS) == [Span(0, 10, 12), Span(2, 5, 7)]
    assert spans([10, 0, 5], [10, 0, 5], HEADS) == []


@given(topics(), st.none() | st.integers(1, 40))
def test_pieces_are_the_same_rows(topic: tuple[Heads, list[int]], least: int | None) -> None:
    heads, begin = topic
    whole = spans(begin, heads.latest, heads)
    assume(whole)
    pieces = split(whole, least)
    rows = [(span.partition, at) for span in pieces for at in range(span.start, span.end)]
    assert rows == [(span.partition, at) for span in whole for at in range(span.start, span.end)]
    assert all(span.start < span.end for span in pieces)
    assert len(pieces) >= min(least or 0, len(rows))
