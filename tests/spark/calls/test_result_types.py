"""Types of results, by annotations and by JSON schemas. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Literal, Optional, TypedDict, Union

import pytest

from wsmux.rpc import Err
from wsmux.spark.calls.result_types import annotated_type, schema_type

from ...helpers.tables import each_case

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


class Place(TypedDict):
    city: str
    size: int | None


class Loose(TypedDict):
    anything: Any


def returns(hint: Any) -> Callable[..., Any]:
    def function(ctx: Unknown, row: Any) -> Any:
        """Take what no one knows at run time."""

    function.__annotations__["return"] = hint
    return function


@each_case
@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (int, "bigint"),
        ("int", "bigint"),
        (bool, "boolean"),
        (float, "double"),
        (str, "string"),
        (bytes, "binary"),
        (datetime, "timestamp"),
        (int | None, "bigint"),
        (Optional[int], "bigint"),  # noqa: UP045 - as others write it
        (Union[int, Err], "bigint"),  # noqa: UP007
        (Literal["a", "b", None], "string"),
        (list[int], "array<bigint>"),
        (Sequence[str], "array<string>"),
        (dict[str, float], "map<string,double>"),
        (Mapping[str, list[int]], "map<string,array<bigint>>"),
        (Place, "struct<city:string,size:bigint>"),
        ("list[Place]", "array<struct<city:string,size:bigint>>"),
        (None, None),
        (Any, None),
        (object, None),
        (date, None),
        (int | str, None),
        (Literal["a", 1], None),
        (list, None),
        (list[Any], None),
        (dict[int, int], None),
        (tuple[int, int], None),
        (Loose, None),
        ("Unknown", None),
        ("not a type", None),
    ],
)
def test_an_annotation_tells_the_type(hint: Any, expected: str | None) -> None:
    found = annotated_type(returns(hint))
    assert (found and str(found)) == expected


def test_what_has_no_annotation_tells_no_type() -> None:
    assert annotated_type(lambda ctx, row: row) is None
    assert annotated_type(len) is None


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (list[int], "bigint"),
        ("list[int | Err]", "bigint"),
        (Sequence[str | None], "string"),
        (list, None),
        (int, None),
        (tuple[int, ...], None),
    ],
)
def test_a_function_of_many_rows_tells_the_type_of_one(hint: Any, expected: str | None) -> None:
    found = annotated_type(returns(hint), whole=True)
    assert (found and str(found)) == expected


@each_case
@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer"}, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": "string", "minLength": 1}, "string"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "Uint8Array"}, "binary"),
        ({"type": "Date"}, "timestamp"),
        ({"type": ["integer", "null"]}, "bigint"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "bigint"),
        ({"oneOf": [{"const": "a", "type": "string"}, {"type": "string"}]}, "string"),
        ({"type": "array", "items": {"type": "integer"}}, "array<bigint>"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "map<string,double>"),
        (
            {"type": "object", "properties": {"a": {"type": "integer"}, "b c": {"type": "string"}}},
            "struct<a:bigint,`b c`:string>",
        ),
        (
            {"type": "object", "properties": {"straße": {"type": "integer"}}},
            "struct<`straße`:bigint>",
        ),
        (True, None),
        (False, None),
        ({}, None),
        ({"type": "null"}, None),
        ({"type": "bigint"}, None),
        ({"type": ["integer", "string"]}, None),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, None),
        ({"anyOf": [{"type": "null"}]}, None),
        ({"type": "array"}, None),
        ({"type": "array", "items": [{"type": "integer"}]}, None),
        ({"type": "object"}, None),
        ({"type": "object", "additionalProperties": True}, None),
        ({"type": "object", "properties": {"a": {}}}, None),
    ],
)
def test_a_schema_tells_the_type(schema: Any, expected: str | None) -> None:
    found = schema_type(schema)
    assert (found and str(found)) == expected
