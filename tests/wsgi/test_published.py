"""Publish an application through a server: from outside by HTTP, and as a bad client or publisher.

Real servers on loopback: Werkzeug with the Flask extension in front, ``http.client`` outside.
"""

from __future__ import annotations

import http.client
import io
import random
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask
from flask import request as asked
from werkzeug.middleware.proxy_fix import ProxyFix

import wsmux
from wsmux.flask import Mux
from wsmux.testing import FaultProxy
from wsmux.wsgi import Published, published, serve

from ..helpers.raw_peer import wait_for
from ..helpers.tables import each_case
from ..helpers.werkzeug_server import serving
from ..helpers.wsgi_apps import WAIT, Gate, app, slow

TOKEN = {"Authorization": "Bearer secret"}


@dataclass
class Front:
    """A server that everybody can reach, with a prefix for what is published."""

    port: int
    laptop: Published

    def connect(self, headers: dict[str, str] = TOKEN) -> wsmux.Connection:
        return wsmux.connect(f"ws://127.0.0.1:{self.port}/laptop", headers=headers, timeout=WAIT)

    @contextmanager
    def publishing(self, application: Any = app, **options: Any) -> Iterator[wsmux.Connection]:
        before = self.laptop.publishers
        with self.connect() as connection, serve(connection, application, **options):
            wait_for(lambda: self.laptop.publishers > before)
            yield connection

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        try:
            client.request(method, path, body, headers or {}, encode_chunked=True)
            answer = client.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            client.close()


@contextmanager
def fronting(**options: Any) -> Iterator[Front]:
    flask = Flask(__name__)
    mux = Mux(flask, resume=True)
    laptop = Published(mux, "/laptop", **({"token": "secret"} | options))
    flask.route("/own")(lambda: "own")
    flask.wsgi_app = laptop.wrap(flask.wsgi_app)  # type: ignore[method-assign]
    with serving(flask) as port:
        yield Front(port, laptop)


def test_a_flask_application_is_reached_from_outside() -> None:
    inner = Flask("inner")
    inner.wsgi_app = ProxyFix(inner.wsgi_app, x_host=1, x_prefix=1)  # type: ignore[method-assign]
    inner.route("/hello/<name>")(lambda name: f"{name} {asked.url} {asked.remote_addr}")
    with fronting() as front, front.publishing(inner):
        status, body, _ = front.ask("GET", "/laptop/hello/you?x=1")
        assert front.ask("GET", "/own")[1] == b"own"
    assert status == 200
    assert body == f"you http://127.0.0.1:{front.port}/laptop/hello/you?x=1 127.0.0.1".encode()


def test_bodies_pass_though_the_publisher_is_cut_off_within_them() -> None:
    body = random.Random(3).randbytes(200_000)
    with fronting() as front, FaultProxy(front.port) as proxy:
        url = f"{proxy.url}/laptop"
        with (
            wsmux.connect(url, headers=TOKEN, timeout=WAIT, resume=True) as connection,
            serve(connection, app),
        ):
            wait_for(lambda: front.laptop.publishers)
            for way in ("up", "down"):
                proxy.cut_after(60_000, 50_000, way=way, how="rst")  # type: ignore[arg-type]
                assert front.ask("POST", "/laptop/echo", body)[:2] == (200, body)
                assert not proxy.cutting
            assert connection.stats().reconnects >= 4
            assert front.laptop.publishers == 1


def test_bodies_pass_both_ways_in_pieces() -> None:
    with fronting() as front, front.publishing():
        body = bytes(range(256)) * 800
        assert front.ask("POST", "/laptop/echo", body)[1] == body
        chunks = iter([b"abc", b"defg"])
        chunked = {"Transfer-Encoding": "chunked"}
        assert front.ask("POST", "/laptop/count", chunks, chunked)[:2] == (200, b"7")
        assert front.ask("HEAD", "/laptop/")[:2] == (200, b"")
        assert front.ask("GET", "/laptop/empty")[:2] == (204, b"")


def test_what_concerns_one_connection_or_is_not_for_clients_to_say_is_left_out() -> None:
    said = {
        "Connection": "close, X-Secret",
        "X-Secret": "one hop only",
        "TE": "trailers",
        "Keep-Alive": "timeout=5",
        "Proxy-Authorization": "Basic eA==",
        "X-Forwarded-For": "6.6.6.6",
        "X-Forwarded-Prefix": "/evil",
        "Forwarded": "for=6.6.6.6",
        "X-One": "kept",
    }
    with fronting() as front, front.publishing():
        _, body, headers = front.ask("GET", "/laptop/", headers=said)
    told = dict(line.split("=", 1) for line in body.decode().splitlines())
    assert told["HTTP_X_ONE"] == "kept"
    assert told["HTTP_X_FORWARDED_FOR"] == "127.0.0.1"
    assert told["HTTP_X_FORWARDED_PREFIX"] == "/laptop"
    assert told["HTTP_CONNECTION"] == "close"
    gone = ("X_SECRET", "TE", "KEEP_ALIVE", "PROXY_AUTHORIZATION", "FORWARDED", "TRANSFER_ENCODING")
    assert not {f"HTTP_{name}" for name in gone} & set(told)
    assert headers["Set-Cookie"] == "a=b"


