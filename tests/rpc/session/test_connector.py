"""A client's connector, driven by hand: its table, its attempts, and what ends what."""

from __future__ import annotations

from itertools import count, product
from typing import Any

import pytest

from wsmux.exceptions import LocalProtocolError
from wsmux.rpc.errors import FailureKind
from wsmux.rpc.options import Options
from wsmux.rpc.session.connector import (
    LONGEST_PENDING,
    TABLE,
    Connector,
    ConnectorEvent,
    ConnectorInput,
    ConnectorState,
    Dial,
    EnvelopeReceived,
    Failure,
    Hangup,
    HelloWanted,
    MetadataWanted,
    SessionClosed,
    SessionCreated,
    StatusChanged,
    advance,
)
from wsmux.rpc.session.session import SessionState
from wsmux.rpc.wire.handshake import (
    REHANDSHAKE_STREAM,
    RefusalCode,
    refusal_payload,
    rehandshake_request_payload,
    welcome_payload,
)
from wsmux.rpc.wire.message_size import most_taken

from ...helpers.rpc.memory_net import new_id
from ...helpers.rpc.tiny_codec import TinyCodec, fields, frame
from ...helpers.tables import each_case

CODEC = TinyCodec()
TOO_LARGE = most_taken(Options().max_size) + 1  # bytes, for a handshake

# Written from the drawing, by name, apart from the table.
MOVES = {
    "NO_CONNECTION": "CONNECT>BACKING_OFF LOST>NO_CONNECTION CLOSE>CLOSED",
    "BACKING_OFF": "CONNECT>BACKING_OFF WAITED>CONNECTING LOST>NO_CONNECTION CLOSE>CLOSED",
    "CONNECTING": "CONNECT>CONNECTING DIALLED>HANDSHAKING LOST>NO_CONNECTION CLOSE>CLOSED",
    "HANDSHAKING": "CONNECT>HANDSHAKING WELCOMED>CONNECTED LOST>NO_CONNECTION CLOSE>CLOSED",
    "CONNECTED": "CONNECT>CONNECTED LOST>NO_CONNECTION CLOSE>CLOSED",
    "CLOSED": "CLOSE>CLOSED",
}


@each_case
@pytest.mark.parametrize(("state", "happened"), list(product(ConnectorState, ConnectorInput)))
def test_every_move_is_as_drawn_or_illegal(state: ConnectorState, happened: ConnectorInput) -> None:
    moves = dict(move.split(">") for move in MOVES[state.name].split())
    if happened.name in moves:
        assert advance(state, happened).name == moves[happened.name]
    else:
        with pytest.raises(KeyError):
            advance(state, happened)
        assert (state, happened) not in TABLE


class Client(Connector):
    """A connector at time 0, with the codec and events at hand."""

    def __init__(self, *, reconnect: bool = True, **options: Any) -> None:
        numbers = count()
        super().__init__(
            "client",
            "SERVER",
            codec=TinyCodec(),
            options=Options(**{"backoff_jitter": 0.0, **options}),
            new_id=lambda: f"id{next(numbers)}",
            random=lambda: 0.0,
            reconnect=reconnect,
        )

    def break_codec(self, broken: bool = True) -> None:
        self._codec.broken = broken  # type: ignore[attr-defined]

    def greet(self, now: float = 0.0) -> dict[str, Any]:
        """Go on from a dial to the question, and return it."""
        attempt = self._attempt
        assert attempt is not None
        self.dialled(attempt, now)
        self.hello(attempt, None, now)
        (data,) = self.data_to_send()
        return fields(data)

    def welcome(self, now: float = 0.0) -> None:
        assert self.session is not None
        self.hear(welcome_payload(self.session.id), now=now)

    def hear(self, payload: Any, *, now: float = 0.0, **changed: Any) -> None:
        attempt = self._attempt
        assert attempt is not None
        data = frame(payload, **{"from": "SERVER", "to": "client", **changed})
        self.receive(attempt, data, now)

    def establish(self, now: float = 0.0) -> None:
        self.connect(now)
        self.greet(now)
        self.welcome(now)
        self.events()

    def told(self, kind: type[ConnectorEvent]) -> list[Any]:
        return [event for event in self.events() if isinstance(event, kind)]

    def status(self) -> str:
        return self.state.name


def handshaking(**options: Any) -> Client:
    client = Client(**options)
    client.connect(0.0)
    client.greet()
    client.events()
    return client


def connected(**options: Any) -> Client:
    client = Client(**options)
    client.establish()
    return client


