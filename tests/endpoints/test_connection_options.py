"""What a caller may choose for a connection is checked; the end of a handler is the end of it."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import wsmux
from wsmux.endpoints.connection_options import ConnectionOptions
from wsmux.exceptions import CloseCode
from wsmux.protocols.base import Role

WAIT = 20.0


@pytest.fixture
def ends() -> Iterator[tuple[wsmux.Connection, wsmux.Connection]]:
    options = ConnectionOptions()
    one, other = socket.socketpair()
    client = options.over_websocket(one, Role.CLIENT, "wsmux")
    server = options.over_websocket(other, Role.SERVER, "wsmux")
    with client, server:
        yield client, server


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ({"config": {"max_streams": 8}}, TypeError, r"such as Config\(max_streams=8\), not dict"),
        ({"stream_handler": "echo"}, TypeError, "stream_handler must be a function, not str"),
        ({"code_to_reason": 1}, TypeError, "code_to_reason must be a function, not int"),
        ({"reason_to_code": ()}, TypeError, "reason_to_code must be a function, not tuple"),
        ({"start_on": "bytes"}, ValueError, "start_on must be 'open' or 'data', not 'bytes'"),
        ({"workers": 0}, ValueError, "workers must be at least 1, not 0"),
    ],
)
def test_wrong_options_are_named(given: dict[str, Any], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        ConnectionOptions(**given)


@pytest.mark.parametrize("protocol", ["wsmux", "js-ws", "yamux", "bymux"])
@pytest.mark.parametrize("carrier", ["over_websocket", "over_bytes"])
def test_each_wire_connects_over_both_carriers(protocol: str, carrier: str) -> None:
    options = ConnectionOptions()
    one, other = socket.socketpair()
    with (
        getattr(options, carrier)(one, Role.CLIENT, protocol) as client,
        getattr(options, carrier)(other, Role.SERVER, protocol) as server,
    ):
        stream = client.open_stream(WAIT)
        stream.write(b"x")
        assert server.accept_stream(WAIT).read(1) == b"x"


def test_a_socket_that_gets_no_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no descriptor")

    monkeypatch.setattr("wsmux.endpoints.connection_options.MessageTransport", refuse)
    one, other = socket.socketpair()
    with one, other:
        with pytest.raises(OSError, match="no descriptor"):
            ConnectionOptions().over_websocket(one, Role.CLIENT, "wsmux")
        assert other.recv(1) == b""


def test_a_handler_that_returns_ends_the_connection_cleanly(
    ends: tuple[wsmux.Connection, wsmux.Connection],
) -> None:
    client, server = ends
    ConnectionOptions().serve(server, lambda connection: None)
    assert client.wait_closed(WAIT)
    assert client.close_code == CloseCode.NORMAL_CLOSURE


def test_a_handler_that_fails_ends_it_with_an_internal_error_and_a_traceback(
    ends: tuple[wsmux.Connection, wsmux.Connection], caplog: pytest.LogCaptureFixture
) -> None:
    client, server = ends

    def fail(connection: wsmux.Connection) -> None:
        raise LookupError("a secret")

    with caplog.at_level(logging.ERROR, "wsmux"):
        ConnectionOptions().serve(server, fail)
    assert client.wait_closed(WAIT)
    assert (client.close_code, client.close_reason) == (CloseCode.INTERNAL_ERROR, "internal error")
    assert "LookupError: a secret" in caplog.text


def test_a_handler_that_meets_the_end_of_its_connection_has_not_failed(
    ends: tuple[wsmux.Connection, wsmux.Connection], caplog: pytest.LogCaptureFixture
) -> None:
    client, server = ends
    client.close()

    def accept(connection: wsmux.Connection) -> None:
        connection.accept_stream(WAIT).read(1)
        raise AssertionError("a stream came")

    with caplog.at_level(logging.INFO, "wsmux"):
        ConnectionOptions().serve(server, accept)
    assert f"the handler of {server.name} ended" in caplog.text
    assert "Traceback" not in caplog.text
