"""Meet servers and proxies that refuse, lie or stall: ``wsmux.connect`` ends typed and in time."""

from __future__ import annotations

import base64
import errno
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any

import pytest
from flask import Flask

import wsmux
from wsmux.handshake.tcp import Watch
from wsmux.handshake.websocket_client import shake_hands
from wsmux.runtime.deadline import Deadline

from ..helpers.certificates import Certificates
from ..helpers.ports import free_port
from ..helpers.proxies import Script, http_proxy, playing, socks5_proxy
from ..helpers.raw_peer import (
    BINARY,
    CLOSE_FRAME,
    WAIT,
    RawPeer,
    in_thread,
    read_head,
    response,
    wait_for,
)
from ..helpers.werkzeug_server import serving

# Seconds for a handshake that must end at its deadline, and for the deadline to be kept in.
SHORT = 0.4
IN_TIME = 3.0


@pytest.fixture
def server() -> Iterator[wsmux.Server]:
    running = wsmux.serve(wsmux.Connection.wait_closed)
    yield running
    for connection in running.connections:
        connection.abort()
    running.shutdown(timeout=0)


def answering(reply: bytes) -> Script:
    """Read the request and answer it with fixed bytes."""

    def script(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(reply)
        drain(sock)

    return script


def upgrading(headers: dict[str, str | None]) -> Script:
    """Answer with a 101 that differs in some headers."""

    def script(sock: socket.socket) -> None:
        sock.sendall(response(read_head(sock)[1]["sec-websocket-key"], headers))
        drain(sock)

    return script


def drain(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass


def status(line: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {line}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def refusal(script: Script, **options: Any) -> wsmux.HandshakeError:
    """Connect to a script and return the error; it must leave no thread of ours behind."""
    with playing(script) as port, pytest.raises(wsmux.HandshakeError) as raised:
        wsmux.connect(f"ws://127.0.0.1:{port}", timeout=WAIT, **options)
    assert raised.value.retry_safe
    assert "\n" not in str(raised.value)
    assert not any(thread.name.startswith("wsmux-client") for thread in threading.enumerate())
    return raised.value


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (400, "no common subprotocol; this address serves chat"),
        (401, "who are you"),
        (403, "the origin 'x' may not connect here"),
        (404, "no such page"),
        (426, "send an upgrade"),
        (500, "caf\u00e9 \u20ac"),
        (503, "too many connections"),
        (299, ""),
    ],
)
def test_bad_status_is_named_with_the_body(code: int, body: str) -> None:
    error = refusal(answering(status(f"{code} Whatever", body.encode())))
    assert error.status == code
    assert str(code) in str(error)
    assert body in str(error)


@pytest.mark.parametrize("code", [200, 204, 400, 404, 405])
def test_a_page_instead_of_an_upgrade_is_asked_after_and_not_shown(code: int) -> None:
    page = b"" if code == 204 else b"<!doctype html>\n<p>The browser (or proxy) sent</p>"
    error = refusal(answering(status(f"{code} Ok", page, "Content-Type: text/html")))
    assert error.status == code
    phrase = HTTPStatus(code).phrase
    assert str(error).endswith(
        f" answered {code} {phrase} instead of switching to WebSocket: "
        "is this path a WebSocket route?"
    )


def test_a_page_without_a_type_is_not_shown_either() -> None:
    error = refusal(answering(status("500 Whatever", b"\r\n<html>sorry</html>")))
    assert str(error).endswith("500 Internal Server Error instead of switching to WebSocket")


def test_a_plain_answer_of_another_path_is_shown_on_one_line() -> None:
    reply = status("404 Not Found", b"404 page\r\nnot\x1b[2J found\n", "Content-Type: text/plain")
    assert str(refusal(answering(reply))).endswith(
        " answered 404 Not Found instead of switching to WebSocket: 404 page not\\x1b[2J found; "
        "is this path a WebSocket route?"
    )


@pytest.mark.parametrize("path", ["/plain", "/missing"])
def test_the_error_at_a_plain_route_of_flask_asks_whether_it_is_one(path: str) -> None:
    app = Flask("app")
    app.add_url_rule("/plain", "plain", lambda: "hello")
    match = "is this path a WebSocket route"
    with serving(app) as port, pytest.raises(wsmux.HandshakeError, match=match) as raised:
        wsmux.connect(f"ws://127.0.0.1:{port}{path}")
    assert "<" not in str(raised.value)
    assert "browser" not in str(raised.value)


@pytest.mark.parametrize("scheme", ["ws", "wss", "tcp"])
def test_a_refused_connection_names_the_url_and_what_to_check(scheme: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"{scheme}://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ConnectionRefusedError) as raised:
            wsmux.connect(url)
    assert raised.value.errno == errno.ECONNREFUSED
    assert raised.value.strerror == (
        f"cannot connect to {url}: Connection refused; is the server running, and is that its port?"
    )


def test_a_refused_connection_through_a_proxy_names_the_address_that_was_tried() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(ConnectionRefusedError, match=r"ws://example\.test/ \(127\.0\.0\.1\): "):
            wsmux.connect("ws://example.test/", http_proxy_host="127.0.0.1", http_proxy_port=port)


def test_body_that_is_not_text_is_shown_without_failing() -> None:
    error = refusal(answering(status("502 Bad", b"\xff\xfe\x00bin")))
    assert error.status == 502


def test_long_body_is_cut() -> None:
    error = refusal(answering(status("403 Forbidden", b"x" * 10_000)))
    assert error.status == 403
    assert len(str(error)) < 500


def test_status_is_named_when_its_body_is_too_long_to_read() -> None:
    assert refusal(answering(status("403 Forbidden", b"x" * 100_000))).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-WebSocket-Accept": "AAAAAAAAAAAAAAAAAAAAAAAAAAA="},
        {"Sec-WebSocket-Accept": None},
        {"Upgrade": None},
        {"Upgrade": "h2c"},
        {"Connection": "keep-alive"},
        {"Connection": None},
        {"Sec-WebSocket-Protocol": None},
        {"Sec-WebSocket-Protocol": "chat"},
        {"Sec-WebSocket-Protocol": "wsmux.v1, chat"},
    ],
    ids=lambda headers: "-".join(str(part) for item in headers.items() for part in item),
)
def test_wrong_upgrade_is_refused(headers: dict[str, str | None]) -> None:
    assert "refused" in str(refusal(upgrading(headers)))


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("Sec-WebSocket-Accept", "Sec-WebSocket-Accept"),
        ("Upgrade", "Upgrade"),
        ("Connection", "Connection"),
        ("Sec-WebSocket-Protocol", "subprotocol 'wrong'"),
    ],
)
def test_wrong_upgrade_names_the_cause(header: str, name: str) -> None:
    assert name in str(refusal(upgrading({header: "wrong"})))


