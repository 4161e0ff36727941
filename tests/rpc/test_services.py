"""What a server offers, as it is defined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from wsmux.rpc.errors import RESERVED_CODES, RiverError
from wsmux.rpc.services import (
    ErrorSchema,
    Kind,
    Procedure,
    Service,
    error_codes,
    flatten_errors,
    service_table,
)

from ..helpers.tables import each_case

TEXT = {"type": "string"}


def error(code: Any, message: Any = TEXT, **more: Any) -> dict[str, Any]:
    """Return an error's schema as TypeBox writes it."""
    schema = {"type": "object", "properties": {"code": code, "message": message}}
    return schema | {"required": ["code", "message"]} | more


def literal(code: str) -> dict[str, Any]:
    return error({"const": code, "type": "string"})


def answer(ctx: Any, init: Any) -> Any:
    return init


def define(**options: Any) -> Procedure:
    service = Service("files")
    service.rpc(**options)(answer)
    return service.procedures["answer"]


def test_a_procedure_of_each_kind_is_data() -> None:
    files = Service("files")

    @files.rpc(init=TEXT, response={"type": "number"}, description="Adds.")
    def add(ctx: Any, init: Any) -> Any: ...

    @files.upload(init={}, request=TEXT, response={})
    def total(ctx: Any, init: Any, requests: Any) -> Any: ...

    @files.subscription(response=TEXT)
    def watch(ctx: Any, init: Any, responses: Any) -> None: ...

    @files.stream(request=TEXT)
    def echo(ctx: Any, init: Any, requests: Any, responses: Any) -> None: ...

    assert [(each.name, each.kind) for each in files.procedures.values()] == [
        ("add", Kind.RPC),
        ("total", Kind.UPLOAD),
        ("watch", Kind.SUBSCRIPTION),
        ("echo", Kind.STREAM),
    ]
    first = files.procedures["add"]
    assert (first.service, first.handler, first.generator) == ("files", add, False)
    assert (first.init.json, first.response.json) == (TEXT, {"type": "number"})
    assert (first.request, first.description, first.errors) == (None, "Adds.", ())
    requests = [each.request for each in files.procedures.values()]
    assert [each and each.json for each in requests] == [None, TEXT, None, TEXT]
    assert files.procedures["watch"].init.json == {}
    assert repr(files) == "Service('files')"


def test_kinds_tell_who_sends_how_much() -> None:
    assert [kind.takes_requests for kind in Kind] == [False, True, False, True]
    assert [kind.writes_responses for kind in Kind] == [False, False, True, True]
    assert [str(kind) for kind in Kind] == ["rpc", "upload", "subscription", "stream"]


def test_generators_yield_what_is_written() -> None:
    files = Service("files")

    @files.subscription()
    def watch(ctx: Any, init: Any) -> Iterator[Any]:
        yield 1

    @files.stream()
    def echo(ctx: Any, init: Any, requests: Any) -> Iterator[Any]:
        yield 1

    class Counter:
        def __call__(self, ctx: Any, init: Any) -> Iterator[Any]:
            yield 1

    files.subscription(name="counter")(Counter())
    assert [each.generator for each in files.procedures.values()] == [True, True, True]


def test_handlers_may_be_methods_and_partials() -> None:
    class Handlers:
        def answer(self, ctx: Any, init: Any) -> Any: ...

    def named(extra: Any, ctx: Any, init: Any, *more: Any, option: int = 1) -> Any: ...

    files = Service("files")
    files.rpc()(Handlers().answer)
    files.rpc(name="partial")(partial(named, 1))
    assert list(files.procedures) == ["answer", "partial"]


# -- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["__class__", "toString", "__init__", "a.b/c", "日本", "a b"])
def test_any_text_may_name_a_procedure(name: str) -> None:
    files = Service("files")
    files.rpc(name=name)(answer)
    assert list(files.procedures) == [name]


def test_names_nobody_defined_are_not_found() -> None:
    procedures = Service("files").procedures
    for name in ("__class__", "toString", "get", "keys"):
        assert procedures.get(name) is None


def test_procedures_cannot_be_put_in_from_outside() -> None:
    with pytest.raises(TypeError):
        Service("files").procedures["a"] = None  # type: ignore[index]


@pytest.mark.parametrize("name", ["", 5, None])
def test_a_service_needs_a_name(name: Any) -> None:
    with pytest.raises(ValueError, match="a service must be named by a string"):
        Service(name)


