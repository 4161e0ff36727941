"""One end of a session: messages, heartbeats, silence, grace, and the ways it breaks."""

from __future__ import annotations

from itertools import count, product
from typing import Any

import pytest

from wsmux.exceptions import LocalProtocolError
from wsmux.protocols.base import Role
from wsmux.rpc.errors import FailureKind, GapError, SessionFailure
from wsmux.rpc.options import Options
from wsmux.rpc.session.session import (
    CLIENT_BUFFER,
    CLIENT_BYTES,
    MOST_PROVOKED_BYTES,
    SERVER_BUFFER,
    SERVER_BYTES,
    TABLE,
    Lapse,
    Session,
    SessionInput,
    SessionState,
)
from wsmux.rpc.wire.codec import EncodeError
from wsmux.rpc.wire.envelope import MAX_ID, Oversize
from wsmux.rpc.wire.handshake import ExpectedState
from wsmux.rpc.wire.message_size import ENVELOPE_ROOM

from ...helpers.rpc.tiny_codec import TinyCodec, fields, frame

OPTIONS = Options(
    heartbeat_interval=1.0,
    heartbeats_until_dead=2,
    session_disconnect_grace=5.0,
)
SMALL = 16 * 1024
IDS = {Role.CLIENT: "client", Role.SERVER: "SERVER"}


def session(role: Role = Role.SERVER, *, attached: bool = True, **options: Any) -> Session:
    """Return an end at time 0."""
    numbers = count()
    other = Role.CLIENT if role is Role.SERVER else Role.SERVER
    made = Session(
        role,
        "session",
        IDS[role],
        IDS[other],
        codec=TinyCodec(),
        options=Options(**options) if options else OPTIONS,
        new_id=lambda: f"id{next(numbers)}",
        now=0.0,
    )
    if attached:
        made.attach(0.0)
    return made


def send(end: Session, *payloads: Any, provoked: bool = False) -> None:
    for payload in payloads:
        end.send(TinyCodec().pack(payload), stream_id="stream", flags=0, provoked=provoked)


def sent(end: Session) -> list[dict[str, Any]]:
    return [fields(data) for data in end.data_to_send()]


def payloads(end: Session) -> list[Any]:
    return [message["payload"] for message in sent(end)]


def from_server(payload: Any = None, **changed: Any) -> bytes:
    return frame(payload, **{"from": "SERVER", "to": "client", **changed})


def ack_frame(**changed: Any) -> bytes:
    return frame({"type": "ACK"}, streamId="heartbeat", controlFlags=1, **changed)


def server_ack(**changed: Any) -> bytes:
    return ack_frame(**{"from": "SERVER", "to": "client", **changed})