class TestConnecting:
    def test_a_connected_client_has_nothing_to_do(self) -> None:
        client = connected()
        session, due = client.session, client.next_timer()
        client.connect(0.5)
        assert client.need_session(0.5) is session
        assert (client.events(), client.next_timer(), client.status()) == ([], due, "CONNECTED")

    def test_the_first_attempt_dials_at_once(self) -> None:
        client = Client()
        client.connect(0.0)
        assert client.events() == [
            StatusChanged(ConnectorState.BACKING_OFF),
            StatusChanged(ConnectorState.CONNECTING),
            Dial(1),
        ]

    def test_nothing_happens_before_it_is_wanted(self) -> None:
        client = Client()
        assert (client.status(), client.session, client.next_timer()) == (
            "NO_CONNECTION",
            None,
            None,
        )
        assert (client.has_output(), client.data_to_send()) == (False, [])

    def test_connecting_twice_uses_one_connection(self) -> None:
        client = Client()
        for _ in range(3):
            client.connect(0.0)
        assert client.told(Dial) == [Dial(1)]

    def test_a_connection_asks_for_metadata(self) -> None:
        client = Client()
        client.connect(0.0)
        client.events()
        client.dialled(1, 0.0)
        assert client.events() == [StatusChanged(ConnectorState.HANDSHAKING), HelloWanted(1)]

    def test_the_question_names_session_version_and_counters(self) -> None:
        client = Client()
        client.connect(0.0)
        question = client.greet()
        assert client.session is not None
        assert (question["seq"], question["ack"], question["controlFlags"]) == (0, 0, 0)
        assert question["payload"] == {
            "type": "HANDSHAKE_REQ",
            "protocolVersion": "v2.0",
            "sessionId": client.session.id,
            "expectedSessionState": {
                "nextExpectedSeq": 0,
                "nextSentSeq": 0,
                "attempt": {"instance": client._instance, "number": 1, "welcomed": 0},
            },
        }

    def test_the_question_says_whether_the_session_had_a_connection(self) -> None:
        client = connected()
        client.lost(1, 60.0)
        for _ in range(2):  # an attempt without an answer changes nothing
            state = client.greet(60.0)["payload"]["expectedSessionState"]
            del state["attempt"]
            assert state == {"nextExpectedSeq": 0, "nextSentSeq": 0, "isReconnect": True}
            client.lost(client._attempts, 60.0)
            client.handle_timer(61.0)

    def test_the_question_numbers_attempts_and_names_the_first_that_was_welcomed(self) -> None:
        client = Client(session_disconnect_grace=600.0)
        client.connect(0.0)
        told = []
        for welcomed in (False, True, True, False):
            attempt = client.greet(1.0)["payload"]["expectedSessionState"]["attempt"]
            told.append((attempt["number"], attempt["welcomed"]))
            assert attempt["instance"] == client._instance
            if welcomed:
                client.welcome(1.0)
            client.lost(client._attempts, 1.0)
            client.handle_timer(60.0)
        assert told == [(1, 0), (2, 0), (3, 2), (4, 2)]

    def test_another_session_was_not_welcomed_before(self) -> None:
        client = connected()
        client.hard_disconnect(1.0)
        client.connect(1.0)
        attempt = client.greet(1.0)["payload"]["expectedSessionState"]["attempt"]
        assert (attempt["number"], attempt["welcomed"]) == (2, 0)

    def test_clients_of_one_id_are_told_apart(self) -> None:
        made = [
            Connector(
                "client",
                "SERVER",
                codec=CODEC,
                options=Options(),
                new_id=new_id,
                random=lambda: 0.0,
            )
            for _ in range(2)
        ]
        assert made[0]._instance != made[1]._instance

    def test_the_question_carries_the_metadata(self) -> None:
        client = Client()
        client.connect(0.0)
        client.dialled(1, 0.0)
        client.hello(1, {"token": 1}, 0.0)
        assert client.has_output() is True
        (data,) = client.data_to_send()
        assert fields(data)["payload"]["metadata"] == {"token": 1}

    def test_the_answer_connects(self) -> None:
        client = handshaking()
        client.welcome()
        assert client.events() == [StatusChanged(ConnectorState.CONNECTED)]
        assert client.session is not None
        assert client.session.attached

    def test_the_session_is_made_when_the_server_is_greeted(self) -> None:
        client = Client()
        client.connect(0.0)
        assert client.session is None
        client.greet()
        assert client.told(SessionCreated) == [SessionCreated(client.session)]  # type: ignore[arg-type]

    def test_a_call_makes_the_session_before(self) -> None:
        client = Client()
        session = client.need_session(0.0)
        assert client.events() == [SessionCreated(session)]
        assert client.need_session(1.0) is session
        client.connect(1.0)
        assert client.greet()["payload"]["sessionId"] == session.id

    def test_what_was_sent_before_goes_out_with_the_connection(self) -> None:
        client = Client()
        client.need_session(0.0).send(b"1", stream_id="s", flags=0)
        client.connect(0.0)
        client.greet()
        assert client.has_output() is False
        client.welcome()
        assert [fields(data)["payload"] for data in client.data_to_send()] == [1]

    def test_a_server_is_greeted_once(self) -> None:
        client = handshaking()
        with pytest.raises(LocalProtocolError, match="sent once"):
            client.hello(1, None, 0.0)

    def test_a_server_is_not_greeted_before_the_connection_stands(self) -> None:
        client = Client()
        client.connect(0.0)
        with pytest.raises(LocalProtocolError, match="sent once"):
            client.hello(1, None, 0.0)

    def test_a_connection_is_made_once(self) -> None:
        client = handshaking()
        with pytest.raises(LocalProtocolError, match="HANDSHAKING cannot take DIALLED"):
            client.dialled(1, 0.0)