def yamux_at(subprotocol: str | None, heads: list[dict[str, str]]) -> Script:
    """Answer with a subprotocol, and then each ping of Yamux; note the headers that came."""

    def script(sock: socket.socket) -> None:
        heads.append(read_head(sock)[1])
        chosen = {"Sec-WebSocket-Protocol": subprotocol}
        sock.sendall(response(heads[-1]["sec-websocket-key"], chosen))
        peer = RawPeer(sock, masks=False)
        while (frame := peer.recv_frame()).opcode == BINARY:
            if frame.payload.startswith(b"\0\2\0\1"):
                peer.send_frame(BINARY, b"\0\2\0\2" + frame.payload[4:])
        peer.send_frame(CLOSE_FRAME, frame.payload)

    return script


@pytest.mark.parametrize(
    ("offered", "answered"),
    [(None, None), (None, ""), ("other-name", "other-name"), ("Mixed.Case", "Mixed.Case")],
    ids=str,
)
def test_yamux_is_spoken_under_the_name_that_is_given_or_none(
    offered: str | None, answered: str | None
) -> None:
    heads: list[dict[str, str]] = []
    with (
        playing(yamux_at(answered, heads)) as port,
        wsmux.connect(
            f"ws://127.0.0.1:{port}", protocol="yamux", subprotocol=offered, timeout=WAIT
        ) as connection,
    ):
        assert connection.protocol == "yamux"
        connection.ping(WAIT)
    assert heads[0].get("sec-websocket-protocol") == offered


