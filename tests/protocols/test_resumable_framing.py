"""A session's messages come out once and in order, whatever carriers they are on.

Frames to be received are put together by hand, and what is sent is read by an ordinary framing.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.exceptions import FrameError
from wsmux.protocols.base import Buffer, Role
from wsmux.protocols.framing import Opcode, encode_close
from wsmux.protocols.resumable_framing import ACKNOWLEDGEMENT, COPIED, ResumableFraming
from wsmux.protocols.resumption import ACKNOWLEDGE_BESIDE, Hello, Session
from wsmux.protocols.websocket import WebSocketFraming

from ..helpers.machine_pairs import BOTH_ROLES, feed, other
from ..helpers.tables import each_case
from ..helpers.websocket_wire import CONTINUATION, frame

LIMIT = 2**20
BINARY, CLOSE, PING, PONG, TEXT = (
    Opcode.BINARY,
    Opcode.CLOSE,
    Opcode.PING,
    Opcode.PONG,
    Opcode.TEXT,
)
NORMAL = encode_close(1000, "")


def framing(role: Role, max_message_size: int = LIMIT, max_fragments: int = 8) -> ResumableFraming:
    return ResumableFraming(role, max_message_size, max_fragments, Session(bytes(16), LIMIT, 60.0))


def ack(position: int) -> bytes:
    return b"\x05" + position.to_bytes(8, "big")


def end(code: int, reason: str = "") -> bytes:
    return b"\x06" + code.to_bytes(2, "big") + reason.encode()


def seen(role: Role, pieces: list[Buffer]) -> list[tuple[Opcode, bytes]]:
    """Return what an ordinary framing at the other end reads."""
    reader = WebSocketFraming(other(role), 2 * LIMIT)
    wire = b"".join(bytes(piece) for piece in pieces)
    frames = feed(reader, wire)
    assert reader.failure is None
    assert reader.between_messages()
    return frames


# Sending


@each_case
@BOTH_ROLES
@pytest.mark.parametrize("size", [1, 124, 125, 126, 65535, 65536, 100_000])
def test_a_message_is_sent_behind_its_type_and_kept(role: Role, size: int) -> None:
    sender = framing(role)
    body = b"b" * (size - 1)
    assert seen(role, sender.encode((b"h", body))) == [(BINARY, b"\x00h" + body)]
    assert sender.session.sent == size
    assert sender.session.resume(0) == [(size, (b"\x00h", body))]


@BOTH_ROLES
def test_an_acknowledgement_is_of_what_was_received_when_it_is_sent_and_not_kept(
    role: Role,
) -> None:
    sender = framing(role)
    sender.session.received = 7
    assert seen(role, sender.encode(ACKNOWLEDGEMENT)) == [(BINARY, ack(7))]
    assert (sender.session.sent, sender.session.told) == (0, 7)


@BOTH_ROLES
def test_much_that_was_received_is_acknowledged_in_front_of_a_message(role: Role) -> None:
    sender = framing(role)
    sender.session.received = ACKNOWLEDGE_BESIDE - 1
    assert seen(role, sender.encode((b"a", b""))) == [(BINARY, b"\x00a")]
    sender.session.received += 1
    assert seen(role, sender.encode((b"b", b""))) == [
        (BINARY, ack(ACKNOWLEDGE_BESIDE)),
        (BINARY, b"\x00b"),
    ]
    assert seen(role, sender.encode((b"c", b""))) == [(BINARY, b"\x00c")]
    assert sender.session.sent == 3


@BOTH_ROLES
@pytest.mark.parametrize("kind", [PING, PONG])
def test_pings_and_pongs_are_of_the_carrier_alone(role: Role, kind: Opcode) -> None:
    sender = framing(role)
    assert seen(role, [sender.encode_control(kind, b"x")]) == [(kind, b"x")]
    assert seen(role, sender.encode((b"y", b""), kind)) == [(kind, b"y")]
    assert seen(role, sender.encode((b"hi", b""), TEXT)) == [(TEXT, b"hi")]
    assert sender.session.sent == 0


@BOTH_ROLES
@pytest.mark.parametrize(
    ("code", "reason", "close"),
    [
        (1000, "", encode_close(1000, "")),
        (4999, "x" * 123, encode_close(4999, "x" * 123)),
        (1005, "", b""),
    ],
)
def test_a_close_frame_comes_behind_end_which_is_kept(
    role: Role, code: int, reason: str, close: bytes
) -> None:
    sender = framing(role)
    wire = sender.encode_control(CLOSE, encode_close(code, reason))
    assert seen(role, [wire]) == [(BINARY, end(code, reason)), (CLOSE, close)]
    assert sender.closing
    assert sender.session.sent == 2 + len(reason)
    assert sender.session.resume(0) == [(2 + len(reason), (end(code, reason), b""))]


@BOTH_ROLES
def test_a_greeting_has_no_position(role: Role) -> None:
    sender = framing(role)
    greeting = Hello(bytes(16)).encode(None)
    assert seen(role, sender.encode_greeting(greeting)) == [(BINARY, greeting)]
    assert sender.session.sent == 0


# Sending again


@BOTH_ROLES
@pytest.mark.parametrize("received", range(4))
def test_what_the_peer_lacks_is_sent_again_as_it_was(role: Role, received: int) -> None:
    sender = framing(role)
    for body in (b"a", b"b", b"c"):
        sender.encode((body, b""))
    again = sender.resend(sender.session.resume(received))
    whole = [(BINARY, b"\x00" + body) for body in (b"a", b"b", b"c")]
    assert seen(role, again) == whole[received:]
    assert sender.session.sent == 3  # not counted twice


@BOTH_ROLES
def test_a_message_sent_again_is_masked_anew(role: Role) -> None:
    sender = framing(role)
    first = b"".join(sender.encode((b"a" * 50, b"b" * 5000)))
    again = b"".join(sender.resend(sender.session.resume(0)))
    assert seen(role, [first]) == seen(role, [again])
    assert (first == again) is (role is Role.SERVER)


@BOTH_ROLES
@pytest.mark.parametrize(
    ("code", "close"), [(1000, b"\x03\xe8"), (4000, b"\x0f\xa0"), (1005, b"")], ids=str
)
def test_end_is_sent_again_behind_all_data_and_in_front_of_a_close_frame(
    role: Role, code: int, close: bytes
) -> None:
    sender = framing(role)
    sender.encode((b"a", b""))
    sender.encode_control(CLOSE, encode_close(code, "bye" if code != 1005 else ""))
    last = end(code, "bye" if code != 1005 else "")
    again = [(BINARY, b"\x00a"), (BINARY, last), (CLOSE, close)]
    assert seen(role, sender.resend(sender.session.resume(0))) == again
    assert seen(role, sender.resend(sender.session.resume(1))) == again[1:]


@BOTH_ROLES
def test_an_end_that_was_acknowledged_is_not_sent_again_only_the_close_frame(role: Role) -> None:
    sender = framing(role)
    sender.encode_control(CLOSE, encode_close(1000, "bye"))
    assert seen(role, sender.resend(sender.session.resume(5))) == [(CLOSE, b"")]


# Receiving


@BOTH_ROLES
@pytest.mark.parametrize("chunk", [None, 1, 2, 7])
def test_messages_come_out_without_their_type_and_the_rest_does_not(
    role: Role, chunk: int | None
) -> None:
    receiver = framing(role)
    receiver.session.sent = 4
    wire = frame(role, BINARY, b"\x00one") + frame(role, BINARY, ack(4))
    wire += frame(role, PING, b"p") + frame(role, BINARY, b"\x00" + b"x" * 200)
    wire += frame(role, BINARY, end(4000, "bye")) + frame(role, CLOSE, NORMAL)
    assert feed(receiver, wire, chunk) == [
        (BINARY, b"one"),
        (PING, b"p"),
        (BINARY, b"x" * 200),
        (CLOSE, NORMAL),
    ]
    assert receiver.failure is None
    assert receiver.session.acknowledged == 4
    assert receiver.session.peer_end == (4000, "bye")
    assert receiver.session.received == 3 + 200 + 5


@BOTH_ROLES
def test_a_message_in_fragments_is_one_message(role: Role) -> None:
    receiver = framing(role)
    wire = frame(role, BINARY, b"", fin=False)
    wire += frame(role, CONTINUATION, b"\x00o", fin=False) + frame(role, PING)
    wire += frame(role, CONTINUATION, b"ne")
    wire += frame(role, BINARY, b"\x06", fin=False) + frame(role, CONTINUATION, b"\x0f\xa0")
    for chunk in (None, 1):
        receiver = framing(role)
        assert feed(receiver, wire, chunk) == [(PING, b""), (BINARY, b"one")]
        assert receiver.session.received == 5
        assert receiver.session.peer_end == (4000, "")


@BOTH_ROLES
def test_the_owner_must_look_once_enough_came_and_at_anything_but_data(role: Role) -> None:
    receiver = framing(role)
    receiver.session.look_at = 10
    feed(receiver, frame(role, BINARY, b"\x00" + bytes(9)))
    assert not receiver.due
    feed(receiver, frame(role, BINARY, b"\x00x"))
    assert receiver.due
    receiver.session.look_at = 10_000
    for wire in (
        frame(role, BINARY, ack(0)),
        frame(role, BINARY, b"\x00x") + frame(role, BINARY, ack(0)),
        frame(role, PING),
        frame(role, BINARY, end(1000)),
    ):
        receiver.due = False
        feed(receiver, wire)
        assert receiver.due
    assert receiver.failure is None


@BOTH_ROLES
def test_the_owner_need_not_look_at_data_however_it_comes(role: Role) -> None:
    receiver = framing(role)
    receiver.session.look_at = 2 * COPIED + 3
    long = frame(role, BINARY, b"\x00" + bytes(COPIED))
    feed(receiver, frame(role, BINARY, b"\x00x") * 2)
    feed(receiver, long)
    assert not receiver.due
    feed(receiver, long + frame(role, BINARY, b"\x00x"))
    assert receiver.due


@BOTH_ROLES
@pytest.mark.parametrize("size", [2, COPIED - 1, COPIED, COPIED + 1])
def test_a_message_on_its_own_is_received_whatever_its_size(role: Role, size: int) -> None:
    receiver = framing(role)
    payload = b"\x00" + bytes(each % 251 for each in range(size - 1))
    assert feed(receiver, frame(role, BINARY, payload)) == [(BINARY, payload[1:])]
    assert receiver.session.received == size - 1


@BOTH_ROLES
def test_a_message_on_its_own_behind_end_is_refused(role: Role) -> None:
    receiver = framing(role)
    feed(receiver, frame(role, BINARY, end(1000)))
    assert feed(receiver, frame(role, BINARY, b"\x00x")) == []
    assert str(receiver.failure) == "message of type 0 after END"
    assert receiver.session.received == 2


@BOTH_ROLES
def test_text_is_passed_on_for_the_owner_to_refuse_and_has_no_position(role: Role) -> None:
    receiver = framing(role)
    assert feed(receiver, frame(role, TEXT, b"\x00hi")) == [(TEXT, b"\x00hi")]
    assert receiver.session.received == 0


class Bad(NamedTuple):
    """A message that breaks a rule, and what is said of it."""

    wire: bytes
    said: str
    code: int = 1002


@each_case
@BOTH_ROLES
@pytest.mark.parametrize(
    "bad",
    [
        Bad(b"", "empty message on a resumable connection"),
        Bad(b"\x00", "DATA without a message"),
        Bad(ack(1), "the peer says that it has received up to 1; 0 were acknowledged before, and"),
        Bad(ack(0)[:8], "ACK of 8 bytes instead of 9"),
        Bad(b"\x06\x03", "END without a whole close code"),
        Bad(b"\x06\x03\xe8\xff", "END with a reason that is not UTF-8", 1007),
        Bad(Hello(bytes(16)).encode(None), "message of type 1 on a resumable connection"),
        Bad(b"\x07", "message of type 7 on a resumable connection"),
        Bad(b"\x00" + bytes(LIMIT + 1), "message of at least 1048578 bytes is above", 1009),
    ],
    ids=lambda bad: bad.said[:30],
)
def test_what_was_good_comes_out_before_a_message_that_is_refused(role: Role, bad: Bad) -> None:
    receiver = framing(role)
    wire = frame(role, BINARY, b"\x00good") + frame(role, BINARY, bad.wire)
    assert feed(receiver, wire + frame(role, BINARY, b"\x00late")) == [(BINARY, b"good")]
    assert type(receiver.failure) is FrameError
    assert str(receiver.failure).startswith(bad.said)
    assert receiver.failure.code == bad.code
    assert receiver.failure.__traceback__ is None
    assert receiver.session.received == 4
    assert receiver.held() == 0
    assert feed(receiver, frame(role, BINARY, b"\x00later")) == []


@BOTH_ROLES
def test_the_first_rule_that_was_broken_is_the_one_that_is_told(role: Role) -> None:
    receiver = framing(role)
    wire = frame(role, BINARY, b"\x07") + frame(role, BINARY, b"x", reserved=0x40)
    assert feed(receiver, wire) == []
    assert str(receiver.failure) == "message of type 7 on a resumable connection"


@BOTH_ROLES
def test_an_end_that_is_sent_twice_is_refused(role: Role) -> None:
    receiver = framing(role)
    wire = frame(role, BINARY, end(1000))
    feed(receiver, wire)
    receiver.restart()
    assert feed(receiver, wire) == []
    assert str(receiver.failure) == "message of type 6 after END"


@BOTH_ROLES
def test_a_message_may_be_as_long_as_the_limit_and_its_type(role: Role) -> None:
    receiver = framing(role, max_message_size=500)
    assert feed(receiver, frame(role, BINARY, bytes(501))) == [(BINARY, bytes(500))]
    feed(receiver, frame(role, BINARY, bytes(502)))
    assert receiver.failure is not None
    assert receiver.failure.code == 1009


@BOTH_ROLES
def test_an_end_with_the_longest_reason_passes_any_limit(role: Role) -> None:
    sender, receiver = framing(other(role)), framing(role, max_message_size=17)
    wire = sender.encode_control(CLOSE, encode_close(4000, "x" * 123))
    assert [kind for kind, _ in feed(receiver, wire)] == [CLOSE]
    assert receiver.failure is None
    assert receiver.session.peer_end == (4000, "x" * 123)


@BOTH_ROLES
def test_too_many_fragments_are_refused(role: Role) -> None:
    receiver = framing(role, max_fragments=3)
    wire = frame(role, BINARY, b"\x00", fin=False)
    feed(receiver, wire + frame(role, CONTINUATION, b"x", fin=False) * 3)
    assert receiver.failure is not None
    assert receiver.failure.code == 1008


# Another carrier


def conversation(role: Role) -> tuple[bytes, list[int]]:
    """Return a carrier's bytes, with the place behind each whole message."""
    frames = [
        frame(role, BINARY, b"\x00one"),
        frame(role, PING, b"ping"),
        frame(role, BINARY, b"\x00" + b"2" * 130),
        frame(role, BINARY, b"\x00thr", fin=False),
        frame(role, PONG, b"pong"),
        frame(role, CONTINUATION, b"ee"),
        frame(role, BINARY, end(4000, "bye")),
    ]
    wire, places = b"", []
    for each in frames:
        wire += each
        places.append(len(wire))
    return wire, [places[0], places[2], places[5], places[6]]


