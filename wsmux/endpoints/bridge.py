"""Relay streams between two connections, of any two wires.

One thread runs the ``StreamRelay``, which carries the bytes of all streams. Each direction of a
bridged stream is a ``RelayedHalf``. Events that would wake a reading or writing thread instead mark
its half as ready and unpark the relay's thread, which then moves whatever it can, without waiting
for any single half. It takes bytes from a source only if the target has credit for them, so that a
stalled reader at one end stalls the writer at the other, and no other stream.

Locks: the mutexes of the two connections are held one after the other, never both. A half may be
marked as noted under either; the relay clears the mark before it checks the half, so it misses
nothing, and at worst checks once too often.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from ..exceptions import (
    CloseCode,
    ConnectionClosed,
    ConnectionClosedOK,
    ForkedError,
    LocalProtocolError,
    StreamRefused,
    StreamReset,
)
from ..mux.connection import Connection
from ..mux.multiplexer import Multiplexer
from ..mux.stream import Stream
from ..mux.stream_record import StreamRecord
from ..protocols.base import MuxProtocol
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from ..runtime.parking import Parker, Waiter, borrow, give_back
from ..runtime.threads import daemon_thread, start_thread

__all__ = ["StreamRelay", "bridge", "carried_code"]


class Signal(Waiter):
    """A waiter that marks a half as ready instead of waking a thread."""

    parks = False

    __slots__ = ("_note",)

    def __init__(self, note: Callable[[list[Parker]], None]) -> None:
        super().__init__()
        self._note = note

    def notify(self, wakes: list[Parker]) -> None:
        self._note(wakes)

    def notify_forced(self, wakes: list[Parker]) -> None:
        self._note(wakes)


class End:
    """One end of a bridged stream.

    Attributes:
        error: the error with which one half was ended here; on some wires that ends the other half,
            too.
    """

    __slots__ = ("multiplexer", "record", "error", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.multiplexer: Multiplexer = stream._multiplexer
        self.record: StreamRecord = stream._record
        self.error: BaseException | None = None

    def let_go(self) -> None:
        """Detach from the stream, so that others can use it."""
        with self.multiplexer.mutex:
            self.record.reader, self.record.writer = Waiter(), Waiter()
            self.record.reading = self.record.writing = False

    def gone_locked(self) -> BaseException | None:
        """Return the error with which the whole stream was ended, if it was."""
        return None if self.record.id in self.multiplexer.table.records else self.error

    def refuse(self, code: int) -> None:
        """End both halves of a stream that cannot be relayed."""

        def refuse(wakes: list[Parker]) -> None:
            self.multiplexer.table.reset(self.record, code)
            self.record.closed = True
            self.multiplexer.settle_locked(wakes)

        self.multiplexer.change(refuse)


class RelayedHalf:
    """One direction of a bridged stream.

    Attributes:
        pending: bytes taken from the source for which the target's send queue had no room.
        asked: a turn in that queue was requested.
        noted: it is in the relay's list, or about to be.
        done: the direction has ended, whatever the cause.
        lost: it ended because a connection did.
        back: the other direction, until both have ended.
    """

    __slots__ = ("asked", "back", "done", "lost", "noted", "pending", "signal", "source", "target")

    def __init__(self, source: End, target: End) -> None:
        self.source = source
        self.target = target
        self.back: RelayedHalf | None = None
        self.pending = memoryview(b"")
        self.asked = self.noted = self.done = self.lost = False
        self.signal = Waiter()

    def part(self) -> None:
        """Detach from both streams, and break the reference cycle of the two directions."""
        back = self.back
        if back is None:
            return
        for half in (self, back):
            half.source.let_go()
            half.signal = Waiter()  # the previous one refers to this half
            half.back = None


class StreamRelay:
    """Move the bytes of any number of halves in the thread that calls ``run``.

    ``add``, ``added_all`` and ``stop`` may be called from any thread.

    Args:
        accepting: the two connections whose streams are added, until ``added_all`` is called for
            each; none if streams of any connections are added, which outlive each other.
    """

    def __init__(self, *accepting: Connection) -> None:
        self._accepting = set(accepting)
        self._outlive = not accepting
        self._stopped = False
        self._parker = borrow()
        self._ready: deque[RelayedHalf] = deque()
        self._halves: set[RelayedHalf] = set()  # only for the relay's thread
        # Not closed, so that nothing truncated looks complete; the end of the other connection ends
        # them.
        self._lost: list[RelayedHalf] = []
        self._moved = False

    def close(self) -> None:
        """Release everything, after the last run.

        Streams of connections that outlive this are reset, as nobody relays them any more.
        """
        for half in {*self._halves, *self._ready, *self._lost}:
            if self._outlive and half.back is not None:
                half.source.stream.reset()
                half.target.stream.reset()
            half.part()
        self._halves.clear()
        self._ready.clear()
        self._lost.clear()
        give_back(self._parker)

    def added_all(self, connection: Connection) -> None:
        """Record that no more streams of a connection will be added, usually since it has ended."""
        self._accepting.discard(connection)
        self._parker.unpark()

    def add(self, one: Stream, other: Stream) -> None:
        """Relay everything between two streams, including their ends."""
        near, far = End(one), End(other)
        there, back = RelayedHalf(near, far), RelayedHalf(far, near)
        there.back, back.back = back, there
        for half in (there, back):
            half.signal = Signal(partial(self._note, half))
            half.noted = True
            source, target = half.source, half.target
            with source.multiplexer.mutex:
                source.record.reader, source.record.reading = half.signal, True
            with target.multiplexer.mutex:
                target.record.writer, target.record.writing = half.signal, True
        self._ready += (there, back)
        self._parker.unpark()

    def _note(self, half: RelayedHalf, wakes: list[Parker]) -> None:
        if not half.noted:
            half.noted = True
            self._ready.append(half)
            wakes.append(self._parker)

    def stop(self) -> None:
        """End ``serve``."""
        self._stopped = True
        self._parker.unpark()

    # The relay's thread

    def serve(self) -> None:
        """Move bytes until ``stop``; when a connection is lost, its streams are ended elsewhere."""
        while not self._stopped:
            self._move()
            if not self._ready:
                self._parker.park(Deadline(None))

    def run(self, one: Connection, other: Connection) -> Connection:
        """Move bytes until a connection has ended; return that one.

        Bytes it had received before are still delivered, as long as there is progress within
        ``Config.close_timeout``.
        """
        grace: Deadline | None = None
        while True:
            self._moved = False
            self._move()
            ended = one if one.closed else other if other.closed else None
            if ended is None:
                if not self._ready:
                    self._parker.park(Deadline(None))
                continue
            if grace is None:
                for half in self._halves:
                    self._note(half, [])
            if grace is None or self._moved:
                grace = Deadline(ended.config.close_timeout)
            if not (self._ready or self._expects_from(ended)) or grace.expired():
                return ended
            if not self._ready:
                self._parker.park(grace)

    def _expects_from(self, connection: Connection) -> bool:
        carried = (half.source.stream.connection for half in self._halves)
        return connection in self._accepting or connection in carried

    def _move(self) -> None:
        """Give one turn to each half that was ready at the start."""
        for _ in range(len(self._ready)):
            half = self._ready.popleft()
            half.noted = False
            if half.done:
                half.target.multiplexer.wake()  # it may have got a turn in the send queue
                continue
            self._halves.add(half)
            if self._step(half):
                self._note(half, [])
            elif half.done:
                self._halves.discard(half)
                if half.lost and self._outlive:
                    self._end_lost(half)
                elif half.lost:
                    self._lost.append(half)
                elif half.back is not None and half.back.done and not half.back.lost:
                    for end in (half.source, half.target):
                        end.stream.close()
                    half.part()

    def _step(self, half: RelayedHalf) -> bool:
        """Move one frame or one end; return whether there may be more to do at once."""
        multiplexer, record = half.target.multiplexer, half.target.record
        with multiplexer.mutex:
            failure, lost = record.write_failure, multiplexer.transport.error is not None
            credit, gone = multiplexer.credit_locked(record), half.target.gone_locked()
        if failure is not None:
            self._stop_source(half, failure())
        elif gone is not None:
            self._stop_source(half, gone)
        elif lost:
            half.done = half.lost = True
        else:
            if not half.pending:
                self._take(half, credit)
            if half.pending:
                return self._push(half)
        return False

    def _take(self, half: RelayedHalf, credit: int) -> None:
        """Take as much from the source as the target may be sent now, or the source's end."""
        multiplexer, record = half.source.multiplexer, half.source.record
        owes = False
        with multiplexer.mutex:
            buffer, failure, ended = record.buffer, record.read_failure, record.ended
            gone, lost = half.source.gone_locked(), multiplexer.transport.error is not None
            waiting = buffer.size
            if waiting and credit:
                limit = min(credit, multiplexer.config.max_frame_size)
                half.pending = memoryview(buffer.take(limit))
                owes = multiplexer.consumed_locked(record, waiting - buffer.size)
        if owes:
            multiplexer.flush()
        if waiting:
            return
        half.done = failure is not None or ended or gone is not None or lost
        if failure is not None:
            self._abort_target(half, failure())
        elif ended:
            half.target.stream.close_write()
        elif gone is not None:
            self._abort_target(half, gone)
        else:
            half.lost = lost

    def _push(self, half: RelayedHalf) -> bool:
        """Queue the bytes taken; return whether all were queued."""
        multiplexer, record = half.target.multiplexer, half.target.record
        with multiplexer.mutex:
            while (
                half.pending
                and record.write_failure is None
                and multiplexer.transport.error is None
            ):
                size, ticket = multiplexer.send_locked(record, half.pending, waited=half.asked)
                if ticket is None:
                    half.asked = True
                    multiplexer.queue.ask_room_locked(half.signal)
                    break
                self._moved = True
                half.asked = False
                half.pending = half.pending[size:]
        multiplexer.flush()
        return not half.pending

    # Ends that are errors

    def _end_lost(self, half: RelayedHalf) -> None:
        """End a half at the connection that is left, if one is."""
        source, target = half.source.multiplexer.transport, half.target.multiplexer.transport
        if target.error is None:
            self._abort_target(half, source.error or ConnectionAbortedError())
        elif source.error is None:
            self._stop_source(half, target.error)
        if half.back is not None and half.back.done:
            half.part()

    def _stop_source(self, half: RelayedHalf, error: BaseException) -> None:
        """Notify the source's writer that the target's reader has stopped reading."""
        half.done = True
        half.source.error = error
        code = carried_code(
            error, half.target.multiplexer.protocol, half.source.multiplexer.protocol
        )
        if code is None:
            half.source.stream.close_read()
            return
        multiplexer, record = half.source.multiplexer, half.source.record

        def reset(wakes: list[Parker]) -> None:
            multiplexer.table.drop_unread(record)
            multiplexer.protocol.reset_read(record.id, code)
            multiplexer.settle_locked(wakes)

        multiplexer.change(reset)

    def _abort_target(self, half: RelayedHalf, error: BaseException) -> None:
        """Notify the target's reader that the source's writer has aborted."""
        half.target.error = error
        multiplexer, record = half.target.multiplexer, half.target.record
        code = carried_code(error, half.source.multiplexer.protocol, multiplexer.protocol)

        def reset(wakes: list[Parker]) -> None:
            multiplexer.queue.interrupt_locked()
            multiplexer.protocol.reset_write(record.id, code or 0)
            multiplexer.settle_locked(wakes)

        multiplexer.change(reset)


