"""Choose a wire and a carrier: what a client offers, what a server takes, what cannot be."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

import wsmux

from ..helpers import scripted
from ..helpers.certificates import Certificates
from ..helpers.connections import Spawn
from ..helpers.ports import free_port
from ..helpers.scripted import WAIT, call, pattern
from ..helpers.wires import NAMES

# An address where nobody is asked: the options are wrong before.
NOWHERE = "tcp://127.0.0.1:9"


def serve(*protocols: str) -> wsmux.Server:
    return wsmux.serve(stream_handler=scripted.handle, protocols=protocols)


# Over WebSockets


@pytest.mark.parametrize(
    ("offered", "served", "chosen"),
    [
        (["bymux", "yamux", "wsmux"], NAMES, "bymux"),
        (["yamux", "bymux"], NAMES, "yamux"),
        (("wsmux", "yamux"), ["yamux", "wsmux"], "wsmux"),
        (["bymux", "yamux"], ["yamux", "js-ws"], "yamux"),
        (["yamux"], ["js-ws", "yamux"], "yamux"),
        ("js-ws", ["yamux", "js-ws"], "js-ws"),
    ],
)
def test_the_first_offer_that_is_served_is_chosen(
    offered: Any, served: tuple[str, ...], chosen: str
) -> None:
    with (
        serve(*served) as server,
        wsmux.connect(server.url, protocol=offered) as connection,
    ):
        assert connection.protocol == chosen
        assert call(connection, "source", 10, 1) == pattern(10, 1)
        assert [end.protocol for end in server.connections] == [chosen]


@pytest.mark.parametrize("offered", ["wsmux", ["wsmux", "yamux"], "js-ws"])
def test_a_refusal_names_what_is_served(offered: Any) -> None:
    served = ["bymux"] if "yamux" in offered else ["bymux", "yamux"]
    with (
        serve(*served) as server,
        pytest.raises(wsmux.HandshakeError, match=f"serves {', '.join(served)}") as error,
    ):
        wsmux.connect(server.url, protocol=offered)
    assert error.value.status == 400


@pytest.mark.parametrize("protocol", NAMES)
def test_the_only_wire_is_spoken_where_no_subprotocol_is_offered(protocol: str) -> None:
    with (
        serve(protocol) as server,
        wsmux.connect(server.url, protocol=protocol, subprotocol=None) as connection,
    ):
        assert connection.protocol == protocol
        assert call(connection, "source", 10, 1) == pattern(10, 1)
        assert [end.protocol for end in server.connections] == [protocol]


def test_a_wire_named_twice_is_still_the_only_one() -> None:
    with (
        serve("yamux", "yamux") as server,
        wsmux.connect(server.url, protocol="yamux", subprotocol=None) as connection,
    ):
        assert call(connection, "source", 10, 1) == pattern(10, 1)


@pytest.mark.parametrize(
    ("offered", "served"), [(None, ["wsmux", "yamux"]), ("other-name", ["yamux"])], ids=str
)
def test_no_wire_is_guessed(offered: str | None, served: list[str]) -> None:
    with (
        serve(*served) as server,
        pytest.raises(wsmux.HandshakeError, match="no common subprotocol") as error,
    ):
        wsmux.connect(server.url, protocol="yamux", subprotocol=offered)
    assert error.value.status == 400


def test_the_own_name_of_a_wire_can_be_offered_by_name() -> None:
    with (
        serve("yamux", "wsmux") as server,
        wsmux.connect(server.url, protocol="wsmux", subprotocol="wsmux.v1") as connection,
    ):
        assert call(connection, "source", 10, 1) == pattern(10, 1)


@pytest.mark.parametrize("subprotocol", [None, "yamux"])
def test_a_subprotocol_for_several_wires_is_a_value_error(subprotocol: str | None) -> None:
    with pytest.raises(ValueError, match="subprotocol= names one protocol"):
        wsmux.connect("ws://127.0.0.1:9", protocol=["yamux", "wsmux"], subprotocol=subprotocol)


@pytest.mark.parametrize("subprotocol", ["", "a, b", "a\r\nX: y", "caf\u00e9", "a/b"])
def test_what_is_no_subprotocol_is_a_value_error(subprotocol: str) -> None:
    with pytest.raises(ValueError, match="single token"):
        wsmux.connect("ws://127.0.0.1:9", subprotocol=subprotocol)


@pytest.mark.parametrize("offered", [["wsmux", "js-ws"], ["js-ws", "yamux"], []])
def test_what_cannot_be_offered_is_a_value_error(offered: list[str]) -> None:
    with pytest.raises(ValueError, match="js-ws"):
        wsmux.connect("ws://127.0.0.1:9", protocol=offered)


@pytest.mark.parametrize("url", ["ws://127.0.0.1:9", NOWHERE])
@pytest.mark.parametrize("protocol", ["mplex", ["mplex"]])
def test_an_unknown_wire_is_a_value_error(url: str, protocol: Any) -> None:
    with pytest.raises(ValueError, match="protocol must be one of wsmux, js-ws, yamux, bymux"):
        wsmux.connect(url, protocol=protocol)


# Over plain sockets


@pytest.mark.parametrize("protocol", NAMES)
def test_a_plain_socket_speaks_the_wire_it_is_told(protocol: str) -> None:
    with wsmux.serve(
        stream_handler=scripted.handle, protocols=[protocol], transport="tcp"
    ) as server:
        assert server.url == f"tcp://127.0.0.1:{server.port}"
        with wsmux.connect(server.url, protocol=[protocol]) as connection:
            assert connection.protocol == protocol
            assert connection.request is None
            assert call(connection, "source", 300_000, 1) == pattern(300_000, 1)


@pytest.mark.parametrize("protocol", [["wsmux", "yamux"], []])
def test_a_plain_socket_cannot_choose(protocol: list[str]) -> None:
    with pytest.raises(ValueError, match="name exactly one"):
        wsmux.connect(NOWHERE, protocol=protocol)
    with pytest.raises(ValueError, match="name exactly one|name one"):
        wsmux.serve(stream_handler=scripted.handle, protocols=protocol, transport="tcp")


def test_an_unknown_transport_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="transport must be 'websocket' or 'tcp', not 'udp'"):
        wsmux.serve(stream_handler=scripted.handle, transport="udp")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"headers": {"Authorization": "x"}}, "headers"),
        ({"cookie": "a=b"}, "cookie"),
        ({"subprotocol": None}, "subprotocol"),
        ({"subprotocol": "x", "headers": ["A: b"]}, "subprotocol, headers"),
        ({"origin": "http://x", "headers": ["A: b"], "cookie": "a=b"}, "headers, cookie, origin"),
    ],
)
def test_a_plain_socket_takes_nothing_of_a_request(options: dict[str, Any], named: str) -> None:
    with pytest.raises(TypeError, match=f"takes no {named}$"):
        wsmux.connect(NOWHERE, **options)


@pytest.mark.parametrize("url", ["tcp://", "tcp://127.0.0.1", "tcp://:80", "tcp://127.0.0.1:9/x"])
def test_an_address_without_host_or_port_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError, match="not of the form tcp://host:port|has no host"):
        wsmux.connect(url)


def test_a_host_that_does_not_exist_is_a_handshake_error() -> None:
    with pytest.raises(wsmux.HandshakeError, match="cannot be resolved"):
        wsmux.connect("tcp://no-such-host.invalid:80")


def test_an_address_where_nobody_listens_is_an_os_error() -> None:
    port = free_port()
    with pytest.raises(ConnectionRefusedError):
        wsmux.connect(f"tcp://127.0.0.1:{port}")


def test_connecting_ends_with_the_time(full_backlog: str) -> None:
    with pytest.raises(TimeoutError, match="no answer from tcp://"):
        wsmux.connect(full_backlog, timeout=0.05)


@pytest.fixture
def full_backlog() -> Iterator[str]:
    """Return the address of a listener that takes no further connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        host, port = listener.getsockname()
        waiting = []
        for _ in range(3):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex((host, port))
            waiting.append(sock)
        yield f"tcp://{host}:{port}"
        for sock in waiting:
            sock.close()


