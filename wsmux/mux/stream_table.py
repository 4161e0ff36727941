"""Track the streams of one connection and apply the events of the protocol machine to them.

No threads, sockets or clocks: the connection calls it under its mutex, and afterwards wakes the
threads collected in ``wakes``.

``HalfOpenReaper`` times out half-open streams and incomplete frames. Progress on a stream resets
``StreamRecord.quiet``; the reaper counts it up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, ClassVar

from ..config import SMALLEST_WINDOW, Config
from ..exceptions import CloseCode, FrameError, Side, StreamRefused, StreamReset, StreamWriteClosed
from ..protocols import events as ev
from ..protocols.abuse_limits import LOOKS, StallTimer
from ..protocols.base import CODE_UNKNOWN, InitialStream, MuxProtocol
from ..protocols.events import DataReceived
from ..runtime.memory import process_memory
from ..runtime.parking import Parker, WaitQueue
from .error_codes import ErrorCodeMap
from .ping import WirePings
from .stream_record import Failure, StreamRecord, read_closed, write_closed

__all__ = ["PRESSURE", "HalfOpenReaper", "StreamTable"]


class HalfOpenReaper:
    """Check the streams of one connection whenever ``due``; ``None`` is never.

    Attributes:
        due: when to call ``run`` again.
    """

    def __init__(
        self, config: Config, protocol: MuxProtocol, records: dict[int, StreamRecord]
    ) -> None:
        self.due: float | None = None
        self._protocol = protocol
        self._records = records
        self._half_open = config.half_open_timeout
        self._frame_time = config.message_timeout
        self._frame = StallTimer(config.message_timeout)
        periods = [] if self._half_open is None else [self._half_open / LOOKS]
        if not protocol.keeps_boundaries and self._frame_time is not None:
            periods.append(self._frame_time / LOOKS)
        self._period = min(periods, default=None)
        self._streams_due = 0.0

    def begin(self, now: float) -> None:
        """Start the timer, since there is a stream."""
        if self.due is None and self._period is not None:
            self.due = now + self._period
            self._streams_due = now + (self._half_open or 0.0) / LOOKS

    def run(self, now: float, wakes: list[Parker]) -> Iterator[StreamRecord]:
        """Yield the streams to reset, after notifying their callers.

        Raises:
            FrameError: the connection must end.
        """
        if self.due is None or self._period is None or now < self.due:
            return
        incomplete = self._protocol.incomplete()
        self.due = now + self._period if self._records or incomplete is not None else None
        if self._frame.look(incomplete, now):
            text = f"a frame stayed incomplete for Config.message_timeout = {self._frame_time} s"
            raise FrameError(text, CloseCode.POLICY_VIOLATION)
        if self._half_open is None or now < self._streams_due:
            return
        self._streams_due = now + self._half_open / LOOKS
        for record in list(self._records.values()):
            if not self._peer_is_to_move(record):
                record.quiet = 0
                continue
            record.quiet += 1
            if record.quiet == LOOKS + 1:
                self._tell(record, wakes)
                yield record
            elif record.quiet > 2 * LOOKS + 1:
                text = f"stream {record.number} was reset, and the peer does not end its half"
                raise FrameError(text, CloseCode.POLICY_VIOLATION)

    def _peer_is_to_move(self, record: StreamRecord) -> bool:
        """Return whether a stream is half open and it is the peer's turn."""
        if record.buffer.size:
            return False
        if record.write_failure is not None:
            return True  # the peer owes bytes or the end
        read = record.ended or record.read_failure is not None
        return read and record.writing and not self._protocol.credit(record.id)

    def _tell(self, record: StreamRecord, wakes: list[Parker]) -> None:
        detail = f"half open and still for Config.half_open_timeout = {self._half_open} s"
        failure = partial(StreamReset, record.number, self._protocol.refused_code, "local", detail)
        record.fail_read(failure, wakes)
        record.fail_write(failure, wakes)


# For a stream that exceeded its credit, or whose unread bytes exceed the memory limit (native
# protocol).
CODE_OVERFLOW = 2

# The fraction of a memory limit from which on new streams get the smallest window.
PRESSURE = 0.75