def test_answer_without_a_subprotocol_names_the_way_out() -> None:
    error = refusal(upgrading({"Sec-WebSocket-Protocol": None}), protocol="yamux")
    assert "it chose no subprotocol of yamux" in str(error)
    assert "subprotocol=None" in str(error)


@pytest.mark.parametrize(
    ("offered", "answered"),
    [(None, "yamux"), ("other-name", "yamux"), ("other-name", None)],
    ids=str,
)
def test_answer_under_another_name_than_the_given_is_refused(
    offered: str | None, answered: str | None
) -> None:
    headers = {"Sec-WebSocket-Protocol": answered}
    error = refusal(upgrading(headers), protocol="yamux", subprotocol=offered)
    assert "subprotocol" in str(error)


def test_wire_that_was_not_offered_is_refused() -> None:
    error = refusal(upgrading({"Sec-WebSocket-Protocol": "yamux"}), protocol=["wsmux", "bymux"])
    assert "chose the subprotocol 'yamux' of wsmux.v1, bymux" in str(error)


def test_extension_that_was_not_offered_is_refused() -> None:
    refusal(upgrading({"Sec-WebSocket-Extensions": "permessage-deflate"}))


def test_extension_in_a_line_that_ends_without_a_cr_is_refused() -> None:
    def script(sock: socket.socket) -> None:
        extension: dict[str, str | None] = {"Sec-WebSocket-Extensions": "permessage-deflate"}
        reply = response(read_head(sock)[1]["sec-websocket-key"], extension)
        sock.sendall(reply.replace(b"\r\n", b"\n"))
        drain(sock)

    assert "which was not offered" in str(refusal(script))


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 101 Switching", id="cut-line"),
        pytest.param(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: web", id="cut-header"),
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", id="ssh"),
        pytest.param(b"\xff\xfe\xfd\r\n\r\n", id="not-utf8"),
        pytest.param(b"HTTP/1.1 ABC What\r\n\r\n", id="no-number"),
        pytest.param(b"HTTP/1.1 101 OK\r\nno colon here\r\n\r\n", id="no-colon"),
        pytest.param(b"HTTP/1.1 403 No\r\nContent-Length: many\r\n\r\n", id="length"),
        pytest.param(b"HTTP/1.1 403 No\r\nContent-Length: 100\r\n\r\ncut", id="cut-body"),
    ],
)
def test_what_is_no_response_is_refused(reply: bytes) -> None:
    def script(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(reply)

    refusal(script)


def test_an_answer_that_websocket_client_fails_on_is_refused() -> None:
    long_label = answering(status("302 Moved", b"", f"Location: ws://{64 * 'x'}.test/"))
    assert "the handshake with ws://" in str(refusal(long_label))


# What websocket-client takes for the name, which decodes, strips and lowers a line as Python does.
COOKIES = ["Set-Cookie", "set-cookie", " SET-COOKIE", "\xa0Set-Cookie", "Set-Coo\N{KELVIN SIGN}ie"]
COOKIES += [blank + "Set-Cookie" for blank in "\x1c\x1d\x1e\x1f\x85\u2003"]


@pytest.mark.parametrize("name", COOKIES, ids=ascii)
@pytest.mark.parametrize("cookie", ["session=ann; Domain=127.0.0.1", "a/b=1"])
def test_cookies_of_a_server_are_not_kept(name: str, cookie: str) -> None:
    """websocket-client would send them to whoever has the domain, from any later connection."""
    seen: list[dict[str, str]] = []

    def script(sock: socket.socket) -> None:
        _, headers = read_head(sock)
        seen.append(headers)
        sock.sendall(response(headers["sec-websocket-key"], {name: cookie}))
        drain(sock)

    for _ in range(2):
        with playing(script) as port:
            wsmux.connect(f"ws://127.0.0.1:{port}", timeout=WAIT).abort()
    assert len(seen) == 2
    assert not any("cookie" in headers for headers in seen)


def test_server_that_resets_within_its_response_ends_typed() -> None:
    def script(sock: socket.socket) -> None:
        sock.recv(1)
        sock.sendall(b"HTTP/1.1 101")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with playing(script) as port, pytest.raises((wsmux.HandshakeError, ConnectionError)):
        wsmux.connect(f"ws://127.0.0.1:{port}", timeout=WAIT)


def endless(sock: socket.socket) -> None:
    read_head(sock)
    sock.sendall(b"HTTP/1.1 101 Switching Protocols\r\n")
    while True:
        sock.sendall(b"X-Filler: " + b"y" * 1000 + b"\r\n")


def dribbling(first: bytes) -> Script:
    """Send a byte every few milliseconds, for ever."""

    def script(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(first)
        while True:
            sock.sendall(b"y")
            time.sleep(SHORT / 10)  # the pace of the attack

    return script


def silent(sock: socket.socket) -> None:
    drain(sock)


def test_endless_headers_end_at_the_size_bound() -> None:
    assert "too long" in str(refusal(endless))


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(dribbling(b"HTTP/1.1 101 OK\r\nX: "), id="dribbled-head"),
        pytest.param(
            dribbling(b"HTTP/1.1 403 No\r\nContent-Length: 5000\r\n\r\n"), id="dribbled-body"
        ),
        pytest.param(silent, id="silent"),
    ],
)
def test_slow_response_ends_at_one_deadline(script: Script) -> None:
    with playing(script) as port:
        started = time.monotonic()
        with pytest.raises(TimeoutError) as raised:
            wsmux.connect(f"ws://127.0.0.1:{port}", timeout=SHORT)
        assert time.monotonic() - started < IN_TIME
        assert f"127.0.0.1:{port}" in str(raised.value)


