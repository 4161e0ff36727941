"""Client and server together, over wires that fail: what survives, what ends, who comes again."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.rpc.errors import FailureKind
from wsmux.rpc.options import Options
from wsmux.rpc.session.connector import LONGEST_PENDING, ConnectorState, Failure
from wsmux.rpc.session.session import Session, SessionState
from wsmux.rpc.wire.handshake import RefusalCode

from ...helpers.inside import send_buffer_of
from ...helpers.rpc.memory_net import Net
from ...helpers.rpc.tiny_codec import frame


def net(**changed: Any) -> Net:
    return Net(Options(**{"backoff_jitter": 0.0, **changed}))


def ids(world: Net) -> tuple[str | None, str | None]:
    """Return the session ids that client and server know."""
    ends = world.client.session, world.server.get("client")
    return tuple(end and end.id for end in ends)  # type: ignore[return-value]


class TestTransparent:
    def test_a_connection_is_made_again_for_the_same_session(self) -> None:
        world = net()
        session = world.connect()
        world.sleep(60.0)
        world.cut()
        assert world.client.state is ConnectorState.CONNECTED
        assert ids(world) == (session.id, session.id)
        world.call("still there")
        world.run()
        assert world.server_got == ["still there"]

    def test_what_was_never_acknowledged_is_not_handled_again_by_a_restarted_server(self) -> None:
        world = net(ack_messages=100)
        world.connect()
        world.call("once")
        world.run()
        world.restart_server()
        world.sleep(2.0)
        assert world.server_got == ["once"]
        assert world.statuses() == ["created", "closed", "created"]
        assert world.client.state is ConnectorState.CONNECTED

    def test_nobody_is_told_of_a_session_that_goes_on(self) -> None:
        world = net()
        world.connect()
        world.sleep(60.0)
        world.cut()
        assert (world.statuses(), world.server_over) == (["created"], [])
        assert world.states() == [
            *["BACKING_OFF", "CONNECTING", "HANDSHAKING", "CONNECTED", "NO_CONNECTION"],
            *["BACKING_OFF", "CONNECTING", "HANDSHAKING", "CONNECTED"],
        ]

    def test_a_hundred_messages_arrive_once_and_in_order(self) -> None:
        world = net()
        world.connect()
        world.sleep(60.0)
        for number in range(55):
            world.call(number)
        world.run()
        world.up = False
        world.cut()
        for number in range(55, 100):
            world.call(number)
        world.up = True
        world.sleep(1.0)
        assert world.server_got == list(range(100))

    def test_messages_of_both_sides_wait_for_a_connection(self) -> None:
        world = net()
        world.connect()
        world.sleep(60.0)
        world.call("before")
        world.answer("before")
        world.up = False
        world.cut()
        world.call("while down")
        world.answer("while down")
        world.up = True
        world.sleep(1.0)
        world.call("after")
        world.answer("after")
        world.run()
        assert world.server_got == world.client_got == ["before", "while down", "after"]

    def test_a_message_sent_with_the_first_session_waits_for_the_handshake(self) -> None:
        world = net()
        world.call("early")
        world.connect()
        assert (world.server_got, world.refusals) == (["early"], [])

    def test_a_phantom_disconnect_is_noticed_and_healed(self) -> None:
        world = net(heartbeat_interval=1.0, heartbeats_until_dead=2)
        session = world.connect()
        world.sleep(60.0)
        world.mute = True
        world.call("into the void")
        world.sleep(1.9)
        world.mute = False
        world.sleep(2.0)
        assert ids(world) == (session.id, session.id)
        assert world.server_got == ["into the void"]
        assert world.states().count("CONNECTED") == 2

    def test_a_connection_the_server_still_believes_in_is_replaced(self) -> None:
        world = net()
        session = world.connect()
        world.sleep(60.0)
        world.cut(noticed=False)
        assert [accepted.interrupted for accepted in world.accepted] == [False, True]
        assert ids(world) == (session.id, session.id)

    def test_an_idle_connection_stays(self) -> None:
        world = net(session_disconnect_grace=1.0)
        world.connect()
        world.sleep(120.0)
        assert (world.states().count("CONNECTED"), world.statuses()) == (1, ["created"])

    def test_heartbeats_do_not_disturb_messages(self) -> None:
        world = net(heartbeat_interval=0.5)
        world.connect()
        for number in range(20):
            world.call(number)
            world.answer(number)
            world.sleep(0.3)
        assert world.server_got == world.client_got == list(range(20))

    def test_heartbeats_empty_the_buffers(self) -> None:
        world = net(heartbeat_interval=1.0)
        session = world.connect()
        world.call(1)
        world.sleep(1.5)
        assert session.buffered_messages <= 1  # the client's answer to the last heartbeat


class TestGrace:
    def test_reconnecting_within_it_leaves_the_session_intact(self) -> None:
        world = net(session_disconnect_grace=5.0)
        session = world.connect()
        world.sleep(60.0)
        world.up = False
        world.cut()
        world.sleep(4.0)
        world.up = True
        world.sleep(2.0)
        assert ids(world) == (session.id, session.id)
        assert world.statuses() == ["created"]

    def test_it_elapses_in_a_long_row_of_attempts(self) -> None:
        world = net(session_disconnect_grace=5.0)
        session = world.connect()
        world.sleep(60.0)
        world.up = False
        world.cut()
        world.sleep(4.9)
        assert (world.statuses(), world.server_over) == (["created"], [])
        world.sleep(0.2)
        assert (world.statuses(), world.server_over) == (["created", "closed"], [session.id])

    def test_a_call_after_it_has_a_new_session(self) -> None:
        world = net(session_disconnect_grace=1.0)
        old = world.connect()
        world.sleep(60.0)
        world.up = False
        world.cut()
        world.sleep(10.0)
        world.up = True
        new = world.call("again")
        world.client.connect(world.now)
        world.sleep(1.0)
        assert new is not old
        assert world.server_got == ["again"]

    def test_without_reconnect_a_call_after_it_connects_nothing(self) -> None:
        world = Net(Options(session_disconnect_grace=1.0), reconnect=False)
        world.connect()
        world.sleep(60.0)
        world.cut()
        world.sleep(10.0)
        world.call("nobody hears")
        world.sleep(10.0)
        assert (world.server_got, world.client.state) == ([], ConnectorState.NO_CONNECTION)
        assert world.statuses() == ["created", "closed"] * 2


class Pending:
    """Measure what a call waits for, over a ``Net`` whose server answers after ``work`` seconds.

    Attributes:
        unconnected: seconds that it waited so far while its session had no connection.
        connections: connections that its session had meanwhile.
    """

    STEP = 0.05

    def __init__(self, world: Net, work: float) -> None:
        self.world = world
        self.work = work
        self.unconnected = 0.0
        self.begun = world.now
        self.session = world.call("call")
        world.client.connect(world.now)
        world.run()
        self.connections = int(self.session.attached)

    def over(self) -> bool:
        return self.session.state is SessionState.DESTROYED or bool(self.world.client_got)

    def wait(self, seconds: float) -> None:
        """Let time pass, until it is over."""
        until = self.world.now + seconds
        while not self.over() and self.world.now < until - self.STEP / 2:
            attached = self.session.attached
            if attached and self.world.server_got and self.world.now >= self.begun + self.work:
                self.world.answer("answer")
            self.world.sleep(self.STEP)
            self.unconnected += 0.0 if attached else self.STEP
            self.connections += self.session.attached and not attached


class TestLongestWait:
    """The grace runs from the beginning of a session, and from each loss of its connection."""

    def test_a_call_of_a_connected_session_waits_for_one_grace_after_a_kill(self) -> None:
        world = net(session_disconnect_grace=5.0)
        world.connect()
        world.sleep(60.0)
        pending = Pending(world, work=math.inf)
        world.up = False
        world.restart_server()
        pending.wait(60.0)
        assert pending.unconnected == pytest.approx(5.0, abs=2 * Pending.STEP)

    def test_it_ends_as_soon_as_the_restarted_server_is_found(self) -> None:
        options = Options(session_disconnect_grace=5.0, backoff_jitter=0.0)
        world = Net(options, pending=lambda: True)
        world.connect()
        world.sleep(60.0)
        pending = Pending(world, work=math.inf)
        world.up = False
        world.restart_server()
        pending.wait(1.0)
        world.up = True
        pending.wait(60.0)
        assert pending.unconnected <= 1.0 + LONGEST_PENDING

    def test_a_call_that_waited_for_the_first_connection_too_waits_for_two(self) -> None:
        """The longest of all: connected at the last moment, and killed before it answered."""
        world = net(session_disconnect_grace=5.0)
        world.up = False
        pending = Pending(world, work=math.inf)
        pending.wait(4.5)
        world.up = True
        pending.wait(0.4)
        assert pending.session.attached
        world.up = False
        world.restart_server()
        pending.wait(60.0)
        assert pending.over()
        assert 8.0 < pending.unconnected < 10.0

    @given(
        options=st.builds(dict, backoff_jitter=st.sampled_from([0.0, 0.2])),
        before=st.sampled_from([0.0, 0.3, 60.0]),
        work=st.sampled_from([0.0, 0.4, 3.0]),
        kills=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 130)), min_size=1, max_size=12),
    )
    def test_whatever_is_killed_when_a_call_waits_for_two_graces_at_most(
        self, options: dict[str, Any], before: float, work: float, kills: list[tuple[int, int]]
    ) -> None:
        """Only one server knows a session, so that it is connected only once."""
        world = net(session_disconnect_grace=5.0, **options)
        world.up = before > 0
        world.client.connect(world.now)
        world.sleep(before)
        pending = Pending(world, work)
        for up, down in kills:
            world.up = True
            pending.wait(up * Pending.STEP)
            world.up = False
            world.restart_server()
            pending.wait(down * Pending.STEP)
        world.up = True
        pending.wait(60.0)
        assert pending.over()
        assert pending.connections <= 1
        assert pending.unconnected <= (1 if before else 2) * 5.0 + 2 * Pending.STEP


class TestServerDownAtFirst:
    def test_a_call_fails_after_the_grace(self) -> None:
        world = net(session_disconnect_grace=5.0)
        world.up = False
        world.call(1)
        world.client.connect(world.now)
        world.sleep(4.9)
        assert world.statuses() == ["created"]
        world.sleep(0.1)
        assert world.statuses() == ["created", "closed"]

    def test_the_client_connects_when_it_comes_up(self) -> None:
        world = net()
        world.up = False
        world.client.connect(world.now)
        world.sleep(60.0)
        world.up = True
        world.sleep(40.0)
        assert world.client.state is ConnectorState.CONNECTED

    def test_a_call_made_then_does_not_wait_for_the_next_far_attempt(self) -> None:
        world = net()
        world.up = False
        world.client.connect(world.now)
        world.sleep(60.0)
        world.up = True
        world.call("found")
        world.sleep(0.2)
        assert world.server_got == ["found"]

    def test_the_trouble_is_told_once(self) -> None:
        world = net()
        world.up = False
        world.client.connect(world.now)
        world.sleep(300.0)
        assert [failure.kind for failure in world.of(Failure)] == [FailureKind.RETRIES]

    def test_a_fatal_error_makes_one_attempt(self) -> None:
        world = net()
        world.up, world.fatal = False, True
        world.call(1)
        world.client.connect(world.now)
        world.sleep(60.0)
        assert world.states().count("CONNECTING") == 1
        assert world.statuses() == ["created", "closed"]


class TestLostState:
    def test_a_server_that_lost_it_refuses_and_a_new_session_begins(self) -> None:
        world = net()
        old = world.connect()
        world.call("for the old one")
        world.sleep(60.0)
        world.restart_server()
        world.sleep(1.0)
        assert [refused.code for refused in world.refusals] == [RefusalCode.SESSION_STATE_MISMATCH]
        assert world.statuses() == ["created", "closed", "created"]
        assert ids(world)[0] == ids(world)[1] != old.id

    def test_nothing_is_sent_again_to_a_server_that_lost_it(self) -> None:
        world = net()
        world.connect()
        world.call("heard")
        world.sleep(60.0)
        world.up = False
        world.cut()
        world.call("never sent")
        world.restart_server()
        world.up = True
        world.sleep(2.0)
        world.call("new")
        world.run()
        assert world.server_got == ["heard", "new"]

    def test_after_that_reconnects_are_transparent_again(self) -> None:
        world = net()
        world.connect()
        world.sleep(60.0)
        world.restart_server()
        world.sleep(60.0)
        world.cut()
        assert world.statuses() == ["created", "closed", "created"]
        assert world.accepted[-1].resumed

    def test_a_client_that_lost_it_begins_anew(self) -> None:
        world = net()
        old = world.connect()
        world.answer("for the old one")
        world.client.close()
        world.run()
        world.client = world.new_client()
        world.client_got.clear()
        new = world.connect()
        assert ids(world) == (new.id, new.id)
        assert (world.server_over, world.client_got) == ([old.id], [])

    def test_a_client_that_lost_it_gets_in_although_nobody_told_the_server(self) -> None:
        world = net()
        old = world.connect()
        assert world.wire is not None
        world.old_wires.append(world.wire)
        world.wire, world.client = None, world.new_client()
        start = world.now
        new = world.call("from the heir")
        world.client.connect(world.now)
        while not world.server_got:
            world.sleep(0.1)
        assert world.now - start < 2.0
        assert (world.server_got, world.server_over) == (["from the heir"], [old.id])
        assert world.client.session is new

    def test_a_thief_of_a_live_clients_id_stays_out(self) -> None:
        world = net()
        victim = world.connect()
        payload = {
            "type": "HANDSHAKE_REQ",
            "protocolVersion": "v2.0",
            "sessionId": "stolen",
            "expectedSessionState": {"nextExpectedSeq": 0, "nextSentSeq": 0},
        }
        for _ in range(30):
            hello = world.server.first_frame(frame(payload))
            refused = world.server.decide(hello, world.now)  # type: ignore[arg-type]
            assert getattr(refused, "code", None) is RefusalCode.SESSION_STATE_MISMATCH
            world.sleep(0.2)
        assert ids(world) == (victim.id, victim.id)
        assert world.server_over == []

    def test_a_client_that_skipped_messages_is_refused_and_begins_anew(self) -> None:
        world = net()
        world.connect()
        world.sleep(60.0)
        session = world.client.session
        assert session is not None
        for _ in range(10):
            session.send(b"0", stream_id="s", flags=0)
        session.data_to_send()
        buffer = send_buffer_of(session)
        buffer.acknowledged(buffer.seq - 5)
        world.call("after the gap")
        world.run()
        world.sleep(2.0)
        assert FailureKind.ORDERING not in [failure.kind for failure in world.of(Failure)]
        assert world.refusals[0].code is RefusalCode.SESSION_STATE_MISMATCH
        assert ids(world)[0] == ids(world)[1] != session.id


class TestEnds:
    def test_a_hard_disconnect_kills_the_session_here_and_there_after_the_grace(self) -> None:
        world = net(session_disconnect_grace=5.0)
        session = world.connect()
        world.client.hard_disconnect(world.now)
        world.run()
        assert (world.statuses(), world.server_over) == (["created", "closed"], [])
        world.sleep(5.0)
        assert world.server_over == [session.id]

    def test_a_closed_client_leaves_no_connection_behind(self) -> None:
        world = net()
        session = world.connect()
        world.client.close()
        world.run()
        assert world.server_session.attached is False
        world.sleep(60.0)
        assert (len(world.server), world.states()[-1]) == (0, "CLOSED")
        assert session.buffered_messages == 0

    def test_connecting_when_a_session_closes_makes_a_new_one(self) -> None:
        world = net()
        world.connect()
        world.client.hard_disconnect(world.now)
        world.run()
        world.sleep(1.0)
        world.connect()
        assert world.statuses() == ["created", "closed", "created"]

    def test_without_transparent_reconnects_both_sides_begin_anew(self) -> None:
        world = net(transparent_reconnect=False)
        old = world.connect()
        world.sleep(60.0)
        world.cut()
        assert world.statuses() == ["created", "closed", "created"]
        assert world.server_over == [old.id]
        assert ids(world)[0] == ids(world)[1] != old.id

    def test_undecodable_bytes_end_both_ends(self) -> None:
        world = net()
        session = world.connect()
        assert world.wire is not None
        world.wire.to_server.append(b"garbage")
        world.run()
        assert world.server_over == [session.id]

    def test_a_heartbeat_that_cannot_be_encoded_ends_the_session_and_a_call_begins_anew(
        self,
    ) -> None:
        world = net()
        old = world.connect()
        world.client_codec.broken = True
        world.sleep(1.5)
        assert [failure.kind for failure in world.of(Failure)] == [FailureKind.SENDING]
        world.client_codec.broken = False
        world.client.connect(world.now)
        world.sleep(2.0)
        assert world.client.session not in (None, old)

    def test_a_server_that_never_answers_is_told_after_five_attempts(self) -> None:
        world = net(handshake_timeout=0.5)
        world.greets = False
        world.client.connect(world.now)
        world.sleep(30.0)
        assert len(world.server) == 0
        assert [failure.kind for failure in world.of(Failure)] == [FailureKind.RETRIES]


class TestMetadata:
    def test_the_server_sees_what_the_client_made(self) -> None:
        world = net()
        seen = []
        world.metadata = {"token": "secret"}
        world.validate = lambda hello: seen.append(hello.request.metadata)
        world.connect()
        assert seen == [{"token": "secret"}]

    def test_each_connection_is_validated(self) -> None:
        world = net()
        seen: list[str] = []
        world.validate = lambda hello: seen.append(hello.client_id)
        world.connect()
        world.sleep(60.0)
        world.cut()
        assert seen == ["client", "client"]

    @pytest.mark.parametrize(
        "code",
        [RefusalCode.REJECTED_BY_CUSTOM_HANDLER, RefusalCode.MALFORMED_HANDSHAKE_META],
    )
    def test_a_rejected_client_is_told_and_stays_away(self, code: RefusalCode) -> None:
        world = net()
        world.validate = lambda hello: code
        world.client.connect(world.now)
        world.sleep(60.0)
        assert [(f.kind, f.code) for f in world.of(Failure)] == [(FailureKind.HANDSHAKE, code)]
        assert world.states().count("CONNECTING") == 1
        assert len(world.server) == 0

    def test_a_rejected_resumption_leaves_the_servers_session_to_its_grace(self) -> None:
        world = net(session_disconnect_grace=5.0)
        session: Session = world.connect()
        world.sleep(60.0)
        world.validate = lambda hello: RefusalCode.REJECTED_BY_CUSTOM_HANDLER
        world.cut()
        assert (world.statuses(), world.server_over) == (["created", "closed"], [])
        world.sleep(5.0)
        assert world.server_over == [session.id]
