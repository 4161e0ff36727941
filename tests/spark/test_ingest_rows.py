"""Rows become batches of a schema, or an error says which value of which column does not fit."""

from __future__ import annotations

from collections import UserDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.ingest_rows import RowConverter

from ..helpers.programs import package
from ..helpers.spark.arrow_data import SCHEMA, pa, rows

pytestmark = pytest.mark.spark
np, pd = package("numpy", "spark"), package("pandas", "spark")
types = package("pyspark.sql.types", "spark")

KINDS: dict[str, Any] = {
    "int": pa.int32(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "time": pa.timestamp("us", "UTC"),
    "naive": pa.timestamp("us"),
    "short": pa.float32(),
    "decimal": pa.decimal128(10, 2),
    "wide decimal": pa.decimal128(20, 9),
    "list": pa.list_(pa.int64()),
    "texts": pa.list_(pa.string()),
    "shorts": pa.list_(pa.float32()),
    "short struct": pa.struct([("a", pa.float32())]),
    "short map": pa.map_(pa.string(), pa.float32()),
    "map": pa.map_(pa.string(), pa.int64()),
    "struct": pa.struct([("a", pa.int64()), ("b", pa.string())]),
    "pair": pa.struct([("a", pa.int64()), ("b", pa.int64())]),
    "half": pa.float16(),
    "seconds": pa.timestamp("s"),
    "clock": pa.time32("ms"),
    "span": pa.duration("ms"),
    "micros": pa.duration("us"),
    "spans": pa.list_(pa.duration("us")),
    "two": pa.list_(pa.float32(), 2),
    "dates": pa.list_(pa.date32()),
    "times": pa.list_(pa.timestamp("us", "UTC")),
    "naives": pa.list_(pa.timestamp("us")),
}

NAIVE = datetime(2024, 2, 29, 1)
Pair = namedtuple("Pair", "a b")
Swapped = namedtuple("Swapped", "b a")


def converted(kind: str, value: Any) -> Any:
    """Return what becomes of a value in a column of a kind."""
    schema = pa.schema([pa.field("x", KINDS[kind])])
    (batch,) = RowConverter(schema).batches({"x": value})
    assert batch.schema.equals(schema)
    return batch.column("x")[0].as_py()


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        ("int", 7, 7),
        ("int", None, None),
        ("float", 7, 7.0),
        ("bool", True, True),
        ("text", "é", "é"),
        ("bytes", b"\xff", b"\xff"),
        ("date", date(2024, 2, 29), date(2024, 2, 29)),
        ("date", "2024-02-29", date(2024, 2, 29)),
        ("time", datetime(2024, 2, 29, 1, tzinfo=UTC), datetime(2024, 2, 29, 1, tzinfo=UTC)),
        ("time", "2024-02-29T01:00:00Z", datetime(2024, 2, 29, 1, tzinfo=UTC)),
        ("naive", datetime(2024, 2, 29, 1), datetime(2024, 2, 29, 1)),
        ("short", 0.5, 0.5),
        ("short", 3.4028234663852886e38, 3.4028234663852886e38),
        ("short", float("inf"), float("inf")),
        ("decimal", Decimal("1.5"), Decimal("1.50")),
        ("decimal", "1.5", Decimal("1.50")),
        ("decimal", 3, Decimal("3.00")),
        ("list", [1, None], [1, None]),
        ("map", {"k": 1}, [("k", 1)]),
        ("map", [("k", 1)], [("k", 1)]),
        ("texts", ["ab"], ["ab"]),
        ("struct", {"a": 1}, {"a": 1, "b": None}),
        ("struct", (1, "x"), {"a": 1, "b": "x"}),
        ("pair", (1, 2), {"a": 1, "b": 2}),
        ("pair", Pair(1, None), {"a": 1, "b": None}),
        ("pair", types.Row(a=1, b=2), {"a": 1, "b": 2}),
        ("pair", types.Row(1, 2), {"a": 1, "b": 2}),
        ("map", [{"key": "k", "value": 1}], [("k", 1)]),
        ("int", np.int64(7), 7),
        ("int", pa.scalar(7, pa.int32()), 7),
        ("float", np.float32(0.5), 0.5),
        ("short", np.float64(0.5), 0.5),
        ("half", 65519.0, 65504.0),
        ("half", np.float16(0.5), 0.5),
        ("list", np.array([1, 2]), [1, 2]),
        ("list", pa.array([1, 2]), [1, 2]),
        ("shorts", np.array([0.5, np.inf]), [0.5, float("inf")]),
        ("naives", np.array(["2024-02-29T01"], "datetime64[us]"), [NAIVE]),
        ("naive", pd.Timestamp(NAIVE), NAIVE),
        ("seconds", NAIVE, NAIVE),
        ("clock", time(1, 2, 3, 4000), time(1, 2, 3, 4000)),
        ("span", timedelta(seconds=1), timedelta(seconds=1)),
        ("micros", np.timedelta64(5, "us"), timedelta(microseconds=5)),
        ("micros", np.timedelta64("NaT", "us"), None),
        ("micros", pd.Timedelta(5, "us"), timedelta(microseconds=5)),
        ("spans", np.array([5], "timedelta64[us]"), [timedelta(microseconds=5)]),
        ("two", np.array([0.5, 1.5]), [0.5, 1.5]),
        ("two", (0.5, 1.5), [0.5, 1.5]),
    ],
)
def test_values_that_fit(kind: str, value: Any, kept: Any) -> None:
    assert converted(kind, value) == kept


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", "7"),
        ("int", 1.5),
        ("int", Decimal("1.5")),
        ("int", True),
        ("int", 2**31),
        ("int", 2**70),
        ("float", "1.5"),
        ("float", True),
        ("short", True),
        ("bool", 1),
        ("text", 7),
        ("text", "\ud800"),
        ("date", datetime(2024, 2, 29, 1)),
        ("date", 7),
        ("date", "yesterday"),
        ("time", 7),
        ("time", "2024-02-29T01:00:00"),
        ("time", datetime(2024, 2, 29, 1)),
        ("naive", datetime(2024, 2, 29, 1, tzinfo=UTC)),
        ("short", 1e300),
        ("short", -3.5e38),
        ("decimal", 1.5),
        ("decimal", "1.505"),
        ("decimal", True),
        ("list", [1.5]),
        ("list", 7),
        ("texts", "ab"),
        ("map", {"k": 1.5}),
        ("map", [("k", 1.5)]),
        ("map", ""),
        ("struct", {"a": 1, "typo": 2}),
        ("struct", {"a": 1.5}),
        ("struct", (1.5, "x")),
        ("struct", []),
        ("struct", [("a", 1.5)]),
        ("struct", {b"a": 1}),
        ("pair", (1,)),
        ("pair", Swapped(1, 2)),
        ("pair", types.Row(b=1, a=2)),
        ("pair", types.Row(a=1)),
        ("map", [{"key": "k", "value": 1.5}]),
        ("map", b""),
        ("list", b"ab"),
        ("list", bytearray(b"ab")),
        ("time", 1.5),
        ("naive", 1.5),
        ("naive", Decimal(5)),
        ("naive", pd.Timestamp("2024-02-29T01:00:00.000000001")),
        ("seconds", NAIVE.replace(microsecond=500_000)),
        ("date", 1.5),
        ("date", Decimal(5)),
        ("date", np.int64(5)),
        ("clock", 5),
        ("clock", time(1, 2, 3, 4)),
        ("clock", time(1, tzinfo=UTC)),
        ("span", 5),
        ("span", timedelta(microseconds=5)),
        ("half", 65520.0),
        ("half", 2**31),
        ("short", 10**400),
        ("half", True),
        ("int", np.float32(1.5)),
        ("int", np.bool_(True)),
        ("list", np.array([1.5], "float32")),
        ("list", np.array([True])),
        ("dates", np.array([5])),
        ("naives", np.array(["2024-02-29T01"], "datetime64[s]")),
        ("times", np.array(["2024-02-29T01"], "datetime64[us]")),
        ("micros", pd.Timedelta(1005, "ns")),
        ("micros", np.timedelta64(5, "ms")),
        ("spans", np.array([5], "timedelta64[ms]")),
        ("int", np.timedelta64(5, "ns")),
        ("list", np.array([5], "timedelta64[ns]")),
        ("list", np.array([1.5])),
        ("list", np.ma.array([1, 2], mask=[False, True])),
        ("shorts", np.array([0.5, 1e300])),
        ("two", {0.5}),
        ("two", {0.5, 1.5, 2.5}),
        ("list", memoryview(b"ab")),
        ("map", [{"key": "k", "value": 1, "more": 2}]),
        ("texts", UserDict(a="b")),
        ("map", UserDict(a=1)),
        ("struct", UserDict(a=1)),
        ("naives", np.array(["2024-02-29"])),
    ],
)
def test_values_that_do_not_fit_are_named(kind: str, value: Any) -> None:
    with pytest.raises(RiverError) as caught:
        converted(kind, value)
    assert caught.value.code == "WRONG_TYPE"
    text = f"row 0: column 'x' takes {KINDS[kind]}, got {type(value).__name__} "
    assert caught.value.message.startswith(text)


