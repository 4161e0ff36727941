"""Own one socket after its handshake: framing, sending, keepalive, the closing handshake.

Threads and locks:

- ``mutex`` guards the send queue and the state here, and whatever else the owner guards with it
  (the mux: its protocol machine and streams). The socket is never read or written under it.
  ``send_queue`` describes sending and the send lock.
- One I/O thread, the one that iterates ``batches()`` or does the ``steps()`` of several transports,
  reads, answers pings and handles timers. It never blocks in a send.
- Reading happens in rounds: receive once, give the messages to the owner, answer. A round holds
  ``_round``, which is acquired before the mutex and the send lock, and never under either.
- A thread that waits in ``wait_locked`` leads, if no other thread waits there: it borrows the
  socket from ``SocketPoller`` and does the rounds itself, until its wait is over or anything
  unusual happens. So it need not be woken by the I/O thread, which keeps the timers, the closing
  handshake, what the system has no room for, and the end. A round that changes what the I/O thread
  waits for wakes it. Whoever sees an error of the socket stores it; the I/O thread ends.
- No waiting thread holds anything that another thread needs: callers are parked on the mutex; the
  sending thread waits in ``poll``, which a shutdown ends. So two ends that both write bulk and read
  nothing cannot block each other's I/O threads.

The error that ends the transport is stored in ``error``; the first one is kept. A forked child gets
a ``ForkedError`` there, fresh locks and no descriptors; it writes nothing.

``FrameReader`` reads frames and separates the control frames; ``PeerLimits`` detects peers that
send or read too slowly, or ping too often. Both are used in rounds and need no lock.

``message_transport`` opens a transport for layers that exchange messages and need no streams.
"""

from __future__ import annotations

import itertools
import math
import select
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, Protocol

from ..config import KIB, Config
from ..exceptions import (
    CloseCode,
    ConnectionClosed,
    ConnectionClosedError,
    ForkedError,
    FrameError,
    LocalProtocolError,
    RemoteProtocolError,
    StreamError,
    WsmuxError,
    closed_error,
    fresh_copy,
    protocol_failure,
)
from ..protocols.abuse_limits import AbuseLimits, StallTimer
from ..protocols.base import MAX_ID, Message, Role
from ..protocols.framing import Framing, Opcode, Received, decode_close, encode_close
from ..runtime import clock, fork
from ..runtime.deadline import LONGEST_WAIT, Deadline
from ..runtime.heap import keep_freed_memory
from ..runtime.logs import logger
from ..runtime.memory import PRESSURE, REPORT_STEP, Verdict, process_memory
from ..runtime.parking import EventParker, OneShotEvent, Parker, Waiter, WaitQueue, wake
from ..runtime.signals import held_back, in_main_thread
from ..runtime.threads import register
from .fair_queue import Frame
from .keepalive import KeepAlive, Ping, Pings
from .send_queue import SendInterrupted, SendQueue
from .socket_io import Socket, Wakeup, take_over
from .socket_poller import SocketPoller

__all__ = [
    "FrameReader",
    "MessageTransport",
    "Outage",
    "Part",
    "PeerLimits",
    "hang_up",
    "message_transport",
]

# Messages, and the pings and pongs received after them.
Part = tuple[list[Received], list[tuple[Opcode, bytes]]]


class FrameTap(Protocol):
    """The interface of the flight recorder to the transport.

    Attributes:
        received: called by the I/O thread with the frames of one read.
        sent: called by the holder of the send lock, with the frames about to be sent.
    """

    received: Callable[[list[Received]], None]
    sent: Callable[[list[Frame]], None]

    def carried(self, sent: bool, message: bytes) -> None:
        """Record a message of a resumable connection that no framing saw."""

    def text(self, error: WsmuxError | None) -> str:
        """Return the recording so far; ``error`` is why the connection ended, if it has."""

    def ended(self, error: WsmuxError | None) -> None:
        """Record that the connection has ended, and why."""


