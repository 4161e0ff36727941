"""Serve with ``wsmux.serve``: connections, their handlers, and the shutdown.

What concerns streams and ends runs in the four wires, over WebSockets and plain sockets; what
concerns the request and the handshake over WebSockets alone.
"""

from __future__ import annotations

import logging
import re
import socket
import sys
import threading
import time
from typing import Any, NamedTuple

import pytest

import wsmux
from wsmux.endpoints.connection_options import ConnectionOptions
from wsmux.protocols.base import Role

from .helpers import scripted
from .helpers.connections import Spawn
from .helpers.inside import lock_of, multiplexer_of
from .helpers.js_ws import short_js_ws_close as short_js_ws_close
from .helpers.raw_peer import in_thread
from .helpers.scripted import WAIT, call
from .helpers.stream_outcomes import check_unseen
from .helpers.waiting import wait_for
from .helpers.wires import NAMES, WIRES


class Service(NamedTuple):
    """How clients are served: in one wire, over WebSockets or plain sockets."""

    protocol: str
    transport: str

    def __str__(self) -> str:
        return f"{self.transport}-{self.protocol}"

    def serve(self, handler: Any = None, **options: Any) -> wsmux.Server:
        transport: Any = self.transport
        return wsmux.serve(handler, protocols=[self.protocol], transport=transport, **options)

    def connect(self, server: wsmux.Server, **options: Any) -> wsmux.Connection:
        return wsmux.connect(server.url, protocol=self.protocol, **options)

    def seen_close(self, code: int, reason: str) -> tuple[int, str | None]:
        return WIRES[self.protocol].seen_close(self.transport == "websocket", code, reason)


SERVICES = [Service(name, transport) for transport in ("websocket", "tcp") for name in NAMES]


@pytest.fixture(params=SERVICES, ids=str)
def service(request: pytest.FixtureRequest) -> Service:
    chosen: Service = request.param
    return chosen


def check_end(error: wsmux.ConnectionClosed, service: Service, code: int, reason: str) -> None:
    """Check that a client saw the server close with a code and a reason."""
    seen, text = service.seen_close(code, reason)
    assert error.code == seen
    assert text in (None, error.reason)


def idle(connection: wsmux.Connection) -> None:
    """A connection handler that leaves everything to the stream handler."""
    connection.wait_closed()


def test_a_connection_handler_gets_the_connection_and_the_request() -> None:
    seen: list[wsmux.Connection] = []

    def handler(connection: wsmux.Connection) -> None:
        seen.append(connection)
        with connection.accept_stream(WAIT) as stream:
            stream.write(b"served")

    with (
        wsmux.serve(handler) as server,
        wsmux.connect(f"{server.url}/files?q=1", headers={"X-Name": "me"}) as connection,
        connection.open_stream() as stream,
    ):
        assert stream.read() == b"served"
    request = seen[0].request
    assert request is not None
    assert (request.path, request.query) == ("/files", "q=1")
    assert request.headers["x-name"] == "me"
    assert request.remote_address.startswith("127.0.0.1:")


def test_the_connection_is_closed_when_its_handler_returns(service: Service) -> None:
    with (
        service.serve(lambda connection: None) as server,
        service.connect(server) as connection,
        pytest.raises(wsmux.ConnectionClosedOK),
    ):
        connection.accept_stream(WAIT)


