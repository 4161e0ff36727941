"""Which schemas are stored, what fits them, and that nothing of a type is lost."""

from __future__ import annotations

from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.store.schemas import (
    bound_columns,
    conform,
    decoded_size,
    relaxed,
    restamp,
    schema_bytes,
    schema_of,
    stored_schema,
    takes,
)

from ...helpers.spark.arrow_data import COLUMNS, SCHEMA, null_struct, pa, wide

pytestmark = pytest.mark.spark


def refused(code: str, function: Any, *arguments: Any) -> str:
    with pytest.raises(RiverError) as caught:
        function(*arguments)
    assert caught.value.code == code
    return caught.value.message


def test_a_schema_travels() -> None:
    assert schema_of(schema_bytes(wide().schema)).equals(wide().schema, check_metadata=True)


@pytest.mark.parametrize("data", [b"", b"garbage", b"\xff" * 64, schema_bytes(SCHEMA)[:40]])
def test_garbage_is_no_schema(data: bytes) -> None:
    refused("BAD_REQUEST", schema_of, data)


def test_a_schema_is_stored_with_its_fields_metadata_only() -> None:
    given = wide().schema.with_metadata({"pandas": "{}"})
    stored = stored_schema(given)
    assert stored.equals(wide().schema, check_metadata=True)


def test_dictionaries_are_stored_decoded() -> None:
    text = pa.dictionary(pa.int8(), pa.string())
    given = pa.schema([("a", text), ("b", pa.struct([("c", pa.list_(text))]))])
    assert stored_schema(given) == pa.schema(
        [("a", pa.string()), ("b", pa.struct([("c", pa.list_(pa.string()))]))]
    )


BAD = {
    "no column": pa.schema([]),
    "twice": pa.schema([("a", pa.int8()), ("a", pa.int16())]),
    "union": pa.schema([("a", pa.dense_union([pa.field("x", pa.int8())]))]),
    "run end": pa.schema([("a", pa.run_end_encoded(pa.int32(), pa.int8()))]),
    "view": pa.schema([("a", pa.list_(pa.string_view()))]),
    "list view": pa.schema([("a", pa.list_view(pa.int8()))]),
    "NUL": pa.schema([("a", pa.struct([("b\0c", pa.int8())]))]),
    "NUL zone": pa.schema([("a", pa.timestamp("s", "Europe\0Berlin"))]),
    "list of none": pa.schema([("a", pa.list_(pa.int8(), 0))]),
    "interval": pa.schema([("a", pa.month_day_nano_interval())]),
    "empty struct": pa.schema([("a", pa.list_(pa.struct([])))]),
    "nulls within": pa.schema([("a", pa.list_(pa.null()))]),
    "dictionary of lists": pa.schema([("a", pa.dictionary(pa.int8(), pa.list_(pa.int8())))]),
}


@pytest.mark.parametrize("schema", BAD.values(), ids=BAD)
def test_what_cannot_be_stored_is_refused(schema: Any) -> None:
    refused("WRONG_SCHEMA", stored_schema, schema)


# What fits


def field(kind: Any, nullable: bool = True) -> Any:
    return pa.schema([pa.field("id", pa.int64(), False), pa.field("x", kind, nullable)])


def test_the_same_schema_fits_whatever_its_metadata() -> None:
    takes(SCHEMA, SCHEMA.with_metadata({"a": "b"}), "it")


def test_what_is_never_null_fits_what_may_be() -> None:
    strict, loose = pa.list_(pa.field("item", pa.int8(), False)), pa.list_(pa.int8())
    takes(field(pa.int8()), field(pa.int8(), False), "it")
    takes(field(loose), field(strict), "it")
    assert "may be" in refused(
        "WRONG_SCHEMA", takes, field(pa.int8(), False), field(pa.int8()), "it"
    )
    assert "may be" in refused("WRONG_SCHEMA", takes, field(strict), field(loose), "it")


def test_names_of_list_items_do_not_matter() -> None:
    takes(field(pa.list_(pa.field("element", pa.int8()))), field(pa.list_(pa.int8())), "it")


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (pa.schema([("id", pa.int64())]), "column 'x' is missing here"),
        (field(pa.int8()).append(pa.field("y", pa.int8())), "column 'y' is not there"),
        (field(pa.int16()), "column 'x' is int8, here int16"),
        (pa.schema(list(field(pa.int8()))[::-1]), "the order is id, x, here x, id"),
    ],
)
def test_each_difference_is_told(theirs: Any, words: str) -> None:
    assert words in refused("WRONG_SCHEMA", takes, field(pa.int8()), theirs, "dataset d")