class FrameReader:
    """Read frames from one socket.

    Attributes:
        bytes_received: the total read from the socket.
        ended: the peer ended the connection, with or without a close frame.
        close_payload: the payload of the peer's close frame, until it is processed.
        peer_closed: a close frame was received.
        recorder: the flight recorder, if configured.
        pings_and_pongs: those of the last ``read``, with their places among its messages, until
            ``in_order`` has split it.
    """

    def __init__(self, sock: Socket, framing: Framing) -> None:
        self.bytes_received = 0
        self.ended = False
        self.close_payload: bytes | None = None
        self.peer_closed = False
        self.recorder: FrameTap | None = None
        self.pings_and_pongs: list[tuple[int, Opcode, bytes]] = []
        self._socket = sock
        self._framing = framing

    def read(self) -> list[Received] | None:
        """Return the received messages; ``None`` if no bytes are available, or at end of file."""
        framing = self._framing
        count = self._socket.recv_into(framing.get_buffer())
        if not count:
            framing.filled = False
            self.ended = count is not None
            return None
        self.bytes_received += count
        frames = framing.received(count)
        if self.recorder is not None:
            self.recorder.received(frames)
        return self._sort(frames) if framing.controls or self.peer_closed else frames

    def in_order(self, messages: list[Received]) -> list[Part]:
        """Split the last result of ``read`` after the pings and pongs received in between."""
        parts: list[Part] = []
        start = 0
        for before, group in groupby(self.pings_and_pongs, itemgetter(0)):
            parts.append((messages[start:before], [control[1:] for control in group]))
            start = before
        self.pings_and_pongs.clear()
        parts.append((messages[start:], []))
        return parts

    def restart(self, sock: Socket) -> None:
        """Read from another socket from now on."""
        self._socket = sock
        self.ended = self.peer_closed = False
        self.close_payload = None
        self.pings_and_pongs.clear()

    def _sort(self, frames: list[Received]) -> list[Received]:
        """Separate control frames; return the messages, which are valid even before a failure."""
        messages = []
        for kind, data in frames:
            if self.peer_closed:
                break  # RFC 6455 section 5.5.1: no frames follow a close frame
            if kind < Opcode.CLOSE:
                messages.append((kind, data))
            elif kind is Opcode.CLOSE:
                self.peer_closed = True
                self.close_payload = bytes(data)
            else:
                self.pings_and_pongs.append((len(messages), kind, bytes(data)))
        return messages


class Outage(NamedTuple):
    """Describe why a resumable transport has no socket; times are seconds.

    Attributes:
        seconds: for how long.
        reason: why the last socket was lost.
        unacknowledged: bytes that the peer has not acknowledged.
        next_attempt: until this side tries to connect; ``None`` if it does not wait for that.
        attempt: why the last attempt failed, ``""`` if none has.
        grace_left: until the session is given up.
    """

    seconds: float
    reason: str
    unacknowledged: int
    next_attempt: float | None
    attempt: str
    grace_left: float


class PeerLimits:
    """Check the peer of one transport whenever ``next_look`` is due.

    Attributes:
        reading: a message is incomplete, and timed.
        sending: bytes are queued for the peer, and timed.
    """

    def __init__(
        self, config: Config, framing: Framing, frame_reader: FrameReader, queue: SendQueue
    ) -> None:
        self.reading = self.sending = False
        self._config = config
        self._framing = framing
        self._inbox = frame_reader
        self._queue = queue
        self._floods = AbuseLimits(config)
        self._message = StallTimer(config.message_timeout)
        self._output = StallTimer(config.stall_timeout)

    def next_look(self) -> float | None:
        """Return when to call ``look`` again."""
        looks = (self._message.next_look, self._output.next_look)
        return min((look for look in looks if look is not None), default=None)

    def look(self, now: float) -> ConnectionClosed | None:
        """Check all timers; return the error that must end the transport, if any."""
        message = self._framing.incomplete(self._inbox.bytes_received)
        late = self._message.look(message, now)
        taken = self._taken()
        if taken is None and self._queue.blocked:
            self._queue.blocked = False
            taken = self._taken()  # a thread that fills the queue meanwhile may not see the change
            if taken is not None:
                self._queue.blocked = True
        stalled = self._output.look(taken, now)
        self.reading, self.sending = message is not None, taken is not None
        if late:
            limit = f"Config.message_timeout = {self._config.message_timeout} s"
            return closed_error(
                CloseCode.POLICY_VIOLATION, f"a message was incomplete for {limit}", "local"
            )
        if stalled:
            limit = f"Config.stall_timeout = {self._config.stall_timeout} s"
            return closed_error(
                CloseCode.POLICY_VIOLATION, f"the peer accepted no bytes for {limit}", "local"
            )
        return None

    def _taken(self) -> int | None:
        """Return how many bytes the peer's system has accepted; ``None`` if none are queued."""
        return self._queue.taken_by_peer() if self._queue.has_output() else None

    def full_for(self, now: float) -> float | None:
        """Return for how many seconds the peer's system has accepted none of the queued bytes.

        As of the last check; ``None`` if nothing was queued or no timeout is set.
        """
        return self._output.still_for(now)

    def pinged(self, now: float) -> None:
        """Count a ping of the framing, or an unsolicited pong.

        Raises:
            FrameError: the limit is exceeded.
        """
        self._floods.ping(now, self._inbox.bytes_received)


# Seconds that a client waits for the server to close the TCP connection first (RFC 6455 section
# 7.1.1), and that a failed connection has to send its close code.
LINGER = 1.0

# A thread that begins to wait for received bytes leads if fewer than these wait there; only tests
# change it.
LEADS_BELOW = 1

# Looking these up in the module for each poll costs too much.
POLLIN, POLLOUT = select.POLLIN, select.POLLOUT
ENDED = select.POLLHUP | select.POLLERR

NEVER = math.inf

# What ``steps`` yields where it waits, by identity.
IDLE: list[Received] = []
_serial = itertools.count(1)

