"""Keep a server's sessions by client id, and decide which client may start or resume one.

The rules are those of the section "Handshake", as other servers apply them, per client id:

1. The session that the client names exists: it is resumed, unless its counters contradict the
   client's. A connection that it still has is replaced.
2. Another session exists: it is destroyed, and the client starts a new one.
3. No session exists: the client starts a new one, unless its counters, or ``isReconnect``, which
   other clients do not send, show that its session has had a connection. Sessions that were never
   acknowledged look new, and calls that they retransmit may run twice.

Stricter than other servers:

- *Rule 2 and stolen client ids.* Other servers let anyone who knows the id of a client destroy its
  session. Here a connected session is first asked for a sign of life; until it has been silent for
  a second the newcomer gets SESSION_STATE_MISMATCH, after which honest clients retry after a short
  wait. So a client that lost its state gets in at once if its old connection is gone, and within
  about two seconds if the server has not noticed. Of two live clients with one id the first one
  stays, since otherwise each would end the other's calls for ever; ``newcomer_wins`` restores the
  behaviour of other servers. A session without a connection is destroyed at once, as specified.
  Anyone who knows the session id is taken for the session's client: ids must not be guessable, and
  are compared in constant time. If the application names the owner of a session, only that owner
  can resume or replace it.
- *Late handshakes.* A handshake may be delayed, by a proxy or in the queue of a listener, until its
  client has another connection. If the client numbers its attempts, see ``wire.handshake``, it is
  refused, and neither interrupts nor replaces the session of the later one. A server without a
  session of the client cannot know that a handshake is late, and begins a session for nobody. A
  client that was welcomed in a later attempt does not resume that one: it is refused as by rule 3.
- A client that has ended its session itself, as its attempts show, may start another one at once.
- A refused handshake never destroys the existing session.
- A handshake for another server's id is refused: no message of that client would be handled.
- A client that claims messages which were never sent cannot resume.
- A server that holds ``max_sessions`` refuses new ones with SESSION_STATE_MISMATCH too, since that
  is the only refusal after which clients retry.
- A session that ended because of a message too large to be read is not started again, whatever its
  counters: if that was its first message, they are those of a new session, and the client would
  retransmit the message for ever.
- Without ``transparent_reconnect`` a session ends with its connection, not after the grace period.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import NamedTuple

from ...protocols.base import Buffer, Role
from ..errors import SessionFailure
from ..options import Options
from ..wire.codec import Codec, EncodeError
from ..wire.codec_mismatch import codec_mismatch
from ..wire.envelope import MAX_ID, EnvelopeError
from ..wire.handshake import (
    Attempt,
    HandshakeRequest,
    MalformedHandshake,
    RefusalCode,
    handshake_envelope,
    parse_request,
    refusal_payload,
    welcome_payload,
)
from .session import Session

__all__ = ["Accepted", "Hello", "Refused", "Sessions"]

# Characters of a reason, which may contain text of the client.
MAX_REASON = 256

# Sessions that must not be started again; beyond that, the oldest are forgotten.
MAX_BARRED = 1000

UNANSWERABLE = "the response cannot be encoded"


class Hello(NamedTuple):
    """A well-formed handshake; ``request.metadata`` is not yet validated."""

    client_id: str
    request: HandshakeRequest
    tracing: tuple[str, str] | None = None


class Accepted(NamedTuple):
    """A connection now belongs to ``session``: send ``response``, then the output of the session.

    ``interrupted``: the resumed session had a connection, which must be closed with code 1000.
    ``replaced`` was destroyed: its calls end, and its connection, if any, is closed.
    """

    session: Session
    response: bytes
    resumed: bool
    interrupted: bool = False
    replaced: Session | None = None


class Refused(NamedTuple):
    """A connection must be closed with code 1000, after ``response`` if there is one.

    ``asked`` is a session that must prove that it is alive: its output must be sent.
    """

    code: RefusalCode
    reason: str
    response: bytes | None
    client_id: str | None = None
    asked: Session | None = None


class Sessions:
    """Hold the sessions of one server.

    The owner holds one lock around all calls, including those of the sessions. It gives each
    connection ``handshake_timeout`` for its first message, closes it if a second one arrives before
    the decision, and calls ``handle_timer`` of each connected session; sessions without a
    connection are timed here.

    Args:
        own_id: the id of this server.
        codec: the same as the clients'.
        options: times in seconds, and limits.
        new_id: returns a new message id.
    """

    def __init__(
        self, own_id: str, *, codec: Codec, options: Options, new_id: Callable[[], str]
    ) -> None:
        self.own_id = own_id
        self._codec = codec
        self._options = options
        self._new_id = new_id
        self._sessions: dict[str, Session] = {}
        self._barred: dict[tuple[str, str], None] = {}  # ids of clients and of their sessions
        self._detached: dict[str, Session] = {}  # by the end of their equal grace periods

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, client_id: str) -> Session | None:
        """Return the session of a client."""
        return self._sessions.get(client_id)

    # Handshakes

    def first_frame(self, data: Buffer) -> Hello | Refused:
        """Decode the first message of a connection, or refuse the connection.

        A message that is malformed, or not one of River's, gets no response, nor does one from a
        client with an overlong id.
        """
        try:
            envelope = self._codec.decode(data)
        except EnvelopeError as error:
            reason = codec_mismatch(data, self._codec.name) or str(error)
            return Refused(RefusalCode.MALFORMED_HANDSHAKE, reason, None)
        if len(envelope.sender) > MAX_ID:
            return Refused(RefusalCode.MALFORMED_HANDSHAKE, "the client's id is too long", None)
        try:
            if envelope.receiver != self.own_id:
                raise MalformedHandshake(f"this server is {self.own_id}, not {envelope.receiver}")
            request = parse_request(envelope.payload)
            if len(request.session_id) > MAX_ID:
                raise MalformedHandshake("the session's id is too long")
        except MalformedHandshake as error:
            return self.refuse(envelope.sender, error.refusal, str(error))
        return Hello(envelope.sender, request, envelope.tracing)

    def refuse(self, client_id: str, code: RefusalCode, reason: str) -> Refused:
        """Return the refusal of a client, for example for invalid metadata.

        It has no response if the codec cannot encode one.
        """
        reason = reason[:MAX_REASON]
        response = self._message(client_id, refusal_payload(code, reason))
        return Refused(code, reason, response, client_id)

    def decide(self, hello: Hello, now: float, owner: object = None) -> Accepted | Refused:
        """Start or resume a session whose metadata is valid and names its owner, or refuse it."""
        client_id, request = hello.client_id, hello.request
        old = self._sessions.get(client_id)
        if old is not None and old.owner != owner:
            theirs = "a session of somebody else has this client's id"
            return self.refuse(client_id, RefusalCode.SESSION_STATE_MISMATCH, theirs)
        since = _attempts_since(old, request)
        if since is not None and since <= 0:
            late = "a later connection of this client has been accepted"
            return self.refuse(client_id, RefusalCode.SESSION_STATE_MISMATCH, late)
        if old is None or not _names(request, old):
            return self._begin(hello, old, now, owner)
        if not self._options.transparent_reconnect:
            return self._begin(hello, old, now, owner)
        reason = old.mismatch(request.expected)
        if reason is not None:
            return self.refuse(client_id, RefusalCode.SESSION_STATE_MISMATCH, reason)
        response = self._message(client_id, welcome_payload(old.id))
        if response is None:
            return Refused(RefusalCode.MALFORMED_HANDSHAKE, UNANSWERABLE, None, client_id)
        interrupted = old.attached
        if interrupted:
            old.detach(now)
        self._detached.pop(client_id, None)
        old.attempt = _accepted_attempt(request)
        old.attach(now, request.expected.next_expected)
        return Accepted(old, response, True, interrupted)

    def _begin(
        self, hello: Hello, old: Session | None, now: float, owner: object
    ) -> Accepted | Refused:
        client_id, request = hello.client_id, hello.request
        if (client_id, request.session_id) in self._barred:
            reason = "the session has ended over a message that was too large"
            return self.refuse(client_id, RefusalCode.SESSION_STATE_MISMATCH, reason)
        if request.is_reconnect or request.expected != (0, 0):
            does = "know about" if self._options.transparent_reconnect else "resume"
            reason = (
                f"client is trying to reconnect to a session the server does not {does}: "
                f"{request.session_id}"
            )
            return self.refuse(client_id, RefusalCode.SESSION_STATE_MISMATCH, reason)
        other = old is not None and old.id != request.session_id
        stranger = other and _attempts_since(old, request) is None
        if stranger and not self._options.newcomer_wins and self._lives(old, now):
            reason = "another session of this client is connected"
            refused = self.refuse(client_id, RefusalCode.SESSION_STATE_MISMATCH, reason)
            return refused._replace(asked=old)
        most = self._options.max_sessions
        if old is None and len(self._sessions) >= most:
            reason = f"the server holds {most} sessions already"
            return self.refuse(client_id, RefusalCode.SESSION_STATE_MISMATCH, reason)
        response = self._message(client_id, welcome_payload(request.session_id))
        if response is None:
            return Refused(RefusalCode.MALFORMED_HANDSHAKE, UNANSWERABLE, None, client_id)
        if old is not None:
            self.end(old)
        session = self._sessions[client_id] = Session(
            Role.SERVER,
            request.session_id,
            self.own_id,
            client_id,
            codec=self._codec,
            options=self._options,
            new_id=self._new_id,
            now=now,
        )
        session.owner, session.attempt = owner, _accepted_attempt(request)
        session.attach(now)
        return Accepted(session, response, False, replaced=old)

    def _lives(self, session: Session | None, now: float) -> bool:
        try:
            return session is not None and session.attached and session.challenge(now)
        except SessionFailure:
            return False  # it could not be asked

    def _message(self, client_id: str, payload: dict[str, object]) -> bytes | None:
        envelope = handshake_envelope(self.own_id, client_id, self._new_id(), self._new_id())
        try:
            return self._codec.encode(envelope, self._codec.pack(payload))
        except EncodeError:
            return None

    # Ends

    def lost(self, session: Session, attachment: int, now: float) -> bool:
        """Record that a connection is gone; return whether its session ended with it.

        Args:
            session: the session of the connection.
            attachment: ``session.attachments`` when the connection was attached; if another
                connection has been attached since, nothing happens.
            now: the time, in seconds.
        """
        if not session.attached or session.attachments != attachment:
            return False
        session.detach(now)
        if not self._options.transparent_reconnect:
            self.end(session)
            return True
        self._detached[session.peer_id] = session
        return False

    def end(self, session: Session) -> None:
        """Destroy a session and forget it; the caller closes its connection, if any."""
        if self._sessions.get(session.peer_id) is session:
            del self._sessions[session.peer_id]
            self._detached.pop(session.peer_id, None)
        session.destroy()

    def bar(self, session: Session) -> None:
        """Refuse to start a session with these ids again, once it has ended."""
        self._barred[session.peer_id, session.id] = None
        if len(self._barred) > MAX_BARRED:
            del self._barred[next(iter(self._barred))]

    def close(self) -> list[Session]:
        """Destroy all sessions, and return them."""
        sessions = list(self._sessions.values())
        for session in sessions:
            self.end(session)
        return sessions

    # Time

    def next_timer(self) -> float | None:
        """Return when to call ``handle_timer``, in seconds; ``None`` if all are connected."""
        first = next(iter(self._detached.values()), None)
        return None if first is None else first.next_timer()

    def handle_timer(self, now: float) -> list[Session]:
        """Destroy the sessions whose grace period has expired, and return them."""
        over = []
        for session in list(self._detached.values()):
            if session.handle_timer(now) is None:
                break
            self.end(session)
            over.append(session)
        return over


def _attempts_since(session: Session | None, request: HandshakeRequest) -> int | None:
    """Return by how many attempts a request is later than the last one accepted for a session.

    ``None`` if they are not known to be of the same client.
    """
    last, attempt = None if session is None else session.attempt, request.attempt
    if last is None or attempt is None or not _same(last.instance, attempt.instance):
        return None
    return attempt.number - last.number


def _names(request: HandshakeRequest, session: Session) -> bool:
    """Return whether a client asks for this session, and not for another one with the same id.

    A late handshake begins a session with the id of the one that its client was welcomed to.
    """
    if not _same(session.id, request.session_id):
        return False
    attempt, last = request.attempt, session.attempt
    if not request.is_reconnect or attempt is None or last is None:
        return True
    return attempt.welcomed == last.welcomed


def _accepted_attempt(request: HandshakeRequest) -> Attempt | None:
    attempt = request.attempt
    if attempt is None or request.is_reconnect:
        return attempt
    return attempt._replace(welcomed=attempt.number)


def _same(one: str, other: str) -> bool:
    """Compare two secrets in a time that depends only on their lengths."""
    first, second = (text.encode(errors="surrogatepass") for text in (one, other))
    return hmac.compare_digest(first, second)