class TestTimers:
    def test_an_owner_that_does_not_dial_in_time_has_a_moment_to_say_so(self) -> None:
        client = Client(connection_timeout=2.0)
        client.connect(0.0)
        client.events()
        assert client.next_timer() == 2.5
        client.handle_timer(2.4)
        assert client.events() == []
        client.handle_timer(2.5)
        assert client.events()[0] == Hangup(1)
        assert client.status() == "BACKING_OFF"

    def test_a_handshake_takes_the_handshake_timeout_at_most(self) -> None:
        client = handshaking(handshake_timeout=1.0)
        assert client.next_timer() == 1.0
        client.handle_timer(1.0)
        assert client.told(Hangup) == [Hangup(1)]
        assert (client.status(), client.session is None) == ("BACKING_OFF", False)

    def test_the_wait_ends_with_the_next_attempt(self) -> None:
        client = Client(backoff_base=0.5)
        client.connect(0.0)
        client.dial_failed(1, 0.0)
        client.events()
        assert client.next_timer() == 0.5
        client.handle_timer(0.5)
        assert client.told(Dial) == [Dial(2)]

    def test_a_connected_client_watches_for_silence_only(self) -> None:
        client = connected(heartbeat_interval=1.0, heartbeats_until_dead=2)
        assert client.next_timer() == 2.0

    def test_the_nearer_of_two_timers_counts(self) -> None:
        client = Client(session_disconnect_grace=1.0, connection_timeout=2.0)
        client.need_session(0.0)
        client.connect(0.0)
        assert client.next_timer() == 1.0

    def test_the_grace_is_a_timer_without_a_connection(self) -> None:
        client = Client(session_disconnect_grace=1.0)
        client.need_session(0.0)
        assert client.next_timer() == 1.0

    def test_silence_hangs_up_and_reconnects_with_the_same_session(self) -> None:
        client = connected(heartbeat_interval=1.0, heartbeats_until_dead=2)
        session = client.session
        client.handle_timer(2.0)
        events = client.events()
        assert events[0] == Hangup(1)
        assert events[-1] == Dial(2)
        assert client.session is session


