"""Serve a WSGI application on streams: what it is told, and what each kind of peer is answered."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest

import wsmux
from wsmux.wsgi import StreamServer, serve, serving

from ..helpers.tables import each_case
from ..helpers.wsgi_apps import WAIT, Gate, app, published, slow


def say(connection: wsmux.Connection, data: bytes) -> wsmux.Stream:
    stream = connection.open_stream(WAIT)
    stream.timeout = WAIT
    stream.write(data)
    return stream


def answers(connection: wsmux.Connection, data: bytes) -> bytes:
    """Return all that is answered until the other end closes."""
    with say(connection, data) as stream:
        return stream.read()


GET = b"GET /empty HTTP/1.1\r\nHost: a\r\n\r\n"
LAST = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


def test_requests_sent_at_once_are_answered_in_order() -> None:
    count = b"POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
    with published(app) as client:
        told = answers(client, count + GET + LAST)
    assert told.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\n\r\n3HTTP/1.1 204" in told
    assert told.count(b"HTTP/1.1 204") == 2


def test_a_client_that_waits_for_100_is_told_to_go_on_when_the_body_is_read() -> None:
    head = b"POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    with published(app) as client, say(client, head) as stream:
        assert stream.read(65536).startswith(b"HTTP/1.1 100 ")
        stream.write(b"abc")
        assert stream.read(65536).startswith(b"HTTP/1.1 200 ")


def test_a_client_of_http_1_0_is_answered_without_chunks() -> None:
    with published(app) as client:
        told = answers(client, b"GET / HTTP/1.0\r\n\r\n")
    assert b"chunked" not in told
    assert told.startswith(b"HTTP/1.1 200 OK\r\n")
    assert told.endswith(b"SERVER_PORT=80")


def test_an_absolute_target_and_a_star_are_understood() -> None:
    with published(app) as client:
        told = answers(client, LAST.replace(b"/empty", b"http://other.test/?q=http://x"))
        star = answers(client, LAST.replace(b"GET /empty", b"OPTIONS *"))
    assert b"PATH_INFO=/\n" in told
    assert b"QUERY_STRING=q=http://x" in told
    assert star.startswith(b"HTTP/1.1 500 ")  # this application knows no such path


def test_headers_with_underscores_cannot_pass_for_others() -> None:
    with published(app) as client:
        head = b"\r\nX_Forwarded_For: evil\r\nX-One: 1\r\nX-One: 2\r\nConnection: close\r\n\r\n"
        told = answers(client, b"GET / HTTP/1.1\r\nHost: a" + head)
    assert b"evil" not in told
    assert b"HTTP_X_ONE=1,2" in told


REFUSED = {
    "no http": b"SSH-2.0-OpenSSH\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two lengths": b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "signed length": b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
    "space before colon": b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length : 1\r\n\r\n",
    "unknown coding": b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
    "control character": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
    "line in target": b"GET /\x0bx HTTP/1.1\r\nHost: a\r\n\r\n",
    "endless head": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + bytes([65]) * 70_000,
    "tunnel": b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
}


@each_case
@pytest.mark.parametrize("request_", REFUSED.values(), ids=REFUSED)
def test_what_is_no_request_for_a_path_is_refused_and_the_stream_closed(request_: bytes) -> None:
    with published(app) as client:
        told = answers(client, request_)
        status = told.split()[1]
        assert status in (b"400", b"431", b"501")
        assert told.count(b"HTTP/1.1 ") == 1
        assert answers(client, LAST).startswith(b"HTTP/1.1 204 ")


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 9\r\n\r\nhalf",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-4\r\nhalf\r\n0\r\n\r\n",
    ],
    ids=["cut", "no size", "negative"],
)
def test_a_broken_body_is_an_error_to_the_application(body: bytes) -> None:
    seen: list[BaseException] = []

    def read(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        try:
            environ["wsgi.input"].read()
        except OSError as error:
            seen.append(error)
        start("400 Bad Request", [("Content-Length", "0")])
        return []

    with published(read) as client, say(client, b"POST / HTTP/1.1\r\nHost: a\r\n" + body) as stream:
        stream.close_write()
        assert stream.read().startswith(b"HTTP/1.1 400 ")
    assert isinstance(seen[0], ConnectionError)


def test_a_reset_while_the_body_is_read_is_an_error_to_the_application() -> None:
    seen: list[BaseException] = []
    began, over = threading.Event(), threading.Event()

    def read(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        began.set()
        try:
            environ["wsgi.input"].read()
        except OSError as error:
            seen.append(error)
            over.set()
        raise LookupError("on purpose")

    with published(read) as client:
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
        with say(client, head) as stream:
            assert began.wait(WAIT)
            stream.reset()
        assert over.wait(WAIT)
    assert isinstance(seen[0], ConnectionResetError)


def test_a_request_that_does_not_come_to_its_end_is_answered_408() -> None:
    with published(app, timeout=0.05) as client:
        assert answers(client, b"GET / HT").startswith(b"HTTP/1.1 408 ")


def test_a_stream_that_says_nothing_is_closed_without_a_word() -> None:
    with published(app, timeout=0.05) as client:
        assert answers(client, b"") == b""


def test_an_idle_stream_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "KEEP_ALIVE", 0.05)
    with published(app) as client:
        assert answers(client, GET).startswith(b"HTTP/1.1 204 ")


def test_a_peer_that_does_not_read_is_reset_in_time() -> None:
    gate = Gate()
    gate.open.set()
    with published(slow(gate), timeout=0.05) as client, say(client, GET) as stream:
        assert gate.closed.wait(WAIT)
        with pytest.raises(wsmux.StreamReset):
            stream.read()


def test_no_more_requests_run_at_once_than_there_are_workers() -> None:
    gate = Gate()
    lock, running, most = threading.Lock(), 0, 0

    def count(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.open.wait(WAIT)
        with lock:
            running -= 1
        start("204 No Content", [])
        return []

    with published(count, workers=2) as client:
        streams = [say(client, LAST) for _ in range(6)]
        gate.open.set()
        told = [stream.read() for stream in streams]
        for stream in streams:
            stream.close()
    assert all(answer.startswith(b"HTTP/1.1 204 ") for answer in told)
    assert most <= 2


def twice(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
    start("200 OK", [])
    start("200 OK", [])
    return []


def never(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
    return [b"no head"]


def text(environ: dict[str, Any], start: Any) -> Any:
    start("200 OK", [])
    return ["text"]


def smuggle(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
    start("200 OK", [("X-One", "a\r\nSet-Cookie: evil=1")])
    return []


@pytest.mark.parametrize("broken", [twice, never, text, smuggle])
def test_an_application_that_breaks_the_rules_is_a_500(broken: Any) -> None:
    with published(broken) as client:
        told = answers(client, LAST)
    assert told.startswith(b"HTTP/1.1 500 ")
    assert b"evil" not in told


def test_an_application_may_replace_its_answer_until_it_has_begun() -> None:
    def replace(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", [])
        try:
            raise LookupError("on purpose")
        except LookupError as error:
            start("503 Service Unavailable", [], (LookupError, error, error.__traceback__))
        return [b"replaced"]

    with published(replace) as client:
        assert answers(client, LAST).startswith(b"HTTP/1.1 503 ")


def test_an_application_that_has_begun_gets_its_error_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def begin(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", [])(b"begun")
        try:
            raise LookupError("on purpose")
        except LookupError as error:
            start("500 Oops", [], (LookupError, error, error.__traceback__))
        return []

    with published(begin) as client, say(client, LAST) as stream, pytest.raises(wsmux.StreamReset):
        stream.read()
    assert "LookupError: on purpose" in caplog.text


def test_what_the_application_complains_of_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def complain(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        environ["wsgi.errors"].write("this is odd\n")
        environ["wsgi.errors"].write("\n")
        environ["wsgi.errors"].flush()
        start("204 No Content", [])
        return []

    with published(complain) as client:
        answers(client, LAST)
    assert [r.getMessage() for r in caplog.records if r.name == "wsmux.wsgi"] == ["this is odd"]


def test_a_publication_ends_with_its_connection() -> None:
    ours, theirs = wsmux.pair()
    with ours, theirs:
        publication = serve(theirs, app)
        assert not publication.wait(0)
        ours.close()
        assert publication.wait(WAIT)


def test_shutdown_lets_what_runs_end_and_takes_nothing_further() -> None:
    ours, theirs = wsmux.pair()
    gate = Gate()

    def wait(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        gate.running.set()
        gate.open.wait(WAIT)
        start("204 No Content", [])
        return []

    with ours, theirs:
        publication = serve(theirs, wait)
        stream = say(ours, LAST)
        assert gate.running.wait(WAIT)
        ending = threading.Thread(target=publication.shutdown, args=(WAIT,))
        ending.start()
        with pytest.raises(wsmux.StreamRefused):
            answers_for_ever(ours)
        gate.open.set()
        assert stream.read().startswith(b"HTTP/1.1 204 ")
        stream.close()
        ending.join(WAIT)
        assert ours.wait_closed(WAIT)


def answers_for_ever(connection: wsmux.Connection) -> None:
    for _ in range(1000):
        with connection.open_stream(WAIT) as stream:
            stream.write(b"x")


def test_shutting_down_behind_the_end_does_nothing() -> None:
    ours, theirs = wsmux.pair()
    with ours, theirs, serve(theirs, app):
        ours.close()
        assert theirs.wait_closed(WAIT)


def test_bad_options_are_refused() -> None:
    ours, theirs = wsmux.pair()
    with ours, theirs, pytest.raises(ValueError, match="at least 1"):
        serve(ours, app, workers=0)
    with pytest.raises(ValueError, match="scheme"):
        StreamServer(app, scheme="gopher")
