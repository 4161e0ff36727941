"""Two ends of a session keep their promises in every state that faults can bring them into.

What is promised: what is delivered is what was sent, each message once and in order; END comes
after all of it; no more is kept than the limit and one message; no end takes the other for a bad
peer or loses the session, unless it ended, a grace was over or an end went back in time; and when
no further faults come, all that was sent arrives, however small the buffers.

The sessions are real. Messages travel as they are between the ends, without frames. A carrier loses
what is on it at either end or both, at any time, also during the greeting, and one that its client
has left may still bring messages, a HELLO among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from wsmux.exceptions import FrameError
from wsmux.protocols import resumption
from wsmux.protocols.base import Message
from wsmux.protocols.resumption import (
    DATA_BYTE,
    END_BYTE,
    Hello,
    Kept,
    PositionError,
    Refusal,
    Session,
    Welcome,
    end_body,
)

from ..helpers.exploration import Broken, explore, steps
from ..helpers.fixtures import Tell

CLIENT, SERVER = 0, 1
SIDES = ("client", "server")
CLOSE = b"close"  # the close frame behind END
END = (END_BYTE + end_body(1000, ""), b"")
END_SIZE = 2
REPLAYED = 100  # numbers of carriers that bring a HELLO for the second time begin here


class Bounds(NamedTuple):
    """Say how much may happen on one path.

    Attributes:
        sizes: of the messages that each end sends.
        limit: unacknowledged bytes beyond which an end sends no data.
        losses: of a carrier, at one end or both.
        closes: ends that may close.
        graces: that may run out.
        replays: of a HELLO that the server has read.
        rollbacks: of the server to the state in which the session began.
    """

    sizes: tuple[int, ...]
    limit: int = 2
    losses: int = 0
    closes: int = 0
    graces: int = 0
    replays: int = 0
    rollbacks: int = 0


class Left(NamedTuple):
    """Say how much of what leaves no trace in a state may still happen."""

    losses: int
    graces: int
    replays: int
    rollbacks: int

    def covers(self, other: Left) -> bool:
        """Return whether whatever may happen to another may happen to this one."""
        return all(mine >= theirs for mine, theirs in zip(self, other, strict=True))


class Action(NamedTuple):
    """Name something that can happen next, to which side or on which carrier."""

    name: str
    side: int | None = None
    carrier: int | None = None

    def __str__(self) -> str:
        who = "" if self.side is None else f"{SIDES[self.side]}: "
        return who + self.name + ("" if self.carrier is None else f", carrier {self.carrier}")


class Wire(NamedTuple):
    """Hold one carrier; what is sent to an end that has left is gone."""

    number: int
    flying: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())  # to the client, to the server
    open: tuple[bool, bool] = (True, True)  # at the client, at the server
    dead: bool = False  # both ends are to find out


class Side:
    """Hold one end: its session, and what the owner of a transport knows beside it.

    Attributes:
        written, delivered: messages.
        closed: END was sent.
        ended: the peer's END was received.
        over: nothing more is wanted, and there is no carrier.
        carrier: the number of the present one, ``None`` without one.
        greeting: the number of the one over which a client waits for the answer to its HELLO.
        offered: the next carrier of a server, with its HELLO.
        lost: why the session was given up.
    """

    __slots__ = (
        "_print",
        "carrier",
        "closed",
        "delivered",
        "ended",
        "greeting",
        "lost",
        "offered",
        "over",
        "session",
        "written",
    )

    def __init__(self, limit: int) -> None:
        self.session = Session(bytes(16), limit, 60.0)
        self.session.epoch = b"epoch..."
        self.written = self.delivered = 0
        self.closed = self.ended = self.over = False
        self.carrier: int | None = 0
        self.greeting: int | None = None
        self.offered: tuple[int, Hello, Welcome] | None = None
        self.lost: str | None = None
        self._print: int | None = None

    def copy(self) -> Side:
        new = object.__new__(Side)
        new._print = None
        new.carrier, new.greeting, new.offered = self.carrier, self.greeting, self.offered
        new.closed, new.ended, new.over, new.lost = self.closed, self.ended, self.over, self.lost
        new.written, new.delivered = self.written, self.delivered
        session = new.session = object.__new__(Session)
        vars(session).update(vars(self.session))
        session.kept = self.session.kept.copy()
        return new

    def wants_carrier(self) -> bool:
        """Return whether there is something to send or to receive over another carrier."""
        if self.over or self.lost is not None or self.ended:
            return False
        return not self.closed or self.session.unacknowledged() > 0

    def fingerprint(self) -> int:
        if self._print is None:
            session = self.session
            self._print = hash(
                (
                    session.sent,
                    session.acknowledged,
                    session.received,
                    session.told,
                    session.generation,
                    len(session.kept),
                    self.written,
                    self.delivered,
                    self.closed,
                    self.ended,
                    self.over,
                    self.carrier,
                    self.greeting,
                    self.offered,
                    self.lost is None,
                )
            )
        return self._print


class SessionWorld:
    """Hold both ends, what is between them, and what the server's table knows.

    Attributes:
        left: how much may still happen.
        trace: the actions so far: the last one, and the trace before it.
        accepted: the highest generation that the server has let in.
        hellos: those that it has read, by their generation.
        excused: a grace was over or an end went back, after which a session may be lost.
        rolled_back: the ends need not agree any more, unless they go on.
    """

    # Rules of the server's table and transport, to be taken out.
    compares_generations = True
    welcomes_late = True

    __slots__ = (
        "_bounds",
        "accepted",
        "excused",
        "hellos",
        "left",
        "rolled_back",
        "sides",
        "trace",
        "wires",
    )

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.left = Left(bounds.losses, bounds.graces, bounds.replays, bounds.rollbacks)
        self.trace: Any = None
        self.accepted = 0
        self.hellos: tuple[Hello, ...] = ()
        self.excused = self.rolled_back = False
        self.sides = (Side(bounds.limit), Side(bounds.limit))
        self.wires: tuple[Wire, ...] = (Wire(0),)

    # States

    def copy(self) -> SessionWorld:
        new = object.__new__(SessionWorld)
        for name in SessionWorld.__slots__:
            setattr(new, name, getattr(self, name))
        return new  # a side is copied before it is changed

    def fingerprint(self) -> int:
        client, server = self.sides
        return hash(
            (
                client.fingerprint(),
                server.fingerprint(),
                self.wires,
                self.accepted,
                self.hellos,
                self.excused,
                self.rolled_back,
            )
        )

    def path(self) -> list[str]:
        return steps(self.trace)

    # Actions

    def actions(self) -> Iterator[Action]:
        bounds, left = self._bounds, self.left
        closes = sum(side.closed for side in self.sides)
        for number, side in enumerate(self.sides):
            if side.carrier is not None:
                if self._may_write(side):
                    yield Action("write", number)
                if side.session.received > side.session.told:
                    yield Action("acknowledge", number)
                if closes < bounds.closes and not side.closed and not side.ended:
                    yield Action("close", number)
            elif left.graces and side.wants_carrier() and side.offered is None:
                yield Action("grace runs out", number)
        if self._may_dial():
            yield Action("dial", CLIENT)
        if self.sides[SERVER].offered is not None:
            yield Action("attach", SERVER)
        for wire in self.wires:
            for number in (CLIENT, SERVER):
                if wire.open[number]:
                    if wire.flying[number]:
                        yield Action("read", number, wire.number)
                    if self._holds(number, wire) and (left.losses or self._sees_loss(number, wire)):
                        yield Action("lose", number, wire.number)
            if left.losses and not wire.dead and all(wire.open):
                yield Action("cut", None, wire.number)
        if left.replays:
            for hello in self.hellos:
                yield Action("replay", None, hello.generation)
        if left.rollbacks and not self.sides[SERVER].over:
            yield Action("roll back", SERVER)

    def quiet_action(self) -> Action | None:
        for wire in self.wires:
            for number in (CLIENT, SERVER):
                if wire.open[number] and wire.flying[number]:
                    return Action("read", number, wire.number)
        if self.sides[SERVER].offered is not None:
            return Action("attach", SERVER)
        for wire in self.wires:
            for number in (CLIENT, SERVER):
                held = wire.open[number] and self._holds(number, wire)
                if held and self._sees_loss(number, wire):
                    return Action("lose", number, wire.number)
        if self._may_dial():
            return Action("dial", CLIENT)
        for number, side in enumerate(self.sides):
            if side.carrier is not None and side.session.received > side.session.told:
                return Action("acknowledge", number)
        for number, side in enumerate(self.sides):
            if side.carrier is not None and self._may_write(side):
                return Action("write", number)
        return None

    def _may_write(self, side: Side) -> bool:
        more = side.written < len(self._bounds.sizes)
        return more and not side.closed and not side.ended and side.session.room() > 0

    def _may_dial(self) -> bool:
        client = self.sides[CLIENT]
        return client.carrier is None and client.greeting is None and client.wants_carrier()

    def _holds(self, number: int, wire: Wire) -> bool:
        """Return whether this side would notice that a carrier is lost."""
        side = self.sides[number]
        if number == SERVER:  # the carrier, or nobody has read its HELLO yet
            return side.offered is None or side.offered[0] != wire.number
        return wire.number in (side.carrier, side.greeting)

    def _sees_loss(self, number: int, wire: Wire) -> bool:
        """Return whether this side must find out that a carrier is lost, without a further one."""
        return wire.dead or not (wire.open[1 - number] or wire.flying[number])

    def do(self, action: Action) -> None:
        self.trace = (self.trace, action)
        try:
            _DO[action.name](self, action)
        except FrameError as error:
            raise Broken(f"an end takes the other for a bad one: {error}") from error

    def _own(self, number: int) -> Side:
        """Return a side that may be changed, since no other world has it."""
        side = self.sides[number].copy()
        self.sides = (side, self.sides[SERVER]) if number == CLIENT else (self.sides[CLIENT], side)
        return side

    def _wire(self, number: int | None) -> Wire:
        return next(wire for wire in self.wires if wire.number == number)

    def _change(self, wire: Wire, **changed: Any) -> Wire:
        new = wire._replace(**changed)
        self.wires = tuple(
            [
                new if each.number == wire.number else each
                for each in self.wires
                if each.number != wire.number or any(new.open)
            ]
        )
        return new

    def _push(self, sender: int, number: int | None, *messages: Any) -> None:
        for wire in self.wires:
            if wire.number == number and wire.open[1 - sender] and not wire.dead:
                to_client, to_server = wire.flying
                if sender == SERVER:
                    self._change(wire, flying=((*to_client, *messages), to_server))
                else:
                    self._change(wire, flying=(to_client, (*to_server, *messages)))

    def _leave(self, number: int, carrier: int | None) -> None:
        """Close this side's end of a carrier; what flies to it is gone."""
        for wire in self.wires:
            if wire.number == carrier and wire.open[number]:
                at_client, at_server = wire.open
                to_client, to_server = wire.flying
                if number == CLIENT:
                    self._change(wire, open=(False, at_server), flying=((), to_server))
                else:
                    self._change(wire, open=(at_client, False), flying=(to_client, ()))

    # What the ends do; a side is owned before

    def _write(self, action: Action) -> None:
        assert action.side is not None
        side = self._own(action.side)
        body = self._body(action.side, side.written)
        side.written += 1
        side.session.keep((DATA_BYTE, body))
        self._push(action.side, side.carrier, DATA_BYTE + body)

    def _body(self, side: int, index: int) -> bytes:
        return bytes((side << 4 | index,)) * self._bounds.sizes[index]

    def _acknowledge(self, action: Action) -> None:
        assert action.side is not None
        side = self._own(action.side)
        self._push(action.side, side.carrier, side.session.acknowledgement())

    def _close(self, action: Action) -> None:
        assert action.side is not None
        self._send_end(action.side, self._own(action.side))

    def _send_end(self, number: int, side: Side) -> None:
        side.closed = True
        side.session.keep(END)
        self._push(number, side.carrier, END[0], CLOSE)

    def _dial(self, action: Action) -> None:
        client = self._own(CLIENT)
        hello = client.session.hello()
        client.greeting = hello.generation
        self.wires = (*self.wires, Wire(hello.generation, ((), (hello,))))

    def _lose(self, action: Action) -> None:
        assert action.side is not None
        wire = self._wire(action.carrier)
        if not self._sees_loss(action.side, wire):
            self.left = self.left._replace(losses=self.left.losses - 1)
        self._without_carrier(action.side, self._own(action.side), wire.number)

    def _without_carrier(self, number: int, side: Side, carrier: int | None) -> None:
        self._leave(number, carrier)
        if side.carrier == carrier:
            side.carrier = None
        if side.greeting == carrier:
            side.greeting = None
        if side.carrier is None and not side.wants_carrier():
            self._finish(number, side)

    def _finish(self, number: int, side: Side) -> None:
        side.over = True
        for carrier in (side.carrier, side.greeting, side.offered and side.offered[0]):
            self._leave(number, carrier)
        side.carrier = side.greeting = side.offered = None

    def _give_up(self, number: int, side: Side, reason: str) -> None:
        side.lost = reason
        self._finish(number, side)
        if not self.excused and not self.sides[1 - number].ended:
            raise Broken(f"the {SIDES[number]} loses the session without a cause: {reason}")

    def _cut(self, action: Action) -> None:
        self.left = self.left._replace(losses=self.left.losses - 1)
        self._change(self._wire(action.carrier), flying=((), ()), dead=True)

    def _grace(self, action: Action) -> None:
        assert action.side is not None
        self.left = self.left._replace(graces=self.left.graces - 1)
        self.excused = True
        self._give_up(action.side, self._own(action.side), "the grace is over")

    def _replay(self, action: Action) -> None:
        self.left = self.left._replace(replays=self.left.replays - 1)
        hello = next(each for each in self.hellos if each.generation == action.carrier)
        number = REPLAYED + self.left.replays
        self.wires = (*self.wires, Wire(number, ((), (hello,)), (False, True)))

    def _roll_back(self, action: Action) -> None:
        self.left = self.left._replace(rollbacks=self.left.rollbacks - 1)
        self.excused = self.rolled_back = True
        for wire in self.wires:
            self._leave(SERVER, wire.number)
        server = Side(self._bounds.limit)
        server.carrier = None
        self.sides = (self.sides[CLIENT], server)
        self.accepted = 0

    def _read(self, action: Action) -> None:
        assert action.side is not None
        wire = self._wire(action.carrier)
        message, *rest = wire.flying[action.side]
        to_client, to_server = wire.flying
        flying = (tuple(rest), to_server) if action.side == CLIENT else (to_client, tuple(rest))
        self._change(wire, flying=flying)
        side = self._own(action.side)
        if isinstance(message, Hello):
            self._greeted(side, wire.number, message)
        elif isinstance(message, Welcome):
            self._go_on(CLIENT, side, wire.number, message.received)
        elif isinstance(message, Refusal):
            self._give_up(CLIENT, side, message.reason)
        elif message is CLOSE:
            if side.ended and not side.closed:
                self._send_end(action.side, side)
            self._without_carrier(action.side, side, wire.number)
        else:
            self._receive(action.side, side, message)

    def _receive(self, number: int, side: Side, message: bytes) -> None:
        body = side.session.receive(message)
        peer = self.sides[1 - number]
        if body is not None:
            known = len(self._bounds.sizes) if self.rolled_back else peer.written
            more = side.delivered < known
            expected = self._body(1 - number, side.delivered) if more else b""
            if body != expected:
                raise Broken(
                    f"the {SIDES[number]} gets {bytes(body)!r} as message {side.delivered}, "
                    f"instead of {expected!r}"
                )
            side.delivered += 1
        if side.session.peer_end is not None and not side.ended:
            side.ended = True
            whole = peer.closed and side.delivered == peer.written
            if not whole and not self.rolled_back:
                raise Broken(f"the {SIDES[number]} gets END before all data")

    def _greeted(self, server: Side, number: int, hello: Hello) -> None:
        self.hellos = (*(each for each in self.hellos if each != hello), hello)
        if server.over:
            self._refuse(number, Refusal(True, "there is no such session"))
        elif self.compares_generations and hello.generation <= self.accepted:
            self._refuse(number, Refusal(False, "a later carrier was there before"))
        else:
            self.accepted = hello.generation
            if server.offered is not None:
                self._leave(SERVER, server.offered[0])
            server.offered = number, hello, server.session.welcome()

    def _refuse(self, number: int, refusal: Refusal) -> None:
        self._push(SERVER, number, refusal)
        self._leave(SERVER, number)

    def _attach(self, action: Action) -> None:
        server = self._own(SERVER)
        assert server.offered is not None
        number, hello, welcome = server.offered
        server.offered = None
        self._leave(SERVER, server.carrier)
        server.carrier = None
        if not server.wants_carrier():
            self._leave(SERVER, number)
            self._finish(SERVER, server)
            return
        if self.welcomes_late:
            welcome = server.session.welcome()
        self._go_on(SERVER, server, number, hello.received, hello.oldest, welcome)

    def _go_on(
        self,
        number: int,
        side: Side,
        carrier: int,
        received: int,
        oldest: int = 0,
        *greeting: Welcome,
    ) -> None:
        """Go on over a carrier, if the peer's positions are possible."""
        session = side.session
        try:
            session.check_oldest(oldest)
            kept = session.resume(received)
        except PositionError as error:
            if number == SERVER:
                self._refuse(carrier, Refusal(True, str(error)))
            self._give_up(number, side, str(error))
            return
        side.carrier, side.greeting = carrier, None
        if number == SERVER:
            session.generation = carrier
        again = [head + bytes(body) for _, (head, body) in kept]
        if side.closed:
            again.append(CLOSE)
        self._push(number, carrier, *greeting, *again)

    # Promises

    def check(self) -> None:
        longest = max((*self._bounds.sizes, END_SIZE))
        for number, side in enumerate(self.sides):
            session, peer = side.session, self.sides[1 - number].session
            data = session.unacknowledged() - (END_SIZE if side.closed else 0)
            if data >= self._bounds.limit + longest:
                raise Broken(f"the {SIDES[number]} keeps {data} bytes")
            if self.rolled_back:
                continue
            if not session.acknowledged <= peer.received <= session.sent:
                raise Broken(f"the {SIDES[number]} and its peer count differently")
            if session.told > session.received:
                raise Broken(f"the {SIDES[number]} tells more than it has received")

    def check_at_rest(self) -> None:
        attached = [side.carrier for side in self.sides]
        if attached != [None, None] and len(set(attached)) == 2:
            raise Broken(f"a quiet run leaves the ends on different carriers: {attached}")
        if attached != [None, None] and any(side.closed for side in self.sides):
            raise Broken("a quiet run leaves a carrier of a session that was closed")
        if self.excused:
            return
        if any(side.closed for side in self.sides):
            if not any(side.ended for side in self.sides):
                raise Broken("a quiet run leaves END undelivered")
            return
        for number, side in enumerate(self.sides):
            if side.written < len(self._bounds.sizes):
                raise Broken(f"a quiet run leaves the {SIDES[number]} without room")
            if self.sides[1 - number].delivered < side.written:
                raise Broken(f"a quiet run leaves messages of the {SIDES[number]} undelivered")
            if side.session.unacknowledged():
                raise Broken(f"a quiet run leaves the {SIDES[number]} unacknowledged")