def test_a_name_must_be_text_that_can_be_sent() -> None:
    with pytest.raises(ValueError, match="cannot be sent as UTF-8"):
        Service("files").rpc(name="\ud800")(answer)


def test_a_handler_without_a_name_needs_one() -> None:
    with pytest.raises(ValueError, match="a procedure must be named by a string"):
        Service("files").rpc()(partial(answer))


def test_a_procedure_is_defined_once() -> None:
    files = Service("files")
    files.rpc()(answer)
    with pytest.raises(ValueError, match=r"files\.answer is defined twice"):
        files.stream(name="answer")(lambda ctx, init, requests, responses: None)


def test_a_service_is_given_once() -> None:
    files = Service("files")
    other = Service("other")
    assert service_table([files, other]) == {"files": files, "other": other}
    with pytest.raises(ValueError, match="two services are named 'files'"):
        service_table([files, Service("files")])


# -- handlers ------------------------------------------------------------------------------------


def generator(ctx: Any, init: Any, requests: Any = None) -> Iterator[Any]:
    yield 1


async def coroutine(ctx: Any, init: Any) -> None: ...


async def async_generator(ctx: Any, init: Any) -> Any:
    yield 1


@each_case
@pytest.mark.parametrize(
    ("kind", "handler", "sentence"),
    [
        ("rpc", lambda ctx: None, r"its handler must take \(ctx, init\)"),
        ("rpc", lambda ctx, init, more: None, r"must take \(ctx, init\)"),
        ("rpc", lambda ctx, init, *, more: None, r"must take \(ctx, init\)"),
        ("upload", answer, r"must take \(ctx, init, requests\)"),
        ("subscription", answer, r"must take \(ctx, init, responses\)"),
        ("stream", lambda c, i, r: None, r"must take \(ctx, init, requests, responses\)"),
        ("rpc", generator, "returns a response, never yields"),
        ("upload", generator, "returns a response, never yields"),
        ("rpc", coroutine, "handlers run in threads"),
        ("subscription", async_generator, "handlers run in threads"),
        ("rpc", 5, "cannot be called"),
        ("rpc", dict, "must take"),
        ("rpc", type("", (), {"__call__": "no method"})(), "must take"),
    ],
)
def test_a_handler_must_take_what_its_kind_gives(kind: str, handler: Any, sentence: str) -> None:
    decorate: Callable[..., Any] = getattr(Service("files"), kind)
    with pytest.raises(ValueError, match=sentence):
        decorate(name="p")(handler)


@pytest.mark.parametrize("role", ["init", "response"])
def test_a_wrong_schema_is_told_with_its_place(role: str) -> None:
    with pytest.raises(
        ValueError, match=r"files\.answer: .* wrong at #/type: .strng. is not one of"
    ):
        define(**{role: {"type": "strng"}})


# -- state ---------------------------------------------------------------------------------------


def test_a_state_is_a_value_or_made_from_the_context() -> None:
    assert Service("a", state=[1]).make_state({"x": 1}) == [1]
    assert Service("a").make_state({}) is None
    assert Service("a", state=lambda context: context["x"]).make_state({"x": 1}) == 1


def test_a_state_may_be_disposed_of() -> None:
    # e2e, "calls service dispose methods on cleanup": the service's part
    gone: list[Any] = []
    service = Service("a", state=lambda context: [1], dispose=gone.append)
    service.dispose_state(service.make_state({}))
    Service("b").dispose_state(1)
    assert gone == [[1]]


# -- errors --------------------------------------------------------------------------------------


def test_an_error_schema_is_written_as_river_writes_it() -> None:
    assert ErrorSchema("FULL").json == {
        "type": "object",
        "properties": {"code": {"const": "FULL", "type": "string"}, "message": {"type": "string"}},
        "required": ["code", "message"],
    }
    with_extras = ErrorSchema("FULL", extras={"type": "number"}, description="No room.").json
    assert with_extras["properties"]["extras"] == {"type": "number"}
    assert with_extras["required"] == ["code", "message", "extras"]
    assert with_extras["description"] == "No room."


