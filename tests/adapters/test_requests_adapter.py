"""Ask with requests over streams: bodies both ways, bounds in time, and each way to fail."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from urllib3 import Timeout

import wsmux
from wsmux.adapters import MuxAdapter
from wsmux.testing import FaultProxy
from wsmux.wsgi import StreamServer

from ..helpers.raw_peer import meet, wait_for
from ..helpers.wsgi_apps import WAIT, Gate, app, asking, published, slow, talking


@pytest.mark.parametrize("protocol", ["wsmux", "js-ws", "yamux", "bymux"])
def test_a_request_reaches_the_application_whole(protocol: str) -> None:
    with asking(protocol=protocol) as session:
        url = "mux://laptop:81/a%20b/%C3%BC?x=1&y=%20"
        answer = session.get(url, headers={"X-One": "1"}, timeout=WAIT)
    told = dict(line.split("=", 1) for line in answer.text.splitlines())
    assert answer.status_code == 200
    assert told["PATH_INFO"] == "/a b/Ã¼"
    assert told["QUERY_STRING"] == "x=1&y=%20"
    assert (told["SERVER_NAME"], told["SERVER_PORT"]) == ("laptop", "81")
    assert told["HTTP_HOST"] == "laptop:81"
    assert told["HTTP_X_ONE"] == "1"


def test_cookies_are_kept_and_sent_again() -> None:
    with asking() as session:
        session.get("mux://laptop.test/", timeout=WAIT)
        again = session.get("mux://laptop.test/", timeout=WAIT)
    assert "HTTP_COOKIE=a=b" in again.text.splitlines()


def pieces(count: int, size: int) -> Iterator[bytes]:
    source = random.Random(7)
    for _ in range(count):
        yield source.randbytes(size)


def test_a_body_without_a_length_goes_in_chunks() -> None:
    with asking() as session:
        answer = session.post("mux://a/count", data=pieces(30, 50_000), timeout=WAIT)
    assert answer.text == "1500000"


def test_a_file_is_sent_with_its_length(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(700_000))
    with asking() as session, path.open("rb") as file:
        assert session.post("mux://a/count", data=file, timeout=WAIT).text == "700000"


def test_an_answer_is_read_in_pieces_and_is_exact() -> None:
    body = b"".join(pieces(4, 50_000))
    digest = hashlib.sha256()
    with asking() as session:
        answer = session.post("mux://a/echo", data=body, stream=True, timeout=WAIT)
        for piece in answer.iter_content(10_000):
            digest.update(piece)
    assert answer.headers["Transfer-Encoding"] == "chunked"
    assert digest.digest() == hashlib.sha256(body).digest()


def test_bodies_are_exact_though_the_connection_is_cut_within_them() -> None:
    body = b"".join(pieces(40, 50_000))
    with (
        wsmux.serve(stream_handler=StreamServer(app), resume=True) as server,
        FaultProxy(server.port) as proxy,
        wsmux.connect(proxy.url, resume=True) as client,
        requests.Session() as session,
    ):
        session.mount("mux://", MuxAdapter(client))
        proxy.cut_after(300_000, 700_000, way="up", how="rst")
        assert session.post("mux://a/count", data=body, timeout=WAIT).text == "2000000"
        proxy.cut_after(60_000, 50_000, way="down", how="fin")
        fits = body[:200_000]  # into the window, since the body is sent before the answer is read
        assert session.post("mux://a/echo", data=fits, timeout=WAIT).content == fits
        assert not proxy.cutting
        assert client.stats().reconnects >= 4


def test_a_reader_that_stops_holds_the_application_back_and_cancels_it_by_closing() -> None:
    gate = Gate()
    gate.open.set()
    with published(slow(gate)) as client, requests.Session() as session:
        session.mount("mux://", MuxAdapter(client))
        answer = session.get("mux://a/", stream=True, timeout=WAIT)
        window = client.config.receive_window
        wait_for(lambda: client.stats().unread_bytes > window // 2)
        assert client.stats().unread_bytes <= window
        assert not gate.closed.is_set()
        answer.close()
        assert gate.closed.wait(WAIT)
        assert client.wait_drained(WAIT)


def test_each_complete_request_leaves_no_stream() -> None:
    with published(app) as client, requests.Session() as session:
        session.mount("mux://", MuxAdapter(client))
        for _ in range(5):
            session.get("mux://a/", timeout=WAIT)
        assert client.wait_drained(WAIT)
        assert client.stats().streams_opened == 5


def test_threads_ask_at_once() -> None:
    found: list[str] = []
    with asking(workers=4) as session:

        def ask(number: int) -> None:
            found.append(session.post("mux://a/count", data=bytes(number), timeout=WAIT).text)

        threads = [threading.Thread(target=ask, args=(1000 * n,)) for n in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
    assert sorted(map(int, found)) == [1000 * n for n in range(1, 9)]


def test_head_and_204_have_no_body() -> None:
    with asking() as session:
        assert session.head("mux://a/", timeout=WAIT).content == b""
        empty = session.get("mux://a/empty", timeout=WAIT)
    assert (empty.status_code, empty.content) == (204, b"")


def test_an_answer_may_come_before_the_request_is_read() -> None:
    with asking() as session:
        answer = session.post("mux://a/refuse", data=bytes(3_000_000), timeout=WAIT)
    assert (answer.status_code, answer.text) == (413, "too much")


def test_silence_is_a_read_timeout_and_cancels() -> None:
    gate = Gate()
    with published(slow(gate)) as client, requests.Session() as session:
        session.mount("mux://", MuxAdapter(client))
        while not gate.running.is_set():  # the application may not have had the request in time
            with pytest.raises(requests.ReadTimeout):
                session.get("mux://a/", timeout=(WAIT, 0.05))
        assert client.wait_drained(WAIT)
        gate.open.set()
        assert gate.closed.wait(WAIT)


def test_silence_in_the_middle_is_an_error_of_the_connection() -> None:
    def handle(stream: wsmux.Stream) -> None:
        stream.read(65536)
        stream.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")

    with talking(handle) as connection, requests.Session() as session:
        session.mount("mux://", MuxAdapter(connection))
        answer = session.get("mux://a/", stream=True, timeout=0.05)
        with pytest.raises(requests.ConnectionError, match="timed out"):
            assert answer.content
        answer.close()


def test_no_room_for_a_stream_is_a_connect_timeout() -> None:
    with meet("client", wsmux.Config(max_pending_opens=1)) as met, requests.Session() as session:
        session.mount("mux://", MuxAdapter(met.connection))
        with met.connection.open_stream(), pytest.raises(requests.ConnectTimeout):
            session.get("mux://a/", timeout=(0.05, WAIT))


@pytest.mark.parametrize(
    "timeout",
    [
        0.05,
        (WAIT, 0.05),
        Timeout(connect=WAIT, read=0.05),
        Timeout(total=0.05),
        Timeout(total=WAIT, read=0.05),
    ],
    ids=str,
)
def test_a_timeout_may_have_each_form_that_requests_takes(timeout: Any) -> None:
    check_read_timeout(timeout)


def check_read_timeout(timeout: Any, of_sockets: float | None = None) -> None:
    gate = Gate()
    before = socket.getdefaulttimeout()
    with published(slow(gate)) as client, requests.Session() as session:
        session.mount("mux://", MuxAdapter(client))
        try:
            socket.setdefaulttimeout(of_sockets)  # not that of the sockets below
            with pytest.raises(requests.ReadTimeout):
                session.get("mux://a/", timeout=timeout)
        finally:
            socket.setdefaulttimeout(before)
            gate.open.set()


def test_one_that_leaves_a_limit_to_sockets_has_theirs() -> None:
    check_read_timeout(Timeout(), of_sockets=0.05)


@pytest.mark.parametrize("timeout", [(1, 2, 3), "soon", 0, (1, -1)])
def test_a_timeout_of_another_form_is_refused(timeout: Any) -> None:
    with asking() as session, pytest.raises(ValueError, match="(?i)timeout"):
        session.get("mux://a/", timeout=timeout)


def test_an_ended_connection_is_an_error_that_tells_its_cause() -> None:
    with published(app) as client, requests.Session() as session:
        session.mount("mux://", MuxAdapter(client))
        client.close()
        with pytest.raises(requests.ConnectionError) as caught:
            session.get("mux://a/", timeout=WAIT)
    assert isinstance(caught.value.__cause__, wsmux.ConnectionClosedOK)


def test_a_function_gives_the_connection_of_each_request() -> None:
    given: list[wsmux.Connection] = []

    def current() -> wsmux.Connection:
        if not given:
            raise ConnectionRefusedError("nobody is there")
        return given[-1]

    with requests.Session() as session, published(app) as client:
        session.mount("mux://", MuxAdapter(current))
        with pytest.raises(requests.ConnectionError, match="nobody is there"):
            session.get("mux://a/", timeout=WAIT)
        given.append(client)
        assert session.get("mux://a/", timeout=WAIT).ok


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nX: " + bytes(200_000) + b"\r\n\r\n",
    ],
    ids=["nothing", "half a head", "no HTTP", "two lengths", "endless"],
)
def test_what_is_no_answer_is_an_error_of_the_connection(answer: bytes) -> None:
    def handle(stream: wsmux.Stream) -> None:
        stream.read(65536)
        try:
            stream.write(answer)
        except wsmux.StreamError:
            return  # it was enough
        stream.close()

    with talking(handle) as connection, requests.Session() as session:
        session.mount("mux://", MuxAdapter(connection))
        with pytest.raises(requests.ConnectionError):
            session.get("mux://a/", timeout=WAIT)


@pytest.mark.parametrize(
    "body", [b"Content-Length: 9\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf"]
)
def test_an_answer_cut_short_is_never_whole(body: bytes) -> None:
    def handle(stream: wsmux.Stream) -> None:
        stream.read(65536)
        stream.write(b"HTTP/1.1 200 OK\r\n" + body)
        stream.close()

    with talking(handle) as connection, requests.Session() as session:
        session.mount("mux://", MuxAdapter(connection))
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            session.get("mux://a/", timeout=WAIT)


def test_a_failing_application_is_a_500_and_half_an_answer_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with asking() as session:
        answer = session.get("mux://a/fail", timeout=WAIT)
        assert (answer.status_code, answer.text) == (500, "the application failed\n")
        # The reset may come before the head of the answer was read, or after.
        broken = (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)
        for path in ("fail-late", "short"):
            with pytest.raises(broken):
                session.get(f"mux://a/{path}", timeout=WAIT)
    assert [record.levelname for record in caplog.records if record.name == "wsmux.wsgi"] == [
        "ERROR"
    ] * 3


def test_a_body_that_fails_is_the_callers_own_error_and_resets_the_stream() -> None:
    def failing() -> Iterator[bytes]:
        yield b"half"
        raise LookupError("on purpose")

    with asking() as session:
        with pytest.raises(LookupError):
            session.post("mux://a/count", data=failing(), timeout=WAIT)
        assert session.get_adapter("mux://a/")._connection.wait_drained(WAIT)


def test_an_interrupt_stays_one_and_resets_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[wsmux.Stream] = []

    def interrupted(stream: wsmux.Stream, size: int) -> bytes:
        raise KeyboardInterrupt

    with talking(kept.append) as connection, requests.Session() as session:
        session.mount("mux://", MuxAdapter(connection))
        monkeypatch.setattr(wsmux.Stream, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.get("mux://a/", timeout=WAIT)
        assert connection.wait_drained(WAIT)


def test_an_error_that_stands_for_a_code_is_one_of_the_connection() -> None:
    def handle(stream: wsmux.Stream) -> None:
        stream.reset(70)

    ours, theirs = socket.socketpair()
    client = wsmux.from_socket(ours, role="client", code_to_reason=lambda code: KeyError(code))
    server = wsmux.from_socket(theirs, role="server", stream_handler=handle)
    with client, server, requests.Session() as session:
        session.mount("mux://", MuxAdapter(client))
        with pytest.raises(requests.ConnectionError) as caught:
            session.get("mux://a/", timeout=WAIT)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "\0"])
def test_a_header_that_cannot_be_sent_is_refused(value: str) -> None:
    with asking() as session, pytest.raises(requests.exceptions.InvalidHeader):
        session.get("mux://a/", headers={"X-One": value}, timeout=WAIT)


def test_a_url_without_a_host_is_refused() -> None:
    with asking() as session, pytest.raises(requests.exceptions.InvalidURL):
        session.get("mux:///path", timeout=WAIT)
