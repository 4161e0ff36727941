"""Messages that are begun and not finished count: for the connection, and for the process.

Peers that send all but the last byte of a message hold memory which no credit bounds. At a bound
the largest holder goes, with a sentence, and who holds little does not notice.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

import wsmux
from wsmux.endpoints.connection_options import ConnectionOptions
from wsmux.protocols.base import Role
from wsmux.runtime.memory import process_memory

from ..helpers.attacks import PAST_CREDIT, WAIT, Victim, native, send_all
from ..helpers.inside import pauses
from ..helpers.load.measuring import MB, run
from ..helpers.raw_peer import BINARY, CONTINUATION, RawPeer, in_thread, uint32, wait_for

KIB = 1024
SIZE = 256 * KIB  # of a message, as its head announces it
HELD = 240 * KIB  # what comes of it: less than yamux and bymux grant at first
LIMIT = 1024 * KIB

Begin = Callable[[RawPeer], bytes]


def frame(peer: RawPeer) -> bytes:
    return peer.frame(BINARY, bytes(HELD), declared=SIZE)


def fragments(peer: RawPeer) -> bytes:
    """Return so many bytes in fragments, each of them whole."""
    piece = peer.frame(CONTINUATION, bytes(KIB), fin=False)
    return peer.frame(BINARY, b"", fin=False) + piece * (HELD // KIB)


def native_message(peer: RawPeer) -> bytes:
    return native(0, 0, bytes(SIZE))[: HELD - SIZE]


def credited(protocol: str) -> Begin:
    """Return what begins a frame on the stream that ``victim`` opens."""
    return lambda peer: PAST_CREDIT[protocol][1](SIZE)[: HELD - SIZE]


# What begins a message, the wire, and whether a WebSocket carries it.
WAYS = [
    pytest.param(frame, "wsmux", True, id="frame"),
    pytest.param(fragments, "wsmux", True, id="fragments"),
    pytest.param(native_message, "wsmux", False, id="bytes"),
    pytest.param(credited("yamux"), "yamux", False, id="yamux"),
    pytest.param(credited("bymux"), "bymux", False, id="bymux"),
]


@contextmanager
def victim(protocol: str, websocket: bool, config: wsmux.Config) -> Iterator[Victim]:
    """Have a server connection over a socket pair, whose peer is by hand and reads everything."""
    ours, theirs = socket.socketpair()
    ours.settimeout(WAIT)
    connection_options = ConnectionOptions(config=config)
    over = connection_options.over_websocket if websocket else connection_options.over_bytes
    connection = over(theirs, Role.SERVER, protocol)
    with ours:
        try:
            made = Victim(connection, ours)
            reading = made.drain()
            if protocol in ("yamux", "bymux"):  # they cut their bytes themselves: on a stream
                send_all(ours, PAST_CREDIT[protocol][0])
                wait_for(lambda: connection.stats().streams)
            yield made
        finally:
            connection.abort()
            assert connection.wait_closed(WAIT)
            reading.join(WAIT)


@pytest.mark.parametrize(("begin", "protocol", "websocket"), WAYS)
def test_half_sent_messages_of_many_connections_are_bounded(
    begin: Begin, protocol: str, websocket: bool
) -> None:
    config = wsmux.Config(max_process_buffer=LIMIT)
    with ExitStack() as stack:
        victims = [stack.enter_context(victim(protocol, websocket, config)) for _ in range(10)]
        for each in victims:
            send_all(each.sock, begin(RawPeer(each.sock, masks=True)))
        wait_for(lambda: sum(each.connection.closed for each in victims) >= 6)
        wait_for(lambda: process_memory.total <= LIMIT)
        ended = [each for each in victims if each.connection.closed]
        for each in ended:
            each.check_end("of a message that is not whole", 1008)
            each.check_end(f"exceed Config.max_process_buffer: {LIMIT}", 1008)
        assert len(ended) < len(victims)  # what fits is left alone


@pytest.mark.parametrize(("begin", "protocol", "websocket"), WAYS)
def test_who_holds_little_is_left_alone(begin: Begin, protocol: str, websocket: bool) -> None:
    config = wsmux.Config(max_process_buffer=LIMIT // 8)
    with (
        victim(protocol, websocket, config) as modest,
        victim(protocol, websocket, config) as greedy,
    ):
        before = modest.connection.stats().bytes_received
        send_all(modest.sock, begin(RawPeer(modest.sock, masks=True))[: 8 * KIB])
        wait_for(lambda: modest.connection.stats().bytes_received == before + 8 * KIB)
        send_all(greedy.sock, begin(RawPeer(greedy.sock, masks=True)))
        greedy.check_end("not whole", 1008)
        assert modest.connection.error is None


@pytest.mark.parametrize(("begin", "protocol", "websocket"), WAYS[:3])
def test_a_half_sent_message_counts_against_its_connection(
    begin: Begin, protocol: str, websocket: bool
) -> None:
    config = wsmux.Config(max_connection_buffer=HELD // 2)
    with victim(protocol, websocket, config) as alone:
        send_all(alone.sock, begin(RawPeer(alone.sock, masks=True)))
        alone.check_end("bytes of a message that is not whole and unread ones exceed", 1008)
        alone.check_end(f"Config.max_connection_buffer: {HELD // 2}", 1008)


@pytest.mark.parametrize(("unread", "half"), [(SIZE, SIZE // 2), (SIZE // 2, SIZE)])
def test_the_largest_goes_be_it_a_stream_or_a_message(unread: int, half: int) -> None:
    config = wsmux.Config(max_connection_buffer=SIZE)
    with victim("wsmux", False, config) as alone:
        # A window at a time: what is beyond it would be the peer's fault.
        opening = native(0, 1, uint32(9))
        data = b"".join(native(0, 0, bytes(SIZE // 8)) for _ in range(8 * unread // SIZE))
        send_all(alone.sock, opening + data)
        stream = alone.connection.accept_stream(WAIT)
        stream.timeout = WAIT
        wait_for(lambda: alone.connection.stats().unread_bytes == unread)
        send_all(alone.sock, native(0, 0, bytes(half + 1))[:-1])
        if half > unread:
            alone.check_end("not whole", 1008)
        else:
            wait_for(lambda: alone.connection.stats().unread_bytes == 0)
            with pytest.raises(wsmux.StreamReset, match="max_connection_buffer"):
                stream.read()
            assert alone.connection.error is None


def test_what_a_connection_holds_is_forgotten_with_it() -> None:
    config = wsmux.Config(max_process_buffer=LIMIT)
    before = process_memory.total
    with victim("wsmux", True, config) as alone:
        send_all(alone.sock, frame(RawPeer(alone.sock, masks=True)))
        wait_for(lambda: process_memory.total > before)
    assert process_memory.total == before


@pytest.mark.long
@pytest.mark.parametrize("how", ["frame", "fragments"])
def test_a_thousand_half_sent_messages_hold_no_more_than_the_bound(
    figure: Callable[[str], None], how: str
) -> None:
    figures = run("half_messages", "wsmux", 1020, how, limit=300)
    figure(
        f"{figures['sent_mb']:.0f} MB sent of 1,020 messages of 1 MiB ({how}): at most "
        f"{figures['most_mb']:.0f} MB more in memory, {figures['ended']} connections ended, an "
        f"honest echo took {figures['echo_s'] * 1000:.0f} ms"
    )
    assert figures["ended"] > 0
    # Beside the bound, and a quarter of it for holes that the allocator keeps: two threads of each
    # connection, and the buffer that it reads into where memory is short.
    assert figures["most_mb"] <= (1.25 * 256 * 1024 * KIB + 1020 * 150 * 1000) / MB


@contextmanager
def paused(config: wsmux.Config) -> Iterator[tuple[Victim, Largest]]:
    """Have a connection that reads no further, since another one holds more than all may."""
    greedy = Largest()
    with victim("wsmux", True, config) as waiting:
        try:
            send_all(waiting.sock, frame(RawPeer(waiting.sock, masks=True))[: 64 * KIB])
            wait_for(lambda: waiting.connection.stats().bytes_received == 64 * KIB)
            process_memory.report(greedy, LIMIT, 2 * LIMIT)
            send_all(waiting.sock, bytes(64 * KIB))
            wait_for(lambda: pauses(waiting.connection))
            yield waiting, greedy
        finally:
            process_memory.forget(greedy)


class Largest:
    """Hold most, and take its time."""

    def wake(self) -> None:
        """Do nothing yet."""


def test_who_waits_for_memory_goes_on_when_there_is_room() -> None:
    with paused(wsmux.Config(max_process_buffer=LIMIT)) as (waiting, greedy):
        received = waiting.connection.stats().bytes_received
        send_all(waiting.sock, bytes(32 * KIB))
        process_memory.forget(greedy)
        wait_for(lambda: waiting.connection.stats().bytes_received > received)
        assert waiting.connection.error is None


def test_who_waits_for_memory_notices_that_the_peer_has_gone() -> None:
    with paused(wsmux.Config(max_process_buffer=LIMIT)) as (waiting, _):
        waiting.sock.shutdown(socket.SHUT_RDWR)  # close() would wait for the thread that reads it
        wait_for(lambda: waiting.connection.error)
        assert "ended the connection within a message" in str(waiting.connection.error)


def test_who_waits_for_memory_can_be_closed() -> None:
    with paused(wsmux.Config(max_process_buffer=LIMIT, close_timeout=WAIT)) as (waiting, _):
        closing = in_thread(waiting.connection.close)
        waiting.sock.shutdown(socket.SHUT_WR)
        closing.result(WAIT / 2)
