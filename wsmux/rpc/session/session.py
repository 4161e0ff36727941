"""Implement one end of a session: sending, receiving, and detecting a lost peer.

A session outlives its connections. While it has one it is attached: every message is sent at once,
and stays in the send buffer until it is acknowledged. While it has none, messages are buffered and
the grace period runs, after which the session is to be destroyed. On a new connection the whole
buffer is retransmitted, byte for byte; the other end drops what it has. Only the remaining time of
a caller is computed again, when its message leaves for the first time; one that is retransmitted
says what it said before.

::

               ATTACH
    DETACHED ──────────► ATTACHED         any of them ── DESTROY ──► DESTROYED
        ▲                   │
        └───────────────────┘
               DETACH

Heartbeats (specification, "Detecting phantom disconnects"): the server sends an ACK every interval,
and the client answers each one. Both detect silence: an interval times ``heartbeats_until_dead``
without a new message, not counting duplicates.

Differences from other implementations:

- Both ends send an ACK before the next heartbeat once ``ack_messages`` or ``ack_bytes`` were
  accepted and nothing was sent since. ACKs do not count towards that, and a server does not answer
  them, so no ACK can cause an endless exchange, whatever the limits and the peer.
- A server whose buffer is half full sends an ACK, which the client answers, and the next one once
  that was acknowledged. Otherwise a client that only reads would acknowledge nothing, and a writer
  that waits for room would have to wait for the next heartbeat.
- An acknowledgement of messages never sent ends the session, and so does a second gap in a row:
  upstream can reconnect for ever over the same gap.
- A stream id is limited in length like any other id, since each end stores those of the peer.
- A message that cannot be encoded leaves the session unchanged; other code destroys it.
- A message that is too large is counted, and read without its payload, see ``wire.message_size``.
  If it is so large that it ends its connection, the second time in a row ends the session: upstream
  would retransmit it for ever.
- A peer that continues to send while many times ``send_buffer_messages`` wait for its
  acknowledgement loses the session: writers wait, but answers that it provokes do not. A client
  counts only those: its calls are its own doing, and do not wait either. What is provoked without a
  call, such as a refusal, is bounded in bytes, too, and so are answers of calls by not starting
  further ones, see ``bytes_full``.

There are no threads, clocks or sockets here. The owner holds one lock around all calls, and passes
the time, in seconds of any monotonic clock. It must pass on received messages before it calls
``handle_timer``; otherwise a process that was suspended would detect silence by mistake.

``SendBuffer`` counts the messages, and keeps the unacknowledged ones, by the rules of the section
"Transparent reconnections": ``seq`` is the number of the next message to send, ``ack`` the number
of messages accepted, which is the next number expected. Handshakes are not counted.

A message is retransmitted with the same bytes, including an old ``ack``, so acks that go backwards
are no error. An ack above ``seq`` is an error here: other implementations accept
it, and drop messages that the peer never received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from itertools import count
from typing import NamedTuple

from ...config import MIB
from ...exceptions import LocalProtocolError
from ...protocols.base import Buffer, Role
from ..errors import FailureKind, GapError, SessionFailure
from ..options import Options
from ..wire.codec import Codec, EncodeError
from ..wire.envelope import (
    ACK,
    HEARTBEAT_STREAM,
    MAX_ID,
    Envelope,
    EnvelopeError,
    Oversize,
    timeout_field,
)
from ..wire.handshake import Attempt, ExpectedState
from ..wire.message_size import ENVELOPE_ROOM, most_taken

__all__ = ["TABLE", "Lapse", "SendBuffer", "Session", "SessionInput", "SessionState", "Verdict"]


class Verdict(Enum):
    """Define how a received sequence number compares with the expected one."""

    ACCEPTED = auto()
    DUPLICATE = auto()
    GAP = auto()


class SendBuffer:
    """Hold the counters of one end of a session, and its send buffer.

    Attributes:
        seq: number of the next message to send.
        ack: number of messages accepted.
        buffered_messages, buffered_bytes: what was sent and is not acknowledged.
        provoked_messages, provoked_bytes: that part of it which the peer provoked.
        owed_messages: messages accepted since the last message sent; not yet acknowledged.
        owed_bytes: the same in bytes.
    """

    __slots__ = (
        "_buffer",
        "_provoked",
        "ack",
        "buffered_bytes",
        "buffered_messages",
        "owed_bytes",
        "owed_messages",
        "provoked_bytes",
        "seq",
    )

    def __init__(self) -> None:
        self.seq = self.ack = 0
        self.buffered_messages = self.buffered_bytes = 0
        self.owed_messages = self.owed_bytes = 0
        self.provoked_bytes = 0
        self._buffer: deque[tuple[int, bytes]] = deque()
        self._provoked: deque[tuple[int, int]] = deque()  # number and size

    @property
    def provoked_messages(self) -> int:
        """See the class."""
        return len(self._provoked)

    @property
    def oldest(self) -> int:
        """Number of the oldest unacknowledged message, or of the next one if there is none."""
        return self._buffer[0][0] if self._buffer else self.seq

    def send(self, encode: Callable[[int, int], bytes], *, provoked: bool = False) -> bytes:
        """Encode a message with ``encode(seq, ack)``, keep it in the buffer, and return it.

        Errors of ``encode`` are passed on, and change nothing.
        """
        data = encode(self.seq, self.ack)
        self._buffer.append((self.seq, data))
        if provoked:
            self._provoked.append((self.seq, len(data)))
            self.provoked_bytes += len(data)
        self.seq += 1
        self.buffered_messages += 1
        self.buffered_bytes += len(data)
        self.owed_messages = self.owed_bytes = 0
        return data

    def replace(self, seq: int, data: bytes) -> None:
        """Keep other bytes for a message that was not sent yet, unless it was acknowledged."""
        place = seq - self.oldest
        if place >= 0:
            self.buffered_bytes += len(data) - len(self._buffer[place][1])
            self._buffer[place] = seq, data

    def accept(self, seq: int, ack: int, size: int, *, owed: bool = True) -> Verdict:
        """Classify a message of ``size`` bytes; an accepted one trims the buffer.

        Args:
            seq: its number.
            ack: the number of messages that the peer has accepted.
            size: its size in bytes.
            owed: whether it must be acknowledged before the next heartbeat.

        Raises:
            SessionFailure: the peer acknowledged messages that were never sent; nothing has
                changed.
        """
        if ack > self.seq:
            raise SessionFailure(
                f"the peer acknowledged {ack} messages, but only {self.seq} were sent"
            )
        if seq != self.ack:
            return Verdict.DUPLICATE if seq < self.ack else Verdict.GAP
        self.ack += 1
        if owed:
            self.owed_messages += 1
            self.owed_bytes += size
        self.acknowledged(ack)
        return Verdict.ACCEPTED

    def acknowledged(self, count: int) -> None:
        """Drop the messages below ``count``; the cost depends only on the number dropped."""
        buffer = self._buffer
        while buffer and buffer[0][0] < count:
            self.buffered_messages -= 1
            self.buffered_bytes -= len(buffer.popleft()[1])
        provoked = self._provoked
        while provoked and provoked[0][0] < count:
            self.provoked_bytes -= provoked.popleft()[1]

    def buffered(self) -> list[bytes]:
        """Return the unacknowledged messages, in order."""
        return [data for _, data in self._buffer]

    def clear(self) -> None:
        """Drop the buffer: the session is over."""
        self._buffer.clear()
        self._provoked.clear()
        self.buffered_messages = self.buffered_bytes = self.provoked_bytes = 0


# Seconds that a challenged peer has to answer. Another implementation's client, refused meanwhile,
# stops for good after five attempts, the last two at least 1.05 and 2.25 seconds after the first.
PROOF_TIME = 1.0

# A sending peer may leave this many times send_buffer_messages unacknowledged, but at most this
# many more: far above what honest peers have in flight, some megabytes of small answers.
MOST_UNACKNOWLEDGED = 32
MOST_MORE = 32 * 1024

# The same of the bytes of what it provokes without a call: a multiple of send_buffer_bytes.
MOST_PROVOKED_BYTES = 4

# The defaults of Options.send_buffer_messages and send_buffer_bytes. Other servers acknowledge an
# upload only with their heartbeats, once a second, and a client must be able to send for that long
# without waiting.
SERVER_BUFFER, CLIENT_BUFFER = 1024, 64 * 1024
SERVER_BYTES, CLIENT_BYTES = 16 * MIB, 64 * MIB

_numbers = count(1)


class SessionState(Enum):
    """Define the states of a session."""

    DETACHED = auto()
    ATTACHED = auto()
    DESTROYED = auto()


class SessionInput(Enum):
    """Define the inputs that move a session."""

    ATTACH = auto()
    DETACH = auto()
    DESTROY = auto()


class Lapse(Enum):
    """Define which timer has expired."""

    SILENCE = auto()  # close the connection
    GRACE = auto()  # destroy the session


class Timed(NamedTuple):
    """Hold a message that says how long its caller still waits, until it leaves."""

    envelope: Envelope
    packed: bytes
    due: float


_S, _I = SessionState, SessionInput

TABLE: dict[tuple[SessionState, SessionInput], SessionState] = {
    (_S.DETACHED, _I.ATTACH): _S.ATTACHED,
    (_S.ATTACHED, _I.DETACH): _S.DETACHED,
    (_S.DETACHED, _I.DESTROY): _S.DESTROYED,
    (_S.ATTACHED, _I.DESTROY): _S.DESTROYED,
    (_S.DESTROYED, _I.DESTROY): _S.DESTROYED,
}


class Session:
    """One end of a session; it starts detached, with the grace period running.

    Args:
        role: a server sends heartbeats, a client answers them.
        session_id: chosen by the client, the same on both ends.
        own_id: the id of this client or server.
        peer_id: the id of the peer.
        codec: the same on both ends.
        options: times in seconds, and limits.
        new_id: returns a new message id.
        now: the time, in seconds.

    Attributes:
        id: the id of the session, a secret.
        number: its number among the sessions of this process, by which it may be shown.
        owner: at a server, the identity whose clients may resume or replace the session, as set by
            the application; ``None`` for any client that knows the ids.
        attempt: at a server, the last handshake accepted for the session, if the client numbers
            them; ``welcomed`` is the one that the client names, once it was welcomed.
        attachments: number of connections so far. An owner that records it on attaching can
            recognize late input from a connection that was replaced.
        began: when it was made.
        moved: when it last got or lost a connection, or was made.
    """

    def __init__(
        self,
        role: Role,
        session_id: str,
        own_id: str,
        peer_id: str,
        *,
        codec: Codec,
        options: Options,
        new_id: Callable[[], str],
        now: float,
    ) -> None:
        self.id = session_id
        self.number = next(_numbers)
        self.owner: object = None
        self.attempt: Attempt | None = None
        self.own_id = own_id
        self.peer_id = peer_id
        self.role = role
        self.attachments = 0
        self.began = self.moved = now
        self.state = SessionState.DETACHED
        self._codec = codec
        self._options = options
        server = role is Role.SERVER
        self._most_messages = options.send_buffer_messages or (
            SERVER_BUFFER if server else CLIENT_BUFFER
        )
        self._most_bytes = options.send_buffer_bytes or (SERVER_BYTES if server else CLIENT_BYTES)
        writers = self._most_messages
        self._most_answers = min(MOST_UNACKNOWLEDGED * writers, writers + MOST_MORE)
        self._most_provoked_bytes = MOST_PROVOKED_BYTES * self._most_bytes
        self._most_taken = most_taken(options.max_size)
        self._new_id = new_id
        self._send_buffer = SendBuffer()
        self._queue: list[bytes] = []
        self._timed: list[Timed] = []  # what has never left, of those whose caller waits so long
        self._gapped = False
        self._cut: tuple[bool, int] | None = None  # whose message was too large, and its number
        self._cut_attachment = 0  # the connection that it ended
        self._challenged: float | None = None  # when the peer was challenged, while unanswered
        self._asked = 0  # messages up to the last ACK of a server, all of which a client confirms
        self._heard = now
        self._beat = 0.0  # time of a server's next heartbeat
        self._grace = now + options.session_disconnect_grace

    @property
    def attached(self) -> bool:
        """Whether the session has a connection."""
        return self.state is SessionState.ATTACHED

    @property
    def full(self) -> bool:
        """Whether writers should wait: the send buffer is full. Nothing is refused."""
        buffer = self._send_buffer
        return (
            buffer.buffered_messages >= self._most_messages
            or buffer.buffered_bytes >= self._most_bytes
        )

    @property
    def bytes_full(self) -> bool:
        """Whether no further call should start: large answers are unacknowledged.

        The answer of a call that runs does not wait. Small ones are bounded by their number.
        """
        return self._send_buffer.buffered_bytes >= self._most_bytes

    @property
    def buffered_messages(self) -> int:
        """Messages sent and not acknowledged."""
        return self._send_buffer.buffered_messages

    @property
    def buffered_bytes(self) -> int:
        """Bytes sent and not acknowledged."""
        return self._send_buffer.buffered_bytes

    # Messages

    def send(
        self,
        packed: bytes,
        *,
        stream_id: str,
        flags: int,
        service: str | None = None,
        procedure: str | None = None,
        tracing: tuple[str, str] | None = None,
        due: float | None = None,
        now: float = 0.0,
        provoked: bool = False,
    ) -> None:
        """Send a message whose payload is already encoded, now or on the next connection.

        Args:
            packed: the payload.
            stream_id, flags, service, procedure, tracing: fields of the message.
            due: when the caller stops waiting for the call that the message opens, if it ever does.
            now: the time, needed with ``due``.
            provoked: whether it answers a message of the peer by itself, so that the peer decides
                how many there are; not the answer of a handler.

        Raises:
            EncodeError: the codec cannot encode it, or its names are too long; nothing has changed.
            LocalProtocolError: the session is over.
        """
        if self.state is SessionState.DESTROYED:
            raise LocalProtocolError("the session is over")

        def encode(seq: int, ack: int) -> bytes:
            envelope = Envelope(
                self._new_id(),
                self.own_id,
                self.peer_id,
                seq,
                ack,
                stream_id,
                flags,
                None,
                service,
                procedure,
                tracing,
                None if due is None else timeout_field(due - now),
            )
            data = self._codec.encode(envelope, packed)
            around = len(data) - len(packed)
            if around > ENVELOPE_ROOM:
                raise EncodeError(
                    f"the names of a message take {around} bytes, above {ENVELOPE_ROOM}"
                )
            if due is not None and self.state is SessionState.DETACHED:
                self._timed.append(Timed(envelope, packed, due))
            return data

        data = self._send_buffer.send(encode, provoked=provoked)
        if self.state is SessionState.ATTACHED:
            self._queue.append(data)
            if self.role is Role.SERVER:
                self._ask()

    def _ask(self) -> None:
        """Send an early ACK if much is unacknowledged and no ACK is outstanding."""
        buffer = self._send_buffer
        if self._asked <= buffer.oldest and (
            2 * buffer.buffered_messages >= self._most_messages
            or 2 * buffer.buffered_bytes >= self._most_bytes
        ):
            try:
                self._acknowledge()
            except SessionFailure:
                return  # the next heartbeat fails too, and its owner ends the session

    def receive(self, data: Buffer, now: float) -> Envelope | None:
        """Process one message of the connection; return it if it is for the layer above.

        An oversize message is returned with an ``Oversize`` as its payload. Duplicates and ACKs are
        not returned, nor are messages for another receiver, which are counted and then ignored, as
        in other implementations.

        Raises:
            GapError: a message is missing; the connection must be closed.
            SessionFailure: the peer broke a rule, or an ACK cannot be encoded; the session must be
                destroyed.
            LocalProtocolError: the session has no connection.
        """
        if self.state is not SessionState.ATTACHED:
            raise LocalProtocolError("a session without a connection receives nothing")
        try:
            if len(data) <= self._most_taken:
                envelope = self._codec.decode(data)
            else:
                oversize = Oversize(len(data), self._options.max_size)
                envelope = self._codec.decode_head(data)._replace(payload=oversize)
        except EnvelopeError as error:
            raise SessionFailure(str(error)) from error
        if envelope.sender != self.peer_id:
            raise SessionFailure(
                f"a message from {envelope.sender!r} on a connection of {self.peer_id!r}"
            )
        if len(envelope.stream_id) > MAX_ID:
            raise SessionFailure(f"a stream id of more than {MAX_ID} characters")
        is_ack = bool(envelope.flags & ACK)
        verdict = self._send_buffer.accept(envelope.seq, envelope.ack, len(data), owed=not is_ack)
        if verdict is not Verdict.ACCEPTED:
            if verdict is Verdict.GAP:
                self._note_gap(envelope.seq)
            return None
        self._heard, self._challenged, self._gapped = now, None, False
        buffer = self._send_buffer
        if (
            buffer.buffered_messages > self._most_answers
            or buffer.provoked_bytes > self._most_provoked_bytes
        ):
            self._check_acknowledged()
        if is_ack:
            if self.role is Role.CLIENT:
                self._acknowledge()
            else:
                self._ask()  # what waits for room may send nothing before there is more of it
            return None
        if (
            buffer.owed_messages >= self._options.ack_messages
            or buffer.owed_bytes >= self._options.ack_bytes
        ):
            self._acknowledge()
        return envelope if envelope.receiver == self.own_id else None

    def _check_acknowledged(self) -> None:
        """End the session of a peer that makes this end hold ever more, beyond a bound."""
        buffer = self._send_buffer
        if buffer.provoked_bytes > self._most_provoked_bytes:
            most = f"{self._most_provoked_bytes} bytes"
        elif self.role is Role.SERVER or buffer.provoked_messages > self._most_answers:
            most = f"{self._most_answers} messages"
        else:
            return  # those are a client's own
        raise SessionFailure(f"the peer sends, but does not acknowledge {most}")

    def cut_by_size(self, reason: str, *, ours: bool) -> bool:
        """Record that a message too large to be read ended the connection, with code 1009.

        Args:
            reason: the reason given by the side that refused it.
            ours: whether this side sent it, and the peer refused it.

        Returns whether this is new, since it may be reported several times for a connection.

        Raises:
            SessionFailure: the previous connection ended the same way, and nothing was accepted in
                between; the session must be destroyed.
        """
        if self._cut_attachment == self.attachments:
            return False
        self._cut_attachment = self.attachments
        before = self._cut
        self._cut = (ours, self._send_buffer.oldest if ours else self._send_buffer.ack)
        if self._cut == before:
            sender = "this side" if ours else "the peer"
            raise SessionFailure(
                f"{sender} sent a message that was too large to be read, for the second time in "
                f"a row: {reason}; send it in parts, or raise Options.max_size at both ends, "
                f"which is {self._options.max_size} here",
                FailureKind.SENDING if ours else FailureKind.INVALID_MESSAGE,
            )
        return True

    def _note_gap(self, seq: int) -> None:
        text = f"message {seq} came when {self._send_buffer.ack} was wanted"
        if self._gapped:
            raise SessionFailure(f"{text}, for the second time in a row", FailureKind.ORDERING)
        self._gapped = True
        raise GapError(text)

    def _acknowledge(self) -> None:
        self._asked = self._send_buffer.seq + 1
        try:
            packed = self._codec.pack({"type": "ACK"})
            self.send(packed, stream_id=HEARTBEAT_STREAM, flags=ACK, provoked=True)
        except EncodeError as error:
            raise SessionFailure(str(error), FailureKind.SENDING) from error

    def has_output(self) -> bool:
        """Return whether the connection has anything to send."""
        return bool(self._queue)

    def data_to_send(self) -> list[bytes]:
        """Return the messages to send now, in order, each one message of the connection."""
        if not self._queue:
            return []
        queue, self._queue = self._queue, []
        return queue

    # Connections

    def _move(self, happened: SessionInput) -> None:
        state = TABLE.get((self.state, happened))
        if state is None:
            raise LocalProtocolError(f"a {self.state.name} session cannot {happened.name}")
        self.state = state

    def attach(self, now: float, acknowledged: int = 0) -> None:
        """Continue on a new connection after its handshake; queue the buffer again.

        Args:
            now: the time, in seconds.
            acknowledged: messages that the peer has according to its handshake; they are not
                retransmitted.

        Raises:
            LocalProtocolError: the session has a connection, or is over.
        """
        self._move(SessionInput.ATTACH)
        self.attachments += 1
        self._challenged = None
        self._heard = self.moved = now
        self._beat = now + self._options.heartbeat_interval
        self._send_buffer.acknowledged(acknowledged)
        for envelope, packed, due in self._timed:
            envelope = envelope._replace(timeout=timeout_field(due - now))
            self._send_buffer.replace(envelope.seq, self._codec.encode(envelope, packed))
        self._timed = []
        self._queue = self._send_buffer.buffered()
        if self.role is Role.SERVER:
            self._ask()

    def detach(self, now: float) -> None:
        """Record that the connection was lost or closed; start the grace period.

        Raises:
            LocalProtocolError: the session has no connection, or is over.
        """
        self._move(SessionInput.DETACH)
        self.moved = now
        self._grace = now + self._options.session_disconnect_grace
        self._queue = []

    def destroy(self) -> None:
        """End the session, at once and for good; unsent messages are dropped."""
        self._move(SessionInput.DESTROY)
        self._send_buffer.clear()
        self._queue, self._timed = [], []

    def expected_state(self) -> ExpectedState:
        """Return the counters for a handshake."""
        return ExpectedState(self._send_buffer.ack, self._send_buffer.oldest)

    def mismatch(self, expected: ExpectedState) -> str | None:
        """Return why a peer with these counters cannot resume the session; ``None`` if it can.

        Besides the two rules of the specification, a peer that claims more messages than were sent
        is refused.
        """
        buffer = self._send_buffer
        if expected.next_sent > buffer.ack:
            return (
                f"client is in the future: server wanted next message to be {buffer.ack} "
                f"but client would have sent {expected.next_sent}"
            )
        if buffer.oldest > expected.next_expected:
            return (
                f"server is in the future: client wanted next message to be "
                f"{expected.next_expected} but server would have sent {buffer.oldest}"
            )
        if expected.next_expected > buffer.seq:
            return (
                f"client is in the future: server has sent {buffer.seq} messages "
                f"but client has {expected.next_expected}"
            )
        return None

    # Time

    def _silence(self) -> float:
        options = self._options
        return self._heard + options.heartbeat_interval * options.heartbeats_until_dead

    def next_timer(self) -> float | None:
        """Return when to call ``handle_timer``, in seconds; ``None`` once the session is over."""
        if self.state is SessionState.ATTACHED:
            silence = self._silence()
            return silence if self.role is Role.CLIENT else min(silence, self._beat)
        return self._grace if self.state is SessionState.DETACHED else None

    def handle_timer(self, now: float) -> Lapse | None:
        """Send a heartbeat if it is due, and return which timer has expired, if any.

        Raises:
            SessionFailure: a server's heartbeat cannot be encoded; the session must be destroyed.
        """
        if self.state is SessionState.ATTACHED:
            if now >= self._silence():
                return Lapse.SILENCE
            if self.role is Role.SERVER and now >= self._beat:
                self._beat = now + self._options.heartbeat_interval
                self._acknowledge()
            return None
        over = self.state is SessionState.DETACHED and now >= self._grace
        return Lapse.GRACE if over else None

    def challenge(self, now: float) -> bool:
        """Challenge the peer to prove that it is alive; return whether it still has time.

        The first call sends an ACK, which a client answers. Later calls return false if nothing was
        received for ``PROOF_TIME`` since then.

        Raises:
            SessionFailure: the ACK cannot be encoded; the session must be destroyed.
        """
        if self._challenged is None:
            self._challenged = now
            self._acknowledge()
            return True
        return now < self._challenged + PROOF_TIME
