"""Schemas of JSON and of River, checked against values."""

from __future__ import annotations

import copy
import math
import pickle
import time
from datetime import UTC, datetime
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsmux.rpc import schema as schema_module
from wsmux.rpc.keywords import MAX_ERRORS, MAX_NAME
from wsmux.rpc.schema import FIRST_ERRORS, TOO_DEEP, TOO_MANY, Schema

BIG = 2**61 - 1  # whole numbers apart by so much have one hash
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
TREE = {"$defs": {"T": {"properties": {"c": {"items": {"$ref": "#/$defs/T"}}}}}}


def messages(schema: Any, value: Any) -> list[tuple[str, str]]:
    extras = Schema(schema).check(value)
    if extras is None:
        return []
    return [(error["path"], error["message"]) for error in extras["firstValidationErrors"]]


def fits(schema: Any, value: Any) -> bool:
    return Schema(schema).check(value) is None


# -- the answer ----------------------------------------------------------------------------------


def test_a_missing_field_is_told_as_river_does() -> None:
    # invalid-request, "bad request message"
    schema = {
        "type": "object",
        "properties": {"mustSendThings": {"type": "string"}},
        "required": ["mustSendThings"],
    }
    assert Schema(schema).check({}) == {
        "totalErrors": 1,
        "firstValidationErrors": [
            {
                "path": "/mustSendThings",
                "message": "must have required properties mustSendThings",
            }
        ],
    }


def test_at_most_five_errors_are_told_of_those_counted() -> None:
    extras = Schema({"items": {"type": "string"}}).check([1] * 7)
    assert extras is not None
    assert extras["totalErrors"] == 7
    assert [error["path"] for error in extras["firstValidationErrors"]] == [
        f"/{index}" for index in range(FIRST_ERRORS)
    ]


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"type": "string"}},
        {"items": {"type": "string", "minimum": 0}},
        {"anyOf": [{"items": {"type": "string"}}, {"items": {"type": "null"}}]},
        {"oneOf": [{"items": {"type": "string"}}, {"items": {"type": "null"}}]},
        {"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
    ],
)
def test_counting_stops_early(schema: Any) -> None:
    extras = Schema(schema).check([1] * 300_000)
    assert extras is not None
    assert extras["totalErrors"] == MAX_ERRORS


def test_counting_stops_early_in_objects() -> None:
    value = {str(number): number for number in range(1000)}
    required = {"required": [f"x{number}" for number in range(1000)]}
    for schema in (
        {"additionalProperties": False},
        {"additionalProperties": {"type": "string"}},
        {"propertyNames": {"maxLength": 0}},
        {"properties": dict.fromkeys(value, {"type": "string"})},
        required,
    ):
        extras = Schema(schema).check(value)
        assert extras is not None
        assert extras["totalErrors"] == MAX_ERRORS


def test_paths_are_json_pointers() -> None:
    schema = {"properties": {"a/b": {"items": {"properties": {"c~": {"type": "null"}}}}}}
    assert messages(schema, {"a/b": [{}, {"c~": 1}]}) == [("/a~1b/1/c~0", "must be null")]


def test_a_long_name_of_the_peer_is_cut() -> None:
    [(path, _)] = messages({"additionalProperties": False}, {"x" * 5000: 1})
    assert path == "/" + "x" * MAX_NAME + "…"


def test_a_name_that_is_no_string_is_additional() -> None:
    schema = {"patternProperties": {".": True}, "additionalProperties": False}
    assert messages(schema, {1: 1}) == [("/(int)", "must not have additional properties")]
    assert not fits({"propertyNames": {"type": "string"}}, {1: 1})


@pytest.mark.parametrize("schema", [None, True, {}, {"description": "anything"}, {"items": True}])
def test_a_schema_that_accepts_anything_is_trivial(schema: Any) -> None:
    compiled = Schema(schema)
    assert compiled.trivial
    assert compiled.check(object()) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {}}},
        {"additionalProperties": True},
        {"patternProperties": {"a": True}},
        {"propertyNames": True},
        {"prefixItems": [True, {}]},
        {"allOf": [True]},
        {"anyOf": [{"type": "null"}, True]},
        {"dependentSchemas": {"a": True}},
        {"uniqueItems": False},
    ],
)
def test_keywords_that_say_nothing_cost_nothing(schema: Any) -> None:
    assert fits(schema, {"a": 1})
    assert fits(schema, [1])


