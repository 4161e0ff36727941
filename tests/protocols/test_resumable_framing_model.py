"""Two ends of a session lose no byte over carriers that are cut anywhere.

Here everything is bytes: frames, their masks, HELLO and its signature. Hypothesis writes, delivers
some bytes, cuts a carrier at either end, lets a client come back before the server has noticed, and
brings a HELLO a second time. ``test_resumption_model`` goes through all states, of messages alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from wsmux.config import LEAST_RESUME_BUFFER
from wsmux.protocols.base import Buffer, Role
from wsmux.protocols.framing import Opcode, encode_close
from wsmux.protocols.resumable_framing import ACKNOWLEDGEMENT, ResumableFraming
from wsmux.protocols.resumption import (
    END_BYTE,
    LONGEST_GREETING,
    Hello,
    Kept,
    Refusal,
    Session,
    Welcome,
    is_signed,
    parse_answer,
    parse_hello,
)
from wsmux.protocols.websocket import WebSocketFraming

from ..helpers.examples import examples
from ..helpers.long_models import LongRun
from ..helpers.machine_pairs import feed, other

CLIENT, SERVER = Role.CLIENT, Role.SERVER
roles = st.sampled_from(Role)
KEY = bytes(range(32))
EPOCH = b"epoch..."
LONGEST = 300  # bytes of a message, and so beyond the shortest header
LIMIT = 500  # unacknowledged
LONGEST_END = 2 + 123
LONGEST_QUIET = 100  # steps


@dataclass
class Carrier:
    """Hold what flies to each end, and which ends are there."""

    flying: dict[Role, bytearray] = field(
        default_factory=lambda: {role: bytearray() for role in Role}
    )
    open: dict[Role, bool] = field(default_factory=lambda: dict.fromkeys(Role, True))

    def push(self, sender: Role, pieces: list[Buffer]) -> None:
        if self.open[other(sender)]:
            self.flying[other(sender)] += b"".join(bytes(piece) for piece in pieces)

    def leave(self, role: Role) -> None:
        self.open[role] = False
        self.flying[role].clear()

    def take_greeting(self, role: Role) -> bytes | None:
        """Take the first frame, and nothing behind it, once it is whole."""
        flying = self.flying[role]
        if len(flying) < 2:
            return None
        size = 2 + (flying[1] & 0x7F) + (4 if flying[1] & 0x80 else 0)
        if len(flying) < size:
            return None
        frame = bytes(flying[:size])
        del flying[:size]
        ((kind, message),) = feed(WebSocketFraming(role, LONGEST_GREETING), frame)
        assert kind is Opcode.BINARY
        return message


@dataclass
class End:
    """Hold one end; ``closed`` and ``ended`` have the code and reason of an END."""

    role: Role
    framing: ResumableFraming
    carrier: Carrier | None
    sent: list[bytes] = field(default_factory=list)
    got: list[bytes] = field(default_factory=list)
    closed: tuple[int, str] | None = None
    over: bool = False

    @property
    def session(self) -> Session:
        return self.framing.session

    def wants_carrier(self) -> bool:
        """Return whether there is something to send or to receive over another carrier."""
        if self.over or self.session.peer_end is not None:
            return False
        return self.closed is None or self.session.unacknowledged() > 0


def new_end(role: Role, carrier: Carrier) -> End:
    session = Session(bytes(16), LIMIT, 60.0)
    session.epoch, session.key = EPOCH, KEY
    return End(role, ResumableFraming(role, LONGEST, 16, session), carrier)


class CarriersModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        first = Carrier()
        self.ends = {role: new_end(role, first) for role in Role}
        self.client, self.server = self.ends[CLIENT], self.ends[SERVER]
        self.dialled: Carrier | None = None  # over which the client has sent HELLO
        self.unread: list[Carrier] = []  # whose HELLO the server has not read
        self.offered: tuple[Carrier, Hello] | None = None
        self.accepted = 0
        self.last_hello: list[Buffer] = []
        self.written = 0

    # What the owners do

    @rule(role=roles, size=st.sampled_from([1, 2, 10, 123, 124, 125, 126, 250, LONGEST]))
    def write(self, role: Role, size: int) -> None:
        end = self.ends[role]
        if end.carrier is None or end.closed or end.session.room() <= 0:
            return
        self.written += 1
        message = (self.written % 256).to_bytes(1, "big") * size
        end.sent.append(message)
        end.carrier.push(role, end.framing.encode((message[: size // 2], message[size // 2 :])))

    @rule(role=roles)
    def acknowledge(self, role: Role) -> None:
        end = self.ends[role]
        if end.carrier is not None and end.session.received > end.session.told:
            end.carrier.push(role, end.framing.encode(ACKNOWLEDGEMENT))

    @rule(role=roles, kind=st.sampled_from([Opcode.PING, Opcode.PONG]))
    def control(self, role: Role, kind: Opcode) -> None:
        end = self.ends[role]
        if end.carrier is not None and not end.closed:
            end.carrier.push(role, [end.framing.encode_control(kind, b"x" * 10)])

    @rule(
        role=roles,
        chance=st.integers(0, 9),
        code=st.sampled_from([1000, 1005, 4999]),
        reason=st.sampled_from(["", "bye", "ä" * 61]),
        cut=st.none() | st.integers(0, 400),
    )
    def close(self, role: Role, chance: int, code: int, reason: str, cut: int | None) -> None:
        """Close, and perhaps cut the carrier before or behind END, or within it."""
        end = self.ends[role]
        if chance == 0 and end.carrier is not None and not end.closed:
            self.send_end(end, code, "" if code == 1005 else reason)
            if cut is not None:
                self.lose(other(role), cut)

    def send_end(self, end: End, code: int, reason: str) -> None:
        assert end.carrier is not None
        end.closed = code, reason
        payload = encode_close(code, reason)
        end.carrier.push(end.role, [end.framing.encode_control(Opcode.CLOSE, payload)])

    # What the network does

    @rule(role=roles, count=st.integers(1, 400) | st.just(10_000))
    def deliver(self, role: Role, count: int) -> None:
        end = self.ends[role]
        carrier = end.carrier
        if carrier is None:
            return
        chunk = bytes(carrier.flying[role][:count])
        del carrier.flying[role][:count]
        for kind, payload in feed(end.framing, chunk):
            if kind is Opcode.BINARY:
                end.got.append(payload)
            elif kind is Opcode.CLOSE:
                if end.session.peer_end is not None and end.closed is None:
                    self.send_end(end, 1000, "")
                self.leave(end)
                break
        assert end.framing.failure is None

    @rule(role=roles, count=st.integers(0, 400))
    def lose(self, role: Role, count: int) -> None:
        """Cut a carrier behind so many bytes."""
        self.deliver(role, count)
        if self.ends[role].carrier is not None:
            self.leave(self.ends[role])
        elif role is CLIENT and self.dialled is not None:
            self.dialled.leave(CLIENT)
            self.dialled = None

    def leave(self, end: End) -> None:
        assert end.carrier is not None
        end.carrier.leave(end.role)
        end.carrier = None
        end.framing.restart()
        end.over = not end.wants_carrier()

    @precondition(lambda self: self.last_hello and len(self.unread) < 3)
    @rule()
    def replay(self) -> None:
        """Bring the last HELLO that the server has read once more."""
        carrier = Carrier()
        carrier.push(CLIENT, self.last_hello)
        carrier.leave(CLIENT)
        self.unread.append(carrier)

    # How a client comes back

    @precondition(lambda self: self.client.carrier is None and self.dialled is None)
    @rule()
    def dial(self) -> None:
        if not self.client.wants_carrier():
            return
        session = self.client.session
        self.dialled = Carrier()
        hello = session.hello()._replace(buffer=LEAST_RESUME_BUFFER)  # the limit here is below it
        self.dialled.push(CLIENT, self.client.framing.encode_greeting(hello.encode(session.key)))
        self.unread.append(self.dialled)

    @precondition(lambda self: self.unread)
    @rule(place=st.integers(0, 2))
    def greet(self, place: int) -> None:
        """Read the HELLO of any carrier: an older one may come later."""
        carrier = self.unread.pop(place % len(self.unread))
        message = carrier.take_greeting(SERVER)
        assert message is not None
        self.last_hello = self.client.framing.encode_greeting(message)
        hello, signed, mac = parse_hello(message)
        assert is_signed(KEY, signed, mac)
        if self.server.over:
            self.refuse(carrier, Refusal(True, "there is no such session"))
        elif hello.generation <= self.accepted:
            self.refuse(carrier, Refusal(False, "a later carrier was there before"))
        else:
            self.accepted = hello.generation
            if self.offered is not None:
                self.offered[0].leave(SERVER)
            self.offered = carrier, hello

    def refuse(self, carrier: Carrier, refusal: Refusal) -> None:
        carrier.push(SERVER, self.server.framing.encode_greeting(refusal.encode()))
        carrier.leave(SERVER)

    @precondition(lambda self: self.offered is not None)
    @rule()
    def attach(self) -> None:
        assert self.offered is not None
        (carrier, hello), self.offered = self.offered, None
        if self.server.carrier is not None:
            self.leave(self.server)
        if self.server.over:
            self.refuse(carrier, Refusal(True, "the session has just ended"))
            return
        session, framing = self.server.session, self.server.framing
        session.check_oldest(hello.oldest)
        kept = session.resume(hello.received)
        self.server.carrier = carrier
        welcome = session.welcome()._replace(buffer=LEAST_RESUME_BUFFER)
        carrier.push(SERVER, framing.encode_greeting(welcome.encode()))
        carrier.push(SERVER, framing.resend(kept))

    @precondition(lambda self: self.dialled is not None)
    @rule()
    def go_on(self) -> None:
        carrier = self.dialled
        assert carrier is not None
        message = carrier.take_greeting(CLIENT)
        if message is None:
            return
        self.dialled = None
        answer = parse_answer(message)
        if isinstance(answer, Welcome):
            assert answer.epoch == EPOCH
            kept = self.client.session.resume(answer.received)
            self.client.carrier = carrier
            carrier.push(CLIENT, self.client.framing.resend(kept))
        else:
            assert answer.lost, answer.reason
            assert self.server.session.peer_end is not None
            carrier.leave(CLIENT)
            self.client.over = True

    # What always holds

    @invariant()
    def what_is_read_is_a_prefix_of_what_was_sent(self) -> None:
        for role, end in self.ends.items():
            peer = self.ends[other(role)]
            assert end.got == peer.sent[: len(end.got)]
            assert end.session.acknowledged <= peer.session.received <= end.session.sent
            if end.session.peer_end is not None:
                assert end.session.peer_end == peer.closed
                assert end.got == peer.sent

    @invariant()
    def no_more_is_kept_than_the_limit_and_one_message(self) -> None:
        for end in self.ends.values():
            kept = end.session.unacknowledged() - (LONGEST_END if end.closed else 0)
            assert kept < LIMIT + LONGEST

    @rule(chance=st.integers(0, 3))
    def settle_seldom(self, chance: int) -> None:
        if chance == 0:
            self.settle()

    def settle(self) -> None:
        """Let nothing fail any more, until nothing happens."""
        for _ in range(LONGEST_QUIET):
            if not self.moved():
                break
        else:
            raise AssertionError("what happens by itself does not come to an end")
        client, server = self.client, self.server
        assert client.carrier is server.carrier
        if client.closed is None and server.closed is None:
            assert client.carrier is not None
            for end in self.ends.values():
                assert end.got == self.ends[other(end.role)].sent
                assert end.session.unacknowledged() == 0
        else:
            assert client.carrier is None
            assert client.session.peer_end or server.session.peer_end

    def moved(self) -> bool:
        """Do the next thing that must happen; return false if there is none."""
        for role, end in self.ends.items():
            if end.carrier is not None and end.carrier.flying[role]:
                self.deliver(role, 10_000)
                return True
            if end.carrier is not None and not end.carrier.open[other(role)]:
                self.leave(end)
                return True
            if end.carrier is not None and end.session.received > end.session.told:
                self.acknowledge(role)
                return True
        if self.unread:
            self.greet(0)
        elif self.offered is not None:
            self.attach()
        elif self.dialled is not None:
            if not self.dialled.flying[CLIENT]:
                assert not self.dialled.open[SERVER]
                self.lose(CLIENT, 0)
            else:
                self.go_on()
        elif self.client.carrier is None and self.client.wants_carrier():
            self.dial()
        else:
            return False
        return True

    def teardown(self) -> None:
        self.settle()


TestCarriersModel = CarriersModel.TestCase
TestCarriersModel.settings = settings(max_examples=examples(150), stateful_step_count=60)


class TestCarriersModelForLong(LongRun):
    model = CarriersModel


# Rules that are taken out


def _without_trimming(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "resume", lambda self, position: list(self.kept))


def _without_forgetting_what_is_incomplete(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ResumableFraming, "restart", lambda self: None)


def _without_the_close_frame(patch: pytest.MonkeyPatch) -> None:
    real = ResumableFraming.resend

    def resend(self: ResumableFraming, kept: list[Kept]) -> list[Buffer]:
        self.closing = False
        return real(self, kept)

    patch.setattr(ResumableFraming, "resend", resend)


def _without_end(patch: pytest.MonkeyPatch) -> None:
    real = ResumableFraming.resend

    def resend(self: ResumableFraming, kept: list[Kept]) -> list[Buffer]:
        return real(self, [each for each in kept if each[1][0][:1] != END_BYTE])

    patch.setattr(ResumableFraming, "resend", resend)


@pytest.mark.parametrize(
    "take_out",
    [
        _without_trimming,
        _without_forgetting_what_is_incomplete,
        _without_the_close_frame,
        _without_end,
        None,
    ],
)
def test_a_missing_rule_is_found(
    take_out: Callable[[pytest.MonkeyPatch], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One path, cut before a message, within one and before END, is enough for each of them."""

    def path() -> None:
        model = CarriersModel()
        model.write(CLIENT, 10)
        model.deliver(SERVER, 10_000)
        model.write(CLIENT, 250)
        model.lose(SERVER, 20)
        model.settle()
        model.close(CLIENT, 0, 1000, "bye", 0)
        model.teardown()

    if take_out is None:
        path()
        return
    take_out(monkeypatch)
    with pytest.raises(AssertionError):
        path()