class TestMessages:
    def test_a_message_has_the_envelope_of_its_session(self) -> None:
        end = session(Role.CLIENT)
        end.send(b"[1]", stream_id="s", flags=10, service="a", procedure="b", tracing=("p", "q"))
        assert sent(end) == [
            {
                "id": "id0",
                "from": "client",
                "to": "SERVER",
                "seq": 0,
                "ack": 0,
                "streamId": "s",
                "controlFlags": 10,
                "serviceName": "a",
                "procedureName": "b",
                "tracing": {"traceparent": "p", "tracestate": "q"},
                "payload": [1],
            }
        ]

    def test_a_message_says_how_long_its_caller_still_waits(self) -> None:
        end = session(Role.CLIENT)
        end.send(b"1", stream_id="s", flags=10, due=7.5, now=5.0)
        assert [message["timeoutMs"] for message in sent(end)] == [2500]

    def test_what_leaves_later_says_what_is_left_by_then(self) -> None:
        end = session(Role.CLIENT, attached=False)
        end.send(b"1", stream_id="a", flags=10, due=7.5, now=5.0)
        end.send(b"2", stream_id="b", flags=10)
        end.send(b"3", stream_id="c", flags=10, due=6.0, now=5.0)
        end.attach(6.5)
        messages = sent(end)
        assert [message.get("timeoutMs") for message in messages] == [1000, None, 0]
        assert [(each["id"], each["seq"], each["payload"]) for each in messages] == [
            ("id0", 0, 1),
            ("id1", 1, 2),
            ("id2", 2, 3),
        ]

    def test_what_is_sent_again_says_what_it_said(self) -> None:
        end = session(Role.CLIENT, attached=False)
        end.send(b"1", stream_id="a", flags=10, due=9.0, now=0.0)
        end.attach(1.0)
        first = end.data_to_send()
        end.detach(2.0)
        end.attach(3.0)
        assert end.data_to_send() == first
        assert fields(first[0])["timeoutMs"] == 8000

    def test_the_size_of_the_buffer_is_that_of_what_leaves(self) -> None:
        end = session(Role.CLIENT, attached=False)
        end.send(b"1", stream_id="a", flags=10, due=100.0, now=0.0)
        end.attach(99.5)
        assert end.buffered_bytes == len(end.data_to_send()[0])
        end.receive(from_server(ack=1), 99.5)
        assert end.buffered_bytes == 0

    def test_a_peer_that_claims_what_never_left_gets_it_no_more(self) -> None:
        end = session(Role.CLIENT, attached=False)
        end.send(b"1", stream_id="a", flags=10, due=9.0, now=0.0)
        end.send(b"2", stream_id="b", flags=10, due=9.0, now=0.0)
        end.attach(1.0, acknowledged=1)
        assert payloads(end) == [2]

    def test_a_message_is_handed_out_once(self) -> None:
        end = session()
        send(end, 1)
        assert (end.has_output(), payloads(end)) == (True, [1])
        assert (end.has_output(), payloads(end)) == (False, [])

    def test_a_message_of_the_peer_is_returned(self) -> None:
        envelope = session().receive(frame("hello"), 0.0)
        assert envelope is not None
        assert (envelope.payload, envelope.stream_id) == ("hello", "stream")

    def test_what_arrives_may_be_a_view(self) -> None:
        assert session().receive(memoryview(frame("hello")), 0.0) is not None

    def test_a_duplicate_is_dropped(self) -> None:
        end = session()
        end.receive(frame(1), 0.0)
        assert end.receive(frame(1), 0.0) is None

    def test_a_wrong_receiver_is_counted_and_ignored(self) -> None:
        end = session()
        assert end.receive(frame(1, to="other"), 0.0) is None
        assert end.expected_state().next_expected == 1

    def test_unknown_flags_are_ignored(self) -> None:
        assert session().receive(frame(1, controlFlags=64), 0.0) is not None

    def test_an_ack_of_the_peer_trims_the_buffer(self) -> None:
        end = session()
        send(end, 1, 2)
        end.receive(frame(1, ack=2), 0.0)
        assert (end.buffered_messages, end.buffered_bytes) == (0, 0)

    def test_a_message_that_cannot_be_encoded_leaves_the_session_as_it_was(self) -> None:
        end = session()
        codec = end._codec
        assert isinstance(codec, TinyCodec)
        codec.broken = True
        with pytest.raises(EncodeError):
            send(end, 1)
        codec.broken = False
        send(end, 2)
        assert [(m["seq"], m["payload"]) for m in sent(end)] == [(0, 2)]

    @pytest.mark.parametrize("bound", [{"send_buffer_messages": 2}, {"send_buffer_bytes": 200}])
    def test_the_buffer_is_full_at_its_bound_until_acks_come(self, bound: dict[str, int]) -> None:
        end = session(Role.CLIENT, **bound)
        states = []
        for _ in range(2):
            states.append(end.full)
            send(end, "x" * 50)
        states.append(end.full)
        end.receive(from_server(1, ack=1), 0.0)
        assert [*states, end.full] == [False, False, True, False]

    @pytest.mark.parametrize(
        ("bound", "full"),
        [({"send_buffer_messages": 3}, False), ({"send_buffer_bytes": 300}, True)],
        ids=["messages", "bytes"],
    )
    def test_bytes_alone_hold_calls_back(self, bound: dict[str, int], full: bool) -> None:
        end = session(**bound)
        send(end, *["x" * 50] * 3)
        assert (end.full, end.bytes_full) == (True, full)
        end.receive(frame(seq=0, ack=end.buffered_messages), 0.0)
        assert not end.bytes_full

    def test_a_full_buffer_still_takes_messages(self) -> None:
        end = session(Role.CLIENT, send_buffer_messages=1)
        send(end, 1, 2)
        assert payloads(end) == [1, 2]