def test_a_schema_that_accepts_nothing() -> None:
    assert messages(False, 1) == [("", "schema is false")]
    assert not Schema(False).trivial


def test_the_schema_is_a_copy() -> None:
    original: dict[str, Any] = {"type": "string", "enum": ["a"]}
    schema = Schema(original)
    original["enum"].append("b")
    given = schema.json
    assert isinstance(given, dict)
    given["enum"].append("c")
    assert schema.json == {"type": "string", "enum": ["a"]}
    assert repr(schema) == "Schema({'type': 'string', 'enum': ['a']})"
    assert pickle.loads(pickle.dumps(schema)).json == schema.json
    assert Schema().json == {}


# -- keywords ------------------------------------------------------------------------------------

ONE_MESSAGE: list[tuple[Any, Any, Any, str]] = [
    ({"type": "string"}, "a", 1, "must be string"),
    ({"type": ["string", "null"]}, None, 1, "must be either string or null"),
    ({"type": "number"}, 1.5, True, "must be number"),
    ({"type": "number"}, 1, math.inf, "must be number"),
    ({"type": "integer"}, 2.0, 2.5, "must be integer"),
    ({"type": "bigint"}, 2**70, 2.0, "must be bigint"),
    ({"type": "boolean"}, True, 1, "must be boolean"),
    ({"type": "null"}, None, 0, "must be null"),
    ({"type": "undefined"}, None, 0, "must be undefined"),
    ({"type": "void"}, None, 0, "must be void"),
    ({"type": "array"}, (1,), "a", "must be array"),
    ({"type": "object"}, {}, [], "must be object"),
    ({"type": "Uint8Array"}, b"", "", "must be Uint8Array"),
    ({"type": "Date"}, MOMENT, "2026-01-01", "must be Date"),
    ({"maxByteLength": 2}, b"ab", memoryview(b"abc"), "Uint8Array byteLength must be <= 2"),
    ({"minByteLength": 2}, bytearray(2), b"a", "Uint8Array byteLength must be >= 2"),
    ({"maximumTimestamp": 0}, datetime(1970, 1, 1), MOMENT, "Date timestamp must be <= 0"),
    ({"minimumTimestamp": 1}, MOMENT, datetime(1970, 1, 1), "Date timestamp must be >= 1"),
    ({"const": "a"}, "a", "b", "must be equal to constant"),
    ({"const": 1}, 1.0, True, "must be equal to constant"),
    ({"const": False}, False, 0, "must be equal to constant"),
    ({"const": None}, None, False, "must be equal to constant"),
    ({"const": {"a": [1]}}, {"a": [1.0]}, {"a": [True]}, "must be equal to constant"),
    ({"const": 10**30}, 10**30, 10**30 + 1, "must be equal to constant"),
    ({"const": 1.5}, 1.5, MOMENT, "must be equal to constant"),
    ({"enum": ["a", "b"]}, "b", [], "must be equal to one of the allowed values"),
    ({"enum": ["a", 1]}, 1, object(), "must be equal to one of the allowed values"),
    ({"enum": ["a", 1]}, "a", b"a", "must be equal to one of the allowed values"),
    ({"maxLength": 1}, "a", "ab", "must not have more than 1 characters"),
    ({"minLength": 1}, "a", "", "must not have fewer than 1 characters"),
    ({"maxItems": 1}, [1], [1, 2], "must not have more than 1 items"),
    ({"minItems": 1}, [1], [], "must not have fewer than 1 items"),
    ({"maxProperties": 0}, {}, {"a": 1}, "must not have more than 0 properties"),
    ({"minProperties": 1.0}, {"a": 1}, {}, "must not have fewer than 1 properties"),
    ({"maximum": 1}, 1, 2, "must be <= 1"),
    ({"minimum": 1}, 1, 0, "must be >= 1"),
    ({"exclusiveMaximum": 1}, 0, 1, "must be < 1"),
    ({"exclusiveMinimum": 1}, 2, 1.0, "must be > 1"),
    ({"multipleOf": 0.1}, 1.1, 1.15, "must be multiple of 0.1"),
    ({"multipleOf": 3}, 9, 10, "must be multiple of 3"),
    ({"multipleOf": 0.5}, 10**400, 0.3, "must be multiple of 0.5"),
    ({"pattern": "^a$"}, "a", "a\n", 'must match pattern "^a$"'),
    ({"uniqueItems": True}, [1, True, "1"], [1, 1.0], "must not have duplicate items"),
    ({"contains": {"type": "null"}}, [1, None], [1], "must contain at least 1 valid item"),
    ({"contains": True, "minContains": 0}, [], None, ""),
    (
        {"contains": {"type": "null"}, "maxContains": 1},
        [None],
        [None, None],
        "must contain 1 to 1 valid items",
    ),
    ({"not": {"type": "null"}}, 1, None, "must not be valid"),
    ({"not": {}}, ..., 1, "must not be valid"),
    (
        {"dependentRequired": {"a": ["b"]}},
        {"a": 1, "b": 1},
        {"a": 1},
        "must have properties b when property a is present",
    ),
]