@pytest.mark.parametrize(
    ("kind", "values", "kept"),
    [
        (
            "date",
            ["2024-02-29", None, date(2024, 3, 1)],
            [date(2024, 2, 29), None, date(2024, 3, 1)],
        ),
        ("naive", [NAIVE, "2024-02-29T01:00:00"], [NAIVE, NAIVE]),
        ("decimal", ["1.50", 2, Decimal("2.50")], [Decimal("1.50"), Decimal(2), Decimal("2.50")]),
    ],
)
def test_text_may_stand_beside_values(kind: str, values: list[Any], kept: list[Any]) -> None:
    converter = RowConverter(pa.schema([("x", KINDS[kind])]))
    (batch,) = converter.batches([{"x": value} for value in values])
    assert batch.column("x").to_pylist() == kept
    with pytest.raises(RiverError, match=f"row {len(values)}: column 'x' takes .*, got bool True"):
        list(converter.batches([{"x": value} for value in [*values, True]]))


def refused(data: Any) -> str:
    with pytest.raises(RiverError) as caught:
        list(RowConverter(SCHEMA).batches(data))
    return f"{caught.value.code}: {caught.value.message}"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([{"id": 1, "word": ""}, {"id": 2}], "NO_COLUMN: row 1 has no column 'word', which is"),
        ({"id": 1, "word": "", "x": 2}, "NO_COLUMN: row 0 has a column 'x' that the dataset has"),
        (
            [{"id": None, "word": ""}],
            "WRONG_TYPE: row 0: column 'id' takes int64, never null, got None",
        ),
        ([{"id": 1, "word": ""}, 7], "WRONG_TYPE: row 1 must be a dict, got int 7"),
        (7, "WRONG_TYPE: rows must be a dict, a list of dicts, a RecordBatch or a Table, got int"),
        ("{}", "WRONG_TYPE: rows must be a dict"),
    ],
)
def test_rows_that_do_not_fit(data: Any, words: str) -> None:
    assert refused(data).startswith(words)


