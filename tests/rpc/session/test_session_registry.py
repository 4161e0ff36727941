"""A server begins, resumes and refuses sessions by three rules, and watches their graces."""

from __future__ import annotations

from typing import Any

import pytest

from wsmux.rpc.options import Options
from wsmux.rpc.session.session import Lapse, Session
from wsmux.rpc.session.session_registry import (
    MAX_BARRED,
    MAX_REASON,
    Accepted,
    Hello,
    Refused,
    Sessions,
)
from wsmux.rpc.wire.envelope import MAX_ID, Envelope
from wsmux.rpc.wire.handshake import (
    Attempt,
    ExpectedState,
    Refusal,
    RefusalCode,
    parse_response,
    request_payload,
)
from wsmux.rpc.wire.msgpack_codec import MsgpackCodec

from ...helpers.rpc.memory_net import new_id
from ...helpers.rpc.tiny_codec import TinyCodec, frame

MISMATCH = RefusalCode.SESSION_STATE_MISMATCH


def table(**options: Any) -> Sessions:
    return Sessions("SERVER", codec=TinyCodec(), options=Options(**options), new_id=new_id)


def greeting(
    session_id: str = "s", expected: tuple[int, int] = (0, 0), metadata: Any = None, **changed: Any
) -> bytes:
    payload = request_payload(session_id, ExpectedState(*expected), metadata)
    return frame(payload, **changed)


def decide(
    server: Sessions,
    session_id: str = "s",
    expected: tuple[int, int] = (0, 0),
    now: float = 0.0,
    **changed: Any,
) -> Accepted | Refused:
    hello = server.first_frame(greeting(session_id, expected, **changed))
    assert isinstance(hello, Hello)
    return server.decide(hello, now)


def accept(server: Sessions, *args: Any, **kwargs: Any) -> Accepted:
    decision = decide(server, *args, **kwargs)
    assert isinstance(decision, Accepted)
    return decision


def refuse(server: Sessions, *args: Any, **kwargs: Any) -> Refused:
    decision = decide(server, *args, **kwargs)
    assert isinstance(decision, Refused)
    return decision


def begin(server: Sessions, *, attached: bool = True) -> Session:
    """Return the session "s" of "client", begun at time 0."""
    session = accept(server).session
    if not attached:
        server.lost(session, session.attachments, 0.0)
    return session