def test_many_differences_are_counted() -> None:
    ours = pa.schema([(f"c{each}", pa.int8()) for each in range(50)])
    assert "and 47 more" in refused("WRONG_SCHEMA", takes, ours, field(pa.int8()), "it")


# Batches


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_comes_back_from_its_relaxed_form(name: str) -> None:
    schema = pa.schema([pa.field(name, COLUMNS[name].type, metadata={"k": "v"})])
    batch = pa.RecordBatch.from_arrays([COLUMNS[name]], schema=schema)
    loose = restamp(batch, relaxed(schema))
    loose.validate(full=True)
    again = restamp(loose, schema)
    again.validate(full=True)
    assert again.schema.equals(schema, check_metadata=True)
    assert str(again.to_pylist()) == str(batch.to_pylist())  # NaN is not NaN


def test_a_batch_with_dictionaries_conforms() -> None:
    text = pa.array(["a", None, "a"]).dictionary_encode()
    nested = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), text)
    batch = pa.record_batch([text, nested], names=["a", "b"])
    stored = stored_schema(batch.schema)
    made = conform(batch, stored)
    assert made.schema == stored
    assert made.to_pylist() == batch.to_pylist()


def one_column(kind: Any, column: Any, nullable: bool) -> tuple[Any, Any]:
    plain = pa.record_batch([column], names=["x"])
    return plain, pa.schema([pa.field("x", kind, nullable)])


STRICT = pa.struct([pa.field("n", pa.int32(), False)])
NULL_WITHIN = pa.array([{"n": None}], pa.struct([("n", pa.int32())]))
BROKEN = {
    "column": one_column(pa.int32(), pa.array([1, None], pa.int32()), False),
    "struct": one_column(STRICT, NULL_WITHIN, True),
    "list": one_column(
        pa.list_(pa.field("item", pa.int32(), False)),
        pa.array([[None]], pa.list_(pa.int32())),
        True,
    ),
    "map": one_column(
        pa.map_(pa.string(), pa.field("value", pa.int32(), False)),
        pa.array([None, [("k", None)]], pa.map_(pa.string(), pa.int32())),
        True,
    ),
    "struct in a list": one_column(
        pa.list_(STRICT), pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), NULL_WITHIN), True
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_null_where_the_schema_says_never_is_refused(case: str) -> None:
    batch, schema = BROKEN[case]
    assert "'x'" in refused("BAD_ARROW", conform, batch, schema)


def test_what_lies_within_a_null_does_not_count() -> None:
    batch = pa.record_batch([null_struct(STRICT)], schema=pa.schema([("x", STRICT)]))
    assert conform(batch, batch.schema).to_pylist() == [{"x": {"n": 1}}, {"x": None}]
    strict_map = pa.map_(pa.string(), pa.field("value", pa.int32(), False))
    sliced = pa.array([[("a", None)], [("b", 1)], None], pa.map_(pa.string(), pa.int32()))[1:]
    assert conform(*one_column(strict_map, sliced, True)).num_rows == 2


def test_the_decoded_size_counts_what_is_repeated() -> None:
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int8()), ["x" * 1000])
    assert decoded_size(text) >= 1_000_000
    within = pa.StructArray.from_arrays([text], names=["a"])
    listed = pa.ListArray.from_arrays(pa.array([0, 1000], pa.int32()), within)
    assert decoded_size(listed) >= 1_000_000
    assert decoded_size(pa.array(range(1000), pa.int64())) == 8000
    assert decoded_size(pa.array([1, 2] * 500, pa.int64()).dictionary_encode()) >= 8000


def test_columns_are_bound_in_the_order_asked_for() -> None:
    assert bound_columns(["word", "id"], SCHEMA).names == ["word", "id"]
    assert bound_columns(None, SCHEMA) == SCHEMA
    assert "there are id, word" in refused("NO_COLUMN", bound_columns, ["x"], SCHEMA)
    refused("BAD_REQUEST", bound_columns, [], SCHEMA)
    refused("BAD_REQUEST", bound_columns, ["id", "id"], SCHEMA)