class TestGrace:
    def test_it_ends_the_session_and_the_attempts_go_on(self) -> None:
        client = Client(session_disconnect_grace=5.0, backoff_base=1.0)
        session = client.need_session(0.0)
        client.connect(0.0)
        client.dial_failed(1, 4.9)
        client.events()
        client.handle_timer(5.0)
        assert client.events() == [SessionClosed(session, "no connection within the grace period")]
        assert client.status() == "BACKING_OFF"
        assert session.state is SessionState.DESTROYED

    def test_a_handshake_for_the_session_that_is_over_is_hung_up(self) -> None:
        client = Client(session_disconnect_grace=5.0, handshake_timeout=9.0)
        client.need_session(0.0)
        client.connect(0.0)
        client.greet(4.5)
        client.events()
        client.handle_timer(5.0)
        assert [type(event) for event in client.events()[:2]] == [SessionClosed, Hangup]
        assert client.status() == "BACKING_OFF"

    def test_a_handshake_that_waits_for_metadata_goes_on_with_a_new_session(self) -> None:
        client = Client(session_disconnect_grace=5.0, handshake_timeout=9.0)
        first = client.need_session(0.0)
        client.connect(0.0)
        client.dialled(1, 4.5)
        client.handle_timer(5.0)
        client.hello(1, None, 5.5)
        assert client.session not in (None, first)
        client.welcome(5.5)
        assert client.status() == "CONNECTED"

    def test_it_runs_from_the_loss_of_a_connection(self) -> None:
        client = connected(session_disconnect_grace=5.0, heartbeat_interval=100.0)
        client.lost(1, 10.0)
        client.dial_failed(2, 12.0)
        client.handle_timer(12.2)
        client.events()
        client.handle_timer(14.9)
        assert client.told(SessionClosed) == []
        client.handle_timer(15.0)
        assert len(client.told(SessionClosed)) == 1

    def test_attempts_fall_within_the_grace_of_a_session_that_lost_its_connection(self) -> None:
        client = connected(backoff_base=1.0, backoff_max=60.0, session_disconnect_grace=5.0)
        now = 100.0
        for _ in range(6):  # far more attempts than one loss takes
            client._backoff.attempt(now)
        client.lost(1, now)
        waits = []
        while client.session is not None:
            due = client.next_timer() or 0.0
            waits.append(due - now)
            now = due
            client.handle_timer(now)
            if client.status() == "CONNECTING":
                client.dial_failed(client._attempts, now)
        assert waits[:4] == [2.5, 1.25, 0.625, 0.625]  # half of what is left, but not for ever
        assert client.status() == "BACKING_OFF"

    @pytest.mark.parametrize("pending", [False, True])
    def test_an_attempt_comes_soon_while_somebody_waits_for_it(self, pending: bool) -> None:
        client = Client(backoff_base=1.0, backoff_max=60.0)
        client._pending = lambda: pending
        client.connect(0.0)
        for _ in range(6):
            client._backoff.attempt(0.0)
        client.dial_failed(1, 0.0)
        assert client.next_timer() == (LONGEST_PENDING if pending else 60.0)

    @pytest.mark.parametrize("session", [False, True])
    def test_who_begins_to_wait_brings_an_attempt_near(self, session: bool) -> None:
        client = Client(backoff_base=0.25, session_disconnect_grace=600.0)
        if session:
            client.need_session(0.0)
        client.connect(0.0)
        for _ in range(9):
            client._backoff.attempt(0.0)
        client.dial_failed(1, 0.0)
        assert client.next_timer() == 32.0
        client.connect(1.0)
        assert client.next_timer() == 1.25

    def test_a_session_of_a_short_grace_has_an_attempt_within_it(self) -> None:
        client = Client(session_disconnect_grace=0.2, backoff_base=0.05)
        client.connect(0.0)
        for _ in range(5):
            client._backoff.attempt(0.0)
        client.dial_failed(1, 0.0)
        assert (client.next_timer() or 0.0) > 1.0
        client.need_session(0.0)
        assert client._due == 0.05  # the wait after a first failure
        client = Client(session_disconnect_grace=0.2, backoff_base=60.0)
        client.connect(0.0)
        client.dial_failed(1, 0.0)
        client.need_session(0.0)
        assert client._due == 0.1

    def test_a_new_session_brings_a_far_attempt_near_once(self) -> None:
        client = Client(session_disconnect_grace=5.0, backoff_base=0.25, backoff_max=60.0)
        client.connect(0.0)
        now = 0.0
        while client.status() != "BACKING_OFF" or (client.next_timer() or 0) - now < 30:
            if client.status() == "BACKING_OFF":
                now = client.next_timer() or 0.0
                client.handle_timer(now)
            else:
                client.dial_failed(client._attempts, now)
        client.need_session(now)
        assert client.next_timer() == now + 0.25
        client.need_session(now + 0.2)
        assert client.next_timer() == now + 0.25


