"""Join a client's connector to a server's table over wires that can be cut, with a clock to turn.

``Net`` does what an owner does: it performs events, carries messages, and calls timers. Nothing
happens by itself: ``run`` moves messages until there are none, ``sleep`` turns the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from wsmux.rpc.errors import GapError, SessionFailure
from wsmux.rpc.options import Options
from wsmux.rpc.session.connector import (
    Connector,
    ConnectorEvent,
    ConnectorState,
    Dial,
    EnvelopeReceived,
    Hangup,
    HelloWanted,
    SessionClosed,
    SessionCreated,
    StatusChanged,
)
from wsmux.rpc.session.session import Lapse, Session
from wsmux.rpc.session.session_registry import Accepted, Hello, Refused, Sessions
from wsmux.rpc.wire.handshake import RefusalCode

from .tiny_codec import TinyCodec

E = TypeVar("E")

_ids = count()


def new_id() -> str:
    return f"id{next(_ids)}"


class Wire:
    """One connection; ``session`` is the server's once the handshake is done."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.to_server: deque[bytes] = deque()
        self.to_client: deque[bytes] = deque()
        self.session: Session | None = None
        self.attachment = 0
        self.open = True  # as the server sees it


class Net:
    """Hold both ends.

    Attributes:
        up: whether the server can be reached.
        mute: whether messages vanish, both ways, while nobody notices.
        frames: messages delivered so far; the wire is cut when it reaches ``cut_at``.
    """

    def __init__(self, options: Options | None = None, **client: Any) -> None:
        self.now = 100.0
        self.options = options or Options(backoff_jitter=0)
        self.client_codec, self.server_codec = TinyCodec(), TinyCodec()
        self.client = self.new_client(**client)
        self.server = self.new_server()
        self.validate: Callable[[Hello], RefusalCode | None] = lambda hello: None
        self.metadata: Any = None
        self.up, self.mute = True, False
        self.greets = True
        self.fatal = False
        self.frames, self.cut_at = 0, -1
        self.wire: Wire | None = None
        self.old_wires: list[Wire] = []
        self.log: list[ConnectorEvent] = []
        self.client_got: list[Any] = []
        self.server_got: list[Any] = []
        self.server_over: list[str] = []
        self.refusals: list[Refused] = []
        self.accepted: list[Accepted] = []
        self.on_server: Callable[[Session, Any], None] = lambda session, payload: None

    def new_client(self, **client: Any) -> Connector:
        return Connector(
            "client",
            "SERVER",
            codec=self.client_codec,
            options=self.options,
            new_id=new_id,
            random=lambda: 0.5,
            **client,
        )

    def new_server(self) -> Sessions:
        return Sessions("SERVER", codec=self.server_codec, options=self.options, new_id=new_id)

    # What tests ask for

    def connect(self) -> Session:
        """Connect, and return the client's session."""
        self.client.connect(self.now)
        self.run()
        assert self.client.state is ConnectorState.CONNECTED
        assert self.client.session is not None
        return self.client.session

    def call(self, payload: Any) -> Session:
        """Send a message as a call does, connected or not."""
        session = self.client.need_session(self.now)
        session.send(self.client_codec.pack(payload), stream_id="stream", flags=0)
        return session

    def answer(self, payload: Any) -> None:
        """Send a message of the server's."""
        self.server_session.send(self.server_codec.pack(payload), stream_id="stream", flags=0)

    @property
    def server_session(self) -> Session:
        session = self.server.get("client")
        assert session is not None
        return session

    def of(self, kind: type[E]) -> list[E]:
        """Return the client's events of a class."""
        return [event for event in self.log if isinstance(event, kind)]

    def states(self) -> list[str]:
        return [event.state.name for event in self.of(StatusChanged)]

    def statuses(self) -> list[str]:
        """Return the beginnings and ends of the client's sessions."""
        names = {SessionCreated: "created", SessionClosed: "closed"}
        return [names[type(event)] for event in self.log if type(event) in names]

    # Time and wires

    def sleep(self, seconds: float) -> None:
        """Turn the clock, stopping at each timer of either end."""
        until = self.now + seconds
        while True:
            timers = [self.client.next_timer(), self.server.next_timer()]
            timers += [self._server_timer()]
            due = min((timer for timer in timers if timer is not None), default=until)
            self.now = min(max(due, self.now), until)
            self.tick()
            if self.now >= until:
                return

    def tick(self) -> None:
        self.run()
        self.client.handle_timer(self.now)
        self._server_ended(self.server.handle_timer(self.now))
        for wire in self._wires():
            session = wire.session
            if session is None or not session.attached or session.attachments != wire.attachment:
                continue
            if session.handle_timer(self.now) is Lapse.SILENCE:
                self._server_lost(wire)
        self.run()

    def _wires(self) -> list[Wire]:
        return self.old_wires + ([self.wire] if self.wire is not None else [])

    def _server_timer(self) -> float | None:
        session = self.server.get("client")
        return None if session is None else session.next_timer()

    def cut(self, *, noticed: bool = True) -> None:
        """Lose the connection and what is under way; the server may fail to notice."""
        wire = self.wire
        if wire is None:
            return
        self._collect()
        self.wire = None
        if noticed:
            self._server_lost(wire)
        else:
            self.old_wires.append(wire)
        self.client.lost(wire.attempt, self.now)
        self.run()

    def restart_server(self) -> None:
        """Let the server forget everything; its connections are lost."""
        self.server.close()
        self.server = self.new_server()
        for wire in self._wires():
            wire.session, wire.open = None, False
        self.run()

    def _server_lost(self, wire: Wire) -> None:
        wire.open = False
        if wire.session is not None and self.server.lost(wire.session, wire.attachment, self.now):
            self.server_over.append(wire.session.id)

    def _server_ended(self, sessions: list[Session]) -> None:
        self.server_over += [session.id for session in sessions]

    # Carrying

    def run(self) -> None:
        """Perform events and carry messages until nothing is left."""
        while True:
            events = self.client.events()
            self._perform(events)
            self._collect()
            if not self._carry() and not events:
                return

    def _perform(self, events: list[ConnectorEvent]) -> None:
        self.log += events
        for event in events:
            if isinstance(event, Dial):
                if self.up:
                    self.wire = Wire(event.attempt)
                    self.client.dialled(event.attempt, self.now)
                else:
                    self.client.dial_failed(event.attempt, self.now, fatal=self.fatal)
            elif isinstance(event, HelloWanted) and self.greets:
                self.client.hello(event.attempt, self.metadata, self.now)
            elif isinstance(event, Hangup):
                wire = self.wire
                if wire is not None and wire.attempt == event.attempt:
                    self.wire = None
                    if not self.mute:
                        self._server_lost(wire)
                    else:
                        self.old_wires.append(wire)
            elif isinstance(event, EnvelopeReceived):
                self.client_got.append(event.envelope.payload)

    def _collect(self) -> None:
        wire = self.wire
        if wire is None:
            return
        sent = self.client.data_to_send()
        if not self.mute:
            wire.to_server.extend(sent)
        if wire.session is not None and wire.open:
            answers = wire.session.data_to_send() if wire.session.attached else []
            if not self.mute and wire.session.attachments == wire.attachment:
                wire.to_client.extend(answers)

    def _carry(self) -> bool:
        wire = self.wire
        if wire is None:
            return False
        if self.frames == self.cut_at and (wire.to_server or wire.to_client):
            self.cut_at = -1
            self.cut()
            return True
        if wire.to_server:
            self.frames += 1
            self._serve(wire, wire.to_server.popleft())
            return True
        if wire.to_client:
            self.frames += 1
            self.client.receive(wire.attempt, wire.to_client.popleft(), self.now)
            return True
        if not wire.open:
            self.wire = None
            self.client.lost(wire.attempt, self.now)
            return True
        return False

    def _serve(self, wire: Wire, data: bytes) -> None:
        if not wire.open:
            return
        if wire.session is None:
            self._shake_hands(wire, data)
            return
        if wire.session.attachments != wire.attachment or not wire.session.attached:
            return
        try:
            envelope = wire.session.receive(data, self.now)
        except GapError:
            self._server_lost(wire)
        except SessionFailure:
            self._server_ended([wire.session])
            self.server.end(wire.session)
            wire.open = False
        else:
            if envelope is not None:
                self.server_got.append(envelope.payload)
                self.on_server(wire.session, envelope.payload)

    def _shake_hands(self, wire: Wire, data: bytes) -> None:
        hello = self.server.first_frame(data)
        if isinstance(hello, Hello):
            code = self.validate(hello)
            if code is not None:
                decision: Accepted | Refused = self.server.refuse(
                    hello.client_id, code, "rejected by handshake handler"
                )
            else:
                decision = self.server.decide(hello, self.now)
        else:
            decision = hello
        if decision.response is not None:
            wire.to_client.append(decision.response)
        if isinstance(decision, Refused):
            self.refusals.append(decision)
            wire.open = False
            return
        self.accepted.append(decision)
        if decision.replaced is not None:
            self._server_ended([decision.replaced])
        wire.session = decision.session
        wire.attachment = decision.session.attachments
