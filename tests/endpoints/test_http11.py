"""Both ends of an exchange speak HTTP/1.1 over a stream, strictly, and end it as far as it went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

import h11
import pytest

import wsmux
from wsmux.endpoints.http11 import CHUNK, HOP_BY_HOP, MAX_HEAD, Exchange, end_to_end

from ..helpers.scripted import WAIT
from ..helpers.tables import each_case

HOST = ("Host", "a.test")


class Ends(NamedTuple):
    """A client and a server on one stream, each with a thread that is this one."""

    client: Exchange
    server: Exchange

    def ask(self, method: str = "GET", *headers: tuple[str, str]) -> h11.Request:
        """Send the head of a request, and return it as the server got it."""
        self.client.send(h11.Request(method=method, target="/", headers=[HOST, *headers]))
        event = self.server.receive()
        assert isinstance(event, h11.Request)
        return event

    def answer(self, *headers: tuple[str, str]) -> h11.Response:
        """Send the head of a response, and return it as the client got it."""
        self.server.send(h11.Response(status_code=200, headers=headers))
        return self.client.receive_response()

    def finish(self) -> None:
        """Ask and answer without a body, to the ends of both messages."""
        self.ask()
        self.client.send(h11.EndOfMessage())
        assert self.server.receive_body() == b""
        self.answer(("Content-Length", "0"))
        self.server.send(h11.EndOfMessage())
        assert self.client.receive_body() == b""


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = wsmux.pair()
    with ours, theirs, ours.open_stream() as near, theirs.accept_stream(WAIT) as far:
        near.timeout = far.timeout = WAIT
        yield Ends(Exchange(near, h11.CLIENT), Exchange(far, h11.SERVER))


# Headers


@each_case
@pytest.mark.parametrize("name", sorted(HOP_BY_HOP))
def test_what_concerns_one_connection_is_not_for_the_other_end(name: bytes) -> None:
    assert end_to_end([(name.title(), b"x"), (b"X-A", b"1")]) == [(b"x-a", b"1")]


def test_what_connection_names_concerns_one_connection_too() -> None:
    given = [(b"Connection", b"close, X-Secret"), (b"X-Secret", b"1"), (b"connection", b" x-b ")]
    assert end_to_end([*given, (b"X-B", b"2"), (b"X-C", b"3")]) == [(b"x-c", b"3")]


def test_a_length_that_connection_names_is_kept_so_that_all_see_the_same_message() -> None:
    given = [(b"Connection", b"Content-Length"), (b"Content-Length", b"5")]
    assert end_to_end(given) == [(b"content-length", b"5")]


def test_headers_that_are_sent_twice_stay_apart_and_in_order() -> None:
    given = [(b"X-A", b"1"), (b"X-B", b"2"), (b"x-a", b"3")]
    assert end_to_end(given) == [(b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"3")]


# Messages


def test_a_body_comes_in_pieces_and_then_ends(ends: Ends) -> None:
    pieces = [b"one", b"", bytes(CHUNK + 1)]
    ends.ask("POST", ("Transfer-Encoding", "chunked"))
    assert ends.client.send_body(pieces)
    got = list(iter(ends.server.receive_body, b""))
    assert b"".join(got) == b"".join(pieces)
    assert max(map(len, got)) <= CHUNK
    assert ends.server.received_all()


def test_the_end_of_a_body_can_be_asked_for_once(ends: Ends) -> None:
    ends.ask("POST", ("Content-Length", "2"))
    assert ends.client.send_body([b"ab"])
    assert ends.server.receive_body() == b"ab"
    assert not ends.server.received_all()
    assert ends.server.receive_body() == b""
    assert ends.server.received_all()


class Noting:
    """A stream that keeps what is written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


