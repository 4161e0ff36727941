"""Drive one connection: the protocol machine, the stream table, the timers.

Threads and locks of a connection, in one place:

- One mutex, the transport's, guards the protocol machine, the stream table, every ``StreamRecord``
  and the send queue. Methods named ``_locked`` require it to be held. No I/O, user code or wake-up
  happens under it: these are collected and done after its release.
- One I/O thread executes ``step`` again and again: it takes received messages from the transport,
  feeds the protocol machine, applies its events, and handles the timers. It holds the mutex once
  per slice of a batch. It is a thread of the connection's own, or one that many share: see
  ``transport.shared_io``. What runs in it must not block.
  A thread that waits in a read may receive in its place; the transport sees to it that one of them
  does at a time. What is said below of the I/O thread holds for both.
- A blocked caller is parked in its stream record (one reader, one writer), in the accept queue, in
  the list of openers, or for room in the send queue. Whatever may unblock it collects it: the event
  it waits for, the end of its half, the end of the connection, its own timeout.
- The first cause that ends the connection is stored in ``transport.error``; then every waiter is
  collected and finds it there. Bytes received before remain readable.
- Dropped streams (``Stream.__del__``, ``stream.drop``) are only appended to ``_abandoned``; the I/O
  thread resets or closes them, or whoever closes the connection before.
- The window of a stream whose reader keeps up grows; this, too, is decided under the mutex.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable

from ..config import KIB
from ..exceptions import (
    CloseCode,
    ConnectionClosedError,
    ForkedError,
    FrameError,
    NoThreadError,
    RemoteProtocolError,
    closed_error,
    protocol_failure,
)
from ..protocols.base import MuxProtocol
from ..protocols.framing import Opcode, Received
from ..recording.attach import finish
from ..runtime import clock
from ..runtime.deadline import Deadline
from ..runtime.interrupts import is_interrupt
from ..runtime.logs import log_failure, logger
from ..runtime.memory import REPORT_STEP, Verdict, process_memory
from ..runtime.parking import OneShotEvent, Parker, WaitQueue, wake
from ..runtime.threads import daemon_thread, start_thread
from ..transport.fair_queue import FlowState
from ..transport.keepalive import Ping
from ..transport.message_transport import IDLE, MessageTransport
from ..transport.send_queue import SendQueue
from ..transport.shared_io import shared_io
from .error_codes import ErrorCodeMap
from .ping import WirePings
from .stream_record import Failure, StreamRecord, read_closed, write_closed
from .stream_table import PRESSURE, StreamTable

__all__ = ["Multiplexer", "grow_locked"]

# With a shorter round trip, in seconds, threads rather than the path limit throughput: beyond this
# window bulk gains nothing, and small messages wait longer.
NEAR = 0.001
NEAR_WINDOW = 1024 * KIB


def grow_locked(
    protocol: MuxProtocol, table: StreamTable, transport: MessageTransport, record: StreamRecord
) -> None:
    """Widen the window of a stream whose credit was just returned, if necessary.

    Under load the round-trip time is measured once a second, by pings without a waiting thread. The
    minimum counts: the other values include the time a ping was queued after the data that the
    windows admit. Without pings, as with Bymux over TCP, no window grows.
    """
    if not transport.pings:
        return
    alive, now = transport.keep_alive, clock.monotonic()
    rtt = alive.least
    if rtt is not None and rtt < NEAR and record.window >= NEAR_WINDOW:
        rtt = None
    size = protocol.grow(now, rtt if table.may_widen(record.window) else None)
    if size:
        table.widen(record, size)
        return
    ping = alive.measure(now)
    if ping is not None:
        transport.queue.add_control_locked([ping], Opcode.PING)


# Seconds after which answers that nobody waits for are sent by themselves. Streams that are used in
# turn need less, and a peer that drains, or limits how long an opening is unanswered, hardly more.
MAX_UNAWAITED_TIME = 0.02

# Messages handled per hold of the mutex, so that callers can take it during a flood of them.
SLICE = 64

_BINARY = Opcode.BINARY

_log = logger("wsmux")


class Multiplexer:
    """Implement a connection and its streams.

    Attributes:
        transport, protocol, table: the parts that it connects.
        initial: the records of streams that exist from the start.
        quiet: threads waiting until all streams have ended, or all closes are on the wire.
        io_ident: the ident of the I/O thread.
    """

    def __init__(
        self,
        transport: MessageTransport,
        protocol: MuxProtocol,
        reasons: ErrorCodeMap,
        *,
        accept_streams: bool,
        start_on_data: bool,
        admit_stream: Callable[[], bool] | None = None,
    ) -> None:
        self.config = transport.config
        self.transport, self.protocol = transport, protocol
        pings, now = WirePings(protocol, transport), clock.monotonic()
        self.table = StreamTable(
            protocol, self.config, reasons, pings, accept_streams, start_on_data, now, admit_stream
        )
        self._max_process = transport.config.max_process_buffer
        self._pressure = transport.config.max_connection_buffer * PRESSURE
        self.quiet = WaitQueue()
        self._reasons = reasons
        self._abandoned: deque[tuple[StreamRecord, bool]] = deque()
        self._notify_forced = False  # a thread may have been collected and not woken
        self._reported = 0  # bytes last reported to the process-wide sum
        self._failure: RemoteProtocolError | None = None  # to be logged
        self._input_closed = False  # all waiters were notified of the end
        self.initial: list[StreamRecord] = self._start()
        transport.owner_timer = self.table.next_timer()
        transport.handle = self._handle
        self._steps = transport.steps()
        self._ended = OneShotEvent()
        self._thread: threading.Thread | None = None
        try:
            self.io_ident = self._begin_steps()
        except NoThreadError:
            # The peer has been accepted, by a process that may be exiting: it learns that much.
            with self.mutex:
                transport.close_locked(CloseCode.GOING_AWAY, "no thread is left for the connection")
            self.flush()
            transport.discard()
            raise

    def _start(self) -> list[StreamRecord]:
        """Register the streams that exist from the start, and send any initial frames."""
        with self.mutex:
            records = self.table.adopt(self.protocol.initial)
            self.table.apply(clock.monotonic(), [])
            self.queue_locked()
        self.flush()
        return records

    # Any thread

    @property
    def mutex(self) -> threading.Lock:
        """The connection's only lock; replaced after a fork."""
        return self.transport.mutex

    @property
    def queue(self) -> SendQueue:
        """The send queue."""
        return self.transport.queue

    def flush(self) -> None:
        """Send what is queued, without blocking."""
        self.transport.flush()

    def check_locked(self) -> None:
        """Raise the error of the connection, if it has ended."""
        self.transport.check_locked()

    def check_forked_locked(self) -> None:
        """Raise ``ForkedError`` in a forked child, even if there are received bytes."""
        if self.transport.in_child:
            self.transport.check_locked()

    def check_cut(self) -> None:
        """Raise the error of a connection that was cut: frames in its queue are never sent."""
        if self.transport.cut:
            with self.mutex:
                self.check_locked()

    def wake(self) -> None:
        """Make the I/O thread check its timers and queues."""
        self.transport.wake()

    def interrupted(
        self,
        error: BaseException,
        changing: bool,
        record: StreamRecord | None = None,
        lost: StreamRecord | None = None,
    ) -> None:
        """Repair the state left by a call that a signal handler interrupted by raising ``error``.

        The I/O thread sends queued frames and wakes the threads that the call would have woken. An
        interrupted change of state cannot be repaired: the connection ends. Nor can the stream
        ``lost``, whose reader had taken bytes: it is reset. Ordinary errors leave no such state.
        """
        if lost is not None:
            self.abandon(lost)  # a second interrupt may end this call
        elif not is_interrupt(error):
            return
        wakes: list[Parker] = []
        with self.mutex:
            if changing:
                self.broken_locked()
            if lost is not None:
                self.table.abandon(lost, wakes)
            if record is not None:  # it may no longer be in the table
                record.reader.notify_forced(wakes)
                record.writer.notify_forced(wakes)
        wake(wakes)
        self._notify_forced = True
        self.transport.wake()

    def change(
        self, action: Callable[[list[Parker]], None], record: StreamRecord | None = None
    ) -> None:
        """Run ``action`` under the mutex, then wake collected threads and send queued frames."""
        wakes: list[Parker] = []
        changing = False
        try:
            with self.mutex:
                changing = True
                action(wakes)
                changing = False
            wake(wakes)
            self.flush()
        except BaseException as error:
            self.interrupted(error, changing, record)
            raise

    def broken_locked(self) -> None:
        """End the connection, because a signal handler interrupted a change of state."""
        text = "a call was interrupted in the middle of a change"
        self.transport.abort_locked(
            ConnectionClosedError(CloseCode.ABNORMAL_CLOSURE, text, "local")
        )

    def code_for(self, reason: int | BaseException) -> int:
        """Return the error code for the argument of ``reset``."""
        return self._reasons.code(reason)

    def credit_locked(self, record: StreamRecord) -> int:
        """Return how many bytes the stream may send now."""
        return self.protocol.credit(record.id)

    def send_locked(
        self, record: StreamRecord, data: memoryview, waited: bool
    ) -> tuple[int, int | None]:
        """Queue a frame from the start of ``data``; return its size and the ticket for ``flush``.

        There is no ticket if the queue is full or the peer has granted no credit.
        """
        protocol, queue, flow = self.protocol, self.transport.queue, record.flow
        if quantum := queue.quantum_locked(flow, len(data), waited):
            size = protocol.send_data(record.id, data if len(data) <= quantum else data[:quantum])
            if size or not data:
                record.quiet, record.sent = 0, record.sent + size
                if protocol.unawaited:
                    return size, self._queue_along_locked(flow)
                return size, queue.add_data_locked(protocol.data_to_send(), flow=flow)
        return 0, None

    def consumed_locked(self, record: StreamRecord, count: int) -> bool:
        """Account for bytes that were read; return whether credit must be sent."""
        if self.protocol.pings:  # it may measure the round trip
            self.protocol.now = clock.monotonic()
        self.table.consumed(record, count)
        if not self.protocol.has_output():
            return False
        if self.protocol.grows:
            grow_locked(self.protocol, self.table, self.transport, record)
        return self.queue_locked()

    def close_locked(
        self, record: StreamRecord, write: bool, read: bool, wakes: list[Parker]
    ) -> None:
        """Close halves; unread bytes of the reading half are dropped."""
        if write:
            record.fail_write(write_closed, wakes, own=True)
        if read:
            record.fail_read(read_closed, wakes, own=True)
        record.closed = record.closed or (write and read)
        if record.finished:
            if read:
                self.table.drop_unread(record)
            return
        self.protocol.now = clock.monotonic()  # the peer has some time to end its half
        if write:
            self.queue.interrupt_locked()
            self.protocol.close_write(record.id, self.protocol.now)
        if read:
            self.table.drop_unread(record)
            self.protocol.close_read(record.id)
        self._queue_end_locked(record)
        self.settle_locked(wakes)

    def reset_locked(
        self, record: StreamRecord, code: int, failure: Failure, wakes: list[Parker]
    ) -> None:
        """Reset both halves."""
        record.fail_read(failure, wakes, own=True)
        record.fail_write(failure, wakes, own=True)
        self.queue.interrupt_locked()
        self.table.reset(record, code)
        self._queue_end_locked(record)
        self.settle_locked(wakes)

    def ping(self, deadline: Deadline, record: StreamRecord | None = None) -> float:
        """Send a ping of the wire, or of one stream, and return the seconds until its pong.

        Raises:
            TimeoutError: no pong arrived in time.
            LocalProtocolError: the wire has no such ping.
            StreamError: the stream ended first.
            ConnectionClosed: the connection ended.
        """
        pings, start = self.table.pings, clock.monotonic()
        asked: list[Ping] = []

        def ask(_: list[Parker]) -> None:
            self.check_locked()
            asked.append(pings.ask(None if record is None else record.id, start))
            self.queue_locked()

        self.change(ask)
        with self.mutex:
            self.transport.wait_pong_locked(pings, asked[0], deadline)
        return clock.monotonic() - start

    def close(self, code: int, reason: str, deadline: Deadline | None) -> None:
        """Close as ``MessageTransport.close`` does; without a deadline, only begin."""
        changing = False
        try:
            if self._abandoned and self.transport.error is None:
                self.change(self._end_abandoned)
            with self.mutex:
                changing = True
                self.begin_close_locked(code, reason)
                changing = False
            self.flush()
            if deadline is not None:
                self.transport.close(code, reason, deadline)
        except BaseException as error:
            self.interrupted(error, changing and self.transport.error is None)
            raise

    def begin_close_locked(self, code: int, reason: str) -> None:
        """Queue the wire's close notice and a close frame together: the peer may answer at once."""
        if self.transport.error is None:
            self.protocol.hurry()
            self.protocol.close_notice(code)
            self.queue_locked()
        self.transport.close_locked(code, reason)

    def abandon(self, record: StreamRecord, whole: bool = False) -> None:
        """Let the I/O thread end a dropped stream; takes no lock.

        It is reset; one that was used to its end, ``whole``, only if there are unread bytes, and
        closed otherwise.
        """
        self._abandoned.append((record, whole))
        self.transport.wake()

    def _end_abandoned(self, wakes: list[Parker]) -> None:
        self._end_abandoned_locked(wakes)
        self.settle_locked(wakes)

    def _end_abandoned_locked(self, wakes: list[Parker]) -> None:
        while self._abandoned:
            record, whole = self._abandoned.popleft()
            if not whole or record.buffer.size:
                self.table.abandon(record, wakes)
                self._queue_end_locked(record)  # not along with the end of another
            elif not record.closed:
                self.close_locked(record, True, True, wakes)

    def queue_locked(self, solicited: bool = False) -> bool:
        """Move the protocol's output into the send queue; return whether there was any."""
        if not self.protocol.has_output():
            return False
        control, data = self.protocol.control_to_send(), self.protocol.data_to_send()
        if control and not self.queue.add_control_locked(control, solicited=solicited):
            text = "the peer causes answers and does not read them"
            self.transport.fail_locked(closed_error(CloseCode.POLICY_VIOLATION, text, "local"))
        if data:
            self.queue.add_data_locked(data)
        return True

    def _queue_along_locked(self, flow: FlowState) -> int:
        """Queue the answers that nobody waited for, and what a stream sends; return its ticket."""
        kept, data = self.protocol.unawaited_data, self.protocol.data_to_send()
        self.queue.add_data_locked(data[:kept])  # of other streams, so they overtake nothing
        ticket = self.queue.add_data_locked(data[kept:], flow=flow)
        self.queue_locked(solicited=True)
        return ticket

    def _queue_end_locked(self, record: StreamRecord) -> None:
        """Queue the end of a stream, if it was not on the wire already."""
        if not self.protocol.has_output():
            return
        if self.protocol.unawaited:
            self._queue_along_locked(record.flow)
        else:
            self.queue.add_data_locked(self.protocol.data_to_send(), flow=record.flow)

    def settle_locked(self, wakes: list[Parker]) -> None:
        """Apply the events of a local call, and queue its output."""
        now = clock.monotonic()
        self.table.apply(now, wakes)
        if not self.table.records:
            self.quiet.notify(wakes)
        self.queue_locked()
        due = self._first_timer(now)
        if due != self.transport.owner_timer:
            self.transport.owner_timer = due
            self.table.changed = True  # messages may arrive together with the wake-up
            self.transport.wake()

    def _first_timer(self, now: float) -> float | None:
        """Return when the I/O thread is to look at the timers of streams.

        A look that was to come earlier remains, and may be for nothing. Most timers are of streams
        that are being closed: to put the look off, and to want it earlier again, would wake that
        thread for each of them.
        """
        due, known = self.table.next_timer(), self.transport.owner_timer
        if self.protocol.unawaited:
            due = min(now + MAX_UNAWAITED_TIME, math.inf if due is None else due)
        if known is None or known <= now:
            return due
        return known if due is None else min(due, known)

    def wake_everybody(self) -> None:
        wakes: list[Parker] = []
        with self.mutex:
            self._notify_all_locked(wakes)
        wake(wakes)

    def _notify_all_locked(self, wakes: list[Parker]) -> None:
        self.table.notify_forced(wakes)
        self.quiet.notify_forced(wakes)
        self.transport.notify_forced_locked(wakes)

    # The I/O thread

    def _begin_steps(self) -> int:
        """Have the steps done, by a thread of their own or by a shared one; return its ident."""
        try:
            if not shared_io.take_own(self):
                return shared_io.add(self)
            self._thread = daemon_thread(target=self._run, name=f"{self.transport.name}-io")
            start_thread(self._thread)
        except BaseException:
            shared_io.leave_own(self)
            raise
        assert self._thread.ident is not None
        return self._thread.ident

    def _run(self) -> None:
        try:
            while self.step(only_look=False):
                pass
        finally:
            shared_io.leave_own(self)

    @property
    def alone(self) -> bool:
        """See ``transport.shared_io``."""
        recording = self.config.recording
        return recording is not None and callable(recording.to)  # it is called in the I/O thread

    @property
    def wait_fd(self) -> int:
        """See ``transport.shared_io``."""
        return self.transport.wait_fd

    @property
    def idle_until(self) -> float:
        """See ``transport.shared_io``."""
        return self.transport.idle_until

    def step(self, only_look: bool = True) -> bool:
        """See ``transport.shared_io``; without ``only_look``, wait until there is work."""
        try:
            self.transport.wait(only_look)
            for messages in self._steps:
                if messages is IDLE:
                    return True
                self._handle(messages)
        except BaseException:  # whatever it is: nobody else would end the connection
            self._log_failure()
            self._fail("internal error")
        self._end()
        return False

    def give_up(self, reason: str) -> None:
        """See ``transport.shared_io``."""
        self._fail(reason)
        self._end()

    def _log_failure(self) -> None:
        log_failure(_log, "the I/O thread of %s failed; the connection ends", self.transport.name)

    def _fail(self, reason: str) -> None:
        self.transport.abort(ConnectionClosedError(CloseCode.INTERNAL_ERROR, reason, "local"))

    def _end(self) -> None:
        """Release everything; raises nothing, as others may have steps in this thread."""
        try:
            self._steps.close()
            if not self.transport.wait_finished(0):  # they had not begun
                self.transport.discard()
        except BaseException:
            self._log_failure()
        if not isinstance(self.transport.error, ForkedError):
            self.wake_everybody()
            process_memory.forget(self)
            try:
                finish(self.transport)
            except BaseException:
                self._log_failure()
        self._ended.set()

    def in_io_thread(self) -> bool:
        """Return whether this is the thread that does the rounds of this connection."""
        return threading.get_ident() == self.io_ident

    def wait_ended(self, deadline: Deadline) -> None:
        """Wait until the I/O thread has done with this connection."""
        if self.transport.in_child:
            return
        if self._thread is None:
            self._ended.wait(deadline.remaining())
        else:
            self._thread.join(deadline.remaining())

    def _handle(self, messages: list[Received]) -> None:
        wakes: list[Parker] = []
        try:
            self._handle_and_note(messages, wakes)
        finally:
            # Whatever was raised: a stream that has ended is known to nobody else any more.
            if wakes:
                wake(wakes)

    def _handle_and_note(self, messages: list[Received], wakes: list[Parker]) -> None:
        """Handle messages; leave in ``wakes`` whoever has not been woken."""
        transport, table = self.transport, self.table
        for start in range(0, len(messages), SLICE):
            part = messages[start : start + SLICE] if len(messages) > SLICE else messages
            with transport.mutex:
                self._feed_locked(part, transport.now, wakes)
            if wakes:
                wake(wakes)
            if part is not messages:
                self.flush()  # send the answers before they are too many
        held = table.unread + self.protocol.held()  # as ``_held``, for each batch without a call
        # Is there more to do than handling messages of open streams? Checked without the mutex: a
        # thread that changes these afterwards wakes this one.
        if (
            not messages
            or self._abandoned
            or self._notify_forced
            or transport.error is not None
            or held + transport.held() > self._pressure
            or transport.now >= transport.next_timer
        ):
            with transport.mutex:
                self._keep_time_locked(transport.now, wakes)
            wake(wakes)
            if self._failure is not None:
                _log.info("%s: the peer broke the protocol: %s", transport.name, self._failure)
                self._failure = None
        elif table.changed or self.quiet.parked:
            with transport.mutex:
                self._note_changes_locked(transport.now, wakes)
                if transport.now >= transport.next_timer:
                    self._keep_time_locked(transport.now, wakes)
            wake(wakes)
        if (
            not -REPORT_STEP < held - self._reported < REPORT_STEP
            or not messages
            or process_memory.total > self._max_process
        ):
            self._limit_process_memory()

    def _held(self) -> int:
        """Return the bytes received and not yet read, including incomplete frames."""
        return self.table.unread + self.protocol.held()

    def _feed_locked(self, messages: list[Received], now: float, wakes: list[Parker]) -> None:
        if self._input_closed:
            return
        protocol, table = self.protocol, self.table
        protocol.now, protocol.received = now, self.transport.frame_reader.bytes_received
        try:
            for kind, data in messages:
                if kind is not _BINARY:
                    raise FrameError(
                        "text message; this protocol is binary", CloseCode.UNSUPPORTED_DATA
                    )
                protocol.receive_data(data)
                table.apply(now, wakes)
        except RemoteProtocolError as error:
            self._input_closed, self._failure = True, error
            table.apply(now, wakes)
            self.queue_locked()  # the wire's notice goes before the close frame
            self.transport.fail_locked(protocol_failure(error))
        if protocol.unawaited:
            protocol.hurry_if_awaited()
            timer, latest = self.transport.owner_timer, now + MAX_UNAWAITED_TIME
            if protocol.unawaited and (timer is None or timer > latest):
                self.transport.set_owner_timer(latest)
        self.queue_locked(solicited=True)
        if table.write_failed:
            self._free_writers_locked()

    def _free_writers_locked(self) -> None:
        """Make the writer that waits for the socket check whether its stream has failed."""
        self.table.write_failed = False
        self.queue.interrupt_locked()

    def _keep_time_locked(self, now: float, wakes: list[Parker]) -> None:
        table = self.table
        table.changed = False
        if self._notify_forced:
            self._notify_forced = False
            self._notify_all_locked(wakes)
        self._end_abandoned_locked(wakes)
        self.protocol.handle_timer(now)
        self.protocol.hurry()
        self.transport.close_notice = self.protocol.close_notice_came()
        if self.transport.silence_locked():
            self._break_silence_locked(now)
        table.refuse_late(now)
        try:
            table.sweep_up(now, wakes)
        except RemoteProtocolError as error:
            self.transport.fail_locked(protocol_failure(error))
        self._limit_memory_locked(wakes)
        if table.write_failed:
            self._free_writers_locked()
        table.apply(now, wakes)
        self.queue_locked()
        if self.transport.error is None and self._idle(now):
            self.begin_close_locked(CloseCode.NORMAL_CLOSURE, "idle")
        self._note_changes_locked(now, wakes)
        if self.transport.error is not None:
            self._input_closed = True  # everything received before the end has been handled
            self._notify_all_locked(wakes)

    def _note_changes_locked(self, now: float, wakes: list[Parker]) -> None:
        """Do what may be necessary after streams were added or removed."""
        self.table.changed = False
        if not (self.table.records and self.protocol.pending_closes()):
            self.quiet.notify(wakes)
        self.transport.set_owner_timer(self._first_timer(now))

    def _break_silence_locked(self, now: float) -> None:
        """Send a ping of the wire; without one, a silent peer cannot be told from a dead one."""
        if self.protocol.may_ping():
            self.table.pings.break_silence(now)
            self.transport.keep_alive.asked(now)
        else:
            self.transport.keep_alive.heard(now)

    def _idle(self, now: float) -> bool:
        limit, since = self.config.idle_timeout, self.table.idle_since
        return limit is not None and since is not None and now >= since + limit

    def _limit_memory_locked(self, wakes: list[Parker]) -> None:
        """Shed the largest holders while the connection exceeds its memory limit."""
        while self.transport.error is None:
            limit = self.table.unread_limit()
            if self._held() + self.transport.held() <= limit:
                break
            self._give_up_locked(f"Config.max_connection_buffer: {limit}", wakes)

    def _limit_process_memory(self) -> None:
        """Report the bytes held; shed the largest holder if this connection must."""
        while self.transport.error is None:
            self._reported = self._held()
            verdict = process_memory.report(self, self._reported, self._max_process)
            if verdict is not Verdict.GIVE_UP:
                break
            wakes: list[Parker] = []
            with self.mutex:
                if self._held() >= self._reported:  # otherwise it was read meanwhile: check again
                    self._give_up_locked(f"Config.max_process_buffer: {self._max_process}", wakes)
                    self.settle_locked(wakes)
            wake(wakes)
        if self.transport.error is not None:
            process_memory.forget(self)  # ending: nothing more arrives, and the rest is read

    def _give_up_locked(self, limit: str, wakes: list[Parker]) -> None:
        """Reset the stream with most unread bytes, or end all for a larger incomplete message."""
        partial = self.protocol.held() + self.transport.held()
        record = self.table.largest()
        if record is not None and record.buffer.size >= partial:
            self.table.shed(record, f"unread bytes exceed {limit}", wakes)
        elif partial:
            text = f"{partial} bytes of a message that is not whole and unread ones exceed {limit}"
            self.transport.fail_locked(closed_error(CloseCode.POLICY_VIOLATION, text, "local"))
            self._input_closed = True