def test_deadline_of_the_config_counts_without_a_timeout() -> None:
    config = wsmux.Config(handshake_timeout=SHORT)
    with playing(silent) as port, pytest.raises(TimeoutError):
        wsmux.connect(f"ws://127.0.0.1:{port}", config=config)


# Redirects


def redirecting(location: str, code: int = 302) -> Script:
    return answering(status(f"{code} Moved", b"", f"Location: {location}"))


def test_redirect_is_followed(server: wsmux.Server) -> None:
    with (
        playing(redirecting(server.url)) as port,
        wsmux.connect(f"ws://127.0.0.1:{port}", timeout=WAIT) as connection,
    ):
        connection.ping(WAIT)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(status("302 Moved"), id="no-location"),
        pytest.param(status("302 Moved", b"", "Location: http://x/"), id="http"),
        pytest.param(status("302 Moved", b"", "Location: /elsewhere"), id="relative"),
        pytest.param(status("302 Moved", b"", "Location: ws://[bad"), id="broken"),
    ],
)
def test_redirect_to_nowhere_is_refused(reply: bytes) -> None:
    refusal(answering(reply))


def test_redirect_loop_ends() -> None:
    def script(sock: socket.socket) -> None:
        redirecting(f"ws://127.0.0.1:{sock.getsockname()[1]}")(sock)

    with playing(script) as port, pytest.raises(wsmux.HandshakeError) as raised:
        wsmux.connect(f"ws://127.0.0.1:{port}", timeout=WAIT)
    assert "edirect" in str(raised.value)


def test_redirect_limit_of_zero_refuses_the_first(server: wsmux.Server) -> None:
    assert "edirect" in str(refusal(redirecting(server.url), redirect_limit=0))


def test_redirects_share_one_deadline() -> None:
    def script(sock: socket.socket) -> None:
        port = sock.getsockname()[1]
        read_head(sock)
        time.sleep(SHORT * 0.8)  # the pace of the attack
        sock.sendall(status("302 Moved", b"", f"Location: ws://127.0.0.1:{port}"))

    with playing(script) as port, pytest.raises(TimeoutError):
        wsmux.connect(f"ws://127.0.0.1:{port}", timeout=SHORT)


