"""Ask for signs of life: of connections and of single streams, by calls and by the keepalive.

The keepalive is tested against a peer that answers by hand, over a plain socket, in the words of
each wire; ``test_limits.py`` has it between two connections over every carrier.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import wsmux
from wsmux.protocols.base import Role

from ..helpers import bymux_wire as bymux
from ..helpers.bymux_wire import overall, packet
from ..helpers.carriers import ON_SOME, SOME, Carrier, Ends
from ..helpers.connections import Spawn
from ..helpers.inside import asked_at, multiplexer_of
from ..helpers.joined_streams import open_pair
from ..helpers.machine_pairs import id_of
from ..helpers.pure_peer import PurePeer
from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for
from ..helpers.wires import NAMES

PINGING_STREAMS = [carrier for carrier in SOME if carrier.wire.pings_streams]
IN_BYMUX = pytest.mark.parametrize("carrier", PINGING_STREAMS, ids=str)

# Silence after which a ping goes out.
INTERVAL = 0.05

# Packets of bymux on stream 0.
PONG, CLOSE, STOP_READ = b"\x60\x00", b"\x80\x00", b"\xa0\x00"

# The beginning of something that the peer may send, by wire.
HALF_FRAMES = {
    "wsmux": b"\x01\x01\x04",
    "js-ws": b"\x01\x00\x01",
    "yamux": b"\x00\x01\x00",
    "bymux": b"\x33\x00\x00",
}


# Calls


def test_a_ping_of_the_connection_takes_some_time_and_is_noted(ends: Ends) -> None:
    seconds = ends.client.ping(WAIT)
    assert 0 < seconds < WAIT
    rtt = ends.client.stats().rtt
    assert rtt is not None
    assert 0 < rtt < WAIT
    assert ends.server.ping(WAIT) > 0


@ON_SOME
def test_pings_from_many_threads_all_come_back(ends: Ends, spawn: Spawn) -> None:
    pinging = [spawn(end.ping, WAIT) for end in ends for _ in range(20)]
    assert all(future.result(WAIT) > 0 for future in pinging)


@ON_SOME
def test_a_closed_connection_ends_a_ping(ends: Ends, spawn: Spawn) -> None:
    with multiplexer_of(ends.server).mutex:  # it does not answer
        pinging = spawn(ends.client.ping)
        if multiplexer_of(ends.client).protocol.pings:
            wait_for(lambda: multiplexer_of(ends.client).table.pings.askers.parked)
        ends.client.abort()
    with pytest.raises(wsmux.ConnectionClosedError):
        pinging.result(WAIT)


# Streams


@IN_BYMUX
@pytest.mark.parametrize("opener", ["client", "server"])
def test_a_ping_of_a_stream_takes_some_time(ends: Ends, opener: str) -> None:
    near, far = open_pair(*(ends if opener == "client" else reversed(ends)))
    assert 0 < near.ping(WAIT) < WAIT
    assert 0 < far.ping(WAIT) < WAIT
    near.write(b"usable")
    assert far.read(100) == b"usable"


@IN_BYMUX
def test_streams_are_pinged_apart(ends: Ends, spawn: Spawn) -> None:
    pairs = [open_pair(*ends) for _ in range(5)]
    pinging = [spawn(stream.ping, WAIT) for pair in pairs for stream in pair for _ in range(3)]
    assert all(future.result(WAIT) > 0 for future in pinging)
    assert ends.client.stats().rtt is None  # that is the connection's


@pytest.mark.parametrize("carrier", [c for c in SOME if not c.wire.pings_streams], ids=str)
def test_other_wires_name_the_ping_of_the_connection(ends: Ends) -> None:
    near, far = open_pair(*ends)
    with pytest.raises(wsmux.LocalProtocolError, match=r"connection\.ping\(\)"):
        near.ping(WAIT)
    near.write(b"usable")
    assert far.read(100) == b"usable"


@contextmanager
def pinged() -> Iterator[tuple[wsmux.Connection, wsmux.Stream, PurePeer]]:
    """Return a connection, a stream of it, and a peer that answers nothing by itself."""
    ours, theirs = socket.socketpair()
    config = wsmux.Config(ping_interval=None)
    with PurePeer(theirs, "bymux") as peer:
        connection = wsmux.from_socket(ours, role="client", protocol="bymux", config=config)
        peer.send()
        stream = connection.open_stream(WAIT)
        peer.accept(1)
        yield connection, stream, peer
        connection.abort()
        assert connection.wait_closed(WAIT)


def wait_for_asker(connection: wsmux.Connection) -> None:
    wait_for(lambda: multiplexer_of(connection).table.pings.askers.parked)


def test_a_stream_ping_without_an_answer_is_a_timeout(spawn: Spawn) -> None:
    with pinged() as (connection, stream, peer):
        with pytest.raises(TimeoutError, match="pong"):
            stream.ping(timeout=0.01)
        serving = spawn(peer.serve)
        assert stream.ping(WAIT) > 0
        connection.abort()
        serving.result(WAIT)


def test_a_stream_ping_whose_stream_ends_first_is_a_stream_error(spawn: Spawn) -> None:
    with pinged() as (connection, stream, peer):
        pinging = spawn(stream.ping)
        wait_for_asker(connection)
        peer.sock.sendall(CLOSE + STOP_READ)
        with pytest.raises(wsmux.StreamError, match="without a pong") as error:
            pinging.result(WAIT)
        assert type(error.value) is wsmux.StreamError
        assert error.value.stream_id == stream.id
        assert not connection.closed


def test_a_stream_ping_answered_right_before_the_end_counts(spawn: Spawn) -> None:
    with pinged() as (connection, stream, peer):
        pinging = spawn(stream.ping)
        wait_for_asker(connection)
        peer.sock.sendall(PONG + CLOSE + STOP_READ)
        assert pinging.result(WAIT) > 0


def test_a_stream_that_this_side_has_ended_cannot_be_pinged() -> None:
    with pinged() as (_, stream, _):
        stream.close_write()
        with pytest.raises(TimeoutError):
            stream.ping(timeout=0.01)  # one half is open
        stream.close_read()
        with pytest.raises(wsmux.LocalProtocolError, match="end of stream"):
            stream.ping(WAIT)


def test_a_stream_ping_of_an_ended_connection_says_so() -> None:
    with pinged() as (connection, stream, _):
        connection.abort()
        with pytest.raises(wsmux.ConnectionClosedError):
            stream.ping(WAIT)


def test_errors_of_pings_name_the_id_that_a_stream_shares_with_an_ended_one(spawn: Spawn) -> None:
    ours, peer = socket.socketpair()
    config = wsmux.Config(ping_interval=None)
    with (
        peer,
        wsmux.from_socket(ours, role="server", protocol="bymux", config=config) as connection,
    ):
        number = id_of(Role.CLIENT)
        ended = packet(bymux.CLOSE, number) + packet(bymux.STOP_READ, number)
        streams = []
        for _ in range(2):
            peer.sendall(overall(bymux.WRITE, number))
            streams.append(stream := connection.accept_stream(WAIT))
            pinging = spawn(stream.ping)
            wait_for_asker(connection)
            peer.sendall(ended)
            with pytest.raises(wsmux.StreamError, match=f"^stream {number} ended") as error:
                pinging.result(WAIT)
            assert error.value.stream_id == stream.id == number
            stream.close_write()
            stream.close_read()
            with pytest.raises(wsmux.LocalProtocolError, match=f"of stream {number}$"):
                stream.ping(WAIT)
        connection.abort()


# Pings of bymux and the end of everything


@IN_BYMUX
def test_a_ping_that_meets_a_peer_going_away_is_the_carriers_or_fails(
    ends: Ends, carrier: Carrier, spawn: Spawn
) -> None:
    """The peer may send no Pong behind its global packets, whatever it gets."""
    server = multiplexer_of(ends.server)
    with server.mutex:
        pinging = spawn(ends.client.ping)
        wait_for_asker(ends.client)
        server.protocol.go_away(0)
        server.queue_locked()
    server.flush()
    if carrier.websocket:
        assert pinging.result(WAIT) > 0
    else:
        with pytest.raises(wsmux.LocalProtocolError, match="going away"):
            pinging.result(WAIT)


@IN_BYMUX
def test_a_ping_of_two_that_go_away_is_the_carriers_or_fails(ends: Ends, carrier: Carrier) -> None:
    near, far = open_pair(*ends)
    ends.server.go_away()
    wait_for(lambda: not multiplexer_of(ends.client).protocol.may_ping())
    if carrier.websocket:
        assert ends.client.ping(WAIT) > 0
    else:
        with pytest.raises(wsmux.LocalProtocolError, match="global Close and StopRead"):
            ends.client.ping(WAIT)
    assert near.ping(WAIT) > 0
    far.write(b"usable")
    assert near.read(100) == b"usable"


# The keepalive


@contextmanager
def watched(protocol: str, ping_timeout: float) -> Iterator[tuple[wsmux.Connection, PurePeer]]:
    """Return a connection that pings soon, and the peer that it watches."""
    ours, theirs = socket.socketpair()
    config = wsmux.Config(ping_interval=INTERVAL, ping_timeout=ping_timeout, close_timeout=0.1)
    with PurePeer(theirs, protocol) as peer:
        connection = wsmux.from_socket(ours, role="client", protocol=protocol, config=config)
        peer.send()
        if protocol == "bymux":
            peer.receive()  # what it grants at the start
        yield connection, peer
        connection.abort()
        assert connection.wait_closed(WAIT)


@pytest.mark.parametrize("protocol", NAMES)
def test_a_silent_peer_is_pinged_and_then_lost(protocol: str) -> None:
    start = time.monotonic()
    with watched(protocol, INTERVAL) as (connection, peer):
        with pytest.raises(wsmux.ConnectionClosedError, match="no byte from the peer") as error:
            connection.accept_stream(WAIT)
        assert 2 * INTERVAL <= time.monotonic() - start < WAIT / 2
        assert (error.value.code, error.value.side) == (1011, "local")
        assert peer.sock.recv(1)


@pytest.mark.parametrize("protocol", NAMES)
def test_any_byte_counts_as_a_sign_of_life(protocol: str) -> None:
    """Each byte of a frame that never gets whole starts the silence anew."""
    with watched(protocol, WAIT) as (connection, peer):
        assert peer.sock.recv(100)  # a ping
        for byte in HALF_FRAMES[protocol]:
            asked = asked_at(connection)
            peer.sock.sendall(bytes((byte,)))
            wait_for(lambda asked=asked: asked_at(connection) not in (None, asked))  # type: ignore[misc]
        assert not connection.closed
        assert connection.stats().rtt is None


def test_bymux_goes_without_a_keepalive_once_both_are_going_away() -> None:
    with watched("bymux", INTERVAL) as (connection, peer):
        connection.go_away()
        peer.receive()
        peer.send()
        wait_for(lambda: multiplexer_of(connection).protocol.close_notice_came())
        sent = connection.stats().bytes_sent
        with pytest.raises(TimeoutError):
            connection.accept_stream(timeout=6 * INTERVAL)
        assert connection.stats().bytes_sent == sent
