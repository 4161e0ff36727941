"""Two ends of a plain socket agree on a resumable connection, or on the plain wire."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from wsmux.exceptions import HandshakeError
from wsmux.handshake import resume_line
from wsmux.handshake.resume_line import REQUEST, ask_to_resume, asks_to_resume
from wsmux.runtime.deadline import Deadline

from ..helpers.raw_peer import in_thread
from ..helpers.timeouts import WAIT
from ..helpers.wires import NAMES

Ends = tuple[socket.socket, socket.socket]
LINE = b"wsmux.resume.v1+yamux\n"


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Return the sockets of a client and a server."""
    client, server = socket.socketpair()
    with client, server:
        for sock in (client, server):
            sock.settimeout(WAIT)
        yield client, server


@pytest.mark.parametrize("protocol", NAMES)
def test_both_ends_agree_and_read_nothing_else(ends: Ends, protocol: str) -> None:
    client, server = ends
    asking = in_thread(ask_to_resume, client, protocol, Deadline(WAIT))
    assert asks_to_resume(server, protocol, Deadline(WAIT))
    server.sendall(b"more")
    assert asking.result(WAIT) is True
    client.settimeout(WAIT)
    client.sendall(b"this")
    assert (client.recv(9), server.recv(9)) == (b"more", b"this")


def test_another_wire_is_refused_to_both(ends: Ends) -> None:
    client, server = ends
    asking = in_thread(ask_to_resume, client, "bymux", Deadline(WAIT))
    with pytest.raises(HandshakeError, match="another wire than yamux"):
        asks_to_resume(server, "yamux", Deadline(WAIT))
    with pytest.raises(HandshakeError, match="refused a .*: this port serves the wire yamux"):
        asking.result(WAIT)


@pytest.mark.parametrize(
    "answer", [b"", b"\0", b"wsmux", b"wsmux.resume.v1+bymux\n", b"\xff" * 12, b"refused" + LINE]
)
def test_a_server_that_does_not_know_it_is_told_apart(ends: Ends, answer: bytes) -> None:
    client, server = ends
    server.sendall(answer)
    server.shutdown(socket.SHUT_WR)
    assert not ask_to_resume(client, "yamux", Deadline(WAIT))


def test_a_server_that_is_gone_does_not_know_it(ends: Ends) -> None:
    client, server = ends
    server.close()
    assert not ask_to_resume(client, "yamux", Deadline(WAIT))


def test_a_reason_without_end_is_not_read_on(ends: Ends) -> None:
    client, server = ends
    server.sendall(b"refused: " + b"x" * 1000)
    assert not ask_to_resume(client, "yamux", Deadline(WAIT))


def test_a_server_that_says_nothing_is_not_waited_for_longer_than_told(ends: Ends) -> None:
    with pytest.raises(TimeoutError):
        ask_to_resume(ends[0], "yamux", Deadline(0.05))
    with pytest.raises(TimeoutError, match="did not say in time"):
        ask_to_resume(ends[0], "yamux", Deadline(0))


@pytest.mark.parametrize("first", [b"\0\0\0\0", b"w", b"\xfe\xff"])
def test_the_first_byte_of_a_wire_stays_in_the_socket(ends: Ends, first: bytes) -> None:
    client, server = ends
    client.sendall(first)
    assert not asks_to_resume(server, "yamux", Deadline(WAIT))
    server.settimeout(WAIT)
    assert server.recv(9) == first


def test_a_client_that_says_nothing_wants_the_wire(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume_line, "SILENCE", 0.05)
    assert not asks_to_resume(ends[1], "yamux", Deadline(None))


def test_a_client_that_has_gone_wants_nothing(ends: Ends) -> None:
    client, server = ends
    client.close()
    assert not asks_to_resume(server, "yamux", Deadline(WAIT))


@pytest.mark.parametrize(
    "said", [REQUEST[:1], REQUEST, REQUEST[:5] + b"x" * 20, REQUEST + LINE[:-1], REQUEST * 100]
)
def test_what_only_begins_like_a_request_is_refused(ends: Ends, said: bytes) -> None:
    client, server = ends
    client.sendall(said)
    client.shutdown(socket.SHUT_WR)
    with pytest.raises(HandshakeError, match="no wire, and with no request"):
        asks_to_resume(server, "yamux", Deadline(WAIT))


def test_a_request_that_does_not_end_takes_no_longer_than_told(ends: Ends) -> None:
    client, server = ends
    client.sendall(REQUEST)
    with pytest.raises(TimeoutError):
        asks_to_resume(server, "yamux", Deadline(0.05))
