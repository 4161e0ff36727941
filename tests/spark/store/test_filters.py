"""Filters keep what Spark would keep, whatever the type; what they cannot mean is refused."""

from __future__ import annotations

import math
import operator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.rpc import RiverError
from wsmux.spark.store.filters import matcher, parse_filters, wire_value

from ...helpers.spark.arrow_data import SCHEMA, pa, rows, wide

pytestmark = pytest.mark.spark

NAN = math.nan


def kept(column: Any, op: str, value: Any = None) -> list[Any]:
    """Return the values that a filter keeps."""
    batch = pa.record_batch([column], names=["x"])
    filters = parse_filters([["x", op, wire_value(value)]])
    found: list[Any] = matcher(filters, batch.schema).apply(batch).column(0).to_pylist()
    return found


NEW_YEAR = date(2024, 1, 1)
D150, D200 = Decimal("1.50"), Decimal("2.00")

CASES: dict[str, tuple[Any, str, Any, list[Any]]] = {
    "int =": (pa.array([1, 2, None]), "=", 2, [2]),
    "int !=": (pa.array([1, 2, None]), "!=", 2, [1]),
    "int in": (pa.array([1, 2, 3, None]), "in", [3, 1, None, 9], [1, 3]),
    "in nothing": (pa.array([1, None]), "in", [], []),
    "is_null": (pa.array([1, None]), "is_null", None, [None]),
    "not_null": (pa.array([1, None]), "not_null", None, [1]),
    "int8 < far": (pa.array([1, -1], pa.int8()), "<", 1000, [1, -1]),
    "int8 = far": (pa.array([1], pa.int8()), "=", 1000, []),
    "int8 in far": (pa.array([1, 2], pa.int8()), "in", [1000, 2], [2]),
    "int = whole float": (pa.array([1, 2]), "=", 2.0, [2]),
    "uint64": (pa.array([2**64 - 1, 0], pa.uint64()), ">", 2**63 + 1, [2**64 - 1]),
    "bool": (pa.array([True, False, None]), "=", False, [False]),
    "float32 exact": (pa.array([0.5, 1.5], pa.float32()), "=", 0.5, [0.5]),
    "float32 = double": (pa.array([0.1], pa.float32()), "=", 0.1, []),
    "float32 < double": (pa.array([0.1, 0.05], pa.float32()), "<=", 0.1, [pytest.approx(0.05)]),
    "float16": (pa.array([0.1, 2.0], pa.float32()).cast(pa.float16()), ">", 0.3, [2.0]),
    "float and int": (pa.array([1.0, 2.5]), ">", 1, [2.5]),
    "zeroes": (pa.array([-0.0, 0.0]), "=", 0.0, [-0.0, 0.0]),
    "zeroes in": (pa.array([-0.0, 0.0, 1.0]), "in", [0.0, 2.0], [-0.0, 0.0]),
    "minus zero in": (pa.array([-0.0, 0.0], pa.float32()), "in", [-0.0], [-0.0, 0.0]),
    "infinity": (pa.array([1.0, math.inf]), "<", math.inf, [1.0]),
    "text": (pa.array(["a", "b", "é", None]), ">", "a", ["b", "é"]),
    "text in": (pa.array(["a", "b", None], pa.large_string()), "in", ["b", "c"], ["b"]),
    "starts": (pa.array(["ab", "b", None]), "starts_with", "a", ["ab"]),
    "binary": (pa.array([b"\xff", b"a"]), "=", b"\xff", [b"\xff"]),
    "date": (pa.array([NEW_YEAR, date(2023, 1, 1)]), ">=", NEW_YEAR, [NEW_YEAR]),
    "decimal": (pa.array([D150, D200]), "=", Decimal("1.5"), [D150]),
    "decimal <": (pa.array([D150]), "<", Decimal("1.5001"), [D150]),
    "decimal in": (pa.array([D150, D200]), "in", [Decimal("1.505"), Decimal("2")], [D200]),
    "decimal and int": (pa.array([D150, D200]), ">", 1, [D150, D200]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_filter_keeps_what_matches(case: str) -> None:
    column, op, value, wanted = CASES[case]
    assert kept(column, op, value) == wanted


def test_moments_compare_across_units_and_zones() -> None:
    moment = datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC)
    for unit in ("ms", "us", "ns"):
        column = pa.array([moment.replace(microsecond=0)]).cast(pa.timestamp(unit, "Asia/Tokyo"))
        assert len(kept(column, "<", moment)) == 1
        assert len(kept(column, "in", [moment])) == 0
        assert len(kept(column, "=", moment.replace(microsecond=0))) == 1
    naive = pa.array([datetime(2024, 1, 1)], pa.timestamp("s"))
    assert len(kept(naive, ">", datetime(2023, 12, 31, 23, 59, 59, 999_999))) == 1


# NaN, as Spark has it: equal to itself, above everything else

FLOATS = [NAN, -math.inf, -1.0, 0.0, 2.5, math.inf]
COMPARE = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def rank(value: float) -> tuple[bool, float]:
    return (True, 0.0) if math.isnan(value) else (False, value)


@pytest.mark.parametrize("op", COMPARE)
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_nan_is_equal_to_itself_and_above_all(op: str, kind: str) -> None:
    column = pa.array([*FLOATS, None], getattr(pa, kind)())
    for value in FLOATS:
        wanted = [each for each in FLOATS if COMPARE[op](rank(each), rank(value))]
        assert [rank(each) for each in kept(column, op, value)] == [rank(each) for each in wanted]


def test_nan_is_in_a_list_with_nan() -> None:
    column = pa.array([NAN, 1.0, 2.0, None])
    assert [rank(each) for each in kept(column, "in", [NAN, 2.0])] == [rank(NAN), rank(2.0)]
    assert kept(column, "in", [2.0]) == [2.0]


@given(
    st.lists(st.none() | st.integers(-5, 5), max_size=20),
    st.sampled_from(sorted(COMPARE)),
    st.integers(-6, 6),
    st.integers(-6, 6),
)
def test_filters_are_all_to_match(values: list[int | None], op: str, one: int, other: int) -> None:
    batch = pa.record_batch([pa.array(values, pa.int16())], names=["x"])
    bound = matcher(parse_filters([["x", op, one], ["x", "!=", other]]), batch.schema)
    wanted = [v for v in values if v is not None and COMPARE[op](v, one) and v != other]
    assert bound.apply(batch).column(0).to_pylist() == wanted


def test_a_matcher_names_what_it_reads() -> None:
    bound = matcher(
        parse_filters([["word", "=", "w1"], ["id", ">", 3], ["word", "not_null"]]), SCHEMA
    )
    assert bound.columns == ["word", "id"]
    assert bound
    assert not matcher([], SCHEMA)
    assert matcher([], SCHEMA).apply(rows(0, 3)).num_rows == 3


WRONG: dict[str, tuple[Any, str, Any]] = {
    "int text": (pa.int64(), "=", "1"),
    "int truth": (pa.int64(), "=", True),
    "int half": (pa.int64(), "<", 1.5),
    "int huge": (pa.int64(), "<", 2**70),
    "uint64 below": (pa.uint64(), ">", -1),
    "bool int": (pa.bool_(), "=", 1),
    "bool order": (pa.bool_(), "<", True),
    "float text": (pa.float64(), "=", "1.0"),
    "float int": (pa.float64(), "=", 2**53 + 1),
    "text int": (pa.string(), "=", 1),
    "text starts": (pa.string(), "starts_with", 1),
    "starts int": (pa.int64(), "starts_with", "1"),
    "date text": (pa.date32(), "=", "yesterday"),
    "date moment": (pa.date32(), "=", "2024-01-01T00:00:00"),
    "moment naive": (pa.timestamp("us", "UTC"), "=", "2024-01-01T00:00:00"),
    "moment aware": (pa.timestamp("us"), "=", "2024-01-01T00:00:00+00:00"),
    "moment number": (pa.timestamp("us"), "=", 5),
    "decimal text": (pa.decimal128(5, 2), "=", "x"),
    "decimal nan": (pa.decimal128(5, 2), "=", "NaN"),
    "decimal float": (pa.decimal128(5, 2), "=", 1.5),
    "binary": (pa.binary(), "=", "not base64!"),
    "fixed binary": (pa.binary(4), "=", "AAAA"),
    "list": (pa.list_(pa.int8()), "=", 1),
    "struct": (pa.struct([("a", pa.int8())]), "in", [1]),
    "duration": (pa.duration("s"), "=", 1),
    "in mixed": (pa.int64(), "in", [1, "2"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_value_of_another_type_is_refused(case: str) -> None:
    kind, op, value = WRONG[case]
    with pytest.raises(RiverError) as caught:
        matcher(parse_filters([["x", op, value]]), pa.schema([("x", kind)]))
    assert caught.value.code == "BAD_FILTER"
    assert caught.value.message.startswith("x ")


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.null()])
def test_any_column_may_be_tested_for_nulls(kind: Any) -> None:
    column = pa.nulls(2, kind)
    assert len(kept(column, "is_null")) == 2
    assert len(kept(column, "not_null")) == 0


def test_columns_of_every_type_are_filtered() -> None:
    bound = matcher(parse_filters([["bool", "=", True]]), wide().schema)
    assert str(bound.apply(wide()).to_pylist()) == str(wide().slice(0, 1).to_pylist())


def test_a_filter_on_no_column_is_refused() -> None:
    with pytest.raises(RiverError, match="there are id, word") as caught:
        matcher(parse_filters([["x", "is_null"]]), SCHEMA)
    assert caught.value.code == "NO_COLUMN"
