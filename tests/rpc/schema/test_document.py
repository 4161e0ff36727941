"""River's schema of a server, against what the TypeScript implementation writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wsmux.rpc.schema.document import (
    PROTOCOL_ERRORS,
    ServedProcedure,
    ServedSchema,
    ServedService,
    read_schema,
    serialize,
)
from wsmux.rpc.services import ErrorSchema, Kind, Service

from ...helpers.rpc.published_service import (
    ECHO,
    NUMBER,
    STRING,
    UNION,
    answer,
    obj,
    published_service,
    talk,
)
from ...helpers.tables import each_case

# Written out from the published snapshots.
UNCAUGHT = {
    "properties": {
        "code": {"const": "UNCAUGHT_ERROR", "type": "string"},
        "message": {"type": "string"},
    },
    "required": ["code", "message"],
    "type": "object",
}
DISCONNECT = {
    "properties": {
        "code": {"const": "UNEXPECTED_DISCONNECT", "type": "string"},
        "message": {"type": "string"},
    },
    "required": ["code", "message"],
    "type": "object",
}
INVALID = {
    "properties": {
        "code": {"const": "INVALID_REQUEST", "type": "string"},
        "extras": {
            "properties": {
                "firstValidationErrors": {
                    "items": {
                        "properties": {"message": {"type": "string"}, "path": {"type": "string"}},
                        "required": ["path", "message"],
                        "type": "object",
                    },
                    "type": "array",
                },
                "totalErrors": {"type": "number"},
            },
            "required": ["firstValidationErrors", "totalErrors"],
            "type": "object",
        },
        "message": {"type": "string"},
    },
    "required": ["code", "message"],
    "type": "object",
}
CANCELLED = {
    "properties": {"code": {"const": "CANCEL", "type": "string"}, "message": {"type": "string"}},
    "required": ["code", "message"],
    "type": "object",
}
FOUR = [UNCAUGHT, DISCONNECT, INVALID, CANCELLED]


def procedure(kind: str, init: Any, output: Any, errors: Any = (), **more: Any) -> dict[str, Any]:
    errors = {"anyOf": [*errors, *FOUR]}
    return {"init": init, "output": output, "errors": errors, "type": kind, **more}


ARRAY = {"items": {"type": "number"}, "type": "array"}
TEST = {
    "procedures": {
        "add": procedure("rpc", obj(n=NUMBER), obj(result=NUMBER)),
        "array": procedure("rpc", obj(n=NUMBER), ARRAY),
        "arrayStream": procedure("stream", obj(), ARRAY, input=obj(n=NUMBER)),
        "echo": procedure("stream", obj(), obj(response=STRING), input=ECHO),
        "echoWithPrefix": procedure("stream", obj(prefix=STRING), obj(response=STRING), input=ECHO),
        "echoUnion": procedure("rpc", UNION, UNION, description="Echos back whatever we sent"),
        "unimplementedUpload": procedure("upload", obj(), obj(), input=obj()),
        "unimplementedSubscription": procedure("subscription", obj(), obj()),
    }
}


def test_the_whole_server_with_its_handshake() -> None:
    # serialize, "serialize entire service schema" and "serialize basic service"
    token = {"token": {"type": "string"}}
    handshake = {"properties": token, "required": ["token"], "type": "object"}
    schema = serialize([published_service()], obj(token=STRING))
    assert schema == {"handshakeSchema": handshake, "services": {"test": TEST}}
    assert json.loads(json.dumps(schema)) == schema


def test_a_service_with_binary() -> None:
    # serialize, "serialize service with binary"
    service = Service("bin")
    contents = obj(contents={"type": "Uint8Array"})
    service.rpc(init=obj(file=STRING), response=contents, name="getFile")(answer)
    assert serialize([service]) == {
        "services": {
            "bin": {"procedures": {"getFile": procedure("rpc", obj(file=STRING), contents)}}
        }
    }


def test_a_service_with_errors() -> None:
    # serialize, "serialize service with errors": declared ones first
    service = Service("fallible")
    declared = [ErrorSchema("DIV_BY_ZERO", extras=obj(test=STRING)), ErrorSchema("INFINITY")]
    init = obj(a=NUMBER, b=NUMBER)
    service.rpc(init=init, response=obj(result=NUMBER), errors=declared, name="divide")(answer)
    by_zero = {
        "properties": {
            "code": {"const": "DIV_BY_ZERO", "type": "string"},
            "extras": {
                "properties": {"test": {"type": "string"}},
                "required": ["test"],
                "type": "object",
            },
            "message": {"type": "string"},
        },
        "required": ["code", "message", "extras"],
        "type": "object",
    }
    infinity = {
        "properties": {
            "code": {"const": "INFINITY", "type": "string"},
            "message": {"type": "string"},
        },
        "required": ["code", "message"],
        "type": "object",
    }
    divide = serialize([service])["services"]["fallible"]["procedures"]["divide"]
    assert divide == procedure("rpc", init, obj(result=NUMBER), [by_zero, infinity])


def test_the_form_of_protocol_v1() -> None:
    # serialize, "serialize backwards compatible with v1"
    expected = json.loads(json.dumps(TEST))
    for name in ("add", "array", "echoUnion", "unimplementedSubscription"):
        expected["procedures"][name]["input"] = expected["procedures"][name].pop("init")
    assert serialize([published_service()], v1=True) == {"services": {"test": expected}}


def test_the_order_of_the_protocol_errors() -> None:
    assert list(PROTOCOL_ERRORS) == FOUR


def test_a_missing_schema_is_an_empty_one() -> None:
    service = Service("s", description="A service.")
    service.stream(name="p", description="A procedure.")(talk)
    [served] = serialize([service])["services"].values()
    assert served["description"] == "A service."
    assert served["procedures"]["p"] == procedure("stream", {}, {}, input={}) | {
        "description": "A procedure."
    }


def test_what_is_written_is_nobody_elses() -> None:
    service = published_service()
    serialize([service])["services"]["test"]["procedures"]["add"]["errors"]["anyOf"][0].clear()
    serialize([service])["services"]["test"]["procedures"]["add"]["init"].clear()
    assert serialize([service]) == {"services": {"test": TEST}}


def test_services_of_one_name_and_wrong_handshakes_are_refused() -> None:
    with pytest.raises(ValueError, match="two services"):
        serialize([Service("a"), Service("a")])
    with pytest.raises(ValueError, match="'strng' is not one of"):
        serialize([], {"type": "strng"})


# -- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("v1", [False, True])
def test_both_forms_are_read_back(v1: bool) -> None:
    schema = serialize([published_service()], obj(token=STRING), v1=v1)
    read = read_schema(schema)
    assert read == read_schema(json.dumps(schema)) == read_schema(json.dumps(schema).encode())
    assert read.handshake == obj(token=STRING)
    procedures = read.services["test"].procedures
    assert procedures["add"] == ServedProcedure(
        service="test",
        name="add",
        kind=Kind.RPC,
        init=obj(n=NUMBER),
        request=None,
        response=obj(result=NUMBER),
    )
    assert procedures["echo"].request == ECHO
    assert procedures["echo"].init == obj()
    assert procedures["echoUnion"].description == "Echos back whatever we sent"
    assert [str(each.kind) for each in procedures.values()] == [
        each["type"] for each in TEST["procedures"].values()
    ]


def read_one(**fields: Any) -> ServedProcedure:
    schema = {"services": {"s": {"procedures": {"p": {"type": "rpc", **fields}}}}}
    return read_schema(schema).services["s"].procedures["p"]


def test_declared_errors_are_read_flat_without_the_protocols() -> None:
    full, gone = ErrorSchema("FULL").json, ErrorSchema("GONE").json
    assert read_one(errors={"anyOf": [full, {"anyOf": [gone]}, *FOUR]}).errors == (full, gone)
    assert read_one(errors=full).errors == (full,)


@pytest.mark.parametrize(
    "errors", [{"not": {}}, False, True, {"type": "object", "properties": {}}, {"anyOf": FOUR}]
)
def test_no_errors_are_written_in_many_ways(errors: Any) -> None:
    assert read_one(errors=errors).errors == ()
    assert read_one().errors == ()


def test_what_is_missing_accepts_anything() -> None:
    assert read_one() == ServedProcedure("s", "p", Kind.RPC, {}, None, {})
    assert read_one(type="upload") == ServedProcedure("s", "p", Kind.UPLOAD, {}, {}, {})
    assert read_one(type="stream", input=STRING).request == STRING
    assert read_schema({"services": {"s": {"procedures": {}, "unknown": 1, "description": 5}}}) == (
        ServedSchema({"s": ServedService("s")})
    )


def test_a_schema_that_only_the_server_understands_is_read() -> None:
    assert read_one(init={"type": "symbol"}).init == {"type": "symbol"}
    assert read_one(init=True, output=False).response is False


@each_case
@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{", "must be JSON"),
        (b"\xff", "must be JSON"),
        ("[]", "a served schema must be an object"),
        ({}, "services must be an object"),
        ({"services": {"s": 1}}, "service s must be an object"),
        ({"services": {"s": {}}}, "procedures of service s must be an object"),
        ({"services": {"s": {"procedures": {"p": 1}}}}, r"s\.p must be an object"),
        ({"services": {"s": {"procedures": {"p": {}}}}}, r"s\.p must be of type rpc, .* not None"),
        ({"services": {"s": {"procedures": {"p": {"type": []}}}}}, r"s\.p must be of type"),
        ({"services": {}, "handshakeSchema": 5}, "handshakeSchema must be a schema"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_something_else_is_refused_with_its_place(source: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_schema(source)


@pytest.mark.parametrize("role", ["init", "output", "errors"])
def test_what_is_no_schema_is_refused(role: str) -> None:
    with pytest.raises(ValueError, match=rf"{role} of s\.p must be a schema"):
        read_one(**{role: 5})
    with pytest.raises(ValueError, match=rf"{role} of s\.p must be JSON"):
        read_one(**{role: {"const": b""}})


def test_errors_of_any_depth_are_refused_in_a_sentence() -> None:
    errors: dict[str, Any] = {}
    for _ in range(50_000):
        errors = {"anyOf": [errors]}
    with pytest.raises(ValueError, match="nested too deeply"):
        read_one(errors=errors)
