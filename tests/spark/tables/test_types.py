"""What Delta keeps of an Arrow schema, what it changes, and what is refused with a cast."""

from __future__ import annotations

from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.tables.types import (
    ADDED_BYTES,
    aligned,
    arrow_of,
    delta_schema,
    fitted,
    has_naive_timestamps,
    kept_schema,
    merged,
)

from ...helpers.spark.arrow_data import pa

pytestmark = pytest.mark.spark

REFUSED = [
    (pa.uint8(), "cast it to int16"),
    (pa.uint32(), "cast it to int64"),
    (pa.uint64(), "cast it to int64 or decimal128"),
    (pa.float16(), "cast it to float32"),
    (pa.time32("s"), "cast it to int64 or string"),
    (pa.duration("us"), "cast it to int64 or string"),
    (pa.timestamp("s"), r"cast it to timestamp\[us\]"),
    (pa.timestamp("s", "UTC"), r"cast it to timestamp\[us, tz=UTC\]"),
    (pa.timestamp("us", "Europe/Berlin"), r"cast it to timestamp\[us, tz=UTC\]"),
    (pa.decimal256(60, 2), "cast it to decimal128"),
    (pa.decimal128(5, -2), "cast it to decimal128"),
    (pa.null(), "cast it to the type"),
]


@pytest.mark.parametrize(("kind", "words"), REFUSED, ids=str)
def test_a_type_that_delta_has_not_names_its_column_and_the_cast(kind: Any, words: str) -> None:
    for column, place in (
        (pa.field("c", kind), "'c'"),
        (pa.field("c", pa.list_(kind)), "'c.element'"),
        (pa.field("c", pa.struct([("f", kind)])), "'c.f'"),
        (pa.field("c", pa.map_(pa.string(), kind)), "'c.value'"),
    ):
        with pytest.raises(RiverError, match=words) as caught:
            kept_schema(pa.schema([column]))
        assert caught.value.code == "WRONG_SCHEMA"
        assert place in caught.value.message


KEPT = [
    (pa.large_string(), pa.string()),
    (pa.binary(4), pa.binary()),
    (pa.large_binary(), pa.binary()),
    (pa.date64(), pa.date32()),
    (pa.timestamp("ns"), pa.timestamp("us")),
    (pa.timestamp("ms", "+00:00"), pa.timestamp("us", "UTC")),
    (pa.large_list(pa.int8()), pa.list_(pa.int8())),
    (pa.list_(pa.timestamp("ns"), 2), pa.list_(pa.timestamp("us"))),
    (pa.decimal128(38, 10), pa.decimal128(38, 10)),
]


@pytest.mark.parametrize(("kind", "kept"), KEPT, ids=str)
def test_a_type_is_kept_as_another_one(kind: Any, kept: Any) -> None:
    (field,) = kept_schema(pa.schema([pa.field("c", kind, True, {"k": "v"})]))
    assert field.type == kept
    assert field.metadata == {b"k": b"v"}
    assert arrow_of(delta_schema(pa.schema([field]))).field(0).type == kept


def test_what_delta_asks_of_writers_is_not_taken_from_them() -> None:
    told = {"delta.identity.start": "1", "k": "v"}
    inner = pa.struct([pa.field("f", pa.int8(), True, told)])
    (field,) = kept_schema(pa.schema([pa.field("c", inner, True, told)]))
    assert field.metadata == field.type.field(0).metadata == {b"k": b"v"}


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("id", pa.int8()), ("ID", pa.int8())]),
        pa.schema([("s", pa.struct([("x", pa.int8()), ("X", pa.int8())]))]),
        pa.schema([("", pa.int8())]),
    ],
)
def test_names_that_delta_takes_for_one_are_refused(schema: Any) -> None:
    with pytest.raises(RiverError, match="rename one|give it one"):
        kept_schema(schema)