def test_a_handler_that_raises_closes_with_1011(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(connection: wsmux.Connection) -> None:
        raise ArithmeticError("a bug")

    with (
        caplog.at_level(logging.ERROR, "wsmux"),
        service.serve(handler) as server,
        service.connect(server) as connection,
        pytest.raises(wsmux.ConnectionClosedError) as error,
    ):
        connection.accept_stream(WAIT)
    check_end(error.value, service, 1011, "internal error")
    assert "a bug" in caplog.text


def test_both_handlers_may_be_given(service: Service) -> None:
    def greet(connection: wsmux.Connection) -> None:
        with connection.open_stream() as stream:
            stream.write(b"welcome")
        connection.wait_closed()

    with (
        service.serve(greet, stream_handler=scripted.handle) as server,
        service.connect(server) as connection,
    ):
        assert connection.accept_stream(WAIT).read() == b"welcome"
        assert call(connection, "source", 3, 1) == scripted.pattern(3, 1)


def test_one_of_the_handlers_must_be_given() -> None:
    with pytest.raises(ValueError, match="handler"):
        wsmux.serve()


def test_connections_are_listed_while_they_last() -> None:
    with wsmux.serve(idle) as server:
        with wsmux.connect(server.url), wsmux.connect(server.url):
            wait_for(lambda: len(server.connections) == 2)
            assert "connections=2" in repr(server)
        wait_for(lambda: not server.connections)


def test_a_client_without_a_common_subprotocol_gets_400() -> None:
    with (
        wsmux.serve(idle, protocols=["wsmux"]) as server,
        pytest.raises(wsmux.HandshakeError) as error,
    ):
        wsmux.connect(server.url, protocol="yamux")
    assert error.value.status == 400


def test_each_client_gets_the_wire_it_asks_for() -> None:
    with wsmux.serve(protocols=NAMES, stream_handler=scripted.handle) as server:
        for protocol in NAMES:
            with wsmux.connect(server.url, protocol=protocol) as connection:
                assert call(connection, "source", 3, 1) == scripted.pattern(3, 1)
                assert connection.protocol == protocol


# Shutdown


def test_shutdown_says_going_away_to_every_client(service: Service) -> None:
    server = service.serve(idle)
    connections = [service.connect(server) for _ in range(3)]
    wait_for(lambda: len(server.connections) == 3)
    server.shutdown()
    for connection in connections:
        with pytest.raises(wsmux.ConnectionClosedOK) as error:
            connection.accept_stream(WAIT)
        check_end(error.value, service, 1001, "server shutdown")
        connection.close()


def test_shutdown_lets_running_streams_end_and_takes_no_new_ones(
    service: Service, spawn: Spawn
) -> None:
    server = service.serve(stream_handler=scripted.handle)
    connection = service.connect(server)
    stream = connection.open_stream(WAIT)
    stream.write(scripted.command("echo") + b"before")
    assert stream.read(100) == b"before"
    stopping = spawn(server.shutdown, WAIT)
    if WIRES[service.protocol].tells_going_away:
        wait_for(lambda: multiplexer_of(connection).table.peer_refuses_from is not None)
        with pytest.raises(wsmux.StreamRefused) as error:
            connection.open_stream()
        assert error.value.retry_safe
    else:
        wait_for(lambda: not multiplexer_of(server.connections[0]).table.accept_streams)
        check_unseen(connection.open_stream())
    stream.write(b"after")
    assert stream.read(100) == b"after"
    assert not stopping.done()
    stream.close_write()
    assert stream.read() == b""
    stream.close()
    stopping.result(WAIT)
    with pytest.raises(wsmux.ConnectionClosedOK) as closed:
        connection.accept_stream(WAIT)
    check_end(closed.value, service, 1001, "server shutdown")
    connection.close()


def test_shutdown_waits_no_longer_than_told(service: Service) -> None:
    server = service.serve(stream_handler=scripted.handle)
    connection = service.connect(server)
    stream = connection.open_stream(WAIT)
    stream.write(scripted.command("echo") + b"x")
    assert stream.read(1) == b"x"
    start = time.monotonic()
    server.shutdown(timeout=0.05)
    assert time.monotonic() - start < WAIT / 2
    with pytest.raises(wsmux.ConnectionClosedOK) as error:
        stream.read()
    check_end(error.value, service, 1001, "server shutdown")
    connection.close()


def test_shutdown_may_be_called_from_several_threads(service: Service, spawn: Spawn) -> None:
    server = service.serve(idle)
    connection = service.connect(server)
    for future in [spawn(server.shutdown) for _ in range(4)]:
        future.result(WAIT)
    connection.close()


def test_a_handler_may_shut_its_server_down(service: Service) -> None:
    done = threading.Event()

    def handler(connection: wsmux.Connection) -> None:
        server.shutdown(timeout=0)
        done.set()

    server = service.serve(handler, config=wsmux.Config(close_timeout=1.0))
    with service.connect(server):
        assert done.wait(WAIT)
    server.shutdown()


def test_a_shutdown_closes_a_connection_that_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told why; only a socket on which its client is still awaited is cut."""
    making, go_on = threading.Event(), threading.Event()
    make = ConnectionOptions.over_websocket

    def slowly(options: ConnectionOptions, sock: socket.socket, role: Role, *rest: Any) -> Any:
        if role is Role.SERVER:
            making.set()
            assert go_on.wait(WAIT)
        return make(options, sock, role, *rest)

    monkeypatch.setattr(ConnectionOptions, "over_websocket", slowly)
    with wsmux.serve(wsmux.Connection.wait_closed) as server:
        client = wsmux.connect(server.url)
        assert making.wait(WAIT)
        ending = in_thread(server.shutdown, 0)
        wait_for(lambda: not listens(server.port))
        go_on.set()
        with pytest.raises(wsmux.ConnectionClosedOK) as error:
            client.accept_stream(WAIT)
        assert error.value.code == 1001
        ending.result(WAIT)


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_a_with_block_left_by_an_exception_shuts_down_at_once(service: Service) -> None:
    opened: list[wsmux.Connection] = []

    def fail() -> None:
        with service.serve(stream_handler=scripted.handle) as server:
            opened.append(service.connect(server))
            opened[0].ping(WAIT)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    with pytest.raises(wsmux.ConnectionClosedOK) as error:
        opened[0].accept_stream(WAIT)
    check_end(error.value, service, 1001, "server shutdown")
    opened[0].close()


def test_it_serves_ipv6_too() -> None:
    try:
        server = wsmux.serve(host="::1", stream_handler=scripted.handle)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with server, wsmux.connect(server.url) as connection:
        assert call(connection, "source", 3, 1) == scripted.pattern(3, 1)


def named(request: wsmux.Request) -> str | bool:
    """An ``authorize`` that believes what it is told."""
    if request.query == "bug":
        raise ConnectionError("the database is away")
    if request.query == "late":
        raise wsmux.HandshakeError("closed for today", 410)
    if request.query == "strange":
        raise wsmux.HandshakeError("nobody \udce9", 499)
    if request.query == "exit":
        sys.exit(1)
    return request.headers.get("x-user", False)


def test_the_application_names_the_user_of_a_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.INFO, "wsmux.audit"),
        wsmux.serve(idle, authorize=named) as server,
        wsmux.connect(server.url, headers={"X-User": "ann"}) as connection,
    ):
        wait_for(lambda: len(server.connections) == 1)
        (served,) = server.connections
        assert served.user == "ann"
        assert connection.user is None, "a client is not told who it is"
    came, left = (line for line in caplog.messages if " user=ann " in line)
    assert came.startswith("accepted path=/ peer=127.0.0.1 user=ann ")
    assert left.startswith("closed path=/ peer=127.0.0.1 user=ann ")


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("", 403, "not allowed"),
        ("bug", 500, "internal error"),
        ("late", 410, "closed for today"),
        ("strange", 499, r"nobody \udce9"),
        ("exit", 500, "internal error"),
    ],
)
def test_a_client_that_the_application_refuses_is_not_upgraded(
    query: str, status: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "wsmux.audit"),
        wsmux.serve(idle, authorize=named) as server,
        pytest.raises(wsmux.HandshakeError, match=re.escape(text)) as error,
    ):
        wsmux.connect(f"{server.url}/?{query}")
    assert error.value.status == status
    assert "database" not in str(error.value)
    assert ("the database is away" in caplog.text) is (query == "bug")
    why = f'"{text}"'
    assert f"refused path=/ peer=127.0.0.1 user=- status={status} why={why}" in caplog.messages


def test_who_is_refused_for_his_address_is_in_the_audit_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.INFO, "wsmux.audit"),
        wsmux.serve(idle, max_connections=1) as server,
        wsmux.connect(server.url),
    ):
        with pytest.raises(wsmux.HandshakeError) as error:
            wsmux.connect(server.url)
        assert error.value.status == 503
        assert any(
            line.startswith("refused path=- peer=127.0.0.1 user=- status=503 why=")
            for line in caplog.messages
        )


def test_a_plain_socket_has_no_request_to_ask_about() -> None:
    with pytest.raises(ValueError, match="authorize is given the HTTP request"):
        wsmux.serve(idle, transport="tcp", authorize=named)
    with pytest.raises(TypeError, match="authorize must be a function"):
        wsmux.serve(idle, authorize="ann")  # type: ignore[arg-type]


def test_a_client_is_answered_though_the_function_that_checks_tokens_fails() -> None:
    def fails(token: str) -> bool:
        raise ConnectionError("the database is away")

    with wsmux.serve(idle, token=fails) as server:
        with pytest.raises(wsmux.HandshakeError, match="internal error") as caught:
            wsmux.connect(server.url, headers={"Authorization": "Bearer secret"})
        assert caught.value.status == 500


def test_who_looks_at_a_server_does_not_wait_for_its_shutdown() -> None:
    """A signal handler may call that in the middle of the look, which would never end."""
    with wsmux.serve(idle) as server, lock_of(server):
        assert in_thread(lambda: server.connections).result(WAIT) == []
        assert server.url in in_thread(repr, server).result(WAIT)
