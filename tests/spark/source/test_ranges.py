"""How the rows of a snapshot are cut into ranges. Pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wsmux.spark.source.ranges import RANGE_BYTES, Cut, Group, cut, overlaps

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
