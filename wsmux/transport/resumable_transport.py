"""Own a session and the sockets that carry it, one after another; see ``protocols.resumption``.

A socket that ends without the peer's END before ends only that carrier. The I/O thread then
closes it, and waits for the next one until the grace is over; meanwhile it yields empty batches for
the owner's timers. Other threads see a send queue that nothing leaves. ``Carriers`` finds the next
one: a client's connects, a server's waits for the client. Whoever brings it calls ``offer``; only
the I/O thread changes carriers.

An I/O thread never waits for the thread that searches, nor that for the I/O thread. What both use
is guarded by the transport's mutex, or is one attribute with one writer.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import NamedTuple, Protocol

from ..config import Config
from ..exceptions import CloseCode, ConnectionClosed, ResumeLost, closed_error
from ..protocols.base import Role
from ..protocols.framing import Received
from ..protocols.resumable_framing import ResumableFraming
from ..protocols.resumption import Hello, PositionError, Refusal, Welcome
from ..runtime import clock
from ..runtime.deadline import LONGEST_WAIT
from ..runtime.logs import logger
from ..runtime.memory import Verdict, process_memory
from .message_transport import IDLE, MessageTransport, Outage, PeerLimits
from .socket_io import Socket, take_over

__all__ = ["Carrier", "Carriers", "ResumableTransport"]

# Seconds within which a session acknowledges what it has received, however little.
ACKNOWLEDGE_WITHIN = 1.0

# Seconds, or the grace if that is less, after which a carrier counts as one that works though
# nothing got through: a page in the background acknowledges once a minute. What a message of the
# session ends, it ends much sooner.
STANDS = 10.0

_log = logger("wsmux")


class Carrier(NamedTuple):
    """A socket whose handshake is done, which carries a session from now on.

    Attributes:
        sock: the socket; whoever takes the carrier owns it.
        received: the position up to which the peer has received.
        oldest: the position from which on the peer can send again.
        welcomes: this side has to answer the HELLO that came over it.
        released: called when the socket has been closed.
        generation: that of the HELLO to answer.
    """

    sock: socket.socket
    received: int
    oldest: int = 0
    welcomes: bool = False
    released: Callable[[], None] | None = None
    generation: int = 0

    def close(self) -> None:
        """Close the socket of a carrier that is not used, or no longer."""
        self.sock.close()
        if self.released is not None:
            self.released()


class _Beginning(NamedTuple):
    """How a carrier began.

    Attributes:
        at: when.
        resent: there was something to send again.
        acknowledged, received: the positions of the session.
    """

    at: float
    resent: bool = False
    acknowledged: int = 0
    received: int = 0


class Carriers(Protocol):
    """Whatever finds carriers. Nothing here blocks; all but the last two are for the I/O thread."""

    def started(self, transport: ResumableTransport) -> None:
        """Note a new transport, which has a carrier. For the thread that makes it."""

    def lost(self, transport: ResumableTransport) -> float | None:
        """Find another carrier. Return when to call this again, if the search cannot begin now."""

    def found(self, transport: ResumableTransport) -> None:
        """Stop searching: there is another carrier."""

    def ended(self, transport: ResumableTransport) -> None:
        """Stop for good: the session has ended."""

    def hurry(self) -> None:
        """Make the next attempt at once."""

    def next_attempt(self) -> float | None:
        """Return when the next attempt begins, if this side waits for one."""


class ResumableTransport(MessageTransport):
    """Carry the messages of a session.

    Attributes:
        session: what is counted and kept.
        carriers: finds the next carrier.
        reconnects: how often there was another carrier.
        detached: since when there is no carrier, ``None`` while there is one.
        fruitless: how many carriers in a row were lost before anything got through.
        lost_by: why the last carrier was lost.
        attempt: why the last attempt to find another failed, ``""`` if none has.
    """

    resumes = True

    def __init__(
        self,
        sock: socket.socket,
        framing: ResumableFraming,
        role: Role,
        config: Config,
        carriers: Carriers,
    ) -> None:
        super().__init__(sock, framing, role, config)
        self.session = framing.session
        self.carriers = carriers
        self.detached: float | None = None
        self.fruitless = 0
        self.lost_by = self.attempt = ""
        self._sessions_framing = framing
        self._carrier: Carrier | None = None  # the present one, unless it is the first
        self._offered: Carrier | None = None  # the next one
        self._acknowledge: float | None = None  # when what was received must be acknowledged
        self._began = _Beginning(self.now)  # the present carrier, or the last one
        self._stuck = 0  # how many carriers in a row brought nothing of what was sent again
        self._grace_began = self.now  # earlier than the outage if there are several of those
        carriers.started(self)

    # Any thread

    def offer(self, carrier: Carrier) -> bool:
        """Give the transport another carrier, which it now owns; return false if it has ended.

        One whose client has said a later HELLO meanwhile is closed, without an answer.
        """
        with self.mutex:
            if self.cut:
                return False
            if carrier.welcomes and carrier.generation < self.session.generation:
                unused: Carrier | None = carrier
            else:
                unused, self._offered = self._offered, carrier
                self._leave_carrier_locked("it was replaced by another")
        if unused is not None:
            unused.close()
        self.wake()
        return True

    def replace_carrier(self) -> None:
        """Give up the present carrier, and search for another at once; only a client can."""
        with self.mutex:
            if self.cut or self.role is not Role.CLIENT:  # in a forked child, it is cut
                return
            self._leave_carrier_locked("another was asked for")
        self.wake()
        self.carriers.hurry()

    def _leave_carrier_locked(self, reason: str) -> None:
        if self.detached is None and not self.cut:
            self.lost_by = self.lost_by or reason
            self.queue.suspended = True
            self.queue.interrupt_locked()
            self._socket.shutdown()

    def lose(self, reason: str) -> None:
        """End the session for good, because it cannot be resumed."""
        session = self.session
        self.abort(ResumeLost(reason, session.acknowledged, session.unacknowledged()))

    def grace_left(self) -> float:
        """Return for how many seconds another carrier is still wanted, 0 if none is."""
        now = clock.monotonic()
        if self.detached is None or not self._is_wanted():
            return 0.0
        over = self._grace_began + self.session.grace if self._give_up is None else self._give_up
        return max(0.0, over - now)

    def outage_locked(self, now: float) -> Outage | None:
        if self.detached is None:
            return None
        due = self.carriers.next_attempt()
        return Outage(
            seconds=max(0.0, now - self.detached),
            reason=self.lost_by,
            unacknowledged=self.session.unacknowledged(),
            next_attempt=None if due is None else max(0.0, due - now),
            attempt=self.attempt,
            grace_left=self.grace_left(),
        )

    def unacknowledged(self) -> int:
        return self.session.unacknowledged()

    def _is_wanted(self) -> bool:
        """Return whether there is something to send or to receive over another carrier."""
        if self.cut or self.session.peer_end is not None:
            return False
        # The end is noted first, by a thread that then queues it for the peer; the I/O thread looks
        # without the mutex.
        if self.error is None or not self.queue.closed:
            return True
        # Closing: the peer must still get what was written before.
        due = self.session.unacknowledged() or self.queue.has_output()
        return bool(due) and (self._give_up is None or clock.monotonic() < self._give_up)

    # The I/O thread, with a carrier

    def _rounds(self) -> Generator[list[Received]]:
        try:
            yield from super()._rounds()
            while self.queue.suspended and self._is_wanted():
                yield from self._without_carrier()
                if not self.queue.suspended:  # otherwise that carrier is lost already
                    yield from super()._rounds()
        finally:
            # However the carrier ended: the peer, which ended the session before, has said why.
            self._note_peer_end()

    def _outlives(self, reason: str) -> bool:
        if not self._is_wanted():
            return False
        self.lost_by = self.lost_by or reason
        self.queue.suspended = True
        return True

    def _read_failed(self, error: OSError) -> None:
        self._note_peer_end()
        super()._read_failed(error)

    def _end_of_file(self) -> None:
        self._note_peer_end()
        super()._end_of_file()

    def _lose_peer_locked(self, error: ConnectionClosed) -> None:
        end = self.session.peer_end
        super()._lose_peer_locked(error if end is None else closed_error(*end, "remote"))

    def _note_peer_end(self) -> None:
        end = self.session.peer_end
        if end is not None:
            with self.mutex:
                if self.error is None:
                    self._end_locked(closed_error(*end, "remote"))

    def _close_received(self, payload: bytes) -> None:
        self._note_peer_end()
        super()._close_received(payload)

    def _account(self) -> None:
        """Acknowledge what was received, and let data go on that was held back."""
        session = self.session
        self._sessions_framing.due = False
        self.queue.kept_bytes = session.allocated()
        if self.queue.held_back and session.room() > 0:
            self.queue.held_back = False
        if -session.room() > session.limit + self.config.max_message_size:
            kept = len(session.kept)
            text = f"{kept} messages are not acknowledged, which exceeds Resume.buffer"
            self._give_up_unacknowledged(text)
        owed = session.received - session.told
        if owed >= session.acknowledge_after:
            self._send_acknowledgement()
        elif owed:
            session.look_at = session.told + session.acknowledge_after
            if self._acknowledge is None:
                self._acknowledge = self.now + ACKNOWLEDGE_WITHIN
                self._set_look()

    def _give_up_memory(self, limit: str) -> None:
        kept = self.session.allocated()
        if kept < self._framing.allocated():
            super()._give_up_memory(limit)
        else:
            self._give_up_unacknowledged(f"{kept} bytes kept until acknowledged exceed {limit}")

    def _give_up_unacknowledged(self, text: str) -> None:
        """End because the peer acknowledges too little of what it causes to be sent.

        Data waits where there is no room; the answers to a peer do not.
        """
        with self.mutex:
            self.fail_locked(closed_error(CloseCode.POLICY_VIOLATION, text, "local"))
            self.cut = True  # the peer takes nothing, so it would not take the reason either

    def _send_acknowledgement(self) -> None:
        session, self._acknowledge = self.session, None
        session.look_at = session.received + 1
        if session.received > session.told:
            with self.mutex:
                self.queue.add_acknowledgement_locked()

    def _keep_time(self) -> None:
        if self._acknowledge is not None and self.now >= self._acknowledge:
            self._send_acknowledgement()
        super()._keep_time()

    def _set_look(self) -> None:
        super()._set_look()
        if self._acknowledge is not None:
            self.next_timer = min(self.next_timer, self._acknowledge)

    # The I/O thread, without a carrier

    def _without_carrier(self) -> Generator[list[Received]]:
        """Wait for the next carrier, or for the end."""
        session = self.session
        self._socket.shutdown()
        self._poller.unwatch()
        self.queue.detach()
        self._sessions_framing.restart()
        with self.mutex:
            self.now = clock.monotonic()
            self._judge()
            self.detached = self.now
            failure = self.queue.failure
            if failure is not None and not self.lost_by:
                self.lost_by = failure.strerror or str(failure)
            self.lost_by = self.lost_by or "a send was interrupted"
        self._acknowledge = None
        session.look_at = session.received + 1
        _log.info(
            "%s has lost its carrier: %s; %d bytes are unacknowledged",
            self.name,
            self.lost_by,
            session.unacknowledged(),
        )
        self._release_carrier()
        search_again = self.carriers.lost(self)
        yield []
        while self.queue.suspended and self._is_wanted():
            with self.mutex:
                carrier, self._offered = self._offered, None
            if carrier is not None:
                if self._attach(carrier):
                    return
                search_again = self.now  # it ended before it was used
                continue
            if search_again is not None and self.now >= search_again:
                search_again = self.carriers.lost(self)
            self._limit_kept()
            if not self.grace_left():
                self.lose(self._expired())
            else:
                self._idle_without_carrier(search_again)
                yield IDLE
                self._wakeup.clear()
            yield []

    def _judge(self) -> None:
        """Note whether anything got through over the carrier that was lost.

        One message may be what ends each of them, such as one that a gateway refuses. Then the
        search for another pauses as after attempts that failed; and if this side sends it, there is
        not a new grace for each: it began when the first of them was lost. One alone may have met
        another cut, behind a long outage.
        """
        began, session = self._began, self.session
        moved = session.acknowledged > began.acknowledged
        if not began.resent:
            moved = moved or session.received > began.received
        fruitless = not moved and self.now - began.at < min(STANDS, session.grace)
        self.fruitless = self.fruitless + 1 if fruitless else 0
        self._stuck = self._stuck + 1 if fruitless and began.resent else 0
        if self._stuck < 2:
            self._grace_began = self.now

    def _expired(self) -> str:
        """Return why the session is lost when the grace is over."""
        grace = f"{self.session.grace:g} s"
        last = f" (the last attempt: {self.attempt})" if self.attempt else ""
        if self._stuck < 2:
            return f"there was no connection for {grace}{last}"
        return (
            f"nothing was acknowledged for {grace} over {self._stuck} connections; the last "
            f"ended: {self.lost_by}{last}"
        )

    def _limit_kept(self) -> None:
        """Report the memory of what is kept; give up the session if it holds the most."""
        limit = self.config.max_process_buffer
        self._reported = self.queue.kept_bytes = self.session.allocated()
        if process_memory.report(self, self._reported, limit) is Verdict.GIVE_UP:
            self.lose(
                f"{self._reported} bytes kept for it exceed Config.max_process_buffer: {limit}"
            )

    def _idle_without_carrier(self, search_again: float | None) -> None:
        """Say until when to wait, unless the thread is woken."""
        due = self.now + min(self.grace_left(), LONGEST_WAIT)
        for timer in (self.owner_timer, search_again):
            if timer is not None:
                due = max(self.now, min(due, timer))
        self.idle_until, self._reads_on = due, False

    def _attach(self, carrier: Carrier) -> bool:
        """Continue over a carrier, if it is still open and the peer's positions are possible.

        Nor is it used if the grace was over before, and the peer has received nothing meanwhile.
        """
        session, framing = self.session, self._sessions_framing
        try:
            sock = take_over(carrier.sock, self.config.tcp_user_timeout)
        except OSError as error:
            carrier.close()
            self.fruitless += 1
            _log.debug("%s: a carrier ended before it was used: %s", self.name, error)
            return False
        if carrier.received > session.acknowledged and self.detached is not None:
            # Only the answer was lost.
            self.fruitless, self._stuck, self._grace_began = 0, 0, self.detached
        if self._stuck > 1 and not self.grace_left():
            self._refuse(carrier, sock, self._expired())
            return False
        greeting = session.welcome().encode() if carrier.welcomes else b""
        self._record_hello(carrier)
        with self.mutex:
            cut = self.cut
            if not cut:
                self._socket = sock  # an abort ends this one, before anything is sent over it
        if cut:
            carrier.close()
            return False
        try:
            session.check_oldest(carrier.oldest)
            again = self.queue.attach(sock, greeting, carrier.received)
        except PositionError as error:
            self._refuse(carrier, sock, str(error))
            return False
        with self.mutex:
            before, self.now = self.now, clock.monotonic()
            took = self.now - (before if self.detached is None else self.detached)
            self.frame_reader.restart(sock)
            self._limits = PeerLimits(self.config, framing, self.frame_reader, self.queue)
            self.keep_alive.heard(self.now)
            self.queue.replace_pings_locked(self.keep_alive.ask_again())
            self.detached, self.lost_by, self.attempt = None, "", ""
            self._began = _Beginning(self.now, again > 0, session.acknowledged, session.received)
            self.reconnects += 1
            self._paused = False
            if self._offered is not None:  # meanwhile, when there was no carrier to leave
                self._leave_carrier_locked("it was replaced by another")
        self._carrier = carrier
        self.carriers.found(self)
        self.flush()
        _log.info("%s goes on after %.3f s; %d bytes are sent again", self.name, took, again)
        return True

    def _refuse(self, carrier: Carrier, sock: Socket, reason: str) -> None:
        """Give up the session, and tell a client that came back to it."""
        if carrier.welcomes:
            with suppress(OSError):  # the peer has gone, or its socket is full
                sock.send(self._sessions_framing.encode_greeting(Refusal(True, reason).encode()))
        with self.mutex:
            sock.close()  # not while an abort shuts it down
        carrier.close()
        self.lose(reason)

    def _record_hello(self, carrier: Carrier) -> None:
        """Record what was exchanged before over a carrier; ``attach`` records a WELCOME."""
        session = self.session
        positions = (session.received, session.acknowledged)
        if carrier.welcomes:
            positions = (carrier.received, carrier.oldest)
        buffer = session.peer_buffer if carrier.welcomes else session.limit
        hello = Hello(session.id, session.epoch, session.generation, True, *positions, buffer)
        self.note(not carrier.welcomes, hello.encode(None))
        if not carrier.welcomes:
            welcome = Welcome(session.epoch, carrier.received, session.grace, session.peer_buffer)
            self.note(False, welcome.encode())

    def note(self, sent: bool, message: bytes) -> None:
        """Record a message that the framing does not see, if there is a recorder."""
        if self.frame_reader.recorder is not None:
            self.frame_reader.recorder.carried(sent, message)

    def _release_carrier(self) -> None:
        if self._carrier is not None:
            self._carrier.close()
            self._carrier = None

    def discard(self) -> None:
        if not self.in_child:
            self.carriers.ended(self)  # before others learn of the end, and find a search for more
        super().discard()
        if self.in_child:
            return
        with self.mutex:
            unused, self._offered = self._offered, None
        if unused is not None:
            unused.close()
        self._release_carrier()
