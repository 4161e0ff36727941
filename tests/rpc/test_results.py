"""Errors as values, for clients that ask for results."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from wsmux import rpc

from ..helpers.rpc.four_kinds import HANDLED, KINDS, Held, Part, answer, begun, staged
from ..helpers.rpc.procedures import WAIT
from ..helpers.rpc.raw_river import CLOSE, CLOSED, RawServer

MODES = ("raise", "results")


def check_error(result: Any, code: str) -> None:
    assert isinstance(result, rpc.Err)
    assert not result.ok
    assert result.error.code == code


def only(answered: Any, kind: rpc.Kind) -> Any:
    """Return the one result of a call."""
    (result,) = answered if kind.writes_responses else [answered]
    return result


def responds(part: Part) -> Any:
    """Do as the init says."""
    match part.init:
        case "fails":
            raise LookupError("on purpose")
        case "declared":
            raise rpc.RiverError("BAD", "as declared", [1])
        case "cancels":
            part.ctx.cancel("enough")
        case _ if part.responses is not None:
            part.responses.write(part.init)
    return part.init


@pytest.fixture
def client() -> Iterator[rpc.Client]:
    service = staged(responds, errors=[rpc.ErrorSchema("BAD", extras={})])
    with rpc.serve([service]) as server, rpc.connect(server.url, errors="results") as client:
        yield client


@pytest.mark.parametrize("kind", KINDS)
def test_a_response_is_ok(kind: rpc.Kind, client: rpc.Client) -> None:
    result = only(answer(client, kind, "hello"), kind)
    assert result == rpc.Ok("hello")
    assert (result.ok, result.value) == (True, "hello")


@pytest.mark.parametrize("kind", KINDS)
def test_a_declared_error_is_a_result(kind: rpc.Kind, client: rpc.Client) -> None:
    result = only(answer(client, kind, "declared"), kind)
    check_error(result, "BAD")
    assert (result.error.message, result.error.extra) == ("as declared", [1])


@pytest.mark.parametrize(("what", "code"), [("fails", "UNCAUGHT_ERROR"), ("cancels", "CANCEL")])
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_the_protocol_is_a_result(
    kind: rpc.Kind, what: str, code: str, client: rpc.Client
) -> None:
    check_error(only(answer(client, kind, what), kind), code)


@pytest.mark.parametrize("kind", HANDLED)
def test_the_clients_own_cancelling_is_a_result(kind: rpc.Kind) -> None:
    held = Held()
    with (
        rpc.serve([held.service]) as server,
        rpc.connect(server.url, errors="results") as client,
    ):
        call = begun(client, kind)
        call.cancel("enough")
        answered = call.finish() if isinstance(call, rpc.Upload) else list(call)
        check_error(only(answered, kind), "CANCEL")
        held.go.set()


def test_a_time_that_runs_out_is_no_result() -> None:
    held = Held()
    with (
        rpc.serve([held.service]) as server,
        rpc.connect(server.url, errors="results") as client,
    ):
        with pytest.raises(TimeoutError):
            client.rpc("test", "rpc", None, 0.01)
        held.go.set()


def test_a_mode_is_named(client: rpc.Client) -> None:
    with pytest.raises(ValueError, match="errors must be"):
        rpc.connect("ws://127.0.0.1:9/", errors="ignore")


# Ends without a result


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [rpc.Kind.RPC, rpc.Kind.UPLOAD])
def test_a_call_may_end_without_an_answer(kind: rpc.Kind, mode: str) -> None:
    with (
        RawServer("json", websocket=True) as server,
        rpc.connect(server.url, codec="json", errors=mode) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        answered = pool.submit(answer, client, kind)
        with server.attached() as raw:
            stream = raw.recv()["streamId"]
            raw.send({"streamId": stream, "payload": CLOSE, "controlFlags": CLOSED})
            if mode == "raise":
                with pytest.raises(rpc.RiverError, match="CANCEL: .* ended without an answer"):
                    answered.result(WAIT)
            else:
                check_error(answered.result(WAIT), "CANCEL")


@pytest.mark.parametrize("mode", MODES)
def test_an_upload_is_finished_once(mode: str) -> None:
    with (
        rpc.serve([staged(responds)]) as server,
        rpc.connect(server.url, errors=mode) as client,
        client.upload("test", "upload", "hello", WAIT) as upload,
    ):
        assert upload.finish() == ("hello" if mode == "raise" else rpc.Ok("hello"))
        with pytest.raises(ValueError, match=r"test\.upload has already been finished"):
            upload.finish()
