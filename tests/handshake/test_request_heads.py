"""Heads of requests: what they say, and which are refused because two readers could differ."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from wsmux.exceptions import HandshakeError
from wsmux.handshake.http_request import MAX_HEADERS, parse_head, read_request
from wsmux.handshake.websocket_server import accept, check_upgrade
from wsmux.runtime.deadline import Deadline

from ..helpers.certificates import Certificates
from ..helpers.raw_peer import WAIT, in_thread
from ..helpers.request_heads import HOST, NOT_ASCII, REFUSED, TAKEN, Head

ALL = REFUSED | NOT_ASCII

BEHIND = b"\x82\x85\0\0\0\0hello"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


Pair = tuple[socket.socket, socket.socket]


def read(sock: socket.socket, size: int = 4096) -> dict[str, Any]:
    return read_request(sock, Deadline(WAIT), size)


@pytest.mark.parametrize("head", ALL.values(), ids=ALL.keys())
def test_a_bad_head_is_refused_with_a_sentence(pair: Pair, head: Head) -> None:
    pair[1].sendall(head.data)
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(HandshakeError) as caught:
        check_upgrade(read(pair[0]), ["*"])
    assert caught.value.status == head.status
    assert head.words in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("data", TAKEN.values(), ids=TAKEN.keys())
def test_a_good_head_is_taken(pair: Pair, data: bytes) -> None:
    pair[1].sendall(data)
    assert "wsmux.v1" in check_upgrade(read(pair[0]), None)


@pytest.mark.parametrize("data", TAKEN.values(), ids=TAKEN.keys())
def test_a_good_head_gets_101_without_an_extension(pair: Pair, data: bytes) -> None:
    offer = b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
    pair[1].sendall(data.removesuffix(b"\r\n") + offer)
    with accept(read(pair[0]), "wsmux").socket:
        lines = pair[1].recv(1000).decode().lower().split("\r\n")
    assert lines[0] == "http/1.1 101 switching protocols"
    assert "sec-websocket-protocol: wsmux.v1" in lines
    assert not [line for line in lines if "extensions" in line]


@pytest.mark.parametrize("head", ALL.values(), ids=ALL.keys())
def test_a_bad_head_is_refused_by_accept_without_a_check_before(pair: Pair, head: Head) -> None:
    pair[1].sendall(head.data)
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(HandshakeError) as caught:
        accept(read(pair[0]), "wsmux")
    assert caught.value.status == head.status


# What a head says


@pytest.mark.parametrize(
    ("line", "path", "query", "uri"),
    [
        ("GET /a%20b?c=d%20e HTTP/1.1", "/a b", "c=d%20e", "/a%20b?c=d%20e"),
        ("GET /a? HTTP/1.1", "/a", "", "/a?"),
        ("GET //b.example/ HTTP/1.1", "//b.example/", "", "//b.example/"),
        (f"GET HTTP://{HOST}/a?b HTTP/1.1", "/a", "b", "/a?b"),
        (f"GET https://{HOST} HTTP/1.1", "/", "", "/"),
        (f"GET https://{HOST}?b HTTP/1.1", "/", "b", "/?b"),
    ],
)
def test_a_target_is_a_path_and_a_query(
    pair: Pair, line: str, path: str, query: str, uri: str
) -> None:
    pair[1].sendall(f"{line}\r\nHost: {HOST}\r\n\r\n".encode())
    environ = read(pair[0])
    assert (environ["PATH_INFO"], environ["QUERY_STRING"]) == (path, query)
    assert environ["REQUEST_URI"] == uri


def test_http_1_0_without_a_host_is_a_request_but_no_upgrade(pair: Pair) -> None:
    pair[1].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert read(pair[0])["SERVER_PROTOCOL"] == "HTTP/1.0"


def test_more_headers_than_the_limit_are_refused_with_431() -> None:
    head = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * (MAX_HEADERS - 1)
    assert len(parse_head(head + b"\r\n").headers) == MAX_HEADERS
    with pytest.raises(HandshakeError) as caught:
        parse_head(head + b"A: b\r\n\r\n")
    assert caught.value.status == 431


def test_half_a_head_is_none() -> None:
    with pytest.raises(HandshakeError, match="the end of the request head is missing"):
        parse_head(b"GET / HTTP/1.1\r\nHost: a")


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"REQUEST_METHOD": "HEAD"}, 405),
        ({"SERVER_PROTOCOL": "HTTP/1.0"}, 400),
        ({"SERVER_PROTOCOL": "HTTP/2.0"}, 400),
        ({"RAW_URI": "/\xe0"}, 400),
        ({"CONTENT_LENGTH": "1"}, 400),
        ({"HTTP_TRANSFER_ENCODING": "chunked"}, 400),
        ({"HTTP_HOST": "a,b"}, 400),
        ({"HTTP_ORIGIN": "http://a,http://a"}, 400),
        ({"HTTP_X": "a\nb"}, 400),
    ],
    ids=str,
)
def test_what_a_wsgi_server_has_read_is_checked_as_well(
    changed: dict[str, str], status: int
) -> None:
    environ = {
        "REQUEST_METHOD": "GET",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": "",
        "HTTP_HOST": "a",
        "HTTP_UPGRADE": "websocket",
        "HTTP_CONNECTION": "Upgrade",
        "HTTP_SEC_WEBSOCKET_KEY": "dGhlIHNhbXBsZSBub25jZQ==",
        "HTTP_SEC_WEBSOCKET_VERSION": "13",
    }
    assert check_upgrade(environ, None) == []
    with pytest.raises(HandshakeError) as caught:
        check_upgrade(environ | changed, ["*"])
    assert caught.value.status == status


# Reading


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 4096])
def test_what_comes_behind_a_head_stays_in_the_socket(pair: Pair, size: int) -> None:
    data = TAKEN["plain"] + BEHIND

    def send() -> None:
        for start in range(0, len(data), size):
            pair[1].sendall(data[start : start + size])

    sending = in_thread(send)
    assert read(pair[0])["HTTP_HOST"] == HOST
    sending.result(WAIT)
    assert pair[0].recv(100) == BEHIND


def test_what_comes_behind_a_head_stays_in_a_tls_socket(
    pair: Pair, certificates: Certificates
) -> None:
    wrapping = in_thread(certificates.client.wrap_socket, pair[1], server_hostname="localhost")
    ours = certificates.server.wrap_socket(pair[0], server_side=True)
    with ours, wrapping.result(WAIT) as theirs:
        theirs.sendall(TAKEN["plain"] + BEHIND)
        assert read(ours)["wsgi.url_scheme"] == "https"
        assert ours.recv(100) == BEHIND


@pytest.mark.parametrize("begun", [b"\x16\x03\x01\x02\0\x01", b"GET / HTTP/1.1\nHost"], ids=str)
def test_what_cannot_become_a_head_is_refused_before_it_ends(pair: Pair, begun: bytes) -> None:
    pair[1].sendall(begun)
    with pytest.raises(HandshakeError) as caught:
        read(pair[0])
    assert caught.value.status == 400


def test_a_head_of_the_largest_size_may_come_byte_by_byte(pair: Pair) -> None:
    head = TAKEN["plain"]

    def send() -> None:
        for byte in head:
            pair[1].sendall(bytes((byte,)))

    sending = in_thread(send)
    assert read(pair[0], len(head) - 4)["HTTP_HOST"] == HOST
    sending.result(WAIT)