def test_arrow_data_in_another_order_and_another_type() -> None:
    table = pa.table({"word": pa.array(["x"], pa.large_string()), "id": pa.array([1], pa.int8())})
    (batch,) = RowConverter(SCHEMA).batches(table)
    assert batch.schema.equals(SCHEMA)
    assert batch.to_pylist() == [{"id": 1, "word": "x"}]


def test_batches_of_the_schema_are_not_copied() -> None:
    given = rows(0, 3)
    (batch,) = RowConverter(given.schema).batches(given)
    assert batch.column(0).buffers()[1].address == given.column(0).buffers()[1].address


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": [1]}, "NO_COLUMN: the data has no column 'word'"),
        ({"id": ["x"], "word": ["y"]}, "WRONG_TYPE: column 'id' takes int64, got string: "),
        ({"id": [1.5], "word": ["y"]}, "WRONG_TYPE: column 'id' takes int64, got double: "),
        ({"id": [[1]], "word": ["y"]}, "WRONG_TYPE: column 'id' takes int64, got list<"),
        ({"id": pa.array([None], pa.int64()), "word": ["y"]}, "WRONG_TYPE: column 'id' holds null"),
    ],
)
def test_arrow_data_that_does_not_fit(columns: Any, words: str) -> None:
    assert refused(pa.table(columns)).startswith(words)


def cast(given: Any, kind: str) -> Any:
    """Return what becomes of Arrow data in a column of a kind."""
    schema = pa.schema([pa.field("x", KINDS[kind])])
    (batch,) = RowConverter(schema).batches(pa.record_batch({"x": given}))
    assert batch.schema.equals(schema)
    return batch.column("x").to_pylist()


MIDNIGHT, LATER = datetime(2024, 2, 29), datetime(2024, 2, 29, 1)
EASTERN = pa.timestamp("us", "-05:00")
DOUBLES = pa.list_(pa.field("item", pa.float64()))
DOUBLE_MAP = pa.map_(pa.string(), pa.float64())


