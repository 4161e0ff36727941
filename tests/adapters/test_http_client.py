"""Ask with the standard library's HTTP client over streams."""

from __future__ import annotations

import http.client

import pytest

import wsmux
from wsmux.adapters import http_connection

from ..helpers.raw_peer import wait_for
from ..helpers.wsgi_apps import WAIT, Gate, app, published, slow, talking


def test_requests_follow_each_other_on_one_stream() -> None:
    with published(app) as client:
        connection = http_connection(client, host="laptop.test", timeout=WAIT)
        for number in (1, 2, 3):
            connection.request("POST", "/count", body=bytes(number))
            assert connection.getresponse().read() == str(number).encode()
        connection.request("GET", "/")
        assert b"HTTP_HOST=laptop.test" in connection.getresponse().read().splitlines()
        connection.close()
        assert client.stats().streams_opened == 1
        assert client.wait_drained(WAIT)


def test_a_closed_one_opens_a_further_stream() -> None:
    with published(app) as client:
        connection = http_connection(client, timeout=WAIT)
        for _ in range(2):
            connection.request("GET", "/empty")
            assert connection.getresponse().status == 204
            connection.close()
        assert client.stats().streams_opened == 2


def test_a_stream_of_ones_own_serves_until_it_is_closed() -> None:
    with published(app) as client:
        connection = http_connection(client.open_stream(), timeout=WAIT)
        connection.request("GET", "/empty")
        connection.getresponse().read()
        connection.close()
        with pytest.raises(ConnectionAbortedError, match="one stream"):
            connection.request("GET", "/empty")


def test_a_response_outlives_its_connection() -> None:
    with published(app) as client:
        connection = http_connection(client, timeout=WAIT)
        connection.request("POST", "/echo", body=b"to the end", headers={"Connection": "close"})
        response = connection.getresponse()
        connection.close()
        assert response.read() == b"to the end"
        assert client.wait_drained(WAIT)


def test_closing_with_bytes_unread_resets_the_stream() -> None:
    gate = Gate()
    gate.open.set()
    with published(slow(gate)) as client:
        connection = http_connection(client, timeout=WAIT)
        connection.request("GET", "/")
        response = connection.getresponse()
        wait_for(lambda: client.stats().unread_bytes > 65536)
        response.close()
        connection.close()
        assert gate.closed.wait(WAIT)
        assert client.wait_drained(WAIT)


def test_silence_is_a_timeout() -> None:
    gate = Gate()
    with published(slow(gate)) as client:
        connection = http_connection(client, timeout=0.05)
        with pytest.raises(TimeoutError):
            ask(connection)
        connection.close()
        gate.open.set()
        assert gate.closed.wait(WAIT)


def ask(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    connection.request("GET", "/")
    return connection.getresponse()


def test_an_end_without_an_answer_is_one_of_the_http_clients_errors() -> None:
    with talking(lambda stream: stream.close()) as peer:
        connection = http_connection(peer, timeout=WAIT)
        with pytest.raises((http.client.RemoteDisconnected, BrokenPipeError)):
            ask(connection)
        connection.close()


def test_a_reset_is_a_reset() -> None:
    with talking(lambda stream: stream.reset(70)) as peer:
        connection = http_connection(peer, timeout=WAIT)
        with pytest.raises(ConnectionResetError):
            ask(connection)
        connection.close()


def test_errors_that_are_none_of_the_systems_are_mapped_with_their_cause() -> None:
    ours, theirs = wsmux.pair()
    with ours, theirs:
        theirs.go_away()
        wait_for(lambda: _refused(ours))
        with pytest.raises(ConnectionAbortedError) as caught:
            http_connection(ours, timeout=WAIT).request("GET", "/")
    assert isinstance(caught.value.__cause__, wsmux.StreamRefused)
    assert caught.value.__cause__.retry_safe


def _refused(connection: wsmux.Connection) -> bool:
    try:
        connection.open_stream(WAIT).reset()
    except wsmux.StreamRefused:
        return True
    return False


def test_a_lost_connection_is_no_end_of_a_body() -> None:
    def handle(stream: wsmux.Stream) -> None:
        stream.read(65536)
        stream.write(b"HTTP/1.1 200 OK\r\n\r\nhalf")

    with talking(handle) as peer:
        connection = http_connection(peer, timeout=WAIT)
        connection.request("GET", "/")
        response = connection.getresponse()
        assert response.read(4) == b"half"
        peer.abort()
        with pytest.raises(ConnectionError):
            response.read()
        connection.close()


def test_the_socket_makes_no_other_files() -> None:
    with published(app) as client:
        connection = http_connection(client, timeout=WAIT)
        connection.connect()
        with pytest.raises(ValueError, match="read bytes only"):
            connection.sock.makefile("w")
        connection.close()