MESSAGES = [b"\x00one", b"\x00" + b"2" * 130, b"\x00three", end(4000, "bye")]


@BOTH_ROLES
@pytest.mark.parametrize("chunk", [None, 1])
def test_after_a_cut_at_any_byte_the_rest_is_received_once(role: Role, chunk: int | None) -> None:
    wire, places = conversation(role)
    for cut in range(len(wire) + 1):
        receiver = framing(role)
        got = feed(receiver, wire[:cut], chunk)
        whole = sum(place <= cut for place in places)
        assert receiver.session.received == sum(len(each) - 1 for each in MESSAGES[:whole])
        receiver.restart()
        assert receiver.between_messages()
        assert (receiver.held(), receiver.allocated()) == (0, 0)
        got += feed(receiver, b"".join(frame(role, BINARY, each) for each in MESSAGES[whole:]))
        assert receiver.failure is None
        data = [payload for kind, payload in got if kind is BINARY]
        assert data == [each[1:] for each in MESSAGES[:3]]
        assert receiver.session.peer_end == (4000, "bye")


@BOTH_ROLES
def test_another_carrier_begins_with_a_small_buffer_and_no_failure(role: Role) -> None:
    receiver = framing(role)
    size = len(receiver.get_buffer())
    feed(receiver, frame(role, BINARY, bytes(300_000))[:200_000])
    assert len(receiver.get_buffer()) > 0
    receiver.restart()
    assert len(receiver.get_buffer()) == size
    feed(receiver, frame(role, BINARY, b"x", reserved=0x40))
    assert receiver.failure is not None
    receiver.restart()
    assert receiver.failure is None
    assert feed(receiver, frame(role, BINARY, b"\x00ok")) == [(BINARY, b"ok")]