class TestBrokenRules:
    @pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", frame(seq="0"), frame(ack=-1)])
    def test_what_is_no_message_ends_the_session(self, data: bytes) -> None:
        with pytest.raises(SessionFailure) as caught:
            session().receive(data, 0.0)
        assert caught.value.kind is FailureKind.INVALID_MESSAGE

    def test_a_wrong_sender_ends_the_session(self) -> None:
        with pytest.raises(SessionFailure, match="'thief'"):
            session().receive(frame(**{"from": "thief"}), 0.0)

    def test_a_stream_id_beyond_any_reason_ends_the_session(self) -> None:
        end = session()
        assert end.receive(frame(streamId="x" * MAX_ID), 0.0) is not None
        with pytest.raises(SessionFailure, match="a stream id of more than 1024 characters"):
            end.receive(frame(seq=1, streamId="x" * (MAX_ID + 1)), 0.0)

    def test_an_ack_from_the_future_ends_the_session(self) -> None:
        with pytest.raises(SessionFailure, match="acknowledged"):
            session().receive(frame(ack=1), 0.0)

    def test_a_gap_ends_the_connection_and_keeps_the_session(self) -> None:
        end = session()
        with pytest.raises(GapError, match="message 1 came when 0 was wanted"):
            end.receive(frame(seq=1), 0.0)
        end.detach(0.0)
        end.attach(0.0)
        assert end.receive(frame("kept"), 0.0) is not None

    def test_a_second_gap_in_a_row_ends_the_session(self) -> None:
        end = session()
        with pytest.raises(GapError):
            end.receive(frame(seq=1), 0.0)
        end.detach(0.0)
        end.attach(0.0)
        with pytest.raises(SessionFailure, match="second time") as caught:
            end.receive(frame(seq=1), 0.0)
        assert caught.value.kind is FailureKind.ORDERING

    def test_a_message_that_is_too_large_comes_without_its_payload(self) -> None:
        end = session(max_size=SMALL)
        large = frame("x" * (SMALL + ENVELOPE_ROOM))
        envelope = end.receive(large, 0.0)
        assert envelope is not None
        assert envelope.payload == Oversize(len(large), SMALL)
        assert envelope.stream_id == "stream"
        assert end.expected_state().next_expected == 1
        assert end.receive(large, 0.0) is None  # a duplicate
        with pytest.raises(GapError):
            end.receive(frame("x" * (SMALL + ENVELOPE_ROOM), seq=2), 0.0)

    def test_a_message_of_the_largest_size_comes_whole(self) -> None:
        end = session(max_size=SMALL)
        room = SMALL + ENVELOPE_ROOM - len(frame(""))
        envelope = end.receive(frame("x" * room), 0.0)
        assert envelope is not None
        assert envelope.payload == "x" * room

    @pytest.mark.parametrize("ours", [False, True])
    def test_a_second_cut_by_size_in_a_row_ends_the_session(self, ours: bool) -> None:
        end = session(max_size=SMALL)
        assert end.cut_by_size("too long", ours=ours) is True
        assert end.cut_by_size("too long", ours=ours) is False  # the same one
        end.detach(0.0)
        end.attach(0.0)
        text = f"second time in a row: too long; .* at both ends, which is {SMALL} here"
        with pytest.raises(SessionFailure, match=text) as caught:
            end.cut_by_size("too long", ours=ours)
        kind = FailureKind.SENDING if ours else FailureKind.INVALID_MESSAGE
        assert caught.value.kind is kind

    @pytest.mark.parametrize("ours", [False, True])
    def test_cuts_with_a_message_between_are_not_in_a_row(self, ours: bool) -> None:
        end = session()
        for seq in range(3):
            send(end, seq)
            assert end.cut_by_size("too long", ours=ours)
            end.detach(0.0)
            end.attach(0.0)
            end.receive(frame(seq=seq, ack=seq + 1), 0.0)

    def test_cuts_of_either_direction_are_not_in_a_row(self) -> None:
        end = session()
        for ours in (True, False, True):
            assert end.cut_by_size("too long", ours=ours)
            end.detach(0.0)
            end.attach(0.0)

    @pytest.mark.parametrize("name", ["service", "procedure", "stream_id"])
    def test_names_that_are_too_long_are_not_sent(self, name: str) -> None:
        end = session()
        names: dict[str, Any] = {"stream_id": "s", name: "x" * ENVELOPE_ROOM}
        with pytest.raises(EncodeError, match=f"the names of a message take .* {ENVELOPE_ROOM}"):
            end.send(b"1", flags=0, **names)
        send(end, 2)
        assert [(m["seq"], m["payload"]) for m in sent(end)] == [(0, 2)]

    def test_gaps_with_a_message_between_are_not_in_a_row(self) -> None:
        end = session()
        for seq in (0, 1):
            with pytest.raises(GapError):
                end.receive(frame(seq=seq + 1), 0.0)
            end.receive(frame(seq=seq), 0.0)
        assert end.attached

    def test_an_ack_that_cannot_be_encoded_ends_the_session(self) -> None:
        end = session()
        end._codec.broken = True  # type: ignore[attr-defined]
        with pytest.raises(SessionFailure) as caught:
            end.handle_timer(1.0)
        assert caught.value.kind is FailureKind.SENDING

    @pytest.mark.parametrize("role", Role)
    def test_a_peer_that_never_acknowledges_what_it_provokes_ends_the_session(
        self, role: Role
    ) -> None:
        end = session(role, send_buffer_messages=2)
        other = {} if role is Role.SERVER else {"from": "SERVER", "to": "client"}
        send(end, *range(60), provoked=True)
        assert end.receive(frame("below the bound", seq=0, **other), 0.0) is not None
        send(end, *range(10), provoked=True)
        with pytest.raises(SessionFailure, match="does not acknowledge 64 messages"):
            end.receive(frame("beyond it", seq=1, **other), 0.0)

    @pytest.mark.parametrize("role", Role)
    def test_the_same_in_bytes(self, role: Role) -> None:
        end = session(role, send_buffer_bytes=1000)
        other = {} if role is Role.SERVER else {"from": "SERVER", "to": "client"}
        send(end, "x" * 10_000)  # the answer of a handler, or a call
        send(end, *["x" * 700] * 4, provoked=True)
        assert end.receive(frame("below the bound", seq=0, **other), 0.0) is not None
        send(end, "x" * 700, provoked=True)
        assert MOST_PROVOKED_BYTES == 4
        with pytest.raises(SessionFailure, match="does not acknowledge 4000 bytes"):
            end.receive(frame("beyond it", seq=1, **other), 0.0)

    def test_a_client_counts_no_calls_of_its_own(self) -> None:
        """How many it has under way is for it to say, not for the server that answers them."""
        end = session(Role.CLIENT, send_buffer_messages=2)
        send(end, *range(200))
        assert end.receive(from_server("an answer", seq=0, ack=1), 0.0) is not None
        for seq in range(1, 65):
            end.receive(server_ack(seq=seq, ack=1), 0.0)
        end.receive(from_server("below the bound", seq=65, ack=1), 0.0)
        end.receive(server_ack(seq=66, ack=1), 0.0)
        with pytest.raises(SessionFailure, match="does not acknowledge 64 messages"):
            end.receive(from_server("beyond it", seq=67, ack=1), 0.0)

    def test_what_it_acknowledges_at_last_does_not_count(self) -> None:
        end = session(send_buffer_messages=2)
        send(end, *range(100))
        assert end.receive(frame("just in time", seq=0, ack=50), 0.0) is not None