class TestLoss:
    def test_a_drop_after_a_healthy_connection_dials_at_once(self) -> None:
        client = connected()
        client.lost(1, 60.0)
        assert client.events() == [
            StatusChanged(ConnectorState.NO_CONNECTION),
            StatusChanged(ConnectorState.BACKING_OFF),
            StatusChanged(ConnectorState.CONNECTING),
            Dial(2),
        ]

    def test_a_loss_in_the_handshake_keeps_the_session(self) -> None:
        client = handshaking()
        session = client.session
        client.lost(1, 0.5)
        assert (client.session, client.status()) == (session, "BACKING_OFF")

    def test_a_loss_in_the_handshake_asks_for_the_codec(self) -> None:
        client = handshaking()
        client.lost(1, 0.5)
        asked = "the connection was closed; is the server's codec tiny, too?"
        text = f"no: the handshake was not answered: {asked}"
        assert client.with_trouble("no") == text
        client.handle_timer(1.0)
        client.greet(1.0)
        assert client.with_trouble("no") == text  # while the next attempt is under way
        client.lost(2, 1.5)
        assert client.with_trouble("no") == text

    def test_why_an_attempt_was_refused_is_told_while_the_next_is_under_way(self) -> None:
        client = handshaking()
        client.hear(refusal_payload("SESSION_STATE_MISMATCH", "lost it"))
        client.handle_timer(1.0)
        client.greet(1.0)
        assert client.with_trouble("no") == "no: handshake failed: lost it"

    def test_an_attempt_that_is_not_answered_in_time_says_so(self) -> None:
        client = handshaking()
        client.hear(refusal_payload("SESSION_STATE_MISMATCH", "lost it"))
        client.handle_timer(1.0)
        client.greet(1.0)
        client.handle_timer(1.0 + Options().handshake_timeout)
        assert client.with_trouble("no") == "no: the handshake was not answered"

    def test_a_loss_before_the_handshake_asks_nothing(self) -> None:
        client = Client()
        client.connect(0.0)
        client.dialled(1, 0.0)
        client.lost(1, 0.5)
        assert client.with_trouble("no") == "no: the handshake was not answered"

    def test_what_was_not_acknowledged_goes_out_again(self) -> None:
        client = connected()
        assert client.session is not None
        client.session.send(b"1", stream_id="s", flags=0)
        first = client.data_to_send()
        client.lost(1, 60.0)
        client.greet(60.0)
        client.welcome(60.0)
        assert client.data_to_send() == first

    def test_without_transparent_reconnects_the_session_ends(self) -> None:
        client = connected(transparent_reconnect=False)
        session = client.session
        client.lost(1, 60.0)
        assert SessionClosed(session, "the connection was lost") in client.events()  # type: ignore[arg-type]
        assert client.greet(60.0)["payload"]["sessionId"] != session.id  # type: ignore[union-attr]

    def test_without_transparent_reconnects_a_session_waits_for_its_first_connection(self) -> None:
        client = Client(transparent_reconnect=False)
        session = client.need_session(0.0)
        client.connect(0.0)
        client.dial_failed(1, 0.0)
        assert client.session is session

    def test_a_fatal_dialling_error_ends_the_session_and_the_attempts(self) -> None:
        client = Client()
        client.need_session(0.0)
        client.connect(0.0)
        client.events()
        client.dial_failed(1, 0.0, fatal=True)
        assert [type(event) for event in client.events()] == [SessionClosed, StatusChanged]
        assert (client.status(), client.next_timer()) == ("NO_CONNECTION", None)

    def test_what_ends_a_session_tells_why_there_was_no_connection(self) -> None:
        client = Client()
        client.need_session(0.0)
        client.connect(0.0)
        client.dial_failed(1, 0.0, "nobody listens", fatal=True)
        (closed,) = [event for event in client.events() if isinstance(event, SessionClosed)]
        assert closed.reason == "the connection cannot be made: nobody listens"

    def test_a_fatal_loss_ends_the_session_and_the_attempts(self) -> None:
        client = connected()
        client.lost(1, 60.0, fatal=True)
        assert (client.status(), client.session) == ("NO_CONNECTION", None)

    def test_after_a_fatal_error_a_call_tries_again(self) -> None:
        client = Client()
        client.connect(0.0)
        client.dial_failed(1, 0.0, fatal=True)
        client.connect(60.0)
        client.handle_timer(61.0)
        assert client.told(Dial) == [Dial(1), Dial(2)]

    @pytest.mark.parametrize("made", [handshaking, connected])
    def test_without_reconnect_there_is_one_attempt(self, made: Any) -> None:
        client = made(reconnect=False)
        client.lost(1, 1.0)
        assert (client.status(), client.session is None) == ("NO_CONNECTION", False)

    def test_five_attempts_in_vain_are_told_once(self) -> None:
        client = Client()
        client.connect(0.0)
        now, failures = 0.0, []
        for attempt in range(1, 12):
            client.dial_failed(attempt, now)
            failures.append([event.kind for event in client.told(Failure)])
            now = client.next_timer() or 0.0
            client.handle_timer(now)
        assert failures == [[]] * 4 + [[FailureKind.RETRIES]] + [[]] * 6


class TestLateNews:
    def test_a_connection_that_comes_too_late_is_hung_up(self) -> None:
        client = Client(connection_timeout=2.0)
        client.connect(0.0)
        client.handle_timer(2.5)
        client.events()
        client.dialled(1, 2.6)
        assert client.events() == [Hangup(1)]

    def test_a_connection_that_comes_after_closing_is_hung_up(self) -> None:
        client = Client()
        client.connect(0.0)
        client.close()
        client.events()
        client.dialled(1, 1.0)
        assert client.events() == [Hangup(1)]

    def test_nothing_else_is_heard_of_an_old_attempt(self) -> None:
        client = connected()
        client.lost(1, 60.0)
        client.events()
        client.lost(1, 60.0)
        client.dial_failed(1, 60.0)
        client.hello(1, None, 60.0)
        client.hello_failed(1, "why", 60.0)
        client.receive(1, b"garbage", 60.0)
        assert (client.events(), client.data_to_send()) == ([], [])


