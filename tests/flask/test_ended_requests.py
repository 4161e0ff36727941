"""No server takes what a client sends for a request where a proxy sees a WebSocket.

A proxy that has seen the 101, or takes one for granted, passes on whatever follows: requests in it
are seen by none of its rules.
"""

from __future__ import annotations

import json
import socket
import ssl
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest
from flask import Flask

import wsmux
from wsmux.flask import Mux
from wsmux.handshake.websocket_server import end_at_server

from ..helpers.carriers import ONE_SERVER, WsgiServers
from ..helpers.certificates import Certificates
from ..helpers.detached_site import fetched
from ..helpers.raw_peer import WAIT, RawPeer, raw_client, read_head, request
from ..helpers.werkzeug_server import serving

SUBPROTOCOL = "wsmux.resume.v1+wsmux"

# A frame that is refused by its head, as no HELLO is so long: nothing behind these bytes is read.
NO_HELLO = b"\x82\xff"


def asking(name: str) -> bytes:
    """Return a request that the application remembers by a name."""
    return f"GET /asked/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def asked(url: str) -> list[str]:
    """Return what the application was asked for until now."""
    names: list[str] = json.loads(fetched(url, "asked/until-now"))
    return names


@contextmanager
def over_tls(certificates: Certificates, port: int) -> Iterator[ssl.SSLSocket]:
    """Connect to a server on loopback."""
    with (
        socket.create_connection(("127.0.0.1", port), WAIT) as plain,
        certificates.client.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        yield sock


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


@pytest.mark.parametrize("server", ONE_SERVER)
def test_what_follows_a_failure_behind_the_101_is_no_request(
    server: str, wsgi_servers: WsgiServers
) -> None:
    url, name = wsgi_servers.url(server), uuid.uuid4().hex
    with raw_client(port_of(url), 0, SUBPROTOCOL, "/resumed") as peer:
        peer.send(NO_HELLO + asking(name))
        assert peer.recv_to_end() == b""
    assert name not in asked(url)
    assert "Traceback" not in wsgi_servers.log(server)


@pytest.mark.parametrize("server", ONE_SERVER)
@pytest.mark.parametrize("together", [True, False], ids=["in-one-packet", "behind-the-answer"])
def test_what_follows_a_refusal_is_no_request(
    server: str, together: bool, wsgi_servers: WsgiServers
) -> None:
    url, name = wsgi_servers.url(server), uuid.uuid4().hex
    port = port_of(url)
    with socket.create_connection(("127.0.0.1", port), WAIT) as sock:
        head = request(f"127.0.0.1:{port}", {}, "GET /nobody HTTP/1.1")
        sock.sendall(head + asking(name) if together else head)
        assert read_head(sock)[0].split()[1] in ("400", "403")
        answer = b""
        try:
            if not together:
                sock.sendall(asking(name))
                with suppress(OSError):  # the others have closed it
                    sock.shutdown(socket.SHUT_WR)  # Werkzeug reads to the end before it does
            while data := sock.recv(65536):
                answer += data
        except ConnectionError:
            pass  # as for every connection that is closed while bytes arrive
        assert b"HTTP/1.1 200" not in answer
    assert name not in asked(url)


def test_a_server_finds_nothing_in_the_socket_of_a_request_that_has_ended() -> None:
    ours, peer = socket.socketpair()
    with ours, peer:
        peer.sendall(asking("behind") * 1000)
        end_at_server({"gunicorn.socket": ours})
        assert ours.recv(65536) == b""
        assert peer.recv(1) == b""
        end_at_server({"gunicorn.socket": ours})  # again, and without anything to do
    end_at_server({"gunicorn.socket": ours})  # it is closed
    end_at_server({})


def test_over_tls_too_what_follows_is_no_request(certificates: Certificates) -> None:
    app = Flask("app")
    names: list[str] = []
    Mux(app, resume=True).route("/resumed")(wsmux.Connection.wait_closed)

    @app.get("/asked/<name>")
    def ask(name: str) -> str:
        names.append(name)
        return name

    with serving(app, certificates.server) as port, over_tls(certificates, port) as sock:
        headers = {"Sec-WebSocket-Protocol": SUBPROTOCOL}
        sock.sendall(request(f"localhost:{port}", headers, "GET /resumed HTTP/1.1"))
        assert read_head(sock)[0].startswith("HTTP/1.1 101 ")
        peer = RawPeer(sock, masks=True)
        peer.send(NO_HELLO + asking("behind"))
        assert peer.recv_to_end() == b""
    assert not names


def test_over_tls_a_socket_sends_nothing_when_it_forgets_its_keys(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may be about to send, and would send without encryption."""
    sent: list[bool] = []
    shutdown = ssl.SSLSocket.shutdown

    def sends(sock: ssl.SSLSocket, how: int) -> None:
        try:
            socket.socket.send(sock, b"plain")
            sent.append(True)
        except BrokenPipeError:
            sent.append(False)
        shutdown(sock, how)

    monkeypatch.setattr(ssl.SSLSocket, "shutdown", sends)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        port = listener.getsockname()[1]
        accepting = pool.submit(lambda: certificates.server.wrap_socket(listener.accept()[0], True))
        with over_tls(certificates, port), accepting.result(WAIT) as ours:
            end_at_server({"gunicorn.socket": ours})
    assert sent == [False]