class TestConnections:
    def test_without_a_connection_messages_wait(self) -> None:
        end = session(attached=False)
        send(end, 1)
        assert (end.has_output(), end.buffered_messages) == (False, 1)

    def test_a_connection_begins_with_the_whole_buffer_in_the_same_bytes(self) -> None:
        end = session()
        send(end, 1, 2)
        first = end.data_to_send()
        end.detach(0.0)
        send(end, 3)
        end.attach(0.0)
        again = end.data_to_send()
        assert again[:2] == first
        assert [fields(data)["payload"] for data in again] == [1, 2, 3]

    def test_what_the_handshake_acknowledges_is_not_repeated(self) -> None:
        end = session()
        send(end, 1, 2, 3)
        end.detach(0.0)
        end.attach(0.0, 2)
        assert payloads(end) == [3]

    def test_a_lost_connection_sends_nothing_more(self) -> None:
        end = session()
        send(end, 1)
        end.detach(0.0)
        assert end.has_output() is False

    def test_connections_are_counted(self) -> None:
        end = session()
        end.detach(0.0)
        end.attach(0.0)
        assert end.attachments == 2

    @pytest.mark.parametrize(
        ("role", "room"), [(Role.SERVER, SERVER_BUFFER), (Role.CLIENT, CLIENT_BUFFER)]
    )
    def test_a_client_sends_for_a_second_without_acknowledgements(
        self, role: Role, room: int
    ) -> None:
        """Shipped servers acknowledge an upload with their heartbeats only."""
        end = session(role)
        while not end.full:
            send(end, 0)
        assert end.buffered_messages == room
        assert end.buffered_bytes < SERVER_BYTES < CLIENT_BYTES

    @pytest.mark.parametrize(
        ("role", "room"), [(Role.SERVER, SERVER_BYTES), (Role.CLIENT, CLIENT_BYTES)]
    )
    def test_large_messages_are_counted_in_bytes(self, role: Role, room: int) -> None:
        end = session(role)
        while not end.full:
            send(end, "x" * 2**20)
        assert room <= end.buffered_bytes < room + 2**21

    def test_counters_and_buffer_survive_connections(self) -> None:
        end = session()
        end.receive(frame(1), 0.0)
        send(end, 1, 2)
        before = end.expected_state()
        end.detach(0.0)
        end.attach(0.0)
        assert end.expected_state() == before == ExpectedState(1, 0)

    def test_without_a_buffer_the_next_message_is_named(self) -> None:
        end = session()
        send(end, 1, 2)
        end.receive(frame(1, ack=2), 0.0)
        assert end.expected_state() == ExpectedState(1, 2)

    def test_a_destroyed_session_is_empty(self) -> None:
        end = session()
        send(end, 1)
        end.destroy()
        assert (end.has_output(), end.buffered_messages, end.buffered_bytes) == (False, 0, 0)
        assert (end.next_timer(), end.handle_timer(1e9)) == (None, None)

    def test_a_destroyed_session_sends_nothing(self) -> None:
        end = session()
        end.destroy()
        with pytest.raises(LocalProtocolError, match="over"):
            send(end, 1)

    @pytest.mark.parametrize("state", [SessionState.DETACHED, SessionState.DESTROYED])
    def test_a_session_without_a_connection_receives_nothing(self, state: SessionState) -> None:
        end = session(attached=False)
        end.state = state
        with pytest.raises(LocalProtocolError, match="receives nothing"):
            end.receive(frame(), 0.0)

    @pytest.mark.parametrize(("state", "happened"), list(product(SessionState, SessionInput)))
    def test_every_move_is_listed_or_illegal(
        self, state: SessionState, happened: SessionInput
    ) -> None:
        end = session(attached=False)
        end.state = state
        calls = {
            SessionInput.ATTACH: lambda: end.attach(0.0),
            SessionInput.DETACH: lambda: end.detach(0.0),
            SessionInput.DESTROY: end.destroy,
        }
        if (state, happened) in TABLE:
            calls[happened]()
            assert end.state is TABLE[state, happened]
        else:
            with pytest.raises(LocalProtocolError):
                calls[happened]()
            assert end.state is state


