"""Ask a connection who waits for what: each case in the four wires, as far as it has them."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest

import wsmux
from wsmux import Cause, Finding, HalfStatus
from wsmux.endpoints.bridge import Signal

from ..helpers.carriers import SOME, Carrier, Ends
from ..helpers.connections import Spawn
from ..helpers.inside import multiplexer_of, record_of, send_lock_of
from ..helpers.joined_streams import Joined, fill, open_pair
from ..helpers.pure_peer import PurePeer
from ..helpers.scripted import WAIT
from ..helpers.waiting import polls, wait_for, wait_for_reader, wait_for_writer
from ..helpers.wires import NAMES

MIB = 1024 * 1024


@pytest.fixture(params=[carrier for carrier in SOME if carrier.name == "socketpair"], ids=str)
def carrier(request: pytest.FixtureRequest) -> Carrier:
    chosen: Carrier = request.param
    return chosen


@pytest.fixture
def begin(spawn: Spawn) -> Callable[..., Future[None]]:
    """Return ``begin(function, *args)``, which runs until the end of the connection at most."""

    def start(function: Callable[..., Any], *args: Any) -> Future[None]:
        def blocked() -> None:
            with suppress(wsmux.WsmuxError):
                function(*args)

        return spawn(blocked)

    return start


Begin = Callable[..., "Future[None]"]


def causes(connection: wsmux.Connection) -> list[Cause]:
    return [finding.cause for finding in connection.explain()]


def only(connection: wsmux.Connection) -> Finding:
    [finding] = connection.explain()
    return finding


def both_full(ends: Ends, begin: Begin) -> Joined:
    """Have both sides write on one stream, and nobody read."""
    near, far = open_pair(*ends)
    near.write(b"x")
    for stream in (near, far):
        stream.timeout = None
        begin(stream.write, bytes(8 * MIB))
    for end in ends:
        wait_for(lambda end=end: causes(end) == [Cause.BOTH_FULL])
    return Joined(near, far)


def wait_for_the_peer(connection: wsmux.Connection) -> None:
    """Wait until a writer has spent all credit, and not only that of before the peer's answer."""
    wait_for(lambda: "does not read what it was sent" in "".join(map(str, connection.explain())))


def end(ends: Ends) -> None:
    for each in ends:
        each.abort()


def test_nothing_waits_on_an_idle_connection(ends: Ends) -> None:
    open_pair(*ends)
    assert ends.client.explain() == ends.server.explain() == []


def test_both_sides_writing_and_neither_reading_is_named(ends: Ends, begin: Begin) -> None:
    near, _ = both_full(ends, begin)
    found = only(ends.client)
    assert found.stream_id == near.id
    assert found.thread == "test-blocked"
    assert found.moved == record_of(near).sent > 0
    assert found.cause.stalls
    unread = record_of(near).buffer.size
    assert re.fullmatch(
        rf"test-blocked has waited \d+\.\d s in a write to stream {near.id}, without credit, "
        rf"while {unread} bytes of the peer lie unread here on stream {near.id} and it may send "
        "no more either: both sides write and neither reads",
        str(found),
    )
    end(ends)


def test_both_sides_writing_on_different_streams_is_the_same(ends: Ends, begin: Begin) -> None:
    ours, theirs = open_pair(*ends), open_pair(*reversed(ends))
    ours.near.write(b"x")
    for stream in (ours.near, theirs.near):
        stream.timeout = None
        begin(stream.write, bytes(8 * MIB))
    wait_for(lambda: causes(ends.client) == [Cause.BOTH_FULL])
    assert f"lie unread here on stream {theirs.near.id} and" in str(only(ends.client))
    assert only(ends.client).stream_id == ours.near.id
    end(ends)


def test_a_writer_without_credit_waits_for_the_peers_application(ends: Ends, begin: Begin) -> None:
    near, far = open_pair(*ends)
    near.timeout = None
    writing = begin(near.write, bytes(8 * MIB))
    wait_for_the_peer(ends.client)
    found = only(ends.client)
    assert (found.cause, found.stream_id) == (Cause.NO_CREDIT, near.id)
    assert found.thread == "test-blocked"
    wait_for(lambda: causes(ends.server) == [Cause.UNREAD])
    lying = only(ends.server)
    assert lying.stream_id == far.id
    assert lying.moved == record_of(far).received
    assert f"{record_of(far).buffer.size} bytes lie unread on stream {far.id}" in lying.text
    assert "nobody is reading it" in lying.text
    end(ends)
    writing.result(WAIT)


def test_a_wait_is_as_long_as_it_has_lasted(ends: Ends, begin: Begin) -> None:
    stream, _far = open_pair(*ends)
    stream.timeout = None
    begin(stream.write, bytes(8 * MIB))
    wait_for_the_peer(ends.client)
    first = only(ends.client).seconds
    wait_for(lambda: only(ends.client).seconds > first)
    end(ends)