class TestAnswers:
    def test_a_state_mismatch_ends_the_session_and_comes_again_with_a_new_one(self) -> None:
        client = connected()
        old = client.session
        client.lost(1, 60.0)
        client.greet(60.0)
        client.events()
        client.hear(refusal_payload("SESSION_STATE_MISMATCH", "lost it"), now=60.0)
        events = client.events()
        assert events[0] == SessionClosed(old, "handshake failed: lost it")  # type: ignore[arg-type]
        assert events[1] == Hangup(2)
        assert not any(isinstance(event, Failure) for event in events)
        client.handle_timer(61.0)
        assert client.greet(61.0)["payload"]["sessionId"] != old.id  # type: ignore[union-attr]

    def test_a_server_that_lost_the_session_is_asked_soon_for_a_new_one(self) -> None:
        """However long it was away: that it answers says that it is back."""
        client = connected()
        client.lost(1, 60.0)
        for attempt in range(2, 9):
            client.dial_failed(attempt, 60.0)
            client._due = 60.0  # whatever it would have waited
            client.handle_timer(60.0)
        client.greet(60.0)
        client.hear(refusal_payload("SESSION_STATE_MISMATCH", "gone"), now=60.0)
        assert client.next_timer() == pytest.approx(60.0 + Options().backoff_base)

    def test_a_server_that_lost_the_session_is_not_asked_again_without_reconnects(self) -> None:
        client = connected(reconnect=False)
        client.lost(1, 60.0)
        client.connect(60.0)
        client.greet(60.0)
        client.hear(refusal_payload("SESSION_STATE_MISMATCH", "gone"), now=60.0)
        assert (client.session, client.status()) == (None, "NO_CONNECTION")
        assert client.next_timer() is None

    def test_a_state_mismatch_spares_a_session_that_never_was_connected(self) -> None:
        client = handshaking()
        session = client.session
        client.hear(refusal_payload("SESSION_STATE_MISMATCH", "another is connected"))
        assert (client.session, client.status()) == (session, "BACKING_OFF")

    def test_a_state_mismatch_after_the_session_ended_comes_again(self) -> None:
        client = handshaking()
        client._end_session("over")
        client.hear(refusal_payload("SESSION_STATE_MISMATCH", "lost it"))
        assert client.status() == "BACKING_OFF"

    @pytest.mark.parametrize("code", ["REJECTED_BY_CUSTOM_HANDLER", "UNHEARD_OF"])
    def test_a_fatal_refusal_ends_the_session_and_is_told(self, code: str) -> None:
        client = handshaking()
        client.hear(refusal_payload(code, "no"))
        events = client.events()
        assert events[0] == Failure(FailureKind.HANDSHAKE, "handshake failed: no", code)
        assert [type(event) for event in events[1:]] == [SessionClosed, Hangup, StatusChanged]
        assert (client.status(), client.next_timer()) == ("NO_CONNECTION", None)

    def test_another_session_in_the_answer_begins_anew(self) -> None:
        client = handshaking()
        session = client.session
        client.hear(welcome_payload("another"))
        assert client.told(SessionClosed)[0].session is session
        assert client.status() == "BACKING_OFF"

    def test_an_answer_after_the_session_ended_begins_anew(self) -> None:
        client = handshaking()
        client._end_session("over")
        client.hear(welcome_payload("s"))
        assert (client.session, client.status()) == (None, "BACKING_OFF")

    @pytest.mark.parametrize("data", [b"garbage", b"{}", bytes(TOO_LARGE)], ids=len)
    def test_an_undecodable_answer_is_fatal(self, data: bytes) -> None:
        client = handshaking()
        client.receive(1, data, 0.0)
        (failure,) = client.told(Failure)
        assert (failure.kind, failure.code) == (
            FailureKind.HANDSHAKE,
            RefusalCode.MALFORMED_HANDSHAKE,
        )
        assert client.status() == "NO_CONNECTION"

    def test_another_message_is_no_answer(self) -> None:
        client = handshaking()
        client.hear({"type": "ACK"})
        assert client.told(Failure)[0].kind is FailureKind.HANDSHAKE

    def test_an_answer_of_another_server_is_fatal(self) -> None:
        client = handshaking()
        assert client.session is not None
        client.hear(welcome_payload(client.session.id), **{"from": "OTHER"})
        assert "identified itself as 'OTHER'" in client.told(Failure)[0].text

    def test_a_server_that_speaks_first_is_fatal(self) -> None:
        client = Client()
        session = client.need_session(0.0)
        client.connect(0.0)
        client.dialled(1, 0.0)
        client.hear(welcome_payload(session.id))
        assert client.told(Failure)[0].text == "the server sent a message before its handshake"


