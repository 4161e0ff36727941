"""Say heads that no client should to every kind of server, and under every WSGI server."""

from __future__ import annotations

import logging
import socket
from urllib.parse import urlsplit

import pytest
from flask import Flask

import wsmux
from wsmux.flask import Mux

from ..helpers.carriers import ONE_SERVER, WsgiServers
from ..helpers.every_server import KINDS
from ..helpers.raw_peer import ACK, RawPeer, read_head, request, uint32
from ..helpers.request_heads import NOT_ASCII, REFUSED, TAKEN
from ..helpers.timeouts import WAIT
from ..helpers.werkzeug_server import serving

# What an application can see; the rest is for the server to refuse, and not every one does.
CHECKED = (
    *("two-hosts", "two-hosts-in-one", "two-origins", "two-origins-in-one"),
    *("two-keys", "two-versions", "no-host", "empty-host", "host-with-user", "host-with-path"),
    *("nul", "escape", "delete", "http-1.0", "body-to-come", "body-in-chunks"),
    *("connection-of-other-words", "connection-of-no-list", "protocol-of-no-token"),
)


def status_of(port: int, data: bytes, *, ends: bool = False) -> int:
    """Return the status that answers; see that the connection ends, where it has to."""
    with socket.create_connection(("127.0.0.1", port), WAIT) as sock:
        sock.sendall(data)
        status = int(read_head(sock)[0].split()[1])
        while ends and sock.recv(4096):
            pass
        return status


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_that_are_not_ascii_are_refused_by_every_kind_of_server(
    kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with KINDS[kind](None) as place:
        line = f"GET {place.target} HTTP/1.1"
        got = {}
        for name, value in (("Host", "\xe0"), ("Connection", "Upgrade, \xe0"), ("X\xe0", "")):
            if name == "X\xe0" and kind.startswith("flask"):
                continue  # Werkzeug reads the head there, and takes that
            data = request(place.host, {**place.headers, name: value}, line)
            got[name] = status_of(place.port, data, ends=True)
        assert got == dict.fromkeys(got, 400)
        data = request(place.host, {**place.headers, "Cookie": "\xe0"}, line)
        assert status_of(place.port, data) == 101
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("server", ONE_SERVER)
def test_bad_heads_are_refused_under_every_wsgi_server(
    server: str, wsgi_servers: WsgiServers
) -> None:
    port = urlsplit(wsgi_servers.url(server)).port
    assert port is not None
    assert status_of(port, TAKEN["plain"]) == 101
    heads = {name: REFUSED[name] for name in CHECKED} | NOT_ASCII
    del heads["name"]  # which Werkzeug and gevent take
    got = {name: status_of(port, head.data) for name, head in heads.items()}
    assert got == {name: head.status for name, head in heads.items()}
    for name in ("host", "connection", "protocol"):
        assert status_of(port, NOT_ASCII[name].data, ends=True) == 400
    assert status_of(port, TAKEN["bytes-in-a-value"]) == 101
    assert "Traceback" not in wsgi_servers.log(server)


@pytest.mark.parametrize("connection", ["Upgrade", "keep-alive, Upgrade"])
@pytest.mark.parametrize("server", ONE_SERVER)
def test_bytes_that_a_wsgi_server_has_read_behind_a_head_are_refused_and_not_dropped(
    server: str, connection: str, wsgi_servers: WsgiServers
) -> None:
    port = urlsplit(wsgi_servers.url(server)).port
    assert port is not None
    with socket.create_connection(("127.0.0.1", port), WAIT) as sock:
        peer = RawPeer(sock, masks=True)
        sock.settimeout(WAIT)
        head = request(f"127.0.0.1:{port}", {"Connection": connection})
        peer.send(head + peer.packed(0, ACK, uint32(1000)))
        assert read_head(sock)[0].split()[1] == "400"
        assert b"bytes followed the request" in peer.recv_to_end()
    with socket.create_connection(("127.0.0.1", port), WAIT) as sock:
        peer = RawPeer(sock, masks=True)
        peer.send(head)
        assert read_head(sock)[0].split()[1] == "101"
        peer.send_message(0, ACK, uint32(1000))
        assert peer.recv_message()
    assert "Traceback" not in wsgi_servers.log(server)


def test_refusals_of_a_route_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = Flask("app")
    Mux(app).route("/")(wsmux.Connection.wait_closed)
    caplog.set_level(logging.INFO, "wsmux")
    with serving(app) as port:
        for _ in range(5):
            assert status_of(port, NOT_ASCII["host"].data, ends=True) == 400
    lines = [record.getMessage() for record in caplog.records if record.name == "wsmux"]
    assert 1 <= len(lines) <= 2, "one a second"
    assert lines[0] == "/ refused 127.0.0.1: the request has no Host header of a host and a port"