@pytest.mark.parametrize(("schema", "good", "bad", "message"), ONE_MESSAGE)
def test_a_keyword_accepts_and_refuses(schema: Any, good: Any, bad: Any, message: str) -> None:
    assert good is ... or fits(schema, good)
    assert messages(schema, bad) == ([("", message)] if message else [])


@pytest.mark.parametrize(
    "schema",
    [case[0] for case in ONE_MESSAGE if not case[0].keys() & {"type", "const", "enum", "not"}],
)
def test_a_bound_says_nothing_about_other_kinds(schema: Any) -> None:
    assert fits(schema, None)


def test_properties() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "any": {}},
        "required": ["a", "b"],
    }
    assert fits(schema, {"a": "", "b": 1, "c": 1})
    assert fits({"properties": {"a": False}}, 1)
    assert messages(schema, {"a": 1}) == [
        ("/b", "must have required properties b"),
        ("/a", "must be string"),
    ]
    assert messages(schema, []) == [("", "must be object")]
    assert messages(schema, {}) == [
        ("/a", "must have required properties a, b"),
        ("/b", "must have required properties a, b"),
    ]


def test_other_properties() -> None:
    schema = {
        "properties": {"a": {}},
        "patternProperties": {"^n": {"type": "number"}, "^x": True, "1$": {"minimum": 0}},
        "additionalProperties": {"type": "null"},
    }
    assert fits(schema, {"a": 1, "n1": 1, "x": "", "other": None})
    assert fits(schema, [])
    assert messages(schema, {"n1": -1, "b": 1}) == [
        ("/n1", "must be >= 0"),
        ("/b", "must be null"),
    ]
    closed = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
    assert messages(closed, {"a": 1, "b": 1}) == [("/b", "must not have additional properties")]
    assert messages(closed, 1) == [("", "must be object")]


def test_property_names() -> None:
    schema = {"type": "object", "propertyNames": {"maxLength": 1}}
    assert fits(schema, {"a": 1})
    assert messages(schema, {"ab": 1}) == [("/ab", "property name is invalid")]
    assert messages(schema, 1) == [("", "must be object")]


def test_dependent_schemas() -> None:
    schema = {"dependentSchemas": {"a": {"required": ["b"]}, "z": False}}
    assert fits(schema, {"b": 1})
    assert fits(schema, [])
    assert messages(schema, {"a": 1}) == [("/b", "must have required properties b")]


def test_items() -> None:
    schema = {"type": "array", "items": {"type": "string"}}
    assert fits(schema, ["a", "b"])
    assert messages(schema, ["a", 1]) == [("/1", "must be string")]
    assert messages(schema, "ab") == [("", "must be array")]


@pytest.mark.parametrize(
    "schema",
    [
        {"prefixItems": [{"type": "string"}, {}], "items": {"type": "null"}},
        {"items": [{"type": "string"}, True], "additionalItems": {"type": "null"}},
    ],
)
def test_tuples_of_both_drafts(schema: Any) -> None:
    assert fits(schema, ["a", 1, None])
    assert fits(schema, ["a"])
    assert fits(schema, "a")
    assert messages(schema, [1, 1, 1]) == [("/0", "must be string"), ("/2", "must be null")]


