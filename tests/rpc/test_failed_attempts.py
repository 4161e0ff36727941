"""An attempt to connect that fails, in whatever way, is told of and followed by the next one."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import websocket

from wsmux import rpc

from ..helpers.rpc.procedures import WAIT, Gate, offered

SOON = rpc.Options(backoff_base=0.01, backoff_jitter=0.01)


@pytest.fixture
def server() -> Iterator[rpc.RpcServer]:
    with rpc.serve([offered(Gate())], transport="tcp") as server:
        yield server


def failing_once(server: rpc.RpcServer, error: BaseException) -> Callable[[], socket.socket]:
    """Return a target that raises an error for the first attempt."""
    errors = [error]

    def target() -> socket.socket:
        if errors:
            raise errors.pop()
        return socket.create_connection((server.host, server.port), WAIT)

    return target


@pytest.mark.parametrize(
    "error", [LookupError("no such place"), SystemExit("no such place")], ids=repr
)
def test_a_function_that_raises_anything_fails_one_attempt(
    error: BaseException, server: rpc.RpcServer, caplog: pytest.LogCaptureFixture
) -> None:
    with rpc.connect(failing_once(server, error), options=SOON) as client:
        assert client.rpc("test", "same", 1, WAIT) == 1
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "in target" in (record.exc_text or "")
    assert "no such place" in (record.exc_text or "")


@pytest.mark.parametrize("error", [LookupError("no idea"), SystemExit("no idea")], ids=repr)
def test_an_is_fatal_that_raises_fails_one_attempt(
    error: BaseException, server: rpc.RpcServer, caplog: pytest.LogCaptureFixture
) -> None:
    def is_fatal(failure: Exception) -> bool:
        raise error

    target = failing_once(server, ConnectionRefusedError("nobody there"))
    with rpc.connect(target, options=SOON, is_fatal=is_fatal) as client:
        assert client.rpc("test", "same", 1, WAIT) == 1
    assert "is_fatal has failed" in caplog.text


@pytest.mark.parametrize("url", ["ws://127.0.0.1:1/", "tcp://127.0.0.1:1", "unix:///nowhere"])
def test_an_unknown_option_is_refused_at_once(url: str) -> None:
    with pytest.raises(TypeError, match=r"^connect\(\) has no option foo$"):
        rpc.connect(url, foo=1)


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have websocket-client let an error through once, as for some answers of a server."""
    errors, connect = [LookupError("what is that")], websocket.WebSocket.connect

    def fail_once(*arguments: Any, **options: Any) -> None:
        if errors:
            raise errors.pop()
        connect(*arguments, **options)

    monkeypatch.setattr(websocket.WebSocket, "connect", fail_once)


@pytest.mark.usefixtures("unreadable")
def test_an_answer_that_cannot_be_read_fails_one_attempt() -> None:
    with (
        rpc.serve([offered(Gate())]) as server,
        rpc.connect(server.url, options=SOON) as client,
    ):
        assert client.rpc("test", "same", 1, WAIT) == 1


@pytest.mark.usefixtures("unreadable")
def test_an_answer_that_cannot_be_read_is_told_of() -> None:
    with (
        rpc.serve([offered(Gate())]) as server,
        rpc.connect(server.url, is_fatal=lambda error: True) as client,
        pytest.raises(rpc.RiverError, match="cannot be made: .* failed: LookupError: what is"),
    ):
        client.rpc("test", "same", 1, WAIT)
