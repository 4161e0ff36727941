"""Own one socket whose handshake is done: framing, sending, keepalive, the closing.

Threads and locks:

- ``mutex`` guards the send queue and the states here, and whatever the owner puts under it (the
  mux keeps its protocol and streams there). Nothing is read from or written to the socket under
  it. How sending works, and the send lock, is told in ``send_queue``.
- One I/O thread, the one that iterates ``batches()``, reads, answers pings and keeps time. It
  never waits in a send.
- No waiting thread holds anything that another thread needs: callers are parked on the mutex; the
  thread that sends waits in ``poll``, which a shutdown ends. So two ends that both write bulk and
  read nothing cannot hang each other's I/O threads.

What ends the transport is stored in ``error``, once; the first cause stays. A fork gives the child
a ``ForkedError`` there, fresh locks and no descriptors; it writes nothing.

``FrameReader`` reads frames and sets the control frames apart; ``PeerLimits`` detects peers that
send or read too slowly, or ping too often. Both belong to the I/O thread, and nothing in them is
locked.
``message_transport`` opens a transport for the layers that exchange messages and need no streams.
"""

from __future__ import annotations

import itertools
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Generator
from itertools import groupby
from operator import itemgetter
from typing import Protocol

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
from ..protocols.base import Message, Role
from ..protocols.framing import Framing, Opcode, Received, decode_close, encode_close
from ..runtime import fork
from ..runtime.deadline import LONGEST_WAIT, Deadline
from ..runtime.memory import PRESSURE, REPORT_STEP, Verdict, process_memory
from ..runtime.parking import OneShotEvent, Parker, wake
from ..runtime.threads import register
from .fair_queue import Frame
from .keepalive import KeepAlive, Ping, Pings
from .send_queue import SendInterrupted, SendQueue
from .socket_io import Socket, Wakeup, take_over

__all__ = ["FrameReader", "MessageTransport", "Part", "PeerLimits", "hang_up", "message_transport"]

# Messages, and the pings and pongs that came after them.
Part = tuple[list[Received], list[tuple[Opcode, bytes]]]


class FrameTap(Protocol):
    """The flight recorder, as far as the transport knows it.

    Attributes:
        received: called by the I/O thread with the frames of one read.
        sent: called by the thread that holds the send lock, with the frames about to be sent.
    """

    received: Callable[[list[Received]], None]
    sent: Callable[[list[Frame]], None]

    def text(self, error: WsmuxError | None) -> str:
        """Return the recording so far; ``error`` is what ended the connection, if it has ended."""

    def ended(self, error: WsmuxError | None) -> None:
        """Note that the connection has ended, and why."""


class FrameReader:
    """Read one socket.

    Attributes:
        bytes_received: what the socket gave.
        ended: the peer ended the connection, with a Close or without.
        close_payload: that of the peer's Close, until somebody takes it.
        peer_closed: a Close has come.
        recorder: keeps the frames of the connection, where that was asked for.
    """

    def __init__(self, sock: Socket, framing: Framing) -> None:
        self.bytes_received = 0
        self.ended = False
        self.close_payload: bytes | None = None
        self.peer_closed = False
        self.recorder: FrameTap | None = None
        self._pings_and_pongs: list[tuple[int, Opcode, bytes]] = []  # and the messages before each
        self._socket = sock
        self._framing = framing

    def read(self) -> list[Received] | None:
        """Return the messages that came; ``None`` when no byte did, for now or for ever."""
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
        """Cut what ``read`` returned last after the pings and pongs that came in between."""
        if not self._pings_and_pongs:
            return [(messages, [])]
        parts: list[Part] = []
        start = 0
        for before, group in groupby(self._pings_and_pongs, itemgetter(0)):
            parts.append((messages[start:before], [control[1:] for control in group]))
            start = before
        self._pings_and_pongs.clear()
        parts.append((messages[start:], []))
        return parts

    def _sort(self, frames: list[Received]) -> list[Received]:
        """Set control frames apart; return the messages, which count even before a failure."""
        messages = []
        for kind, data in frames:
            if self.peer_closed:
                break  # RFC 6455 section 5.5.1: nothing follows a Close
            if kind < Opcode.CLOSE:
                messages.append((kind, data))
            elif kind is Opcode.CLOSE:
                self.peer_closed = True
                self.close_payload = bytes(data)
            else:
                self._pings_and_pongs.append((len(messages), kind, bytes(data)))
        return messages


