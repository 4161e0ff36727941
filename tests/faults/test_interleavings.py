"""Force the interleavings that the lock plan must stand, one by one.

Those of two connections run in the four wires. A peer by hand speaks ``wsmux``, where it is about
the carrier.
"""

from __future__ import annotations

import gc
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

import wsmux
from wsmux.mux.stream_record import StreamRecord
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.parking import Parker, borrow
from wsmux.transport.message_transport import MessageTransport

from ..helpers.inside import multiplexer_of, on_end, record_of, socket_of, waits_for_room
from ..helpers.interrupts import signalled_at
from ..helpers.joined_streams import write_on
from ..helpers.pure_peer import PurePeer
from ..helpers.raw_peer import (
    ACK,
    CLOSE_FRAME,
    DATA,
    ROLES,
    WAIT,
    Meeting,
    close_payload,
    in_thread,
    meet,
    uint32,
    wait_for,
)
from ..helpers.stream_outcomes import check_read_of_reset
from ..helpers.wires import NAMES

CALM = wsmux.Config(ping_interval=None, max_pings=100_000)
GENEROUS = wsmux.Config(receive_window=2**31, max_connection_buffer=2**31)
SHORT = 1.0


@pytest.fixture(params=NAMES)
def protocol(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def pair(protocol: str) -> Iterator[tuple[wsmux.Connection, wsmux.Connection]]:
    ends = wsmux.pair(protocol=protocol, config=CALM)
    yield ends
    for end in ends:
        end.abort()
        assert end.wait_closed(WAIT)


def test_reader_that_comes_with_the_close_still_gets_the_bytes_before_it(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes and Close come in one segment; a read starts when the end has just been noted."""
    stream, peer = meeting.accepted(), meeting.peer
    ended, read = threading.Event(), threading.Event()

    def wait(channel: MessageTransport) -> None:
        if channel is multiplexer_of(meeting.connection).transport:
            channel.mutex.release()
            ended.set()
            read.wait(WAIT)
            channel.mutex.acquire()

    on_end(monkeypatch, wait)
    peer.send(
        peer.packed(stream.id, DATA, b"before") + peer.frame(CLOSE_FRAME, close_payload(1000))
    )
    assert ended.wait(WAIT)
    try:
        assert stream.read(64) == b"before"
    finally:
        read.set()


def test_open_and_reset_before_the_answer_does_not_use_up_the_right_to_open(
    pair: tuple[wsmux.Connection, wsmux.Connection],
) -> None:
    ours, theirs = pair
    for _ in range(CALM.max_pending_opens + 50):
        ours.open_stream(timeout=SHORT).reset()
        ours.ping(WAIT)  # every answer has come
    assert ours.stats().streams == 0


def test_open_and_close_before_the_answer_does_not_use_up_the_right_to_open() -> None:
    with meet("client", wsmux.Config(max_pending_opens=2)) as met:
        for _ in range(4):
            stream = met.connection.open_stream(timeout=SHORT)
            stream.close()
            met.peer.send_message(stream.id, ACK, uint32(100))


def test_stream_dropped_while_another_thread_holds_the_mutex_is_reset(
    pair: tuple[wsmux.Connection, wsmux.Connection],
) -> None:
    ours, theirs = pair
    stream = ours.open_stream()
    stream.write(b"x")
    peer = theirs.accept_stream(WAIT)
    peer.timeout = SHORT
    assert peer.read(1) == b"x"
    wait_for(lambda: not multiplexer_of(ours).queue.has_output())
    with multiplexer_of(ours).mutex:
        del stream
        gc.collect()
    check_read_of_reset(peer)


@pytest.mark.parametrize("call", ["read", "write"])
def test_stream_dropped_by_a_file_over_it_ends_a_blocked_call(
    pair: tuple[wsmux.Connection, wsmux.Connection], call: str
) -> None:
    ours, theirs = pair
    stream, other = ours.open_stream(), ours.open_stream()
    blocked = in_thread(stream.read, 1) if call == "read" else in_thread(stream.write, bytes(10**6))
    wait_for(lambda: ours.stats().waiting_readers + ours.stats().waiting_writers == 1)
    file = stream.makefile("rb")
    del file
    gc.collect()
    assert isinstance(blocked.exception(WAIT), wsmux.StreamReset)
    other.write(b"unharmed")
    ours.ping(WAIT)


def test_writer_in_the_queue_whose_stream_was_dropped_leaves_the_others_alone(
    protocol: str,
) -> None:
    ours, theirs = socket.socketpair()
    with PurePeer(theirs, protocol, config=GENEROUS) as peer:
        connection = wsmux.from_socket(ours, role="client", protocol=protocol, config=CALM)
        peer.send()
        streams = [connection.open_stream(WAIT) for _ in range(6)]
        peer.accept(6)
        writing = [in_thread(stream.write, bytes(10**6)) for stream in streams]
        wait_for(lambda: connection.stats().waiting_for_room)
        with multiplexer_of(connection).mutex:
            waiting = [
                record.writer for record in multiplexer_of(connection).table.records.values()
            ]
            dropped = next(
                i for i, writer in enumerate(waiting) if waits_for_room(connection, writer)
            )
        file = streams[dropped].makefile("rb")
        del file
        gc.collect()
        wait_for(lambda: record_of(streams[dropped]).write_failure)  # else it may be written first
        draining = in_thread(drain, theirs)
        for number, future in enumerate(writing):
            if number == dropped:
                assert isinstance(future.exception(WAIT), wsmux.StreamReset)
            else:
                assert future.result(WAIT) == 10**6
        assert not connection.closed
        connection.abort()
        draining.result(WAIT)
        assert connection.wait_closed(WAIT)


def drain(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass


def test_io_thread_leaves_a_full_socket_to_the_writer_that_waits_for_it(protocol: str) -> None:
    """Else it would be woken whenever the socket takes a byte, and could do nothing."""
    ours, theirs = socket.socketpair()
    with PurePeer(theirs, protocol, config=GENEROUS) as peer:
        connection = wsmux.from_socket(ours, role="client", protocol=protocol, config=CALM)
        peer.send()
        queue = multiplexer_of(connection).queue
        hasty, patient = connection.open_stream(WAIT), connection.open_stream(WAIT)
        peer.accept(2)
        hasty.timeout = 0.05
        while not queue.wants_io:  # its frame, a turn on any path, did not go out in time
            with suppress(wsmux.WriteTimeout):  # its credit may come later than that
                hasty.write(bytes(16_000))
            # One more would be queued where the I/O thread has not taken over yet.
            wait_for(lambda: queue.wants_io or not queue.has_output())
        writing = in_thread(patient.write, bytes(10**6))
        wait_for(lambda: queue.holder_waits_locked() and not queue.wants_io)
        connection.abort()
        assert isinstance(writing.exception(WAIT), wsmux.ConnectionClosedError)
        assert connection.wait_closed(WAIT)


def test_stream_that_was_refused_by_the_last_message_does_not_stay_in_the_table(
    pair: tuple[wsmux.Connection, wsmux.Connection],
) -> None:
    ours, theirs = pair
    stream = ours.open_stream()
    wait_for(lambda: theirs.stats().unaccepted)
    stream.reset()
    wait_for(lambda: not theirs.stats().streams)


def test_very_long_times_do_not_end_the_connection(protocol: str) -> None:
    config = wsmux.Config(ping_interval=1e9, ping_timeout=1e9, close_timeout=1e9)
    ours, theirs = wsmux.pair(protocol=protocol, config=config)
    assert ours.ping(WAIT) > 0
    ours.close()
    theirs.close()


class InterruptedParker:
    """A parker whose first sleeper is interrupted at the moment it is woken."""

    def __init__(self) -> None:
        self._parker = borrow()
        self._used = False
        self.unpark = self._parker.unpark

    def park(self, deadline: Deadline) -> None:
        self._parker.park(deadline)
        used, self._used = self._used, True
        if not used:
            raise KeyboardInterrupt


def test_waiter_woken_by_an_interrupt_passes_its_turn_to_the_next(
    pair: tuple[wsmux.Connection, wsmux.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two acceptors is woken for a stream and leaves with an exception instead."""
    ours, theirs = pair
    acceptors = multiplexer_of(ours).table.acceptors
    with monkeypatch.context() as patched:
        patched.setattr("wsmux.runtime.parking.borrow", InterruptedParker)
        interrupted = in_thread(ours.accept_stream)
        wait_for(lambda: len(acceptors.parked) == 1)
    patient = in_thread(ours.accept_stream)
    wait_for(lambda: len(acceptors.parked) == 2)
    kept = theirs.open_stream()
    assert isinstance(interrupted.exception(WAIT), KeyboardInterrupt)
    assert patient.result(SHORT).id == kept.id


def read_on(stream: wsmux.Stream, size: int) -> None:
    while True:
        stream.read(size)


READS: dict[str, Callable[[wsmux.Stream, int], object]] = {
    "read": read_on,
    "readinto": lambda stream, size: stream.readinto(bytearray(size)),
    "fill": lambda stream, size: stream.fill(bytearray(size)),
    "readall": lambda stream, _: stream.read(),
}


@pytest.mark.parametrize("how", READS)
def test_read_that_a_signal_handler_ends_behind_the_bytes_resets_the_stream(
    pair: tuple[wsmux.Connection, wsmux.Connection], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The bytes it took reach nobody, so what follows must not look as if it came next."""
    ours, theirs = pair
    stream, other = ours.open_stream(), ours.open_stream()
    far, other_far = theirs.accept_stream(WAIT), theirs.accept_stream(WAIT)
    half = ours.config.receive_window // 2
    far.write(bytes(half))
    wait_for(lambda: ours.stats().unread_bytes == half)
    with monkeypatch.context() as patched:
        # Where the call sends the credit for the bytes, which it has taken.
        patched.setattr(multiplexer_of(ours), "flush", lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            READS[how](stream, half)
    wait_for(lambda: stream.closed)
    with pytest.raises(wsmux.StreamReset, match="interrupted in a read"):
        stream.read(1)
    far.timeout = WAIT
    with pytest.raises(wsmux.StreamError):
        write_on(far)
    other.write(b"unharmed")
    assert other_far.read(8) == b"unharmed"


def test_read_after_an_interrupted_one_gets_nothing_even_at_once(
    pair: tuple[wsmux.Connection, wsmux.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The I/O thread, which tells the peer, may come later than the next read."""
    ours, theirs = pair
    stream = ours.open_stream()
    far = theirs.accept_stream(WAIT)
    half = ours.config.receive_window // 2
    far.write(bytes(half + 1))
    wait_for(lambda: ours.stats().unread_bytes == half + 1)
    with monkeypatch.context() as late:
        late.setattr(multiplexer_of(ours).transport, "wake", lambda: None)
        with monkeypatch.context() as patched:
            patched.setattr(
                multiplexer_of(ours), "flush", lambda: signal.raise_signal(signal.SIGINT)
            )
            with pytest.raises(KeyboardInterrupt):
                read_on(stream, half)
        with pytest.raises(wsmux.StreamReset, match="interrupted in a read"):
            stream.read(1)
    multiplexer_of(ours).wake()
    far.timeout = WAIT
    with pytest.raises(wsmux.StreamError):
        write_on(far)


def test_second_interrupt_leaves_the_reset_of_the_stream_to_the_io_thread(
    pair: tuple[wsmux.Connection, wsmux.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    stream = ours.open_stream()
    far = theirs.accept_stream(WAIT)
    half = ours.config.receive_window // 2
    far.write(bytes(half))
    wait_for(lambda: ours.stats().unread_bytes == half)
    abandon = multiplexer_of(ours).table.abandon

    def interrupted(record: StreamRecord, wakes: list[Parker]) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)
        abandon(record, wakes)

    with monkeypatch.context() as patched:
        patched.setattr(multiplexer_of(ours).table, "abandon", interrupted)
        patched.setattr(multiplexer_of(ours), "flush", lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            read_on(stream, half)
        wait_for(lambda: stream.closed)
    with pytest.raises(wsmux.StreamReset, match="interrupted in a read"):
        stream.read(1)
    far.timeout = WAIT
    with pytest.raises(wsmux.StreamError):
        write_on(far)


def test_handler_that_loses_another_connection_does_not_close_its_own_cleanly(
    protocol: str,
) -> None:
    """A relay whose upstream is lost must not look to its client like one that is done."""

    def relay(connection: wsmux.Connection) -> None:
        upstream, other = wsmux.pair(protocol=protocol)
        other.abort()
        assert other.wait_closed(WAIT)
        upstream.accept_stream()

    with (
        wsmux.serve(relay, protocols=[protocol], transport="tcp") as server,
        wsmux.connect(server.url, protocol=protocol) as connection,
        pytest.raises(wsmux.ConnectionClosedError),
    ):
        connection.accept_stream(WAIT)


@pytest.mark.parametrize("protocol", ["wsmux", "js-ws"])  # the others have no Close of their own
def test_answered_close_of_a_server_ends_without_lingering(
    pair: tuple[wsmux.Connection, wsmux.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a Close comes before the thread that sent the Close has noted that it is out.

    The I/O thread then finds output left, waits, and must be told when there is none.
    """
    monkeypatch.setattr("wsmux.transport.message_transport.LINGER", 60.0)
    ours, theirs = pair
    channel, io_thread = multiplexer_of(theirs).transport, multiplexer_of(theirs).io_ident
    sock = socket_of(theirs)
    send = sock.send

    def send_and_be_overtaken(pieces: Any) -> int | None:
        sent = send(pieces)
        if theirs.closed and not multiplexer_of(theirs).in_io_thread():
            wait_for(lambda: channel.frame_reader.peer_closed)
            wait_for(lambda: stays_in(io_thread, "_poll"))
        return sent

    monkeypatch.setattr(sock, "send", send_and_be_overtaken)
    closing = in_thread(theirs.close, WAIT)
    try:
        assert theirs.wait_closed(2 * SHORT)
    finally:
        theirs.abort()
        closing.result(WAIT)


def stays_in(thread: int, function: str) -> bool:
    """Return whether a thread is in a function, many looks in a row."""
    for _ in range(10):
        frame = sys._current_frames().get(thread)
        if frame is None or frame.f_code.co_name != function:
            return False
        time.sleep(0.002)
    return True


@pytest.mark.parametrize("role", ROLES)
def test_internal_error_of_the_io_thread_ends_the_connection_with_1011(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with meet(role, CALM) as met:

        def fail(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(multiplexer_of(met.connection).protocol, "receive_data", fail)
        accepting = in_thread(met.connection.accept_stream)
        met.peer.send_message(met.peer.id(), ACK, uint32(1))
        error = accepting.exception(WAIT)
        assert isinstance(error, wsmux.ConnectionClosedError)
        assert error.code == 1011


def test_late_abort_does_not_touch_a_descriptor_that_was_given_away(
    pair: tuple[wsmux.Connection, wsmux.Connection],
) -> None:
    ours, theirs = pair
    ours.close(WAIT)
    theirs.close(WAIT)
    one, other = socket.socketpair()  # takes the descriptors that became free
    with one, other:
        for end in (ours, theirs):
            end.abort()
            end.close()
            multiplexer_of(end).flush()
        one.sendall(b"untouched")
        assert other.recv(64) == b"untouched"


def test_socket_is_closed_with_the_mutex_held(
    pair: tuple[wsmux.Connection, wsmux.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``shutdown`` runs under the mutex; if ``close`` did not, it could hit a reused descriptor."""
    ours, _ = pair
    held: queue.Queue[bool] = queue.Queue()
    sock = socket_of(ours)
    close = sock.close

    def closing() -> None:
        held.put(multiplexer_of(ours).mutex.locked())
        close()

    monkeypatch.setattr(sock, "close", closing)
    ours.abort()
    assert ours.wait_closed(WAIT)
    assert held.get(timeout=WAIT)


@pytest.mark.parametrize("role", ROLES)
def test_write_that_a_lost_connection_ended_does_not_count_as_done(role: str) -> None:
    """A write whose only frame waits for the socket must not return when the peer has gone."""
    with meet(role, CALM, buffers=4096) as met:
        stream = met.accepted(window=2**31)
        stream.timeout = None
        io_thread = multiplexer_of(met.connection).io_ident
        wait_for(lambda: stays_in(io_thread, "_poll"))  # it leaves the sending to the writer
        writing = in_thread(stream.write, bytes(60_000))
        wait_for(lambda: any(stays_in(thread, "wait_writable") for thread in sys._current_frames()))
        met.peer.reset()
        assert isinstance(writing.exception(WAIT), wsmux.ConnectionClosedError)


# A handler of a signal that has a thread close the connection


def test_a_thread_that_a_handler_starts_closes_at_any_step_of_a_write() -> None:
    """A handler itself cannot: its thread may hold what the close needs, and goes on behind it."""
    closing: list[Future[None]] = []

    def handle(ours: wsmux.Connection) -> None:
        closing.append(in_thread(ours.close, WAIT))

    before = signal.getsignal(signal.SIGUSR1)
    outcomes: set[object] = set()
    try:
        for step in count(1):
            ours, theirs = wsmux.pair(config=CALM)
            with ours, theirs:
                stream = ours.open_stream(WAIT)
                stream.timeout = WAIT
                stream.write(b"x")
                there = theirs.accept_stream(WAIT)
                assert there.read(1) == b"x"
                closing.clear()
                signal.signal(signal.SIGUSR1, lambda *_, ours=ours: handle(ours))
                try:
                    if not signalled_at(
                        step, lambda stream=stream: stream.write(b"y"), signal.SIGUSR1
                    ):
                        break
                    outcome: object = 1
                    assert there.read(1) == b"y"
                except wsmux.ConnectionClosedOK as error:
                    outcome = type(error)
                outcomes.add(outcome)
                closing[0].result(WAIT)
                assert theirs.wait_closed(WAIT)
                assert (ours.close_code, theirs.close_code) == (1000, 1000), f"at step {step}"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert 1 in outcomes
    assert step > 30