def test_credentials_are_not_sent_to_the_target_of_a_redirect() -> None:
    seen: list[dict[str, str]] = []

    def target(sock: socket.socket) -> None:
        seen.append(read_head(sock)[1])
        sock.sendall(status("403 No"))

    with playing(target) as other:
        refusal(
            redirecting(f"ws://localhost:{other}"),
            headers={"Authorization": "Bearer secret"},
            cookie="session=secret",
        )
    assert len(seen) == 1
    assert not {"authorization", "cookie"} & seen[0].keys()


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, None),
        ({"origin": None}, None),
        ({"origin": "https://app.example"}, "https://app.example"),
        ({"headers": {"Origin": "https://app.example"}}, "https://app.example"),
        ({"origin": "https://app.example", "suppress_origin": True}, None),
    ],
    ids=str,
)
def test_no_origin_is_sent_unless_it_is_asked_for(
    options: dict[str, Any], sent: str | None
) -> None:
    heads: list[dict[str, str]] = []

    def script(sock: socket.socket) -> None:
        heads.append(read_head(sock)[1])
        sock.sendall(status("403 No"))

    assert refusal(script, **options).status == 403
    assert [head.get("origin") for head in heads] == [sent]


@pytest.mark.parametrize("headers", [{"Host": "inner:8000"}, ["host: inner:8000"]], ids=str)
def test_a_host_among_the_headers_takes_the_place_of_the_own_one(
    headers: dict[str, str] | list[str],
) -> None:
    heads: list[bytes] = []

    def script(sock: socket.socket) -> None:
        heads.append(sock.recv(4096).lower())
        sock.sendall(status("403 No"))

    assert refusal(script, headers=headers).status == 403
    assert [head.count(b"\r\nhost:") for head in heads] == [1]
    assert b"\r\nhost: inner:8000\r\n" in heads[0]


# TLS


