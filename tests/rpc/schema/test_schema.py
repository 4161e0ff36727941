"""Schemas of JSON and of River: what is added to the library, and what it is kept from."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
import time
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsmux.rpc.schema import MAX_KEPT_SIZE, Schema, validator
from wsmux.rpc.schema.dialect import MAX_NAME, MAX_TEXT, TOO_DEEP, TOO_LONG
from wsmux.rpc.schema.validator import FIRST_ERRORS, MAX_ERRORS
from wsmux.rpc.wire.values import BigInt
from wsmux.runtime.hints import how_to_install

from ...helpers.examples import examples
from ...helpers.tables import each_case

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
LEAF = {"type": "null"}


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


MANY = {str(number): number for number in range(1000)}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"type": "string"}}, [1] * 50_000),
        ({"items": {"type": "string", "minimum": 0}}, [1] * 50_000),
        ({"items": {"anyOf": [{"type": "string"}, LEAF]}}, [1] * 50_000),
        ({"additionalProperties": False}, MANY),
        ({"properties": dict.fromkeys(MANY, LEAF)}, MANY),
        ({"required": list(MANY)}, {}),
        ({"allOf": [{"items": LEAF}, {"items": {"type": "string"}}]}, [1] * 100),
    ],
)
def test_counting_stops_early(schema: Any, value: Any) -> None:
    extras = Schema(schema).check(value)
    assert extras is not None
    assert extras["totalErrors"] == MAX_ERRORS


def test_paths_are_json_pointers() -> None:
    schema = {"properties": {"a/b": {"items": {"properties": {"c~": LEAF}}}}}
    assert messages(schema, {"a/b": [{}, {"c~": 1}]}) == [("/a~1b/1/c~0", "must be null")]


def test_long_names_and_sentences_are_cut() -> None:
    [(path, _)] = messages({"additionalProperties": False}, {"x" * 5000: 1})
    assert path == "/" + "x" * MAX_NAME + "…"
    [(_, message)] = messages({"pattern": "x" * 5000}, "")
    assert message == f'must match pattern "{"x" * 5000}'[:MAX_TEXT] + "…"


def test_the_errors_of_a_schema_in_its_order() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {}},
        "additionalProperties": False,
        "required": ["a", "b"],
    }
    assert messages(schema, {"a": 1, "c": 1}) == [
        ("/b", "must have required properties b"),
        ("/a", "must be string"),
        ("/c", "must not have additional properties"),
    ]
    assert messages(schema, []) == [("", "must be object")]


def test_alternatives_are_told_by_the_first_error_of_each() -> None:
    branches = [{"type": "string"}, {"required": ["a", "b"]}]
    first = [("", "must be string"), ("/a", "must have required properties a, b")]
    assert messages({"anyOf": branches}, {}) == [*first, ("", "must match a schema in anyOf")]
    one = ("", "must match exactly one schema in oneOf")
    assert messages({"oneOf": branches}, {}) == [*first, one]
    assert messages({"oneOf": branches}, "a") == [one]
    assert fits({"oneOf": branches}, {"a": 1, "b": 1}) == fits({"anyOf": branches}, "a") == True  # noqa: E712


def test_what_nothing_fits_is_told_with_its_place() -> None:
    assert messages(False, 1) == [("", "must not be valid")]
    assert messages({"properties": {"a": {"not": {}}}}, {"a": 1}) == [("/a", "must not be valid")]
    assert messages({"prefixItems": [{}], "items": False}, [1, 2]) == [("/1", "must not be valid")]


def test_the_schema_is_a_copy() -> None:
    original: dict[str, Any] = {"type": "string", "enum": ["a"], "title": "A"}
    schema = Schema(original)
    original["enum"].append("b")
    given = schema.json
    assert isinstance(given, dict)
    given["enum"].append("c")
    assert schema.json == {"type": "string", "enum": ["a"], "title": "A"}
    assert schema.check("b") is not None
    assert repr(schema) == "Schema({'type': 'string', 'enum': ['a'], 'title': 'A'})"
    assert pickle.loads(pickle.dumps(schema)).json == schema.json


@pytest.mark.parametrize("schema", [None, True, {}, {"description": "anything", "format": "date"}])
def test_a_schema_that_forbids_nothing_does_not_look(schema: Any) -> None:
    assert Schema(schema).check({1: object()}) is None
    assert Schema(schema).json == ({} if schema is None else schema)


# -- keywords ------------------------------------------------------------------------------------

BYTES = "Uint8Array byteLength must be"

ONE_MESSAGE: list[tuple[Any, Any, Any, str]] = [
    ({"type": "string"}, "a", 1, "must be string"),
    ({"type": ["string", "null"]}, None, 1, "must be either string or null"),
    ({"type": "number"}, 1.5, True, "must be number"),
    ({"type": "number"}, BigInt(1), math.inf, "must be number"),
    ({"type": "integer"}, 2.0, 2.5, "must be integer"),
    ({"type": "integer"}, 2, math.nan, "must be integer"),
    ({"type": "bigint"}, BigInt(5), 2.0, "must be bigint"),
    ({"type": "bigint"}, 2**70, True, "must be bigint"),
    ({"type": "boolean"}, True, 1, "must be boolean"),
    ({"type": "null"}, None, 0, "must be null"),
    ({"type": "undefined"}, None, 0, "must be undefined"),
    ({"type": "void"}, None, 0, "must be void"),
    ({"type": "array"}, (1,), "a", "must be array"),
    ({"type": "array"}, [], b"a", "must be array"),
    ({"type": "object"}, {}, [], "must be object"),
    ({"type": "object"}, {"a": object()}, {1: 1}, "must be object"),
    ({"type": "Uint8Array"}, b"", "", "must be Uint8Array"),
    ({"type": "Date"}, MOMENT, "2026-01-01", "must be Date"),
    ({"maxByteLength": 2}, b"ab", memoryview(b"abc"), f"{BYTES} <= 2"),
    ({"maxByteLength": 2}, "abc", memoryview(b"abcd").cast("H"), f"{BYTES} <= 2"),
    ({"minByteLength": 2}, bytearray(2), b"a", f"{BYTES} >= 2"),
    ({"maximumTimestamp": 0}, datetime(1970, 1, 1), MOMENT, "Date timestamp must be <= 0"),
    ({"minimumTimestamp": 1}, MOMENT, datetime(1970, 1, 1), "Date timestamp must be >= 1"),
    ({"const": 1}, 1.0, True, "must be equal to constant"),
    ({"const": [97]}, [97.0], b"a", "must be equal to constant"),
    ({"enum": ["a", "b"]}, "b", [], "must be equal to one of the allowed values"),
    ({"enum": [1, None]}, None, "1", "must be equal to one of the allowed values"),
    ({"maxLength": 1}, "a", "ab", "must not have more than 1 characters"),
    ({"minItems": 1}, [1], (), "must not have fewer than 1 items"),
    ({"maximum": 1}, 1, 2, "must be <= 1"),
    ({"exclusiveMinimum": 1}, 2, 1.0, "must be > 1"),
    ({"minimum": 1}, math.nan, -(10**4000), "must be >= 1"),
    ({"multipleOf": 0.1}, 0.3, 0.35, "must be multiple of 0.1"),
    ({"multipleOf": 0.5}, 10**400, 0.3, "must be multiple of 0.5"),
    ({"contains": LEAF}, [1, None], [1], "must contain valid items"),
    ({"contains": LEAF, "maxContains": 0, "minContains": 0}, [1], [None],
     "must contain at most 0 valid items"),
    ({"not": LEAF}, 1, None, "must not be valid"),
    ({"dependentRequired": {"a": ["b"]}}, {"b": 1}, {"a": 1},
     "must have properties that others require"),
    ({"uniqueItems": True}, [1, True, "1", [1], [True]], [1, 1.0], "must not have duplicate items"),
    ({"uniqueItems": True}, [b"a", "61", MOMENT, str(MOMENT)], [b"a", bytearray(b"a")],
     "must not have duplicate items"),
    ({"uniqueItems": True}, [{"a": 1, "b": 1}, {"a": 1}], [{"a": 1, "b": 1}, {"b": 1, "a": 1}],
     "must not have duplicate items"),
]  # fmt: skip


@each_case
@pytest.mark.parametrize(("schema", "good", "bad", "message"), ONE_MESSAGE)
def test_a_keyword_accepts_and_refuses(schema: Any, good: Any, bad: Any, message: str) -> None:
    assert fits(schema, good)
    assert messages(schema, bad) == [("", message)]


def test_the_clock_of_a_time_without_a_zone_is_that_of_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "EST5")
        time.tzset()
        found = fits({"maximumTimestamp": 0}, datetime(1970, 1, 1))
    time.tzset()
    assert found


def test_what_another_draft_would_say_is_no_matter() -> None:
    schema = {"items": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "Date"}}
    assert fits(schema, [MOMENT])
    assert fits({"contentSchema": {"items": [{"type": "?"}]}, "title": 5, "type": "string"}, "a")


def test_a_number_that_has_no_decimal_text_is_none() -> None:
    assert fits({"type": "number", "uniqueItems": True, "multipleOf": 2}, 10**4300 - 2)
    assert messages({"type": "number", "minimum": 0}, 10**5000) == [("", "must be number")]


@pytest.mark.parametrize(
    "schema",
    [
        {"prefixItems": [{"type": "string"}, {}], "items": LEAF},
        {"items": [{"type": "string"}, True], "additionalItems": LEAF},
    ],
)
def test_tuples_of_both_drafts(schema: Any) -> None:
    assert fits(schema, ["a", 1, None])
    assert fits(schema, ("a",))
    assert fits(schema, "a")
    assert messages(schema, [1, 1, 1]) == [("/0", "must be string"), ("/2", "must be null")]


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
    named = {"patternProperties": {pattern: True}, "additionalProperties": False}
    assert fits({"pattern": pattern}, good)
    assert fits(named, {good: 1})
    assert messages({"pattern": pattern}, bad) == [("", f'must match pattern "{pattern}"')]
    assert not fits(named, {bad: 1})


def test_a_string_that_is_too_long_is_not_searched() -> None:
    # The pattern alone would take longer than anybody lives.
    schema = {"pattern": "^(a+)+$", "maxLength": 10}
    assert messages(schema, "a" * 50 + "b") == [("", "must not have more than 10 characters")]
    assert messages(schema, "aab") == [("", 'must match pattern "^(a+)+$"')]


# -- references ----------------------------------------------------------------------------------

LIST = {"properties": {"next": {"$ref": "N"}, "n": {"type": "number"}}, "required": ["n"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"N": {**LIST, "$id": "N"}}, "$ref": "N"},  # TypeBox's Cyclic
        {"$id": "N", **LIST},  # TypeBox's Recursive
        {"$defs": {"N": LIST, "": {}}, "$ref": "N"},
        {"$defs": {"N": LIST, "M": {"$id": "M", "$ref": "N"}}, "$ref": "M"},
        {"properties": {"next": {"$ref": "#"}, "n": {"type": "number"}}, "required": ["n"]},
        {"definitions": {"x": {**LIST, "$id": "N"}}, "$ref": "#/definitions/x"},
        {"$defs": {"b": {**LIST, "$id": "N", "$anchor": "a"}}, "$ref": "N#a"},
        {"$defs": {"a/b~ c": {**LIST, "$id": "N"}}, "$ref": "#/$defs/a~1b~0%20c"},
        {"items": [{**LIST, "$id": "N"}], "$ref": "#/prefixItems/0"},
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
    schema = {"$defs": {"x": LEAF, "inner": inner}, "$ref": "inner"}
    assert fits(schema, ["a"])
    assert not fits(schema, [None])


@each_case
@pytest.mark.parametrize(
    "reference",
    [
        "https://example.com/schema.json",
        "https://json-schema.org/draft/2020-12/schema",
        "file:///etc/hostname",
        "other.json",
        "#/$defs/missing",
        "#/$defs/a/type/b",
        "#/required/5",
        "#/required/x",
        "#/x-notes/a",
        "#anchor",
        "http://[",
    ],
)
def test_a_reference_to_elsewhere_is_refused(reference: str) -> None:
    schema = {"$defs": {"a": LEAF}, "required": ["x"], "x-notes": {"a": {"type": "?"}}}
    for whole in ({**schema, "$ref": reference}, {**schema, "not": {"items": {"$ref": reference}}}):
        with pytest.raises(ValueError, match="refers to no schema in this document") as caught:
            Schema(whole)
        assert repr(reference) in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [LEAF, {"$ref": "#"}]},
        {"$defs": {"a": {"$ref": "b"}, "b": {"allOf": [{"$ref": "a"}]}}, "$ref": "a"},
        {"dependentSchemas": {"a": {"if": {"not": {"$ref": "#"}}}}},
    ],
)
def test_a_circle_that_never_goes_deeper_is_refused(schema: Any) -> None:
    with pytest.raises(ValueError, match="refers to itself without going deeper"):
        Schema(schema)


# -- definitions ---------------------------------------------------------------------------------


@each_case
@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("string", "a schema must be a dict or a bool"),
        ({"const": b"bytes"}, "must be JSON"),
        ({"const": math.nan}, "must be JSON"),
        ({"type": "strng"}, "wrong at #/type: 'strng' is not one of"),
        ({"properties": {"a": {"type": [1]}}}, "at #/properties/a/type/0: 1 is not one of"),
        ({"items": 5}, "at #/items: 5 is not of type"),
        ({"items": [{}, "a"]}, "at #/prefixItems/1: 'a' is not of type"),
        ({"required": "a"}, "at #/required: 'a' is not of type 'array'"),
        ({"anyOf": []}, "at #/anyOf: "),
        ({"minByteLength": -1}, "at #/minByteLength: -1 is less than"),
        ({"maximumTimestamp": "1"}, "at #/maximumTimestamp: '1' is not of type 'number'"),
        ({"$ref": 1}, r"at #/\$ref: 1 is not of type 'string'"),
        ({"pattern": "("}, r"Python cannot compile the pattern '\('"),
        ({"pattern": r"\p{L}"}, "Python cannot compile the pattern"),
        ({"pattern": "(" * 5000}, "Python cannot compile the pattern"),
        ({"patternProperties": {"(": {}}}, "Python cannot compile the pattern"),
        ({"dependencies": {}}, "dependencies is not supported"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties is not supported"),
        ({"items": {"$dynamicRef": "#a"}}, r"\$dynamicRef is not supported"),
    ],
)
def test_a_wrong_definition_is_refused(schema: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        Schema(schema)
    assert len(str(caught.value)) < 2 * MAX_TEXT


@pytest.mark.parametrize("depth", [500, 100_000])
def test_a_schema_of_any_depth_is_refused_in_a_sentence(depth: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema, "type": "array"}
    with pytest.raises(ValueError, match="nested too deeply|must be JSON"):
        Schema(schema)


def test_names_that_look_like_keywords_are_names() -> None:
    schema = {"properties": {"$ref": LEAF, "items": LEAF, "description": LEAF, "pattern": LEAF}}
    value = {"$ref": 1, "items": 1, "description": 1, "pattern": 1}
    assert [path for path, _ in messages(schema, value)] == [f"/{name}" for name in value]
    quoted = {"const": {"items": [False], "title": "a", "$ref": "#/nowhere"}}
    assert fits(quoted, quoted["const"])


# -- the package ---------------------------------------------------------------------------------

WITHOUT = """
import sys
sys.modules["jsonschema"] = sys.modules["msgpack"] = None
import wsmux.rpc
from wsmux.rpc.wire.json_codec import codec_of
from wsmux.rpc.schema.document import read_schema, serialize
service = wsmux.rpc.Service("s")
service.rpc(name="p")(lambda ctx, init: init)
codec_of("json"), read_schema(serialize([service]))
try:
    service.rpc(name="q", init={"type": "null"})(lambda ctx, init: init)