def test_nobody_publishing_is_a_502_and_neighbours_are_not_concerned() -> None:
    with fronting() as front:
        assert front.ask("GET", "/laptop/")[0] == 502
        assert front.ask("HEAD", "/laptop")[:2] == (502, b"")
        assert front.ask("GET", "/laptops")[0] == 404


def test_an_application_that_is_silent_is_a_504() -> None:
    gate = Gate()
    with fronting(timeout=0.1) as front, front.publishing(slow(gate)) as connection:
        assert front.ask("GET", "/laptop/")[0] == 504
        gate.open.set()
        assert connection.wait_drained(WAIT)


def test_a_publisher_that_leaves_hands_over_to_the_one_before() -> None:
    def second(environ: Any, start: Any) -> Iterable[bytes]:
        start("200 OK", [])
        return [b"second"]

    with fronting() as front, front.publishing():
        with front.publishing(second):
            assert front.ask("GET", "/laptop/count")[1] == b"second"
        wait_for(lambda: front.laptop.publishers == 1)
        assert front.ask("GET", "/laptop/count")[1] == b"0"


def test_a_publisher_that_is_going_away_is_passed_over() -> None:
    with fronting() as front, front.publishing(), front.publishing() as last:
        last.go_away()
        wait_for(lambda: front.ask("GET", "/laptop/count")[0] == 200)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer secre"}, {"Authorization": "é"}])
def test_only_who_knows_the_token_may_publish(headers: dict[str, str]) -> None:
    with fronting() as front, front.connect(headers) as connection:
        assert connection.wait_closed(WAIT)
        assert isinstance(connection.error, wsmux.ConnectionClosedError)
        assert connection.error.code == 1008
        assert front.ask("GET", "/laptop/")[0] == 502


def test_a_function_may_decide_who_publishes() -> None:
    may = fronting(token=None, authorize=lambda request: request.path == "/laptop")
    with may as front, front.publishing():
        assert front.ask("GET", "/laptop/count")[0] == 200


def test_too_many_publishers_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "MAX_PUBLISHERS", 1)
    with fronting() as front, front.publishing(), front.connect() as further:
        assert further.wait_closed(WAIT)
        assert isinstance(further.error, wsmux.ConnectionClosedError)
        assert further.error.code == 1013


SMUGGLED = {
    "both lengths": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no number": b"Content-Length: 4x\r\n\r\nabcd",
    "signed": b"Content-Length: +4\r\n\r\nabcd",
    "unknown coding": b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    "length named as one hop's": b"Connection: Content-Length\r\nContent-Length: x\r\n\r\nabcd",
}


@pytest.mark.parametrize("said", SMUGGLED.values(), ids=SMUGGLED)
def test_an_ambiguous_length_goes_no_further(said: bytes) -> None:
    reached = threading.Event()

    def note(environ: Any, start: Any) -> Iterable[bytes]:
        reached.set()
        return app(environ, start)

    with (
        fronting() as front,
        front.publishing(note),
        socket.create_connection(("127.0.0.1", front.port), WAIT) as sock,
    ):
        sock.sendall(b"POST /laptop/ HTTP/1.1\r\nHost: a\r\n" + said)
        with sock.makefile("rb") as file:
            first = file.readline()
    assert first.split()[1] in (b"400", b"411")
    assert not reached.is_set()


def test_a_body_that_breaks_off_is_a_400_and_resets_the_stream() -> None:
    with fronting() as front, front.publishing() as connection:
        chunked = {"Transfer-Encoding": "chunked"}
        client = http.client.HTTPConnection("127.0.0.1", front.port, timeout=WAIT)
        client.request("POST", "/laptop/count", b"no chunk\r\n", chunked, encode_chunked=False)
        assert client.getresponse().status == 400
        client.close()
        assert connection.wait_drained(WAIT)