class TestResuming:
    def resumable(self) -> Session:
        """Return an end that accepted 3 messages, sent 4, and has 2 of them unacknowledged."""
        end = session()
        send(end, 1, 2, 3, 4)
        for seq in range(3):
            end.receive(frame(seq=seq, ack=2), 0.0)
        return end

    @pytest.mark.parametrize("expected", [(2, 3), (4, 3), (2, 0)])
    def test_counters_that_overlap_agree(self, expected: tuple[int, int]) -> None:
        assert self.resumable().mismatch(ExpectedState(*expected)) is None

    @pytest.mark.parametrize(
        ("expected", "reason"),
        [
            ((2, 4), "client is in the future: server wanted next message to be 3"),
            ((1, 3), "server is in the future: client wanted next message to be 1"),
            ((5, 3), "server has sent 4 messages but client has 5"),
        ],
    )
    def test_counters_that_exclude_each_other_are_named(
        self, expected: tuple[int, int], reason: str
    ) -> None:
        assert reason in (self.resumable().mismatch(ExpectedState(*expected)) or "")


class TestHeartbeats:
    def test_a_server_sends_an_ack_every_interval(self) -> None:
        end = session(Role.SERVER, heartbeats_until_dead=100)
        beats = []
        for _ in range(3):
            now = end.next_timer() or 0.0
            end.handle_timer(now)
            beats.append((now, len(end.data_to_send())))
        assert beats == [(1.0, 1), (2.0, 1), (3.0, 1)]

    def test_a_heartbeat_is_an_ack_on_its_own_stream(self) -> None:
        end = session(Role.SERVER)
        end.receive(frame(), 0.0)
        end.handle_timer(1.0)
        (beat,) = sent(end)
        assert (beat["streamId"], beat["controlFlags"], beat["ack"]) == ("heartbeat", 1, 1)
        assert beat["payload"] == {"type": "ACK"}

    def test_a_heartbeat_is_counted_and_buffered(self) -> None:
        end = session(Role.SERVER)
        end.handle_timer(1.0)
        assert (end.buffered_messages, end.expected_state().next_sent) == (1, 0)

    def test_a_server_without_a_connection_sends_none(self) -> None:
        end = session(Role.SERVER)
        end.detach(0.0)
        end.handle_timer(1.0)
        assert end.buffered_messages == 0

    def test_a_client_sends_none_by_itself(self) -> None:
        end = session(Role.CLIENT)
        end.handle_timer(1.0)
        assert end.has_output() is False

    def test_a_client_returns_one_for_each(self) -> None:
        end = session(Role.CLIENT)
        for seq in range(3):
            assert end.receive(server_ack(seq=seq), 0.0) is None
        assert [(m["seq"], m["ack"], m["controlFlags"]) for m in sent(end)] == [
            (0, 1, 1),
            (1, 2, 1),
            (2, 3, 1),
        ]

    def test_a_server_returns_none(self) -> None:
        end = session(Role.SERVER)
        assert end.receive(ack_frame(), 0.0) is None
        assert end.has_output() is False

    def test_an_ack_with_other_flags_is_counted_and_not_handed_on(self) -> None:
        end = session(Role.SERVER)
        assert end.receive(frame(1, controlFlags=9), 0.0) is None
        assert end.expected_state().next_expected == 1

    @pytest.mark.parametrize("role", Role)
    def test_both_ends_give_a_silent_connection_up(self, role: Role) -> None:
        end = session(role)
        assert end.handle_timer(1.9) is None
        assert end.handle_timer(2.0) is Lapse.SILENCE

    def test_silence_is_the_only_timer_of_a_client(self) -> None:
        assert session(Role.CLIENT).next_timer() == 2.0

    def test_a_server_wakes_for_silence_too(self) -> None:
        assert session(heartbeat_interval=1.0, heartbeats_until_dead=1).next_timer() == 1.0

    def test_a_message_keeps_the_connection(self) -> None:
        end = session(Role.CLIENT)
        end.receive(from_server(), 1.5)
        assert (end.handle_timer(2.0), end.next_timer()) == (None, 3.5)

    def test_a_duplicate_does_not(self) -> None:
        end = session(Role.CLIENT)
        end.receive(from_server(), 0.0)
        end.receive(from_server(), 1.5)
        assert end.handle_timer(2.0) is Lapse.SILENCE

    def test_a_new_connection_starts_the_silence_anew(self) -> None:
        end = session(Role.CLIENT)
        end.detach(1.0)
        end.attach(4.0)
        assert end.next_timer() == 6.0