def test_only_timestamps_without_a_zone_are_naive() -> None:
    zoned = pa.schema([("a", pa.timestamp("us", "UTC")), ("timestamp_ntz", pa.int8())])
    assert not has_naive_timestamps(zoned)
    assert has_naive_timestamps(pa.schema([("a", pa.list_(pa.timestamp("us")))]))


def test_what_is_no_schema_is_told() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        arrow_of("{}")
    with pytest.raises(RiverError, match="Delta cannot keep this schema"):
        delta_schema(pa.schema([("a", pa.uint64()), ("b", pa.duration("s"))]))


def test_batches_are_brought_into_the_kept_form() -> None:
    given = pa.record_batch(
        [
            pa.array([1_999, None], pa.timestamp("ns")),
            pa.array(["x", None], pa.large_string()),
            pa.array(["d", "d"]).dictionary_encode(),
            pa.array([[1, 2], None], pa.list_(pa.int8(), 2)),
        ],
        names=["at", "word", "code", "pair"],
    )
    schema = pa.schema(
        [
            ("at", pa.timestamp("us")),
            ("word", pa.string()),
            ("code", pa.string()),
            ("pair", pa.list_(pa.int8())),
        ]
    )
    batch = fitted(given, schema)
    assert batch.schema.equals(schema)
    assert batch.column(0).cast(pa.int64()).to_pylist() == [1, None]
    assert batch.column(3).to_pylist() == [[1, 2], None]


def test_nulls_where_there_are_none_are_refused() -> None:
    given = pa.record_batch([pa.array([None, "x"], pa.large_string())], names=["a"])
    with pytest.raises(RiverError, match="holds nulls"):
        fitted(given, pa.schema([pa.field("a", pa.string(), False)]))


@pytest.mark.parametrize(
    ("value", "given", "kept"),
    [
        (10**16, pa.timestamp("ms"), pa.timestamp("us")),
        (86_400_000 * 2**33, pa.date64(), pa.date32()),
        (-86_400_000 * (2**31 + 1), pa.date64(), pa.date32()),
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(value: int, given: Any, kept: Any) -> None:
    for wrap, there in (
        (lambda kind: kind, value),
        (lambda kind: pa.list_(kind), [value]),
        (lambda kind: pa.struct([("f", kind)]), {"f": value}),
        (lambda kind: pa.map_(pa.int8(), kind), [(1, value)]),
    ):
        column = pa.array([there, None], wrap(given))
        with pytest.raises(RiverError, match="column 'a' cannot be kept") as caught:
            fitted(pa.record_batch([column], names=["a"]), pa.schema([("a", wrap(kept))]))
        assert caught.value.code == "BAD_ARROW"
    near = pa.array([86_400_000], pa.int64()).cast(given)
    for column, there in (
        (near, kept),
        (pa.ListArray.from_arrays([0, 1], near), pa.list_(kept)),
        (pa.StructArray.from_arrays([near], ["f"]), pa.struct([("f", kept)])),
        (pa.MapArray.from_arrays([0, 1], pa.array(["k"]), near), pa.map_(pa.string(), kept)),
    ):
        batch = fitted(pa.record_batch([column], names=["a"]), pa.schema([("a", there)]))
        assert batch.column(0).cast(column.type).equals(column)


def test_rows_that_lack_many_columns_come_in_pieces() -> None:
    """A batch of 2 MiB would take 8 GiB of nulls at once."""
    given = pa.record_batch([pa.array([True, False] * (1 << 20))], names=["a"])
    more = pa.schema([(f"c{number}", pa.string()) for number in range(500)])
    whole = merged(pa.schema([*given.schema, *more]), given.schema, "dataset d")
    rows = most = 0
    for piece in aligned(given, whole):
        assert piece.schema.equals(whole)
        rows, most = rows + piece.num_rows, max(most, piece.nbytes)
    assert rows == given.num_rows
    assert 0 < most <= 2 * ADDED_BYTES
    [one] = aligned(given.slice(0, 1), whole)
    assert one.num_rows == 1
