"""What the entries of logs add up to, how ranges are cut, and what retention drops. Pure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.spark.source.ranges import RANGE_BYTES, Cut, Group, cut, overlaps
from wsmux.spark.store import topic_state
from wsmux.spark.store.base import Committed, Heads, Retention
from wsmux.spark.store.topic_state import TopicState, txn_key

# Topics


def batch(query: str, number: int, rows: list[int], time: float = 0.0) -> dict[str, Any]:
    key = txn_key(query, number)
    stored = [
        {"file": f"{key}/{at}", "partition": at, "rows": n, "bytes": 10 * n, "groups": [n]}
        for at, n in enumerate(rows)
        if n
    ]
    entry = {"kind": "commit", "key": key, "query": query, "batch": number}
    return {**entry, "files": stored, "time": time}


def topic(*entries: dict[str, Any], partitions: int = 2) -> TopicState:
    state = TopicState()
    for entry in (topic_state.init_entry("00ff00ff", "s", partitions), *entries):
        state.apply(entry)
    return state


def test_offsets_count_rows_by_partition() -> None:
    state = topic(batch("q", 0, [2, 3]), batch("q", 1, [4, 0]))
    assert state.heads() == Heads([0, 0], [6, 3], [60, 30])
    assert [segment.start for segment in state.segments_of(0)] == [0, 2]


def test_a_batch_is_known_until_the_next_and_later_ones_are_not() -> None:
    state = topic(batch("q", 0, [2, 3]), batch("q", 1, [4, 0]), batch("other", 5, [0, 0]))
    assert state.committed(txn_key("q", 1)) == Committed(2, 4, 40)
    assert state.committed(txn_key("q", 0)) == Committed(3, 0, 0)
    assert state.committed(txn_key("q", 2)) is None
    assert state.committed(txn_key("other", 5)) == Committed(3, 0, 0)
    assert state.committed("0" * 32) is None


def test_the_state_of_a_topic_comes_back_from_json() -> None:
    state = topic(batch("q", 0, [2, 3]), {"kind": "trim", "earliest": [2, 0]})
    again = TopicState.from_json(json.loads(json.dumps(state.to_json())))
    assert again.to_json() == state.to_json()
    assert again.heads() == state.heads() == Heads([2, 0], [2, 3], [0, 30])


@pytest.mark.parametrize(
    "entry",
    [{}, {"kind": "commit"}, {"kind": "trim"}, batch("q", 0, [0, 0, 1]), {"kind": "init"}],
    ids=lambda entry: str(entry.get("kind")),
)
def test_what_is_no_entry_of_a_topic_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, IndexError)):
        topic(entry)


# Retention


def trimmed(
    retention: Retention, released: list[list[int]], *entries: dict[str, Any], now: float = 100.0
) -> list[int]:
    state = topic(*entries)
    entry = state.trim_entry(retention, released, now)
    if entry is not None:
        state.apply(entry)
    return state.earliest


BATCHES = [batch("q", number, [10, 0], time=number * 10.0) for number in range(5)]


def test_without_limits_everything_stays() -> None:
    assert trimmed(Retention(), [], *BATCHES) == [0, 0]


def test_at_least_the_newest_rows_stay() -> None:
    assert trimmed(Retention(rows=25), [], *BATCHES) == [20, 0]
    assert trimmed(Retention(rows=20), [], *BATCHES) == [30, 0]


def test_at_least_the_newest_bytes_stay() -> None:
    assert trimmed(Retention(bytes=250), [], *BATCHES) == [20, 0]


def test_what_is_too_old_goes() -> None:
    assert trimmed(Retention(age=75.0), [], *BATCHES) == [30, 0]
    assert trimmed(Retention(age=1.0), [], *BATCHES) == [50, 0]


def test_the_newest_commit_stays_whatever_its_size() -> None:
    assert trimmed(Retention(rows=1, hard_rows=1), [], *BATCHES) == [40, 0]


def test_what_a_query_has_not_released_stays() -> None:
    assert trimmed(Retention(rows=1), [[25, 0]], *BATCHES) == [20, 0]
    assert trimmed(Retention(age=1.0), [[50, 0], [10, 0]], *BATCHES) == [10, 0]
    assert trimmed(Retention(rows=1), [[0, 0]], *BATCHES) == [0, 0]


def test_a_hard_limit_waits_for_nobody() -> None:
    assert trimmed(Retention(hard_rows=25), [[0, 0]], *BATCHES) == [30, 0]
    assert trimmed(Retention(hard_bytes=250), [[0, 0]], *BATCHES) == [30, 0]
    assert trimmed(Retention(hard_age=75.0), [[0, 0]], *BATCHES) == [30, 0]


def test_partitions_wait_apart() -> None:
    entries = [batch("q", number, [10, 10]) for number in range(3)]
    assert trimmed(Retention(rows=1), [[0, 20]], *entries) == [0, 20]


@pytest.mark.parametrize("field", ["rows", "bytes", "age", "hard_rows", "hard_bytes", "hard_age"])
def test_a_limit_is_above_0(field: str) -> None:
    with pytest.raises(ValueError, match=f"Retention.{field} must be above 0"):
        Retention(**{field: 0})


# Ranges

GROUPS = st.lists(st.builds(Group, st.integers(0, 50), st.floats(0, 1000)), max_size=20)


@given(GROUPS, st.none() | st.integers(1, 60))
def test_ranges_cover_everything_once(groups: list[Group], wanted: int | None) -> None:
    cuts = cut(groups, wanted)
    rows = sum(group.rows for group in groups)
    edges = [0, *(each.end for each in cuts)]
    assert [each.start for each in cuts] == edges[:-1]
    assert edges[-1] == rows
    assert all(each.start < each.end for each in cuts)
    if wanted is not None:
        assert len(cuts) == min(wanted, rows)


def test_ranges_end_where_groups_do() -> None:
    groups = [Group(10, 100.0)] * 6
    assert cut(groups, 3) == [Cut(0, 20, 200), Cut(20, 40, 200), Cut(40, 60, 200)]
    assert [each.end for each in cut(groups, 4)] == [20, 30, 50, 60]


def test_a_lone_group_is_cut_when_asked_for() -> None:
    assert cut([Group(10, 100.0)], 4) == [
        Cut(0, 2, 20),
        Cut(2, 5, 30),
        Cut(5, 7, 20),
        Cut(7, 10, 30),
    ]


def test_the_size_decides_when_nobody_does() -> None:
    assert len(cut([Group(10, RANGE_BYTES / 8)] * 16, None)) == 2
    assert len(cut([Group(10, 1.0)] * 16, None)) == 1
    assert cut([], None) == []


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(0, 60), st.integers(0, 60))
def test_overlaps_are_those_rows(sizes: list[int], start: int, end: int) -> None:
    rows = [(place, row) for place, size in enumerate(sizes) for row in range(size)]
    found = [(place, row) for place, *span in overlaps(sizes, start, end) for row in range(*span)]
    assert found == rows[start:end]