def test_prefix_items_alone() -> None:
    assert fits({"prefixItems": [{"type": "null"}]}, [None, 1])
    assert not fits({"prefixItems": [{"type": "null"}]}, [1])
    assert fits({"prefixItems": [True], "items": False}, [1])


def test_any_of_tells_what_each_branch_misses() -> None:
    schema = {"anyOf": [{"type": "string"}, {"required": ["a"]}]}
    assert fits(schema, "a")
    assert fits(schema, {"a": 1})
    assert messages(schema, {}) == [
        ("", "must be string"),
        ("/a", "must have required properties a"),
        ("", "must match a schema in anyOf"),
    ]


def test_an_any_of_that_holds_is_not_explained() -> None:
    schema = {"anyOf": [{"type": "object"}, {"type": "string"}], "required": ["a"]}
    assert messages(schema, {}) == [("/a", "must have required properties a")]


def test_one_of() -> None:
    schema = {"oneOf": [{"type": "string"}, {"maxLength": 1}], "minLength": 1}
    assert fits(schema, "ab")
    assert messages(schema, "a") == [("", "must match exactly one schema in oneOf")]
    assert messages(schema, "") == [
        ("", "must not have fewer than 1 characters"),
        ("", "must match exactly one schema in oneOf"),
    ]
    assert messages({"oneOf": [{"type": "string"}, False]}, 1) == [
        ("", "must be string"),
        ("", "schema is false"),
        ("", "must match exactly one schema in oneOf"),
    ]
    assert fits({"oneOf": [True, False]}, 1)
    assert messages({"oneOf": [True, False], "type": "null"}, 1) == [("", "must be null")]


def test_all_of() -> None:
    schema = {"allOf": [{"type": "string"}, {"maxLength": 1}, {"minLength": 1}, True]}
    assert fits(schema, "a")
    assert messages(schema, "ab") == [("", "must not have more than 1 characters")]


def test_if() -> None:
    schema = {"if": {"type": "string"}, "then": {"maxLength": 1}, "else": {"type": "null"}}
    assert fits(schema, "a")
    assert fits(schema, None)
    assert messages(schema, "ab") == [
        ("", "must not have more than 1 characters"),
        ("", 'must match "then" schema'),
    ]
    assert messages(schema, 1) == [("", "must be null"), ("", 'must match "else" schema')]
    assert fits({"if": {"type": "string"}}, "a")
    assert fits({"if": True, "then": {"type": "null"}}, None)
    assert messages({"if": True, "type": "null"}, 1) == [("", "must be null")]


def test_a_not_that_holds_is_not_explained() -> None:
    assert messages({"not": {"type": "null"}, "type": "string"}, 1) == [("", "must be string")]


def test_contains_that_holds_is_not_explained() -> None:
    schema = {"contains": {"type": "null"}, "maxItems": 1}
    assert messages(schema, [None, 1]) == [("", "must not have more than 1 items")]
    assert fits(schema, "no array")


def test_unknown_keywords_and_formats_are_notes() -> None:
    assert fits({"format": "email", "title": 1, "$comment": [], "x-mine": {}}, "no address")


# -- references ----------------------------------------------------------------------------------

LIST = {"properties": {"next": {"$ref": "N"}, "n": {"type": "number"}}, "required": ["n"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"N": LIST}, "$ref": "N"},  # TypeBox's Cyclic
        {"$id": "N", **LIST},  # TypeBox's Recursive
        {"$id": "N", **LIST, "$defs": []},
        {"properties": {"next": {"$ref": "#"}, "n": {"type": "number"}}, "required": ["n"]},
        {"definitions": {"x": {**LIST, "$id": "N"}}, "$ref": "#/definitions/x"},
        {"$defs": {"b": [{**LIST, "$id": "N"}]}, "$ref": "#/$defs/b/0"},
        {"$defs": {"b": {**LIST, "$id": "N", "$anchor": "a"}}, "$ref": "#a"},
        {"$defs": {"b": {**LIST, "$id": "N"}}, "$ref": "N#"},
        {"$defs": {"a/b~ c": {**LIST, "$id": "N"}}, "$ref": "#/$defs/a~1b~0%20c"},
    ],
)
def test_a_schema_may_refer_to_itself(schema: Any) -> None:
    # e2e, "works with non-object schemas"
    assert fits(schema, {"n": 1, "next": {"n": 2, "next": {"n": 3}}})
    assert messages(schema, {"n": 1, "next": {"n": 2, "next": {}}}) == [
        ("/next/next/n", "must have required properties n")
    ]