class TestFirstFrame:
    def test_a_greeting_tells_who_and_what(self) -> None:
        data = greeting("s", metadata={"token": 1}, tracing={"traceparent": "p", "tracestate": "q"})
        hello = table().first_frame(data)
        assert isinstance(hello, Hello)
        assert (hello.client_id, hello.tracing) == ("client", ("p", "q"))
        assert (hello.request.session_id, hello.request.metadata) == ("s", {"token": 1})

    @pytest.mark.parametrize("data", [b"bad handshake", b"{}", frame(to=None)])
    def test_what_is_no_message_gets_no_response(self, data: bytes) -> None:
        refused = table().first_frame(data)
        assert isinstance(refused, Refused)
        assert (refused.response, refused.client_id) == (None, None)

    def test_another_codec_is_named(self) -> None:
        server = Sessions("SERVER", codec=MsgpackCodec(), options=Options(), new_id=lambda: "id")
        refused = server.first_frame(b'{"payload": 1}')
        assert isinstance(refused, Refused)
        assert refused.reason == "the first message is JSON; this server's codec is msgpack"
        assert refused.response is None

    @pytest.mark.parametrize("payload", [None, {"type": "ACK"}, {"type": "HANDSHAKE_REQ"}])
    def test_another_message_is_malformed(self, payload: Any) -> None:
        refused = table().first_frame(frame(payload))
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.MALFORMED_HANDSHAKE
        assert refused.response is not None

    def test_another_version_is_refused(self) -> None:
        refused = table().first_frame(
            frame({"type": "HANDSHAKE_REQ", "protocolVersion": "v1.1", "sessionId": "s"})
        )
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.PROTOCOL_VERSION_MISMATCH

    def test_a_greeting_for_another_server_is_refused(self) -> None:
        refused = table().first_frame(greeting(to="OTHER"))
        assert isinstance(refused, Refused)
        assert (refused.code, "OTHER" in refused.reason) == ("MALFORMED_HANDSHAKE", True)

    def test_a_refusal_goes_to_the_one_who_asked(self) -> None:
        refused = table().refuse("client", RefusalCode.MALFORMED_HANDSHAKE_META, "why")
        assert refused.response is not None
        envelope = TinyCodec().decode(refused.response)
        assert isinstance(envelope, Envelope)
        assert (envelope.sender, envelope.receiver, envelope.seq) == ("SERVER", "client", 0)
        assert parse_response(envelope.payload) == Refusal("MALFORMED_HANDSHAKE_META", "why")

    def test_an_overlong_client_id_gets_no_response(self) -> None:
        refused = table().first_frame(greeting(**{"from": "x" * (MAX_ID + 1)}))
        assert isinstance(refused, Refused)
        assert refused.response is None

    def test_an_overlong_session_id_is_refused(self) -> None:
        refused = table().first_frame(greeting("x" * (MAX_ID + 1)))
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.MALFORMED_HANDSHAKE

    def test_a_reason_does_not_repeat_all_that_a_client_sends(self) -> None:
        refused = table().first_frame(greeting(to="x" * 100_000))
        assert isinstance(refused, Refused)
        assert len(refused.reason) == MAX_REASON

    def test_a_refusal_that_cannot_be_encoded_is_not_sent(self) -> None:
        server = table()
        server._codec.broken = True  # type: ignore[attr-defined]
        refused = server.first_frame(frame(None))
        assert isinstance(refused, Refused)
        assert refused.response is None


class TestUnknownClient:
    def test_it_begins_a_session_with_its_own_id(self) -> None:
        server = table()
        accepted = accept(server)
        assert (accepted.resumed, accepted.interrupted, accepted.replaced) == (False, False, None)
        assert (accepted.session.id, accepted.session.attached) == ("s", True)
        assert (server.get("client"), len(server)) == (accepted.session, 1)
        assert parse_response(TinyCodec().decode(accepted.response).payload) == "s"

    @pytest.mark.parametrize("expected", [(1, 0), (0, 1), (4, 2)])
    def test_it_is_refused_if_it_wants_to_resume(self, expected: tuple[int, int]) -> None:
        server = table()
        assert refuse(server, "s", expected).code is MISMATCH
        assert len(server) == 0

    @pytest.mark.parametrize("transparent", [True, False])
    def test_it_is_refused_if_it_says_that_it_reconnects(self, transparent: bool) -> None:
        """A client whose messages were never acknowledged has the counters of a new one."""
        server = table(transparent_reconnect=transparent)
        state = ExpectedState(0, 0)
        hello = server.first_frame(frame(request_payload("s", state, None, is_reconnect=True)))
        assert isinstance(hello, Hello)
        refused = server.decide(hello, 0.0)
        assert isinstance(refused, Refused)
        assert (refused.code, len(server)) == (MISMATCH, 0)

    def test_clients_have_sessions_of_their_own(self) -> None:
        server = table()
        one, two = accept(server), accept(server, **{"from": "another"})
        assert one.session is not two.session
        assert len(server) == 2

    def test_a_welcome_that_cannot_be_encoded_begins_nothing(self) -> None:
        server = table()
        server._codec.broken = True  # type: ignore[attr-defined]
        assert refuse(server).response is None
        assert len(server) == 0