class TestMessages:
    def test_a_message_is_handed_on(self) -> None:
        client = connected()
        client.hear("hello")
        (received,) = client.told(EnvelopeReceived)
        assert (received.session, received.envelope.payload) == (client.session, "hello")

    def test_an_ack_is_returned_and_not_handed_on(self) -> None:
        client = connected()
        client.hear({"type": "ACK"}, controlFlags=1)
        assert (client.events(), client.has_output()) == ([], True)

    def test_a_gap_is_told_and_reconnects_with_the_same_session(self) -> None:
        client = connected()
        session = client.session
        client.hear("later", seq=5, now=60.0)
        events = client.events()
        assert isinstance(events[0], Failure)
        assert events[0].kind is FailureKind.ORDERING
        assert events[1] == Hangup(1)
        assert events[-1] == Dial(2)
        assert client.session is session

    def test_a_cut_by_size_is_told_and_the_second_in_a_row_ends_the_session(self) -> None:
        client = connected()
        session = client.session
        for _ in range(2):  # it is told once, however often it is asked for
            assert client.cut_by_size(1, "too long", ours=False, now=60.0) is False
        assert client.events() == [Failure(FailureKind.INVALID_MESSAGE, "too long")]
        client.lost(1, 60.0)
        client.greet(60.0)
        client.welcome(60.0)
        client.events()
        assert client.session is session
        assert client.cut_by_size(2, "too long", ours=False, now=61.0) is True
        client.lost(2, 61.0)
        assert client.status() == "NO_CONNECTION"
        failures = [event for event in client.events() if isinstance(event, Failure)]
        assert [failure.kind for failure in failures] == [FailureKind.INVALID_MESSAGE]
        assert failures[0].text == client.given_up
        assert (client.session, client.next_timer()) == (None, None)

    def test_a_cut_of_another_connection_is_none_of_this_one(self) -> None:
        client = connected()
        assert client.cut_by_size(2, "too long", ours=False, now=60.0) is False
        assert client.events() == []
        fresh = handshaking()
        assert fresh.cut_by_size(1, "too long", ours=False, now=60.0) is False
        assert fresh.events() == []

    def test_metadata_that_are_too_large_are_not_sent(self) -> None:
        client = Client(max_size=16 * 1024)
        client.connect(0.0)
        client.dialled(1, 0.0)
        client.hello(1, "x" * 16 * 1024, 0.0)
        assert client.status() == "NO_CONNECTION"
        assert "above Options.max_size, 16384" in client.given_up

    def test_a_broken_rule_ends_session_and_connection(self) -> None:
        client = connected()
        client.receive(1, b"garbage", 60.0)
        events = client.events()
        assert isinstance(events[0], Failure)
        assert events[0].kind is FailureKind.INVALID_MESSAGE
        assert [type(event) for event in events[1:]] == [SessionClosed, Hangup, StatusChanged]
        assert (client.status(), client.session) == ("NO_CONNECTION", None)

    def test_an_ack_that_cannot_be_encoded_ends_the_session(self) -> None:
        client = connected()
        client.break_codec()
        client.hear({"type": "ACK"}, controlFlags=1)
        assert client.told(Failure)[0].kind is FailureKind.SENDING
        assert client.session is None