def test_a_fragment_belongs_to_the_nearest_id() -> None:
    inner = {"$id": "inner", "$defs": {"x": {"type": "string"}}, "items": {"$ref": "#/$defs/x"}}
    schema = {"$defs": {"x": {"type": "null"}, "inner": inner}, "$ref": "inner"}
    assert fits(schema, ["a"])
    assert not fits(schema, [None])


def test_a_reference_to_what_accepts_anything_or_nothing() -> None:
    assert fits({"$defs": {"a": True}, "$ref": "#/$defs/a"}, 1)
    assert fits({"$defs": {"a": {}}, "items": {"$ref": "#/$defs/a"}}, [1])
    assert messages({"$defs": {"a": {}}, "$ref": "#/$defs/a", "type": "null"}, 1) == [
        ("", "must be null")
    ]
    assert messages({"$defs": {"a": False}, "$ref": "#/$defs/a"}, 1) == [("", "schema is false")]


@pytest.mark.parametrize(
    "reference",
    [
        "https://example.com/schema.json",
        "https://example.com/schema.json#/x",
        "other.json",
        "#/$defs/missing",
        "#/$defs/a/type",
        "#/$defs/a/type/b",
        "#/required/x",
        "#/required/5",
        "#anchor",
    ],
)
def test_a_reference_to_elsewhere_is_refused(reference: str) -> None:
    schema = {"$defs": {"a": {"type": "string"}}, "required": ["x"], "$ref": reference}
    with pytest.raises(ValueError, match="nothing is fetched"):
        Schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        {"$defs": {"a": {"$ref": "b"}, "b": {"allOf": [{"$ref": "a"}]}}, "$ref": "a"},
        {
            "$defs": {
                "a": {"items": {"$ref": "b"}, "not": {"$ref": "b"}},
                "b": {"if": {"$ref": "a"}},
            },
            "$ref": "a",
        },
    ],
)
def test_a_circle_that_never_goes_deeper_is_refused(schema: Any) -> None:
    with pytest.raises(ValueError, match="refers to itself without going deeper"):
        Schema(schema)