class TestGrace:
    def test_it_runs_from_the_beginning(self) -> None:
        end = session(attached=False)
        assert (end.next_timer(), end.handle_timer(4.9)) == (5.0, None)
        assert end.handle_timer(5.0) is Lapse.GRACE

    def test_a_connection_ends_it(self) -> None:
        end = session(attached=False)
        end.attach(4.9)
        assert end.handle_timer(5.0) is None

    def test_it_runs_from_the_loss_of_a_connection(self) -> None:
        end = session()
        end.detach(3.0)
        assert (end.next_timer(), end.handle_timer(7.9)) == (8.0, None)
        assert end.handle_timer(8.0) is Lapse.GRACE


class TestEarlyAcks:
    @pytest.mark.parametrize("role", Role)
    def test_many_messages_are_acknowledged_at_once(self, role: Role) -> None:
        end = session(role, ack_messages=3)
        make = frame if role is Role.SERVER else from_server
        for seq in range(2):
            end.receive(make(seq=seq), 0.0)
        assert end.has_output() is False
        end.receive(make(seq=2), 0.0)
        assert [(m["controlFlags"], m["ack"]) for m in sent(end)] == [(1, 3)]

    def test_many_bytes_are_acknowledged_at_once(self) -> None:
        end = session(ack_bytes=1000)
        end.receive(frame("x" * 1000), 0.0)
        assert [m["ack"] for m in sent(end)] == [1]

    def test_the_message_that_fills_the_measure_is_handed_on(self) -> None:
        assert session(ack_messages=1).receive(frame("kept"), 0.0) is not None

    def test_anything_sent_starts_the_count_anew(self) -> None:
        end = session(ack_messages=2)
        end.receive(frame(seq=0), 0.0)
        send(end, "answer")
        end.receive(frame(seq=1), 0.0)
        assert payloads(end) == ["answer"]

    def test_acks_do_not_count(self) -> None:
        end = session(Role.SERVER, ack_messages=1)
        for seq in range(10):
            end.receive(ack_frame(seq=seq), 0.0)
        assert end.has_output() is False

    @pytest.mark.parametrize("sender", Role)
    def test_one_message_between_two_eager_ends_never_loops(self, sender: Role) -> None:
        ends = {role: session(role, ack_messages=1, ack_bytes=1) for role in Role}
        send(ends[sender], "hello")
        carried = 0
        while any(end.has_output() for end in ends.values()):
            for role, other in ((Role.CLIENT, Role.SERVER), (Role.SERVER, Role.CLIENT)):
                for data in ends[role].data_to_send():
                    ends[other].receive(data, 0.0)
                    carried += 1
            assert carried < 10
        assert carried == (3 if sender is Role.CLIENT else 2)

    def test_a_one_way_upload_is_acknowledged_without_waiting_for_heartbeats(self) -> None:
        client, server = session(Role.CLIENT), session(Role.SERVER)
        most = 0
        for number in range(1000):
            send(client, number)
            for data in client.data_to_send():
                server.receive(data, 0.0)
            for data in server.data_to_send():
                client.receive(data, 0.0)
            most = max(most, client.buffered_messages)
        assert most <= OPTIONS.ack_messages + 1