class TestSameSession:
    def test_it_is_resumed(self) -> None:
        server = table()
        session = begin(server, attached=False)
        accepted = accept(server, now=1.0)
        assert (accepted.session, accepted.resumed, accepted.interrupted) == (session, True, False)
        assert (session.attached, server.next_timer()) == (True, None)

    def test_a_connection_that_it_has_is_replaced(self) -> None:
        server = table()
        session = begin(server)
        accepted = accept(server)
        assert (accepted.session, accepted.interrupted) == (session, True)
        assert session.attachments == 2

    def test_the_end_of_the_replaced_connection_changes_nothing(self) -> None:
        server = table()
        session = begin(server)
        accept(server)
        assert server.lost(session, 1, 0.0) is False
        assert session.attached

    def test_what_the_client_has_is_not_sent_again(self) -> None:
        server = table()
        session = begin(server)
        session.send(b"1", stream_id="x", flags=0)
        session.send(b"2", stream_id="x", flags=0)
        server.lost(session, 1, 0.0)
        accept(server, "s", (1, 0))
        assert [TinyCodec().decode(data).payload for data in session.data_to_send()] == [2]

    @pytest.mark.parametrize("expected", [(0, 1), (1, 0)])
    def test_counters_that_do_not_fit_are_refused(self, expected: tuple[int, int]) -> None:
        server = table()
        session = begin(server, attached=False)
        assert refuse(server, "s", expected).code is MISMATCH
        assert server.get("client") is session

    def test_a_server_ahead_of_its_client_refuses(self) -> None:
        server = table()
        session = begin(server)
        session.send(b"1", stream_id="x", flags=0)
        session.receive(frame(ack=1), 0.0)
        assert "server is in the future" in refuse(server, "s", (0, 0)).reason

    def test_a_welcome_that_cannot_be_encoded_leaves_it_alone(self) -> None:
        server = table()
        session = begin(server, attached=False)
        server._codec.broken = True  # type: ignore[attr-defined]
        assert refuse(server).response is None
        assert session.attached is False

    def test_without_transparent_reconnects_it_begins_anew(self) -> None:
        server = table(transparent_reconnect=False)
        old = begin(server)
        accepted = accept(server)
        assert (accepted.resumed, accepted.replaced) == (False, old)
        assert accepted.session is not old

    def test_without_transparent_reconnects_nothing_is_resumed(self) -> None:
        server = table(transparent_reconnect=False)
        old = begin(server)
        refused = refuse(server, "s", (0, 1))
        assert (refused.code, "does not resume" in refused.reason) == (MISMATCH, True)
        assert server.get("client") is old


class TestOtherSession:
    def test_a_session_without_connection_is_replaced_at_once(self) -> None:
        server = table()
        old = begin(server, attached=False)
        accepted = accept(server, "new")
        assert (accepted.replaced, accepted.resumed) == (old, False)
        assert server.get("client") is accepted.session
        assert (server.next_timer(), old.next_timer()) == (None, None)

    def test_a_client_that_wants_to_resume_it_is_refused_and_replaces_nothing(self) -> None:
        server = table()
        old = begin(server, attached=False)
        assert refuse(server, "new", (0, 1)).code is MISMATCH
        assert server.get("client") is old

    def test_a_connected_session_is_asked_whether_it_lives(self) -> None:
        server = table()
        old = begin(server)
        refused = refuse(server, "new")
        assert (refused.code, refused.asked) == (MISMATCH, old)
        assert len(old.data_to_send()) == 1

    def test_a_session_that_lives_stays(self) -> None:
        server = table()
        old = begin(server)
        for now in (0.0, 1.0, 2.0):
            refuse(server, "new", now=now)
            old.receive(frame(seq=int(now), controlFlags=1), now + 0.1)
        assert server.get("client") is old

    def test_a_newcomer_replaces_a_session_that_lives_where_it_may(self) -> None:
        server = table(newcomer_wins=True)
        old = begin(server)
        assert accept(server, "other").replaced is old

    def test_a_session_that_is_silent_is_replaced_after_a_second(self) -> None:
        server = table(handshake_timeout=60.0)
        old = begin(server)
        refuse(server, "new")
        refuse(server, "new", now=0.9)
        assert accept(server, "new", now=1.0).replaced is old

    def test_a_session_that_cannot_be_asked_is_replaced(self) -> None:
        server = table()
        old = begin(server)
        broken = TinyCodec()
        broken.broken = True
        old._codec = broken
        assert accept(server, "new").replaced is old