_log = logger("wsmux")


class MessageTransport:
    """Carry messages over one socket.

    Attributes:
        mutex: the connection's only lock; see the module docstring.
        frame_reader: reads the socket, for the I/O thread.
        queue: the send queue; its ``_locked`` methods require the mutex.
        error: why the transport ended, ``None`` while it is open. Set only once.
        cut: nothing is sent any more; the I/O thread is ending, or has ended.
        in_child: this is the unusable copy in a forked child.
        owner_timer: when the owner needs a batch, even an empty one.
        next_timer: when the I/O thread must check its timers, including the owner's.
        now: when the last poll of the thread that receives returned, for rounds.
        handle: what the owner does with the messages of a round, if threads that wait may lead.
        pings: the framing has pings and close frames.
        close_notice: the peer announced its end in the wire; for framings without close frames.
    """

    # See ``ResumableTransport``.
    resumes = False
    reconnects = 0

    handle: Callable[[list[Received]], None] | None = None

    def __init__(
        self,
        sock: socket.socket,
        framing: Framing,
        role: Role,
        config: Config,
        name: str = "",
    ) -> None:
        self.role = role
        self.config = config
        self.name = name or f"wsmux-{role.value}-{next(_serial)}"
        self.mutex = threading.Lock()
        self.error: WsmuxError | None = None
        self.owner_timer: float | None = None
        self._framing = framing
        self._socket: Socket = take_over(sock, config.tcp_user_timeout)
        self.frame_reader = FrameReader(self._socket, framing)
        self._wakeup = Wakeup()
        try:
            self._poller = SocketPoller(self._wakeup)
            self._poller.watch(self._socket.fileno())
        except OSError:  # no descriptor is left
            self._wakeup.close()
            raise
        self.queue = SendQueue(self._socket, framing, config, self.mutex, self._wakeup)
        self._limits = PeerLimits(config, framing, self.frame_reader, self.queue)
        self.keep_alive = KeepAlive(config.ping_interval, config.ping_timeout, clock.monotonic())
        # Held during each round of receiving, by the I/O thread or by the one that reads for it.
        self._round = threading.Lock()
        self._waiting = 0
        self.idle_until = NEVER  # until when ``wait`` waits
        self._reads_on = True  # it need not: the first step begins at once
        self._interest = 0
        self._found: list[tuple[int, int]] = []
        self._asleep_until = NEVER  # until when the I/O thread may wait; changed in rounds only
        self.now = clock.monotonic()
        self.next_timer = NEVER
        self._finished = OneShotEvent()
        self.cut = self.in_child = False
        self.pings = framing.has_controls
        self.close_notice = False
        self._give_up: float | None = None  # end of the time for the closing handshake
        self._sends_rest = False  # the close frame is queued after data, which is still sent
        self._sends_first = False  # that time begins anew when all is sent, see keep_sending_locked
        self._reported = 0  # allocated bytes last reported to the process-wide sum
        self._saves = False  # memory is short: a small read buffer is used
        self._paused = False  # reading is paused: see _limit_process_memory
        fork.register(self)
        register(self)
        keep_freed_memory()

    def __repr__(self) -> str:
        state = "open" if self.error is None else f"ended: {self.error}"
        return f"<Channel {self.name} {state}>"

    # Any thread

    def flush(
        self,
        ticket: int = 0,
        deadline: Deadline | None = None,
        given_up: Callable[[], bool] | None = None,
    ) -> None:
        """Send what is queued; wait for the socket at most until ``ticket``'s frame is sent.

        See ``SendQueue.flush``. A failure is not raised here, but stored in ``error``.
        """
        emptied = False
        try:
            emptied = self.queue.flush(ticket, deadline, given_up)
        except OSError as error:
            interrupt = error.__cause__ if isinstance(error, SendInterrupted) else None
            self._lost(error)
            if interrupt is not None:
                raise interrupt from None
        finally:
            # After an interrupt, too, the I/O thread sends the rest; at the end, it must learn that
            # the close frame was sent.
            if not emptied or self.error is not None:
                self._wakeup.set()

    def wake(self) -> None:
        """Make the I/O thread check its timers and queues."""
        self._wakeup.set()

    def held(self) -> int:
        """Return the received bytes of an incomplete message; for the I/O thread."""
        return self._framing.held()

    def ping(self, deadline: Deadline) -> float:
        """Send a ping, wait for its pong, and return the round-trip time in seconds.

        Raises:
            TimeoutError: no pong arrived in time; the connection continues.
            ConnectionClosed: the transport ended.
        """
        ping: Ping | None = None
        try:
            with self.mutex:
                self.check_locked()
                ping, message = self.keep_alive.new_ping(clock.monotonic())
                self.queue.add_control_locked([message], Opcode.PING)
            self.flush()
            with self.mutex:
                took = self.wait_pong_locked(self.keep_alive.pings, ping, deadline)
            return took  # outside: a signal after the last call inside would leave the mutex locked
        finally:
            if ping is not None and ping.rtt is None:
                self.wake()  # the ping may still be queued
                with self.mutex:
                    self.keep_alive.pings.forget(ping)

    def wait_pong_locked(self, pings: Pings, ping: Ping, deadline: Deadline) -> float:
        """Wait for the pong of a ping, of the framing or of the wire; return the seconds it took.

        Raises:
            TimeoutError: no pong arrived in time.
            ConnectionClosed: the transport ended.
            StreamError, LocalProtocolError: the stream ended, or pings of the connection are no
                longer answered.
        """
        try:
            while ping.rtt is None:
                if ping.over and ping.stream_id is not None:
                    number = ping.stream_id & MAX_ID
                    raise StreamError(f"stream {number} ended without a pong", number)
                self.check_locked()
                if ping.over:
                    raise LocalProtocolError(
                        "pings are no longer answered: both sides are going away"
                    )
                if deadline.expired():
                    raise TimeoutError(f"{self.name} received no pong in time")
                pings.askers.wait(self.mutex, deadline)
            return ping.rtt
        finally:
            pings.forget(ping)

    def check_locked(self) -> None:
        """Raise the error that ended the transport, if it has ended."""
        if self.error is not None:
            raise fresh_copy(self.error) from self.error.__cause__

    def close(self, code: int, reason: str, deadline: Deadline) -> None:
        """Send what is queued and a close frame, and wait for the peer's until the deadline.

        The first error is kept: closing again only waits, but gives more time to what is queued.
        """
        with self.mutex:
            if isinstance(self.error, ForkedError):
                return
            ticket = self.close_locked(code, reason)
            until, given_up = deadline.at, self._give_up
            later = until is None or (given_up is not None and until > given_up)
            sends = self._sends_rest and (self.queue.has_output() or self.unacknowledged())
            if later and sends:
                self.keep_sending_locked(until)
        self.flush(ticket, deadline)
        if not self._finished.wait(deadline.remaining()):
            self.abort()
            self._finished.wait(LINGER)

    def close_locked(self, code: int, reason: str) -> int:
        """Queue a close frame after all other frames; return its ticket for ``flush``."""
        try:
            return self._begin_close_locked(code, reason)
        except BaseException:  # interrupted by a signal handler
            self._begin_close_locked(code, reason)
            self._wakeup.set()  # the I/O thread sends it
            raise

    def _begin_close_locked(self, code: int, reason: str) -> int:
        if self.error is None:
            self._end_locked(closed_error(code, reason, "local"))
        return self._queue_close_locked(code, reason, last=True)

    def keep_sending_locked(self, until: float | None) -> None:
        """Give queued frames until then, ``None`` without end, before the closing handshake.

        To be called after ``close_locked``, which gives both together ``Config.close_timeout``.
        From when all is sent, the peer has that for its part of the closing handshake. A resumable
        transport has not sent what is not acknowledged.
        """
        self._sends_first = True
        if until is not None:
            until = max(until, clock.monotonic()) + self.config.close_timeout
        self._give_up = until

    def abort(self, error: WsmuxError | None = None) -> None:
        """Close the socket at once, without a close frame."""
        error = error or ConnectionClosedError(CloseCode.ABNORMAL_CLOSURE, "aborted", "local")
        with self.mutex:
            try:
                self.abort_locked(error)
            except BaseException:  # interrupted by a signal handler
                self.abort_locked(error)
                raise

    def leave(self) -> None:
        """Close the socket because the interpreter is exiting; see ``runtime.threads``."""
        self.abort(
            ConnectionClosedError(CloseCode.ABNORMAL_CLOSURE, "the interpreter is exiting", "local")
        )

    def wait_finished(self, timeout: float | None) -> bool:
        """Wait until the I/O thread has closed the socket."""
        return self._finished.wait(timeout)

    def _fail(self, failure: RemoteProtocolError) -> None:
        with self.mutex:
            self.fail_locked(protocol_failure(failure))

    def fail_locked(self, error: ConnectionClosed) -> None:
        """End with a failure: queued data is dropped, and the close frame is sent first."""
        if self.error is None:
            self._end_locked(error)
            self.queue.drop_data_locked()
            self._queue_close_locked(error.code, error.reason, last=False)
            self._give_up = clock.monotonic() + LINGER

    def notify_forced_locked(self, wakes: list[Parker]) -> None:
        """Collect all threads that wait here."""
        self.queue.notify_forced_locked(wakes)
        self.keep_alive.pings.askers.notify_forced(wakes)

    def _end_locked(self, error: WsmuxError) -> None:
        self.error = error
        self.queue.interrupt_locked()
        self._wakeup.set()

    def abort_locked(self, error: WsmuxError) -> None:
        """Close the socket as ``abort`` does."""
        if self.error is None:
            self._end_locked(error)
        self.queue.closed = True
        self.cut = True
        self._socket.shutdown()
        self._wakeup.set()

    def _lost(self, cause: OSError) -> None:
        """Record that the socket failed; called by the thread that noticed."""
        error = ConnectionClosedError(
            CloseCode.ABNORMAL_CLOSURE, cause.strerror or str(cause), None
        )
        # Without frames, which refer to this object: only the garbage collector could free the
        # cycle.
        cause.__traceback__ = cause.__cause__ = cause.__context__ = None
        error.__cause__ = cause
        with self.mutex:
            self.abort_locked(error)

    def _queue_close_locked(self, code: int, reason: str, last: bool) -> int:
        ticket = 0
        if not self.queue.closed:
            messages: list[Message] = [(encode_close(code, reason), b"")]
            self._sends_rest = last
            if last:
                ticket = self.queue.add_data_locked(messages, Opcode.CLOSE)
            else:
                self.queue.add_control_locked(messages, Opcode.CLOSE)
            self._give_up = clock.monotonic() + self.config.close_timeout
            self.queue.closed = True
        return ticket

    # The I/O thread

    def batches(self) -> Generator[list[Received]]:
        """Run the I/O loop; yield the messages for the owner, in order.

        An empty batch means that a timer may be due. The iteration ends with the transport; then
        ``error`` is set. Views in a batch are invalid once the next one is requested.
        """
        with closing(self.steps()) as steps:
            for messages in steps:
                if messages is IDLE:
                    self.wait()
                else:
                    yield messages

    def steps(self) -> Generator[list[Received]]:
        """Do what ``batches`` does, but yield ``IDLE`` where it waits.

        Then ``wait`` must be called before the next step, once something is to be done: not before
        ``idle_until``, unless the descriptor of ``wait_fd`` is readable.
        """
        try:
            yield from self._rounds()
        except OSError as error:
            self._lost(error)
        finally:
            self.discard()

    def _rounds(self) -> Generator[list[Received]]:
        """Run the I/O loop over one socket."""
        poller = self._poller
        if poller.fd < 0:  # it is another carrier
            poller.watch(self._socket.fileno())
        with self._round:
            self._keep_time()
            self._asleep_until = self.next_timer
            goes_on = self._goes_on()
        while goes_on:
            self._idle()
            yield IDLE
            readable = self._found_readable()
            with self._round:
                yield from self._receive(readable or self._must_read())
                self.queue.flush(0, None, None)  # the rest is polled for
                self._asleep_until = self.next_timer
                goes_on = self._goes_on()

    def _receive(self, reads: bool) -> Generator[list[Received]]:
        """Read once, if ``reads``, and do whatever is due; yields messages for the owner."""
        queue, frame_reader, framing, limits = (
            self.queue,
            self.frame_reader,
            self._framing,
            self._limits,
        )
        try:
            messages = frame_reader.read() if reads and not self._paused else None
        except OSError as error:
            if not self._outlives(error.strerror or str(error)):
                self._read_failed(error)
            return
        if frame_reader.ended:
            yield []  # the owner may know whether this end is clean
            self._end_of_file()
        elif messages is not None:
            if self.keep_alive.heard(self.now):
                self._set_look()
            if not messages and not limits.reading:
                self._keep_time()
        if frame_reader.pings_and_pongs:
            for part, controls in frame_reader.in_order(messages or []):
                yield part
                if controls:
                    self._answer(controls)
        else:
            yield messages or []
        if self.resumes and framing.due:
            self._account()
        allocated = framing.allocated() + queue.kept_bytes - self._reported
        if (
            not -REPORT_STEP < allocated < REPORT_STEP
            or process_memory.total > self.config.max_process_buffer
            or self._saves
            or self._paused
        ):
            self._limit_process_memory()
        ending = frame_reader.close_payload is not None or framing.failure is not None
        if ending and self._note_end():
            yield []  # the owner notifies all waiting threads
        blocked = queue.blocked and not limits.sending
        if blocked or self.now >= self.next_timer or queue.has_waiting_writers():
            self._keep_time()

    def _must_read(self) -> bool:
        """Return whether the I/O thread reads though no poll has told it to.

        That is, unless another thread does. But no peer is called silent before its bytes were
        looked for, and some of what TLS waits for no other thread sees.
        """
        return (
            self._poller.lent is None
            or self.now >= self.next_timer
            or self._socket.read_wants_write
            or self._socket.pending()
        )

    def _goes_on(self) -> bool:
        """Return whether the I/O thread still has to serve this socket."""
        return not self.queue.suspended and (self.error is None or not self._done())

    def _done(self) -> bool:
        """Return whether the closing handshake has finished, or run out of time."""
        if self.cut:
            return True
        now = clock.monotonic()
        if self._give_up is not None and now >= self._give_up:
            return True
        if self.queue.has_output():
            return False
        if self._sends_first and not self.unacknowledged():
            self._sends_first = False
            self._give_up = min(self._give_up or NEVER, now + self.config.close_timeout)
        server = self.role is Role.SERVER  # first to close the TCP connection: RFC 6455, 7.1.1
        if not self.pings or (server and self._framing.failure is not None):
            self._socket.end_writing()  # the only close notice, or no answer to ours is read
        if not self.frame_reader.peer_closed:
            return False
        if server:
            return True
        self._give_up = min(self._give_up or now + LINGER, now + LINGER)
        return False

    def _idle(self) -> None:
        """Begin to watch for what there may be to do, and say until when to wait."""
        sock = self._socket
        if self._paused:
            interest = POLLOUT if self.queue.wants_io else 0
        elif sock.read_wants_write:
            interest = POLLOUT
        else:
            interest = POLLIN | POLLOUT if self.queue.wants_io else POLLIN
        # The last read probably left more.
        self._reads_on = (
            self._framing.filled
            and interest == POLLIN
            and self.error is None
            and self._poller.lent is None
        )
        if self._reads_on or (sock.hides_bytes and not self._paused and sock.pending()):
            self.idle_until = self.now
        elif self.error is not None:
            self.idle_until = min(self._give_up or NEVER, self.now + LONGEST_WAIT)
        else:
            self.idle_until = self._asleep_until
        if not self._reads_on:
            self._interest = interest
            self._poller.want(interest)

    @property
    def wait_fd(self) -> int:
        """The descriptor that is readable when there is something to do; for an epoll."""
        fd: int = self._poller.poller.fileno()
        return fd

    def wait(self, only_look: bool = False) -> None:
        """Wait as ``steps`` says; with ``only_look``, find out what there is to do, and no more."""
        if not self._reads_on:
            # As of the previous poll, so late by one round, but without another call of the clock.
            left = 0 if only_look else max(self.idle_until - self.now, 0)
            try:
                self._found = self._poll(left)
            except OSError as error:
                self._found = []
                self._lost(error)
        self.now = clock.monotonic()

    def _poll(self, left: float) -> list[tuple[int, int]]:
        fake = clock.replaced  # read once: a test may put the real one back meanwhile
        if fake is None:
            return self._poller.wait(left)
        fds = {self._wakeup.fd: POLLIN}
        if self._poller.fd >= 0:
            fds[self._poller.fd] = self._interest
        return fake.poll(self._poller.poller, fds, self.now + left, self.wake)

    def _found_readable(self) -> bool:
        """Return whether ``wait`` has found the socket readable."""
        if self._reads_on:
            return True
        readable = False
        for fd, events in self._found:
            if fd == self._wakeup.fd:
                self._wakeup.clear()
                continue
            if events & ENDED:
                self._paused = False  # the rest may be read: nothing more will arrive
            readable = bool(events & (POLLIN | ENDED))
        return readable

    def _keep_time(self) -> None:
        """Ping a silent peer, end the connection if it is lost, and wake further writers."""
        wakes: list[Parker] = []
        now = self.now
        with self.mutex:
            self.queue.collect_room_locked(wakes)
            if self.error is None and self.keep_alive.due(now):
                silence = self.keep_alive.lost(now)
                if silence is None:
                    if self.pings:
                        self.queue.add_control_locked([self.keep_alive.ask(now)], Opcode.PING)
                    self._framing.shrink()
                else:
                    text = f"no byte from the peer for {silence:.1f} s"
                    self._lose_peer_locked(closed_error(CloseCode.INTERNAL_ERROR, text, "local"))
            failure = self._limits.look(now)
            if failure is not None:
                self._lose_peer_locked(failure)
            self._set_look()
        wake(wakes)

    def _limit_process_memory(self) -> None:
        """Report the memory that the framing holds; end the connection if that is the most.

        While the limit is exceeded, connections with an incomplete message read no further:
        otherwise many threads would fill more memory than the largest holder, which is one of them,
        can free.
        """
        framing, limit = self._framing, self.config.max_process_buffer
        self._saves = process_memory.total > limit * PRESSURE
        framing.save_memory(self._saves)
        self._reported = framing.allocated() + self.queue.kept_bytes
        waits = framing.held() >= REPORT_STEP
        verdict = process_memory.report(self, self._reported, limit, waits=waits)
        if verdict is Verdict.GIVE_UP:
            self._give_up_memory(f"Config.max_process_buffer: {limit}")
            self._reported = framing.allocated() + self.queue.kept_bytes
            process_memory.report(self, self._reported, limit)
        self._paused = verdict is Verdict.WAIT and self.error is None

    def _give_up_memory(self, limit: str) -> None:
        """End because of what the framing holds."""
        text = f"{self._framing.held()} bytes of a message that is not whole exceed {limit}"
        self._framing.fail(FrameError(text, CloseCode.POLICY_VIOLATION))

    def full_for(self, now: float) -> float | None:
        """Return how long the peer's system has accepted nothing; ``None`` if it has room."""
        return self._limits.full_for(now) or 0.0 if self.queue.blocked else None

    def silence_locked(self) -> bool:
        """Return whether the owner must send a ping now, since the framing has none."""
        alive = self.keep_alive
        due = not self.pings and alive.due(self.now)
        return due and alive.lost(self.now) is None

    def limit_messages(self, size: int) -> None:
        """Take messages of up to ``size`` bytes from now on; for the I/O thread."""
        self._framing.max_message_size = size

    def set_owner_timer(self, due: float | None) -> None:
        """Set when the owner, which runs in this thread, needs a batch, even an empty one."""
        self.owner_timer = due
        # A later time needs nothing: the look at the earlier one computes the next.
        if due is not None and due < self.next_timer:
            self.next_timer = due

    def _set_look(self) -> None:
        """Compute the next check of the timers; received bytes can only postpone it."""
        timers = (self.keep_alive.next_timer(), self.owner_timer, self._limits.next_look())
        dues = [due for due in timers if due is not None]
        self.next_timer = min([*dues, self.now + LONGEST_WAIT])

    def _read_failed(self, error: OSError) -> None:
        self._lost(error)

    def _end_of_file(self) -> None:
        if self._outlives("the peer ended the TCP connection"):
            return
        with self.mutex:
            if self.error is None:
                cut = "" if self._framing.between_messages() else " within a message"
                text = f"the peer ended the connection{cut}"
                lost = ConnectionClosedError(CloseCode.ABNORMAL_CLOSURE, text, None)
                clean = closed_error(CloseCode.NORMAL_CLOSURE, "", "remote")
                self._end_locked(clean if self.close_notice else lost)
            self.cut = True

    def _note_end(self) -> bool:
        """Process a close frame or a protocol violation, after all preceding messages."""
        payload, self.frame_reader.close_payload = self.frame_reader.close_payload, None
        if payload is not None:
            self._close_received(payload)
            return True
        failure = self._framing.failure
        if failure is None or self.frame_reader.peer_closed or self.error is not None:
            return False
        self._fail(failure)
        return True

    def _answer(self, controls: list[tuple[Opcode, bytes]]) -> None:
        """Handle pings and pongs, in their order among the messages."""
        wakes: list[Parker] = []
        now = clock.monotonic()  # the ping may have been sent after the poll
        try:
            with self.mutex:
                for kind, payload in controls:
                    if kind is Opcode.PING:
                        self._limits.pinged(now)
                        self.queue.add_pong_locked(payload)
                    elif not self.keep_alive.pong(payload, now, wakes):
                        self._limits.pinged(now)
        except FrameError as flood:
            self._fail(flood)
        wake(wakes)

    def _close_received(self, payload: bytes) -> None:
        try:
            code, reason = decode_close(payload)
        except RemoteProtocolError as failure:
            self._fail(failure)
            return
        if self._outlives(f"it was closed with code {code} {reason}".rstrip()):
            return  # by a proxy: the peer of a session sends END before
        with self.mutex:
            if self.error is None:
                self._end_locked(closed_error(code, reason, "remote"))
            if not self.queue.closed:
                # The peer reads nothing any more, so queued data cannot be delivered.
                self.queue.drop_data_locked()
                self._queue_close_locked(code, "", last=False)
            self._sends_rest = False
            self._give_up = clock.monotonic() + LINGER

    # What a transport does otherwise that outlives its socket; see ``ResumableTransport``

    def outage_locked(self, now: float) -> Outage | None:
        """Describe that there is no socket; ``None`` while there is one."""
        return None

    def unacknowledged(self) -> int:
        """Return the bytes that are kept until the peer acknowledges them."""
        return 0

    def _outlives(self, reason: str) -> bool:
        """Leave the lost socket and return true; or return false, and the transport ends."""
        return False

    def _lose_peer_locked(self, error: ConnectionClosed) -> None:
        """Give up a silent, slow or stalled peer."""
        if not self._outlives(error.reason):
            self.fail_locked(error)

    def _account(self) -> None:
        """Look at what was received and sent, after each read."""

    # A thread that waits for received messages, and reads the socket meanwhile

    def wait_locked(
        self, place: Waiter | WaitQueue, mutex: threading.Lock, deadline: Deadline
    ) -> None:
        """Wait as the ``wait`` of ``place`` does, and read the socket if nobody else does.

        That is, if no other thread waits here. In the main thread handlers of signals are held back
        then; they end the wait, as they might raise in the middle of receiving.

        Args:
            mutex: what guards ``place``, and is held; the same for all that wait here.
        """
        leads = self._waiting < LEADS_BELOW and self._poller.lends and not self._framing.filled
        self._waiting += 1
        try:
            place.wait(mutex, deadline, self._lead if leads else None)
        finally:
            self._waiting -= 1

    def _lead(self, parker: Parker, deadline: Deadline) -> None:
        """Park, and do rounds of receiving meanwhile."""
        over = False
        if isinstance(parker, EventParker):
            if in_main_thread():
                # No handler finds the socket borrowed: it may use this connection, or close it.
                with held_back(parker.interrupt):
                    over = self._lead_beside(parker, deadline)
            else:
                over = self._lead_beside(parker, deadline)
        if not over:
            parker.park(deadline)

    def _lead_beside(self, parker: EventParker, deadline: Deadline) -> bool:
        """Borrow the socket for a wait; return whether that is over."""
        poller = self._poller
        try:
            fd = poller.lend(parker)
            if fd < 0:
                return False
            parker.begin_beside(fd)
            over = self._lead_rounds(parker, deadline)
            over = parker.end_beside() or over
            poller.take_back(parker)
            if self._socket.hides_bytes and self._socket.pending():
                self._wakeup.set()
            return over
        except BaseException:
            # Another thread may inject an exception at any step: all of it is done again.
            parker.end_beside()
            poller.take_back(parker)
            self._wakeup.set()
            raise

    def _lead_rounds(self, parker: EventParker, deadline: Deadline) -> bool:
        """Receive until the wait is over; return false if only the I/O thread can go on."""
        while deadline.at is None or not deadline.expired():
            hidden = self._socket.hides_bytes and self._socket.pending()
            if not (hidden or parker.park_beside(deadline)):
                break
            if not self._lead_round(parker):
                return False
            if parker.unparked_itself:
                break
        return True

    def _lead_round(self, parker: Parker) -> bool:
        """Receive once in the place of the I/O thread; return whether to go on with that."""
        whole = True
        try:
            with self._round:
                if not self._may_lead(parker):
                    return False
                whole = False
                self.now, handle = clock.monotonic(), self.handle
                assert handle is not None
                for messages in self._receive(True):
                    handle(messages)
                whole = True
                goes_on = self._may_lead(parker)
                late = self.next_timer < self._asleep_until
        except BaseException:
            if not whole:  # what was read may be lost, or half handled
                _log.exception("a read that received for %s failed; it ends", self.name)
                text = "a read was interrupted in the middle of receiving"
                self.abort(ConnectionClosedError(CloseCode.ABNORMAL_CLOSURE, text, "local"))
            raise
        if self.queue.has_output():
            self.flush()
        if late or not goes_on:
            self._wakeup.set()
        return goes_on

    def _may_lead(self, parker: Parker) -> bool:
        return (
            self._poller.lent is parker
            and self.handle is not None
            and self.error is None
            and not self.queue.suspended
            and not self._paused
            and not self._socket.read_wants_write
        )

    def discard(self) -> None:
        """Drop all queued data and close the socket; the last call of the I/O thread."""
        with self.mutex:
            if isinstance(self.error, ForkedError):
                return
            self.abort_locked(
                ConnectionClosedError(CloseCode.ABNORMAL_CLOSURE, "the I/O thread ended", "local")
            )
        self._poller.close()
        self.queue.finish()
        with self._round:
            self.handle = None  # often a method of what refers to this object
            self._framing.release()
        process_memory.forget(self)
        self._wakeup.close()
        self._finished.set()

    # Fork

    def forked(self) -> None:
        """See ``runtime.fork``."""
        self.mutex = threading.Lock()
        self.queue.forked(self.mutex)
        self._finished = OneShotEvent()
        self._finished.set()
        if not isinstance(self.error, ConnectionClosed):
            self.error = ForkedError(
                f"{self.name} belongs to the parent process; open a new connection in this one"
            )
        self.cut = self.in_child = True
        self._round = threading.Lock()
        self._poller.forked()
        self._socket.abandon()
        self._wakeup.forked()


