"""What is accepted without the library: no more than the library accepts, and what is usual."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsmux.rpc.schema import validator
from wsmux.rpc.schema.dialect import TOO_DEEP, standard
from wsmux.rpc.schema.quick_check import MAX_ITEMS, QuickCheck, quick_check
from wsmux.rpc.schema.validator import Checker
from wsmux.rpc.wire.values import BigInt

from ...helpers.examples import examples
from ...helpers.tables import each_case


class Text(str):
    """A string of another class."""


def made(schema: dict[str, Any]) -> QuickCheck:
    quick = quick_check(standard(schema))
    assert quick is not None
    return quick


def library_alone(schema: dict[str, Any]) -> Checker:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validator, "quick_check", lambda schema: None)
        return Checker(schema)


POINT = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "name": {"type": "string", "description": "a note"}},
    "required": ["x"],
}
CLOSED = {**POINT, "additionalProperties": False}
SHAPE = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "line", "type": "string"}, "to": POINT},
            "required": ["kind", "to"],
        },
        {
            "type": "object",
            "properties": {
                "kind": {"const": "path"},
                "points": {"type": "array", "items": CLOSED},
                "color": {"enum": ["red", "blue"]},
            },
            "required": ["kind"],
        },
    ]
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (POINT, {"x": 1}),
        (POINT, {"x": 0.5, "name": "a" * 1000, "more": None}),
        (CLOSED, {"x": -(2**63)}),
        (SHAPE, {"kind": "line", "to": {"x": 1}}),
        (SHAPE, {"kind": "path", "points": [{"x": 1}] * MAX_ITEMS, "color": "red"}),
        ({"type": "Uint8Array"}, b"data"),
        ({"type": "undefined"}, None),
        ({"$defs": {"T": POINT}, "type": "integer"}, 2**63 - 1),
    ],
)
def test_usual_values_are_accepted(schema: dict[str, Any], value: Any) -> None:
    assert made(schema)(value)


@each_case
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (POINT, {"x": "1"}),
        (POINT, {}),
        (POINT, {"x": True}),
        (POINT, {"x": math.nan}),
        (POINT, {"x": -math.inf}),
        (POINT, {"x": BigInt(1)}),
        (POINT, {"x": 2**63}),
        (POINT, {"x": 1, "more": []}),
        (POINT, {"x": 1, 2: 3}),
        (CLOSED, {"x": 1, "more": 2}),
        ({"type": "string"}, Text("a")),
        ({"type": "integer"}, 1.0),
        ({"type": "array"}, (1, 2)),
        ({"type": "array"}, [1] * (MAX_ITEMS + 1)),
        ({"type": "array"}, [[1]]),
        (SHAPE, {"kind": "circle"}),
        (SHAPE, {"kind": "path", "color": "green"}),
    ],
)
def test_whatever_is_wrong_or_unusual_is_left_to_the_library(
    schema: dict[str, Any], value: Any
) -> None:
    assert not made(schema)(value)


@each_case
@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["string", "null"]},
        {"type": "number", "minimum": 0},
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}},
        {"type": "object", "patternProperties": {"a": {"type": "string"}}},
        {"type": "array", "items": {"type": "array"}},
        {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "array"}}}},
        {"anyOf": [{"type": "string"}, {"type": "Date"}]},
        {"const": 1},
        {"const": "a", "type": "number"},
        {"enum": ["a", None]},
        {"$defs": {"T": {"type": "string"}}, "$ref": "T"},
    ],
)
def test_a_schema_that_says_more_is_left_to_the_library(schema: dict[str, Any]) -> None:
    assert quick_check(standard(schema)) is None


def test_where_the_stack_ends_the_library_is_asked() -> None:
    schema: dict[str, Any] = {"type": "null"}
    value = None
    for _ in range(50):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        value = {"a": value}
    checker = Checker(schema)

    def message_at(depth: int) -> str:
        """Return what the check says when so many calls are inside each other."""
        if depth:
            return message_at(depth - 1)
        found = checker.check(value)
        return "" if found is None else str(found["firstValidationErrors"][0]["message"])

    used = len(inspect.stack())
    left = sys.getrecursionlimit() - used
    assert {message_at(depth) for depth in range(0, left - 30, 5)} == {"", TOO_DEEP}


NAMES = st.sampled_from(["a", "b", "c"])
SCALARS: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from([2**63, -(2**63), 10**100, BigInt(1), 0.5, 1.0, math.nan, math.inf])
    | st.sampled_from(["", "a", "b", Text("a"), b"", bytearray(b"a"), memoryview(b"b")])
    | st.sampled_from([datetime(2026, 1, 1, tzinfo=UTC), object()])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(NAMES | st.just(1) | st.just(Text("a")), inner, max_size=3)
    ),
    max_leaves=8,
)
KINDS = [*("string", "number", "integer", "boolean", "null", "undefined", "void", "Uint8Array")]
LEAVES: st.SearchStrategy[Any] = (
    st.sampled_from([True, *({"type": kind} for kind in KINDS)])
    | st.sampled_from(["a", "b"]).map(lambda text: {"const": text})
    | st.sampled_from([{"enum": ["a", ""]}, {"enum": ["b"], "type": "string"}])
)


def plain(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
        },
    )
    arrays = st.fixed_dictionaries({"type": st.just("array")}, optional={"items": inner})
    either: Callable[[Any], Any] = lambda branches: {"anyOf": branches}  # noqa: E731
    return objects | arrays | st.lists(inner, min_size=1, max_size=3).map(either)


@settings(deadline=None, max_examples=examples(300))
@given(plain(st.recursive(LEAVES, plain, max_leaves=6)), st.lists(VALUES, min_size=1, max_size=5))
def test_nothing_is_accepted_that_the_library_refuses(schema: Any, values: list[Any]) -> None:
    quick, checker, library = quick_check(standard(schema)), Checker(schema), library_alone(schema)
    for value in values:
        found = library.check(value)
        assert checker.check(value) == found
        if quick is not None and quick(value):
            assert found is None
