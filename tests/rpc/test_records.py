"""Dataclasses of generated clients, on their way to the wire and back."""

from __future__ import annotations

from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.rpc.codegen.generator import generate
from wsmux.rpc.errors import RiverError

from ..helpers.rpc.generated import loaded, telling_error
from ..helpers.tables import each_case

STRING = {"type": "string"}
SHAPE = {
    "anyOf": [
        {
            "properties": {"$kind": {"const": "circle"}, "radius": {"type": "number"}},
            "required": ["$kind", "radius"],
        },
        {
            "properties": {"$kind": {"const": "group"}, "parts": {"items": {"$ref": "S"}}},
            "required": ["$kind", "parts"],
        },
    ]
}
PROCEDURES: dict[str, Any] = {
    "draw": {"type": "rpc", "init": {"$defs": {"S": SHAPE}, "$ref": "S"}, "output": SHAPE | {}},
    "add": {
        "type": "upload",
        "init": {},
        "input": {"properties": {"class": STRING, "note": STRING}, "required": ["class"]},
        "output": {"properties": {"count": {"type": "integer"}}, "required": ["count"]},
    },
    "watch": {
        "type": "subscription",
        "init": {"type": "null"},
        "output": {"additionalProperties": {"properties": {"at": {"type": "Date"}}}},
    },
    "talk": {
        "type": "stream",
        "init": {},
        "input": {"items": {"properties": {"a-b": STRING}}},
        "output": {
            "$defs": {"J": {"anyOf": [STRING, {"items": {"$ref": "J"}}, {"type": "null"}]}},
            "properties": {"j": {"$ref": "J"}, "n": {"type": ["null", "string"]}},
            "required": ["n"],
        },
    },
}
PROCEDURES["draw"]["output"] = {"$defs": {"S": SHAPE}, "$ref": "S"}
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


class Call:
    """Play what a client's calls return."""

    def __init__(self, *responses: Any) -> None:
        self.responses = [*responses]
        self.log: list[Any] = []

    def __enter__(self) -> None:
        self.log.append("enter")

    def __exit__(self, *error: Any) -> None:
        self.log.append("exit")

    def read(self, timeout: float | None) -> Any:
        if not self.responses:
            raise EOFError
        return self.responses.pop(0)

    def write(self, request: Any, timeout: float | None) -> None:
        self.log.append(request)

    def close_write(self) -> None:
        self.log.append("close_write")

    def close(self) -> None:
        self.log.append("close")

    def finish(self, timeout: float | None) -> Any:
        return self.responses[0]