@BOTH_ROLES
def test_another_carrier_is_told_of_no_control_frames_of_the_one_before(role: Role) -> None:
    receiver = framing(role)
    feed(receiver, frame(role, PING))
    assert receiver.controls
    receiver.restart()
    assert not receiver.controls
    assert not receiver.filled
    assert receiver.incomplete(100) is None


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=10),
    cuts=st.lists(st.integers(0, 1500), max_size=5),
    chunk=st.integers(1, 64),
    role=st.sampled_from(Role),
)
def test_whatever_is_cut_is_received_once_and_in_order(
    bodies: list[bytes], cuts: list[int], chunk: int, role: Role
) -> None:
    sender, receiver = framing(role), framing(other(role))
    wire = b"".join(b"".join(sender.encode((body, b""))) for body in bodies)
    wire += sender.encode_control(CLOSE, NORMAL)
    got = []
    for cut in cuts:
        got += feed(receiver, wire[:cut], chunk)
        receiver.restart()
        if receiver.session.peer_end is None:
            kept = sender.session.resume(receiver.session.welcome().received)
            wire = b"".join(bytes(piece) for piece in sender.resend(kept))
        else:
            wire = b""
    got += feed(receiver, wire, chunk)
    assert receiver.failure is None
    assert [payload for kind, payload in got if kind is BINARY] == bodies
    assert receiver.session.peer_end == (1000, "")


# Recorders


@BOTH_ROLES
def test_a_recorder_is_told_of_what_carries_no_message_and_of_its_place(role: Role) -> None:
    sender, reader = framing(role), framing(other(role))
    told: list[bytes] = []
    sender.tap, reader.untold = told.append, []
    sender.session.receive(b"\0some")
    reader.session.sent = 4
    wire = [
        *sender.encode((b"one", b"")),
        *sender.encode(ACKNOWLEDGEMENT),
        *sender.encode((b"two", b"")),
        sender.encode_control(CLOSE, NORMAL),
    ]
    received = feed(reader, b"".join(bytes(piece) for piece in wire))
    assert [bytes(message) for kind, message in received if kind is BINARY] == [b"one", b"two"]
    assert told == [ack(4), end(1000)]
    assert reader.untold == [(1, ack(4)), (2, end(1000))]


def test_a_message_that_is_refused_is_told_too() -> None:
    reader = framing(Role.SERVER)
    reader.untold = []
    feed(reader, frame(Role.SERVER, BINARY, b"\x07" + bytes(1000)))
    assert reader.failure is not None
    assert reader.untold == [(0, b"\x07" + bytes(255))]
