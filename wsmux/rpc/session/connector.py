"""Keep a client connected to one server: dial, exchange handshakes, retry and give up.

The moves are a table ``{(state, input): state}``; for a missing key, ``advance`` raises
``KeyError`` and nothing changes. ``CONNECT`` does nothing once a connection is under way.
``LOST`` stands for every failure, and for hanging up.

::

                  CONNECT              WAITED             DIALLED              WELCOMED
    NO_CONNECTION ───────► BACKING_OFF ──────► CONNECTING ───────► HANDSHAKING ────────► CONNECTED
          ▲     LOST           │                   │                   │                     │
          └────────────────────┴───────────────────┴───────────────────┴─────────────────────┘

    any of them ── CLOSE ──► CLOSED

======================  ===========  ==========  ===========  ===========  =============  ========
state                   CONNECT      WAITED      DIALLED      WELCOMED     LOST           CLOSE
======================  ===========  ==========  ===========  ===========  =============  ========
NO_CONNECTION           BACKING_OFF  error       error        error        stays          CLOSED
BACKING_OFF             stays        CONNECTING  error        error        NO_CONNECTION  CLOSED
CONNECTING              stays        error       HANDSHAKING  error        NO_CONNECTION  CLOSED
HANDSHAKING             stays        error       error        CONNECTED    NO_CONNECTION  CLOSED
CONNECTED               stays        error       error        error        NO_CONNECTION  CLOSED
CLOSED                  error        error       error        error        error          stays
======================  ===========  ==========  ===========  ===========  =============  ========

*Attempts.* Each connection has the number of its attempt. Calls for an attempt that is no longer
the current one are ignored, and a connection that comes too late is closed. The handshake tells the
server this number, and that of the attempt in which the session was first welcomed: a handshake may
reach a server after those of later attempts, or even another server.

*Sessions.* A session is made when a call needs one, at the latest for the handshake. Its grace
period starts then, and again whenever an established connection is lost; attempts do not restart
it. This covers the first connection too: without a server, a call fails after the grace period. The
attempts continue regardless, as long as ``reconnect`` is set: a later call has a session and a
grace period of its own, and the server is found when it comes up. Other clients stop after five.

*Waits.* The next attempt is made before half of the remaining grace period is over, so that a
session never ends without one; and within ``LONGEST_PENDING`` seconds while a call or a caller
waits for the connection. When a thread starts to wait, a more distant attempt is brought forward.

*Retries.* After a lost connection, a timeout, a retriable refusal, or an answer for another
session, the client retries, at once or after a wait, with the same session or a new one. After a
fatal refusal, a fatal dialling error or a protocol violation by the server, it retries only on the
next ``connect``.

*Differences from other clients.* The answer to the handshake must come from the server that was
asked, and not before the request. SESSION_STATE_MISMATCH for a session that was never connected
leaves it alone: its counters are those of a new session, and the calls that wait in it lose nothing
by a retry.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple

from ...exceptions import LocalProtocolError
from ...protocols.base import Buffer, Role
from ..errors import FailureKind, GapError, SessionFailure
from ..options import Options
from ..wire.codec import Codec, EncodeError
from ..wire.envelope import Envelope, EnvelopeError
from ..wire.handshake import (
    REHANDSHAKE_STREAM,
    Attempt,
    MalformedHandshake,
    Refusal,
    RefusalCode,
    handshake_envelope,
    parse_rehandshake_request,
    parse_response,
    rehandshake_response_payload,
    request_payload,
)
from ..wire.message_size import Packer, most_taken
from .reconnect_limiter import ReconnectLimiter
from .session import Lapse, Session

__all__ = [
    "TABLE",
    "Connector",
    "ConnectorEvent",
    "ConnectorInput",
    "ConnectorState",
    "Dial",
    "EnvelopeReceived",
    "Failure",
    "Hangup",
    "HelloWanted",
    "MetadataWanted",
    "SessionClosed",
    "SessionCreated",
    "StatusChanged",
    "advance",
]


class ConnectorState(Enum):
    """Define the states of a client's connection."""

    NO_CONNECTION = auto()
    BACKING_OFF = auto()
    CONNECTING = auto()
    HANDSHAKING = auto()
    CONNECTED = auto()
    CLOSED = auto()


