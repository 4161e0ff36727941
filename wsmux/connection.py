"""Multiplex streams over one channel.

Threads and locks of a connection, in one place:

- One mutex, the channel's, guards the protocol machine, the stream table, every ``Entry`` and the
  send queue. Methods named ``_locked`` want it held. No I/O, no user code and no wake-up happens
  under it: they are collected and done after its release.
- One I/O thread runs ``_run``: it takes what the channel received, feeds the machine, applies the
  events, and keeps the timers. It holds the mutex once per slice of a batch.
- A caller that must wait is parked on its entry (one reader, one writer), in the accept list, in
  the list of openers, or for room in the send queue. Whatever may let it go on collects it: the
  event it waits for, the end of its half, the end of the connection, its own time.
- The first cause that ends the connection is in ``channel.error``; then every waiter is collected
  and finds it there. What was received before stays readable.
- Dropped streams (``Stream.__del__``) only append to ``_abandoned``; the I/O thread resets them.
"""

from __future__ import annotations

import logging
import threading
import time
from _thread import LockType
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Literal, Self

from .channel import Channel, protocol_failure
from .config import Config
from .deadline import Deadline
from .exceptions import (
    ConnectionClosedError,
    ConnectionClosedOK,
    ForkedError,
    FrameError,
    RemoteProtocolError,
    StreamRefused,
    closed_error,
)
from .memory import ProcessMemory
from .protocols.base import MuxProtocol, Role
from .protocols.carrier import Kind, Received
from .reasons import CodeToReason, Reasons, ReasonToCode
from .sendqueue import SendQueue
from .snapshots import ConnectionStats, Request
from .stream import Entry, Failure, Stream
from .streamtable import StreamTable
from .waiter import WaitList, wake

__all__ = ["Connection", "StartOn"]

StartOn = Literal["open", "data"]

# Messages handled under one hold of the mutex, so that callers get their turn in a flood of them.
SLICE = 64

# From this share of a memory limit on, new streams get the smallest window.
PRESSURE = 0.75

# Unread bytes that may change before the process's sum is told: a lock for each message costs.
REPORT_STEP = 16 * 1024

_log = logging.getLogger("wsmux")
_memory: ProcessMemory[Connection] = ProcessMemory()


