"""Statistics of files are never too narrow, and leave out only files without a match."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.spark.store.filters import matcher, parse_filters
from wsmux.spark.tables.data_files import NewFile
from wsmux.spark.tables.folder import LocalFolder
from wsmux.spark.tables.statistics import may_match

from ...helpers.spark.arrow_data import pa

pytestmark = pytest.mark.spark


def told(tmp_path: Path, *columns: Any, **named: Any) -> dict[str, Any]:
    """Return the statistics of a file with these columns."""
    batch = pa.record_batch(
        [*columns, *named.values()], names=[*map(str, range(len(columns))), *named]
    )
    file = NewFile(LocalFolder(tmp_path, sync=False), "x.parquet", batch.schema)
    file.write(batch)
    found: dict[str, Any] = json.loads(file.close().stats)
    return found


def test_bounds_are_those_of_the_values(tmp_path: Path) -> None:
    utc = datetime(2024, 1, 2, 3, 4, 5, 678901, UTC)
    stats = told(
        tmp_path,
        i=pa.array([3, None, -1]),
        d=pa.array([date(2024, 2, 29), date(2020, 1, 1), None]),
        t=pa.array([utc, utc, None], pa.timestamp("us", "UTC")),
        n=pa.array([utc.replace(tzinfo=None)] * 3, pa.timestamp("us")),
        f=pa.array([0.5, -2.0, None]),
        m=pa.array([Decimal("1.50"), Decimal("-2.25"), None], pa.decimal128(9, 2)),
    )
    assert stats["numRecords"] == 3
    assert stats["nullCount"] == {"i": 1, "d": 1, "t": 1, "n": 0, "f": 1, "m": 1}
    assert stats["minValues"] == {
        "i": -1,
        "d": "2020-01-01",
        "t": "2024-01-02T03:04:05.678Z",
        "n": "2024-01-02T03:04:05.678",
        "f": -2.0,
        "m": -2.25,
    }
    assert stats["maxValues"] == {
        "i": 3,
        "d": "2024-02-29",
        "t": "2024-01-02T03:04:05.679Z",
        "n": "2024-01-02T03:04:05.679",
        "f": 0.5,
        "m": 1.5,
    }


def test_long_text_is_cut_with_the_upper_bound_moved_up(tmp_path: Path) -> None:
    stats = told(tmp_path, pa.array(["a" * 50, "b" * 50, "é"]))
    assert stats["minValues"] == {"0": "a" * 32}
    assert stats["maxValues"] == {"0": "é"}
    stats = told(tmp_path, pa.array(["b" * 50]))
    assert stats["maxValues"]["0"] > "b" * 50


def test_text_that_cannot_be_moved_up_has_no_bounds(tmp_path: Path) -> None:
    top = chr(0x10FFFF)
    stats = told(tmp_path, pa.array(["a" * 32 + top * 2]), pa.array(["a" * 32 + "b" + top]))
    assert stats["maxValues"] == {"1": "a" * 32 + top}


def test_a_column_with_a_nan_has_no_bounds(tmp_path: Path) -> None:
    stats = told(tmp_path, pa.array([1.0, math.nan]), pa.array([1.0, 2.0]))
    assert stats["minValues"] == {"1": 1.0}


def test_what_has_no_bounds(tmp_path: Path) -> None:
    stats = told(
        tmp_path,
        pa.array([True, False]),
        pa.array([b"x", b"y"]),
        pa.array([[1], [2]]),
        pa.array([{"a": 1}, None]),
        pa.array([None, None], pa.int64()),
        pa.array([Decimal(2**60)] * 2, pa.decimal128(38, 0)),  # a float is, but is told shorter
        pa.array([10**17, 0], pa.timestamp("us")).cast(pa.timestamp("us")),  # the year 5138
        pa.array([2**62, 0], pa.timestamp("us")),  # no year of Python
        pa.array([math.inf, 0.0]),
    )
    assert stats["minValues"].keys() == {"6"}
    assert stats["nullCount"]["4"] == 2


def test_only_the_first_columns_have_statistics(tmp_path: Path) -> None:
    stats = told(tmp_path, *[pa.array([1])] * 40)
    assert len(stats["minValues"]) == 32


def test_a_file_without_rows(tmp_path: Path) -> None:
    assert told(tmp_path, pa.array([], pa.int64()))["numRecords"] == 0


# Leaving out

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("m", pa.decimal128(9, 2)),
    ]
)


def kept(stats: list[str | None], *filters: Any) -> list[bool]:
    return list(may_match(parse_filters(list(filters)), SCHEMA, stats))


def bounds(column: str, low: Any, high: Any) -> str:
    return json.dumps({"numRecords": 2, "minValues": {column: low}, "maxValues": {column: high}})


@pytest.mark.parametrize(
    ("column", "low", "high", "inside", "outside"),
    [
        ("i", 1, 5, 3, 6),
        ("f", 1.0, 5.0, 3, 6.5),
        ("s", "b", "d", "c", "e"),
        ("d", "2020-01-01", "2020-02-01", "2020-01-15", "2021-01-01"),
        (
            "t",
            "2020-01-01T00:00:00.000Z",
            "2020-02-01T00:00:00.000Z",
            "2020-01-15T00:00:00+00:00",
            "2021-01-01T00:00:00+00:00",
        ),
        ("m", 1.5, 2.25, "2.00", "3.00"),
    ],
)
def test_files_are_left_out_by_their_bounds(
    column: str, low: Any, high: Any, inside: Any, outside: Any
) -> None:
    stats = [bounds(column, low, high), None, "{}", "no json", "7"]
    rest = [True] * 4
    assert kept(stats, [column, "=", inside]) == [True, *rest]
    assert kept(stats, [column, "=", outside]) == [False, *rest]
    assert kept(stats, [column, "in", [outside, inside]]) == [True, *rest]
    assert kept(stats, [column, "in", [outside, None]]) == [False, *rest]
    assert kept(stats, [column, "<=", outside]) == [True, *rest]
    assert kept(stats, [column, ">", outside]) == [column == "f", *rest], "NaN is above all"
    assert kept(stats, [column, "!=", inside]) == [True, *rest]
    assert kept(stats, [column, "<", inside], [column, "=", outside]) == [False, *rest]


def test_files_are_left_out_by_their_nulls() -> None:
    some = json.dumps({"numRecords": 2, "nullCount": {"i": 1}})
    none = json.dumps({"numRecords": 2, "nullCount": {"i": 0}})
    every = json.dumps({"numRecords": 2, "nullCount": {"i": 2}})
    stats = [some, none, every, None]
    assert kept(stats, ["i", "is_null"]) == [True, False, True, True]
    assert kept(stats, ["i", "not_null"]) == [True, True, False, True]


def test_what_bounds_do_not_tell_is_kept() -> None:
    assert kept([bounds("i", "x", "y")], ["i", "=", 1]) == [True]
    assert kept([bounds("i", 1, 2)], ["i", "in", list(range(10, 500))]) == [True]
    assert kept([bounds("f", 1, 2)], ["f", "=", "NaN"]) == [True]
    assert kept([bounds("s", "a", "b")], ["s", "starts_with", "x"]) == [True]


@pytest.mark.parametrize("stats", ["minValues", "maxValues", "nullCount"])
def test_statistics_that_are_null_tell_nothing(stats: str) -> None:
    text = json.dumps({"numRecords": 2, stats: None})
    for odd in (text, text.replace("null", "7")):
        assert kept([odd], ["i", "=", 1]) == [True]
        assert kept([odd], ["i", "is_null"]) == [True]


def test_bounds_of_times_that_other_writers_have_cut() -> None:
    """They cut off what is below a millisecond, which is too low for the highs."""
    cut = bounds("t", "2020-01-01T00:00:00.123Z", "2020-01-01T00:00:00.123Z")
    assert kept([cut], ["t", "=", "2020-01-01T00:00:00.123456+00:00"]) == [True]
    assert kept([cut], ["t", ">", "2020-01-01T00:00:00.123456+00:00"]) == [True]
    assert kept([cut], ["t", ">", "2020-01-01T00:00:00.124001+00:00"]) == [False]
    last = bounds("t", "2020-01-01T00:00:00.000Z", "+294247-01-10T04:00:54.775Z")
    assert kept([last], ["t", ">", "2020-01-01T00:00:00.124001+00:00"]) == [True]


def test_bounds_of_decimals_that_went_through_floating_point() -> None:
    schema = pa.schema([("m", pa.decimal128(38, 0))])

    def may(low: Any, high: Any, op: str, value: int) -> bool:
        filters = parse_filters([["m", op, str(value)]])
        return next(iter(may_match(filters, schema, [bounds("m", low, high)])))

    for value in (2**60, 2**60 + 100, 10**38 - 1, 12345678901234567890123, -(2**60) - 100):
        assert may(float(value), float(value), "=", value)
    assert not may(float(2**60), float(2**60), "=", 2**60 + 10_000)
    assert may(5.0, 7.0, "=", 7)
    assert not may(5.0, 7.0, "=", 8), "few digits are exact"
    assert not may(5, 7, "<", 5)
    assert may("x", "y", "=", 8)


VALUES = st.lists(st.none() | st.integers(-5, 5), min_size=1, max_size=6)


@given(
    files=st.lists(VALUES, min_size=1, max_size=4),
    op=st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "in", "is_null", "not_null"]),
    value=st.integers(-6, 6),
)
def test_no_row_is_lost(files: list[list[int | None]], op: str, value: int) -> None:
    stats: list[str | None] = []
    for values in files:
        there = [each for each in values if each is not None]
        found: dict[str, Any] = {"numRecords": len(values), "nullCount": {"i": values.count(None)}}
        if there:
            found |= {"minValues": {"i": min(there)}, "maxValues": {"i": max(there)}}
        stats.append(json.dumps(found))
    filters = parse_filters([["i", op, [value] if op == "in" else value]])
    schema = pa.schema([("i", pa.int64())])
    for values, keep in zip(files, may_match(filters, schema, stats), strict=True):
        batch = pa.record_batch([pa.array(values, pa.int64())], schema=schema)
        assert keep or not matcher(filters, schema).apply(batch).num_rows
