"""Announce windows, and open streams without waiting for an answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import wsmux

from ..helpers.carriers import SOME, Carrier
from ..helpers.connections import Join, Spawn
from ..helpers.inside import multiplexer_of, record_of
from ..helpers.joined_streams import fill, open_pair, read_exactly
from ..helpers.scripted import WAIT, pattern
from ..helpers.waiting import wait_for
from ..helpers.wires import wire_of

KIB = 1024
WINDOW = wsmux.Config().receive_window

# Above the default; js-ws announces no more than fits a message.
LARGE = 3 * WINDOW


@pytest.fixture(params=SOME, ids=str)
def carrier(request: pytest.FixtureRequest) -> Carrier:
    chosen: Carrier = request.param
    return chosen


@pytest.mark.parametrize("opener", ["client", "server"])
def test_a_larger_window_is_announced_by_who_has_it(join_ends: Join, opener: str) -> None:
    ends = join_ends(server={"config": wsmux.Config(receive_window=LARGE)})
    near, far = open_pair(*(ends if opener == "client" else reversed(ends)))
    to_server, to_client = (near, far) if opener == "client" else (far, near)
    assert fill(to_server) == LARGE
    assert fill(to_client) == WINDOW


@pytest.mark.parametrize("opener", ["client", "server"])
def test_a_smaller_window_counts_where_the_wire_can_say_it(join_ends: Join, opener: str) -> None:
    ends = join_ends(server={"config": wsmux.Config(receive_window=64 * KIB)})
    near, far = open_pair(*(ends if opener == "client" else reversed(ends)))
    to_server = near if opener == "client" else far
    assert fill(to_server) == max(64 * KIB, wire_of(near).min_window)


def test_bulk_through_a_large_window_is_exact(join_ends: Join, spawn: Spawn) -> None:
    config = wsmux.Config(receive_window=LARGE)
    ends = join_ends(client={"config": config}, server={"config": config})
    near, far = open_pair(*ends)
    data = pattern(4 * LARGE, 1)
    writing = spawn(near.write, data)
    assert read_exactly(far, len(data)) == data
    assert writing.result(WAIT) == len(data)


# Yamux by hand


def of(wire: str) -> bytes:
    return bytes.fromhex(wire)


@contextmanager
def yamux(role: str, **limits: Any) -> Iterator[tuple[wsmux.Connection, socket.socket]]:
    """Return a connection, and the socket of its peer."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(WAIT)
    config = wsmux.Config(ping_interval=None, **limits)
    with theirs:
        connection = wsmux.from_socket(ours, role=role, protocol="yamux", config=config)
        yield connection, theirs
        connection.abort()
        assert connection.wait_closed(WAIT)


def frame(sock: socket.socket) -> tuple[bytes, bytes]:
    """Return head and body of the next frame that is not a ping, which measures round trips."""
    while (head := sock.recv(12, socket.MSG_WAITALL))[1] == 2:
        pass
    size = int.from_bytes(head[8:], "big") if head[1] == 0 else 0
    return head, sock.recv(size, socket.MSG_WAITALL) if size else b""


@pytest.mark.parametrize(
    ("window", "delta"), [(100, 0), (WINDOW, 0), (WINDOW + 5, 5), (LARGE, LARGE - WINDOW)]
)
def test_yamux_announces_what_is_above_256_kib_when_it_accepts_and_opens(
    window: int, delta: int
) -> None:
    with yamux("server", receive_window=window) as (connection, peer):
        peer.sendall(of("0001 0001 00000001 00000000"))
        accepted = connection.accept_stream(WAIT)
        assert accepted.id == 1
        assert frame(peer)[0] == of("0001 0002 00000001") + delta.to_bytes(4, "big")
        opened = connection.open_stream()
        assert opened.id == 2
        assert frame(peer)[0] == of("0001 0001 00000002") + delta.to_bytes(4, "big")


@pytest.mark.parametrize("flags", ["0001", "0002"], ids=["SYN", "ACK"])
def test_yamux_adds_what_the_peer_announces(flags: str) -> None:
    with yamux("server") as (connection, peer):
        if flags == "0002":
            stream = connection.open_stream()
            peer.sendall(of("0001 0002 00000002 00000007"))
        else:
            peer.sendall(of("0001 0001 00000001 00000007"))
            stream = connection.accept_stream(WAIT)
        wait_for(lambda: connection.stats().bytes_received == 12)
        with multiplexer_of(connection).mutex:
            assert multiplexer_of(connection).credit_locked(record_of(stream)) == WINDOW + 7


def test_yamux_opens_and_writes_without_waiting_for_an_answer() -> None:
    with yamux("client") as (connection, peer):
        streams = []
        for number in range(connection.config.max_pending_opens):
            stream = connection.open_stream(timeout=0)
            stream.timeout = WAIT
            stream.write(b"at once")
            streams.append(stream)
            opening, (head, body) = frame(peer)[0], frame(peer)
            assert opening[3] == 1
            assert (head[:2], body) == (of("0000"), b"at once")
            assert head[4:8] == (2 * number + 1).to_bytes(4, "big")
        with pytest.raises(TimeoutError):
            connection.open_stream(timeout=0.01)
        peer.sendall(of("0001 0002 00000001 00000000"))
        assert connection.open_stream(WAIT).id == 2 * len(streams) + 1


def test_yamux_resets_a_closed_stream_whose_peer_goes_on() -> None:
    """There is no word for reading no further, so the peer is given a time to end its half."""
    with yamux("client", close_timeout=1.0) as (connection, peer):
        with connection.open_stream() as stream:
            assert frame(peer)[0] == of("0001 0001 00000001 00000000")
            peer.sendall(of("0000 0002 00000001 00000005") + b"hello")
            assert stream.read(5) == b"hello"
        assert frame(peer)[0] == of("0001 0004 00000001 00000000")
        assert connection.stats().streams == 1
        assert frame(peer)[0] == of("0001 0008 00000001 00000000")
        wait_for(lambda: connection.stats().streams == 0)


def test_yamux_forgets_a_closed_stream_whose_peer_ends_too() -> None:
    with yamux("client", close_timeout=WAIT) as (connection, peer):
        connection.open_stream().close()
        peer.sendall(of("0001 0006 00000001 00000000"))  # ACK and FIN
        wait_for(lambda: connection.stats().streams == 0)
