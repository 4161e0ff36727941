"""A server of tunnels does what a head asks for, if it is allowed, and says why not otherwise."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

import wsmux
from wsmux.runtime.deadline import Deadline
from wsmux.tunnel import AllowList, TunnelError, TunnelServer, Unix, exchange, parse_place
from wsmux.tunnel.dial import dial
from wsmux.tunnel.exchange import ask
from wsmux.tunnel.request_head import Request
from wsmux.tunnel.serving import through

from ..helpers.inside import record_of
from ..helpers.ports import free_port
from ..helpers.scripted import WAIT
from ..helpers.tunnel_server import Echo, connected, listens, receive_all, served_by, tunnels
from ..helpers.waiting import wait_for


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as running:
        yield running


@pytest.fixture
def client() -> Iterator[wsmux.Connection]:
    """Return a connection to a server that connects to everything on loopback."""
    with tunnels() as server, wsmux.connect(server.url) as connection:
        yield connection


def asked(connection: wsmux.Connection, method: str, target: str, *arguments: str) -> wsmux.Stream:
    """Return a stream whose request was granted."""
    stream = connection.open_stream(WAIT)
    ask(stream, Request(method, target, arguments), Deadline(WAIT))
    stream.timeout = WAIT
    return stream


def refused(connection: wsmux.Connection, method: str, target: str, *arguments: str) -> TunnelError:
    stream = connection.open_stream(WAIT)
    with stream, pytest.raises(TunnelError) as caught:
        ask(stream, Request(method, target, arguments), Deadline(WAIT))
    return caught.value


def test_a_tunnel_carries_both_ways_and_ends(client: wsmux.Connection, echo: Echo) -> None:
    stream = asked(client, "CONNECT", echo.place)
    stream.write(b"there and back")
    stream.close_write()
    assert stream.read() == b"there and back"


def test_what_is_sent_with_the_request_is_carried(client: wsmux.Connection, echo: Echo) -> None:
    stream = client.open_stream(WAIT)
    stream.timeout = WAIT
    stream.write(f"CONNECT {echo.place} HTTP/1.1\r\n\r\nearly".encode())
    stream.close_write()
    assert stream.read() == b"HTTP/1.1 200 OK\r\n\r\nearly"


def test_a_reset_of_the_place_is_one_of_the_stream(client: wsmux.Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = asked(client, "CONNECT", f"127.0.0.1:{listener.getsockname()[1]}")
        sock, _ = listener.accept()
        stream.write(b"not read")
        assert sock.recv(1) == b"n"
        sock.close()  # with bytes unread
        with pytest.raises(wsmux.StreamReset):
            stream.read()


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("CONNECT", "192.0.2.1:80", 403),
        ("CONNECT", "unix:/run/x", 403),
        ("CONNECT", "no-such-host.invalid:80", 403),
        ("CONNECT", "nonsense", 400),
        ("CONNECT", "127.0.0.1:0", 400),
        ("LISTEN", "0.0.0.0:0", 403),
        ("LISTEN", "nonsense", 400),
        ("EXEC", "sh", 403),
        ("STDIO", "token", 403),
        ("STDERR", "token", 403),
        ("GET", "/", 400),
    ],
)
def test_what_is_not_offered_is_refused(
    client: wsmux.Connection, method: str, target: str, status: int
) -> None:
    assert refused(client, method, target).status == status


def test_a_wildcard_offers_no_loopback_to_connect_to_but_to_listen_at(echo: Echo) -> None:
    with (
        tunnels(connect=["*:*"], listen=["*:*", "!127.0.0.2:*"]) as server,
        wsmux.connect(server.url) as connection,
    ):
        assert refused(connection, "CONNECT", echo.place).status == 403
        asked(connection, "LISTEN", "127.0.0.1:0").close()
        assert refused(connection, "LISTEN", "127.0.0.2:0").status == 403
        assert refused(connection, "LISTEN", "localhost:0").status == 403


def test_nothing_is_offered_by_default() -> None:
    offered = TunnelServer()
    with (
        wsmux.serve(stream_handler=offered.serve) as server,
        wsmux.connect(server.url) as connection,
    ):
        for method in ("CONNECT", "LISTEN", "EXEC"):
            assert refused(connection, method, "127.0.0.1:80").status == 403


def test_a_port_where_nobody_listens_is_told(client: wsmux.Connection) -> None:
    place = f"127.0.0.1:{free_port()}"
    error = refused(client, "CONNECT", place)
    assert error.status == 502
    assert "refused" in error.words


@pytest.mark.parametrize(
    "data",
    [b"CONNECT\r\n\r\n", b"\x00\xff\r\n\r\n", b"x" * 9000, b"GET / HTTP/1.1", b""],
    ids=["short", "binary", "long", "unended", "empty"],
)
def test_what_is_no_request_is_answered_with_400(client: wsmux.Connection, data: bytes) -> None:
    stream = client.open_stream(WAIT)
    stream.timeout = WAIT
    stream.write(data)
    stream.close_write()
    assert stream.read().startswith(b"HTTP/1.1 400 ")


def test_a_request_that_does_not_come_in_time_is_given_up(
    client: wsmux.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wsmux.tunnel.serving.HEAD_TIMEOUT", 0.01)
    stream = client.open_stream(WAIT)
    stream.timeout = WAIT
    with suppress(wsmux.StreamWriteClosed):  # the answer was first
        stream.write(b"CONN")
    assert stream.read().startswith(b"HTTP/1.1 504 ")


def test_more_tunnels_than_allowed_are_refused(echo: Echo) -> None:
    with (
        tunnels(connect=["127.0.0.1:*"], max_tunnels=1) as server,
        wsmux.connect(server.url) as connection,
    ):
        first = asked(connection, "CONNECT", echo.place)
        assert refused(connection, "CONNECT", echo.place).status == 503
        first.close_write()
        assert first.read() == b""
        wait_for(lambda: connection.stats().streams == 0)
        wait_for(lambda: served_by(server).stats().streams == 0)
        first.close()


def test_a_client_is_not_kept_waiting_for_an_answer() -> None:
    silent = threading.Event()
    with (
        wsmux.serve(stream_handler=lambda stream: silent.wait(WAIT)) as server,
        wsmux.connect(server.url) as connection,
    ):
        stream = connection.open_stream()
        with pytest.raises(TunnelError) as caught:
            ask(stream, Request("CONNECT", "h:1"), Deadline(0.05))
        assert caught.value.status == 504
        silent.set()


def test_what_answers_may_know_nothing_of_tunnels() -> None:
    def echo(stream: wsmux.Stream) -> None:
        stream.write(stream.read(1000))

    with wsmux.serve(stream_handler=echo) as server, wsmux.connect(server.url) as connection:
        assert refused(connection, "CONNECT", "h:1").status == 502


def test_a_server_that_takes_no_streams_is_busy() -> None:
    with (
        wsmux.serve(lambda connection: connection.wait_closed(), accept_streams=False) as server,
        wsmux.connect(server.url) as connection,
    ):
        assert refused(connection, "CONNECT", "h:1").status == 503


def test_an_answer_that_comes_before_the_request_is_read_is_heard() -> None:
    def refuse(stream: wsmux.Stream) -> None:
        stream.close_read()
        exchange.answer(stream, 503, "busy")

    with wsmux.serve(stream_handler=refuse) as server, wsmux.connect(server.url) as connection:
        stream = connection.open_stream()
        wait_for(lambda: record_of(stream).buffer.size)
        with stream, pytest.raises(TunnelError, match="busy"):
            ask(stream, Request("CONNECT", "h:1"), Deadline(WAIT))


# Listening for a client


def test_the_server_listens_as_long_as_its_client_wants(client: wsmux.Connection) -> None:
    control = client.open_stream(WAIT)
    place = ask(control, Request("LISTEN", "127.0.0.1:0", ("key",)), Deadline(WAIT))
    with connected(place) as sock:
        brought = client.accept_stream(WAIT)
        request = exchange.receive_request(brought, Deadline(WAIT))
        assert request == Request("CONNECT", place, ("key",))
        exchange.answer(brought, 200, "OK")
        brought.write(b"from the client")
        brought.close_write()
        assert receive_all(sock) == b"from the client"
        brought.close()
    control.close()
    wait_for(lambda: not listens(place))


def test_a_client_that_refuses_has_the_connection_reset(client: wsmux.Connection) -> None:
    control = client.open_stream(WAIT)
    place = ask(control, Request("LISTEN", "127.0.0.1:0"), Deadline(WAIT))
    with connected(place) as sock:
        brought = client.accept_stream(WAIT)
        exchange.receive_request(brought, Deadline(WAIT))
        exchange.answer(brought, 403, "no")
        brought.close()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    control.close()


def test_a_lost_client_is_not_listened_for(client: wsmux.Connection) -> None:
    control = client.open_stream(WAIT)
    place = ask(control, Request("LISTEN", "127.0.0.1:0"), Deadline(WAIT))
    client.abort()
    wait_for(lambda: not listens(place))


def test_a_port_in_use_is_told(client: wsmux.Connection, echo: Echo) -> None:
    error = refused(client, "LISTEN", echo.place)
    assert error.status == 502
    assert "in use" in error.words


# Connecting


def test_a_name_is_connected_to_where_its_address_is_allowed(echo: Echo) -> None:
    port = echo.place.rpartition(":")[2]
    with dial(parse_place(f"localhost:{port}"), AllowList([f"127.0.0.0/8:{port}"])) as sock:
        assert sock.getpeername()[0] == "127.0.0.1"


def test_a_name_that_resolves_to_what_is_not_allowed_is_refused() -> None:
    with pytest.raises(TunnelError) as caught:
        dial(parse_place("localhost:80"), AllowList(["192.0.2.0/24:80"]))
    assert caught.value.status == 403


def test_a_name_that_does_not_resolve_is_told_to_who_may_go_there() -> None:
    with pytest.raises(TunnelError) as caught:
        dial(parse_place("no-such-host.invalid:80"), None)
    assert caught.value.status == 502


def test_each_address_of_a_name_is_tried(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(echo.place.rpartition(":")[2])
    with socket.create_server(("127.0.0.2", 0)) as listener:
        closed = listener.getsockname()[1]
    addresses = [("127.0.0.2", closed), ("127.0.0.1", port)]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    with dial(parse_place("name:80"), None) as sock:
        assert sock.getpeername() == addresses[1]


def test_an_address_that_does_not_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = []
        for _ in range(4):  # what the backlog takes, and more
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(address)
            waiting.append(sock)
        with pytest.raises(TunnelError) as caught:
            dial(parse_place(f"127.0.0.1:{address[1]}"), None, timeout=0.05)
        for sock in waiting:
            sock.close()
    assert caught.value.status == 504


def test_a_socket_that_is_not_there_is_told() -> None:
    with pytest.raises(TunnelError, match="No such file"):
        dial(Unix("/no/such/socket"), None)


def test_a_process_without_descriptors_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object) -> socket.socket:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", none)
    with pytest.raises(TunnelError) as caught:
        dial(Unix("/run/x"), None)
    assert caught.value.status == 503


def test_a_client_that_is_gone_before_its_tunnel_stands_leaves_nothing(echo: Echo) -> None:
    ended = threading.Event()

    def serve(stream: wsmux.Stream) -> None:
        stream.connection.abort()
        with pytest.raises(wsmux.ConnectionClosed):
            through(stream, parse_place(echo.place), connected(echo.place))
        ended.set()

    with wsmux.serve(stream_handler=serve) as server, wsmux.connect(server.url) as connection:
        stream = connection.open_stream()
        assert ended.wait(WAIT)
        stream.close()
