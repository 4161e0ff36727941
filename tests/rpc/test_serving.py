"""The ways in which connections reach a server's sessions."""

from __future__ import annotations

import json
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux import rpc
from wsmux.handshake.http_request import respond
from wsmux.rpc import server as serving
from wsmux.rpc.schema.document import read_schema

from ..helpers.carriers import ONE_SERVER, WsgiServers
from ..helpers.inside import connections_of
from ..helpers.rpc.procedures import WAIT, Gate, offered
from ..helpers.waiting import wait_for


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def get(url: str) -> tuple[int, str, bytes]:
    """Return the status, the type and the body of an ordinary request."""
    try:
        with urllib.request.urlopen(url.replace("ws", "http", 1), timeout=WAIT) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read()


# Streams of a connection


def test_each_stream_of_a_mux_server_may_be_a_connection(gate: Gate) -> None:
    with (
        rpc.handler([offered(gate)]) as handler,
        wsmux.serve(stream_handler=handler) as server,
        wsmux.connect(server.url) as connection,
        rpc.connect(connection) as one,
        rpc.connect(connection) as other,
    ):
        assert one.rpc("test", "same", "over a stream", WAIT) == "over a stream"
        assert other.rpc("test", "same", "over another", WAIT) == "over another"
        assert handler.sessions == 2


def test_a_session_goes_on_over_another_stream(gate: Gate) -> None:
    """A stream that breaks is followed by a new one, and the call does not notice."""
    streams: list[wsmux.Stream] = []
    with rpc.handler([offered(gate)]) as handler:

        def serve(stream: wsmux.Stream) -> None:
            streams.append(stream)
            handler(stream)

        with (
            wsmux.serve(stream_handler=serve) as server,
            wsmux.connect(server.url) as connection,
            rpc.connect(connection) as client,
            client.stream("test", "echo", None, WAIT) as echo,
        ):
            echo.write(1)
            assert echo.read() == 1
            streams[0].reset()
            echo.write(2)
            assert echo.read() == 2
            assert handler.sessions == 1
    assert len(streams) == 2


def test_a_single_stream_is_connected_once(gate: Gate) -> None:
    near, far = wsmux.pair()
    with near, far, rpc.handler([offered(gate)]) as handler:
        stream = near.open_stream()
        thread = threading.Thread(target=lambda: handler(far.accept_stream(WAIT)))
        thread.start()
        with rpc.connect(stream) as client:
            assert client.rpc("test", "same", 1, WAIT) == 1
        thread.join(WAIT)
        assert not thread.is_alive()


def test_a_socket_may_be_served(gate: Gate) -> None:
    ours, theirs = socket.socketpair()
    with rpc.handler([offered(gate)]) as handler:
        thread = threading.Thread(target=handler, args=(theirs,))
        thread.start()
        with rpc.connect(ours) as client:
            assert client.rpc("test", "same", 1, WAIT) == 1
        thread.join(WAIT)
        assert not thread.is_alive()


def test_a_handler_that_is_shut_down_serves_nobody(gate: Gate) -> None:
    handler = rpc.handler([offered(gate)])
    handler.shutdown()
    ours, theirs = socket.socketpair()
    with ours:
        handler(theirs)
        assert ours.recv(1) == b""


def test_a_shutdown_ends_connections_that_have_not_greeted(gate: Gate) -> None:
    options = rpc.Options(handshake_timeout=WAIT)
    server = rpc.serve([offered(gate)], transport="tcp", options=options)
    with socket.create_connection((server.host, server.port)) as silent:
        wait_for(lambda: connections_of(server.handler))
        server.shutdown(WAIT)
        assert silent.recv(1) == b""


# Unix sockets