class Client:
    """Give one call, and remember the init."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def rpc(self, service: str, procedure: str, init: Any, **options: Any) -> Any:
        self.init = init
        return self.call

    subscribe = upload = stream = rpc


@pytest.fixture(scope="module")
def module() -> ModuleType:
    schema = {"services": {"s": {"procedures": PROCEDURES}}}
    return loaded(generate(schema, style="dataclass"))


def unions(init: Any) -> Any:
    """Return the ``_wire`` and the type of a module whose one type is of a schema."""
    schema = {"services": {"s": {"procedures": {"p": {"type": "rpc", "init": init}}}}}
    made = loaded(generate(schema, style="dataclass"))
    return made._wire, made.SPInit


def test_an_rpc_takes_and_gives_dataclasses(module: ModuleType) -> None:
    circle = module.SDrawInitSCircle(kind="circle", radius=1.0)
    group = module.SDrawInitSGroup(kind="group", parts=[circle])
    travels = {"$kind": "group", "parts": [{"$kind": "circle", "radius": 1.0}]}
    client = Client(travels | {"new": "field"})
    answer = module.S(client).draw(group)
    assert client.init == travels
    assert answer == module.SDrawResponseSGroup(
        kind="group", parts=[module.SDrawResponseSCircle(kind="circle", radius=1.0)]
    )


def test_an_upload_takes_and_gives_dataclasses(module: ModuleType) -> None:
    call = Call({"count": 2})
    with module.S(Client(call)).add({}) as upload:
        upload.write(module.SAddRequest(class_="x"))
        upload.write(module.SAddRequest(class_="y", note="z"))
        assert upload.finish() == module.SAddResponse(count=2)
    assert call.log == ["enter", {"class": "x"}, {"class": "y", "note": "z"}, "exit"]


def test_a_subscription_gives_dataclasses(module: ModuleType) -> None:
    call = Call({"a": {"at": MOMENT}, "b": {}})
    client = Client(call)
    subscription = module.S(client).watch(None)
    value = module.SWatchResponseValue
    assert list(subscription) == [{"a": value(at=MOMENT), "b": value(at=None)}]
    subscription.close()
    assert (client.init, call.log) == (None, ["close"])


def test_a_stream_takes_and_gives_dataclasses(module: ModuleType) -> None:
    call = Call({"j": ["a", ["b", None]], "n": None})
    talk = module.S(Client(call)).talk({})
    talk.write([module.STalkRequestItem(a_b="1"), module.STalkRequestItem()])
    talk.write((module.STalkRequestItem(),))
    talk.close_write()
    assert list(talk) == [module.STalkResponse(j=["a", ["b", None]], n=None)]
    assert call.log == [[{"a-b": "1"}, {}], [{}], "close_write"]


def test_none_is_written_for_a_required_field(module: ModuleType) -> None:
    value = module.STalkResponse(j=None, n=None)
    assert module._wire.write({"x": value}) == {"x": {"n": None}}


def test_a_missing_field_is_told(module: ModuleType) -> None:
    upload = module.S(Client(Call({}))).add({})
    with pytest.raises(ValueError, match="SAddResponse lacks the field 'count'"):
        upload.finish()


def test_what_does_not_fit_stays_as_it_is(module: ModuleType) -> None:
    assert module.S(Client({"$kind": "square"})).draw({}) == {"$kind": "square"}
    assert module.S(Client(5)).draw({}) == 5
    assert module.S(Client(Call(5))).add({}).finish() == 5


@each_case
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"anyOf": [{"items": {"type": "null"}}, {"items": STRING}]}, ["a"]),
        ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, True),
        ({"anyOf": [{"type": "number"}, {"type": "boolean"}]}, True),
        ({"anyOf": [{"type": "number"}, {"type": "Uint8Array"}]}, 1),
        ({"anyOf": [{"type": "integer"}, STRING]}, 1),
        ({"anyOf": [{"type": "Date"}, {"type": "Uint8Array"}]}, b"a"),
        ({"anyOf": [{"const": 1}, {"const": True}, {"type": "null"}]}, True),
        ({"anyOf": [{"type": "object"}, {"type": "null"}]}, {"a": 1}),
        ({"type": ["string", "null"]}, None),
        ({"type": "array"}, [1, {}]),
        (False, 1),
    ],
)
def test_a_plain_value_is_read_as_it_is(schema: Any, value: Any) -> None:
    wire, type_ = unions(schema)
    assert wire.read(type_, value) is value or wire.read(type_, value) == value


def test_a_branch_inside_of_containers_is_found() -> None:
    record = {"properties": {"x": STRING}, "required": ["x"]}
    nested = {"anyOf": [{"items": {"anyOf": [STRING, record]}}, {"additionalProperties": record}]}
    wire, type_ = unions(nested)
    [inside] = wire.read(type_, [{"x": "1"}])
    assert inside.x == "1"
    assert wire.read(type_, {"k": {"x": "2"}})["k"].x == "2"
    assert wire.read(type_, []) == []


def test_an_optional_field_tells_branches_apart() -> None:
    first = {"properties": {"a": STRING, "b": {"type": "number"}}, "required": ["a"]}
    second = {"properties": {"a": STRING, "b": STRING}, "required": ["a"]}
    wire, type_ = unions({"anyOf": [first, second]})
    assert type(wire.read(type_, {"a": ""})).__name__ == "SPInitOption1"
    assert type(wire.read(type_, {"a": "", "b": ""})).__name__ == "SPInitOption2"


def test_a_field_of_any_type_stays_as_it_is() -> None:
    wire, type_ = unions({"anyOf": [{"properties": {"x": {}}, "required": ["x"]}, STRING]})
    assert wire.read(type_, {"x": {"y": 1}}).x == {"y": 1}


def test_an_error_that_is_not_as_declared_is_a_plain_one() -> None:
    declared = telling_error("LOST", {"properties": {"path": STRING}, "required": ["path"]})
    schema = {"services": {"s": {"procedures": {"p": {"type": "rpc", "errors": declared}}}}}
    made = loaded(generate(schema, style="dataclass"))
    for extra in ({}, None, {"path": "x"}):
        error = RiverError("LOST", "gone", extra)
        with (
            pytest.raises(RiverError, match="LOST: gone") as caught,
            made._wire.raising(made.SLost),
        ):
            raise error
        assert (caught.value is error) == (extra == {})
        assert caught.value.extra == (made.SLostExtras(path="x") if extra else extra)


def test_of_two_errors_of_a_code_the_one_that_fits_is_raised() -> None:
    declared = [
        telling_error("LOST", {"properties": {name: STRING}, "required": [name]})
        for name in ("path", "url")
    ]
    schema = {"type": "rpc", "errors": {"anyOf": declared}}
    made = loaded(generate({"services": {"s": {"procedures": {"p": schema}}}}, style="dataclass"))
    raising = made._wire.raising(made.SPLost, made.SPLost2)
    with pytest.raises(made.SPLost2) as caught, raising:
        raise RiverError("LOST", "gone", {"url": "x"})
    assert caught.value.extra.url == "x"


TREES = st.recursive(
    st.floats(0, 9).map(lambda radius: {"$kind": "circle", "radius": radius}),
    lambda inner: st.lists(inner).map(lambda parts: {"$kind": "group", "parts": parts}),
)


@given(TREES)
def test_what_was_read_is_written_as_it_came(module: ModuleType, tree: Any) -> None:
    wire = module._wire
    assert wire.write(wire.read(module.SDrawResponse, tree)) == tree