def test_what_is_sent_together_goes_in_one_write() -> None:
    noting = Noting()
    client = Exchange(cast(wsmux.Stream, noting), h11.CLIENT)
    request = h11.Request(method="POST", target="/", headers=[HOST, ("Content-Length", "2")])
    client.send(request, h11.Data(data=b"ab"), h11.EndOfMessage())
    assert noting.written == [b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n\r\nab"]


def test_a_client_that_waits_to_be_told_goes_on(ends: Ends) -> None:
    ends.ask("POST", ("Content-Length", "2"), ("Expect", "100-continue"))
    ends.server.stream.timeout = 0.0
    with pytest.raises(TimeoutError):
        ends.server.receive_body()
    told = ends.client.receive()
    assert isinstance(told, h11.InformationalResponse)
    assert told.status_code == 100


def test_informational_responses_are_passed_over(ends: Ends) -> None:
    ends.ask()
    ends.client.send(h11.EndOfMessage())
    ends.server.receive_body()
    for status in (102, 103):
        ends.server.send(h11.InformationalResponse(status_code=status, headers=[]))
    assert ends.answer(("X-A", "1")).headers[0] == (b"x-a", b"1")


def test_a_stream_that_ends_before_its_message_breaks_the_rules(ends: Ends) -> None:
    ends.ask("POST", ("Content-Length", "2"))
    ends.client.send(h11.Data(data=b"a"))
    ends.client.stream.close_write()
    assert ends.server.receive_body() == b"a"
    with pytest.raises(h11.RemoteProtocolError):
        ends.server.receive_body()


def test_a_stream_that_ends_before_a_response_breaks_the_rules(ends: Ends) -> None:
    ends.ask()
    ends.client.send(h11.EndOfMessage())
    ends.server.stream.close_write()
    with pytest.raises(h11.RemoteProtocolError):
        ends.client.receive_response()


def test_a_stream_that_ends_between_messages_is_a_clean_end(ends: Ends) -> None:
    ends.client.stream.close_write()
    assert isinstance(ends.server.receive(), h11.ConnectionClosed)


def test_a_head_beyond_the_bound_is_refused(ends: Ends) -> None:
    ends.client.stream.write(b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEAD)
    with pytest.raises(h11.RemoteProtocolError) as error:
        ends.server.receive()
    assert error.value.error_status_hint == 431


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, x\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: no host\r\n\r\n",
    ],
    ids=["space before the colon", "two lengths", "odd encoding", "no host"],
)
def test_what_could_be_read_in_two_ways_is_refused(ends: Ends, head: bytes) -> None:
    ends.client.stream.write(head)
    with pytest.raises(h11.RemoteProtocolError):
        ends.server.receive()


def test_what_this_side_must_not_say_is_not_sent(ends: Ends) -> None:
    sent = ends.server.stream.connection.stats().bytes_sent
    with pytest.raises(h11.LocalProtocolError):
        ends.server.send(h11.Data(data=b"a body before its head"))
    assert ends.server.stream.connection.stats().bytes_sent == sent


def test_a_peer_that_wants_no_more_of_a_body_may_say_so(ends: Ends) -> None:
    ends.ask("POST", ("Transfer-Encoding", "chunked"))
    ends.server.stream.close_read()

    def endless() -> Iterator[bytes]:
        while True:
            yield bytes(CHUNK)

    assert not ends.client.send_body(endless())


def test_a_message_behind_one_that_is_not_answered_is_no_part_of_it(ends: Ends) -> None:
    ends.client.stream.write(2 * b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
    assert isinstance(ends.server.receive(), h11.Request)
    assert ends.server.receive_body() == b""
    with pytest.raises(h11.RemoteProtocolError, match="second message"):
        ends.server.receive()


# The stream


def test_only_the_use_of_the_stream_here_makes_it_fail(ends: Ends) -> None:
    ends.server.stream.timeout = 0.0
    assert not ends.server.failed
    with pytest.raises(TimeoutError):
        ends.server.receive()
    assert ends.server.failed
    assert ends.server.idle
    assert not ends.client.failed


def test_a_byte_of_a_message_ends_the_idleness(ends: Ends) -> None:
    ends.client.stream.write(b"G")
    ends.client.stream.close_write()
    with pytest.raises(h11.RemoteProtocolError):
        ends.server.receive()
    assert not ends.server.idle


def test_a_further_request_may_follow_on_the_same_stream(ends: Ends) -> None:
    for _ in range(3):
        ends.finish()
        assert ends.server.next_cycle()
        assert ends.client.next_cycle()
        assert ends.server.idle


def test_a_request_that_has_begun_already_is_not_idleness(ends: Ends) -> None:
    ends.client.stream.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /next")  # in one frame
    assert isinstance(ends.server.receive(), h11.Request)
    assert ends.server.receive_body() == b""
    ends.server.send(h11.Response(status_code=204, headers=[]), h11.EndOfMessage())
    assert ends.server.next_cycle()
    assert not ends.server.idle


@pytest.mark.parametrize("which", ["neither", "client"])
def test_nothing_follows_a_message_that_is_not_complete(ends: Ends, which: str) -> None:
    ends.ask("POST", ("Content-Length", "2"))
    if which == "client":
        ends.client.send(h11.Data(data=b"ab"), h11.EndOfMessage())
    assert not ends.client.next_cycle()
    assert not ends.server.next_cycle()


def test_a_complete_exchange_ends_by_a_close(ends: Ends) -> None:
    ends.finish()
    ends.server.end()
    assert ends.client.stream.read() == b""
    ends.client.end()
    assert ends.client.stream.closed
    assert ends.server.stream.closed


def test_an_exchange_that_is_not_complete_ends_by_a_reset(ends: Ends) -> None:
    ends.ask("POST", ("Content-Length", "2"))
    ends.server.end()
    with pytest.raises(wsmux.StreamReset):
        ends.client.stream.read()


def test_a_stream_that_is_closed_is_left_as_it_is(ends: Ends) -> None:
    ends.ask()
    ends.client.stream.close()
    ends.client.end()
    assert ends.client.stream.closed