# ``Config`` requires room for a frame of a stream, although none is sent here.
SMALLEST_LIMIT = 128 * KIB


def message_transport(
    sock: socket.socket,
    framing: Framing,
    role: Role,
    *,
    close_timeout: float,
    ping_interval: float | None = None,
    ping_timeout: float | None = None,
) -> MessageTransport:
    """Return a transport over a socket whose handshake is done, and which it then owns.

    Args:
        close_timeout, ping_interval, ping_timeout: seconds, as in ``Config``; by default no pings
            are sent.

    Raises:
        OSError: the system has no descriptor left; the socket is closed.
    """
    config = Config(
        ping_interval=ping_interval,
        ping_timeout=ping_timeout,
        close_timeout=close_timeout,
        max_message_size=max(framing.max_message_size, SMALLEST_LIMIT),
    )
    try:
        return MessageTransport(sock, framing, role, config)
    except OSError:
        sock.close()
        raise


def hang_up(
    transport: MessageTransport, code: int, reason: str, sends_for: Deadline | None = None
) -> None:
    """Begin to close a transport after queued frames, from any thread and without blocking.

    Those have until ``sends_for``, and the closing handshake ``close_timeout`` from then on; by
    default both together have that.

    One that is closing is left alone: an owner in its I/O thread that repeats this with each batch
    would wake itself for the next one, for as long as the peer does not answer.
    """
    with transport.mutex:
        if transport.error is not None:
            return
        transport.close_locked(code, reason)
        if sends_for is not None:
            transport.keep_sending_locked(sends_for.at)
    transport.flush()
    transport.wake()