class ConnectorInput(Enum):
    """Define the inputs that move it."""

    CONNECT = auto()
    WAITED = auto()
    DIALLED = auto()
    WELCOMED = auto()
    LOST = auto()
    CLOSE = auto()


_S, _I = ConnectorState, ConnectorInput

# Looking it up in the class for each call and message costs too much.
_CONNECTED = ConnectorState.CONNECTED

_LIVE = (_S.BACKING_OFF, _S.CONNECTING, _S.HANDSHAKING, _S.CONNECTED)

TABLE: dict[tuple[ConnectorState, ConnectorInput], ConnectorState] = (
    {
        (_S.NO_CONNECTION, _I.CONNECT): _S.BACKING_OFF,
        (_S.BACKING_OFF, _I.WAITED): _S.CONNECTING,
        (_S.CONNECTING, _I.DIALLED): _S.HANDSHAKING,
        (_S.HANDSHAKING, _I.WELCOMED): _S.CONNECTED,
        (_S.NO_CONNECTION, _I.LOST): _S.NO_CONNECTION,
    }
    | {(state, _I.CONNECT): state for state in _LIVE}
    | {(state, _I.LOST): _S.NO_CONNECTION for state in _LIVE}
    | {(state, _I.CLOSE): _S.CLOSED for state in _S}
)


def advance(state: ConnectorState, happened: ConnectorInput) -> ConnectorState:
    """Return the next state; raise ``KeyError`` if the move is illegal."""
    return TABLE[state, happened]


class Dial(NamedTuple):
    """Dial a connection, then call ``dialled`` or ``dial_failed`` with this attempt."""

    attempt: int


class HelloWanted(NamedTuple):
    """The connection is up: call ``hello`` with metadata or ``None``, or ``hello_failed``."""

    attempt: int


class Hangup(NamedTuple):
    """Close this connection with code 1000, or stop dialling it; it causes no more events."""

    attempt: int


class SessionCreated(NamedTuple):
    """A session began; calls may use it, connected or not."""

    session: Session


class SessionClosed(NamedTuple):
    """A session has ended: its calls fail with ``UNEXPECTED_DISCONNECT``."""

    session: Session
    reason: str


class StatusChanged(NamedTuple):
    """The state of the connection has changed."""

    state: ConnectorState


class EnvelopeReceived(NamedTuple):
    """A message arrived for the layer above."""

    session: Session
    envelope: Envelope


class MetadataWanted(NamedTuple):
    """The server asks for new metadata: call ``refresh``, or do nothing if there is none."""

    session: Session


class Failure(NamedTuple):
    """A failure worth reporting; its consequences are separate events.

    ``code`` is the server's when it refused the handshake.
    """

    kind: FailureKind
    text: str
    code: str | None = None


ConnectorEvent = (
    Dial
    | HelloWanted
    | Hangup
    | SessionCreated
    | SessionClosed
    | StatusChanged
    | EnvelopeReceived
    | MetadataWanted
    | Failure
)


# Attempts in a row without a handshake after which the owner is notified, once. Other clients stop
# after as many.
TELL_AFTER = 5

# Seconds after the connection timeout in which the owner can report why there is no connection: not
# if a name is not resolved, or a function of the application does not return.
REPORT_TIME = 0.5

# Maximum seconds between two attempts while a call or a caller waits for the connection.
LONGEST_PENDING = 2.0

UNANSWERED = "the handshake was not answered"


