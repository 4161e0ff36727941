"""Calls that meet a full socket: who waits for it, who goes on, and whose bytes they are."""

from __future__ import annotations

import array
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any

import pytest

import wsmux
from wsmux.config import KIB
from wsmux.protocols.events import DataReceived
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.parking import borrow

from ..helpers.connections import Spawn
from ..helpers.inside import multiplexer_of, record_of, wakeup_of
from ..helpers.interrupts import interrupted_by
from ..helpers.pure_peer import PurePeer
from ..helpers.scripted import WAIT
from ..helpers.waiting import polls, wait_for
from ..helpers.wires import NAMES

# What a peer may leave unread, of one stream and of all.
GENEROUS = wsmux.Config(receive_window=2**31, max_connection_buffer=2**31)

# No timer wakes the I/O thread. A frame is too large to overtake others, and more than fills the
# queue, so that one writer at a time has a turn.
CALM = wsmux.Config(
    ping_interval=None,
    half_open_timeout=None,
    message_timeout=None,
    stall_timeout=None,
    max_frame_size=17_000,
    max_send_queue=10_000,
)

# Seconds for a call to return that nothing holds up any more; the default of a timer is longer.
AT_ONCE = 5.0

# More than the socket holds, and less than any wire lets a stream send at first.
SOCKET = 64 * KIB
BULK = 240 * KIB


class Meeting:
    """A connection without timers, and a peer that reads when it is told to."""

    def __init__(self, protocol: str) -> None:
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET)
        self.peer = PurePeer(theirs, protocol, config=GENEROUS)
        self.connection = wsmux.from_socket(ours, role="client", protocol=protocol, config=CALM)
        self.queue = multiplexer_of(self.connection).queue
        self.peer.send()

    def open(self, count: int) -> list[wsmux.Stream]:
        """Open streams that may send ``BULK`` bytes."""
        streams = [self.connection.open_stream(timeout=WAIT) for _ in range(count)]
        self.peer.accept(count)
        wait_for(lambda: all(self.credit(stream) >= CALM.max_frame_size for stream in streams))
        wait_for(lambda: polls(self.connection))  # it seldom sends for a writer then
        return streams

    def credit(self, stream: wsmux.Stream) -> int:
        with multiplexer_of(self.connection).mutex:
            return multiplexer_of(self.connection).credit_locked(record_of(stream))

    def writer_waits(self) -> bool:
        """Return whether a writer waits for the socket.

        Or for room: where the I/O thread has just sent for it, what is left is the I/O thread's.
        """
        with multiplexer_of(self.connection).mutex:
            return self.queue.holder_waits_locked() or self.queue.waiting_locked() > 0

    def woken(self) -> bool:
        """Return whether the I/O thread was woken, and has not begun to look why."""
        return bool(select.select([wakeup_of(self.connection)], [], [], 0)[0])

    def empty_socket(self) -> None:
        """Take what the socket holds, while no thread of the connection can fill it again."""
        with multiplexer_of(self.connection).mutex:
            self.peer.sock.settimeout(0)
            try:
                while self.peer.sock.recv(65536):
                    pass
            except BlockingIOError:
                self.peer.sock.settimeout(WAIT)


@pytest.fixture(params=NAMES)
def meeting(request: pytest.FixtureRequest) -> Iterator[Meeting]:
    met = Meeting(request.param)
    with met.peer:
        yield met
        met.connection.abort()
        assert met.connection.wait_closed(WAIT)


# A writer that waits for the socket itself


Act = Callable[[Meeting, wsmux.Stream], object]


def garble(met: Meeting, stream: wsmux.Stream) -> None:
    """Send what breaks the rules of every wire."""
    met.peer.sock.sendall(b"\xff" * 64)


def stop(met: Meeting, stream: wsmux.Stream) -> None:
    """Have the peer read no further, in the words of the wire."""
    machine = met.peer.machine
    machine.reset_write(stream.id, machine.refused_code)
    machine.reset_read(stream.id, machine.refused_code)
    met.peer.send()


