"""Filters as they travel, before there is a schema."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.store.filters import MAX_FILTERS, MAX_VALUES, Filter, parse_filters, wire_value

from ...helpers.tables import each_case


def test_filters_are_parsed() -> None:
    values = [["a", "=", 1], ["b", "is_null"], ["c", "in", [1, None]], ("d", "not_null", 5)]
    assert parse_filters(values) == [
        Filter("a", "=", 1),
        Filter("b", "is_null"),
        Filter("c", "in", [1, None]),
        Filter("d", "not_null"),
    ]
    assert parse_filters(None) == []


@each_case
@pytest.mark.parametrize(
    "values",
    [
        "a = 1",
        {"a": 1},
        [1],
        [["a"]],
        [["a", "=", 1, 2]],
        [[1, "=", 1]],
        [["a", "like", "x"]],
        [["a", ["="], 1]],
        [["a", "=", None]],
        [["a", "<", [1]]],
        [["a", "=", {}]],
        [["a", "in", 1]],
        [["a", "in", [0] * (MAX_VALUES + 1)]],
        [["a", "is_null"]] * (MAX_FILTERS + 1),
    ],
    ids=lambda values: str(values)[:30],
)
def test_wrong_filters_are_refused(values: object) -> None:
    with pytest.raises(RiverError) as caught:
        parse_filters(values)
    assert caught.value.code == "BAD_FILTER"
    assert len(caught.value.message) < 300


@each_case
@pytest.mark.parametrize(
    ("value", "wired"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (1.5, 1.5),
        ("x", "x"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (Decimal("1.50"), "1.50"),
        (b"\x00\xff", "AP8="),
        (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 2, 29, 1, 2, 3, 4), "2024-02-29T01:02:03.000004"),
        (datetime(2024, 2, 29, tzinfo=UTC), "2024-02-29T00:00:00+00:00"),
        (
            datetime(2024, 2, 29, 1, tzinfo=timezone(timedelta(hours=2))),
            "2024-02-28T23:00:00+00:00",
        ),
        ([1, (b"",)], [1, [""]]),
    ],
    ids=repr,
)
def test_values_travel_as_json(value: object, wired: object) -> None:
    assert wire_value(value) == wired
    assert json.loads(json.dumps(wired, allow_nan=False)) == wired


def test_a_value_without_a_form_is_refused() -> None:
    with pytest.raises(TypeError, match="complex"):
        wire_value(1j)
