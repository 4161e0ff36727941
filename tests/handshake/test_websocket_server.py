"""Abuse the handshake of ``wsmux.serve``: it refuses in HTTP's own words, in time and in bounds."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from flask import Flask

import wsmux
from wsmux.flask import Mux

from ..helpers.certificates import Certificates
from ..helpers.raw_peer import (
    ACK,
    WAIT,
    Frame,
    RawPeer,
    close_payload,
    message,
    raw_client,
    read_head,
    request,
    uint32,
    wait_for,
)
from ..helpers.request_heads import answer, dial, serving
from ..helpers.waiting import threads_of
from ..helpers.werkzeug_server import serving as werkzeug_serving

QUICK = wsmux.Config(handshake_timeout=1.0, max_handshake_size=4096)


@pytest.fixture
def server() -> Iterator[wsmux.Server]:
    with serving() as running:
        yield running


def address(server: wsmux.Server) -> str:
    return f"127.0.0.1:{server.port}"


def closed_without_a_word(sock: socket.socket) -> None:
    """Wait for the end of a connection that is not worth an answer."""
    try:
        assert sock.recv(4096) == b""
    except ConnectionResetError:
        return


def check_alive(server: wsmux.Server) -> None:
    wait_for(lambda: not threads_of(server), "the refused client's thread to end")
    with wsmux.connect(server.url) as connection:
        connection.ping(WAIT)


WORDS = [
    ("plain-get", {"Upgrade": None, "Connection": None}, 426, "WebSocket"),
    ("upgrade-to-h2c", {"Upgrade": "h2c"}, 426, "WebSocket"),
    ("version-8", {"Sec-WebSocket-Version": "8"}, 426, "version 13"),
    ("version-14", {"Sec-WebSocket-Version": "14"}, 426, "version 13"),
    ("no-version", {"Sec-WebSocket-Version": None}, 426, "version 13"),
    ("other-subprotocol", {"Sec-WebSocket-Protocol": "chat"}, 400, "wsmux.v1"),
    ("subprotocol-prefix", {"Sec-WebSocket-Protocol": "wsmux.v10, wsmux"}, 400, "wsmux.v1"),
    ("subprotocol-in-capitals", {"Sec-WebSocket-Protocol": "WSMUX.V1"}, 400, "wsmux.v1"),
    ("other-subprotocol-behind-none", {"Sec-WebSocket-Protocol": ", chat"}, 400, "wsmux.v1"),
    ("no-connection-header", {"Connection": None}, 400, "Connection header"),
    ("connection-close", {"Connection": "close"}, 400, "Connection header"),
    ("no-key", {"Sec-WebSocket-Key": None}, 400, "key"),
    ("foreign-origin", {"Origin": "https://evil.example"}, 403, "evil.example"),
    ("origin-without-host", {"Origin": "http://a.example", "Host": None}, 400, "no Host"),
]


@pytest.mark.parametrize(
    ("headers", "status", "names"),
    [pytest.param(*case[1:], id=case[0]) for case in WORDS],
)
def test_refusal_has_a_status_and_a_sentence(
    server: wsmux.Server,
    quiet: Callable[[], None],
    headers: dict[str, str | None],
    status: int,
    names: str,
) -> None:
    got, fields, body = answer(server, request(address(server), headers))
    assert got == status
    assert names in body
    assert fields["connection"] == "close"
    assert fields["content-type"].startswith("text/plain")
    if status == 426:
        assert fields["upgrade"] == "websocket"
        assert fields["sec-websocket-version"] == "13"
    check_alive(server)


# A ping of each wire and its answer: Yamux's own in a message, else the WebSocket's.
YAMUX_PING = b"\0\2\0\1" + uint32(0) + b"1234"
YAMUX_PONG = b"\0\2\0\2" + uint32(0) + b"1234"
PINGS = [
    ("yamux", 2, YAMUX_PING, Frame(2, YAMUX_PONG, True)),
    ("wsmux", 9, b"1234", Frame(10, b"1234", True)),
    ("bymux", 9, b"1234", Frame(10, b"1234", True)),
    ("js-ws", 9, b"1234", Frame(10, b"1234", True)),
]


@pytest.mark.parametrize("offer", [None, ""])
@pytest.mark.parametrize(
    ("wire", "opcode", "ping", "pong"), [pytest.param(*case, id=case[0]) for case in PINGS]
)
def test_client_without_a_subprotocol_gets_the_only_wire_and_an_answer_without_one(
    wire: str, opcode: int, ping: bytes, pong: Frame, offer: str | None
) -> None:
    with serving(protocols=[wire]) as server, dial(server) as sock:
        sock.sendall(request(address(server), {"Sec-WebSocket-Protocol": offer}))
        first, headers = read_head(sock)
        assert first.startswith("HTTP/1.1 101 ")
        assert "sec-websocket-protocol" not in headers
        peer = RawPeer(sock, masks=True)
        peer.send_frame(opcode, ping)
        while (frame := peer.recv_frame()).opcode != pong.opcode:
            assert wire == "bymux", frame  # it speaks first
        assert frame == pong


@pytest.mark.parametrize("key", ["", "short", "AAAA", "!" * 24, "A" * 44], ids=repr)
def test_key_that_is_not_16_bytes_is_refused(server: wsmux.Server, key: str) -> None:
    assert answer(server, request(address(server), {"Sec-WebSocket-Key": key}))[0] == 400


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", 405, id="post"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, id="http2"),
        pytest.param(b"\x00\xff\x13\x37\r\n\r\n", 400, id="garbage"),
        pytest.param(b"\r\n\r\n", 400, id="empty-line"),
        pytest.param(b"GET /\r\n\r\n", 400, id="http-0.9"),
        pytest.param(b"GET  / HTTP/1.1\r\n\r\n", 400, id="two-spaces"),
        pytest.param(b"GET http://x/ HTTP/1.1\r\n\r\n", 400, id="absolute-form"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431, id="200-headers"),
        pytest.param(b"GET / HTTP/1.1\r\nA: " + b"b" * 70000, 431, id="long-header"),
        pytest.param(b"GET /" + b"a" * 70000, 431, id="long-path"),
        pytest.param(b"A: b\r\n" * 12000, 431, id="endless-headers"),
        pytest.param(b"\x81\x85\0\0\0\0hello\r\n\r\n", 400, id="frame-without-handshake"),
    ],
)
def test_what_is_no_request_is_refused(
    server: wsmux.Server, quiet: Callable[[], None], data: bytes, status: int
) -> None:
    with dial(server) as sock:
        sock.sendall(data)
        try:
            first, _ = read_head(sock)
        except ConnectionResetError:
            assert status == 431, "only a client that is still sending may miss the answer"
        else:
            assert int(first.split()[1]) == status
    check_alive(server)


@pytest.mark.parametrize("cut", [0, 1, 20, 100, 170])
@pytest.mark.parametrize("how", ["fin", "reset"])
def test_client_that_leaves_within_its_request_leaves_nothing_behind(
    server: wsmux.Server, quiet: Callable[[], None], cut: int, how: str
) -> None:
    peer = RawPeer(dial(server), masks=True)
    peer.send(request(address(server))[:cut])
    if how == "fin":
        peer.sock.shutdown(socket.SHUT_WR)
        closed_without_a_word(peer.sock)
        peer.sock.close()
    else:
        peer.reset()
    check_alive(server)


def test_dribbled_request_ends_at_one_deadline_for_all_of_it(quiet: Callable[[], None]) -> None:
    with serving(config=QUICK) as server, dial(server) as sock:
        started = time.monotonic()
        text = request(address(server), {"X-Long": "x" * 4000})
        try:
            for byte in text:
                sock.sendall(bytes((byte,)))
                if select_readable(sock, 0.02):
                    break
        except (BrokenPipeError, ConnectionResetError):
            pass
        closed_without_a_word(sock)
        assert time.monotonic() - started < WAIT, "the deadline was not for the whole request"
        check_alive(server)


def select_readable(sock: socket.socket, timeout: float) -> bool:
    sock.settimeout(timeout)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK)) or True
    except TimeoutError:
        return False
    finally:
        sock.settimeout(WAIT)


def test_silent_client_is_dropped_at_the_deadline(quiet: Callable[[], None]) -> None:
    with serving(config=QUICK) as server, dial(server) as sock:
        closed_without_a_word(sock)
        check_alive(server)


def test_slow_clients_do_not_hold_up_others(server: wsmux.Server) -> None:
    idle = [dial(server) for _ in range(20)]
    with wsmux.connect(server.url, timeout=WAIT) as connection:
        connection.ping(WAIT)
    for sock in idle:
        sock.close()


def test_client_beyond_the_limit_gets_503(quiet: Callable[[], None]) -> None:
    with serving(max_connections=2) as server, dial(server), raw_client(server.port):
        wait_for(lambda: threads_of(server) == 2)
        with dial(server) as third:
            assert read_head(third)[0].startswith("HTTP/1.1 503 ")


@pytest.mark.parametrize(
    "offer",
    [
        "permessage-deflate",
        "permessage-deflate; client_max_window_bits; server_max_window_bits=10",
        "x-webkit-deflate-frame, permessage-deflate",
    ],
)
def test_compression_is_never_accepted(server: wsmux.Server, offer: str) -> None:
    with dial(server) as sock:
        sock.sendall(request(address(server), {"Sec-WebSocket-Extensions": offer}))
        first, headers = read_head(sock)
        assert first.startswith("HTTP/1.1 101 ")
        assert "sec-websocket-extensions" not in headers
        peer = RawPeer(sock, masks=True)
        peer.send_frame(2, message(0, ACK, uint32(1)), reserved=4)
        assert peer.recv_close()[0] == 1002


# Origin


LISTED = "https://app.example"

LOOK_ALIKES = {
    "suffix": "https://app.example.evil.example",
    "suffix-without-dot": "https://app.exampleevil.example",
    "prefix": "https://evilapp.example",
    "subdomain": "https://sub.app.example",
    "parent": "https://example",
    "other-port": "https://app.example:8443",
    "port-80": "https://app.example:80",
    "other-scheme": "http://app.example",
    "websocket-scheme": "wss://app.example",
    "null": "null",
    "empty": "",
    "userinfo": "https://app.example@evil.example",
    "userinfo-of-ours": "https://evil@app.example",
    "password": "https://a:b@app.example",
    "trailing-dot": "https://app.example.",
    "path": "https://app.example/",
    "longer-path": "https://app.example/x",
    "query": "https://app.example?x",
    "fragment": "https://app.example#x",
    "backslash": "https://app.example\\evil.example",
    "space-inside": "https://app.example evil.example",
    "two-origins": "https://app.example https://evil.example",
    "ipv6": "https://[::1]",
    "ipv6-broken": "https://[::1",
    "ipv6-with-name": "https://[app.example]",
    "port-not-a-number": "https://app.example:x",
    "port-too-large": "https://app.example:99999",
    "no-scheme": "app.example",
    "slashes-only": "//app.example",
    "homograph": "https://\xe0pp.example",
    "wildcard": "*",
}


@pytest.mark.parametrize("origin", LOOK_ALIKES.values(), ids=LOOK_ALIKES.keys())
def test_look_alike_of_a_listed_origin_is_refused(
    origin: str, origin_server: wsmux.Server, quiet: Callable[[], None]
) -> None:
    status, _, body = answer(
        origin_server, request(address(origin_server), {"Origin": origin}, "GET / HTTP/1.1")
    )
    assert status == 403
    assert "origin" in body


@pytest.fixture(scope="module")
def origin_server() -> Iterator[wsmux.Server]:
    with serving(origins=[LISTED, "http://[2001:db8::7]:8080"]) as running:
        yield running


@pytest.mark.parametrize(
    "origin",
    [LISTED, "https://app.example:443", "HTTPS://App.Example", "http://[2001:db8::7]:8080", None],
    ids=str,
)
def test_listed_origin_or_none_at_all_is_accepted(
    origin: str | None, origin_server: wsmux.Server
) -> None:
    with dial(origin_server) as sock:
        sock.sendall(request(address(origin_server), {"Origin": origin}))
        assert read_head(sock)[0].startswith("HTTP/1.1 101 ")


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:1", None),
        ("http://127.0.0.1", None),
        ("https://{host}", None),
        ("http://localhost:{port}", None),
        ("http://127.0.0.1.evil.example:{port}", None),
        ("http://{host}.", None),
        ("http://user@{host}", None),
        ("http://evil.example", "victim.example"),
        ("http://evil.example", "evil.example.victim.example"),
        ("null", None),
        ("http://[::1]:{port}", None),
        ("http://0x7f.1:{port}", None),
    ],
)
def test_look_alike_of_the_own_origin_is_refused(
    server: wsmux.Server, origin: str, host: str | None
) -> None:
    own = address(server)
    filled = origin.format(host=own, port=server.port)
    assert answer(server, request(host or own, {"Origin": filled}))[0] == 403


@pytest.mark.parametrize("host", ["{own}", "Name.Example:81", "[::1]:81", "name.example"])
def test_same_origin_is_accepted(server: wsmux.Server, host: str) -> None:
    host = host.format(own=address(server))
    with dial(server) as sock:
        sock.sendall(request(host, {"Origin": f"http://{host.lower()}"}))
        assert read_head(sock)[0].startswith("HTTP/1.1 101 ")


TOKEN = "a-token-of-the-tests"


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN]
    + [f"Bearer x, Bearer {TOKEN}", f"Bearer {TOKEN} x", "Bearer \xff"],
    ids=repr,
)
def test_a_client_without_the_token_is_refused_with_401(
    quiet: Callable[[], None], given: str | None
) -> None:
    with serving(token=TOKEN) as server:
        status, fields, body = answer(server, request(address(server), {"Authorization": given}))
        assert (status, fields["www-authenticate"]) == (401, "Bearer")
        assert "token" in body
        assert TOKEN not in body
        assert server.connections == []


def test_a_page_that_may_not_connect_hears_nothing_of_tokens() -> None:
    headers: dict[str, str | None] = {"Origin": "http://evil.example"}
    with serving(token=TOKEN) as server:
        assert answer(server, request(address(server), headers))[0] == 403


def test_the_wires_of_a_server_are_told_to_those_with_the_token_only() -> None:
    headers: dict[str, str | None] = {"Sec-WebSocket-Protocol": "chat"}
    with serving(token=TOKEN) as server:
        assert answer(server, request(address(server), headers))[0] == 401
        headers["Authorization"] = f"Bearer {TOKEN}"
        assert answer(server, request(address(server), headers))[0] == 400


@pytest.mark.parametrize("token", [TOKEN, ["other", TOKEN], TOKEN.__eq__])
def test_a_client_with_the_token_is_served(token: object) -> None:
    with serving(token=token) as server:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with wsmux.connect(server.url, headers=headers) as connection:
            connection.ping(WAIT)


@pytest.mark.parametrize("token", ["", "two words", "\u00e9"])
def test_what_cannot_be_a_token_is_refused_before_anything_listens(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wsmux.server.listen", None)
    with pytest.raises(ValueError, match="visible ASCII"):
        wsmux.serve(wsmux.Connection.wait_closed, token=token)


def test_a_plain_socket_cannot_ask_for_a_token() -> None:
    with pytest.raises(ValueError, match="in the HTTP request, which a plain socket does not have"):
        wsmux.serve(wsmux.Connection.wait_closed, transport="tcp", token=TOKEN)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 101),
        ("localhost:{port}", 101),
        ("[::1]:{port}", 101),
        ("127.9.9.9:{port}", 101),
        ("evil.example:{port}", 403),
        ("localhost.evil.example:{port}", 403),
        ("192.0.2.1:{port}", 403),
    ],
)
def test_a_page_whose_name_was_made_to_resolve_here_is_refused_on_loopback_origins(
    host: str, status: int
) -> None:
    with serving(origins=["loopback"]) as server, dial(server) as sock:
        host = host.format(port=server.port)
        sock.sendall(request(host, {"Origin": f"http://{host}"}))
        assert read_head(sock)[0].startswith(f"HTTP/1.1 {status} ")


@pytest.mark.parametrize("origin", ["http://127.0.0.1:1", "https://127.0.0.1:{port}", "null"])
def test_loopback_origins_are_the_same_origin_still(origin: str) -> None:
    with serving(origins=["loopback", LISTED]) as server:
        data = request(address(server), {"Origin": origin.format(port=server.port)})
        assert answer(server, data)[0] == 403
        with dial(server) as sock:
            sock.sendall(request(address(server), {"Origin": LISTED}))
            assert read_head(sock)[0].startswith("HTTP/1.1 101 ")


@pytest.mark.parametrize("tail", ["?", "#", ":", "\t"], ids=["query", "fragment", "port", "tab"])
def test_origin_with_an_empty_part_is_no_origin(origin_server: wsmux.Server, tail: str) -> None:
    origin = LISTED.replace("app", f"a{tail}pp") if tail == "\t" else LISTED + tail
    data = request(address(origin_server), {"Origin": origin})
    with dial(origin_server) as sock:
        sock.sendall(data)
        assert read_head(sock)[0].startswith("HTTP/1.1 403 ")


# TLS


def test_plain_request_to_a_tls_port_ends_the_connection(
    certificates: Certificates, quiet: Callable[[], None]
) -> None:
    with serving(ssl_context=certificates.server) as server:
        with dial(server) as sock:
            sock.sendall(request(address(server)))
            RawPeer(sock, masks=True).recv_to_end()
        wait_for(lambda: not threads_of(server))
        with wsmux.connect(server.url, ssl_context=certificates.client) as connection:
            connection.ping(WAIT)


@pytest.mark.parametrize("data", [b"\x16\x03\x01\xff\xff" + bytes(600), b"\x80" * 64, b"\0" * 300])
def test_garbage_to_a_tls_port_ends_the_connection(
    certificates: Certificates, quiet: Callable[[], None], data: bytes
) -> None:
    with serving(ssl_context=certificates.server, config=QUICK) as server:
        with dial(server) as sock:
            sock.sendall(data)
            RawPeer(sock, masks=True).recv_to_end()
        wait_for(lambda: not threads_of(server))


def test_silent_client_of_a_tls_port_is_dropped_at_the_deadline(
    certificates: Certificates, quiet: Callable[[], None]
) -> None:
    with serving(ssl_context=certificates.server, config=QUICK) as server, dial(server) as sock:
        closed_without_a_word(sock)
        wait_for(lambda: not threads_of(server))


def test_tls_to_a_plain_port_is_refused(quiet: Callable[[], None]) -> None:
    context = ssl.create_default_context()
    with serving(config=QUICK) as server:
        with dial(server) as sock, pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(sock, server_hostname="localhost")
        check_alive(server)


# Faults of our own process


def no_descriptor(*_: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("server", ["serve", "Mux"])
def test_without_a_descriptor_the_answer_is_503_and_no_upgrade(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Flask("app")
    Mux(app).route("/")(wsmux.Connection.wait_closed)
    with wsmux.serve(wsmux.Connection.wait_closed) as ours, werkzeug_serving(app) as port:
        url = ours.url if server == "serve" else f"ws://127.0.0.1:{port}/"
        with monkeypatch.context() as lacking:
            lacking.setattr(os, "dup", no_descriptor)
            lacking.setattr(socket, "fromfd", no_descriptor)
            with pytest.raises(wsmux.HandshakeError, match="no descriptor left") as caught:
                wsmux.connect(url)
            assert caught.value.status == 503
        wsmux.connect(url).close()


@pytest.mark.parametrize("lacking", ["descriptor", "thread"])
def test_lack_of_descriptors_or_threads_ends_one_connection_quietly(
    server: wsmux.Server, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    uncaught: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: uncaught.append(repr(args.exc_value)))
    client = dial(server)
    wait_for(lambda: threads_of(server) == 1)
    told = b""
    if lacking == "descriptor":
        monkeypatch.setattr(os, "eventfd", no_descriptor)
    else:
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        told = close_payload(1001, b"no thread is left for the connection")
    with RawPeer(client, masks=True) as peer:
        peer.send(request(address(server)))
        first, _ = read_head(peer.sock)
        assert first.startswith("HTTP/1.1 101 ")
        wait_for(lambda: not threads_of(server))
        assert not uncaught
        assert peer.recv_to_end()[2:] == told
    monkeypatch.undo()
    check_alive(server)
