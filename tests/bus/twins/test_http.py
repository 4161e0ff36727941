"""A registrar tells of twins, or fails with a sentence that names it."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from wsmux.bus.errors import TwinsUnavailable
from wsmux.bus.twins import http
from wsmux.bus.twins.http import MAX_RECORD, HttpTwins
from wsmux.bus.twins.records import twin_record
from wsmux.bus.twins.sources import twins_from
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.captured import TWINS
from ...helpers.bus.directories import Registrar, registrar
from ...helpers.ports import free_port
from ...helpers.timeouts import WAIT

RECORD = twin_record(TWINS[1])


@pytest.fixture
def told() -> Iterator[Registrar]:
    with registrar() as told:
        yield told


@pytest.fixture
def twins(told: Registrar) -> Iterator[HttpTwins]:
    twins = HttpTwins(told.url)
    yield twins
    twins.close()


def soon() -> Deadline:
    return Deadline(WAIT)


def test_a_registrar_tells_of_a_twin(told: Registrar, twins: HttpTwins) -> None:
    told.put("/twins/1", RECORD)
    assert twins.get(1, soon()) == TWINS[1]


def test_status_404_is_an_unknown_twin(twins: HttpTwins) -> None:
    assert twins.get(1, soon()) is None


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_the_next_registrar_is_asked_after_a_failure_of_one(told: Registrar, status: int) -> None:
    told.put("/twins/1", b"", status)
    with registrar() as other:
        other.put("/twins/1", RECORD)
        twins = twins_from([told.url, other.url])
        assert twins.get(1, soon()) == TWINS[1]
        assert twins.get(99, soon()) is None
        assert (told.requests, other.requests) == (["/twins/1"], ["/twins/1", "/twins/99"])
        twins.close()


def test_an_account_is_looked_up(told: Registrar, twins: HttpTwins) -> None:
    told.put(f"/twins?account=0x{TWINS[1].account.hex()}", RECORD)
    assert twins.find(TWINS[1].account, soon()) == TWINS[1]


def test_an_account_may_be_unknown(twins: HttpTwins) -> None:
    assert twins.find(bytes(32), soon()) is None


def test_a_slash_at_the_end_of_the_url_does_not_matter(told: Registrar) -> None:
    twins = HttpTwins(f"{told.url}/v1/")
    told.put("/v1/twins/1", RECORD)
    assert twins.get(1, soon()) == TWINS[1]
    twins.close()


def test_no_cookie_is_kept(told: Registrar, twins: HttpTwins) -> None:
    seen: list[str | None] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        seen.append(request.headers.get("Cookie"))
        request.send_response(404)
        request.send_header("Set-Cookie", "a=b")
        request.send_header("Content-Length", "0")
        request.end_headers()

    told.answer = answer
    twins.get(1, soon())
    twins.get(1, soon())
    assert seen == [None, None]


BAD: dict[str, tuple[int, Any, str]] = {
    "status 500": (500, RECORD, "answered with status 500"),
    "status 503": (503, b"", "answered with status 503"),
    "status 401": (401, RECORD, "answered with status 401"),
    "status 204": (204, b"", "answered with status 204"),
    "status 301": (301, RECORD, "answered with status 301"),
    "nothing": (200, b"", "returned no twin"),
    "no JSON": (200, b"<html>", "returned no twin"),
    "no UTF-8": (200, b'"\xff"', "returned no twin"),
    "nested without end": (200, b"[" * 50_000, "returned no twin"),
    "null": (200, None, "returned no twin: a twin must be an object"),
    "a list": (200, [RECORD], "returned no twin: a twin must be an object"),
    "a bad account": (200, {**RECORD, "account": "x"}, "returned no twin: 'x' is not an SS58"),
    "another twin": (200, {**RECORD, "id": 2}, "returned twin 2 when asked for 1"),
    "too much": (200, b" " * (MAX_RECORD + 1), f"in more than {MAX_RECORD} bytes"),
}


@pytest.mark.parametrize("why", BAD)
def test_a_bad_answer_is_named_with_its_source(told: Registrar, twins: HttpTwins, why: str) -> None:
    status, value, sentence = BAD[why]
    told.put("/twins/1", value, status)
    with pytest.raises(TwinsUnavailable, match=sentence) as failed:
        twins.get(1, soon())
    assert told.url in failed.value.message


def test_another_account_than_was_asked_for_is_refused(told: Registrar, twins: HttpTwins) -> None:
    told.put(f"/twins?account=0x{bytes(32).hex()}", RECORD)
    with pytest.raises(TwinsUnavailable, match="returned another account"):
        twins.find(bytes(32), soon())


def test_an_answer_that_unpacks_to_too_much_is_refused(told: Registrar, twins: HttpTwins) -> None:
    packed = gzip.compress(b" " * (MAX_RECORD * 100))

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Encoding", "gzip")
        request.send_header("Content-Length", str(len(packed)))
        request.end_headers()
        request.wfile.write(packed)

    told.answer = answer
    with pytest.raises(TwinsUnavailable, match="in more than"):
        twins.get(1, soon())


def test_an_answer_cut_short_is_a_failure(told: Registrar, twins: HttpTwins) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        request.wfile.write(b"{")
        request.close_connection = True

    told.answer = answer
    with pytest.raises(TwinsUnavailable, match="cannot be queried"):
        twins.get(1, soon())


def test_a_registrar_that_is_away_is_a_failure() -> None:
    port = free_port()
    twins = HttpTwins(f"http://127.0.0.1:{port}")
    with pytest.raises(TwinsUnavailable, match="cannot be queried"):
        twins.get(1, soon())
    twins.close()


def test_a_registrar_that_is_silent_is_left_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        twins = HttpTwins(f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(TwinsUnavailable, match="cannot be queried"):
            twins.get(1, Deadline(0.05))
        twins.close()


def test_a_registrar_that_is_silent_is_left_though_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message may live for an hour, and its worker must not wait for so long."""
    monkeypatch.setattr(http, "SILENCE", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        twins = HttpTwins(f"http://127.0.0.1:{server.getsockname()[1]}")
        for seconds in (WAIT, None):
            with pytest.raises(TwinsUnavailable, match="cannot be queried"):
                twins.get(1, Deadline(seconds))
        twins.close()


def test_a_registrar_that_drips_is_left_at_the_deadline(told: Registrar, twins: HttpTwins) -> None:
    left = threading.Event()

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "4000")
        request.end_headers()
        try:
            for _ in range(4000):
                request.wfile.write(b" ")
                left.wait(0.005)
        except OSError:
            left.set()

    told.answer = answer
    with pytest.raises(TwinsUnavailable, match="in time|cannot be queried"):
        twins.get(1, Deadline(0.2))
    assert left.wait(WAIT)


def test_a_registrar_is_not_asked_when_no_time_is_left(told: Registrar, twins: HttpTwins) -> None:
    with pytest.raises(TwinsUnavailable, match="did not answer in time"):
        twins.get(1, Deadline(0))
    assert not told.requests


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://a b", "http://x:port"])
def test_a_url_that_is_none_is_a_failure(url: str) -> None:
    with pytest.raises(TwinsUnavailable, match="cannot be queried"):
        HttpTwins(url).get(1, soon())