class TestAsking:
    """A shipped client that only reads says what it has got when it gets an ACK, else never."""

    @pytest.mark.parametrize("bound", [{"send_buffer_messages": 8}, {"send_buffer_bytes": 1600}])
    def test_a_server_asks_once_when_half_of_its_buffer_is_full(
        self, bound: dict[str, int]
    ) -> None:
        end = session(Role.SERVER, **bound)
        send(end, *("x" * 100 for _ in range(7)))
        acks = [m["seq"] for m in sent(end) if m["controlFlags"] == 1]
        assert acks == [4]

    def test_it_asks_again_when_that_was_answered(self) -> None:
        end = session(Role.SERVER, send_buffer_messages=8)
        send(end, *range(7))
        end.receive(ack_frame(ack=4), 0.0)  # of what came before the question
        send(end, 7)
        assert [m["seq"] for m in sent(end) if m["controlFlags"] == 1] == [4]
        end.receive(ack_frame(seq=1, ack=5), 0.0)
        send(end, 8)
        assert [m["seq"] for m in sent(end) if m["controlFlags"] == 1] == [9]

    def test_it_asks_again_without_sending_more_while_half_of_it_is_full(self) -> None:
        """Answers of calls that run take it beyond its bound, and no further call starts."""
        end = session(Role.SERVER, send_buffer_messages=8)
        send(end, *range(20))
        asked = [m["seq"] for m in sent(end) if m["controlFlags"] == 1]
        for number in range(2):
            end.receive(ack_frame(seq=number, ack=asked[-1] + 1), 0.0)
            asked += [m["seq"] for m in sent(end)]
        assert (asked, end.buffered_messages) == ([4, 21], 0)

    def test_what_was_buffered_without_a_connection_is_asked_for_with_the_next(self) -> None:
        end = session(Role.SERVER, attached=False, send_buffer_messages=8)
        send(end, *range(8))
        assert end.full
        end.attach(0.0)
        assert [m["controlFlags"] for m in sent(end)] == [0] * 8 + [1]

    def test_a_heartbeat_asks_too(self) -> None:
        end = session(Role.SERVER, send_buffer_messages=8)
        end.handle_timer(1.0)
        send(end, *range(7))
        assert [m["controlFlags"] for m in sent(end)] == [1] + [0] * 7

    def test_a_client_does_not_ask(self) -> None:
        end = session(Role.CLIENT, send_buffer_messages=8)
        send(end, *range(20))
        assert [m["controlFlags"] for m in sent(end)] == [0] * 20

    def test_a_question_that_cannot_be_encoded_is_left_to_the_heartbeat(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(payload: object) -> bytes:
            raise EncodeError("out of memory")

        end = session(Role.SERVER, send_buffer_messages=2)
        monkeypatch.setattr(end._codec, "pack", refuse)
        send(end, "kept")
        assert payloads(end) == ["kept"]
        with pytest.raises(SessionFailure):
            end.handle_timer(1.0)

    def test_a_subscription_goes_on_without_waiting_for_heartbeats(self) -> None:
        """The client says nothing but the answers to ACKs, as shipped ones do."""
        client = session(Role.CLIENT, ack_messages=10**9, ack_bytes=10**9)
        server = session(Role.SERVER)
        for number in range(10_000):
            assert not server.full
            send(server, number)
            for data in server.data_to_send():
                client.receive(data, 0.0)
            for data in client.data_to_send():
                server.receive(data, 0.0)


class TestChallenge:
    def test_the_first_asks_with_an_ack(self) -> None:
        end = session()
        assert end.challenge(0.0) is True
        assert [m["controlFlags"] for m in sent(end)] == [1]

    def test_a_further_one_does_not_ask_again(self) -> None:
        end = session()
        end.challenge(0.0)
        end.data_to_send()
        assert (end.challenge(0.5), end.has_output()) == (True, False)

    def test_silence_for_a_second_fails_it(self) -> None:
        end = session()
        end.challenge(0.0)
        assert end.challenge(1.0) is False

    def test_any_message_passes_it(self) -> None:
        end = session()
        end.challenge(0.0)
        end.receive(ack_frame(), 0.9)
        assert end.challenge(1.5) is True

    def test_a_new_connection_forgets_it(self) -> None:
        end = session()
        end.challenge(0.0)
        end.detach(0.0)
        end.attach(5.0)
        assert end.challenge(5.0) is True