ENDS: dict[str, tuple[Act, type[Exception]]] = {
    "close": (lambda _, stream: stream.close(), ValueError),
    "close_write": (lambda _, stream: stream.close_write(), ValueError),
    "reset": (lambda _, stream: stream.reset(64), wsmux.StreamReset),
    "begin_close": (lambda met, _: met.connection.begin_close(), wsmux.ConnectionClosedOK),
    "failure": (garble, wsmux.ConnectionClosedError),
    "peer": (stop, wsmux.StreamError),
    "dropped": (lambda _, stream: stream.__del__(), wsmux.StreamReset),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_end_frees_the_writer_that_waits_for_a_full_socket(
    meeting: Meeting, spawn: Spawn, end: str
) -> None:
    """The peer reads nothing, so the socket frees nobody."""
    act, error = ENDS[end]
    (stream,) = meeting.open(1)
    writing = spawn(stream.write, bytes(BULK))
    wait_for(meeting.writer_waits)
    act(meeting, stream)
    with pytest.raises(error):
        writing.result(AT_ONCE)


def test_a_second_writer_is_refused_while_the_first_waits_for_a_full_socket(
    meeting: Meeting, spawn: Spawn
) -> None:
    """Between two of its frames, too, nobody else's bytes may come."""
    (stream,) = meeting.open(1)
    writing = spawn(stream.write, bytes(BULK))
    wait_for(meeting.writer_waits)
    with pytest.raises(wsmux.ConcurrencyError):
        stream.write(b"x")
    stream.reset(64)
    with pytest.raises(wsmux.StreamReset):
        writing.result(AT_ONCE)


# A handler of a signal that interrupts a writer which waits for the socket


Handle = Callable[[], object]


@pytest.fixture
def interrupt(meeting: Meeting, spawn: Spawn) -> Iterator[Callable[[Handle], Future[None]]]:
    """Call something in a handler of a signal once this thread waits for the socket."""
    with ExitStack() as handlers:

        def prepare(handle: Handle) -> Future[None]:
            send = handlers.enter_context(interrupted_by(signal.SIGUSR1, handle))

            def when_full() -> None:
                wait_for(meeting.writer_waits)
                send()

            return spawn(when_full)

        yield prepare


def read_to_the_end(peer: PurePeer) -> int:
    """Count the bytes of all streams until the other side ends the connection, and end it."""
    size = 0
    with suppress(EOFError):
        while peer.close_frame is None:
            size += sum(len(e.data) for e in peer.receive() if isinstance(e, DataReceived))
    peer.sock.close()
    return size


def test_a_handler_that_interrupts_a_writer_closes_its_connection(
    meeting: Meeting, spawn: Spawn, interrupt: Callable[[Handle], Future[None]]
) -> None:
    """What was written before gets to the peer, and the end behind it."""
    (stream,) = meeting.open(1)
    reading: list[Future[int]] = []

    def close() -> None:
        reading.append(spawn(read_to_the_end, meeting.peer))
        meeting.connection.close(WAIT)

    sent = interrupt(close)
    with pytest.raises(wsmux.ConnectionClosedOK):
        stream.write(bytes(BULK))
    sent.result(WAIT)
    assert reading[0].result(WAIT) == record_of(stream).sent > SOCKET


def test_a_handler_that_interrupts_a_writer_has_its_own_answer(
    meeting: Meeting, spawn: Spawn, interrupt: Callable[[Handle], Future[None]]
) -> None:
    """Then the writer goes on."""
    stream, other = meeting.open(2)
    reading: list[Future[int]] = []
    asked = threading.Event()

    def read() -> int:
        """Read until both streams have been read; note when the question comes."""
        size = 0
        while size < BULK + 1:
            for event in meeting.peer.receive():
                if isinstance(event, DataReceived):
                    size += len(event.data)
                    if event.stream_id == other.id:
                        asked.set()
        return size

    def ask() -> None:
        reading.append(spawn(read))
        other.write(b"?")
        assert asked.wait(WAIT)

    sent = interrupt(ask)
    assert stream.write(bytes(BULK)) == BULK
    sent.result(WAIT)
    assert reading[0].result(WAIT) == BULK + 1


# A writer whose frame another thread sends


BUFFERS: dict[str, Callable[[bytes], Any]] = {
    "bytearray": bytearray,
    "memoryview": lambda data: memoryview(bytearray(data)),
    "array": lambda data: array.array("B", data),
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_a_buffer_may_be_changed_while_its_bytes_are_queued(
    meeting: Meeting, spawn: Spawn, kind: str
) -> None:
    bulky, quiet = meeting.open(2)
    bulk = spawn(bulky.write, bytes(BULK))
    wait_for(meeting.writer_waits)
    data = BUFFERS[kind](b"before")
    assert quiet.write(data) == 6
    assert meeting.connection.stats().queued_bytes >= 6  # none of it is with the socket
    memoryview(data)[:] = b"behind"
    seen = b""
    while len(seen) < 6:
        for event in meeting.peer.receive():
            if isinstance(event, DataReceived) and event.stream_id == quiet.id:
                seen += event.data
    assert seen == b"before"
    meeting.connection.abort()
    assert isinstance(bulk.exception(WAIT), wsmux.ConnectionClosedError | None)


# A writer that waits for room


class HeldParker:
    """Keep its sleeper asleep, rung or not, until ``gate`` opens."""

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate
        self._parker = borrow()
        self.unpark = self._parker.unpark

    def park(self, deadline: Deadline) -> None:
        self._parker.park(deadline)
        assert self._gate.wait(WAIT)


def test_a_turn_that_its_writer_does_not_use_is_passed_on(
    meeting: Meeting, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two writers is reset, and its turn comes before it knows.

    Nothing moves any more when it does: neither the socket nor a timer looks after the second.
    """
    gate = threading.Event()
    hasty, first, second = meeting.open(3)
    hasty.timeout = 0.01
    with pytest.raises(wsmux.WriteTimeout):
        hasty.write(bytes(BULK))  # the last frame is with the socket
    with pytest.raises(wsmux.WriteTimeout):
        hasty.write(bytes(CALM.max_frame_size))  # and one fills the queue
    with monkeypatch.context() as patched:
        patched.setattr("wsmux.runtime.parking.borrow", lambda: HeldParker(gate))
        ended = spawn(first.write, bytes(2 * CALM.max_frame_size))
        wait_for(lambda: meeting.connection.stats().waiting_for_room == 1)
    writing = spawn(second.write, bytes(CALM.max_frame_size))
    wait_for(lambda: meeting.connection.stats().waiting_for_room == 2)
    first.reset()
    wait_for(lambda: not meeting.woken())
    meeting.empty_socket()
    wait_for(lambda: not meeting.queue.has_output())
    wait_for(lambda: polls(meeting.connection))
    assert meeting.connection.stats().waiting_for_room == 1  # the first has its turn
    gate.set()
    assert isinstance(ended.exception(WAIT), wsmux.StreamReset)
    assert writing.result(AT_ONCE) == CALM.max_frame_size