class TestMetadata:
    def test_metadata_that_cannot_be_made_end_the_session(self) -> None:
        client = Client()
        client.need_session(0.0)
        client.connect(0.0)
        client.dialled(1, 0.0)
        client.hello_failed(1, "no token", 0.0)
        (failure,) = client.told(Failure)
        assert failure == Failure(
            FailureKind.HANDSHAKE, "failed to construct handshake metadata: no token"
        )
        assert (client.status(), client.session) == ("NO_CONNECTION", None)

    def test_metadata_that_nobody_can_make_now_are_asked_for_with_the_next_connection(self) -> None:
        client = Client()
        session = client.need_session(0.0)
        client.connect(0.0)
        client.dialled(1, 0.0)
        client.events()
        client.metadata_delayed(HelloWanted(1), "no thread", 0.0)
        assert client.told(Hangup) == [Hangup(1)]
        assert client.with_trouble("why") == "why: no thread"
        client.handle_timer(1.0)
        client.dialled(2, 1.0)
        assert client.told(HelloWanted) == [HelloWanted(2)]
        client.metadata_delayed(HelloWanted(1), "too late", 1.0)
        assert client.events() == []
        assert client.session is session

    def test_new_metadata_that_nobody_can_make_now_come_with_the_next_connection(self) -> None:
        client = connected()
        session = client.session
        assert session is not None
        client.metadata_delayed(MetadataWanted(session), "no thread", 1.0)
        assert client.told(Hangup) == [Hangup(1)]
        assert client.session is session
        client.metadata_delayed(MetadataWanted(session), "too late", 1.0)
        assert client.told(Hangup) == []

    def test_metadata_that_cannot_be_encoded_end_the_session(self) -> None:
        client = Client()
        client.connect(0.0)
        client.dialled(1, 0.0)
        client.hello(1, object(), 0.0)
        assert client.told(Failure)[0].kind is FailureKind.SENDING
        assert (client.status(), client.session, client.has_output()) == (
            "NO_CONNECTION",
            None,
            False,
        )

    def test_after_that_the_next_call_works_in_a_new_session(self) -> None:
        client = Client()
        client.connect(0.0)
        client.dialled(1, 0.0)
        client.break_codec()
        client.hello(1, None, 0.0)
        client.break_codec(False)
        client.connect(60.0)
        client.handle_timer(61.0)
        client.greet(61.0)
        client.welcome(61.0)
        assert client.status() == "CONNECTED"

    def test_the_server_may_ask_for_new_metadata(self) -> None:
        client = connected()
        client.hear(rehandshake_request_payload(), streamId=REHANDSHAKE_STREAM)
        assert client.events() == [MetadataWanted(client.session)]  # type: ignore[arg-type]

    def test_anything_else_on_that_stream_is_ignored(self) -> None:
        client = connected()
        client.hear({"type": "CLOSE"}, streamId=REHANDSHAKE_STREAM)
        assert (client.events(), client.status()) == ([], "CONNECTED")

    def test_new_metadata_are_a_message_on_that_stream(self) -> None:
        client = connected()
        assert client.session is not None
        client.refresh(client.session, {"token": 2})
        (data,) = client.data_to_send()
        message = fields(data)
        assert (message["streamId"], message["controlFlags"]) == (REHANDSHAKE_STREAM, 0)
        assert message["payload"] == {"type": "REHANDSHAKE_RESP", "metadata": {"token": 2}}

    def test_new_metadata_for_a_session_that_is_over_are_dropped(self) -> None:
        client = connected()
        session = client.session
        assert session is not None
        client.hard_disconnect(0.0)
        client.events()
        client.refresh(session, {})
        assert (client.events(), client.has_output()) == ([], False)

    def test_new_metadata_that_cannot_be_encoded_are_told(self) -> None:
        client = connected()
        assert client.session is not None
        client.refresh(client.session, object())
        assert client.told(Failure)[0].kind is FailureKind.SENDING
        assert client.status() == "CONNECTED"


class TestEnds:
    def test_a_hard_disconnect_ends_everything_at_once(self) -> None:
        client = connected()
        session = client.session
        client.hard_disconnect(1.0)
        assert client.events() == [
            SessionClosed(session, "disconnected by this side"),  # type: ignore[arg-type]
            Hangup(1),
            StatusChanged(ConnectorState.NO_CONNECTION),
        ]
        assert client.next_timer() is None

    def test_a_hard_disconnect_stops_the_attempts(self) -> None:
        client = Client()
        client.connect(0.0)
        client.dial_failed(1, 0.0)
        client.hard_disconnect(0.0)
        assert (client.status(), client.next_timer()) == ("NO_CONNECTION", None)

    def test_after_a_hard_disconnect_one_may_connect_again(self) -> None:
        client = connected()
        client.hard_disconnect(60.0)
        client.establish(60.0)
        assert client.status() == "CONNECTED"

    @pytest.mark.parametrize("made", [Client, handshaking, connected])
    def test_closing_ends_everything_for_good(self, made: Any) -> None:
        client = made()
        client.close()
        assert (client.status(), client.session, client.next_timer()) == ("CLOSED", None, None)
        assert client.has_output() is False

    def test_closing_twice_is_harmless(self) -> None:
        client = connected()
        client.close()
        client.events()
        client.close()
        client.hard_disconnect(0.0)
        assert client.events() == []

    def test_a_closed_client_neither_connects_nor_has_sessions(self) -> None:
        client = Client()
        client.close()
        with pytest.raises(LocalProtocolError, match="CLOSED cannot take CONNECT"):
            client.connect(0.0)
        with pytest.raises(LocalProtocolError, match="closed"):
            client.need_session(0.0)