except ImportError as error:
    print(error)
"""


def test_only_a_schema_that_forbids_something_needs_the_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"validating values needs jsonschema: {how_to_install('rpc')}\n"


# -- values that attack --------------------------------------------------------------------------

TREE = {"$defs": {"T": {"properties": {"c": {"items": {"$ref": "#/$defs/T"}}}}}}


def chain(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = {"c": [value]}
    return value


@pytest.mark.parametrize("depth", [2000, 100_000])
def test_a_value_too_deep_is_an_ordinary_error(depth: int) -> None:
    deep = {"totalErrors": 1, "firstValidationErrors": [{"path": "", "message": TOO_DEEP}]}
    assert Schema({**TREE, "$ref": "#/$defs/T"}).check(chain(depth)) == deep
    assert Schema({"const": 1, "type": "object"}).check(chain(depth)) == deep
    assert Schema({"uniqueItems": True}).check([chain(depth), 1]) == deep


def test_wherever_the_stack_ends_the_error_is_ordinary() -> None:
    schema = Schema({**TREE, "$ref": "#/$defs/T"})
    value = chain(400)
    seen = set()

    def check(room: int) -> None:
        if room:
            check(room - 1)
        else:
            seen.add(repr(schema.check(value)))

    for room in range(60):  # more than the frames that one level of the value takes
        check(room)
    assert len(seen) == 1
    assert TOO_DEEP in seen.pop()


def test_a_value_as_deep_as_codecs_allow_is_checked() -> None:
    alternatives = [
        {"properties": {"c": {"items": {"anyOf": [LEAF, {"$ref": "T"}]}}}},
        LEAF,
    ]
    schema = {"$defs": {"T": {"anyOf": alternatives}}, "$ref": "T"}
    assert fits(schema, chain(50))


def test_a_value_that_holds_itself_is_an_ordinary_error() -> None:
    value: dict[str, Any] = {}
    value["c"] = [value]
    assert messages({**TREE, "$ref": "#/$defs/T"}, value) == [("", TOO_DEEP)]


def branch(op: str) -> dict[str, Any]:
    return {"properties": {"left": {"$ref": "T"}, "op": {"const": op}}, "type": "object"}


LEFT = {"properties": {"left": {"$ref": "T"}}}
RECURSIVE: dict[str, Any] = {
    "any of": {"anyOf": [*map(branch, "+-*/"), {"type": "number"}]},
    "one of": {"oneOf": [*map(branch, "+-*/"), {"type": "number"}]},
    "all of": {"allOf": [LEFT, LEFT], "type": ["object", "number"]},
    "if": {"if": LEFT, "then": LEFT, "else": LEFT, "type": ["object", "number"]},
    "not": {"not": {"not": {**LEFT, "not": {"not": LEFT}}}, "type": ["object", "number"]},
}


@pytest.mark.parametrize("kind", RECURSIVE)
@pytest.mark.parametrize(("last", "valid"), [(1, True), ("wrong", False)])
def test_schemas_that_refer_to_themselves_twice_take_linear_time(
    kind: str, last: Any, valid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validator, "MAX_STEPS", 5000)
    schema = {"$defs": {"T": RECURSIVE[kind]}, "$ref": "T"}
    value = last
    for _ in range(30):
        value = {"left": value, "op": "/"}
    found = messages(schema, value)
    assert bool(found) != valid
    assert ("", TOO_LONG) not in found


TOO_WIDE: list[tuple[Any, Any]] = [
    ({"items": {"type": "number"}}, [1] * 200),
    ({"items": {"const": 1}}, [1] * 200),
    ({"additionalProperties": {"const": 1}}, dict.fromkeys(map(str, range(200)), 1)),
    ({"contains": {"const": 2}}, [1] * 200),
    ({"propertyNames": {"maxLength": 5}}, dict.fromkeys(map(str, range(200)), 1)),
    ({"items": {"anyOf": [{"const": 1}, {"const": 2}]}}, [2] * 100),
    ({"$defs": {"T": {"items": {"$ref": "T"}}}, "$ref": "T"}, [[]] * 200),
]


@pytest.mark.parametrize(("schema", "value"), TOO_WIDE)
def test_more_steps_than_are_allowed_are_an_ordinary_error(
    schema: Any, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validator, "MAX_STEPS", 100)
    wrong = {"totalErrors": 1, "firstValidationErrors": [{"path": "", "message": TOO_LONG}]}
    assert Schema(schema).check(value) == wrong
    assert Schema(schema).check(value[:2] if isinstance(value, list) else {}) != wrong


def test_what_was_found_before_the_steps_ran_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validator, "MAX_STEPS", 100)
    assert messages({"items": LEAF}, [1, *[None] * 200]) == [("/0", "must be null")]


LARGE = {
    "text": "a" * 1_000_000,
    "array": ["a" * 60] * 20_000,
    "object": {str(number): "a" * 60 for number in range(15_000)},
    "bytes": bytes(1_000_000),
}


@each_case
@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["null", "number"]},
        {"const": 1},
        {"enum": [1]},
        {"not": {"minimum": 0}},
        {"anyOf": [{"type": ["null"]}, {"const": 1}]},
        {"minItems": 10**6, "minProperties": 10**6, "maxLength": 9, "maxByteLength": 9},
        {"contains": LEAF, "minProperties": 10**6, "pattern": "^b", "minByteLength": 10**7},
    ],
)
def test_no_value_is_written_into_a_message(schema: Any, kind: str) -> None:
    compiled = Schema(schema)
    tracemalloc.start()
    try:
        assert compiled.check(LARGE[kind]) is not None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_500_000  # a copy; each message that holds the value takes twice a million


@pytest.mark.parametrize(
    "items",
    [
        [(2**61 - 1) * number for number in range(20_000)],  # of one hash
        [{"n": number} for number in range(20_000)],  # not sortable
    ],
)
def test_unique_items_are_not_compared_each_with_each(items: list[Any]) -> None:
    start = time.monotonic()
    assert fits({"uniqueItems": True}, items)
    assert not fits({"uniqueItems": True}, [*items, items[-1]])
    assert time.monotonic() - start < 30


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
        "multipleOf": st.sampled_from([1, 2, 0.5]),
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


@settings(deadline=None, max_examples=examples(150))
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


@settings(deadline=None, max_examples=examples(50))
@given(ANY_SCHEMA, st.from_type(object) | st.binary() | st.floats() | st.datetimes())
def test_no_value_raises(schema: Any, value: Any) -> None:
    whole = {"$defs": {"x": True, "y": {"type": "string"}}, "items": schema, "not": schema}
    Schema(whole).check([value, {1: value}])


@pytest.mark.parametrize(("size", "compiled"), [(1, 1), (MAX_KEPT_SIZE, 2)], ids=["short", "long"])
def test_equal_schemas_are_compiled_once_if_they_are_short(
    size: int, compiled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    standard = validator.standard
    monkeypatch.setattr(validator, "standard", lambda each: standard(seen.append(each) or each))
    for _ in range(2):
        assert not fits({"const": f"of this test alone, {'x' * size}"}, "another")
    assert len(seen) == compiled


def test_a_word_of_an_enum_beside_what_is_wrong_is_right() -> None:
    schema = {"properties": {"word": {"enum": ["so"]}, "none": LEAF}}
    assert [path for path, _ in messages(schema, {"word": "so", "none": 1})] == ["/none"]