class Connector:
    """Implement the client side of sessions and connections, everything below the calls.

    The owner holds one lock around all calls, handles the ``events()`` in order, sends the output
    of ``data_to_send`` over the current connection, and calls ``handle_timer`` in time. Times are
    in seconds of one monotonic clock.

    Args:
        own_id: the id of this client.
        peer_id: the id of the server.
        codec: the same as the server's.
        options: times in seconds, and limits.
        new_id: returns a new, unguessable id of a message or a session.
        random: returns a number from 0 (inclusive) to 1 (exclusive).
        pending: returns whether any call waits for the connection.
        reconnect: whether to reconnect by itself.

    Attributes:
        state: the state of the connection.
        session: the current session, or ``None``.
        awaited: callers that wait for the connection itself; the owner counts them.
        given_up: why no further attempt is made, when ``state`` has become ``NO_CONNECTION``.
    """

    def __init__(
        self,
        own_id: str,
        peer_id: str,
        *,
        codec: Codec,
        options: Options,
        new_id: Callable[[], str],
        random: Callable[[], float],
        pending: Callable[[], bool] = lambda: False,
        reconnect: bool = True,
    ) -> None:
        self.own_id = own_id
        self.peer_id = peer_id
        self.reconnect = reconnect
        self.state = ConnectorState.NO_CONNECTION
        self.session: Session | None = None
        self.awaited = 0
        self.given_up = ""
        self._codec = codec
        self._packer = Packer(codec, options.max_size)
        self._options = options
        self._new_id = new_id
        self._pending = pending
        self._backoff = ReconnectLimiter(options, random)
        self._events: list[ConnectorEvent] = []
        self._output: list[bytes] = []  # the handshake
        self._instance = new_id()
        self._attempts = 0
        self._welcomed = 0  # the attempt in which the session was first welcomed
        self._attempt: int | None = None  # the current one
        self._failed = 0  # attempts in a row
        self._trouble = ""  # the error of the last of them
        self._due: float | None = None  # the end of the wait, of dialling or of the handshake
        self._hello_sent = False

    # Out

    def events(self) -> list[ConnectorEvent]:
        """Return what happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def with_trouble(self, text: str) -> str:
        """Return a text, with the error of the last attempt appended if it failed."""
        return f"{text}: {self._trouble}" if self._trouble else text

    def has_output(self) -> bool:
        """Return whether the current connection has anything to send."""
        if self._output:
            return True
        session = self.session
        return session is not None and session.has_output()

    def data_to_send(self) -> list[bytes]:
        """Return the messages to send over the current connection, in order.

        The number of the connection is in the last ``Dial``.
        """
        output, self._output = self._output, []
        return output if self.session is None else output + self.session.data_to_send()

    # What the owner wants

    def connect(self, now: float) -> None:
        """Start connecting, unless that is in progress; bring a distant attempt forward.

        Raises:
            LocalProtocolError: the client was closed.
        """
        if self.state is _CONNECTED:
            return
        if self.state is ConnectorState.NO_CONNECTION:
            self._try(now)
        else:
            self._move(ConnectorInput.CONNECT)
            self._bring_near(now)

    def need_session(self, now: float) -> Session:
        """Return the session for a call, making one if necessary; it need not be connected.

        Raises:
            LocalProtocolError: the client was closed.
        """
        session = self.session
        if session is not None and self.state is _CONNECTED:
            return session
        if self.state is ConnectorState.CLOSED:
            raise LocalProtocolError("the client is closed")
        session = session or self._new_session(now)
        self._bring_near(now)
        return session

    def hard_disconnect(self, now: float, reason: str = "disconnected by this side") -> None:
        """End the session and the connection at once; ``connect`` starts again."""
        if self.state is not ConnectorState.CLOSED:
            self.given_up = reason
            self._end_session(self.given_up)
            self._drop(now, again=False)

    def close(self) -> None:
        """End everything permanently; a second call does nothing."""
        self._end_session("the client was closed")
        self._hang_up()
        self._move(ConnectorInput.CLOSE)

    def refresh(self, session: Session, metadata: Any) -> None:
        """Answer ``MetadataWanted``; do nothing if that session is over."""
        if session is not self.session:
            return
        try:
            packed = self._packer.pack(rehandshake_response_payload(metadata))
            session.send(packed, stream_id=REHANDSHAKE_STREAM, flags=0, provoked=True)
        except EncodeError as error:
            self._events.append(Failure(FailureKind.SENDING, str(error)))

    # What became of a connection

    def dialled(self, attempt: int, now: float) -> None:
        """Record that a connection was made."""
        if attempt != self._attempt:
            self._events.append(Hangup(attempt))
            return
        self._move(ConnectorInput.DIALLED)
        self._trouble = self._trouble or UNANSWERED  # of this attempt nothing is known yet
        self._due = now + self._options.handshake_timeout
        self._events.append(HelloWanted(attempt))

    def dial_failed(
        self, attempt: int, now: float, reason: str = "", *, fatal: bool = False
    ) -> None:
        """Record that dialling failed; a fatal reason ends the session too."""
        if attempt == self._attempt:
            self._trouble = reason
        self.lost(attempt, now, fatal=fatal)

    def lost(self, attempt: int, now: float, *, fatal: bool = False) -> None:
        """Record that a connection was lost; a fatal reason ends the session too."""
        if attempt != self._attempt:
            return
        self._attempt = None  # there is nothing to close
        if self._hello_sent and self.state is ConnectorState.HANDSHAKING:
            name = self._codec.name
            closed = f"the connection was closed; is the server's codec {name}, too?"
            self._trouble = f"{UNANSWERED}: {closed}"
        else:
            self._note_unanswered()
        if fatal:
            self.given_up = self.with_trouble("the connection cannot be made")
            self._end_session(self.given_up)
        self._drop(now, again=not fatal)

    def cut_by_size(self, attempt: int, reason: str, *, ours: bool, now: float) -> bool:
        """Record that an oversize message ended a connection, before it is ``lost``.

        Returns whether the session has ended because of it; see ``Session.cut_by_size``.
        """
        session = self.session
        if attempt != self._attempt or session is None or not session.attached:
            return False
        kind = FailureKind.SENDING if ours else FailureKind.INVALID_MESSAGE
        try:
            if session.cut_by_size(reason, ours=ours):
                self._events.append(Failure(kind, reason))
        except SessionFailure as error:
            self._fail(now, Failure(error.kind, str(error)))
            return True
        return False

    def hello(self, attempt: int, metadata: Any, now: float) -> None:
        """Send the handshake to the server.

        Raises:
            LocalProtocolError: it was already sent, or there is no connection yet.
        """
        if attempt != self._attempt:
            return
        if self._hello_sent or self.state is not ConnectorState.HANDSHAKING:
            raise LocalProtocolError(
                "the handshake is sent once, when the connection is established"
            )
        session = self.session or self._new_session(now)
        payload = request_payload(
            session.id,
            session.expected_state(),
            metadata,
            is_reconnect=session.attachments > 0,
            attempt=Attempt(self._instance, attempt, self._welcomed),
        )
        envelope = handshake_envelope(self.own_id, self.peer_id, self._new_id(), self._new_id())
        try:
            self._output.append(self._codec.encode(envelope, self._packer.pack(payload)))
        except EncodeError as error:
            self._fail(now, Failure(FailureKind.SENDING, str(error)))
        else:
            self._hello_sent = True

    def hello_failed(self, attempt: int, text: str, now: float) -> None:
        """Record that the metadata could not be made: the session ends, as in other clients."""
        if attempt == self._attempt:
            text = f"failed to construct handshake metadata: {text}"
            self._fail(now, Failure(FailureKind.HANDSHAKE, text))

    def metadata_delayed(self, wanted: HelloWanted | MetadataWanted, text: str, now: float) -> None:
        """Record that nobody can make metadata now: the next connection asks for it again."""
        if isinstance(wanted, HelloWanted):
            current = wanted.attempt == self._attempt
        else:
            current = wanted.session is self.session and wanted.session.attached
        if current:
            self._trouble = text
            self._drop(now, again=True)

    def receive(self, attempt: int, data: Buffer, now: float) -> None:
        """Process one message of a connection."""
        if attempt != self._attempt:
            return
        session = self.session
        if session is None or not session.attached:
            self._answered(attempt, data, now)
            return
        try:
            envelope = session.receive(data, now)
        except GapError as error:
            self._events.append(Failure(FailureKind.ORDERING, str(error)))
            self._drop(now, again=True)
        except SessionFailure as error:
            self._fail(now, Failure(error.kind, str(error)))
        else:
            if envelope is None:
                return
            if envelope.stream_id != REHANDSHAKE_STREAM:
                self._events.append(EnvelopeReceived(session, envelope))
            else:
                self._asked_again(session, envelope.payload)

    def _asked_again(self, session: Session, payload: Any) -> None:
        try:
            parse_rehandshake_request(payload)
        except MalformedHandshake:
            return  # as other clients do
        self._events.append(MetadataWanted(session))

    def _answered(self, attempt: int, data: Buffer, now: float) -> None:
        try:
            if len(data) > most_taken(self._options.max_size):
                raise EnvelopeError(f"a handshake of {len(data)} bytes is too large")
            envelope = self._codec.decode(data)
            if not self._hello_sent:
                raise MalformedHandshake("the server sent a message before its handshake")
            if envelope.sender != self.peer_id:
                raise MalformedHandshake(f"the server identified itself as {envelope.sender!r}")
            answer = parse_response(envelope.payload)
        except (EnvelopeError, MalformedHandshake) as error:
            code = RefusalCode.MALFORMED_HANDSHAKE
            self._fail(now, Failure(FailureKind.HANDSHAKE, str(error), code))
            return
        session = self.session
        if isinstance(answer, Refusal):
            self._refused(answer, now)
        elif session is None or answer != session.id:
            self._end_session("the server answered for another session")
            self._drop(now, again=True)
        else:
            session.attach(now)
            self._welcomed = self._welcomed or attempt
            self._backoff.succeeded(now)
            self._due, self._failed, self._trouble = None, 0, ""
            self._move(ConnectorInput.WELCOMED)

    def _refused(self, refusal: Refusal, now: float) -> None:
        text = f"handshake failed: {refusal.reason}"
        if refusal.retriable:
            self._trouble = text
            gone = self.session is not None and self.session.attachments > 0
            if gone:
                self._end_session(text)
            self._drop(now, again=True)
            if gone:
                self._hurry(now)  # the server is up, and will probably accept a new session
        else:
            self._fail(now, Failure(FailureKind.HANDSHAKE, text, refusal.code))

    # Time

    def next_timer(self) -> float | None:
        """Return when to call ``handle_timer``, in seconds, or ``None``."""
        session = None if self.session is None else self.session.next_timer()
        if self._due is None or session is None:
            return session if self._due is None else self._due
        return min(session, self._due)

    def handle_timer(self, now: float) -> None:
        """Handle what is due; pass on messages received earlier first."""
        if self.session is not None:
            self._session_timer(self.session, now)
        if self._due is not None and now >= self._due:
            if self.state is ConnectorState.BACKING_OFF:
                self._dial(now)
            else:
                self._note_unanswered()
                self._drop(now, again=True)

    def _note_unanswered(self) -> None:
        known = self._trouble.startswith(UNANSWERED)  # and may say more
        if self.state is ConnectorState.HANDSHAKING and not known:
            self._trouble = UNANSWERED

    def _session_timer(self, session: Session, now: float) -> None:
        lapse = session.handle_timer(now)
        if lapse is Lapse.GRACE:
            self._end_session(self.with_trouble("no connection within the grace period"))
            if self._hello_sent:  # for the session that has ended
                self._drop(now, again=True)
        elif lapse is Lapse.SILENCE:
            self._drop(now, again=True)

    # Moves

    def _move(self, happened: ConnectorInput) -> None:
        try:
            state = advance(self.state, happened)
        except KeyError:
            text = f"a client that is {self.state.name} cannot take {happened.name}"
            raise LocalProtocolError(text) from None
        if state is not self.state:
            self.state = state
            self._events.append(StatusChanged(state))

    def _try(self, now: float) -> None:
        self._move(ConnectorInput.CONNECT)
        longest = self._longest_wait(now, pending=self.awaited > 0 or self._pending())
        wait = self._backoff.attempt(now, longest)
        self._due = now + wait
        if not wait:
            self._dial(now)

    def _longest_wait(self, now: float, *, pending: bool) -> float:
        """Return the maximum seconds until the next attempt; see the module docstring."""
        longest = LONGEST_PENDING if pending else math.inf
        ends = None if self.session is None else self.session.next_timer()
        if ends is not None:
            options = self._options
            least = min(options.backoff_base, options.session_disconnect_grace / 8)
            longest = min(longest, max((ends - now) / 2, least))
        return longest

    def _bring_near(self, now: float) -> None:
        """Bring the next attempt forward if it is too far off for those who wait."""
        longest = self._longest_wait(now, pending=True)
        if self._due is not None and self._due > now + longest:
            self._hurry(now, longest)

    def _hurry(self, now: float, longest: float = math.inf) -> None:
        """Reschedule the awaited attempt as early as the second attempt in a row."""
        if self.state is ConnectorState.BACKING_OFF and self._due is not None:
            self._due = min(self._due, now + self._backoff.hurried(longest))

    def _dial(self, now: float) -> None:
        self._move(ConnectorInput.WAITED)
        self._attempts += 1
        self._attempt = self._attempts
        self._due = now + self._options.connection_timeout + REPORT_TIME
        self._events.append(Dial(self._attempts))

    def _hang_up(self) -> None:
        if self._attempt is not None:
            self._events.append(Hangup(self._attempt))
        self._attempt = self._due = None
        self._hello_sent = False
        self._output = []

    def _drop(self, now: float, *, again: bool) -> None:
        """Give up the current connection or attempt, and start another one if required."""
        unmade = self.state in (ConnectorState.CONNECTING, ConnectorState.HANDSHAKING)
        self._hang_up()
        if self.session is not None and self.session.attached:
            self.session.detach(now)
            if not self._options.transparent_reconnect:
                self._end_session("the connection was lost")
        self._move(ConnectorInput.LOST)
        if unmade:
            self._failed += 1
            if self._failed == TELL_AFTER:
                text = f"no connection to {self.peer_id!r} after {TELL_AFTER} attempts"
                self._events.append(Failure(FailureKind.RETRIES, self.with_trouble(text)))
        if again and self.reconnect:
            self._try(now)

    def _fail(self, now: float, failure: Failure) -> None:
        """End the session and the connection; the next ``connect`` starts again."""
        self.given_up = failure.text
        self._events.append(failure)
        self._end_session(failure.text)
        self._drop(now, again=False)

    def _new_session(self, now: float) -> Session:
        self._welcomed = 0
        self.session = Session(
            Role.CLIENT,
            f"session-{self._new_id()}{self._new_id()}",  # a secret: 144 random bits
            self.own_id,
            self.peer_id,
            codec=self._codec,
            options=self._options,
            new_id=self._new_id,
            now=now,
        )
        self._events.append(SessionCreated(self.session))
        return self.session

    def _end_session(self, reason: str) -> None:
        if self.session is not None:
            session, self.session = self.session, None
            session.destroy()
            self._events.append(SessionClosed(session, reason))
