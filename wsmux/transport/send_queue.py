"""Queue frames from all threads and send them with one thread at a time, without a sender thread.

- The transport's ``mutex`` guards the queues. Nothing is sent under it.
- The send lock is held while writing to the socket. It is only ever *tried*: a thread that does not
  get it leaves its frames to the holder, which checks again after releasing it. The order is send
  lock, then mutex; no thread takes the send lock while it holds the mutex.
- A writer that finds the socket full waits for it itself, but only until its own frame is sent. It
  leaves the rest to the I/O thread, which never blocks in a send: ``wants_io`` (set under the send
  lock) makes it poll for writability. So there is always a thread responsible for each queued
  frame. It also does so when others queue frames as fast as it sends them: it came for its own.
- Control frames go first, in their own order. The bytes of data frames are limited; beyond the
  limit writers wait for room, in order of arrival. Short messages of streams with nothing else
  queued go before other data, and before waiting writers; see ``fair_queue``, which also determines
  the quantum of a stream on a slow path. The send lock guards the latter.

If a Ctrl-C arrives between taking bytes off a queue and the kernel's answer, it is unknown what was
sent: ``flush`` re-raises it after ending the connection with ``SendInterrupted``. The waits
themselves are safe to interrupt. In the main thread a signal ends them, and its handler is called
when the lock is released and the I/O thread sends: it may use the connection, or close it. If it
returns, the writer goes on.

A resumable transport replaces its socket. Between two of them the queue is ``suspended``: nothing
is taken from it, and writers find room in it until it is full. Its framing keeps what was encoded
until the peer acknowledges it; when too much is kept, no data is taken until some is acknowledged.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from ..config import Config
from ..protocols.base import Buffer, Message
from ..protocols.framing import Framing, Opcode
from ..protocols.resumable_framing import ACKNOWLEDGEMENT, ResumableFraming
from ..protocols.resumption import QUARTER, Session
from ..runtime.deadline import Deadline
from ..runtime.parking import Parker, Waiter, wake
from ..runtime.signals import held_back, in_main_thread
from .fair_queue import FairQueue, FlowState, Frame, SendRateEstimator
from .socket_io import Socket, Wakeup, wait_writable

__all__ = ["SendQueue"]

# Pongs kept while the socket is full; RFC 6455 section 5.5.3 allows dropping older ones. As in
# go-yamux.
MAX_PONGS = 32

# Maximum number and bytes of data frames passed to the socket in one call.
BATCH_FRAMES = 32
BATCH_BYTES = 64 * 1024

# Calls of the socket for others' frames, before a thread leaves them to the I/O thread, and that to
# its next round. They send about 1 MiB, or 512 short messages, in about a millisecond.
TURN = 16

# More than the longest header of a data frame.
HEAD = 32

_BINARY = Opcode.BINARY


class SendQueue:
    """Hold the frames that wait for one socket.

    Attributes:
        closed: a close frame was queued, or sending has ended; later frames are dropped.
        wants_io: the I/O thread must call ``flush`` when the socket is writable.
        bytes_sent: bytes accepted by the socket.
        blocked: the socket was full since the I/O thread last found the queue empty.
        tap: the flight recorder's callback for outgoing frames.
        sent: the ticket of the last data frame known to be passed to the socket; it may lag behind.
        suspended: a resumable transport has no socket, or a lost one.
        held_back: so much is unacknowledged that no data is taken; the I/O thread resets it.
        kept_bytes: the memory that a session takes until the peer has acknowledged what was sent,
            as the I/O thread has last counted it.
        failure: the error of the lost socket, if the sending thread noticed it.
    """

    def __init__(
        self,
        sock: Socket,
        framing: Framing,
        config: Config,
        mutex: threading.Lock,
        io_thread: Wakeup,
    ) -> None:
        self.closed = False
        self.wants_io = False
        self.blocked = False
        self.bytes_sent = 0
        self.sent = 0
        self.suspended = self.held_back = False
        self.kept_bytes = 0
        self.failure: OSError | None = None
        self.tap: Callable[[list[Frame]], None] | None = None
        self._socket = sock
        self._io_thread = io_thread
        self._framing = framing
        self._session: Session | None = None
        if isinstance(framing, ResumableFraming):
            self._session = framing.session
        self._config = config
        self._max_size = config.max_send_queue
        self._mutex = mutex
        self._new_send_lock()
        self._control: deque[Frame] = deque()
        self._pongs: deque[bytes] = deque(maxlen=MAX_PONGS)
        self._fair_queue = fair_queue = FairQueue(config.max_frame_size)
        self._new_flows, self._old_flows = fair_queue.new_flows, fair_queue.old_flows
        self._solicited_frames = 0
        self._solicited_bytes = 0
        self._acknowledges = False  # an ACKNOWLEDGEMENT is among them
        self._room: deque[Waiter] = deque()  # writers waiting for room, in order of arrival
        self._queued = 0  # data frames ever queued as old flows: the ticket of a writer
        self._holder_waits = False  # the holder of the send lock waits for the socket
        self._interrupt: Wakeup | None = None  # ends that wait; made when first needed
        # Guarded by the send lock:
        self._out: list[Buffer] = []  # encoded, not yet accepted by the socket
        self._out_frames = 0  # old-flow data frames among them
        self._taken = 0  # such frames ever moved to _out
        self._left = TURN  # calls of the socket that the holder may still make for others
        self._send_rate = SendRateEstimator(config.max_frame_size)

    def _new_send_lock(self) -> None:
        self._send_lock = threading.Lock()
        self._try_lock = partial(self._send_lock.acquire, False)

    # Under the mutex

    def add_control_locked(
        self, messages: list[Message], kind: Opcode = Opcode.BINARY, solicited: bool = False
    ) -> bool:
        """Queue messages that may overtake data.

        Returns false if too many ``solicited`` messages (answers to the peer) are queued: a peer
        that causes many and reads none must be disconnected.
        """
        if self.closed:
            return True
        for message in messages:
            size = len(message[0]) + len(message[1])
            self._control.append((kind, message, size))
            if solicited:
                self._solicited_frames += 1
                self._solicited_bytes += size
        return (
            self._solicited_frames <= self._config.max_control_frames
            and self._solicited_bytes <= self._config.max_control_bytes
        )

    def add_acknowledgement_locked(self) -> None:
        """Queue an ``ACKNOWLEDGEMENT``, unless there is one: it tells all that has come by then."""
        if not self._acknowledges:
            self._acknowledges = True
            self.add_control_locked([ACKNOWLEDGEMENT])

    def add_data_locked(
        self, messages: list[Message], kind: Opcode = Opcode.BINARY, flow: FlowState | None = None
    ) -> int:
        """Queue messages in order; return the ticket of the last one for ``flush``.

        If all belong to one stream, given by its ``flow``, they may overtake others. No thread
        needs to wait for a message that does so: its ticket is 0.
        """
        ticket = self._queued
        if not self.closed:
            fair_queue, room = self._fair_queue, self._room
            for message in messages:
                size = len(message[0]) + len(message[1])
                if (
                    flow is not None
                    and (fair_queue.old_flows or room)
                    and fair_queue.may_overtake(flow, size, len(room))
                ):
                    fair_queue.overtake((kind, message, size), flow)
                    ticket = 0
                else:
                    fair_queue.append_frame((kind, message, size), flow)
                    self._queued += 1
                    ticket = self._queued
        return ticket

    def add_pong_locked(self, payload: bytes) -> None:
        """Queue the answer to a ping; if there are too many, the oldest is dropped."""
        if not self.closed:
            self._pongs.append(payload)

    def drop_data_locked(self) -> None:
        """Drop data that can no longer be delivered."""
        self._fair_queue.clear()

    def has_room_locked(self, waited: bool) -> bool:
        """Return whether a data frame may be queued now; waiting writers have precedence."""
        return self._fair_queue.size < self._max_size and (waited or not self._room)

    def quantum_locked(self, flow: FlowState, size: int, waited: bool) -> int:
        """Return how many of the next ``size`` bytes of a stream may be queued now."""
        fair_queue, room = self._fair_queue, self._room
        if (fair_queue.size < self._max_size and (waited or not room)) or (
            (fair_queue.old_flows or room) and fair_queue.may_overtake(flow, size + HEAD, len(room))
        ):
            return self._send_rate.quantum
        return 0

    def wait_room_locked(self, waiter: Waiter, deadline: Deadline) -> None:
        """Wait for a turn, with the mutex held; the caller checks again whether there is room.

        A caller that then does not use its turn must wake the I/O thread, which passes it on.
        """
        self._room.append(waiter)
        try:
            waiter.wait(self._mutex, deadline)
        finally:
            if waiter in self._room:
                self._room.remove(waiter)

    def ask_room_locked(self, waiter: Waiter) -> None:
        """Notify a waiter when its turn comes, without blocking a thread."""
        if waiter not in self._room:
            self._room.append(waiter)

    def collect_room_locked(self, wakes: list[Parker]) -> None:
        """Collect as many waiting writers as there is room for."""
        if self._room:
            room = self._max_size - self._fair_queue.size
            writers = 1 + room // self._config.max_frame_size if room > 0 else 0
            while self._room and writers:
                self._room.popleft().notify(wakes)
                writers -= 1

    def notify_forced_locked(self, wakes: list[Parker]) -> None:
        """Collect all waiting writers, even those collected before."""
        while self._room:
            self._room.popleft().notify_forced(wakes)

    def interrupt_locked(self) -> None:
        """Make a writer that waits for the socket check whether it must still wait."""
        if self._holder_waits and self._interrupt is not None:
            self._interrupt.set()

    def has_waiting_writers(self) -> bool:
        """Return whether writers wait for room; without the mutex, so only a hint."""
        return bool(self._room)

    def waiters_locked(self) -> frozenset[Waiter]:
        """Return the writers that wait for room."""
        return frozenset(self._room)

    def holder_waits_locked(self) -> bool:
        """Return whether a writer waits for the socket."""
        return self._holder_waits

    def waiting_locked(self) -> int:
        """Return how many writers wait for room."""
        return len(self._room)

    def queued_bytes_locked(self) -> int:
        """Return the bytes of data frames in the queue."""
        return self._fair_queue.size

    # Without the mutex

    def has_output(self) -> bool:
        """Return whether anything is queued for the socket."""
        return bool(self._old_flows or self._new_flows or self._control or self._out or self._pongs)

    def _may_send(self) -> bool:
        """Return whether anything is queued that is not held back."""
        return bool(
            self._out
            or ((self._old_flows or self._new_flows) and not self.held_back)
            or self._control
            or self._pongs
        )

    def taken_by_peer(self) -> int:
        """Return how many bytes the peer's system has acknowledged, as far as is known here."""
        return self.bytes_sent - self._socket.unacknowledged()

    def flush(
        self,
        ticket: int,
        deadline: Deadline | None,
        given_up: Callable[[], bool] | None,
        handlers_wait: bool = False,
    ) -> bool:
        """Send what is queued; wait for the socket at most until ``ticket``'s frame is sent.

        Without a deadline it never blocks; ``given_up`` can end a wait, and is called after
        ``interrupt_locked``. Returns false if the I/O thread must be woken to send the rest.
        However much others queue meanwhile, it returns soon after its own frame, or its deadline.
        With ``handlers_wait``, none of a signal is called in this thread meanwhile.

        Raises:
            OSError: the socket failed; the frames are lost.
        """
        emptied: bool | None = True
        left = TURN
        while (
            emptied
            and (
                ((self._old_flows or self._new_flows) and not self.held_back)
                or self._control
                or self._out
                or self._pongs
            )
            and not self.suspended
        ):
            # A loop over an iterator, since an interrupt can arrive between a call that acquires
            # the lock and the next line.
            for _ in iter(self._try_lock, False):
                emptied = self.wants_io = False
                self._left = left
                try:
                    emptied = self._send_all(ticket, deadline, given_up, handlers_wait)
                finally:
                    left = self._left
                    self.sent = self._taken - (0 if emptied else self._out_frames)
                    self.wants_io = not emptied
                    self._send_lock.release()
                break
            else:
                break  # the holder checks again
        if emptied is None:
            assert deadline is not None
            return self._wait_held_back(ticket, deadline, given_up)
        return emptied

    def _wait_held_back(
        self, ticket: int, deadline: Deadline, given_up: Callable[[], bool] | None
    ) -> bool:
        """Flush in the main thread; handlers of signals are called between two waits.

        What a handler raises does not hide that the socket has failed: see ``SendInterrupted``.
        """
        came = False

        def note() -> None:
            nonlocal came
            came = True
            if self._interrupt is not None:
                self._interrupt.set()

        def leave() -> bool:
            return came or (given_up is not None and given_up())

        failure: OSError | None = None
        while failure is None:
            try:
                with held_back(note):
                    try:
                        emptied = self.flush(ticket, deadline, leave, True)
                    except OSError as error:
                        failure = error.with_traceback(None)  # without this frame: it would cycle
                    if not came:
                        break
                    came = False
                    self._io_thread.set()
            except BaseException as interrupt:  # a handler has raised it
                if failure is not None:
                    raise SendInterrupted from interrupt
                raise
        if failure is not None:
            raise failure
        return emptied

    def _suspend(self, failure: OSError | None) -> None:
        """Stop sending, with the send lock held, until the I/O thread brings another socket."""
        if failure is not None:
            # Without frames, which refer to this object.
            failure.__traceback__ = failure.__cause__ = failure.__context__ = None
        self.failure, self.suspended = failure, True
        self._io_thread.set()

    def _send_all(
        self,
        ticket: int,
        deadline: Deadline | None,
        given_up: Callable[[], bool] | None,
        handlers_wait: bool,
    ) -> bool | None:
        """Send until the queue is empty; return false if the I/O thread must send the rest.

        Returns ``None`` if it has to wait, for which handlers of signals must be held back.
        """
        waiting = filling = False
        try:
            while not self.suspended:
                if not self._left:
                    if not self._may_send():
                        break  # another thread has sent it
                    own = ticket > self._taken - self._out_frames
                    if not own or deadline is None or deadline.expired():
                        return False
                    self._left = TURN
                self._left -= 1
                filling = True
                out = self._out or self._fill()
                filling = False
                # There are none if another thread has sent them, or they were dropped or held back.
                sent = self._socket.send(out) if out else 0
                if sent is not None:
                    self.bytes_sent += sent
                    if sent == sum(map(len, out)):
                        out.clear()  # the usual case
                    else:
                        _advance(out, sent)
                    # As ``_may_send``, without a call for each frame that is sent.
                    if (
                        self._out
                        or ((self._old_flows or self._new_flows) and not self.held_back)
                        or self._control
                        or self._pongs
                    ):
                        continue
                    break
                waits = deadline is not None and ticket > self._taken - self._out_frames
                if waits and not handlers_wait and in_main_thread():
                    return None
                if self._send_rate.full(time.monotonic(), self.bytes_sent):
                    # Unsent bytes in the system delay a short message as a quantum does.
                    self._socket.limit_unsent(2 * self._send_rate.quantum)
                if not self.blocked:
                    self.blocked = True
                    self._io_thread.set()  # to time how long the peer accepts nothing
                if deadline is None or not waits:
                    return False
                waiting = True
                if not self._wait_writable(deadline, given_up):
                    return False
                waiting = False
            rate = self._send_rate
            if rate.timing or rate.slow:
                rate.emptied(time.monotonic(), self.bytes_sent)
            return True
        except OSError as error:
            self._out.clear()
            if self._session is None:
                raise
            self._suspend(error)
            return True
        except BaseException as interrupt:
            if waiting:
                raise
            self._out.clear()
            if self._session is None or filling:
                raise SendInterrupted from interrupt
            self._suspend(None)  # whatever was sent is sent again, and received once
            raise

    def _wait_writable(self, deadline: Deadline, given_up: Callable[[], bool] | None) -> bool:
        """Wait until the socket is writable; return false if waiting is no longer useful."""
        with self._mutex:
            if self._interrupt is None:
                try:
                    self._interrupt = Wakeup()
                except OSError:  # no descriptor is left, and the socket is fine
                    return False
            self._holder_waits = True
        try:
            if deadline.expired() or self.suspended or (given_up is not None and given_up()):
                return False
            wait_writable(self._socket, deadline.remaining(), self._interrupt.fd)
            return True
        finally:
            with self._mutex:
                self._holder_waits = False
                self._interrupt.clear()

    def _fill(self) -> list[Buffer]:
        """Move frames from the queues, control frames first, and encode them."""
        out, encode, rate = self._out, self._framing.encode, self._send_rate
        wakes: list[Parker] | None = None
        with self._mutex:
            frames = self._take_control_locked() if self._control or self._pongs else []
            size = rate.quantum if rate.slow else BATCH_BYTES
            session = self._session
            if session is not None and (
                session.sent - session.acknowledged >= session.few_bytes
                or len(session.kept) >= session.few_messages
            ):
                size = min(size, self._room_locked(session))
                if session.allocated() - self.kept_bytes >= session.limit // QUARTER:
                    self._framing.due = True
                    self._io_thread.set()  # to count it, though the peer may send nothing
            count = self._fair_queue.take(frames, size, BATCH_FRAMES)
            self._taken += count
            self._out_frames = count
            if self._room:
                wakes = []
                self.collect_room_locked(wakes)
        if wakes:
            wake(wakes)
        if self.tap is not None:
            if session is not None:
                return self._encode_one_by_one(frames, self.tap)
            self.tap(frames)
        for kind, message, _ in frames:
            if kind is _BINARY:
                out += encode(message)
            elif kind < Opcode.CLOSE:
                out += encode(message, kind)
            elif control := self._framing.encode_control(kind, message[0]):
                out.append(control)
        return out

    def _encode_one_by_one(
        self, frames: list[Frame], tap: Callable[[list[Frame]], None]
    ) -> list[Buffer]:
        """Encode the frames of a recorded session, whose framing tells of messages between them."""
        out = self._out
        for frame in frames:
            kind, message, _ = frame
            if kind < Opcode.CLOSE:
                out += self._framing.encode(message, kind)
            elif control := self._framing.encode_control(kind, message[0]):
                out.append(control)
            if message is not ACKNOWLEDGEMENT:
                tap([frame])
        return out

    def _room_locked(self, session: Session) -> int:
        """Return how many bytes of data may be sent before more are acknowledged."""
        room = session.room()
        if room <= 0 and (self._old_flows or self._new_flows):
            self.held_back = True
            room = session.room()  # an acknowledgement before this is not seen otherwise
            # The I/O thread resets it for one after this, so it may only be reset here.
            if room > 0:
                self.held_back = False
            elif not self.blocked:
                self.blocked = True
                self._io_thread.set()  # to time how long the peer acknowledges nothing
        return room

    def _take_control_locked(self) -> list[Frame]:
        frames = list(self._control)
        self._control.clear()
        self._solicited_frames = self._solicited_bytes = 0
        self._acknowledges = False
        frames += [(Opcode.PONG, (payload, b""), 0) for payload in self._pongs]
        self._pongs.clear()
        return frames

    # Between two sockets; for the I/O thread

    def replace_pings_locked(self, pings: list[Message]) -> None:
        """Queue pings, instead of those queued and not sent."""
        queued = [frame for frame in self._control if frame[0] is not Opcode.PING]
        self._control.clear()
        self._control.extend(queued)
        self.add_control_locked(pings, Opcode.PING)

    def detach(self) -> None:
        """Close the lost socket. What is queued stays; the socket must have been shut down."""
        with self._mutex:
            self.suspended = True
            self.interrupt_locked()
        with self._send_lock, self._mutex:
            self._socket.close()
            self._out.clear()
            self._out_frames = 0
            self.wants_io = self.blocked = self.held_back = False

    def attach(self, sock: Socket, greeting: bytes, received: int) -> int:
        """Go on over another socket: send ``greeting``, then what the peer lacks.

        Args:
            received: the position up to which the peer has received.

        Returns the number of bytes that are sent again.

        Raises:
            PositionError: the peer claims what cannot be; the queue stays suspended.
        """
        framing = self._framing
        assert isinstance(framing, ResumableFraming)
        with self._send_lock:
            kept = framing.session.resume(received)
            self._socket = sock
            self._out += framing.encode_greeting(greeting) if greeting else []
            self._out += framing.resend(kept)
            self._send_rate = SendRateEstimator(self._config.max_frame_size)
            self.failure = None
            self.suspended = False
            return framing.session.unacknowledged()

    def finish(self) -> None:
        """Close the socket when no thread is sending; queued frames are dropped.

        The socket must have been shut down, so that the holder of the send lock leaves. Holding
        both locks keeps the descriptor from being reused during a send or a shutdown.
        """
        with self._send_lock, self._mutex:
            self._socket.close()
            self._out.clear()
            if self._interrupt is not None:
                self._interrupt.close()
            self.closed = True
            self._control.clear()
            self._pongs.clear()
            self.drop_data_locked()

    def forked(self, mutex: threading.Lock) -> None:
        """Start over in a forked child: fresh locks, empty queues, no waiters."""
        self._mutex = mutex
        self._new_send_lock()
        self._room.clear()
        if self._interrupt is not None:
            self._interrupt.forked()
        self.closed = True
        self._control.clear()
        self._pongs.clear()
        self._out.clear()
        self.drop_data_locked()


class SendInterrupted(OSError):
    """Report that an interrupt left it unknown how much was sent, or came with a failure."""

    def __init__(self) -> None:
        super().__init__("a send was interrupted in the middle, so the connection cannot continue")


def _advance(pieces: list[Buffer], count: int) -> None:
    """Drop the first ``count`` bytes of ``pieces``."""
    done = 0
    for piece in pieces:
        if len(piece) > count:
            break
        count -= len(piece)
        done += 1
    del pieces[:done]
    if count:
        pieces[0] = memoryview(pieces[0])[count:]