def carried_code(error: BaseException, source: MuxProtocol, target: MuxProtocol) -> int | None:
    """Return the code for the end of a half on another wire; ``None`` if there was no error.

    An application code that the other wire reserves, or cannot carry, becomes 0.
    """
    cause = error if isinstance(error, StreamRefused | StreamReset) else error.__cause__
    if isinstance(cause, StreamRefused):
        return target.refused_code
    if not isinstance(cause, StreamReset):
        return None
    of_application = cause.code >= source.first_application_code
    carried = target.first_application_code <= cause.code <= target.last_code
    return cause.code if of_application and carried else 0


REASON = "the other side of the bridge has ended"

_log = logger("wsmux")


def bridge(one: Connection, other: Connection) -> None:
    """Relay the streams that either peer opens to the other one, until a connection has ended.

    Blocks. Each stream that arrives on one connection is opened on the other; bytes, ends and
    resets are relayed both ways as they arrive, under the flow control of both wires: a peer that
    does not read blocks the writer of that stream at the other end, and nothing else. A stream that
    cannot be opened there within its ``Config.open_timeout`` is refused.

    When one connection has ended, the bytes it had received are delivered (``Config.close_timeout``
    applies to progress), and the other one is closed: with the same code after a clean end,
    otherwise with 1014 (bad gateway). Nothing else may accept or use streams of the two connections
    meanwhile.

    Features that a wire lacks are lost on it: on ``bymux`` a reset looks like a clean end,
    ``yamux`` resets both halves at once, and application codes below 64 become 0 on ``wsmux``. Only
    peers that can distinguish a refusal from a reset (``wsmux``) see it as such.

    Raises:
        TypeError: one of them is not a connection.
    """
    for each in (one, other):
        if not isinstance(each, Connection):
            kind = type(each).__name__
            raise TypeError(
                f"bridge() joins two connections, as connect() returns them, not {kind}"
            )
    relay = StreamRelay(one, other)
    acceptors = [
        daemon_thread(
            target=_accept, args=(incoming, outgoing, relay), name=f"{incoming.name}-bridge"
        )
        for incoming, outgoing in ((one, other), (other, one))
    ]
    code: int = CloseCode.BAD_GATEWAY
    try:
        for thread in acceptors:
            start_thread(thread)
        ended = relay.run(one, other)
        code = _code_behind(ended)
    finally:
        closing = Deadline(one.config.close_timeout)
        for connection in (one, other):
            connection.close(closing.remaining(), code=code, reason=REASON)
        for thread in acceptors:
            if thread.ident is not None:
                thread.join()
        relay.close()


def _code_behind(ended: Connection) -> int:
    error = ended.error
    return error.code if isinstance(error, ConnectionClosedOK) else CloseCode.BAD_GATEWAY


def _accept(incoming: Connection, outgoing: Connection, relay: StreamRelay) -> None:
    """Open the streams of one connection's peer on the other connection."""
    try:
        for stream in incoming:
            try:
                further = outgoing.open_stream(outgoing.config.open_timeout)
            except (StreamRefused, LocalProtocolError, TimeoutError) as error:
                _log.info("stream %d of %s cannot be relayed: %s", stream.id, incoming.name, error)
                End(stream).refuse(stream._multiplexer.protocol.refused_code)
            else:
                relay.add(stream, further)
    except (ConnectionClosed, ForkedError) as error:
        _log.debug("the bridge from %s has ended: %s", incoming.name, error)
    finally:
        relay.added_all(incoming)