class TestLateHandshakes:
    """Requests of one client, which numbers its attempts."""

    @staticmethod
    def decide(
        server: Sessions, number: int, welcomed: int = 0, session: str = "s", instance: str = "i"
    ) -> Accepted | Refused:
        attempt = Attempt(instance, number, welcomed)
        state = ExpectedState(0, 0)
        payload = request_payload(session, state, None, is_reconnect=welcomed > 0, attempt=attempt)
        hello = server.first_frame(frame(payload))
        assert isinstance(hello, Hello)
        return server.decide(hello, 0.0)

    def accept(self, server: Sessions, *args: Any, **kwargs: Any) -> Accepted:
        decision = self.decide(server, *args, **kwargs)
        assert isinstance(decision, Accepted)
        return decision

    def refuse(self, server: Sessions, *args: Any, **kwargs: Any) -> str:
        decision = self.decide(server, *args, **kwargs)
        assert isinstance(decision, Refused)
        assert (decision.code, decision.asked) == (MISMATCH, None)
        return decision.reason

    def test_a_later_attempt_resumes_what_nobody_was_welcomed_to(self) -> None:
        server = table()
        session = self.accept(server, 1).session
        later = self.accept(server, 2)
        assert (later.session, later.resumed, later.interrupted) == (session, True, True)
        assert self.accept(server, 3, welcomed=2).session is session

    @pytest.mark.parametrize("attached", [True, False])
    @pytest.mark.parametrize("session", ["s", "earlier"])
    @pytest.mark.parametrize("options", [{}, {"newcomer_wins": True}], ids=str)
    def test_an_earlier_attempt_is_refused(
        self, attached: bool, session: str, options: dict[str, Any]
    ) -> None:
        server = table(**options)
        present = self.accept(server, 2).session
        if not attached:
            server.lost(present, present.attachments, 0.0)
        assert "a later connection" in self.refuse(server, 1, session=session)
        assert (server.get("client"), present.attached) == (present, attached)
        assert present.data_to_send() == []  # nor is it asked whether it lives

    def test_an_earlier_attempt_to_reconnect_is_refused(self) -> None:
        server = table()
        session = self.accept(server, 1).session
        self.accept(server, 3, welcomed=1)
        assert "a later connection" in self.refuse(server, 2, welcomed=1)
        assert (session.attached, session.attachments) == (True, 2)

    def test_no_attempt_is_made_twice(self) -> None:
        server = table()
        self.accept(server, 1)
        assert "a later connection" in self.refuse(server, 1)

    def test_without_transparent_reconnects_an_earlier_attempt_is_refused_too(self) -> None:
        server = table(transparent_reconnect=False)
        session = self.accept(server, 2).session
        assert "a later connection" in self.refuse(server, 1)
        assert server.get("client") is session

    def test_a_session_begun_by_a_late_attempt_is_not_the_one_the_client_was_welcomed_to(
        self,
    ) -> None:
        server = table()
        double = self.accept(server, 1).session
        assert "does not know about" in self.refuse(server, 3, welcomed=2)
        assert server.get("client") is double

    def test_the_clients_next_session_replaces_that_at_once(self) -> None:
        server = table()
        double = self.accept(server, 1).session
        self.refuse(server, 3, welcomed=2)
        assert self.accept(server, 4, session="t").replaced is double

    def test_another_client_is_compared_with_nothing(self) -> None:
        server = table()
        self.accept(server, 2)
        decision = self.decide(server, 1, session="t", instance="another")
        assert isinstance(decision, Refused)
        assert decision.reason == "another session of this client is connected"

    def test_a_client_that_knows_the_ids_may_be_another_implementation(self) -> None:
        server = table()
        session = self.accept(server, 2).session
        assert accept(server).session is session
        assert session.attempt is None
        assert self.accept(server, 3, welcomed=2).session is session


