"""One POST to another relay, within its time whatever the relay does."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler

import pytest

from wsmux.bus.federation.http_post import MAX_ANSWER, Answer, Poster

from ...helpers.bus.posts import relay_answering
from ...helpers.certificates import Certificates
from ...helpers.ports import free_port
from ...helpers.tables import each_case

DOMAIN = "other.test"


def saying(
    status: int, body: bytes = b"", **headers: str
) -> Callable[[BaseHTTPRequestHandler, bytes], None]:
    def answer(request: BaseHTTPRequestHandler, data: bytes) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


def post(url: str, data: bytes = b"envelope") -> Answer:
    return Poster({DOMAIN: url})(DOMAIN, data)


@contextmanager
def peer(script: Callable[[socket.socket], None]) -> Iterator[str]:
    """Have ``script`` handle one connection that is no proper HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            sock, _ = listener.accept()
            with sock, suppress(ConnectionError):  # the client may leave first
                script(sock)

        thread = threading.Thread(target=run)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        thread.join()


def read_request(sock: socket.socket) -> None:
    seen = b""
    while not seen.endswith(b"\r\n\r\nenvelope"):
        data = sock.recv(4096)
        assert data
        seen += data


def test_the_bytes_are_posted_as_they_are() -> None:
    posted: list[tuple[str, bytes]] = []

    def answer(request: BaseHTTPRequestHandler, data: bytes) -> None:
        posted.append((request.path, data))
        saying(202)(request, data)

    data = bytes(range(256)) * 4096
    with relay_answering(answer) as url:
        assert post(url, data).status == 202
    assert posted == [("/", data)]


def test_a_route_may_have_a_path() -> None:
    paths: list[str] = []

    def answer(request: BaseHTTPRequestHandler, data: bytes) -> None:
        paths.append(request.path)
        saying(202)(request, data)

    with relay_answering(answer) as url:
        post(f"{url}relays/one")
    assert paths == ["/relays/one"]


def test_the_reason_of_a_refusal_is_read() -> None:
    with relay_answering(saying(404, b"destination offline\n")) as url:
        assert post(url) == Answer(404, "destination offline")


def test_a_refusal_without_a_reason_has_the_words_of_its_status() -> None:
    with relay_answering(saying(404)) as url:
        assert post(url) == Answer(404, "Not Found")


def test_a_reason_is_one_line_and_bounded() -> None:
    with relay_answering(saying(400, b"no\r\n\r\n good " + b"x" * 2 * MAX_ANSWER)) as url:
        text = post(url).text
    assert text.startswith("no good xxx")
    assert len(text) <= MAX_ANSWER


def test_redirects_are_not_followed() -> None:
    with relay_answering(saying(302, Location="http://127.0.0.1:1/")) as url:
        assert post(url).status == 302


def test_an_accepting_answer_may_break_off() -> None:
    def script(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 100\r\n\r\nx")

    with peer(script) as url:
        assert post(url).status == 202


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 2x2 What\r\n\r\n", b"\xff" * 100]
)
def test_what_is_no_http_is_a_failed_connection(answer: bytes) -> None:
    def script(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(answer)

    with peer(script) as url, pytest.raises(ConnectionError):
        post(url)


def test_endless_headers_are_refused() -> None:
    def script(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(b"HTTP/1.1 202 Accepted\r\n" + b"A: b\r\n" * 200 + b"\r\n")

    with peer(script) as url, pytest.raises(ConnectionError, match="not answer in HTTP"):
        post(url)


def test_nobody_listening_is_a_failed_connection() -> None:
    port = free_port()
    with pytest.raises(ConnectionRefusedError):
        post(f"http://127.0.0.1:{port}/")


def test_an_answer_that_trickles_in_gains_no_time() -> None:
    done = threading.Event()

    def script(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(b"HTTP/1.1 202 Accepted\r\n")
        while not done.wait(0.02):
            sock.sendall(b"x")

    with peer(script) as url:
        try:
            with pytest.raises(TimeoutError):
                Poster({DOMAIN: url}, total=0.3)(DOMAIN, b"envelope")
        finally:
            done.set()


def test_silence_times_out() -> None:
    done = threading.Event()
    with peer(lambda sock: done.wait(20.0) and None) as url:
        try:
            with pytest.raises(TimeoutError):
                Poster({DOMAIN: url}, total=0.2)(DOMAIN, b"envelope")
        finally:
            done.set()


def test_a_full_socket_times_out() -> None:
    done = threading.Event()
    with peer(lambda sock: done.wait(20.0) and None) as url:
        try:
            with pytest.raises(TimeoutError):
                Poster({DOMAIN: url}, total=0.3)(DOMAIN, bytes(16 * 1024 * 1024))
        finally:
            done.set()


def test_a_handshake_of_tls_times_out() -> None:
    done = threading.Event()
    with peer(lambda sock: done.wait(20.0) and None) as url:
        route = url.replace("http:", "https:")
        try:
            with pytest.raises(TimeoutError):
                Poster({DOMAIN: route}, connect=0.2)(DOMAIN, b"envelope")
        finally:
            done.set()


def tls_answering(certificates: Certificates, sock: socket.socket) -> None:
    try:
        secure = certificates.server.wrap_socket(sock, server_side=True)
    except ssl.SSLError:
        return  # the client did not like the certificate
    with secure:
        read_request(secure)
        secure.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")


def test_https_with_a_known_certificate(certificates: Certificates) -> None:
    with peer(lambda sock: tls_answering(certificates, sock)) as url:
        poster = Poster({DOMAIN: url.replace("http:", "https:")}, ssl_context=certificates.client)
        assert poster(DOMAIN, b"envelope").status == 202


def test_https_with_a_certificate_that_nobody_knows(certificates: Certificates) -> None:
    with (
        peer(lambda sock: tls_answering(certificates, sock)) as url,
        pytest.raises(OSError, match="certificate verify failed"),
    ):
        post(url.replace("http:", "https:"))


@each_case
@pytest.mark.parametrize(
    "domain",
    [
        "",
        "a b",
        "a/b",
        "a?b",
        "user@host",
        "a..b",
        ".",
        "host:",
        "host:99999",
        "a" * 300,
        "\u00e9.test",
    ],
)
def test_a_domain_that_names_no_host_is_refused(domain: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Poster()(domain, b"envelope")


@pytest.mark.parametrize(
    ("domain", "url"),
    [
        ("a.test", "a.test"),
        ("a.test", "ftp://a.test/"),
        ("a.test", "http:///path"),
        ("a.test", "http://a.test/?query"),
        ("a.test", "http://a.test:0/"),
        ("a.test", "http://a.test:99999/"),
        ("not a domain", "http://a.test/"),
    ],
)
def test_a_route_that_leads_nowhere_is_refused(domain: str, url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Poster({domain: url})
