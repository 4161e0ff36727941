"""A peer of yamux uses the id of a stream again that has ended while it was held here."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator

import pytest

import wsmux

from ..helpers.inside import record_of
from ..helpers.raw_peer import in_thread
from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for
from ..helpers.yamux_wire import FIN, RST, SYN, data_frame, head, window

KIB = 1024
DATA = 0


class Peer:
    """A peer that sends frames of stream 1, and the connection that takes them."""

    def __init__(self, config: wsmux.Config | None = None) -> None:
        ours, self.sock = socket.socketpair()
        self.sock.settimeout(WAIT)
        self.connection = wsmux.from_socket(ours, role="server", protocol="yamux", config=config)

    def held(self, body: bytes) -> wsmux.Stream:
        """Return a stream that has ended in both directions, with bytes to read."""
        self.sock.sendall(window(1, 0, SYN) + data_frame(1, body, FIN))
        stream = self.connection.accept_stream(WAIT)
        stream.timeout = WAIT
        wait_for(lambda: record_of(stream).ended)
        stream.close_write()
        assert record_of(stream).finished
        return stream

    def open(self, body: bytes) -> wsmux.Stream:
        self.sock.sendall(window(1, 0, SYN) + data_frame(1, body))
        stream = self.connection.accept_stream(WAIT)
        stream.timeout = WAIT
        return stream

    def check_echo(self, stream: wsmux.Stream) -> None:
        """Send on the open stream 1, and see that it lives."""
        self.sock.sendall(data_frame(1, b"echo"))
        assert stream.read(4) == b"echo"
        stream.write(b"back")
        assert self._next_data() == b"back"

    def _next_data(self) -> bytes:
        while True:
            start = self._exactly(12)
            length = int.from_bytes(start[8:], "big")
            if start[1] == DATA:
                assert start == head(DATA, 0, 1, length)
                return self._exactly(length)
            assert not int.from_bytes(start[2:4], "big") & RST

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.sock.recv(size - len(data))
            assert chunk
            data += chunk
        return data


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    with made.sock:
        yield made
        made.connection.abort()
        assert made.connection.wait_closed(WAIT)


@pytest.mark.parametrize("body", [b"", b"unread"])
def test_late_reads_and_resets_leave_the_next_stream_alone(peer: Peer, body: bytes) -> None:
    old = peer.held(b"abc")
    new = peer.open(body)
    assert (old.id, new.id) == (1, 1)
    assert old.read(3) == b"abc"
    assert old.read() == b""
    old.reset()
    del old
    gc.collect()
    if body:
        assert new.read(len(body)) == body
    peer.check_echo(new)


def test_a_dropped_stream_leaves_the_next_one_alone(peer: Peer) -> None:
    old = peer.held(b"abc")
    new = peer.open(b"x")
    del old
    gc.collect()
    assert new.read(1) == b"x"
    peer.check_echo(new)


def test_a_stream_that_was_reset_before_it_was_accepted_leaves_the_next_one_alone(
    peer: Peer,
) -> None:
    """The wire's machine has seen both before the first one is withdrawn."""
    peer.sock.sendall(window(1, 0, SYN))
    wait_for(lambda: peer.connection.stats().unaccepted)
    peer.sock.sendall(window(1, 0, RST) + window(1, 0, SYN) + data_frame(1, b"x"))
    wait_for(lambda: peer.connection.stats().streams_refused)
    new = peer.connection.accept_stream(WAIT)
    new.timeout = WAIT
    assert new.read(1) == b"x"
    peer.check_echo(new)


def test_unread_bytes_of_streams_with_one_id_are_those_of_several() -> None:
    """The limit grows with the streams; with one of them known, the search for more never ended."""
    size = 256 * KIB
    made = Peer(wsmux.Config(max_connection_buffer=size, receive_window=size))
    with made.sock:
        streams = [made.held(bytes(size)) for _ in range(3)]
        assert in_thread(made.connection.stats).result(WAIT).unread_bytes == 3 * size
        for stream in streams:
            assert stream.read() == bytes(size)
        made.connection.abort()
        assert made.connection.wait_closed(WAIT)
