"""A short message of a stream that has nothing else queued goes before the bulk of others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import wsmux
from wsmux.mux import multiplexer
from wsmux.protocols.events import DataReceived, Event, StreamEnded

from ..helpers.connections import Spawn
from ..helpers.inside import multiplexer_of
from ..helpers.pure_peer import PurePeer
from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for
from ..helpers.wires import NAMES

FRAME = wsmux.Config().max_frame_size
BULK = 6

# What a peer may leave unread, of one stream and of all.
GENEROUS = wsmux.Config(receive_window=2**31, max_connection_buffer=2**31)


def blocked(stats: wsmux.ConnectionStats) -> bool:
    """Return whether nothing moves: the queue is full, and all bulk writers wait but the one that
    waits for the socket."""
    full = stats.queued_bytes >= wsmux.Config().max_send_queue
    return full and stats.waiting_for_room >= BULK - 1


@contextmanager
def stuck(protocol: str, spawn: Spawn) -> Iterator[tuple[wsmux.Connection, wsmux.Stream, PurePeer]]:
    """Have bulk writers wait for a peer that does not read, and another stream beside them."""
    ours, theirs = socket.socketpair()
    with PurePeer(theirs, protocol, config=GENEROUS) as peer:
        connection = wsmux.from_socket(ours, role="client", protocol=protocol)
        peer.send()
        streams = [connection.open_stream(timeout=WAIT) for _ in range(BULK + 1)]
        peer.accept(BULK + 1)
        quiet = streams.pop()
        quiet.timeout = WAIT
        writing = [spawn(stream.write, bytes(2**20 - 64)) for stream in streams]
        wait_for(lambda: blocked(connection.stats()))
        yield connection, quiet, peer
        connection.abort()
        for future in writing:  # what was read has let some of them finish
            assert isinstance(future.exception(WAIT), wsmux.ConnectionClosedError | None)


def until(peer: PurePeer, stream: wsmux.Stream, kind: type[Event]) -> tuple[int, bytes]:
    """Receive until an event of a stream; return the bytes that came for others, and for it."""
    others, own = 0, b""
    while True:
        for event in peer.receive():
            mine = getattr(event, "stream_id", None) == stream.id
            if isinstance(event, DataReceived):
                others += 0 if mine else len(event.data)
                own += event.data if mine else b""
            if mine and isinstance(event, kind):
                return others, own


def written_in_time(stream: wsmux.Stream) -> int:
    """Write short messages until one is late; return the bytes of those before."""
    written = 0
    while True:
        try:
            written += stream.write(bytes(1000))
        except wsmux.WriteTimeout:
            return written


@pytest.mark.parametrize("protocol", NAMES)
def test_a_short_message_waits_for_what_is_with_the_socket_alone(
    protocol: str, spawn: Spawn
) -> None:
    with stuck(protocol, spawn) as (connection, quiet, peer):
        sent = connection.stats().bytes_sent
        quiet.write(b"quick")
        others, own = until(peer, quiet, DataReceived)
        assert own == b"quick"
        assert others <= sent + FRAME


@pytest.mark.parametrize("protocol", ["wsmux", "yamux", "bymux"])  # js-ws ends when all is read
def test_the_end_of_a_quiet_stream_goes_before_bulk(protocol: str, spawn: Spawn) -> None:
    with stuck(protocol, spawn) as (connection, quiet, peer):
        sent = connection.stats().bytes_sent
        quiet.write(b"quick")
        quiet.close_write()
        others, own = until(peer, quiet, StreamEnded)
        assert own == b"quick"
        assert others <= sent + FRAME


@pytest.mark.parametrize("protocol", NAMES)
def test_a_stream_that_writes_on_waits_for_its_turn(protocol: str, spawn: Spawn) -> None:
    with stuck(protocol, spawn) as (connection, quiet, _):
        quiet.timeout = 0.02
        assert 0 < written_in_time(quiet) <= FRAME // 4
        assert connection.stats().queued_bytes <= wsmux.Config().max_send_queue + 2 * FRAME


@pytest.mark.parametrize("protocol", ["wsmux"])  # others answer the end of a half at once
def test_messages_stay_in_order_behind_one_that_takes_an_answer_along(
    protocol: str, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        multiplexer, "MAX_UNAWAITED_TIME", 3600.0
    )  # it goes along with nothing else
    with stuck(protocol, spawn) as (connection, quiet, peer):
        opened = peer.machine.open_stream()
        peer.send()
        wait_for(lambda: connection.stats().unaccepted == 1)
        peer.machine.close_read(opened)
        peer.send()
        wait_for(lambda: multiplexer_of(connection).protocol.unawaited == 1)
        quiet.write(b"one ")
        quiet.write(b"two ")
        quiet.close_write()
        assert until(peer, quiet, StreamEnded)[1] == b"one two "


@pytest.mark.parametrize("protocol", NAMES)
def test_short_messages_of_a_stream_stay_in_order(protocol: str, spawn: Spawn) -> None:
    """Some overtake, the others wait in line; what comes is what was written."""
    with stuck(protocol, spawn) as (_, quiet, peer):
        messages = [bytes([number]) * 1000 for number in range(40)]
        writing = spawn(lambda: [quiet.write(message) for message in messages])
        own = b""
        while len(own) < 40_000:
            data = [event for event in peer.receive() if isinstance(event, DataReceived)]
            own += b"".join(event.data for event in data if event.stream_id == quiet.id)
        assert own == b"".join(messages)
        writing.result(WAIT)
