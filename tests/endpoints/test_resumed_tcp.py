"""Connections over plain sockets resume where both ends want it, and are plain everywhere else."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import wsmux
from wsmux.handshake import resume_line
from wsmux.testing import FaultProxy

from ..helpers.raw_peer import in_thread
from ..helpers.timeouts import CONNECTS, WAIT
from ..helpers.waiting import threads_of, wait_for
from ..helpers.wires import NAMES

MIB = 1 << 20


def echo(stream: wsmux.Stream) -> None:
    stream.timeout = WAIT
    while data := stream.read(65536):
        stream.write(data)
    stream.close_write()


@contextmanager
def served(protocol: str = "wsmux", **options: Any) -> Iterator[tuple[wsmux.Server, str]]:
    options = {"stream_handler": echo, "resume": True, **options}
    with wsmux.serve(protocols=[protocol], transport="tcp", **options) as server:
        try:
            yield server, server.url
        finally:
            server.shutdown(0)


def check_echo(connection: wsmux.Connection, size: int = 100) -> None:
    """Send bytes and read them back."""
    data = os.urandom(size)
    with connection.open_stream(timeout=WAIT) as stream:
        stream.timeout = WAIT
        writing = in_thread(lambda: (stream.write(data), stream.close_write()))
        assert stream.read() == data
        writing.result(WAIT)


@pytest.mark.parametrize("protocol", NAMES)
@pytest.mark.parametrize("way", ["up", "down"])
def test_streams_over_a_plain_socket_go_on_behind_cuts(protocol: str, way: Any) -> None:
    with served(protocol) as (server, _), FaultProxy(server.port) as proxy:
        url = f"tcp://127.0.0.1:{proxy.port}"
        with wsmux.connect(url, protocol=protocol, resume=True) as connection:
            assert connection.resumable
            proxy.cut_after(MIB // 2, 70_001, 13, way=way, how="rst")
            check_echo(connection, 2 * MIB)
            assert not proxy.cutting
            assert connection.stats().reconnects >= 2
            assert len(server.connections) == 1


@pytest.mark.parametrize("protocol", NAMES)
def test_a_server_that_does_not_resume_gives_the_plain_wire(protocol: str) -> None:
    with (
        served(protocol, resume=False) as (_, url),
        wsmux.connect(url, protocol=protocol, resume=True, timeout=WAIT) as connection,
    ):
        assert not connection.resumable
        check_echo(connection)


@pytest.mark.parametrize("protocol", NAMES)
def test_a_client_that_does_not_ask_gets_the_plain_wire(protocol: str) -> None:
    with served(protocol) as (_, url), wsmux.connect(url, protocol=protocol) as connection:
        assert not connection.resumable
        check_echo(connection)


def test_a_client_that_waits_for_the_server_gets_the_plain_wire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resume_line, "SILENCE", 0.05)

    def talk(connection: wsmux.Connection) -> None:
        with connection.open_stream(timeout=WAIT) as stream:
            stream.write(b"first")
            stream.close_write()
            stream.read()

    with (
        served(handler=talk, stream_handler=None) as (_, url),
        wsmux.connect(url) as connection,
        connection.accept_stream(WAIT) as stream,
    ):
        stream.timeout = WAIT
        assert stream.read() == b"first"


def test_the_wire_must_be_the_one_that_is_served() -> None:
    with (
        served("yamux") as (_, url),
        pytest.raises(wsmux.HandshakeError, match="this port serves the wire yamux"),
    ):
        wsmux.connect(url, protocol="bymux", resume=True)


def test_a_server_that_does_not_resume_any_more_is_asked_until_the_grace_is_over() -> None:
    with (
        served(resume=wsmux.Resume(grace=CONNECTS)) as (server, _),
        served(resume=False) as (other, _),
        FaultProxy(server.port) as proxy,
        wsmux.connect(f"tcp://127.0.0.1:{proxy.port}", resume=True) as connection,
    ):
        proxy.target = ("127.0.0.1", other.port)
        proxy.reset()
        assert connection.wait_closed(WAIT)
        assert isinstance(connection.error, wsmux.ResumeLost)
        assert "does not resume connections any more" in connection.error.why


def test_an_abort_ends_an_attempt_that_gets_no_answer() -> None:
    config = wsmux.Config(handshake_timeout=10 * WAIT)
    with (
        served() as (server, _),
        FaultProxy(server.port) as proxy,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        url = f"tcp://127.0.0.1:{proxy.port}"
        connection = wsmux.connect(url, resume=True, config=config)
        proxy.target = silent.getsockname()
        proxy.reset()
        silent.settimeout(WAIT)
        accepted, _ = silent.accept()
        with accepted:
            connection.abort()
            wait_for(lambda: not any(names_of(connection)))


def names_of(connection: wsmux.Connection) -> list[str]:
    """Return the names of the threads of a connection."""
    return [each.name for each in threading.enumerate() if each.name.startswith(connection.name)]


def test_a_full_server_lets_its_own_clients_return_and_nobody_else() -> None:
    with (
        served(max_connections=1) as (server, _),
        FaultProxy(server.port) as proxy,
        wsmux.connect(f"tcp://127.0.0.1:{proxy.port}", resume=True) as connection,
    ):
        check_echo(connection)
        proxy.reset()
        wait_for(lambda: connection.stats().reconnects == 1)
        check_echo(connection)
        wait_for(lambda: threads_of(server) == 1)
        other = wsmux.connect(server.url)
        with pytest.raises(wsmux.ConnectionClosedError):
            check_echo(other)
        assert len(server.connections) == 1


def test_a_shutdown_does_not_wait_for_a_client_that_says_nothing() -> None:
    with served() as (server, _), socket.create_connection(("127.0.0.1", server.port)) as sock:
        wait_for(lambda: threads_of(server) == 1)
        server.shutdown(WAIT)
        sock.settimeout(WAIT)
        assert sock.recv(1) == b""


def test_tls_alone_is_not_resumable() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(ValueError, match="with TLS is not resumable"):
        wsmux.serve(stream_handler=echo, transport="tcp", ssl_context=context, resume=True)