def test_a_handler_may_answer_with_declared_errors_only() -> None:
    procedure = define(errors=[ErrorSchema("FULL", extras={"type": "number"}), literal("GONE")])
    assert procedure.codes == {"FULL", "GONE"}
    assert procedure.declares(RiverError("GONE", "not here"))
    assert procedure.declares(RiverError("FULL", "", 5))
    assert not procedure.declares(RiverError("FULL", "", "five"))
    assert not procedure.declares(RiverError("FULL"))
    assert not procedure.declares(RiverError("OTHER"))
    assert not define().declares(RiverError("FULL"))


# Procedure error schema, allowed
@pytest.mark.parametrize(
    ("errors", "codes"),
    [
        ([literal("1")], ["1"]),  # object
        ([{"anyOf": [literal("1"), literal("2")]}], ["1", "2"]),  # union of object
        ({"anyOf": [literal("1"), literal("2")]}, ["1", "2"]),
        ([error({"enum": ["1", "2", "3"]})], ["1", "2", "3"]),  # object with enum code
        ([error({"anyOf": [{"const": "1"}, {"const": "2"}]})], ["1", "2"]),
        ([{"anyOf": [error({"enum": ["1"]}), literal("2")]}], ["1", "2"]),
        ([literal("4"), literal("4")], ["4"]),
        ([error({"const": "1"}, {"const": "only this"})], ["1"]),
    ],
)
def test_errors_may_be_objects_and_flat_unions(errors: Any, codes: list[str]) -> None:
    assert define(errors=errors).codes == set(codes)


# Procedure error schema, union of union; deeeeep nesting; mixed bag
def test_nested_unions_are_flattened_by_a_helper() -> None:
    deep = {"anyOf": [literal("1"), {"anyOf": [literal("2"), {"anyOf": [literal("3")]}]}]}
    with pytest.raises(ValueError, match=r"holds a union: use flatten_errors\(\)"):
        define(errors=[deep])
    flat = flatten_errors(deep)
    assert flat == [literal("1"), literal("2"), literal("3")]
    assert define(errors=[literal("0"), *flat]).codes == {"0", "1", "2", "3"}
    assert flatten_errors(literal("1")) == [literal("1")]


# Procedure error schema, fails
@each_case
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"type": "object", "properties": {"NOTCODE": {}, "message": {}}}, "must be an object"),
        (error({"const": "1"}, required=["code"]), "must have a message"),
        (error({"const": "1"}, required=["message"]), "must have a code"),
        (error({"const": "1"}, message=5), "must have a message"),
        (error({"const": "1"}, message={"type": "number"}), "message of an error must be a string"),
        (error({"type": "string"}), "code of an error must be a literal"),
        (error({"const": 5}), "code of an error must be a literal"),
        (error({"enum": "FULL"}), "code of an error must be a literal"),
        (error({"anyOf": [{"const": "1"}, TEXT]}), "code of an error must be a literal"),
        (error({"anyOf": ["1"]}), "code of an error must be a literal"),
        ({"anyOf": [literal("1"), TEXT]}, "must be an object"),
        ({"anyOf": "1"}, "must be an object"),
        ("FULL", "must be an object"),
        (ErrorSchema(5), "code of an error must be a literal"),  # type: ignore[arg-type]
        (ErrorSchema("FULL", extras={"type": "strng"}), "'strng' is not one of"),
    ],
)
def test_other_error_schemas_are_refused(wrong: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=rf"files\.answer: .*{sentence}"):
        define(errors=[wrong])


@pytest.mark.parametrize("code", sorted(RESERVED_CODES))
def test_a_code_of_the_protocol_cannot_be_declared(code: str) -> None:
    with pytest.raises(ValueError, match=f"the error code {code} belongs to the protocol"):
        define(errors=[ErrorSchema("FULL"), ErrorSchema(code)])


def test_error_codes_of_something_else() -> None:
    with pytest.raises(ValueError, match="must be an object"):
        error_codes([])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["rpc", "upload", "subscription", "stream"])
def test_a_decorator_without_parentheses_says_how_to_write_it(kind: str) -> None:
    service = Service("files")
    decorator: Any = getattr(service, kind)
    sentence = rf"write the decorator with parentheses: @service\.{kind}\(\) or @service\.{kind}\(i"
    with pytest.raises(TypeError, match=sentence):
        decorator(lambda ctx, init: 0)
    with pytest.raises(TypeError, match="with a name for each schema: @service"):
        decorator({"type": "string"})
    assert not service.procedures