# -- definitions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("string", "must be a dict or a bool"),
        ({"const": b"bytes"}, "must be JSON"),
        ({"const": math.nan}, "must be JSON"),
        ({"type": "strng"}, "type of the schema at # names 'strng'"),
        ({"type": []}, "or an array of them"),
        ({"type": {}}, "or an array of them"),
        ({"properties": {"a": {"type": [1]}}}, "at #/properties/a names 1"),
        ({"items": 5}, "the schema at #/items must be an object or a bool"),
        ({"properties": []}, "must be an object of schemas"),
        ({"required": "a"}, "must be an array of strings"),
        ({"required": [1]}, "must be an array of strings"),
        ({"dependentRequired": 1}, "must be an object of arrays of strings"),
        ({"enum": "a"}, "enum of the schema at # must be an array"),
        ({"minimum": "1"}, "minimum of the schema at # must be a number"),
        ({"maximum": True}, "must be a number"),
        ({"minLength": -1}, "must be a whole number from 0 up"),
        ({"maxLength": 1.5}, "must be a whole number from 0 up"),
        ({"contains": {}, "minContains": -1}, "must be a whole number from 0 up"),
        ({"multipleOf": 0}, "must be above 0"),
        ({"pattern": 1}, "pattern of the schema at # must be a string"),
        ({"pattern": "("}, "has a pattern that Python cannot compile"),
        ({"pattern": r"\p{L}"}, "has a pattern that Python cannot compile"),
        ({"patternProperties": {"(": {}}}, "has a pattern that Python cannot compile"),
        ({"prefixItems": {}}, "must be an array of schemas"),
        ({"anyOf": []}, "must be an array of schemas, not empty"),
        ({"oneOf": {}}, "must be an array of schemas, not empty"),
        ({"$ref": 1}, r"\$ref of the schema at # must be a string"),
        ({"unevaluatedProperties": False}, "is not supported"),
        ({"items": {"$dynamicRef": "#a"}}, "at #/items is not supported"),
    ],
)
def test_a_wrong_definition_is_refused(schema: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Schema(schema)


def test_a_schema_of_any_depth_is_refused_in_a_sentence() -> None:
    for depth in (500, 100_000):
        schema: dict[str, Any] = {}
        for _ in range(depth):
            schema = {"items": schema, "type": "array"}
        with pytest.raises(ValueError, match="nested too deeply|must be JSON"):
            Schema(schema)


# -- patterns ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("a$", "ba", "a\n"),
        (r"a\$", "a$", "a"),
        ("[$]", "$", "a"),
        (r"[\]$]$", "$", "a"),
        (r"^\d$", "1", "١"),
        (r"^\w$", "a", "é"),
        ("(?<year>[0-9])(?<=1)$", "1", "2"),
        ("^(?:é|\\u00e8)$", "è", "e"),
    ],
)
def test_patterns_mean_what_they_do_in_javascript(pattern: str, good: str, bad: str) -> None:
    assert fits({"pattern": pattern}, good)
    assert not fits({"pattern": pattern}, bad)


def test_a_string_that_is_too_long_is_not_searched() -> None:
    # The pattern alone would take longer than anybody lives.
    schema = {"pattern": "^(a+)+$", "maxLength": 10}
    assert messages(schema, "a" * 50 + "b") == [("", "must not have more than 10 characters")]
    assert messages(schema, "aab") == [("", 'must match pattern "^(a+)+$"')]


# -- values that attack --------------------------------------------------------------------------


def chain(depth: int, inside: Any = None) -> Any:
    value = inside
    for _ in range(depth):
        value = {"c": [value]}
    return value


@pytest.mark.parametrize("depth", [2000, 100_000])
def test_a_value_too_deep_is_an_ordinary_error(depth: int) -> None:
    deep = {"totalErrors": 1, "firstValidationErrors": [{"path": "", "message": TOO_DEEP}]}
    assert Schema({**TREE, "$ref": "#/$defs/T"}).check(chain(depth)) == deep
    assert Schema({"const": 1, "type": "object"}).check(chain(depth)) == deep
    assert Schema({"uniqueItems": True}).check([chain(depth), 1]) == deep


def test_a_value_as_deep_as_codecs_allow_is_checked() -> None:
    alternatives = [
        {"properties": {"c": {"items": {"anyOf": [{"type": "null"}, {"$ref": "T"}]}}}},
        {"type": "null"},
    ]
    schema = {"$defs": {"T": {"anyOf": alternatives}}, "$ref": "T"}
    assert fits(schema, chain(50))


def test_a_value_that_holds_itself_is_an_ordinary_error() -> None:
    value: dict[str, Any] = {}
    value["c"] = [value]
    assert not fits({**TREE, "$ref": "#/$defs/T"}, value)


@pytest.mark.parametrize("last", [1, "wrong"])
def test_alternatives_that_refer_to_themselves_take_linear_time(last: Any) -> None:
    branches = [
        {"properties": {"left": {"$ref": "T"}, "op": {"const": op}}, "type": "object"}
        for op in "+-*/"
    ]
    schema = Schema({"$defs": {"T": {"anyOf": [*branches, {"type": "number"}]}}, "$ref": "T"})
    value = last
    for _ in range(60):
        value = {"left": value, "op": "/"}
    start = time.monotonic()
    assert (schema.check(value) is None) == (last == 1)
    assert time.monotonic() - start < 5


