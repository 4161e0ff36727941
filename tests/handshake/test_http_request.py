"""Requests read from a socket: heads and bodies within a time and a size."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from wsmux.exceptions import HandshakeError
from wsmux.handshake.http_request import read_body, read_request, refusal_headers, respond
from wsmux.runtime.deadline import Deadline

from ..helpers.raw_peer import WAIT, in_thread

Pair = tuple[socket.socket, socket.socket]

POST = "POST / HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(WAIT)
    with ours, theirs:
        yield ours, theirs


def read(sock: socket.socket, max_size: int = 4096) -> dict[str, Any]:
    return read_request(sock, Deadline(WAIT), max_size, ("GET", "POST"))


def body(sock: socket.socket, max_body: int = 100) -> bytes:
    return read_body(sock, read(sock), Deadline(WAIT), max_body)


def refusal(call: Callable[[], object]) -> tuple[int | None, str]:
    with pytest.raises(HandshakeError) as caught:
        call()
    return caught.value.status, str(caught.value)


def test_a_body_may_come_with_its_head(pair: Pair) -> None:
    pair[1].sendall(f"{POST}Content-Length: 5\r\n\r\nhello".encode())
    assert body(pair[0]) == b"hello"


def test_a_body_may_come_in_pieces(pair: Pair) -> None:
    data = f"{POST}Content-Length: 5\r\n\r\nhello".encode()

    def send() -> None:
        for n in range(len(data)):
            pair[1].sendall(data[n : n + 1])

    sending = in_thread(send)
    assert body(pair[0]) == b"hello"
    sending.result(WAIT)


def test_a_body_may_be_empty(pair: Pair) -> None:
    pair[1].sendall(f"{POST}Content-Length: 0\r\n\r\n".encode())
    assert body(pair[0]) == b""


def test_a_body_may_hold_the_end_of_a_head(pair: Pair) -> None:
    pair[1].sendall(f"{POST}Content-Length: 9\r\n\r\na\r\n\r\nb\r\n\r\n"[:-1].encode())
    assert body(pair[0]) == b"a\r\n\r\nb\r\n\r"


def test_a_long_body_is_no_long_head(pair: Pair) -> None:
    sending = in_thread(
        pair[1].sendall, f"{POST}Content-Length: 100000\r\n\r\n".encode() + bytes(100_000)
    )
    environ = read(pair[0], max_size=60)
    assert len(read_body(pair[0], environ, Deadline(WAIT), 100_000)) == 100_000
    sending.result(WAIT)


def test_a_client_that_asks_whether_to_go_on_is_told(pair: Pair) -> None:
    pair[1].sendall(f"{POST}Content-Length: 5\r\nExpect: 100-continue\r\n\r\n".encode())
    reading = in_thread(body, pair[0])
    assert pair[1].recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    pair[1].sendall(b"hello")
    assert reading.result(WAIT) == b"hello"


@pytest.mark.parametrize("asks", ["", "Expect: 100-continue\r\n"])
def test_a_body_above_the_limit_is_refused_unread(pair: Pair, asks: str) -> None:
    pair[1].sendall(f"{POST}Content-Length: 101\r\n{asks}\r\n".encode())
    status, text = refusal(lambda: body(pair[0]))
    assert (status, "101 bytes is above the limit of 100" in text) == (413, True)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("", 411),
        ("Transfer-Encoding: chunked\r\n", 411),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 411),
        ("Content-Length: \r\n", 400),
        ("Content-Length: -1\r\n", 400),
        ("Content-Length: +5\r\n", 400),
        ("Content-Length: 0x5\r\n", 400),
        ("Content-Length: 5, 5\r\n", 400),
        ("Content-Length: 5\r\nContent-Length: 6\r\n", 400),
        ("Content-Length: 4\r\n", 400),
        ("Content-Length: 1000000000000000000000\r\n", 400),
        ("Content-Length: ٥\r\n", 400),
    ],
)
def test_a_body_of_unclear_length_is_refused(pair: Pair, headers: str, status: int) -> None:
    pair[1].sendall(f"{POST}{headers}\r\nhello".encode())
    assert refusal(lambda: body(pair[0]))[0] == status


def test_a_body_that_breaks_off_has_no_answer(pair: Pair) -> None:
    pair[1].sendall(f"{POST}Content-Length: 5\r\n\r\nhell".encode())
    pair[1].shutdown(socket.SHUT_WR)
    status, text = refusal(lambda: body(pair[0]))
    assert (status, text) == (None, "the connection ended within the request")


def test_a_body_that_does_not_come_is_given_up(pair: Pair) -> None:
    pair[1].sendall(f"{POST}Content-Length: 5\r\n\r\nhell".encode())
    environ = read(pair[0])
    with pytest.raises(TimeoutError):
        read_body(pair[0], environ, Deadline(0.01), 100)
    with pytest.raises(TimeoutError, match="did not arrive in time"):
        read_body(pair[0], environ, Deadline(0), 100)


def test_only_the_methods_named_are_taken(pair: Pair) -> None:
    pair[1].sendall(f"{POST}\r\n".encode())
    refused = refusal(lambda: read_request(pair[0], Deadline(WAIT), 4096))
    assert refused == (405, "the method of a WebSocket request must be GET")
    pair[1].sendall(b"PUT / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert refusal(lambda: read(pair[0])) == (405, "use GET or POST")


def test_a_head_of_the_largest_size_is_taken(pair: Pair) -> None:
    head = b"GET / HTTP/1.1\r\nHost: x\r\nA: b"
    pair[1].sendall(head + b"\r\n\r\n")
    assert read(pair[0], len(head))["HTTP_A"] == "b"
    pair[1].sendall(head + b"b\r\n\r\n")
    assert refusal(lambda: read(pair[0], len(head)))[0] == 431


def test_an_answer_ends_the_connection(pair: Pair) -> None:
    respond(pair[0], 202, b"", {}, WAIT)
    answer = pair[1].recv(1000)
    assert answer == b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    assert pair[1].recv(1) == b""


def test_who_asks_is_told_how_much_of_a_head_has_come(pair: Pair) -> None:
    seen: list[int] = []

    def held(size: int) -> None:
        seen.append(size)
        pair[1].sendall(b"\r\n\r\n")

    pair[1].sendall(b"GET / HTTP/1.1\r\nHost: x")
    environ = read_request(pair[0], Deadline(WAIT), 4096, held=held)
    assert (environ["HTTP_HOST"], seen) == ("x", [23, 27])


def test_what_is_told_of_a_head_may_refuse_it(pair: Pair) -> None:
    def held(size: int) -> None:
        raise HandshakeError("no room", 503)

    pair[1].sendall(b"GET")
    assert refusal(lambda: read_request(pair[0], Deadline(WAIT), 4096, held=held)) == (
        503,
        "no room",
    )


def test_a_header_with_an_underscore_does_not_pass_for_one_with_a_hyphen(pair: Pair) -> None:
    pair[1].sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Who: proxy\r\nX_Who: client\r\nA_B: c\r\n\r\n")
    environ = read(pair[0])
    assert environ["HTTP_X_WHO"] == "proxy"
    assert "HTTP_A_B" not in environ


@pytest.mark.parametrize(
    ("retry_after", "told"),
    [(None, None), (0.2, "1"), (60, "60"), (-5.0, "0"), (math.inf, None), (math.nan, None)],
)
def test_only_seconds_that_end_are_told(retry_after: float | None, told: str | None) -> None:
    assert refusal_headers(429, retry_after).get("Retry-After") == told


@pytest.mark.parametrize(("retry_after", "told"), [(None, "5"), (7.0, "7"), (math.inf, None)])
def test_a_busy_server_asks_for_some_time(retry_after: float | None, told: str | None) -> None:
    assert refusal_headers(503, retry_after).get("Retry-After") == told