def test_a_reader_waits_for_bytes_and_is_no_stall(ends: Ends, begin: Begin) -> None:
    near, far = open_pair(*ends)
    reading = begin(near.read, 10)
    wait_for_reader(ends.client)
    found = only(ends.client)
    assert (found.cause, found.stream_id) == (Cause.NOTHING_TO_READ, near.id)
    assert not found.cause.stalls
    assert "in a read of stream" in found.text
    assert found.text.endswith("the peer has sent nothing on it yet")
    far.write(b"hello")
    reading.result(WAIT)
    assert ends.client.explain() == []
    begin(near.read, 10)
    wait_for_reader(ends.client)
    assert re.search(r"the peer has sent nothing on it for \d+\.\d s$", str(only(ends.client)))
    end(ends)


def test_a_stream_that_nobody_accepts_is_told_where_it_waits(ends: Ends) -> None:
    with ends.client.open_stream() as stream:
        stream.write(b"x")
        wait_for(lambda: causes(ends.server) == [Cause.NOT_ACCEPTED])
        found = only(ends.server)
        assert found.stream_id == stream.id
        assert found.text.endswith("no thread is in accept_stream")
        ends.server.accept_stream(WAIT)
        assert causes(ends.server) != [Cause.NOT_ACCEPTED]


@pytest.mark.parametrize("threads", [1, 3])
def test_who_accepts_waits_for_the_peer(ends: Ends, begin: Begin, threads: int) -> None:
    for _ in range(threads):
        begin(ends.server.accept_stream)
    wait_for(lambda: causes(ends.server) == [Cause.NO_STREAM] * threads)
    assert "in accept_stream: the peer has opened no stream" in str(ends.server.explain()[0])
    end(ends)


@pytest.mark.parametrize("protocol", NAMES)
def test_an_opener_waits_for_the_peers_answer(protocol: str, begin: Begin) -> None:
    ours, theirs = socket.socketpair()
    config = wsmux.Config(max_pending_opens=2)
    with PurePeer(theirs, protocol, config=wsmux.Config(max_streams=2)) as peer:
        connection = wsmux.from_socket(ours, role="client", protocol=protocol, config=config)
        peer.send()
        streams = [connection.open_stream(WAIT) for _ in range(2)]
        begin(connection.open_stream)
        wait_for(lambda: causes(connection) == [Cause.NO_OPENING])
        assert "in open_stream: the peer has not answered" in str(only(connection))
        assert only(connection).thread == "test-blocked"
        begin(streams[0].write, bytes(MIB))
        wait_for(lambda: len(connection.explain()) == 2)
        if protocol in ("wsmux", "js-ws"):
            assert any("the peer has answered nothing" in str(f) for f in connection.explain())
        connection.abort()


@pytest.fixture
def not_taken(begin: Begin) -> Iterator[tuple[wsmux.Connection, Begin]]:
    """Return a connection whose peer grants everything, and then takes no byte.

    One writer waits for the socket; the others came later, and wait for room in the queue.
    """
    ours, theirs = socket.socketpair()
    with PurePeer(theirs, "yamux", config=wsmux.Config(receive_window=16 * MIB)) as peer:
        config = wsmux.Config(max_send_queue=64 * 1024)
        connection = wsmux.from_socket(ours, role="client", protocol="yamux", config=config)
        streams = [connection.open_stream(WAIT) for _ in range(3)]
        while peer.machine.open_streams() < 3:
            peer.receive()
        peer.send()
        for stream in streams:
            wait_for(
                lambda stream=stream: (
                    multiplexer_of(connection).credit_locked(record_of(stream)) > MIB
                )
            )
        wait_for(lambda: polls(connection))  # else it might send for the first writer
        for stream in streams:
            begin(stream.write, bytes(8 * MIB))
            wait_for(multiplexer_of(connection).queue.holder_waits_locked)
        yield connection, begin
        connection.abort()


def test_a_full_socket_holds_up_the_queue_and_its_writers(
    not_taken: tuple[wsmux.Connection, Begin],
) -> None:
    connection, _ = not_taken
    wait_for(lambda: causes(connection)[:1] == [Cause.SOCKET_FULL])
    wait_for(lambda: causes(connection).count(Cause.NO_ROOM) == 2)
    full, *others = connection.explain()
    assert full.stream_id is None
    assert re.fullmatch(
        r"the socket is full: the peer's system (takes no byte for now|has taken no byte for "
        r"\d+\.\d s), and \d+ bytes wait in the send queue; a writer waits for it",
        str(full),
    )
    assert all("for room in the send queue" in finding.text for finding in others)
    wait_for(lambda: connection.explain()[0].seconds > 0)


def test_asking_never_waits_for_who_is_stuck(
    not_taken: tuple[wsmux.Connection, Begin], spawn: Spawn
) -> None:
    connection, _ = not_taken
    wait_for(lambda: causes(connection)[:1] == [Cause.SOCKET_FULL])
    sender = send_lock_of(connection)
    assert not sender.acquire(blocking=False)  # somebody holds it, and waits
    assert spawn(connection.explain).result(WAIT)


