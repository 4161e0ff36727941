"""Plain sockets are connected, with TLS or without; what goes wrong has a type and a sentence."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from wsmux.exceptions import HandshakeError
from wsmux.handshake.tcp import connect_tcp, is_tcp
from wsmux.runtime import clock
from wsmux.runtime.deadline import Deadline

WAIT = 20.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def url(listener: socket.socket) -> str:
    return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def test_only_tcp_addresses_are_plain_sockets() -> None:
    assert is_tcp("tcp://h:1")
    assert is_tcp("TCP://h:1")
    assert not is_tcp("ws://h:1")


def test_a_socket_reaches_the_listener(listener: socket.socket) -> None:
    with connect_tcp(url(listener), None, Deadline(WAIT)) as sock:
        accepted, _ = listener.accept()
        with accepted:
            sock.sendall(b"x")
            assert accepted.recv(1) == b"x"


@pytest.mark.parametrize("address", ["tcp://h", "tcp://:1", "tcp://h:1/path", "tcp://h:0"])
def test_an_address_without_host_or_port_or_with_a_path_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is not of the form tcp://host:port"):
        connect_tcp(address, None, Deadline(WAIT))


def test_a_name_that_does_not_exist_is_told() -> None:
    with pytest.raises(HandshakeError, match="the host name cannot be resolved"):
        connect_tcp("tcp://name.invalid:1", None, Deadline(WAIT))


def test_where_nobody_listens_the_address_is_told(listener: socket.socket) -> None:
    address = url(listener)
    listener.close()
    with pytest.raises(ConnectionRefusedError, match=address):
        connect_tcp(address, None, Deadline(WAIT))


def test_an_address_that_swallows_all_leaves_time_for_the_others(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    shares: list[float] = []

    class Swallowing(socket.socket):
        def connect(self, address: Any) -> None:
            nonlocal now
            share = self.gettimeout()
            assert share is not None
            shares.append(share)
            if address[0].startswith("192.0.2."):
                now += share
                raise TimeoutError("timed out")
            super().connect(address)

    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, listener.getsockname()[1]))
        for host in ("192.0.2.1", "192.0.2.2", "127.0.0.1")
    ]
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    monkeypatch.setattr(socket, "socket", Swallowing)
    with connect_tcp(url(listener), None, Deadline(30.0)) as sock:
        assert shares == pytest.approx([10.0, 10.0, 10.0])
        assert sock.gettimeout() == pytest.approx(10.0)


def test_a_listener_that_speaks_no_tls_is_told_and_the_socket_closed(
    listener: socket.socket,
) -> None:
    def answer() -> None:
        accepted, _ = listener.accept()
        with accepted:
            accepted.recv(1)
            accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(HandshakeError, match="TLS"):
        connect_tcp(url(listener), ssl.create_default_context(), Deadline(WAIT))
    thread.join(WAIT)


def test_a_listener_that_says_nothing_is_given_up_in_time(listener: socket.socket) -> None:
    with pytest.raises(TimeoutError, match="no answer from tcp://127.0.0.1"):
        connect_tcp(url(listener), ssl.create_default_context(), Deadline(0.2))
    accepted, _ = listener.accept()
    with accepted:
        accepted.settimeout(WAIT)
        while accepted.recv(4096):  # its hello, and then the end: the socket was closed
            pass
