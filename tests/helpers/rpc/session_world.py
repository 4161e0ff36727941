"""Put a client, a server and their connections into one state that can be copied and compared.

``World`` holds the real machines, ``Connector`` and ``Sessions`` with their ``Session``, and does
one action at a time: whatever the threads, the network and the clocks of a real pair can do next.
It notes what became of each call, and raises ``Broken`` once a promise is not kept.

What keeps the states few, and equal ones equal:

- Messages are not encoded: they travel as the envelopes they are, which all copies share.
- Ids are numbers of sessions, not chance.
- Each end has a clock of its own, which moves only to the time that an action names. No other time
  is near: a grace and a silence are a million seconds long. Times and waits are no part of a state.
- A handshake that nobody has read waits before all servers, once its client has left: it is
  delivered to whichever is there then. Its attempt counts in a state by its place among the others.
- A client that waits for its next attempt is taken to its end at once; it dials when it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar, cast

import pytest

from wsmux.protocols.base import Buffer
from wsmux.rpc.errors import FailureKind, GapError, SessionFailure
from wsmux.rpc.options import Options
from wsmux.rpc.session import session_registry
from wsmux.rpc.session.connector import (
    Connector,
    ConnectorEvent,
    ConnectorState,
    EnvelopeReceived,
    Failure,
    Hangup,
    HelloWanted,
    SessionClosed,
    SessionCreated,
)
from wsmux.rpc.session.session import PROOF_TIME, SendBuffer, Session
from wsmux.rpc.session.session_registry import Accepted, Hello, Refused, Sessions
from wsmux.rpc.wire.codec import Codec
from wsmux.rpc.wire.envelope import ACK, Envelope

from ..exploration import Broken, steps
from ..inside import send_buffer_of

__all__ = [
    "Action",
    "Bounds",
    "Call",
    "Left",
    "Wire",
    "World",
    "calm",
    "keep_refused_sessions",
    "without_order",
    "without_welcomed",
]

T = TypeVar("T")

# Seconds that no path comes near, unless an action goes there.
FAR = 1e6

# Connections that the client has left and the server still holds.
MOST_LEFT_OPEN = 1


class Message(NamedTuple):
    """Hold a message, and what tells it from others; its ids do not."""

    envelope: Envelope
    key: int


class Packed(NamedTuple):
    """Hold a payload; it has a length, as bytes have."""

    payload: Any


class SharedCodec(Codec):
    """Carry payloads and messages as they are, under the type that they have elsewhere."""

    name = "shared"

    def pack(self, payload: Any) -> bytes:
        return cast(bytes, Packed(payload))

    def encode(self, envelope: Envelope, packed: bytes) -> bytes:
        payload = cast(Packed, packed).payload
        key = (envelope.seq, envelope.ack, envelope.flags, repr(_without_attempt(payload)))
        return cast(bytes, Message(envelope._replace(payload=payload), hash(key)))

    def decode(self, data: Buffer) -> Envelope:
        return cast(Message, data).envelope


def _without_attempt(payload: Any) -> Any:
    """Return what is the same in the handshakes of all attempts."""
    if not isinstance(payload, dict) or "expectedSessionState" not in payload:
        return payload
    state = {**payload["expectedSessionState"], "attempt": None}
    return {**payload, "expectedSessionState": state}


CODEC = SharedCodec()


class Action(NamedTuple):
    """Name something that can happen next; ``attempt`` is that of the connection, if any."""

    name: str
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.name}, connection {self.attempt}" if self.attempt else self.name


class Bounds(NamedTuple):
    """Say how much may happen on one path."""

    calls: int
    losses: int  # of a connection, at one end, while the other end still holds it
    beats: int
    graces: int
    restarts: int


class Left(NamedTuple):
    """Say how much of what leaves no trace in a state may still happen."""

    losses: int
    beats: int
    graces: int

    def covers(self, other: Left) -> bool:
        """Return whether whatever may happen to another may happen to this one."""
        return (
            self.losses >= other.losses
            and self.beats >= other.beats
            and self.graces >= other.graces
        )


class Call(NamedTuple):
    """Say what became of a call; servers are numbered as they are started."""

    session: str
    handled: int | None = None  # by which server
    answered: bool = False
    lost: int | None = None  # it ended with UNEXPECTED_DISCONNECT, in the time of this server


class Wire(NamedTuple):
    """Hold one connection; a message to an end that has left is gone."""

    attempt: int
    to_server: tuple[bytes, ...] = ()
    to_client: tuple[bytes, ...] = ()
    session: str | None = None  # once the server has accepted it
    client_open: bool = True
    server_open: bool = True


class Ids:
    """Return one id again and again, until the world that is at work has one session more."""

    number = 0

    def __call__(self) -> str:
        return str(self.number)


_ids = Ids()


def calm(**changed: Any) -> Options:
    """Return options under which no time runs out by itself."""
    return Options(
        **{
            "backoff_jitter": 0.0,
            "heartbeats_until_dead": int(FAR),
            "session_disconnect_grace": FAR,
            **changed,
        }
    )


class World:
    """Hold both ends, what is between them, and what became of the calls.

    Attributes:
        begun_late: a handshake has begun the server's session that its client had given up.
        left: how much may still happen.
        trace: the actions so far: the last one, and the trace before it.
    """

    __slots__ = (
        "_bounds",
        "_server_options",
        "begun_late",
        "calls",
        "client",
        "client_now",
        "left",
        "pending",
        "server",
        "server_now",
        "servers",
        "sessions",
        "trace",
        "wires",
    )

    def __init__(
        self,
        bounds: Bounds,
        options: Options | None = None,
        server_options: Options | None = None,
    ) -> None:
        options = options or calm()
        self._bounds = bounds
        self._server_options = server_options or options
        self.left = Left(bounds.losses, bounds.beats, bounds.graces)
        self.trace: Any = None
        self.begun_late = False
        self.calls: tuple[Call, ...] = ()
        self.pending: tuple[int, ...] = ()  # calls that the server has yet to answer
        self.wires: tuple[Wire, ...] = ()
        self.sessions = 0  # of the client, so far
        self.servers = 1
        self.client_now = self.server_now = 0.0
        self.client = Connector(
            "client",
            "SERVER",
            codec=CODEC,
            options=options,
            new_id=_ids,
            random=_half,
        )
        self.server = self._new_server()
        self.client.connect(self.client_now)
        self._settle()

    def _new_server(self) -> Sessions:
        return Sessions("SERVER", codec=CODEC, options=self._server_options, new_id=_ids)

    # States

    def copy(self) -> World:
        """Return another world in the same state; neither sees what the other one does."""
        new = object.__new__(World)
        for name in World.__slots__:
            setattr(new, name, getattr(self, name))
        client = new.client = _copied(self.client)
        client._events, client._output = [], []  # nothing is kept in them between two actions
        client._backoff = _copied(client._backoff)
        if client.session is not None:
            client.session = _copied_session(client.session)
        server = new.server = _copied(self.server)
        server._sessions = {key: _copied_session(old) for key, old in server._sessions.items()}
        server._detached = {key: server._sessions[key] for key in server._detached}
        server._barred = dict(server._barred)
        return new

    def fingerprint(self) -> int:
        """Return a number that is the same for equal states, whatever the path and the time."""
        client = self.client
        return hash(
            (
                client.state._value_,
                client._hello_sent,
                _print(client.session, self.client_now),
                _print(self.server.get("client"), self.server_now),
                tuple(map(_print_wire, self.wires)),
                self._order_of_attempts(),
                self.begun_late,
                self.calls,
                self.pending,
                self.sessions,
                self.servers,
            )
        )

    def _order_of_attempts(self) -> tuple[int, ...]:
        """Return the places in their order, instead of the numbers, of the attempts that count."""
        client, session = self.client, self.server.get("client")
        present = client._attempt if client.state is ConnectorState.HANDSHAKING else None
        numbers = [present or 0, client._welcomed]
        for attempt in (_attempt_of(wire) for wire in self.wires):
            numbers += attempt
        if session is not None and session.attempt is not None:
            numbers += session.attempt[1:]
        places = {number: place for place, number in enumerate(sorted({0, *numbers}))}
        return tuple([places[number] for number in numbers])

    def path(self) -> list[str]:
        """Return the actions that led here."""
        return steps(self.trace)

    # Actions

    def actions(self) -> Iterator[Action]:
        """Yield what can happen next, as far as the bounds allow."""
        bounds, left = self._bounds, self.left
        if len(self.calls) < bounds.calls:
            yield Action("call")
        if self.pending:
            yield Action("answer")
        left_open = 0
        for wire in self.wires:
            left_open += not wire.client_open
            if wire.to_server:
                yield Action("deliver to server", wire.attempt)
            if wire.to_client:
                yield Action("deliver to client", wire.attempt)
            if wire.client_open and (left.losses or not wire.server_open):
                yield Action("client loses", wire.attempt)
            if wire.server_open and (left.losses or not wire.client_open):
                yield Action("server loses", wire.attempt)
        if self.client.state is ConnectorState.CONNECTING and left_open <= MOST_LEFT_OPEN:
            yield Action("dial")
        session = self.server.get("client")
        if left.beats and session is not None and session.attached:
            yield Action("heartbeat")
        if left.graces:
            if self.client.session is not None and not self.client.session.attached:
                yield Action("client's grace runs out")
            if session is not None and not session.attached:
                yield Action("server's grace runs out")
        if self.servers <= bounds.restarts:
            yield Action("restart")

    def quiet_action(self) -> Action | None:
        """Return what happens next if nothing fails any more; ``None`` if that is nothing."""
        for wire in self.wires:
            if wire.to_server:
                return Action("deliver to server", wire.attempt)
            if wire.to_client:
                return Action("deliver to client", wire.attempt)
            if wire.client_open and not wire.server_open:
                return Action("client loses", wire.attempt)
        if self.pending:
            return Action("answer")
        if self.client.state is not ConnectorState.CONNECTING:
            return None
        left_open = [wire.attempt for wire in self.wires if not wire.client_open]
        if len(left_open) > MOST_LEFT_OPEN:
            return Action("server loses", left_open[0])
        session = self.server.get("client")
        if session is not None and session.attached and _challenged(session, self.server_now) == 1:
            return Action("heartbeat")
        return Action("dial")

    def do(self, action: Action) -> None:
        """Let one thing happen, whether the bounds allow it or not."""
        self.trace = (self.trace, action)
        _ids.number = self.sessions
        act = _DO[action.name]
        if action.attempt:
            act(self, [wire.attempt for wire in self.wires].index(action.attempt))
        else:
            act(self, -1)
        self._settle()

    def _call(self, _: int) -> None:
        session = self.client.need_session(self.client_now)
        number = len(self.calls)
        self.calls = (*self.calls, Call(session.id))
        now = self.client_now
        packed = CODEC.pack(("call", number))
        session.send(packed, stream_id="stream", flags=0, due=now + 1.0, now=now)

    def _answer(self, _: int) -> None:
        number, *rest = self.pending
        self.pending = tuple(rest)
        session = self.server.get("client")
        assert session is not None
        session.send(CODEC.pack(("answer", number)), stream_id="stream", flags=0)

    def _dial(self, _: int) -> None:
        attempt = self.client._attempt
        assert attempt is not None
        self.wires = (*self.wires, Wire(attempt))
        self.client.dialled(attempt, self.client_now)

    def _client_loses(self, place: int) -> None:
        wire = self.wires[place]
        if wire.server_open:
            self.left = self.left._replace(losses=self.left.losses - 1)
        self._change(place, client_open=False, to_client=())
        self.client.lost(wire.attempt, self.client_now)

    def _server_loses(self, place: int) -> None:
        wire = self.wires[place]
        if wire.client_open:
            self.left = self.left._replace(losses=self.left.losses - 1)
        self._change(place, server_open=False, to_server=())
        session = self._session_of(wire)
        if session is not None and self.server.lost(session, session.attachments, self.server_now):
            self.pending = ()

    def _heartbeat(self, _: int) -> None:
        self.left = self.left._replace(beats=self.left.beats - 1)
        session = self.server.get("client")
        assert session is not None
        self.server_now = max(self.server_now, session._beat)
        if session.handle_timer(self.server_now) is not None:
            raise Broken("a connection is silent that was heard")

    def _client_grace(self, _: int) -> None:
        self.left = self.left._replace(graces=self.left.graces - 1)
        session = self.client.session
        assert session is not None
        self.client_now = session._grace
        self.client.handle_timer(self.client_now)

    def _server_grace(self, _: int) -> None:
        self.left = self.left._replace(graces=self.left.graces - 1)
        due = self.server.next_timer()
        assert due is not None
        self.server_now = due
        if [session.peer_id for session in self.server.handle_timer(due)] != ["client"]:
            raise Broken("a session outlives its grace")
        self.pending = ()

    def _restart(self, _: int) -> None:
        self.servers += 1
        self.server = self._new_server()
        self.pending = ()
        for place, wire in enumerate(self.wires):
            if wire.client_open or wire.session is not None:  # others wait in front of both servers
                self._change(place, server_open=False, to_server=())

    # Delivery

    def _to_client(self, place: int) -> None:
        wire = self.wires[place]
        data, *rest = wire.to_client
        self._change(place, to_client=tuple(rest))
        self.client.receive(wire.attempt, data, self.client_now)

    def _to_server(self, place: int) -> None:
        wire = self.wires[place]
        data, *rest = wire.to_server
        self._change(place, to_server=tuple(rest))
        if wire.session is None:
            self._shake_hands(place, data)
            return
        session = self._session_of(wire)
        if session is None:
            raise Broken("a connection is open whose session is over")
        try:
            envelope = session.receive(data, self.server_now)
        except (GapError, SessionFailure) as error:
            raise Broken(f"the server takes the client for a bad one: {error}") from error
        if envelope is not None:
            self._handled(session, envelope)

    def _shake_hands(self, place: int, data: bytes) -> None:
        hello = self.server.first_frame(data)
        if not isinstance(hello, Hello):
            raise Broken(f"the server cannot read a handshake: {hello.reason}")
        before = self.server.get("client")
        decided = self.server.decide(hello, self.server_now)
        assert decided.response is not None
        self._change(place, to_client=(decided.response,))
        late = not self.wires[place].client_open  # the client is further by now
        if isinstance(decided, Refused):
            if not late and self._must_resume(before, hello):
                raise Broken(f"a session that is there is not resumed: {decided.reason}")
            self._change(place, server_open=False, to_server=())
            return
        if late:
            self._check_late(decided)
        if not (late and decided.resumed):
            self.begun_late = late
        if decided.replaced is not None:
            self.pending = ()
        for other, wire in enumerate(self.wires):
            if wire.session is not None:  # of the replaced session, or the replaced connection
                self._change(other, server_open=False, to_server=())
        self._change(place, session=decided.session.id)

    def _must_resume(self, before: Session | None, hello: Hello) -> bool:
        if before is None or before.id != hello.request.session_id:
            return False
        if self.begun_late and hello.request.is_reconnect:
            return False  # the client was welcomed to another one of that id
        return self._server_options.transparent_reconnect

    def _check_late(self, decided: Accepted) -> None:
        """Check that a late handshake harms no session to which its client was welcomed."""
        if any(wire.session and wire.client_open and wire.server_open for wire in self.wires):
            raise Broken("a late handshake ends a connection that the client has")
        ours, replaced = self.client.session, decided.replaced
        if ours is None or replaced is None or ours.id != replaced.id:
            return
        if ours.attachments and not self.begun_late:
            raise Broken("a late handshake ends the session that the client has")

    def _session_of(self, wire: Wire) -> Session | None:
        session = self.server.get("client")
        return session if session is not None and session.id == wire.session else None

    def _handled(self, session: Session, envelope: Envelope) -> None:
        kind, number = envelope.payload
        call = self.calls[number]
        if kind != "call":
            raise Broken(f"the server is answered: {envelope.payload}")
        if call.handled is not None:
            raise Broken(f"call {number} is handled twice")
        if call.session != session.id:
            raise Broken(f"call {number} is handled in another session")
        if call.lost is not None and call.lost != self.servers:
            raise Broken(f"call {number} was given up, and is handled by a later server")
        for earlier in self.calls[:number]:
            if earlier.session == call.session and earlier.handled is None:
                raise Broken(f"call {number} is handled before an earlier one")
        self._note(number, call._replace(handled=self.servers))
        self.pending = (*self.pending, number)

    def _answered(self, session: Session, payload: Any) -> None:
        kind, number = payload
        call = self.calls[number]
        if kind != "answer" or call.handled is None:
            raise Broken(f"the client got what nobody sent: {payload}")
        if call.session != session.id:
            raise Broken(f"call {number} is answered in another session")
        if call.answered or call.lost is not None:
            raise Broken(f"call {number} is answered when it is over")
        for earlier in self.calls[:number]:
            if earlier.session == call.session and not earlier.answered:
                raise Broken(f"call {number} is answered before an earlier one")
        self._note(number, call._replace(answered=True))

    def _note(self, number: int, call: Call) -> None:
        self.calls = (*self.calls[:number], call, *self.calls[number + 1 :])

    def _change(self, place: int, **changed: Any) -> None:
        wires = list(self.wires)
        wires[place] = wires[place]._replace(**changed)
        self.wires = tuple(wires)

    # What follows from an action at once

    def _settle(self) -> None:
        """Perform what the client asks for, and put what both ends send on their connection."""
        while True:
            for event in self.client.events():
                self._perform(event)
            if self.client.state is ConnectorState.BACKING_OFF:
                due = self.client._due
                assert due is not None
                self.client_now = max(self.client_now, due)
                self.client.handle_timer(self.client_now)
            elif self.client.state is ConnectorState.NO_CONNECTION:
                raise Broken(f"the client gives up: {self.client.given_up}")
            elif not self.client._events:
                break
        self._collect()
        self.wires = tuple(wire for wire in self.wires if wire.client_open or wire.server_open)

    def _perform(self, event: ConnectorEvent) -> None:
        if isinstance(event, HelloWanted):
            self.client.hello(event.attempt, None, self.client_now)
        elif isinstance(event, Hangup):
            for place, wire in enumerate(self.wires):
                if wire.attempt == event.attempt:
                    self._change(place, client_open=False, to_client=())
        elif isinstance(event, EnvelopeReceived):
            self._answered(event.session, event.envelope.payload)
        elif isinstance(event, SessionCreated):
            self.sessions += 1
            _ids.number = self.sessions
        elif isinstance(event, SessionClosed):
            for number, call in enumerate(self.calls):
                if call.session == event.session.id and not call.answered:
                    self._note(number, call._replace(lost=self.servers))
        elif isinstance(event, Failure) and event.kind is not FailureKind.RETRIES:
            raise Broken(f"the client takes the server for a bad one: {event.text}")

    def _collect(self) -> None:
        sent = tuple(self.client.data_to_send())
        session = self.server.get("client")
        answers = () if session is None else tuple(session.data_to_send())
        if not sent and not answers:
            return
        for place, wire in enumerate(self.wires):
            if sent and wire.client_open and wire.server_open:
                self._change(place, to_server=wire.to_server + sent)
            if answers and wire.client_open and wire.server_open and self._session_of(wire):
                self._change(place, to_client=wire.to_client + answers)

    # Promises of every state

    def check(self) -> None:
        """Check the counters of both ends.

        Raises:
            Broken: they exclude each other.
        """
        client, server = self.client.session, self.server.get("client")
        for session in (client, server):
            if session is not None:
                buffer = send_buffer_of(session)
                if buffer.buffered_messages != buffer.seq - buffer.oldest:
                    raise Broken("a buffer has a hole")
                if buffer.buffered_bytes != sum(map(len, buffer.buffered())):
                    raise Broken("a buffer does not know its size")
                if provoked_in(buffer) != (buffer.provoked_messages, buffer.provoked_bytes):
                    raise Broken("a buffer does not know what was provoked")
        if client is None or server is None or client.id != server.id:
            return
        if self.begun_late:
            return  # for nobody
        for ours, theirs in ((client, server), (server, client)):
            mine, other = send_buffer_of(ours), send_buffer_of(theirs)
            if not mine.oldest <= other.ack <= mine.seq:
                raise Broken(
                    f"{other.ack} messages of {ours.role.value} were accepted, which holds "
                    f"{mine.oldest} to {mine.seq}"
                )

    def check_at_rest(self) -> None:
        """Check what a quiet run has led to.

        Raises:
            Broken: a call of the present session was not answered.
        """
        if self.client.state is not ConnectorState.CONNECTED:
            raise Broken(f"a quiet run leaves the client {self.client.state.name}")
        for number, call in enumerate(self.calls):
            if not call.answered and call.lost is None:
                raise Broken(f"a quiet run leaves call {number} without an answer")


_DO: dict[str, Callable[[World, int], None]] = {
    "call": World._call,
    "answer": World._answer,
    "dial": World._dial,
    "deliver to server": World._to_server,
    "deliver to client": World._to_client,
    "client loses": World._client_loses,
    "server loses": World._server_loses,
    "heartbeat": World._heartbeat,
    "client's grace runs out": World._client_grace,
    "server's grace runs out": World._server_grace,
    "restart": World._restart,
}


def _half() -> float:
    return 0.5


def _copied(machine: T) -> T:
    new = object.__new__(type(machine))
    new.__dict__.update(machine.__dict__)
    return new


def _copied_session(session: Session) -> Session:
    new = _copied(session)
    new._queue, new._timed = session._queue.copy(), session._timed.copy()
    old, buffer = send_buffer_of(session), object.__new__(SendBuffer)
    for name in SendBuffer.__slots__:
        setattr(buffer, name, getattr(old, name))
    buffer._buffer = old._buffer.copy()
    buffer._provoked = old._provoked.copy()
    new._send_buffer = buffer
    return new


def provoked_in(buffer: SendBuffer) -> tuple[int, int]:
    """Return how many messages in a buffer are ACKs, and their bytes; nothing else is provoked."""
    envelopes = [cast(Message, data).envelope for data in buffer.buffered()]
    sizes = [
        len(data)
        for data, envelope in zip(buffer.buffered(), envelopes, strict=True)
        if envelope.flags & ACK
    ]
    return len(sizes), sum(sizes)


def _challenged(session: Session, now: float) -> int:
    """Return whether the peer was asked for a sign of life: 0 no, 1 just now, 2 long ago."""
    asked = session._challenged
    return 0 if asked is None else 1 + (now >= asked + PROOF_TIME)


def _print(session: Session | None, now: float) -> Any:
    if session is None:
        return None
    buffer = send_buffer_of(session)
    return (
        session.id,
        session.state._value_,
        session.attachments > 0,
        buffer.seq,
        buffer.ack,
        buffer.owed_messages,
        tuple([data.key for _, data in cast(Any, buffer._buffer)]),
        session._gapped,
        _challenged(session, now),
        session._asked,
    )


def _attempt_of(wire: Wire) -> tuple[int, ...]:
    """Return the numbers in the handshake that a server has yet to read."""
    if wire.session is not None or not wire.to_server:
        return (0, 0)
    payload = cast(Message, wire.to_server[0]).envelope.payload
    attempt = payload["expectedSessionState"].get("attempt")
    return (0, 0) if attempt is None else (attempt["number"], attempt["welcomed"])


def _print_wire(wire: Wire) -> Any:
    _, to_server, to_client, session, client_open, server_open = wire
    return (
        tuple([data.key for data in cast(Any, to_server)]),
        tuple([data.key for data in cast(Any, to_client)]),
        session,
        client_open,
        server_open,
    )


def keep_refused_sessions(patch: pytest.MonkeyPatch) -> None:
    """Have a client that is refused come again with the same session, which is a mistake."""
    patch.setattr(Connector, "_refused", lambda self, refusal, now: self._drop(now, again=True))


def without_order(patch: pytest.MonkeyPatch) -> None:
    """Have a server take each handshake for the newest, which is a mistake."""
    patch.setattr(session_registry, "_attempts_since", lambda session, request: None)


def without_welcomed(patch: pytest.MonkeyPatch) -> None:
    """Have a server know sessions by their ids alone, which is a mistake."""
    patch.setattr(
        session_registry, "_names", lambda request, session: request.session_id == session.id
    )
