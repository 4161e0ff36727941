"""Name heads of requests for a WebSocket: those that a server takes, and those it must refuse.

Some send such heads to a server of ``wsmux.serve`` and look at what it answers.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

import wsmux

from .raw_peer import KEY, WAIT, read_head, request

__all__ = [
    "HOST",
    "LIKE_LISTED",
    "LISTED",
    "NOT_ASCII",
    "REFUSED",
    "TAKEN",
    "Head",
    "answer",
    "descriptors",
    "dial",
    "serving",
    "uncaught",
]

# What ``Host`` says in all of them.
HOST = "name.example:8080"

LINE = "GET / HTTP/1.1"


class Head(NamedTuple):
    """Hold a request, the status that refuses it and words of the sentence that says why."""

    data: bytes
    status: int = 400
    words: str = ""


def _head(line: str = LINE, extra: str = "", /, **changed: str | None) -> bytes:
    """Return a request with lines behind its own headers, of which some are changed or missing."""
    names = {name.replace("_", "-"): value for name, value in changed.items()}
    whole = request(HOST, names, line)
    return whole.removesuffix(b"\r\n") + extra.encode("latin-1") + b"\r\n"


def _more(extra: str, words: str) -> Head:
    return Head(_head(LINE, extra), 400, words)


def _line(line: str, words: str) -> Head:
    return Head(_head(line), 400, words)


COLON = "no colon"
SPACE = "a space stands before the colon"
CHARACTER = "control character"
BODY = "has no body"

# A byte that is no ASCII, where a server or simple-websocket decodes it.
NOT_ASCII = {
    "host": Head(_head(Host="name\xe0.example"), 400, "no Host header of a host"),
    "connection": Head(_head(Connection="Upgrade, \xe0"), 400, "Connection header"),
    "upgrade": Head(_head(Upgrade="websocket, \xe0"), 400, "Upgrade header"),
    "protocol": Head(
        _head(Sec_WebSocket_Protocol="wsmux.v1, \xe0"), 400, "Sec-WebSocket-Protocol header"
    ),
    "key": Head(_head(Sec_WebSocket_Key=f"{KEY}\xe0"), 400, "key"),
    "version": Head(_head(Sec_WebSocket_Version="13\xe0"), 426, "version 13"),
    "name": _more("X\xe0: a\r\n", "the name of a header"),
    "query": _line("GET /?\xe0 HTTP/1.1", "ASCII"),
}

REFUSED = {
    # headers that another reader sees, and a lenient one does not
    "origin-behind-a-line-without-colon": _more("junk\r\nOrigin: http://evil.example\r\n", COLON),
    "space-before-the-colon": _more("Origin : http://evil.example\r\n", SPACE),
    "tab-before-the-colon": _more("Origin\t: http://evil.example\r\n", SPACE),
    "space-before-a-name": _more(" Origin: http://evil.example\r\n", "folded"),
    "folded": _more("X: a\r\n b\r\n", "folded"),
    "folded-by-a-tab": _more("X: a\r\n\tOrigin: http://evil.example\r\n", "folded"),
    "empty-name": _more(": a\r\n", "the name of a header"),
    "space-in-a-name": _more("X y: a\r\n", "the name of a header"),
    "parenthesis-in-a-name": _more("X(y): a\r\n", "the name of a header"),
    # characters
    "nul": _more("X: a\0b\r\n", CHARACTER),
    "escape": _more("X: a\x1bb\r\n", CHARACTER),
    "vertical-tab": _more("X: a\vb\r\n", CHARACTER),
    "form-feed": _more("X: a\fb\r\n", CHARACTER),
    "delete": _more("X: a\x7fb\r\n", CHARACTER),
    "cr-in-a-value": _more("X: a\rOrigin: http://evil.example\r\n", CHARACTER),
    "lf-in-a-value": _more("X: a\nOrigin: http://evil.example\r\n", CHARACTER),
    "lf-for-all-line-ends": Head(_head().replace(b"\r\n", b"\n"), 400, CHARACTER),
    # what there may be one of
    "two-hosts": _more(f"Host: {HOST}\r\n", "more than one Host"),
    "two-origins": _more(f"Origin: http://{HOST}\r\n" * 2, "more than one Origin"),
    "two-keys": _more(f"Sec-WebSocket-Key: {KEY}\r\n", "more than one Sec-WebSocket-Key"),
    "two-versions": _more("Sec-WebSocket-Version: 13\r\n", "more than one Sec-WebSocket-Version"),
    "two-hosts-in-one": Head(_head(Host=f"{HOST}, {HOST}"), 400, "more than one Host"),
    "two-origins-in-one": _more(
        f"Origin: http://{HOST}, http://{HOST}\r\n", "more than one Origin"
    ),
    # the host
    "no-host": Head(_head(Host=None), 400, "no Host header"),
    "empty-host": Head(_head(Host=""), 400, "no Host header of a host"),
    "host-with-user": Head(_head(Host="me@name.example"), 400, "no Host header of a host"),
    "host-with-path": Head(_head(Host="name.example/"), 400, "no Host header of a host"),
    "host-with-port-of-letters": Head(_head(Host="name.example:a"), 400, "no Host header of a"),
    # the version of HTTP, and the method
    "http-1.0": _line("GET / HTTP/1.0", "HTTP/1.0"),
    "http-2.0": _line("GET / HTTP/2.0", "HTTP/"),
    "http-without-minor": _line("GET / HTTP/1", "request line"),
    "lower-case-http": _line("GET / http/1.1", "request line"),
    "no-http": _line("GET /", "request line"),
    # the target
    "target-of-a-fragment": _line("GET /#top HTTP/1.1", "not a path"),
    "target-of-a-host": _line(f"GET {HOST} HTTP/1.1", "not a path"),
    "target-of-an-asterisk": _line("GET * HTTP/1.1", "not a path"),
    "whole-target-of-another-host": _line("GET http://b.example/ HTTP/1.1", "differ"),
    "whole-target-with-user": _line(f"GET http://me@{HOST}/ HTTP/1.1", "differ"),
    "whole-target-of-a-websocket": _line(f"GET ws://{HOST}/ HTTP/1.1", "not a path"),
    "target-with-a-space": _line("GET /a b HTTP/1.1", "request line"),
    "target-behind-a-tab": _line("GET\t/ HTTP/1.1", "request line"),
    # a body
    "body": Head(_head(LINE, "Content-Length: 5\r\n") + b"hello", 400, BODY),
    "body-to-come": _more("Content-Length: 5\r\n", BODY),
    "body-in-chunks": Head(_head(LINE, "Transfer-Encoding: chunked\r\n") + b"0\r\n\r\n", 400, BODY),
    "body-in-another-coding": _more("Transfer-Encoding: gzip\r\n", "Transfer-Encoding"),
    "two-lengths": _more("Content-Length: 0\r\nContent-Length: 0\r\n", "more than one"),
    "two-lengths-in-one": _more("Content-Length: 0, 0\r\n", BODY),
    "length-of-letters": _more("Content-Length: x\r\n", "Content-Length"),
    # the upgrade
    "connection-of-other-words": Head(_head(Connection="upgrades, x-upgrade"), 400, "say upgrade"),
    "connection-of-no-list": Head(_head(Connection='Upgrade, "a'), 400, "Connection header"),
    "protocol-of-no-token": Head(
        _head(Sec_WebSocket_Protocol="wsmux.v1, a b"), 400, "Sec-WebSocket-Protocol header"
    ),
}

# Good ones, though unusual.
TAKEN = {
    "plain": _head(),
    "connection-of-several-words": _head(Connection="keep-alive, UPGRADE"),
    "connection-twice": _head(LINE, "Connection: keep-alive\r\n"),
    "connection-with-empty-members": _head(Connection=", Upgrade ,"),
    "upgrade-of-several": _head(Upgrade="h2c, WebSocket"),
    "protocols-in-two-headers": _head(
        LINE, "Sec-WebSocket-Protocol: wsmux.v1\r\n", Sec_WebSocket_Protocol="other"
    ),
    "whole-target": _head(f"GET http://{HOST.upper()}/ HTTP/1.1"),
    "whole-target-without-a-path": _head(f"GET http://{HOST}?a=1 HTTP/1.1"),
    "bytes-in-a-value": _head(LINE, "Cookie: a=\xe0\xff\r\n"),
    "tab-in-a-value": _head(LINE, "X: a\tb\r\n"),
    "no-space-behind-a-colon": _head(LINE, "X:a\r\n"),
    "empty-value": _head(LINE, "X:\r\n"),
    "body-of-no-bytes": _head(LINE, "Content-Length: 0\r\n"),
    "ipv6-host": _head(Host="[::1]:80"),
    "host-with-underscore": _head(Host="web_1:80"),
    "long-label-in-host": _head(Host="a" * 70),
    "own-origin": _head(LINE, f"Origin: http://{HOST}\r\n"),
    "names-with-underscores": _head(LINE, "Sec_WebSocket_Key: x\r\nOrigin_: x\r\n"),
}

LISTED = "https://app.example"

# What resembles a listed origin.
LIKE_LISTED = {
    "suffix": "https://app.example.evil.example",
    "suffix-without-dot": "https://app.exampleevil.example",
    "prefix": "https://evilapp.example",
    "subdomain": "https://evil.app.example",
    "parent": "https://example",
    "other-port": "https://app.example:8443",
    "port-of-http": "https://app.example:80",
    "scheme": "http://app.example",
    "websocket-scheme": "wss://app.example",
    "extension-scheme": "chrome-extension://app.example",
    "null": "null",
    "empty": "",
    "userinfo": "https://app.example@evil.example",
    "userinfo-before-ours": "https://evil@app.example",
    "trailing-dot": "https://app.example.",
    "two-trailing-dots": "https://app.example..",
    "path": "https://app.example/",
    "query": "https://app.example?x",
    "backslash": "https://app.example\\.evil.example",
    "tab-inside": "https://app\t.example",
    "two-origins": "https://app.example https://evil.example",
    "ipv6": "https://[::1]",
    "ipv6-with-our-name": "https://[app.example]",
    "ipv6-zone": "https://[fe80::1%25app.example]",
    "ipv4-in-ipv6": "https://[::ffff:127.0.0.1]",
    "punycode": "https://xn--pp-eka.example",
    "punycode-of-nothing": "https://xn--app-.example",
    "homograph": "https://\xe0pp.example",
    "full-width": "https://\xef\xbd\x81pp.example",
    "percent": "https://%61pp.example",
    "underscore": "https://app_example",
    "wildcard": "*",
    "no-scheme": "app.example",
}


@contextmanager
def serving(**options: object) -> Iterator[wsmux.Server]:
    """Serve connections until they end, or until the block does."""
    server = wsmux.serve(wsmux.Connection.wait_closed, **options)  # type: ignore[arg-type]
    try:
        yield server
    finally:
        for connection in server.connections:
            connection.abort()
        server.shutdown(timeout=0)


def dial(server: wsmux.Server) -> socket.socket:
    """Connect to a server without a word."""
    sock = socket.create_connection(("127.0.0.1", server.port), WAIT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def answer(server: wsmux.Server, data: bytes) -> tuple[int, dict[str, str], str]:
    """Send bytes and return status, headers and body of the refusal, which ends with EOF."""
    with dial(server) as sock:
        sock.sendall(data)
        first, headers = read_head(sock)
        body = b""
        if "content-length" in headers:
            while chunk := sock.recv(4096):
                body += chunk
            assert len(body) == int(headers["content-length"])
        return int(first.split()[1]), headers, body.decode()


def descriptors() -> int:
    """Return how many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


def uncaught(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of what threads raise from now on."""
    seen: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(repr(args.exc_value)))
    return seen