class Connection:
    """Carry many streams over one WebSocket or socket; made by ``connect`` and ``serve``.

    Every method may be called from any thread. Leaving a ``with`` block closes the connection.

    Attributes:
        config: the limits.
        request: what the client asked for, on a server; ``None`` elsewhere.
    """

    def __init__(
        self,
        channel: Channel,
        protocol: MuxProtocol,
        *,
        accept_streams: bool = True,
        start_on: StartOn = "open",
        code_to_reason: CodeToReason | None = None,
        reason_to_code: ReasonToCode | None = None,
        request: Request | None = None,
    ) -> None:
        self.config: Config = channel.config
        self.request = request
        self._channel = channel
        self._protocol = protocol
        self._reasons = Reasons(protocol.first_application_code, code_to_reason, reason_to_code)
        self._table = StreamTable(
            protocol,
            channel.config,
            self._reasons,
            accept_streams,
            start_on == "data",
            time.monotonic(),
        )
        self._quiet = WaitList()  # waiting until streams have ended, or closes are on the wire
        self._abandoned: deque[Entry] = deque()
        self._reported = 0  # unread bytes last reported to the process's sum
        self._deaf = False  # the end of the connection was told to everybody
        channel.owner_timer = self._table.next_timer()
        self._thread = threading.Thread(target=self._run, name=f"{channel.name}-io", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system has no thread to give
            channel.discard()
            raise

    def __repr__(self) -> str:
        error = self._channel.error
        state = "open" if error is None else f"ended: {error}"
        return f"<Connection {self.name} {self.protocol} {state} streams={self._streams()}>"

    def _streams(self) -> int:
        return len(self._table.entries)

    @property
    def name(self) -> str:
        """A name for logs, unique in the process."""
        return self._channel.name

    @property
    def role(self) -> Role:
        """Which side of the connection this is."""
        return self._channel.role

    @property
    def protocol(self) -> str:
        """The wire spoken: ``"wsmux"`` or ``"js-ws"``."""
        return self._protocol.name

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, for whatever cause."""
        return self._channel.error is not None

    # Opening and accepting

    def open_stream(self, timeout: float | None = None) -> Stream:
        """Open a stream and return it, before the peer has answered.

        Blocks only while ``Config.max_pending_opens`` opened streams are unanswered.

        Raises:
            TimeoutError: they stayed unanswered for ``timeout`` seconds.
            StreamRefused: the peer is going away.
            ConnectionClosed: the connection has ended.
        """
        deadline = Deadline(timeout)
        with self.mutex:
            while True:
                self.check_locked()
                if self._table.peer_refuses_from is not None:
                    raise StreamRefused(
                        self._table.peer_refuses_from, 0, "the peer takes no further streams"
                    )
                if self._protocol.may_open():
                    break
                if deadline.expired():
                    raise TimeoutError(f"{self.name} got no room for a new stream in time")
                self._table.openers.wait(self.mutex, deadline)
            entry = self._table.open()
            self._queue_locked()
        self.flush()
        return Stream(self, entry)

    def accept_stream(self, timeout: float | None = None) -> Stream:
        """Wait for a stream that the peer opens, and return it.

        With ``start_on="data"`` a stream counts only once it has bytes or has ended.

        Raises:
            TimeoutError: none came in ``timeout`` seconds.
            ConnectionClosed: the connection has ended; ``ConnectionClosedOK`` at a clean close.
        """
        deadline = Deadline(timeout)
        with self.mutex:
            while not self._table.offered:
                self.check_locked()
                if deadline.expired():
                    raise TimeoutError(f"no stream was opened on {self.name} in time")
                self._table.acceptors.wait(self.mutex, deadline)
            entry = self._table.take_offered()
        return Stream(self, entry)

    def __iter__(self) -> Iterator[Stream]:
        """Accept streams until the connection closes cleanly; any other end raises."""
        while True:
            try:
                yield self.accept_stream()
            except ConnectionClosedOK:
                return

    # The connection as a whole

    def ping(self, timeout: float | None = None) -> float:
        """Return the seconds that a ping and its pong take.

        Raises:
            TimeoutError: no pong in time; the connection goes on.
            ConnectionClosed: the connection has ended.
        """
        return self._channel.ping(Deadline(timeout))

    def go_away(self, code: int = 0) -> None:
        """Take no further streams from the peer; running ones go on. Never blocks.

        The peer's ``open_stream`` raises ``StreamRefused`` from then on, and streams this side has
        not seen are refused there, so that it knows what is safe to retry. ``js-ws`` has no word
        for it: there, each further stream is refused when it comes.
        """
        with self.mutex:
            self.check_locked()
            self._table.accept_streams = False
            self._protocol.go_away(code)
            self._queue_locked()
        self.flush()

    def close(self, timeout: float | None = None, *, code: int = 1000, reason: str = "") -> None:
        """Send what was written, close the WebSocket and wait for the peer to do so.

        Blocks for at most ``timeout`` seconds, by default ``Config.close_timeout``; then the
        socket is cut. Blocked calls on the connection and its streams, and later ones, raise
        ``ConnectionClosedOK`` (with another code ``ConnectionClosedError``). Closing twice is fine.
        """
        deadline = Deadline(self.config.close_timeout if timeout is None else timeout)
        with self.mutex:
            while self._protocol.pending_closes() and self._channel.error is None:
                if deadline.expired():
                    break
                self._quiet.wait(self.mutex, deadline)
        self._channel.close(code, reason, deadline)
        self._wake_everybody()
        if threading.current_thread() is not self._thread:
            self._thread.join(deadline.remaining())

    def begin_close(self, *, code: int = 1000, reason: str = "") -> None:
        """Start what ``close`` does and return at once; ``close`` then waits for the rest."""
        with self.mutex:
            self._channel.close_locked(code, reason)
        self.flush()
        self._wake_everybody()

    def wait_drained(self, timeout: float | None = None) -> bool:
        """Wait until no stream is open, or the connection has ended; tell whether that came."""
        deadline = Deadline(timeout)
        with self.mutex:
            while self._table.entries and self._channel.error is None:
                if deadline.expired():
                    return False
                self._quiet.wait(self.mutex, deadline)
        return True

    def abort(self) -> None:
        """Cut the connection at once, without a closing handshake; queued bytes are lost."""
        self._channel.abort()
        self._wake_everybody()

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until the connection has ended and its socket is closed; tell whether it has."""
        return self._channel.wait_finished(timeout)

    def stats(self) -> ConnectionStats:
        """Return a snapshot, taken at one moment."""
        with self.mutex:
            table = self._table
            entries = table.entries.values()
            return ConnectionStats(
                streams=len(entries),
                unaccepted=table.unaccepted,
                streams_opened=table.opened,
                streams_accepted=table.accepted,
                streams_refused=table.refused,
                waiting_readers=sum(entry.reader.occupied() for entry in entries),
                waiting_writers=sum(entry.writer.occupied() for entry in entries),
                waiting_for_room=self.queue.waiting_locked(),
                unread_bytes=table.unread,
                queued_bytes=self.queue.queued_bytes_locked(),
                bytes_received=self._channel.bytes_received,
                bytes_sent=self.queue.bytes_sent,
                rtt=self._channel.keep_alive.rtt,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # For streams

    @property
    def mutex(self) -> threading.Lock:
        """The one lock; a fork replaces it."""
        return self._channel.mutex

    @property
    def queue(self) -> SendQueue:
        """The send queue."""
        return self._channel.queue

    def flush(self) -> None:
        """Send what is queued, without waiting."""
        self._channel.flush()

    def flush_frame(self, entry: Entry, ticket: int, deadline: Deadline) -> None:
        """Send what is queued; wait for the socket until the writer's frame is out.

        The wait ends when the stream's writing half or the connection does; then the I/O thread
        sends the rest of the frame, if it still can be sent.
        """
        channel = self._channel
        channel.flush(
            ticket, deadline, lambda: entry.write_failure is not None or channel.error is not None
        )

    def check_locked(self) -> None:
        """Raise what ended the connection, if it has ended."""
        self._channel.check_locked()

    def check_cut(self) -> None:
        """Raise what cut the connection, so that frames in its queue are known to be void."""
        if self._channel.cut:
            with self.mutex:
                self.check_locked()

    def wake_locked(self) -> None:
        """Make the I/O thread look at its timers and queues."""
        self._channel.wake_locked()

    def code_for(self, reason: int | BaseException) -> int:
        """Return the error code for what ``reset`` was given."""
        return self._reasons.code(reason)

    def credit_locked(self, entry: Entry) -> int:
        """Return how many bytes the stream may send now."""
        return self._protocol.credit(entry.id)

    def send_locked(self, entry: Entry, data: memoryview) -> tuple[int, int]:
        """Queue a frame of the start of ``data``; return its size and the ticket for ``flush``."""
        size = self._protocol.send_data(entry.id, data)
        return size, self.queue.add_data_locked(self._protocol.data_to_send())

    def consumed_locked(self, entry: Entry, count: int) -> bool:
        """Note bytes that were read; return whether credit is to be sent back."""
        if not count:
            return False
        self._table.consumed(entry, count)
        return self._queue_locked()

    def close_locked(self, entry: Entry, write: bool, read: bool, wakes: list[LockType]) -> None:
        """End halves on the wire; what is unread of the reading one is dropped."""
        if write:
            self.queue.interrupt_locked()
            self._protocol.close_write(entry.id, time.monotonic())
        if read:
            self._table.drop_unread(entry)
            self._protocol.close_read(entry.id)
        self._settle_locked(wakes)

    def reset_locked(
        self, entry: Entry, code: int, failure: Failure, wakes: list[LockType]
    ) -> None:
        """Abort both halves."""
        entry.fail_read(failure, wakes, own=True)
        entry.fail_write(failure, wakes, own=True)
        self.queue.interrupt_locked()
        self._table.reset(entry, code)
        self._settle_locked(wakes)

    def abandon(self, entry: Entry) -> None:
        """Have the I/O thread reset a stream that was dropped; takes no lock but by trying."""
        self._abandoned.append(entry)
        mutex = self.mutex
        if mutex.acquire(blocking=False):  # else the I/O thread sees it at its next turn
            try:
                self._channel.wake_locked()
            finally:
                mutex.release()

    def _queue_locked(self, provoked: bool = False) -> bool:
        """Move what the protocol wants to send into the send queue; tell whether there was any."""
        control, data = self._protocol.control_to_send(), self._protocol.data_to_send()
        if control and not self.queue.add_control_locked(control, provoked=provoked):
            text = "the peer causes answers and does not read them"
            self._channel.fail_locked(closed_error(1008, text, "local"))
        if data:
            self.queue.add_data_locked(data)
        return bool(control or data)

    def _settle_locked(self, wakes: list[LockType]) -> None:
        """Apply what a call of this side did, and queue what it sends."""
        self._table.apply(time.monotonic(), wakes)
        if not self._table.entries:
            self._quiet.collect(wakes)
        self._queue_locked()
        if self._table.next_timer() != self._channel.owner_timer:
            self._table.changed = True  # messages may come together with the wake
            self._channel.wake_locked()

    def _wake_everybody(self) -> None:
        wakes: list[LockType] = []
        with self.mutex:
            self._collect_locked(wakes)
        wake(wakes)

    def _collect_locked(self, wakes: list[LockType]) -> None:
        self._table.collect_all(wakes)
        self._quiet.collect(wakes)
        self._channel.collect_locked(wakes)

    # The I/O thread

    def _run(self) -> None:
        batches = self._channel.batches()
        try:
            for messages in batches:
                self._handle(messages)
        except Exception:
            _log.exception("the I/O thread of %s failed; the connection ends", self.name)
            self._channel.abort(ConnectionClosedError(1011, "internal error", "local"))
        finally:
            batches.close()
            if not isinstance(self._channel.error, ForkedError):
                self._wake_everybody()
                _memory.forget(self)
                _log.debug("%s ended: %s", self.name, self._channel.error)

    def _handle(self, messages: list[Received]) -> None:
        wakes: list[LockType] = []
        table, now = self._table, time.monotonic()
        failure: RemoteProtocolError | None = None
        for start in range(0, len(messages) or 1, SLICE):
            with self.mutex:
                failure = self._feed_locked(messages[start : start + SLICE], now, wakes) or failure
                last = start + SLICE >= len(messages)
                if last and (table.changed or self._due(now, len(messages))):
                    self._keep_time_locked(now, wakes)
            if wakes:
                wake(wakes)
        if failure is not None:
            _log.info("%s: the peer broke the protocol: %s", self.name, failure)
        if not messages or abs(table.unread - self._reported) >= REPORT_STEP:
            self._limit_process_memory()

    def _due(self, now: float, messages: int) -> bool:
        """Tell whether there is more to do than what messages of running streams ask for."""
        timer = self._channel.owner_timer
        return (
            not messages
            or (timer is not None and now >= timer)
            or self._channel.error is not None
            or bool(self._abandoned or self._quiet)
            or self._table.unread > self.config.max_connection_buffer * PRESSURE
        )

    def _feed_locked(
        self, messages: list[Received], now: float, wakes: list[LockType]
    ) -> RemoteProtocolError | None:
        if self._deaf:
            return None
        table, failure = self._table, None
        table.short_of_memory = (
            table.unread >= self.config.max_connection_buffer * PRESSURE
            or _memory.total >= self.config.max_process_buffer * PRESSURE
        )
        try:
            for message in messages:
                if message.kind is not Kind.BINARY:
                    raise FrameError("text message; this protocol is binary", 1003)
                self._protocol.receive_data(message.data)
                table.apply(now, wakes)
        except RemoteProtocolError as error:
            failure = error
            table.apply(now, wakes)
            self._channel.fail_locked(protocol_failure(error))
        self._queue_locked(provoked=True)
        return failure

    def _keep_time_locked(self, now: float, wakes: list[LockType]) -> None:
        table = self._table
        table.changed = False
        while self._abandoned:
            entry = self._abandoned.popleft()
            table.abandon(entry)
        self._protocol.handle_timer(now)
        table.refuse_late(now)
        limit = self.config.max_connection_buffer
        while table.unread > limit:
            table.shed(f"unread bytes exceed Config.max_connection_buffer = {limit}", wakes)
        table.apply(now, wakes)
        self._queue_locked()
        if not (table.entries and self._protocol.pending_closes()):
            self._quiet.collect(wakes)
        if self._channel.error is None and self._idle(now):
            self._channel.close_locked(1000, "idle")
        self._channel.owner_timer = table.next_timer()
        if self._channel.error is not None:
            self._deaf = True  # whatever was received with the end has been handled
            self._collect_locked(wakes)

    def _idle(self, now: float) -> bool:
        limit, since = self.config.idle_timeout, self._table.idle_since
        return limit is not None and since is not None and now >= since + limit

    def _limit_process_memory(self) -> None:
        """Report what is unread; have the connection that holds most reset its largest stream."""
        limit = self.config.max_process_buffer
        self._reported = self._table.unread
        largest = _memory.report(self, self._reported, limit)
        while largest is self:
            wakes: list[LockType] = []
            with self.mutex:
                detail = f"unread bytes of the process exceed Config.max_process_buffer = {limit}"
                self._table.shed(detail, wakes)
                self._settle_locked(wakes)
            wake(wakes)
            self._reported = self._table.unread
            largest = _memory.report(self, self._reported, limit)
        if largest is not None:
            with largest.mutex:  # its own thread reports first, then acts
                largest.wake_locked()