def test_a_request_hidden_in_a_body_stays_a_body() -> None:
    hidden = b"GET /fail HTTP/1.1\r\nHost: a\r\n\r\n"
    with fronting() as front, front.publishing():
        assert front.ask("POST", "/laptop/echo", hidden)[1] == hidden
        assert front.ask("POST", "/laptop/count", hidden, {"Connection": "Content-Length"})[1] == (
            str(len(hidden)).encode()
        )


# Without a server in front, which would refuse most of this itself.


def forwarded(
    answer: Callable[[wsmux.Stream], object], environ: dict[str, Any] | None = None
) -> tuple[str, bytes]:
    """Return what is answered when the publisher speaks by hand."""
    laptop = Published(prefix="/x", authorize=lambda request: True, timeout=WAIT)
    with wsmux.serve(laptop.take) as server, wsmux.connect(server.url) as connection:

        def take() -> None:
            try:
                answer(connection.accept_stream(WAIT))
            except wsmux.WsmuxError:
                return  # there was no request, or it broke off, as some tests want it

        threading.Thread(target=take, daemon=True).start()
        wait_for(lambda: laptop.publishers)
        said: list[str] = []
        asks = {
            "REQUEST_METHOD": "GET",
            "SCRIPT_NAME": "",
            "PATH_INFO": "/x/y",
            "SERVER_NAME": "a",
            "wsgi.input": io.BytesIO(),
            **(environ or {}),
        }
        wrapped = laptop.wrap(lambda environ, start: [b"not inside"])
        result: Any = wrapped(asks, lambda status, headers: said.append(status))
        try:
            return said[0], b"".join(result)
        finally:
            getattr(result, "close", bool)()
            connection.abort()


def by_hand(data: bytes) -> Callable[[wsmux.Stream], None]:
    def answer(stream: wsmux.Stream) -> None:
        stream.timeout = WAIT
        stream.read(65536)
        stream.write(data)
        stream.close()

    return answer


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: evil\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n",
    ],
    ids=["nothing", "two lengths", "upgrade", "control character"],
)
def test_what_is_no_answer_is_a_502(data: bytes) -> None:
    assert forwarded(by_hand(data))[0] == "502 Bad Gateway"


def test_informational_answers_are_passed_over_and_one_hops_headers_dropped() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    final = b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\nContent-Length: 2\r\n\r\nok"
    assert forwarded(by_hand(early + final)) == ("200 OK", b"ok")


def test_an_answer_cut_short_raises_so_that_the_server_cuts_it_too() -> None:
    with pytest.raises(Exception, match=r"received 1 bytes|ended before"):
        forwarded(by_hand(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no"))


def test_a_reset_before_the_answer_is_a_502() -> None:
    assert forwarded(lambda stream: stream.reset(70))[0] == "502 Bad Gateway"


@each_case
@pytest.mark.parametrize(
    "environ",
    [
        {"QUERY_STRING": "a b"},
        {"QUERY_STRING": "a\r\nX-Evil: 1"},
        {"REQUEST_METHOD": "GET /evil"},
        {"HTTP_X_ONE": "a\r\nX-Evil: 1"},
        {"HTTP_X ONE": "a"},
        {"HTTP_X_ONE": "\u20ac"},
        {"CONTENT_LENGTH": "-1"},
        {"CONTENT_LENGTH": "4", "wsgi.input": io.BytesIO(b"abc")},
        {"HTTP_TRANSFER_ENCODING": "chunked"},
        {"HTTP_TRANSFER_ENCODING": "gzip", "wsgi.input_terminated": True},
    ],
    ids=lambda environ: " ".join(environ),
)
def test_what_may_not_be_passed_on_is_refused(environ: dict[str, Any]) -> None:
    status, _ = forwarded(lambda stream: stream.read(), environ)
    assert status in ("400 Bad Request", "411 Length Required")


def test_the_path_is_quoted_anew() -> None:
    seen: list[bytes] = []

    def answer(stream: wsmux.Stream) -> None:
        seen.append(stream.read(65536).splitlines()[0])
        stream.write(b"HTTP/1.1 204 \r\n\r\n")
        stream.close()

    path = "/x/a b/\u00c3\u00bc?%0d"
    assert forwarded(answer, {"PATH_INFO": path})[0] == "204 -"
    assert seen == [b"GET /a%20b/%C3%BC%3F%250d HTTP/1.1"]


def test_paths_outside_are_not_concerned() -> None:
    assert Published(authorize=bool, prefix="/x").wrap(lambda *_: [b"outside"])(
        {"PATH_INFO": "/xy"}, print
    ) == [b"outside"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"token": "a", "authorize": bool},
        {"token": ""},
        {"token": "a", "prefix": "x"},
        {"token": "a", "prefix": "/x/"},
    ],
    ids=str,
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"publish|prefix"):
        Published(**options)