@pytest.mark.parametrize(
    ("given", "kind", "kept"),
    [
        (pa.array([MIDNIGHT, None]), "date", [date(2024, 2, 29), None]),
        (pa.array([1.25, 0.35, None]), "decimal", [Decimal("1.25"), Decimal("0.35"), None]),
        (pa.array([0.7], pa.float32()), "decimal", [Decimal("0.70")]),
        (pa.array([0.35]), "wide decimal", [Decimal("0.350000000")]),
        (pa.array([0.5, None, float("inf")]), "short", [0.5, None, float("inf")]),
        (pa.array([1.5], pa.float16()), "short", [1.5]),
        (pa.array([Decimal("0.35"), None]), "float", [0.35, None]),
        (pa.array([Decimal("0.1")], pa.decimal128(38, 18)), "float", [0.1]),
        (pa.array(["inf", "0.1", None]), "float", [float("inf"), 0.1, None]),
        (pa.array([datetime(2024, 2, 29, 5)], EASTERN), "date", [date(2024, 2, 29)]),
        (pa.array([None], pa.timestamp("us")), "time", [None]),
        (pa.array([None], pa.int64()), "time", [None]),
        (pa.array([date(2024, 2, 29)]), "naive", [MIDNIGHT]),
        (pa.array(["true", None]), "bool", [True, None]),
        (
            pa.MapArray.from_arrays(
                [0, 1, 2], ["a", "b"], [0.1, 0.5], mask=pa.array([True, False])
            ),
            "short map",
            [None, [("b", 0.5)]],
        ),
        (pa.array([1.5]).dictionary_encode(), "decimal", [Decimal("1.50")]),
        (pa.array([[0.5], None, []], DOUBLES), "shorts", [[0.5], None, []]),
        (pa.array([{"a": 0.5}, None]), "short struct", [{"a": 0.5}, None]),
        (
            pa.array([[("k", 0.1)], [("l", 0.5)], None], DOUBLE_MAP).slice(1),
            "short map",
            [[("l", 0.5)], None],
        ),
        (pa.array([LATER], pa.timestamp("ms")), "naive", [LATER]),
    ],
)
def test_arrow_data_that_can_be_cast_without_loss(given: Any, kind: str, kept: Any) -> None:
    assert cast(given, kind) == kept


def test_what_is_no_number_stays_so() -> None:
    (value,) = cast(pa.array([float("nan")]), "short")
    assert value != value


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (pa.array([MIDNIGHT, LATER]), "date", "2024-02-29 01:00:00 would become 2024-02-29"),
        (pa.array([datetime(2024, 2, 29)], EASTERN), "date", "2024-02-28 19:00:00-05:00 would"),
        (pa.array([1.5, 1.239]), "decimal", "1.239 would become 1.24"),
        (pa.array(["1", "1e300"]), "short", "1e300 would become inf"),
        (pa.array([{"a": 0.5, "b": 1}]), "short struct", "it has no field 'b'"),
        (pa.array([0.1]), "short", "0.1 would become 0.1"),
        (pa.array([1e300]), "short", "1e+300 would become inf"),
        (pa.array([Decimal("1.00000000000000000001")]), "float", "1.00000000000000000001 would"),
        (pa.array([LATER]), "time", "one has a time zone, and the other has none"),
        (pa.array([LATER], pa.timestamp("us", "UTC")), "naive", "one has a time zone"),
        (pa.array([[0.1]], DOUBLES), "shorts", "0.1 would become"),
        (pa.array([{"a": 1e300}]), "short struct", "1e+300 would become inf"),
        (pa.array([[("k", 0.5), ("l", 0.1)]], DOUBLE_MAP), "short map", "0.1 would become"),
        (pa.array([1.239]).dictionary_encode(), "decimal", "1.239 would become 1.24"),
        (pa.array([5]), "bool", "numbers are not truth values"),
        (pa.array([1.5, None]), "bool", "numbers are not truth values"),
        (pa.array([True]), "float", "truth values are not numbers"),
        (pa.array([5]), "time", "numbers are not dates"),
        (pa.array([[5]]), "naives", "numbers are not dates"),
        (pa.array([5], pa.int32()), "date", "numbers are not dates"),
        (pa.array([5]), "micros", "numbers are not spans of time"),
        (pa.array([date(2024, 2, 29)]), "int", "dates are not numbers"),
        (pa.array([LATER]), "clock", "dates are not times of day"),
        (pa.array([date(2024, 2, 29)]), "time", "one has a time zone, and the other has none"),
    ],
)
def test_arrow_data_that_a_cast_would_change_is_refused(given: Any, kind: str, words: str) -> None:
    with pytest.raises(RiverError) as caught:
        cast(given, kind)
    assert caught.value.code == "WRONG_TYPE"
    assert caught.value.message.startswith(
        f"column 'x' takes {KINDS[kind]}, got {given.type}: {words}"
    )
