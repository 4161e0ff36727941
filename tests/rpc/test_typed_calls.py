"""Calls of generated clients against a real server: everything that plain calls have, typed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest

from wsmux import rpc
from wsmux.rpc.codegen.generator import generate
from wsmux.rpc.schema.document import serialize

from ..helpers.rpc.generated import loaded
from ..helpers.rpc.procedures import WAIT, Gate

NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
COUNTED = {"type": "object", "properties": {"count": {"type": "number"}}, "required": ["count"]}


PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
ERRORS = [rpc.ErrorSchema("NOT_FOUND", PATH), rpc.ErrorSchema("FULL"), rpc.ErrorSchema("NEW")]


def error(code: str) -> rpc.RiverError:
    extra = {"path": "/x"} if code == "NOT_FOUND" else None
    return rpc.RiverError(code, f"it is {code}", extra)


def files(gate: Gate) -> rpc.Service:
    service = rpc.Service("files")

    @service.subscription(init=NAMED, response=NAMED)
    def watch(ctx: rpc.Context, init: dict[str, str]) -> Iterator[dict[str, str]]:
        ctx.defer(gate.over.set)
        yield init
        ctx.ended.wait(WAIT)

    @service.upload(request=NAMED, response=COUNTED)
    def add(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> dict[str, int]:
        ctx.defer(gate.over.set)
        gate.entered.set()
        count = len(list(requests))
        if init == "slow":
            ctx.ended.wait(WAIT)
        return {"count": count}

    @service.stream(request=NAMED, response=NAMED)
    def echo(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> Iterator[dict[str, str]]:
        ctx.defer(gate.over.set)
        gate.entered.set()
        yield from requests

    @service.rpc(errors=ERRORS)
    def size(ctx: rpc.Context, init: str) -> Any:
        raise error(init)

    @service.upload(errors=ERRORS)
    def put(ctx: rpc.Context, init: str, requests: rpc.Readable[Any]) -> Any:
        raise error(init)

    @service.stream(response={"type": "number"}, errors=ERRORS)
    def read(ctx: rpc.Context, init: Any, requests: rpc.Readable[str]) -> Iterator[Any]:
        for code in requests:
            yield rpc.Err(error(code))
            yield 1

    @service.rpc(response=COUNTED)
    def slow(ctx: rpc.Context, init: Any) -> dict[str, int]:
        ctx.ended.wait(WAIT)
        return {"count": 0}

    return service


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def service(gate: Gate) -> rpc.Service:
    return files(gate)


@pytest.fixture
def module(service: rpc.Service) -> ModuleType:
    schema = serialize([service])
    for procedure in schema["services"]["files"]["procedures"].values():
        errors = procedure["errors"]["anyOf"]  # of which the client knows all but the newest
        errors[:] = [each for each in errors if each["properties"]["code"]["const"] != "NEW"]
    return loaded(generate(schema, style="dataclass"))


@pytest.fixture
def client(service: rpc.Service) -> Iterator[rpc.Client]:
    with rpc.serve([service]) as server, rpc.connect(server.url) as made:
        yield made


@pytest.fixture
def called(module: ModuleType, client: rpc.Client) -> Any:
    return module.Files(client)


def test_a_subscription_is_read_within_a_time(module: ModuleType, called: Any, gate: Gate) -> None:
    with called.watch(module.FilesWatchInit(name="x")) as responses:
        assert responses.read(WAIT) == module.FilesWatchResponse(name="x")
        with pytest.raises(TimeoutError, match="no message arrived in time"):
            responses.read(0.01)
    assert gate.over.wait(WAIT)


def test_a_subscription_is_cancelled_with_a_message(
    module: ModuleType, called: Any, gate: Gate
) -> None:
    responses = called.watch(module.FilesWatchInit(name="x"), timeout=WAIT)
    next(iter(responses))
    responses.cancel("enough")
    with pytest.raises(rpc.RiverError, match="CANCEL: enough"):
        responses.read(WAIT)
    assert gate.over.wait(WAIT)


def test_the_time_of_a_subscription_ends_its_reads(module: ModuleType, called: Any) -> None:
    responses = called.watch(module.FilesWatchInit(name="x"), timeout=0.5)
    with pytest.raises(TimeoutError):
        list(responses)


def test_an_upload_is_written_and_finished_within_a_time(module: ModuleType, called: Any) -> None:
    with called.add(None) as upload:
        upload.write(module.FilesAddRequest(name="x"), WAIT)
        upload.write(module.FilesAddRequest(name="y"), timeout=WAIT)
        upload.close_write()
        assert upload.finish(timeout=WAIT) == module.FilesAddResponse(count=2)


def test_an_upload_that_is_not_answered_in_time_is_cancelled(called: Any, gate: Gate) -> None:
    upload = called.add("slow")
    assert gate.entered.wait(WAIT)  # a call that is over before begins no handler
    with pytest.raises(TimeoutError, match="did not answer in time; it was cancelled"):
        upload.finish(0.01)
    assert gate.over.wait(WAIT)


def test_an_upload_is_cancelled(called: Any, gate: Gate) -> None:
    upload = called.add(None)
    assert gate.entered.wait(WAIT)
    upload.cancel("enough")
    with pytest.raises(rpc.RiverError, match="CANCEL: enough"):
        upload.finish(WAIT)
    assert gate.over.wait(WAIT)


def test_a_stream_is_written_and_read_in_turns(module: ModuleType, called: Any) -> None:
    with called.echo(None) as talk:
        for name in ("x", "y"):
            talk.write(module.FilesEchoRequest(name=name), timeout=WAIT)
            assert talk.read(WAIT) == module.FilesEchoResponse(name=name)
        talk.close_write()
        with pytest.raises(EOFError):
            talk.read(WAIT)


def test_a_stream_that_is_left_is_cancelled(called: Any, gate: Gate) -> None:
    with called.echo(None) as talk:
        assert gate.entered.wait(WAIT)
        assert not gate.over.is_set()
    assert gate.over.wait(WAIT)
    with pytest.raises(rpc.RiverError, match="CANCEL"):
        talk.read(WAIT)


def test_an_rpc_has_a_time(called: Any) -> None:
    with pytest.raises(TimeoutError, match="did not answer in time"):
        called.slow(None, timeout=0.05)


def test_a_typed_call_is_aborted(module: ModuleType, called: Any, gate: Gate) -> None:
    abort = rpc.Abort()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(called.slow, None, abort=abort)
        responses = called.watch(module.FilesWatchInit(name="x"), abort=abort)
        assert responses.read(WAIT).name == "x"
        abort.set()
        with pytest.raises(module.Cancel, match="the caller aborted the call"):
            asking.result(WAIT)
        with pytest.raises(module.Cancel, match="the caller aborted the call"):
            responses.read(WAIT)
    assert gate.over.wait(WAIT)


def test_a_declared_error_is_raised_as_its_class(module: ModuleType, called: Any) -> None:
    with pytest.raises(module.FilesNotFound, match="NOT_FOUND: it is NOT_FOUND") as caught:
        called.size("NOT_FOUND", WAIT)
    assert caught.value.extra == module.FilesNotFoundExtras(path="/x")
    assert (caught.value.code, caught.value.message) == ("NOT_FOUND", "it is NOT_FOUND")
    with pytest.raises(called.Full) as full:
        called.size("FULL", WAIT)
    assert full.value.extra is None


def test_an_error_of_an_upload_is_raised_as_its_class(called: Any) -> None:
    with pytest.raises(called.NotFound) as caught:
        called.put("NOT_FOUND").finish(WAIT)
    assert caught.value.extra.path == "/x"


def test_a_stream_goes_on_after_an_error_of_its_class(called: Any) -> None:
    with called.read(None) as talk:
        for code, cls in (("NOT_FOUND", called.NotFound), ("FULL", called.Full)):
            talk.write(code)
            with pytest.raises(cls):
                talk.read(WAIT)
            assert talk.read(WAIT) == 1


def test_a_code_that_is_not_known_is_a_plain_error(called: Any) -> None:
    with pytest.raises(rpc.RiverError) as caught:
        called.size("NEW", WAIT)
    assert type(caught.value) is rpc.RiverError
    assert caught.value.code == "NEW"


def test_the_errors_of_the_protocol_have_classes(module: ModuleType, called: Any) -> None:
    upload = called.add(None)
    upload.cancel("enough")
    with pytest.raises(module.Cancel):
        upload.write(module.FilesAddRequest(name="x"))
    with pytest.raises(module.UncaughtError):
        called.size("UNDECLARED", WAIT)
    talk = called.echo(None)
    talk.write({"name": 5})
    with pytest.raises(module.InvalidRequest) as caught:
        talk.read(WAIT)
    assert caught.value.extra.totalErrors == 1
    assert caught.value.extra.firstValidationErrors[0].path == "/name"