@pytest.mark.parametrize("name", ["river", "with space", "100%25", "a#b", "a?b"])
def test_a_unix_socket_is_served(gate: Gate, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with rpc.serve([offered(gate)], path=str(path)) as server:
        assert (server.host, server.port) == (str(path), 0)
        with rpc.connect(server.url) as client:
            assert client.rpc("test", "same", 5, WAIT) == 5
    assert not path.exists()


def test_a_unix_socket_that_nobody_serves_is_replaced(gate: Gate, tmp_path: Path) -> None:
    path = tmp_path / "river"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with (
        rpc.serve([offered(gate)], path=str(path)) as server,
        rpc.connect(server.url) as client,
    ):
        assert client.rpc("test", "same", 5, WAIT) == 5
        with pytest.raises(OSError, match="in use"):
            rpc.serve([offered(gate)], path=str(path))
        assert client.rpc("test", "same", 6, WAIT) == 6


def test_a_file_is_no_unix_socket_to_replace(gate: Gate, tmp_path: Path) -> None:
    path = tmp_path / "river"
    path.write_text("precious")
    with pytest.raises(OSError, match="in use"):
        rpc.serve([offered(gate)], path=str(path))
    assert path.read_text() == "precious"


def test_a_unix_socket_may_be_gone_at_the_end(gate: Gate, tmp_path: Path) -> None:
    with rpc.serve([offered(gate)], path=str(tmp_path / "river")):
        os.unlink(tmp_path / "river")


def test_what_came_to_its_place_after_the_end_is_no_unix_socket_to_remove(
    gate: Gate, tmp_path: Path
) -> None:
    path = tmp_path / "river"
    with rpc.serve([offered(gate)], path=str(path)) as server:
        server.shutdown()
        path.write_text("precious")
    assert path.read_text() == "precious"


# Shutting down


def test_states_are_kept_until_handlers_have_ended(gate: Gate) -> None:
    """So that what a handler does last, and what it deferred, still finds its state."""
    seen: list[str] = []
    told = threading.Event()
    service = rpc.Service("test", state=seen, dispose=lambda state: state.append("disposed"))

    @service.rpc()
    def waits(ctx: rpc.Context, init: object) -> None:
        ctx.defer(lambda: ctx.state.append("deferred"))
        gate.entered.set()
        ctx.ended.wait(WAIT)
        told.set()
        gate.opened.wait(WAIT)
        ctx.state.append("ended")

    with rpc.serve([service]) as server, rpc.connect(server.url) as client:
        client.submit("test", "waits", None)
        assert gate.entered.wait(WAIT)
        closing = threading.Thread(target=server.shutdown, args=(WAIT,))
        closing.start()
        assert told.wait(WAIT)
        assert "disposed" not in seen
        gate.opened.set()
        closing.join(WAIT)
    assert sorted(seen[:2]) == ["deferred", "ended"]
    assert seen[2:] == ["disposed"]


def test_a_shutdown_waits_for_handlers_no_longer_than_told(gate: Gate) -> None:
    service = rpc.Service("test")

    @service.rpc()
    def waits(ctx: rpc.Context, init: object) -> None:
        gate.entered.set()
        gate.opened.wait(WAIT)

    with rpc.serve([service]) as server, rpc.connect(server.url) as client:
        client.submit("test", "waits", None)
        assert gate.entered.wait(WAIT)
        server.shutdown(0.05)
        assert not gate.opened.is_set()
        gate.opened.set()


def test_a_handler_may_shut_its_server_down() -> None:
    service = rpc.Service("test")
    done = threading.Event()

    @service.rpc()
    def stop(ctx: rpc.Context, init: object) -> None:
        server.shutdown(WAIT)
        done.set()

    with rpc.serve([service]) as server, rpc.connect(server.url) as client:
        client.submit("test", "stop", None)
        assert done.wait(WAIT / 2)


# Options


def test_an_unknown_transport_is_refused(gate: Gate) -> None:
    with pytest.raises(ValueError, match="transport must be"):
        rpc.serve([offered(gate)], transport="udp")  # type: ignore[arg-type]


def test_further_sessions_are_refused(gate: Gate) -> None:
    failures: list[tuple[object, ...]] = []
    options = rpc.Options(max_sessions=1)
    with (
        rpc.serve(
            [offered(gate)], options=options, on_protocol_error=lambda *t: failures.append(t)
        ) as server,
        rpc.connect(server.url) as client,
        rpc.connect(server.url, options=rpc.Options(session_disconnect_grace=0.2)) as late,
    ):
        assert client.rpc("test", "same", 5, WAIT) == 5
        with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
            late.rpc("test", "same", 6, WAIT)
        assert client.rpc("test", "same", 7, WAIT) == 7
        wait_for(lambda: failures)
    text = "the server holds 1 sessions already"
    assert failures[0] == ("handshake_failed", text, "SESSION_STATE_MISMATCH")


# Ordinary requests


def test_the_schema_is_served_if_that_is_wished(gate: Gate) -> None:
    service = offered(gate)
    with rpc.serve([service], serve_schema=True) as server:
        status, kind, body = get(server.url)
        with rpc.connect(server.url) as client:
            assert client.rpc("test", "same", 5, WAIT) == 5
    assert (status, kind) == (200, "application/json")
    procedures = read_schema(json.loads(body)).services["test"].procedures
    assert set(procedures) == set(service.procedures)


def test_a_schema_has_the_time_of_a_handshake_to_arrive(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one takes a slow client longer than a refusal."""
    given: list[float] = []

    def noted(*arguments: Any) -> None:
        given.append(arguments[-1])
        respond(*arguments)

    monkeypatch.setattr(serving, "respond", noted)
    config = wsmux.Config(handshake_timeout=WAIT)
    with rpc.serve([offered(gate)], serve_schema=True, config=config) as server:
        assert get(server.url)[0] == 200
    assert given == [WAIT]


def test_by_default_nobody_reads_the_schema(gate: Gate) -> None:
    with rpc.serve([offered(gate)]) as server:
        status, _, body = get(server.url)
    assert (status, body) == (426, b"this address serves WebSockets only; send an upgrade\n")


# Flask


@pytest.mark.parametrize("name", ONE_SERVER)
def test_a_route_of_flask(name: str, wsgi_servers: WsgiServers) -> None:
    url = wsgi_servers.url(name)
    get(f"{url}river")  # it may still be starting
    with rpc.connect(f"{url}river") as client:
        assert client.rpc("test", "same", {"n": 1}, WAIT) == {"n": 1}
        with client.stream("test", "echo", None, WAIT) as echo:
            for number in range(100):
                echo.write(number)
            echo.close_write()
            assert list(echo) == list(range(100))
        with client.upload("test", "total", None, WAIT) as upload:
            upload.write(2)
            assert upload.finish() == 2
        assert list(client.subscribe("test", "count", 3, WAIT)) == [0, 1, 2]
    with rpc.connect(f"{url}silent", codec="json") as client:
        assert client.rpc("test", "same", b"bytes", WAIT) == b"bytes"
    assert "Traceback" not in wsgi_servers.log(name)


@pytest.mark.parametrize("name", ONE_SERVER)
def test_a_route_of_flask_shows_its_schema_if_that_is_wished(
    name: str, wsgi_servers: WsgiServers
) -> None:
    status, kind, body = get(f"{wsgi_servers.url(name)}river")
    assert (status, kind) == (200, "application/json")
    assert "test" in read_schema(json.loads(body)).services
    assert get(f"{wsgi_servers.url(name)}silent")[0] == 426


def test_a_subprotocol_is_refused_by_a_route(wsgi_servers: WsgiServers) -> None:
    with pytest.raises(wsmux.HandshakeError) as error:
        wsmux.connect(f"{wsgi_servers.url('werkzeug')}river")
    assert error.value.status == 400
