"""Two ends of a session deliver what is sent, exactly, whatever happens to their connections.

The model holds what each end sent. Messages leave an end, lie on the wire, and arrive when
hypothesis says so. The wire can be cut at any moment; the server may learn of it late. A new
connection is made as a handshake makes it: the server compares counters and drops what the client
has, and the client attaches when the answer comes.
"""

from __future__ import annotations

from collections import deque
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from wsmux.protocols.base import Role
from wsmux.rpc.options import Options
from wsmux.rpc.session.session import Session

from ...helpers.examples import examples
from ...helpers.inside import send_buffer_of
from ...helpers.long_models import LongRun
from ...helpers.rpc.tiny_codec import TinyCodec, fields

CODEC = TinyCodec()

# A flag that means nothing to either end. ACKs are provoked, and have one as well.
PROVOKED = 128

OTHER = {Role.CLIENT: Role.SERVER, Role.SERVER: Role.CLIENT}

roles = st.sampled_from(Role)


class SessionModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.sent: dict[Role, list[int]] = {role: [] for role in Role}
        self.got: dict[Role, list[int]] = {role: [] for role in Role}
        self.leaving: dict[Role, deque[bytes]] = {role: deque() for role in Role}
        self.wire: dict[Role, deque[bytes]] = {role: deque() for role in Role}
        self.welcomed = False  # the server's answer is under way
        self.numbers = count()

    @initialize(messages=st.sampled_from([64, 3, 1]), size=st.sampled_from([10**6, 400]))
    def start(self, messages: int, size: int) -> None:
        options = Options(
            ack_messages=messages,
            ack_bytes=size,
            heartbeats_until_dead=10**6,
            session_disconnect_grace=1e9,
        )
        ids = count()
        self.ends = {
            role: Session(
                role,
                "session",
                role.value,
                OTHER[role].value,
                codec=CODEC,
                options=options,
                new_id=lambda: str(next(ids)),
                now=0.0,
            )
            for role in Role
        }

        self.ask()
        self.answer()

    @rule(role=roles, count=st.integers(1, 3), provoked=st.booleans())
    def send(self, role: Role, count: int, provoked: bool) -> None:
        for _ in range(count):
            number = next(self.numbers)
            self.sent[role].append(number)
            flags = PROVOKED if provoked else 0
            packed = CODEC.pack(number)
            self.ends[role].send(packed, stream_id="s", flags=flags, provoked=provoked)

    @rule(role=roles, leaving=st.integers(1, 8), arriving=st.integers(0, 8))
    def carry(self, role: Role, leaving: int, arriving: int) -> None:
        """Let messages leave one end, and messages of it reach the other."""
        self.leaving[role].extend(self.ends[role].data_to_send())
        for _ in range(min(leaving, len(self.leaving[role]))):
            self.wire[role].append(self.leaving[role].popleft())
        if self.welcomed and self.ends[Role.CLIENT].attached:
            for _ in range(min(arriving, len(self.wire[role]))):
                envelope = self.ends[OTHER[role]].receive(self.wire[role].popleft(), self.now)
                if envelope is not None:
                    self.got[OTHER[role]].append(envelope.payload)

    @rule(server_knows=st.booleans(), asks=st.integers(0, 2))
    def cut(self, server_knows: bool, asks: int) -> None:
        """Lose the connection, and perhaps further ones whose answer never comes.

        The client learns of it. The server learns of it too, or when the client comes again.
        """
        for _ in range(asks + 1):
            self.welcomed = False
            for role in Role:
                self.wire[role].clear()
                self.leaving[role].clear()
            if self.ends[Role.CLIENT].attached:
                self.ends[Role.CLIENT].detach(self.now)
            if server_knows and self.ends[Role.SERVER].attached:
                self.ends[Role.SERVER].detach(self.now)
            if asks:
                self.ask()

    @precondition(lambda self: not self.ends[Role.CLIENT].attached)
    @rule()
    def reconnect(self) -> None:
        if not self.welcomed:
            self.ask()
        self.answer()

    def ask(self) -> None:
        """Let the client's handshake reach the server, which resumes the session."""
        server, expected = self.ends[Role.SERVER], self.ends[Role.CLIENT].expected_state()
        assert server.mismatch(expected) is None
        if server.attached:
            server.detach(self.now)
        self.leaving[Role.SERVER].clear()
        self.wire[Role.SERVER].clear()
        server.attach(self.now, expected.next_expected)
        self.welcomed = True

    def answer(self) -> None:
        """Let the server's answer reach the client."""
        self.ends[Role.CLIENT].attach(self.now)

    @rule()
    def beat(self) -> None:
        self.now += 1.0
        for end in self.ends.values():
            end.handle_timer(self.now)

    @invariant()
    def what_arrives_is_what_was_sent(self) -> None:
        for role in Role:
            got = self.got[OTHER[role]]
            assert got == self.sent[role][: len(got)]

    @invariant()
    def buffers_hold_what_may_be_missing(self) -> None:
        if not hasattr(self, "ends"):
            return
        for role in Role:
            ours, theirs = (send_buffer_of(self.ends[each]) for each in (role, OTHER[role]))
            assert ours.oldest <= theirs.ack <= ours.seq
            assert ours.buffered_messages == ours.seq - ours.oldest
            assert ours.buffered_bytes == sum(map(len, ours.buffered()))
            provoked = [len(data) for data in ours.buffered() if fields(data)["controlFlags"]]
            assert (ours.provoked_messages, ours.provoked_bytes) == (len(provoked), sum(provoked))

    def teardown(self) -> None:
        if not hasattr(self, "ends"):
            return
        if not self.ends[Role.CLIENT].attached:
            self.reconnect()
        while any(self.leaving[r] or self.wire[r] or self.ends[r].has_output() for r in Role):
            for role in Role:
                self.carry(role, 10**6, 10**6)
        for role in Role:
            assert self.got[OTHER[role]] == self.sent[role]


TestSessionModel = SessionModel.TestCase
TestSessionModel.settings = settings(
    max_examples=examples(200), stateful_step_count=50, deadline=None
)


class TestSessionModelForLong(LongRun):
    model = SessionModel