def test_tls_to_a_plain_server_fails_typed(certificates: Certificates) -> None:
    def script(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with playing(script) as port, pytest.raises(wsmux.HandshakeError) as raised:
        wsmux.connect(f"wss://127.0.0.1:{port}", ssl_context=certificates.client, timeout=WAIT)
    assert "TLS" in str(raised.value)


@pytest.mark.parametrize(
    ("transport", "told"),
    [("websocket", "write ws:// instead of wss://"), ("tcp", "leave out ssl_context=")],
)
def test_tls_to_a_plain_port_is_told_how_to_connect(
    transport: str, told: str, certificates: Certificates
) -> None:
    scheme = {"websocket": "wss", "tcp": "tcp"}[transport]

    def script(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with playing(script) as port:
        url = f"{scheme}://127.0.0.1:{port}"
        with pytest.raises(wsmux.HandshakeError) as raised:
            wsmux.connect(url, ssl_context=certificates.client, timeout=WAIT)
    assert str(raised.value).endswith(f"does that port speak TLS? If not, {told}")


def test_a_scheme_in_capitals_connects(server: wsmux.Server) -> None:
    wsmux.connect(server.url.replace("ws", "WS", 1), timeout=WAIT).close()


def test_unknown_authority_fails_typed(certificates: Certificates) -> None:
    server = wsmux.serve(wsmux.Connection.wait_closed, ssl_context=certificates.server)
    with server, pytest.raises(wsmux.HandshakeError) as raised:
        wsmux.connect(server.url, ssl_context=ssl.create_default_context(), timeout=WAIT)
    assert "TLS" in str(raised.value)
    assert "certificate" in str(raised.value)


def test_wrong_host_name_fails_typed(certificates: Certificates) -> None:
    server = wsmux.serve(wsmux.Connection.wait_closed, "127.0.0.2", ssl_context=certificates.server)
    with server, pytest.raises(wsmux.HandshakeError) as raised:
        wsmux.connect(server.url, ssl_context=certificates.client, timeout=WAIT)
    assert "TLS" in str(raised.value)


def test_silence_within_the_tls_handshake_ends_at_the_deadline(certificates: Certificates) -> None:
    with playing(silent) as port:
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            wsmux.connect(f"wss://127.0.0.1:{port}", ssl_context=certificates.client, timeout=SHORT)
        assert time.monotonic() - started < IN_TIME


# No connection at all


def test_refused_connection_is_an_oserror() -> None:
    with pytest.raises(ConnectionRefusedError):
        wsmux.connect(f"ws://127.0.0.1:{free_port()}", timeout=WAIT)


@pytest.mark.parametrize("url", ["ws://localhost:{}", "tcp://localhost:{}"])
def test_a_refused_connection_names_the_address_that_was_tried(url: str) -> None:
    with pytest.raises(ConnectionRefusedError, match=r" \((127\.0\.0\.1|::1)\)"):
        wsmux.connect(url.format(free_port()), timeout=WAIT)


def test_unresolvable_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(wsmux.HandshakeError) as raised:
        wsmux.connect("ws://no-such-host.invalid/", timeout=WAIT)
    assert "no-such-host.invalid" in str(raised.value)
    assert "resolved" in str(raised.value)


def test_connect_that_nobody_answers_ends_at_the_deadline() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # fills the backlog
            started = time.monotonic()
            with pytest.raises(TimeoutError):
                wsmux.connect(f"ws://127.0.0.1:{port}", timeout=SHORT)
            assert time.monotonic() - started < IN_TIME


@pytest.mark.parametrize("url", ["http://x/", "ws://", "x", "", "ws:///path", "ws://h:port/"])
def test_what_is_no_websocket_url_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError, match="."):
        wsmux.connect(url, timeout=WAIT)


# Proxies


def through(port: int, **options: Any) -> dict[str, Any]:
    return {"http_proxy_host": "127.0.0.1", "http_proxy_port": port, "timeout": WAIT} | options


def test_http_proxy_carries_a_connection(server: wsmux.Server) -> None:
    seen: list[dict[str, str]] = []
    with (
        playing(http_proxy(seen)) as port,
        wsmux.connect(
            f"ws://localhost:{server.port}", **through(port, http_no_proxy=["none"])
        ) as c,
    ):
        c.ping(WAIT)
        assert seen[0]["line"] == f"CONNECT localhost:{server.port} HTTP/1.1"


def test_http_proxy_gets_credentials(server: wsmux.Server) -> None:
    seen: list[dict[str, str]] = []
    basic = "Basic " + base64.b64encode(b"user:pass word").decode()
    options = {"http_proxy_auth": ("user", "pass word"), "http_no_proxy": ["none"]}
    with (
        playing(http_proxy(seen, basic)) as port,
        wsmux.connect(server.url, **through(port, **options)) as connection,
    ):
        connection.ping(WAIT)


def test_http_proxy_carries_tls(certificates: Certificates) -> None:
    server = wsmux.serve(wsmux.Connection.wait_closed, ssl_context=certificates.server)
    with (
        server,
        playing(http_proxy([])) as port,
        wsmux.connect(
            server.url,
            ssl_context=certificates.client,
            **through(port, http_no_proxy=["none"]),
        ) as connection,
    ):
        connection.ping(WAIT)


@pytest.mark.parametrize("auth", [None, ("user", "wrong")])
def test_http_proxy_that_refuses_is_named(auth: tuple[str, str] | None) -> None:
    options = {"http_no_proxy": ["none"], "http_proxy_auth": auth}
    with playing(http_proxy([], "Basic x")) as port, pytest.raises(wsmux.HandshakeError) as raised:
        wsmux.connect("ws://localhost:1", **through(port, **options))
    assert "proxy" in str(raised.value)
    assert "407" in str(raised.value)


@pytest.mark.parametrize("reply", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200"])
def test_http_proxy_that_talks_nonsense_is_named(reply: bytes) -> None:
    def script(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(reply)

    with playing(script) as port, pytest.raises(wsmux.HandshakeError) as raised:
        wsmux.connect("ws://localhost:1", **through(port, http_no_proxy=["none"]))
    assert "proxy" in str(raised.value)


def test_proxy_that_is_not_there_is_an_oserror() -> None:
    with pytest.raises(ConnectionRefusedError):
        wsmux.connect("ws://localhost:1", **through(free_port(), http_no_proxy=["none"]))


@pytest.mark.xfail(strict=True, reason="the proxy's answer is read before the socket is watched")
def test_http_proxy_is_held_to_the_deadline() -> None:
    gave_up = threading.Event()

    def script(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        for _ in range(60):
            sock.sendall(b"y")
            time.sleep(patience / 40)  # the pace of the attack
        gave_up.set()

    patience = 2.0  # so long a pause between two bytes would end it as well
    with playing(script) as port, pytest.raises((TimeoutError, wsmux.HandshakeError)):
        wsmux.connect("ws://localhost:1", **through(port, http_no_proxy=["none"], timeout=patience))
    assert not gave_up.is_set()


@pytest.mark.xfail(strict=True, reason="the proxy's answer is read before the socket is watched")
def test_http_proxy_is_held_to_the_size() -> None:
    def script(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 200_000 + b"\r\n\r\n")
        drain(sock)

    with playing(script) as port, pytest.raises(wsmux.HandshakeError) as raised:
        wsmux.connect("ws://localhost:1", **through(port, http_no_proxy=["none"], timeout=2))
    assert "too long" in str(raised.value)


def socks(port: int, **options: Any) -> dict[str, Any]:
    pytest.importorskip("python_socks")
    return through(port, proxy_type="socks5h", **options)


def test_socks5_proxy_carries_a_connection(server: wsmux.Server) -> None:
    with (
        playing(socks5_proxy()) as port,
        wsmux.connect(f"ws://localhost:{server.port}", **socks(port)) as connection,
    ):
        connection.ping(WAIT)


def test_socks5_proxy_gets_credentials(server: wsmux.Server) -> None:
    with (
        playing(socks5_proxy((b"user", b"word"))) as port,
        wsmux.connect(server.url, **socks(port, http_proxy_auth=("user", "word"))) as connection,
    ):
        connection.ping(WAIT)


def talking_http(sock: socket.socket) -> None:
    sock.recv(64)
    sock.sendall(b"HTTP/1.1 400 Bad\r\n\r\n")


@pytest.mark.parametrize(
    ("script", "auth"),
    [
        pytest.param(socks5_proxy(refuse=2), None, id="not-allowed"),
        pytest.param(socks5_proxy(refuse=5), None, id="refused-behind"),
        pytest.param(socks5_proxy((b"user", b"word")), ("user", "wrong"), id="wrong-word"),
        pytest.param(socks5_proxy((b"user", b"word")), None, id="no-word"),
        pytest.param(talking_http, None, id="not-socks"),
    ],
)
def test_socks5_proxy_that_refuses_is_named(script: Script, auth: tuple[str, str] | None) -> None:
    with playing(script) as port, pytest.raises(wsmux.HandshakeError) as raised:
        wsmux.connect("ws://localhost:1", **socks(port, http_proxy_auth=auth))
    assert "proxy" in str(raised.value)


def test_socks5_proxy_is_held_to_the_deadline() -> None:
    done = threading.Event()

    def script(sock: socket.socket) -> None:
        done.wait(2.0)  # then the proxy gives up, so that the test ends
        done.set()

    with playing(script) as port:
        with pytest.raises(TimeoutError):
            wsmux.connect("ws://localhost:1", **socks(port, timeout=SHORT))
        assert not done.is_set()
        done.set()


@pytest.mark.parametrize("watch", [None, lambda _: None], ids=["unwatched", "watched"])
def test_tls_has_no_more_time_than_tcp_has_left(
    monkeypatch: pytest.MonkeyPatch, watch: Watch | None
) -> None:
    """However long it took to connect, whoever answers nothing then is given up in time."""
    left: list[float | None] = []
    connect = socket.socket.connect

    def connecting(sock: socket.socket, address: Any) -> None:
        time.sleep(SHORT)
        connect(sock, address)

    def do_handshake(sock: ssl.SSLSocket) -> None:
        left.append(sock.gettimeout())
        raise TimeoutError("the handshake operation timed out")

    monkeypatch.setattr(socket.socket, "connect", connecting)
    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", do_handshake)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(TimeoutError, match="no answer from wss://127.0.0.1"),
    ):
        shake_hands(
            f"wss://127.0.0.1:{listener.getsockname()[1]}/",
            subprotocols=[],
            headers=None,
            deadline=Deadline(WAIT),
            max_size=10000,
            options={},
            watch=watch,
        )
    (timeout,) = left
    assert timeout is not None
    assert 0 < timeout <= WAIT - SHORT


# A handshake that another thread watches


def watched(url: str, **options: Any) -> tuple[list[socket.socket], Future[Any]]:
    """Shake hands in a thread; return the sockets it waits on, and what comes of it."""
    seen: list[socket.socket] = []
    return seen, in_thread(
        shake_hands,
        url,
        subprotocols=["wsmux.v1"],
        headers=None,
        deadline=Deadline(10 * WAIT),
        max_size=1000,
        options=options,
        watch=seen.append,
    )


def cut(sock: socket.socket) -> None:
    socket.socket.shutdown(sock, socket.SHUT_RDWR)


def test_a_watched_connect_that_nobody_answers_can_be_ended() -> None:
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        place = listener.getsockname()
        while True:  # until its queue is full, and the system drops what comes
            other = stack.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(place)
            if not select.select([], [other], [], 0.5)[1]:
                break
        seen, ending = watched(f"ws://127.0.0.1:{place[1]}/")
        wait_for(lambda: seen and seen[0].getsockname()[1])  # it is connecting
        cut(seen[0])
        assert isinstance(ending.exception(WAIT), OSError)


def test_a_watched_handshake_shows_its_socket_before_each_wait(certificates: Certificates) -> None:
    with wsmux.serve(wsmux.Connection.wait_closed, ssl_context=certificates.server) as server:
        seen, ending = watched(
            f"wss://localhost:{server.port}/", sslopt={"context": certificates.client}
        )
        sock, chosen = ending.result(WAIT)
        with sock:
            assert chosen == "wsmux.v1"
            assert seen[-1] is sock
            # That of TCP, which the one of TLS replaces; more, if the first address refused.
            assert len(set(map(id, seen))) >= 2
        server.shutdown(0)


def test_a_watched_handshake_goes_through_a_proxy(server: wsmux.Server) -> None:
    asked: list[dict[str, str]] = []
    options = {"http_proxy_host": "127.0.0.1", "http_no_proxy": ["none"]}
    with playing(http_proxy(asked)) as port:
        seen, ending = watched(server.url, http_proxy_port=port, **options)
        sock, _ = ending.result(WAIT)
        with sock:
            assert seen == [sock]


def test_a_watched_handshake_names_what_refused() -> None:
    _, ending = watched(f"ws://127.0.0.1:{free_port()}/")
    assert isinstance(ending.exception(WAIT), ConnectionRefusedError)
    _, ending = watched("ws://name.invalid/")
    assert "the host name cannot be resolved" in str(ending.exception(WAIT))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_who_watches_can_end_a_handshake(number: int, certificates: Certificates) -> None:
    calls = 0

    def watch(sock: socket.socket) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            raise ConnectionAbortedError("not wanted any more")

    with wsmux.serve(wsmux.Connection.wait_closed, ssl_context=certificates.server) as server:
        with pytest.raises(OSError, match="not wanted any more"):
            shake_hands(
                f"wss://127.0.0.1:{server.port}/",
                subprotocols=["wsmux.v1"],
                headers=None,
                deadline=Deadline(WAIT),
                max_size=1000,
                options={"sslopt": {"context": certificates.client}},
                watch=watch,
            )
        server.shutdown(0)


def test_headers_that_take_all_the_time_are_told_as_that(server: wsmux.Server) -> None:
    def headers() -> dict[str, str]:
        time.sleep(0.02)
        return {}

    with pytest.raises(TimeoutError, match="no time left to connect"):
        wsmux.connect(server.url, headers=headers, timeout=0.01)