_DO: dict[str, Callable[[SessionWorld, Action], None]] = {
    "write": SessionWorld._write,
    "acknowledge": SessionWorld._acknowledge,
    "close": SessionWorld._close,
    "dial": SessionWorld._dial,
    "attach": SessionWorld._attach,
    "read": SessionWorld._read,
    "lose": SessionWorld._lose,
    "cut": SessionWorld._cut,
    "grace runs out": SessionWorld._grace,
    "replay": SessionWorld._replay,
    "roll back": SessionWorld._roll_back,
}


@pytest.fixture(autouse=True)
def short_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let messages of one byte count as such: the limits here are of two or three."""
    monkeypatch.setattr(resumption, "LEAST_KEPT", 1)


# All states of a world within these are looked at in the plain suite.
SMALL = {
    "losses": Bounds((1, 2), losses=1),
    "full buffers": Bounds((2, 2), losses=1),
    "an end closes": Bounds((1,), losses=1, closes=1),
    "both close": Bounds((), losses=1, closes=2),
    "graces": Bounds((1,), losses=1, graces=1),
    "replays": Bounds((1,), losses=1, replays=1),
    "rollbacks": Bounds((1,), losses=0, rollbacks=1),
}


@pytest.mark.parametrize("name", SMALL)
def test_every_state_within_small_bounds_keeps_the_promises(name: str, tell: Tell) -> None:
    explored = explore(SessionWorld(SMALL[name]), 200_000)
    tell(str(explored))
    assert explored.whole


# With the states that there are at least.
WORLDS: dict[str, tuple[Bounds, int]] = {
    "three losses": (Bounds((1, 2), losses=3), 160_000),
    "three messages": (Bounds((1, 2, 1), losses=2), 45_000),
    "an end closes": (Bounds((1, 2), losses=2, closes=1), 170_000),
    "both close": (Bounds((1, 2), losses=2, closes=2), 265_000),
    "graces": (Bounds((1, 2), losses=2, graces=1), 45_000),
    "replays": (Bounds((1, 2), losses=2, replays=1), 50_000),
    "rollbacks": (Bounds((1, 2), losses=2, rollbacks=1), 80_000),
    "everything": (Bounds((1,), losses=2, closes=1, graces=1, replays=1), 75_000),
    "room for two": (Bounds((1, 2, 1), limit=3, losses=2), 90_000),
    "two replays": (Bounds((1,), losses=2, replays=2, closes=1), 150_000),
}


def test_the_worlds_for_long_have_a_million_states() -> None:
    assert sum(least for _, least in WORLDS.values()) >= 10**6


@pytest.mark.long
@pytest.mark.hang_bound(1800)
@pytest.mark.parametrize("name", WORLDS)
def test_a_million_states_keep_the_promises(name: str, tell: Tell) -> None:
    bounds, least = WORLDS[name]
    explored = explore(SessionWorld(bounds), 10**6)
    tell(f"{name}: {explored}")
    assert explored.whole
    assert explored.states >= least


# Rules that are taken out


def _without_positions(patch: pytest.MonkeyPatch) -> None:
    def resume(self: Session, position: int) -> list[Kept]:
        self.acknowledged = position
        while self.kept and self.kept[0][0] <= position:
            self.kept.popleft()
        return list(self.kept)

    patch.setattr(Session, "resume", resume)
    patch.setattr(Session, "check_oldest", lambda self, oldest: None)


def _without_trimming(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "resume", lambda self, position: list(self.kept))


def _without_keeping_end(patch: pytest.MonkeyPatch) -> None:
    real = Session.keep

    def keep(self: Session, message: Message) -> None:
        real(self, message)
        if message is END:
            self.kept.pop()

    patch.setattr(Session, "keep", keep)


def _without_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "room", lambda self: self.limit)


def _without_generations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionWorld, "compares_generations", False)


def _with_an_early_welcome(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionWorld, "welcomes_late", False)


@pytest.mark.parametrize(
    ("take_out", "bounds", "text"),
    [
        (_without_positions, "rollbacks", r"the \w+ gets b'.*' as message \d"),
        (_without_trimming, "losses", r"the \w+ gets b'.*' as message \d"),
        (_without_keeping_end, "an end closes", "a quiet run "),
        (_without_room, "full buffers", r"the \w+ keeps \d bytes"),
        (_without_generations, "replays", "loses the session without a cause"),
        (_with_an_early_welcome, "losses", r"the server gets b'.*' as message \d"),
    ],
)
def test_a_missing_rule_is_found(
    take_out: Callable[[pytest.MonkeyPatch], None],
    bounds: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_out(monkeypatch)
    with pytest.raises(Broken, match=text):
        explore(SessionWorld(SMALL[bounds]), 200_000)