class PeerLimits:
    """Look at one transport when ``next_look`` says so.

    Attributes:
        reading: a message is incomplete, and timed.
        sending: bytes wait for the peer, and are timed.
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
        """Note where everything stands; return what ends the transport, if something must."""
        message = self._framing.incomplete(self._inbox.bytes_received)
        late = self._message.look(message, now)
        taken = self._queue.taken_by_peer() if self._queue.has_output() else None
        stalled = self._output.look(taken, now)
        self.reading, self.sending = message is not None, taken is not None
        if not self.sending:
            self._queue.blocked = False
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

    def full_for(self, now: float) -> float | None:
        """Return for how many seconds the peer's system has taken no byte of those that wait.

        As the last look had it: ``None`` when there were none, or nobody times them.
        """
        return self._output.still_for(now)

    def pinged(self, now: float) -> None:
        """Charge a ping of the carrier, or a pong nobody asked for.

        Raises:
            FrameError: it is one too many.
        """
        self._floods.ping(now, self._inbox.bytes_received)


# Seconds that a client waits for the server to close the TCP connection first (RFC 6455 section
# 7.1.1), and that a failed connection is given to get its close code out.
LINGER = 1.0

# A look into the module for each poll costs too much.
POLLIN, POLLOUT = select.POLLIN, select.POLLOUT
ENDED = select.POLLHUP | select.POLLERR

NEVER = math.inf

_serial = itertools.count(1)


class MessageTransport:
    """Carry messages over one socket.

    Attributes:
        mutex: the connection's one lock; see the module's text.
        frame_reader: what reads the socket, for the I/O thread.
        queue: the send queue; its ``_locked`` methods want the mutex.
        error: what ended the transport, ``None`` while it lives. Only ever set once.
        cut: nothing goes out any more; the I/O thread is ending, or has.
        in_child: this is a forked child's useless copy.
        owner_timer: when the owner wants a batch, even an empty one.
        next_timer: when the I/O thread looks at its timers, the owner's among them.
        now: when the I/O thread's last poll returned, for that thread.
        pings: the carrier has pings of its own, and a Close.
        close_notice: the peer has said by the wire that it ends; for a carrier that has no Close.
    """

    def __init__(
        self, sock: socket.socket, framing: Framing, role: Role, config: Config, name: str = ""
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
        self.queue = SendQueue(self._socket, framing, config, self.mutex, self._wakeup)
        self._limits = PeerLimits(config, framing, self.frame_reader, self.queue)
        self.keep_alive = KeepAlive(config.ping_interval, config.ping_timeout, time.monotonic())
        self._interest = 0
        self.now = time.monotonic()
        self.next_timer = NEVER
        self._finished = OneShotEvent()
        self.cut = self.in_child = False
        self.pings = framing.has_controls
        self.close_notice = False
        self._give_up: float | None = None  # when the closing handshake has taken long enough
        self._reported = 0  # bytes allocated that were last reported to the process's sum
        self._saves = False  # memory is short: it reads into a small buffer
        self._paused = False  # nothing is read: see _limit_process_memory
        fork.register(self)
        register(self)

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
        """Send what is queued, waiting for the socket at most until ``ticket``'s frame is out.

        See ``SendQueue.flush``. It does not tell what became of the frames: ``error`` does.
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
            # After an interrupt, too, the rest is for the I/O thread; at the end, it waits to hear
            # that the Close is out.
            if not emptied or self.error is not None:
                self._wakeup.set()

    def wake(self) -> None:
        """Make the I/O thread look at its timers and queues."""
        self._wakeup.set()

    def held(self) -> int:
        """Return how many bytes have come of a message that is not whole; for the I/O thread."""
        return self._framing.held()

    def ping(self, deadline: Deadline) -> float:
        """Send a ping and wait for its pong; return the seconds between.

        Raises:
            TimeoutError: no pong in time; the connection goes on.
            ConnectionClosed: the transport ended.
        """
        ping: Ping | None = None
        try:
            with self.mutex:
                self.check_locked()
                ping, message = self.keep_alive.new_ping(time.monotonic())
                self.queue.add_control_locked([message], Opcode.PING)
            self.flush()
            with self.mutex:
                took = self.wait_pong_locked(self.keep_alive.pings, ping, deadline)
            return took  # outside: a signal after a last call within would leave the mutex locked
        finally:
            if ping is not None and ping.rtt is None:
                self.wake()  # it may not have been sent
                with self.mutex:
                    self.keep_alive.pings.forget(ping)

    def wait_pong_locked(self, pings: Pings, ping: Ping, deadline: Deadline) -> float:
        """Wait until a ping comes back, of this carrier or of the wire; return the seconds.

        Raises:
            TimeoutError: no answer in time. ConnectionClosed: the transport ended.
            StreamError, LocalProtocolError: the stream ended, or no ping of the connection is
            answered any more.
        """
        try:
            while ping.rtt is None:
                if ping.over and ping.stream_id is not None:
                    text = f"stream {ping.stream_id} ended without a pong"
                    raise StreamError(text, ping.stream_id)
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
        """Raise what ended the transport, if it has ended."""
        if self.error is not None:
            raise fresh_copy(self.error) from self.error.__cause__

    def close(self, code: int, reason: str, deadline: Deadline) -> None:
        """Send what is queued and a Close, and wait for the peer's part; never longer than told.

        The first cause stays: closing again only waits.
        """
        with self.mutex:
            if isinstance(self.error, ForkedError):
                return
            ticket = self.close_locked(code, reason)
        self.flush(ticket, deadline)
        if not self._finished.wait(deadline.remaining()):
            self.abort()
            self._finished.wait(LINGER)

    def close_locked(self, code: int, reason: str) -> int:
        """Queue a Close after what is queued; return its ticket for ``flush``."""
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

    def abort(self, error: WsmuxError | None = None) -> None:
        """Cut the connection at once, without a Close."""
        error = error or ConnectionClosedError(CloseCode.ABNORMAL_CLOSURE, "aborted", "local")
        with self.mutex:
            try:
                self.abort_locked(error)
            except BaseException:  # interrupted by a signal handler
                self.abort_locked(error)
                raise

    def leave(self) -> None:
        """Cut the connection, since the interpreter ends; see ``runtime.threads``."""
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
        """End for a failure: queued data is dropped, the close code goes out first."""
        if self.error is None:
            self._end_locked(error)
            self.queue.drop_data_locked()
            self._queue_close_locked(error.code, error.reason, last=False)
            self._give_up = time.monotonic() + LINGER

    def notify_forced_locked(self, wakes: list[Parker]) -> None:
        """Collect every thread that waits here."""
        self.queue.notify_forced_locked(wakes)
        self.keep_alive.pings.askers.notify_forced(wakes)

    def _end_locked(self, error: WsmuxError) -> None:
        self.error = error
        self.queue.interrupt_locked()
        self._wakeup.set()

    def abort_locked(self, error: WsmuxError) -> None:
        """Cut the connection as ``abort`` does."""
        if self.error is None:
            self._end_locked(error)
        self.queue.closed = True
        self.cut = True
        self._socket.shutdown()
        self._wakeup.set()

    def _lost(self, cause: OSError) -> None:
        """Note that the socket failed, whoever found out."""
        error = ConnectionClosedError(
            CloseCode.ABNORMAL_CLOSURE, cause.strerror or str(cause), None
        )
        # Without frames, which lead back here: memory would wait for the garbage collector.
        cause.__traceback__ = cause.__cause__ = cause.__context__ = None
        error.__cause__ = cause
        with self.mutex:
            self.abort_locked(error)

    def _queue_close_locked(self, code: int, reason: str, last: bool) -> int:
        ticket = 0
        if not self.queue.closed:
            messages: list[Message] = [(encode_close(code, reason), b"")]
            if last:
                ticket = self.queue.add_data_locked(messages, Opcode.CLOSE)
            else:
                self.queue.add_control_locked(messages, Opcode.CLOSE)
            self.queue.closed = True
            self._give_up = time.monotonic() + self.config.close_timeout
        return ticket

    # The I/O thread

    def batches(self) -> Generator[list[Received]]:
        """Run the I/O loop; yield the messages that the owner must handle, in order.

        An empty batch says that a timer may be due. The iteration ends with the transport;
        ``error`` is set then. Views in a batch are void once the next one is asked for.
        """
        try:
            poller = select.poll()
            poller.register(self._wakeup.fd, POLLIN)
            poller.register(self._socket.fileno(), self._interest)
            queue, frame_reader, framing, limits = (
                self.queue,
                self.frame_reader,
                self._framing,
                self._limits,
            )
            self._keep_time()
            while self.error is None or not self._done():
                self._poll(poller)
                messages = None if self._paused else frame_reader.read()
                if frame_reader.ended:
                    yield []  # the owner may know whether this is a good end
                    self._end_of_file()
                elif messages is not None:
                    if self.keep_alive.heard(self.now):
                        self._set_look()
                    if not messages and not limits.reading:
                        self._keep_time()
                for part, controls in frame_reader.in_order(messages or []):
                    yield part
                    if controls:
                        self._answer(controls)
                allocated = framing.allocated() - self._reported
                if (
                    not -REPORT_STEP < allocated < REPORT_STEP
                    or process_memory.total > self.config.max_process_buffer
                    or self._saves
                    or self._paused
                ):
                    self._limit_process_memory()
                ending = frame_reader.close_payload is not None or framing.failure is not None
                if ending and self._note_end():
                    yield []  # the owner tells everybody
                blocked = queue.blocked and not limits.sending
                if blocked or self.now >= self.next_timer or queue.has_waiting_writers():
                    self._keep_time()
                queue.flush(0, None, None)  # what does not go out is polled for
        except OSError as error:
            self._lost(error)
        finally:
            self.discard()

    def _done(self) -> bool:
        """Return whether there is nothing left to wait for, once the transport has ended."""
        if self.cut:
            return True
        now = time.monotonic()
        if self._give_up is not None and now >= self._give_up:
            return True
        if self.queue.has_output():
            return False
        server = self.role is Role.SERVER  # first to close the TCP connection: RFC 6455, 7.1.1
        if not self.pings or (server and self._framing.failure is not None):
            self._socket.end_writing()  # all there is for a Close, or no answer to ours is read
        if not self.frame_reader.peer_closed:
            return False
        if server:
            return True
        self._give_up = min(self._give_up or now + LINGER, now + LINGER)
        return False

    def _poll(self, poller: select.poll) -> None:
        sock, wakeup = self._socket, self._wakeup
        if self._paused:
            interest = POLLOUT if self.queue.wants_io else 0
        elif sock.read_wants_write:
            interest = POLLOUT
        else:
            interest = POLLIN | POLLOUT if self.queue.wants_io else POLLIN
        if self._framing.filled and interest == POLLIN and self.error is None:
            self.now = time.monotonic()
            return  # the last read left more behind, most likely
        if interest != self._interest:
            poller.modify(sock.fileno(), interest)
            self._interest = interest
        # From the poll before, so late by the length of a round, and without asking the clock.
        left = self.next_timer - self.now
        if self.error is not None:
            left = min((self._give_up or NEVER) - self.now, LONGEST_WAIT)
        if left < 0 or (sock.hides_bytes and not self._paused and sock.pending()):
            left = 0
        for fd, events in poller.poll(left * 1000):
            if fd == wakeup.fd:
                wakeup.clear()
            elif events & ENDED:
                self._paused = False  # what is left may be read: nothing more comes
        self.now = time.monotonic()

    def _keep_time(self) -> None:
        """Ping a silent peer, give it up, and pass on a writer's turn that was not used."""
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
                    self.fail_locked(closed_error(CloseCode.INTERNAL_ERROR, text, "local"))
            failure = self._limits.look(now)
            if failure is not None:
                self.fail_locked(failure)
            self._set_look()
        wake(wakes)

    def _limit_process_memory(self) -> None:
        """Report what messages that are not whole take; end here where it is the most of all.

        While the sum is above its limit, whoever holds part of a message reads no further: else
        many threads would fill more than the one that holds most, which is one of them, can free.
        """
        framing, limit = self._framing, self.config.max_process_buffer
        self._saves = process_memory.total > limit * PRESSURE
        framing.save_memory(self._saves)
        self._reported = framing.allocated()
        waits = framing.held() >= REPORT_STEP
        verdict = process_memory.report(self, self._reported, limit, waits=waits)
        if verdict is Verdict.GIVE_UP:
            text = f"{framing.held()} bytes of a message that is not whole exceed"
            framing.fail(
                FrameError(f"{text} Config.max_process_buffer: {limit}", CloseCode.POLICY_VIOLATION)
            )
            self._reported = framing.allocated()
            process_memory.report(self, self._reported, limit)
        self._paused = verdict is Verdict.WAIT and self.error is None

    def full_for(self, now: float) -> float | None:
        """Return how long the peer's system has taken nothing; ``None`` if the socket has room."""
        return self._limits.full_for(now) or 0.0 if self.queue.blocked else None

    def silence_locked(self) -> bool:
        """Return whether the owner must ping now, since the carrier cannot."""
        alive = self.keep_alive
        due = not self.pings and alive.due(self.now)
        return due and alive.lost(self.now) is None

    def set_owner_timer(self, due: float | None) -> None:
        """Set when the owner, which is this thread, wants a batch, even an empty one."""
        if due != self.owner_timer:
            self.owner_timer = due
            self._set_look()

    def _set_look(self) -> None:
        """Note when to look at the timers again; bytes that come only move that further away."""
        timers = (self.keep_alive.next_timer(), self.owner_timer, self._limits.next_look())
        dues = [due for due in timers if due is not None]
        self.next_timer = min([*dues, self.now + LONGEST_WAIT])

    def _end_of_file(self) -> None:
        with self.mutex:
            if self.error is None:
                cut = "" if self._framing.between_messages() else " within a message"
                text = f"the peer ended the connection{cut}"
                lost = ConnectionClosedError(CloseCode.ABNORMAL_CLOSURE, text, None)
                clean = closed_error(CloseCode.NORMAL_CLOSURE, "", "remote")
                self._end_locked(clean if self.close_notice else lost)
            self.cut = True

    def _note_end(self) -> bool:
        """Note a Close or a broken rule, once what came before it has been handled."""
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
        """Handle pings and pongs, after the messages that came before them and before others."""
        wakes: list[Parker] = []
        now = time.monotonic()  # the ping may have been sent since the poll
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
        with self.mutex:
            if self.error is None:
                self._end_locked(closed_error(code, reason, "remote"))
            if not self.queue.closed:
                # The peer reads nothing further: what is queued has nowhere to go.
                self.queue.drop_data_locked()
                self._queue_close_locked(code, "", last=False)
            self._give_up = time.monotonic() + LINGER

    def discard(self) -> None:
        """Cut what is left and close the socket; the last thing that the I/O thread does."""
        with self.mutex:
            if isinstance(self.error, ForkedError):
                return
            self.abort_locked(
                ConnectionClosedError(CloseCode.ABNORMAL_CLOSURE, "the I/O thread ended", "local")
            )
        self.queue.finish()
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
        self._socket.abandon()
        self._wakeup.forked()


# A config wants room for a frame of streams, which nobody sends here.
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
    """Return a transport over a socket whose handshake is done; the socket is the transport's then.

    Args:
        close_timeout, ping_interval, ping_timeout: seconds, as in ``Config``; by default nobody
            is pinged.

    Raises:
        OSError: the system has no descriptor to give; the socket is closed.
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


def hang_up(transport: MessageTransport, code: int, reason: str) -> None:
    """Begin to close a transport after what is queued, from any thread and without waiting."""
    with transport.mutex:
        transport.close_locked(code, reason)
    transport.flush()
    transport.wake()