# TLS over plain sockets


@pytest.mark.parametrize("protocol", NAMES)
def test_tls_protects_a_plain_socket(protocol: str, certificates: Certificates) -> None:
    with (
        wsmux.serve(
            stream_handler=scripted.handle,
            protocols=[protocol],
            transport="tcp",
            ssl_context=certificates.server,
        ) as server,
        wsmux.connect(
            f"tcp://localhost:{server.port}", protocol=protocol, ssl_context=certificates.client
        ) as connection,
    ):
        assert call(connection, "source", 300_000, 1) == pattern(300_000, 1)
        assert connection.ping(WAIT) > 0


def test_an_unknown_certificate_is_a_handshake_error(certificates: Certificates) -> None:
    with (
        wsmux.serve(
            stream_handler=scripted.handle, transport="tcp", ssl_context=certificates.server
        ) as server,
        pytest.raises(wsmux.HandshakeError, match="TLS with tcp://"),
    ):
        wsmux.connect(server.url, ssl_context=ssl.create_default_context())


def test_tls_ends_with_the_time(certificates: Certificates) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TimeoutError, match="no answer from tcp://"):
            wsmux.connect(url, timeout=0.05, ssl_context=certificates.client)


def test_tls_that_is_cut_off_is_an_os_error(certificates: Certificates, spawn: Spawn) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        connecting = spawn(
            lambda: wsmux.connect(f"tcp://127.0.0.1:{port}", ssl_context=certificates.client)
        )
        sock = listener.accept()[0]
        sock.recv(1)
        sock.close()
        with pytest.raises(OSError, match=r"."):
            connecting.result(WAIT)


def test_a_client_without_tls_is_dropped_by_a_server_with_it(certificates: Certificates) -> None:
    with (
        wsmux.serve(
            stream_handler=scripted.handle, transport="tcp", ssl_context=certificates.server
        ) as server,
        wsmux.connect(server.url) as connection,
        connection.open_stream() as stream,
        pytest.raises(wsmux.ConnectionClosedError),
    ):
        stream.read()