def test_siblings_of_a_reference_take_linear_time() -> None:
    node = {"$ref": "#/$defs/B", "properties": {"next": {"$ref": "#/$defs/N"}}}
    base = {"properties": {"next": {"$ref": "#/$defs/N"}}}
    schema = Schema({"$defs": {"N": node, "B": base}, "$ref": "#/$defs/N"})
    value: dict[str, Any] = {}
    for _ in range(60):
        value = {"next": value}
    assert schema.check(value) is None


def test_more_results_than_can_be_kept_are_an_ordinary_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schema_module, "MAX_KEPT", 10)
    branches = [{"type": "null"}, {"type": "array", "items": {"$ref": "T"}}]
    schema = Schema({"$defs": {"T": {"anyOf": branches}}, "$ref": "T"})
    assert schema.check([[]] * 100) is None  # one array, a hundred times
    assert schema.check([[] for _ in range(100)]) == {
        "totalErrors": 1,
        "firstValidationErrors": [{"path": "", "message": TOO_MANY}],
    }


def test_numbers_of_one_hash_do_not_slow_down_unique_items() -> None:
    numbers = [BIG * number for number in range(100_000)]
    start = time.monotonic()
    assert fits({"uniqueItems": True}, numbers)
    assert not fits({"uniqueItems": True}, [*numbers, float(2**80), 2**80])
    assert time.monotonic() - start < 10


# -- against the plain library -------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c"])
SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, "", "a", "ab"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
COUNTS = st.integers(0, 2)
KINDS = st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null"])
REFERENCES = st.sampled_from([{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}])


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    table = st.dictionaries(NAMES, inner, max_size=3)
    names = st.lists(NAMES, max_size=2, unique=True)
    optional: dict[str, st.SearchStrategy[Any]] = {
        "type": KINDS | st.lists(KINDS, min_size=1, max_size=2, unique=True),
        "const": VALUES,
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "minimum": COUNTS,
        "exclusiveMaximum": COUNTS,
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minLength": COUNTS,
        "maxLength": COUNTS,
        "pattern": st.sampled_from(["a", "^a", "b|^$"]),
        "minItems": COUNTS,
        "maxItems": COUNTS,
        "uniqueItems": st.booleans(),
        "items": inner,
        "prefixItems": several,
        "contains": inner,
        "minContains": COUNTS,
        "maxContains": COUNTS,
        "properties": table,
        "required": names,
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(st.sampled_from(["a", "[bc]"]), inner, max_size=2),
        "propertyNames": inner,
        "minProperties": COUNTS,
        "maxProperties": COUNTS,
        "dependentRequired": st.dictionaries(NAMES, names, max_size=2),
        "dependentSchemas": table,
        "allOf": several,
        "anyOf": several,
        "oneOf": several,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
    }
    pairs = [st.tuples(st.just(key), values) for key, values in optional.items()]
    return st.lists(st.one_of(pairs), max_size=4).map(dict)


ANY_SCHEMA = st.recursive(
    st.booleans() | schemas(st.booleans()) | REFERENCES, schemas, max_leaves=8
)


@settings(deadline=None, max_examples=400)
@given(ANY_SCHEMA, ANY_SCHEMA, ANY_SCHEMA, st.lists(VALUES, min_size=1, max_size=5))
def test_schemas_mean_what_the_plain_library_says(
    root: Any, first: Any, second: Any, values: list[Any]
) -> None:
    whole = {"$defs": {"x": first, "y": second}, "allOf": [root]}
    try:
        schema = Schema(whole)
    except ValueError:  # a circle; the library fails only when it meets a value
        return
    oracle = jsonschema.Draft202012Validator(whole)
    for value in values:
        before = copy.deepcopy(value)
        extras = schema.check(value)
        assert (extras is None) == oracle.is_valid(value)
        assert value == before
        if extras is not None:
            assert 1 <= extras["totalErrors"] <= MAX_ERRORS
            assert extras["firstValidationErrors"]


@settings(deadline=None)
@given(ANY_SCHEMA, st.from_type(object) | st.binary() | st.floats() | st.datetimes())
def test_no_value_raises(schema: Any, value: Any) -> None:
    whole = {"$defs": {"x": True, "y": {"type": "string"}}, "items": schema, "not": schema}
    Schema(whole).check([value, {1: value}])