class TestEnds:
    def test_a_lost_connection_starts_the_grace(self) -> None:
        server = table(session_disconnect_grace=5.0)
        session = begin(server)
        assert server.lost(session, 1, 3.0) is False
        assert (server.next_timer(), server.handle_timer(7.9)) == (8.0, [])

    def test_the_grace_ends_the_session(self) -> None:
        server = table(session_disconnect_grace=5.0)
        session = begin(server, attached=False)
        assert server.handle_timer(5.0) == [session]
        assert (len(server), server.next_timer()) == (0, None)

    def test_graces_end_one_by_one(self) -> None:
        server = table(session_disconnect_grace=5.0)
        first, second = accept(server).session, accept(server, **{"from": "b"}).session
        server.lost(first, 1, 0.0)
        server.lost(second, 1, 1.0)
        assert server.handle_timer(5.5) == [first]
        assert server.next_timer() == 6.0

    def test_a_connected_session_has_no_grace(self) -> None:
        server = table()
        begin(server)
        assert (server.next_timer(), server.handle_timer(1e9)) == (None, [])

    def test_without_transparent_reconnects_a_session_ends_with_its_connection(self) -> None:
        server = table(transparent_reconnect=False)
        session = begin(server)
        assert server.lost(session, 1, 0.0) is True
        assert len(server) == 0

    def test_a_silent_connection_is_told_by_its_session(self) -> None:
        server = table(heartbeat_interval=1.0, heartbeats_until_dead=2)
        assert begin(server).handle_timer(2.0) is Lapse.SILENCE

    def test_an_ended_session_is_forgotten(self) -> None:
        server = table()
        session = begin(server, attached=False)
        server.end(session)
        assert (server.get("client"), server.next_timer(), session.next_timer()) == (
            None,
            None,
            None,
        )

    def test_a_barred_session_is_not_begun_again(self) -> None:
        server = table()
        session = begin(server)
        server.bar(session)
        server.end(session)
        refused = refuse(server)
        assert (refused.code, len(server)) == (MISMATCH, 0)
        assert refused.reason == "the session has ended over a message that was too large"
        assert not accept(server, "t").resumed
        assert not accept(server, "s", **{"from": "other"}).resumed

    def test_of_barred_sessions_the_first_ones_are_forgotten(self) -> None:
        server = table()
        for number in range(MAX_BARRED + 1):
            session = accept(server, f"s{number}").session
            server.bar(session)
            server.end(session)
        assert refuse(server, "s1").code is MISMATCH
        assert not accept(server, "s0").resumed

    def test_ending_a_replaced_session_leaves_the_present_one(self) -> None:
        server = table()
        old = begin(server, attached=False)
        new = accept(server, "new").session
        server.end(old)
        assert server.get("client") is new

    def test_the_late_loss_of_an_ended_session_changes_nothing(self) -> None:
        server = table()
        session = begin(server)
        server.end(session)
        assert server.lost(session, 1, 0.0) is False
        assert server.next_timer() is None

    def test_closing_ends_all(self) -> None:
        server = table()
        sessions = [accept(server).session, accept(server, **{"from": "b"}).session]
        assert server.close() == sessions
        assert len(server) == 0

    def test_a_session_is_not_given_to_another_owner(self) -> None:
        server = table()
        hello = server.first_frame(greeting())
        assert isinstance(hello, Hello)
        assert isinstance(server.decide(hello, 0.0, "alice"), Accepted)
        refused = server.decide(hello, 1.0, "bob")
        assert isinstance(refused, Refused)
        assert (refused.code, len(server)) == (MISMATCH, 1)
        assert refused.reason == "a session of somebody else has this client's id"

    def test_more_sessions_than_the_limit_are_refused(self) -> None:
        server = table(max_sessions=1)
        begin(server)
        refused = refuse(server, **{"from": "b"})
        assert (refused.code, refused.reason) == (MISMATCH, "the server holds 1 sessions already")