@pytest.mark.parametrize("protocol", NAMES)
def test_a_peer_that_answers_no_ping_is_silent(protocol: str) -> None:
    ours, theirs = socket.socketpair()
    with PurePeer(theirs, protocol):
        config = wsmux.Config(ping_interval=0.01, ping_timeout=WAIT)
        connection = wsmux.from_socket(ours, role="client", protocol=protocol, config=config)
        wait_for(lambda: causes(connection) == [Cause.SILENT])
        assert re.fullmatch(
            r"the peer has sent nothing for \d+\.\d s, and not answered a ping for \d+\.\d s",
            str(only(connection)),
        )
        connection.abort()


def test_an_ended_connection_tells_its_end(ends: Ends) -> None:
    ends.client.abort()
    assert str(only(ends.client)).startswith(f"{ends.client.name} has ended: ")
    assert only(ends.client).cause is Cause.ENDED


def test_a_wait_with_time_left_leaves_no_trace(ends: Ends) -> None:
    near, _far = open_pair(*ends)
    near.timeout = 0.001
    with pytest.raises(TimeoutError):
        near.read(1)
    with pytest.raises(TimeoutError):
        ends.client.accept_stream(0.001)
    assert ends.client.explain() == []


def test_a_thread_that_is_gone_is_told_by_its_number(ends: Ends, begin: Begin) -> None:
    near, _far = open_pair(*ends)
    begin(near.read, 10)
    wait_for_reader(ends.client)
    record_of(near).reader.thread = 1
    assert str(only(ends.client)).startswith("thread 1 has waited")
    end(ends)


def test_a_bridge_that_cannot_go_on_is_named(ends: Ends) -> None:
    near, far = open_pair(*ends)
    with multiplexer_of(ends.server).mutex:  # as a bridge does that has nowhere to send to
        record_of(far).reader, record_of(far).reading = Signal(lambda wakes: None), True
    fill(near)
    wait_for(lambda: causes(ends.server) == [Cause.UNREAD])
    assert "the bridge that reads it cannot send them on" in str(only(ends.server))
    assert ends.server.stream_stats()[0].bridged
    assert not ends.client.stream_stats()[0].bridged
    end(ends)


# Numbers


def test_streams_tell_their_numbers(ends: Ends) -> None:
    near, far = open_pair(*ends)
    near.write(b"x" * 1000)
    assert far.read(10) == b"x" * 10
    [ours] = ends.client.stream_stats()
    [theirs] = ends.server.stream_stats()
    assert (ours.id, ours.opened_here, ours.accepted) == (near.id, True, True)
    assert (theirs.id, theirs.opened_here, theirs.accepted) == (near.id, False, True)
    assert (ours.bytes_sent, ours.bytes_received, ours.silent) == (1000, 0, None)
    assert (theirs.bytes_sent, theirs.bytes_received, theirs.unread_bytes) == (0, 1000, 990)
    assert theirs.silent is not None
    assert theirs.peer_credit is not None
    assert ours.credit <= theirs.peer_credit  # a grant may be under way
    assert ours.reader is ours.writer is ours.offered is None
    assert not theirs.full


def test_halves_tell_how_they_stand(ends: Ends) -> None:
    near, far = open_pair(*ends)
    near.close_write()
    wait_for(lambda: record_of(far).ended)
    assert ends.client.stream_stats()[0].writing is HalfStatus.CLOSED
    assert ends.server.stream_stats()[0].reading is HalfStatus.ENDED
    far.close_read()
    [theirs] = ends.server.stream_stats()
    assert (theirs.reading, theirs.writing) == (HalfStatus.CLOSED, HalfStatus.OPEN)


def test_a_half_that_was_stopped_has_failed(ends: Ends, carrier: Carrier) -> None:
    near, far = open_pair(*ends)
    far.close_read()
    if carrier.wire.stopped is None:
        assert ends.client.stream_stats()[0].writing is HalfStatus.OPEN
        return
    wait_for(lambda: record_of(near).write_failure is not None)
    assert ends.client.stream_stats()[0].writing is HalfStatus.FAILED


def test_of_many_streams_those_that_wait_come_first(ends: Ends, begin: Begin) -> None:
    quiet = [open_pair(*ends) for _ in range(5)]
    held = open_pair(*ends)
    fill(held.near)
    held.near.timeout = None
    begin(held.near.write, b"more")
    wait_for_writer(ends.client)
    [first] = ends.client.stream_stats(1)
    assert first.id == held.near.id
    [most] = ends.server.stream_stats(1)
    assert most.unread_bytes > 0
    assert len(ends.client.stream_stats()) == len(quiet) + 1
    end(ends)


def test_threads_are_named_in_waits(ends: Ends, spawn: Spawn) -> None:
    near, far = open_pair(*ends)

    def read() -> bytes:
        threading.current_thread().name = "the reader"
        return near.read(1)

    reading = spawn(read)
    wait_for_reader(ends.client)
    reader = ends.client.stream_stats()[0].reader
    assert reader is not None
    assert reader.thread == "the reader"
    far.write(b"x")
    assert reading.result(WAIT) == b"x"