class StreamTable:
    """Hold the stream records, the accept queue and the counters.

    Attributes:
        records: every stream in the protocol machine, by id.
        offered: streams waiting to be accepted, oldest first.
        acceptors, openers: threads waiting in ``accept_stream`` and ``open_stream``.
        unread: unread bytes of all streams.
        windows: bytes of the windows of all streams, and unread bytes of those that have ended.
        changed: streams were added or removed since the owner last handled its timers.
        write_failed: a writing half failed; its writer may be waiting for the socket, not here.
        pings: the pings of the wire.
        reaper: resets half-open streams.
        peer_refuses_from: the first id not processed by a peer that is going away.
    """

    def __init__(
        self,
        protocol: MuxProtocol,
        config: Config,
        reasons: ErrorCodeMap,
        pings: WirePings,
        accept_streams: bool,
        start_on_data: bool,
        now: float,
        admit_stream: Callable[[], bool] | None = None,
    ) -> None:
        self.records: dict[int, StreamRecord] = {}
        self.offered: deque[StreamRecord] = deque()
        self.acceptors = WaitQueue()
        self.openers = WaitQueue()
        self.pings = pings
        self.unread = self.windows = 0
        self.unaccepted = 0
        self.opened = self.accepted = self.refused = 0
        self.accept_streams = accept_streams
        self.changed = self.write_failed = False
        self.peer_refuses_from: int | None = None
        self.reaper = HalfOpenReaper(config, protocol, self.records)
        self.idle_since: float | None = now
        self._protocol = protocol
        self._config = config
        self._reasons = reasons
        self._start_on_data = start_on_data
        self._admit_stream = admit_stream
        self._keeps_places = config.max_window_bytes is not None  # of ended streams, until read
        self._peer_streams = 0
        self._ended_unread: dict[int, StreamRecord] = {}  # ended on the wire, with unread bytes
        self._now = now
        self._wakes: list[Parker] = []

    def adopt(self, streams: Iterable[InitialStream]) -> list[StreamRecord]:
        """Add streams that exist from the start."""
        records = []
        for stream in streams:
            record = StreamRecord(stream.stream_id, stream.peer_opened)
            record.accepted = True
            record.ended = stream.read_ended
            if stream.read_closed:
                record.read_failure = read_closed
            if stream.write_closed:
                record.write_failure = write_closed
            elif stream.write_stopped:
                record.write_failure = partial(StreamWriteClosed, record.number)
            self.records[record.id] = record
            self._peer_streams += stream.peer_opened
            self.idle_since = None
            self.reaper.begin(self._now)
            records.append(record)
        return records

    # Calls of the application

    def open(self, now: float) -> StreamRecord:
        """Open a stream; the protocol must permit it."""
        self.reaper.begin(now)
        window = self._window()
        record = StreamRecord(self._protocol.open_stream(window), peer_opened=False, window=window)
        self.records[record.id] = record
        self.windows += window
        self.opened += 1
        self.changed = True
        self.idle_since = None
        return record

    def _window(self) -> int:
        """Return the window of a new stream: what the wire makes of the configured one."""
        config, announced = self._config, self._protocol.announced_window
        window = announced(config.receive_window)
        short = (
            self.unread >= config.max_connection_buffer * PRESSURE
            or process_memory.total >= config.max_process_buffer * PRESSURE
            or not self.may_widen(window)
        )
        return announced(min(config.receive_window, SMALLEST_WINDOW)) if short else window

    def may_widen(self, count: int) -> bool:
        """Return whether ``Config.max_window_bytes`` has room for so many bytes of a window."""
        limit = self._config.max_window_bytes
        return limit is None or self.windows + count <= limit

    def widen(self, record: StreamRecord, size: int) -> None:
        """Note that the window of a stream has grown to a size."""
        self.windows += size - record.window
        record.set_window(size)

    def take_offered(self) -> StreamRecord:
        """Accept the oldest offered stream."""
        record = self.offered.popleft()
        record.accepted = True
        self.unaccepted -= 1
        self.accepted += 1
        self.changed = True
        return record

    def drop_unread(self, record: StreamRecord) -> None:
        """Drop the unread bytes of a stream."""
        count = record.buffer.clear()
        self.unread -= count
        if record.finished:
            self._read_behind_end(record, count)

    def consumed(self, record: StreamRecord, count: int) -> None:
        """Account for bytes that were read."""
        self.unread -= count
        if record.finished:
            self._read_behind_end(record, count)
        self._protocol.consumed(record.id, count)

    def _read_behind_end(self, record: StreamRecord, count: int) -> None:
        self.windows -= count
        if not record.buffer.size and self._ended_unread.pop(record.id, None) is not None:
            self._peer_streams -= record.peer_opened and self._keeps_places

    def reset(self, record: StreamRecord, code: int) -> None:
        """Reset both halves on the wire, and drop unread bytes."""
        self.drop_unread(record)
        self._protocol.reset_write(record.id, code)
        self._protocol.reset_read(record.id, code)

    def abandon(self, record: StreamRecord, wakes: list[Parker]) -> None:
        """End a dropped stream: with an error for the peer, unless its end was sent already."""
        record.closed = True
        self.drop_unread(record)
        failure = partial(
            StreamReset, record.number, CODE_UNKNOWN, "local", "dropped, or interrupted in a read"
        )
        # An interrupt may end this anywhere; the I/O thread then repeats all of it.
        if record.write_failure is None:
            self._protocol.reset_write(record.id, CODE_UNKNOWN)
        self._protocol.reset_read(record.id, CODE_UNKNOWN)
        record.fail_read(failure, wakes)
        self._fail_write(record, failure, wakes)

    def sweep_up(self, now: float, wakes: list[Parker]) -> None:
        """Reset half-open streams.

        Raises:
            FrameError: the peer leaves a frame incomplete, or a stream that was reset.
        """
        for record in self.reaper.run(now, wakes):
            self.write_failed = True
            self.reset(record, self._protocol.refused_code)

    # Events of the protocol

    def apply(self, now: float, wakes: list[Parker]) -> None:
        """Apply all events that the protocol has reported since the last call."""
        self._now, self._wakes = now, wakes
        events = self._protocol.events()
        while events:
            further = False
            for event in events:
                if type(event) is DataReceived:
                    self._data_received(event)
                else:
                    self._REACTIONS[type(event)](self, event)
                    further = True
            events = self._protocol.events() if further else []  # a refusal causes more

    def _data_received(self, event: DataReceived) -> None:
        stream_id, data = event
        record = self.records[stream_id]
        record.buffer.append(data)
        record.quiet, record.heard = 0, self._now
        size = len(data)
        record.received += size
        self.unread += size
        if record.reading and record.buffer.size >= record.enough:
            record.reader.notify(self._wakes)
        if not record.accepted:
            self._offer(record)

    def _credit_granted(self, event: ev.CreditGranted) -> None:
        record = self.records.get(event.stream_id)
        if record is not None:  # the message that opened it was just refused
            record.writer.notify(self._wakes)

    def _stream_opened(self, event: ev.StreamOpened) -> None:
        stream_id = event.stream_id
        self.changed = True
        if (
            not self.accept_streams
            or self.unaccepted >= self._config.max_unaccepted
            or self._peer_streams >= self._config.max_streams
            or not (self._admit_stream is None or self._admit_stream())
        ):
            self.refused += 1
            self._protocol.refuse(stream_id, self._protocol.refused_code)
            return
        window = self._window()
        self._protocol.accept(stream_id, window)
        record = self.records[stream_id] = StreamRecord(stream_id, peer_opened=True, window=window)
        self._peer_streams += 1
        self.windows += window
        self.unaccepted += 1
        self.idle_since = None
        self.reaper.begin(self._now)
        if not self._start_on_data:
            self._offer(record)

    def _offer(self, record: StreamRecord) -> None:
        if not record.accepted and record.offered_at is None:
            record.offered_at = self._now
            self.changed = True
            self.offered.append(record)
            self.acceptors.notify(self._wakes, 1)

    def _stream_ended(self, event: ev.StreamEnded) -> None:
        record = self.records[event.stream_id]
        record.ended = True
        record.reader.notify(self._wakes)
        self._offer(record)

    def _stream_aborted(self, event: ev.StreamAborted) -> None:
        record = self.records[event.stream_id]
        side: Side = "local" if event.local else "remote"
        self.drop_unread(record)
        record.fail_read(
            partial(self._reasons.error, record.number, event.code, side, event.detail), self._wakes
        )
        if not record.accepted:
            self._withdraw(record)

    def _write_stopped(self, event: ev.WriteStopped) -> None:
        record = self.records[event.stream_id]
        self._fail_write(
            record,
            partial(StreamWriteClosed, record.number)
            if event.code is None
            else partial(self._reasons.error, record.number, event.code, "remote", ""),
            self._wakes,
        )

    def _stream_rejected(self, event: ev.StreamRejected) -> None:
        record = self.records[event.stream_id]
        failure = partial(StreamRefused, record.number, event.code, event.detail)
        self.drop_unread(record)
        record.fail_read(failure, self._wakes)
        self._fail_write(record, failure, self._wakes)

    def _stream_finished(self, event: ev.StreamFinished) -> None:
        self.changed = True
        self.pings.ended(event.stream_id, self._wakes)
        record = self.records.pop(event.stream_id, None)
        if record is not None:  # a refused stream has none
            record.finished = True
            self.windows += record.buffer.size - record.window
            if record.buffer.size:
                self._ended_unread[record.id] = record
            if not (record.buffer.size and self._keeps_places):
                self._peer_streams -= record.peer_opened
        if not self.records:
            self.idle_since = self._now

    def _open_permitted(self, event: ev.OpenPermitted) -> None:
        # One at a time: each woken thread opens one stream, and the next answer wakes the next.
        self.openers.notify(self._wakes)

    def _go_away_received(self, event: ev.GoAwayReceived) -> None:
        self.peer_refuses_from = event.first_refused
        self.openers.notify(self._wakes)

    def _pong_received(self, event: ev.PongReceived) -> None:
        self.pings.came_back(event.stream_id, event.value, self._now, self._wakes)

    def _pongs_ended(self, event: ev.PongsEnded) -> None:
        self.pings.ended(event.stream_id, self._wakes)

    # Functions rather than bound methods in each table, which would make a reference cycle: ended
    # tables are to be freed at once, without the garbage collector.
    _REACTIONS: ClassVar[dict[type, Callable[[StreamTable, Any], None]]] = {
        ev.CreditGranted: _credit_granted,
        ev.StreamOpened: _stream_opened,
        ev.StreamEnded: _stream_ended,
        ev.StreamAborted: _stream_aborted,
        ev.WriteStopped: _write_stopped,
        ev.StreamRejected: _stream_rejected,
        ev.StreamFinished: _stream_finished,
        ev.OpenPermitted: _open_permitted,
        ev.GoAwayReceived: _go_away_received,
        ev.PongReceived: _pong_received,
        ev.PongsEnded: _pongs_ended,
    }

    def _fail_write(self, record: StreamRecord, failure: Failure, wakes: list[Parker]) -> None:
        record.fail_write(failure, wakes)
        self.write_failed = True

    def _withdraw(self, record: StreamRecord) -> None:
        """Take back a stream that nobody has accepted, and refuse what is left of it."""
        self.unaccepted -= 1
        self.refused += 1
        if record.offered_at is not None:
            self.offered.remove(record)
        self.drop_unread(record)
        record.accepted = True
        self._protocol.refuse(record.id, self._protocol.refused_code)

    # Time and memory

    def refuse_late(self, now: float) -> None:
        """Refuse streams that have waited too long to be accepted."""
        limit = self._config.open_timeout
        while limit is not None and self.offered and _offered_at(self.offered[0]) + limit <= now:
            self._withdraw(self.offered[0])

    def next_timer(self) -> float | None:
        """Return the earliest of the open timeout, the idle timeout and the protocol's timers."""
        due, other = self._protocol.next_timer(), self.reaper.due
        if due is None or (other is not None and other < due):
            due = other
        if self.offered and self._config.open_timeout is not None:
            other = _offered_at(self.offered[0]) + self._config.open_timeout
            due = other if due is None or other < due else due
        if self.idle_since is not None and self._config.idle_timeout is not None:
            other = self.idle_since + self._config.idle_timeout
            due = other if due is None or other < due else due
        return due

    def unread_limit(self) -> int:
        """Return the limit of unread bytes of the connection."""
        streams = len(self.records) + len(self._ended_unread)
        return max(self._config.max_connection_buffer, streams * self._protocol.min_window)

    def largest(self) -> StreamRecord | None:
        """Return the stream with the most unread bytes, including ended ones."""
        records = chain(self.records.values(), self._ended_unread.values())
        return max(records, key=_unread, default=None)

    def shed(self, record: StreamRecord, detail: str, wakes: list[Parker]) -> None:
        """Reset a stream that holds too many unread bytes, naming the limit."""
        failure = partial(self._reasons.error, record.number, CODE_OVERFLOW, None, detail)
        record.fail_read(failure, wakes)
        self._fail_write(record, failure, wakes)
        self.reset(record, CODE_OVERFLOW)

    def notify_forced(self, wakes: list[Parker]) -> None:
        """Collect all waiting threads, even those collected before."""
        for record in self.records.values():
            record.reader.notify_forced(wakes)
            record.writer.notify_forced(wakes)
        self.acceptors.notify_forced(wakes)
        self.openers.notify_forced(wakes)
        self.pings.askers.notify_forced(wakes)


def _offered_at(record: StreamRecord) -> float:
    assert record.offered_at is not None
    return record.offered_at


def _unread(record: StreamRecord) -> int:
    return record.buffer.size
