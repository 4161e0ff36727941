"""The framing obeys RFC 6455, and refuses what the RFC says must not be sent.

Frames to be received are put together here, byte by byte, and what is sent is read by the
``websockets`` package: our encoder is never judged by our decoder alone.
"""

from __future__ import annotations

import os
import struct
import sys
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsmux.exceptions import FrameError
from wsmux.protocols import websocket as framing_module
from wsmux.protocols.base import Role
from wsmux.protocols.framing import Opcode, decode_close
from wsmux.protocols.websocket import WebSocketFraming

from ..helpers.examples import examples
from ..helpers.machine_pairs import BOTH_ROLES, feed, other
from ..helpers.tables import each_case
from ..helpers.websocket_wire import CONTINUATION, KEY, frame, head

LIMIT = 2**20
DATA_OPCODES = pytest.mark.parametrize("opcode", [Opcode.TEXT, Opcode.BINARY])
CONTROL_OPCODES = pytest.mark.parametrize("opcode", [Opcode.CLOSE, Opcode.PING, Opcode.PONG])
CHUNKS = pytest.mark.parametrize("chunk", [None, 1, 2, 3, 7])


def of(wire: str) -> bytes:
    return bytes.fromhex(wire)


def framing(
    role: Role, max_message_size: int = LIMIT, max_fragments: int = 1024
) -> WebSocketFraming:
    return WebSocketFraming(role, max_message_size, max_fragments)


def assert_refused(role: Role, wire: bytes, sentence: str, code: int = 1002) -> None:
    """Check that ``wire`` yields nothing but a failure, behind a good message that is kept."""
    receiver = framing(role)
    wire = frame(role, Opcode.BINARY, b"good") + wire
    assert feed(receiver, wire) == [(Opcode.BINARY, b"good")]
    assert type(receiver.failure) is FrameError
    assert str(receiver.failure) == sentence
    assert receiver.failure.code == code
    assert feed(framing(role), wire, 1) == [(Opcode.BINARY, b"good")]


# Receiving what is right


@each_case
@CHUNKS
@pytest.mark.parametrize(
    ("role", "wire", "expected"),
    [
        pytest.param(Role.CLIENT, "810548656c6c6f", [(Opcode.TEXT, b"Hello")], id="text"),
        pytest.param(
            Role.SERVER, "818537fa213d7f9f4d5158", [(Opcode.TEXT, b"Hello")], id="masked-text"
        ),
        pytest.param(
            Role.CLIENT, "010348656c 80026c6f", [(Opcode.TEXT, b"Hello")], id="fragmented-text"
        ),
        pytest.param(Role.CLIENT, "890548656c6c6f", [(Opcode.PING, b"Hello")], id="ping"),
        pytest.param(
            Role.SERVER, "8a8537fa213d7f9f4d5158", [(Opcode.PONG, b"Hello")], id="masked-pong"
        ),
        pytest.param(
            Role.CLIENT, "827e0100" + "61" * 256, [(Opcode.BINARY, b"a" * 256)], id="256-bytes"
        ),
        pytest.param(
            Role.CLIENT,
            "827f0000000000010000" + "61" * 65536,
            [(Opcode.BINARY, b"a" * 65536)],
            id="64-kib",
        ),
    ],
)
def test_example_of_the_rfc_is_understood(
    role: Role, wire: str, expected: list[tuple[Opcode, bytes]], chunk: int | None
) -> None:
    assert feed(framing(role), of(wire), chunk) == expected


@each_case
@BOTH_ROLES
@DATA_OPCODES
@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 100_000])
def test_message_of_any_size_is_received(role: Role, opcode: Opcode, size: int) -> None:
    payload = b"p" * size
    assert feed(framing(role), frame(role, opcode, payload)) == [(opcode, payload)]


@each_case
@BOTH_ROLES
@CONTROL_OPCODES
@pytest.mark.parametrize("size", [0, 1, 125])
def test_control_frame_of_up_to_125_bytes_is_received(
    role: Role, opcode: Opcode, size: int
) -> None:
    assert feed(framing(role), frame(role, opcode, b"p" * size)) == [(opcode, b"p" * size)]


@BOTH_ROLES
@DATA_OPCODES
def test_fragments_make_one_message(role: Role, opcode: Opcode) -> None:
    wire = frame(role, opcode, b"one", fin=False)
    wire += frame(role, CONTINUATION, b"", fin=False)
    wire += frame(role, CONTINUATION, b"two", fin=False)
    wire += frame(role, CONTINUATION, b"three")
    assert feed(framing(role), wire) == [(opcode, b"onetwothree")]


@BOTH_ROLES
@CONTROL_OPCODES
def test_control_frame_between_fragments_comes_first(role: Role, opcode: Opcode) -> None:
    wire = frame(role, Opcode.BINARY, b"one", fin=False)
    wire += frame(role, opcode, b"now")
    wire += frame(role, CONTINUATION, b"two")
    assert feed(framing(role), wire) == [(opcode, b"now"), (Opcode.BINARY, b"onetwo")]


@BOTH_ROLES
def test_message_after_a_fragmented_one_is_received(role: Role) -> None:
    wire = frame(role, Opcode.TEXT, b"a", fin=False) + frame(role, CONTINUATION, b"b")
    wire += frame(role, Opcode.BINARY, b"c", fin=False) + frame(role, CONTINUATION, b"d")
    wire += frame(role, Opcode.BINARY, b"e")
    assert feed(framing(role), wire) == [
        (Opcode.TEXT, b"ab"),
        (Opcode.BINARY, b"cd"),
        (Opcode.BINARY, b"e"),
    ]


@BOTH_ROLES
def test_character_may_be_split_between_fragments(role: Role) -> None:
    wire = frame(role, Opcode.TEXT, b"\xe2\x82", fin=False) + frame(role, CONTINUATION, b"\xac")
    assert feed(framing(role), wire) == [(Opcode.TEXT, "€".encode())]


def test_unmasked_payload_is_a_view_of_the_receive_buffer() -> None:
    receiver = framing(Role.CLIENT)
    wire = frame(Role.CLIENT, Opcode.BINARY, b"hello")
    receiver.get_buffer()[: len(wire)] = wire
    [(_, data)] = receiver.received(len(wire))
    assert isinstance(data, memoryview)


@CONTROL_OPCODES
def test_control_payload_outlives_the_receive_buffer(opcode: Opcode) -> None:
    receiver = framing(Role.CLIENT)
    wire = frame(Role.CLIENT, opcode, b"hello")
    receiver.get_buffer()[: len(wire)] = wire
    [(_, data)] = receiver.received(len(wire))
    receiver.get_buffer()[: len(wire)] = bytes(len(wire))
    assert data == b"hello"


@BOTH_ROLES
def test_stale_bytes_of_the_buffer_are_not_taken_for_a_key(role: Role) -> None:
    receiver = framing(role)
    feed(receiver, frame(role, Opcode.BINARY, b"\xff" * 100))
    assert feed(receiver, frame(role, Opcode.BINARY, b"plain"), 1) == [(Opcode.BINARY, b"plain")]


# Receiving what is wrong: the head


@each_case
@BOTH_ROLES
@pytest.mark.parametrize("bit", [0x40, 0x20, 0x10, 0x70])
@pytest.mark.parametrize("opcode", [Opcode.TEXT, Opcode.BINARY, Opcode.CLOSE, Opcode.PING])
def test_reserved_bit(role: Role, bit: int, opcode: Opcode) -> None:
    wire = frame(role, opcode, b"x", reserved=bit)
    assert_refused(role, wire, "frame with a reserved bit set")


@BOTH_ROLES
def test_reserved_bit_in_a_continuation(role: Role) -> None:
    receiver = framing(role)
    feed(receiver, frame(role, Opcode.BINARY, b"one", fin=False))
    wire = frame(role, CONTINUATION, b"two", reserved=0x40)
    assert feed(receiver, wire) == []
    assert str(receiver.failure) == "frame with a reserved bit set"


@each_case
@BOTH_ROLES
@pytest.mark.parametrize("opcode", [3, 4, 5, 6, 7, 11, 12, 13, 14, 15])
def test_reserved_opcode(role: Role, opcode: int) -> None:
    wire = frame(role, opcode, b"x")
    assert_refused(role, wire, f"frame with the reserved opcode {opcode}")


@pytest.mark.parametrize(
    "opcode", [Opcode.TEXT, Opcode.BINARY, Opcode.CLOSE, Opcode.PING, Opcode.PONG]
)
def test_unmasked_frame_to_a_server(opcode: Opcode) -> None:
    wire = frame(Role.SERVER, opcode, b"x", masked=False)
    assert_refused(Role.SERVER, wire, "unmasked frame")


@pytest.mark.parametrize(
    "opcode", [Opcode.TEXT, Opcode.BINARY, Opcode.CLOSE, Opcode.PING, Opcode.PONG]
)
def test_masked_frame_to_a_client(opcode: Opcode) -> None:
    wire = frame(Role.CLIENT, opcode, b"x", masked=True)
    assert_refused(Role.CLIENT, wire, "masked frame from the server")


@BOTH_ROLES
def test_wrong_masking_of_a_continuation(role: Role) -> None:
    receiver = framing(role)
    feed(receiver, frame(role, Opcode.BINARY, b"one", fin=False))
    assert feed(receiver, frame(role, CONTINUATION, b"two", masked=role is Role.CLIENT)) == []
    assert receiver.failure is not None
    assert "masked frame" in str(receiver.failure)


@each_case
@BOTH_ROLES
@pytest.mark.parametrize(
    ("size", "width"), [(0, 3), (125, 3), (0, 9), (125, 9), (126, 9), (65535, 9)]
)
def test_length_not_in_its_shortest_form(role: Role, size: int, width: int) -> None:
    wire = head(role, Opcode.BINARY, size, width=width)
    assert_refused(role, wire, "frame length not in its shortest form")


@BOTH_ROLES
@pytest.mark.parametrize("size", [2**63, 2**64 - 1])
def test_length_with_the_top_bit_set(role: Role, size: int) -> None:
    wire = head(role, Opcode.BINARY, size)
    assert_refused(role, wire, "frame length with the top bit set")


@each_case
@BOTH_ROLES
@CONTROL_OPCODES
@pytest.mark.parametrize("size", [126, 65535, 65536])
def test_control_frame_above_125_bytes(role: Role, opcode: Opcode, size: int) -> None:
    assert_refused(role, head(role, opcode, size), "control frame of more than 125 bytes")


@BOTH_ROLES
@CONTROL_OPCODES
def test_fragmented_control_frame(role: Role, opcode: Opcode) -> None:
    assert_refused(role, frame(role, opcode, b"x", fin=False), "fragmented control frame")


# Receiving what is wrong: the order of fragments


@BOTH_ROLES
@pytest.mark.parametrize("fin", [True, False])
def test_lone_continuation(role: Role, fin: bool) -> None:
    wire = frame(role, CONTINUATION, b"x", fin=fin)
    assert_refused(role, wire, "continuation frame without a message to continue")


@BOTH_ROLES
def test_continuation_after_the_last_fragment(role: Role) -> None:
    receiver = framing(role)
    wire = frame(role, Opcode.TEXT, b"a", fin=False) + frame(role, CONTINUATION, b"b")
    assert feed(receiver, wire + frame(role, CONTINUATION, b"c")) == [(Opcode.TEXT, b"ab")]
    assert str(receiver.failure) == "continuation frame without a message to continue"


@BOTH_ROLES
@DATA_OPCODES
@pytest.mark.parametrize("fin", [True, False])
def test_message_interleaved_with_the_fragments_of_another(
    role: Role, opcode: Opcode, fin: bool
) -> None:
    receiver = framing(role)
    feed(receiver, frame(role, Opcode.BINARY, b"one", fin=False))
    assert feed(receiver, frame(role, opcode, b"two", fin=fin)) == []
    assert type(receiver.failure) is FrameError
    assert receiver.failure.code == 1002
    assert str(receiver.failure) == "new message before the last fragment of the one before"


@BOTH_ROLES
def test_end_between_fragments_cuts_the_message_off(role: Role) -> None:
    receiver = framing(role)
    feed(receiver, frame(role, Opcode.BINARY, b"one", fin=False))
    assert not receiver.between_messages()


# Receiving what is wrong: the payload


BAD_UTF8 = pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"\xff", id="no-start"),
        pytest.param(b"\x80", id="lone-tail"),
        pytest.param(b"a\xe2\x82", id="cut"),
        pytest.param(b"\xc0\xaf", id="overlong"),
        pytest.param(b"\xed\xa0\x80", id="surrogate"),
        pytest.param(b"\xf4\x90\x80\x80", id="above-10ffff"),
    ],
)


@each_case
@BOTH_ROLES
@BAD_UTF8
def test_text_that_is_not_utf8(role: Role, text: bytes) -> None:
    wire = frame(role, Opcode.TEXT, text)
    assert_refused(role, wire, "text message that is not UTF-8", 1007)


@each_case
@BOTH_ROLES
@BAD_UTF8
def test_fragmented_text_that_is_not_utf8(role: Role, text: bytes) -> None:
    wire = frame(role, Opcode.TEXT, b"fine, ", fin=False) + frame(role, CONTINUATION, text)
    assert_refused(role, wire, "text message that is not UTF-8", 1007)


@each_case
@BOTH_ROLES
@BAD_UTF8
def test_binary_needs_no_utf8(role: Role, text: bytes) -> None:
    assert feed(framing(role), frame(role, Opcode.BINARY, text)) == [(Opcode.BINARY, text)]


def test_close_payload_of_one_byte() -> None:
    with pytest.raises(FrameError, match="^close with half a code$") as caught:
        decode_close(b"\x03")
    assert caught.value.code == 1002


@each_case
@pytest.mark.parametrize(
    "code", [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535]
)
def test_close_code_that_must_not_be_sent(code: int) -> None:
    with pytest.raises(FrameError) as caught:
        decode_close(struct.pack(">H", code))
    assert str(caught.value) == f"close with the code {code}, which must not be sent"
    assert caught.value.code == 1002


@each_case
@pytest.mark.parametrize("code", [*range(1000, 1004), *range(1007, 1015), 3000, 3999, 4000, 4999])
def test_close_code_that_may_be_sent(code: int) -> None:
    assert decode_close(struct.pack(">H", code)) == (code, "")


@BAD_UTF8
def test_close_reason_that_is_not_utf8(text: bytes) -> None:
    with pytest.raises(FrameError, match="^close with a reason that is not UTF-8$") as caught:
        decode_close(b"\x03\xe8" + text)
    assert caught.value.code == 1007


# Limits


@BOTH_ROLES
@DATA_OPCODES
def test_message_of_exactly_the_limit_is_taken(role: Role, opcode: Opcode) -> None:
    receiver = framing(role, 1000)
    assert feed(receiver, frame(role, opcode, b"x" * 1000)) == [(opcode, b"x" * 1000)]


@each_case
@BOTH_ROLES
@DATA_OPCODES
@pytest.mark.parametrize("size", [1001, 65536, 2**63 - 1])
def test_message_above_the_limit_is_refused_by_its_head_alone(
    role: Role, opcode: Opcode, size: int
) -> None:
    receiver = framing(role, 1000)
    assert feed(receiver, head(role, opcode, size)) == []
    sentence = f"message of at least {size} bytes is above the limit of 1000"
    assert str(receiver.failure) == sentence
    assert receiver.failure is not None
    assert receiver.failure.code == 1009


@BOTH_ROLES
def test_fragments_of_exactly_the_limit_are_taken(role: Role) -> None:
    receiver = framing(role, 1000)
    wire = frame(role, Opcode.BINARY, b"x" * 600, fin=False) + frame(role, CONTINUATION, b"y" * 400)
    assert feed(receiver, wire) == [(Opcode.BINARY, b"x" * 600 + b"y" * 400)]


@BOTH_ROLES
def test_fragments_above_the_limit_are_refused_by_the_last_head(role: Role) -> None:
    receiver = framing(role, 1000)
    wire = frame(role, Opcode.BINARY, b"x" * 600, fin=False) + head(role, CONTINUATION, 401)
    assert feed(receiver, wire) == []
    assert str(receiver.failure) == "message of at least 1001 bytes is above the limit of 1000"
    assert receiver.failure is not None
    assert receiver.failure.code == 1009


@BOTH_ROLES
@pytest.mark.parametrize(("last", "taken"), [(200, True), (201, False)])
def test_all_fragments_of_a_message_count_towards_its_limit(
    role: Role, last: int, taken: bool
) -> None:
    receiver = framing(role, 1000)
    wire = frame(role, Opcode.BINARY, b"x" * 400, fin=False)
    wire += frame(role, CONTINUATION, b"y" * 400, fin=False)
    assert len(feed(receiver, wire + frame(role, CONTINUATION, b"z" * last))) == taken
    assert (receiver.failure is None) is taken


@BOTH_ROLES
def test_a_message_in_fragments_is_held_with_what_it_may_take(role: Role) -> None:
    receiver = framing(role)
    held = []
    for opcode, fin in ((Opcode.BINARY, False), (CONTINUATION, False), (CONTINUATION, True)):
        feed(receiver, frame(role, opcode, bytes(800), fin=fin))
        held.append(receiver.held())
    assert held == [900, 1800, 0]


@BOTH_ROLES
@CONTROL_OPCODES
def test_control_frame_does_not_count_towards_the_message(role: Role, opcode: Opcode) -> None:
    receiver = framing(role, 100)
    wire = frame(role, Opcode.BINARY, b"x" * 100, fin=False)
    wire += frame(role, opcode, b"p" * 125)
    wire += frame(role, CONTINUATION)
    assert feed(receiver, wire) == [(opcode, b"p" * 125), (Opcode.BINARY, b"x" * 100)]


@BOTH_ROLES
def test_size_of_a_message_is_not_carried_to_the_next(role: Role) -> None:
    receiver = framing(role, 1000)
    once = frame(role, Opcode.BINARY, b"x" * 1000, fin=False) + frame(role, CONTINUATION)
    assert len(feed(receiver, once * 3)) == 3


@BOTH_ROLES
def test_as_many_fragments_as_allowed_are_taken(role: Role) -> None:
    receiver = framing(role, max_fragments=3)
    wire = frame(role, Opcode.BINARY, b"a", fin=False) + frame(role, CONTINUATION, b"b", fin=False)
    assert feed(receiver, wire + frame(role, CONTINUATION, b"c")) == [(Opcode.BINARY, b"abc")]


@BOTH_ROLES
@pytest.mark.parametrize("fin", [True, False])
def test_one_fragment_more_than_allowed_is_refused(role: Role, fin: bool) -> None:
    receiver = framing(role, max_fragments=3)
    wire = frame(role, Opcode.BINARY, b"a", fin=False)
    wire += frame(role, CONTINUATION, b"b", fin=False) * 2
    assert feed(receiver, wire + frame(role, CONTINUATION, b"c", fin=fin)) == []
    assert str(receiver.failure) == "message of more than 3 fragments"
    assert receiver.failure is not None
    assert receiver.failure.code == 1008


@BOTH_ROLES
def test_fragments_of_a_message_are_not_counted_with_the_next(role: Role) -> None:
    receiver = framing(role, max_fragments=2)
    once = frame(role, Opcode.BINARY, b"a", fin=False) + frame(role, CONTINUATION, b"b")
    assert feed(receiver, once * 4) == [(Opcode.BINARY, b"ab")] * 4


@BOTH_ROLES
@pytest.mark.parametrize(("fragments", "taken"), [(1024, True), (1025, False)])
def test_a_message_has_1024_fragments_at_most_where_nothing_else_is_said(
    role: Role, fragments: int, taken: bool
) -> None:
    receiver = WebSocketFraming(role, LIMIT)
    wire = frame(role, Opcode.BINARY, b"x", fin=False)
    wire += frame(role, CONTINUATION, b"x", fin=False) * (fragments - 2)
    frames = feed(receiver, wire + frame(role, CONTINUATION, b"x"))
    assert (frames == [(Opcode.BINARY, b"x" * fragments)]) is taken
    assert (receiver.failure is None) is taken


@BOTH_ROLES
def test_nothing_of_a_message_is_held_once_a_rule_was_broken(role: Role) -> None:
    receiver = framing(role)
    feed(receiver, frame(role, Opcode.BINARY, b"one", fin=False))
    assert receiver.held() > 0
    feed(receiver, frame(role, Opcode.BINARY, b"two"))
    assert receiver.failure is not None
    assert receiver.held() == receiver.allocated() == 0


@BOTH_ROLES
def test_room_is_made_for_just_the_frame_that_is_coming(role: Role) -> None:
    """Where it stands behind another in a buffer that is full."""
    receiver = framing(role)
    wire = frame(role, Opcode.BINARY, b"x" * 100) + frame(role, Opcode.BINARY, b"y" * 20_000)
    full = len(receiver.get_buffer())
    feed(receiver, wire[:full])
    assert len(receiver.get_buffer()) == len(wire) - full


@BOTH_ROLES
@CONTROL_OPCODES
def test_control_frames_among_what_was_received_last_are_told(role: Role, opcode: Opcode) -> None:
    receiver = framing(role)
    message = frame(role, Opcode.BINARY, b"x")
    told = []
    for wire in (message, message + frame(role, opcode) + message, message):
        feed(receiver, wire)
        told.append(receiver.controls)
    assert told == [False, True, False]


def work(role: Role, fragments: int, chunk: int | None) -> int:
    """Return how many calls it takes to receive a message in so many fragments of one byte."""
    wire = frame(role, Opcode.BINARY, b"x", fin=False)
    wire += frame(role, CONTINUATION, b"x", fin=False) * (fragments - 2)
    wire += frame(role, CONTINUATION, b"x")
    receiver = framing(role, max_fragments=fragments)
    calls = 0

    def tally(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(tally)
    try:
        frames = feed(receiver, wire, chunk)
    finally:
        sys.setprofile(before)
    assert frames == [(Opcode.BINARY, b"x" * fragments)]
    return calls


@BOTH_ROLES
@pytest.mark.parametrize("by_frame", [False, True], ids=["at-once", "one-a-read"])
def test_twenty_thousand_fragments_cost_twice_what_ten_thousand_do(
    role: Role, by_frame: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = 0

    def counting(data: bytes) -> bytes:
        nonlocal copied
        result = bytes(data)
        copied += len(result)
        return result

    monkeypatch.setattr(framing_module, "bytes", counting, raising=False)
    chunk = len(frame(role, CONTINUATION, b"x")) if by_frame else None
    costs = []
    for fragments in (10_000, 20_000):
        copied = 0
        costs.append((work(role, fragments, chunk), copied))
    (calls, moved), (more_calls, more_moved) = costs
    assert more_calls <= 2.01 * calls
    assert more_moved <= 2.01 * moved
    assert more_calls <= 20_000 * 40


# Sending


def sent(role: Role, message: bytes, kind: Opcode = Opcode.BINARY) -> bytes:
    sender = framing(role)
    return b"".join(bytes(piece) for piece in sender.encode((b"", message), kind))


@pytest.fixture
def fixed_key(monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr(os, "urandom", lambda size: KEY[:size])
    return KEY


@pytest.mark.parametrize(
    ("payload", "kind", "wire"),
    [
        pytest.param(b"Hello", Opcode.TEXT, "810548656c6c6f", id="text"),
        pytest.param(b"a" * 256, Opcode.BINARY, "827e0100" + "61" * 256, id="256-bytes"),
        pytest.param(
            b"a" * 65536, Opcode.BINARY, "827f0000000000010000" + "61" * 65536, id="64-kib"
        ),
    ],
)
def test_server_sends_the_example_of_the_rfc(payload: bytes, kind: Opcode, wire: str) -> None:
    assert sent(Role.SERVER, payload, kind) == of(wire)


def test_server_sends_the_ping_of_the_rfc() -> None:
    assert framing(Role.SERVER).encode_control(Opcode.PING, b"Hello") == of("890548656c6c6f")


def test_client_sends_the_text_of_the_rfc(fixed_key: bytes) -> None:
    assert sent(Role.CLIENT, b"Hello", Opcode.TEXT) == of("818537fa213d7f9f4d5158")


def test_client_sends_the_pong_of_the_rfc(fixed_key: bytes) -> None:
    wire = framing(Role.CLIENT).encode_control(Opcode.PONG, b"Hello")
    assert wire == of("8a8537fa213d7f9f4d5158")


@each_case
@BOTH_ROLES
@pytest.mark.parametrize("head_size", [0, 1, 2, 3, 6, 9])
@pytest.mark.parametrize("size", [0, 1, 116, 117, 125, 126, 1024, 4095, 4096, 65535, 65536])
def test_frame_is_as_the_rfc_draws_it(
    role: Role, head_size: int, size: int, fixed_key: bytes
) -> None:
    start, body = b"h" * min(head_size, size), b"b" * (size - min(head_size, size))
    pieces = framing(role).encode((start, body))
    wire = b"".join(bytes(piece) for piece in pieces)
    assert wire == frame(other(role), Opcode.BINARY, start + body)


def test_server_does_not_copy_the_body() -> None:
    body = b"x" * 5000
    assert framing(Role.SERVER).encode((b"head", body))[1] is body


@BOTH_ROLES
@pytest.mark.parametrize("size", [10, 5000])
@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_body_may_be_any_buffer(role: Role, size: int, kind: type) -> None:
    pieces = framing(role).encode((b"head", kind(b"x" * size)))
    wire = b"".join(bytes(piece) for piece in pieces)
    assert feed(framing(other(role)), wire) == [(Opcode.BINARY, b"head" + b"x" * size)]


def test_every_frame_of_a_client_has_a_new_key() -> None:
    keys = {sent(Role.CLIENT, b"same")[2:6] for _ in range(50)}
    assert len(keys) == 50


@BOTH_ROLES
@CONTROL_OPCODES
def test_control_frame_of_125_bytes_is_sent(role: Role, opcode: Opcode) -> None:
    wire = framing(role).encode_control(opcode, b"x" * 125)
    assert feed(framing(other(role)), wire) == [(opcode, b"x" * 125)]


@BOTH_ROLES
@CONTROL_OPCODES
def test_control_frame_above_125_bytes_is_not_sent(role: Role, opcode: Opcode) -> None:
    with pytest.raises(ValueError, match="at most 125 bytes"):
        framing(role).encode_control(opcode, b"x" * 126)


# Against an implementation that is not ours


def read_by_websockets(wire: bytes, *, masked: bool) -> tuple[int, bool, bytes]:
    frames = pytest.importorskip("websockets.frames")
    streams = pytest.importorskip("websockets.streams")
    reader = streams.StreamReader()
    reader.feed_data(wire)
    parser = frames.Frame.parse(reader.read_exact, mask=masked)
    with pytest.raises(StopIteration) as parsed:
        next(parser)
    result = parsed.value.value
    return int(result.opcode), result.fin, bytes(result.data)


@each_case
@BOTH_ROLES
@DATA_OPCODES
@pytest.mark.parametrize("size", [0, 125, 126, 2000, 65535, 65536])
def test_websockets_reads_what_we_send(role: Role, opcode: Opcode, size: int) -> None:
    wire = sent(role, b"x" * size, opcode)
    read = read_by_websockets(wire, masked=role is Role.CLIENT)
    assert read == (opcode, True, b"x" * size)


@BOTH_ROLES
@CONTROL_OPCODES
def test_websockets_reads_the_control_frames_we_send(role: Role, opcode: Opcode) -> None:
    wire = framing(role).encode_control(opcode, b"\x03\xe8")
    read = read_by_websockets(wire, masked=role is Role.CLIENT)
    assert read == (opcode, True, b"\x03\xe8")


@BOTH_ROLES
@pytest.mark.parametrize("opcode", list(Opcode))
@pytest.mark.parametrize("size", [0, 3, 125])
def test_we_read_what_websockets_sends(role: Role, opcode: Opcode, size: int) -> None:
    frames = pytest.importorskip("websockets.frames")
    sent_frame = frames.Frame(frames.Opcode(opcode), b"x" * size)
    wire = sent_frame.serialize(mask=role is Role.SERVER)
    assert feed(framing(role), wire) == [(opcode, b"x" * size)]


# Chopping

roles = st.sampled_from(Role)
controls = st.tuples(
    st.sampled_from([Opcode.CLOSE, Opcode.PING, Opcode.PONG]), st.binary(max_size=125)
)
binaries = st.tuples(st.just(Opcode.BINARY), st.binary(max_size=300))
texts = st.tuples(st.just(Opcode.TEXT), st.text(max_size=60).map(str.encode))
cuts = st.lists(st.integers(1, 40), max_size=30)


def in_pieces(
    receiver: WebSocketFraming, wire: bytes, sizes: list[int]
) -> list[tuple[Opcode, bytes]]:
    frames = []
    for size in sizes:
        frames += feed(receiver, wire[:size])
        wire = wire[size:]
    return frames + feed(receiver, wire)


@settings(max_examples=examples(80))
@given(roles, st.lists(st.one_of(controls, binaries, texts), max_size=8), cuts)
def test_any_chopping_gives_what_was_sent(
    role: Role, messages: list[tuple[Opcode, bytes]], sizes: list[int]
) -> None:
    sender = framing(other(role))
    wire = b"".join(
        sender.encode_control(kind, payload)
        if kind >= Opcode.CLOSE
        else b"".join(bytes(piece) for piece in sender.encode((b"", payload), kind))
        for kind, payload in messages
    )
    assert in_pieces(framing(role), wire, sizes) == messages
    assert feed(framing(role), wire, 1) == messages


@settings(max_examples=examples(80))
@given(roles, st.one_of(binaries, texts), st.lists(st.integers(0, 20), max_size=6), controls, cuts)
def test_any_fragmentation_gives_the_same_message(
    role: Role,
    message: tuple[Opcode, bytes],
    lengths: list[int],
    between: tuple[Opcode, bytes],
    sizes: list[int],
) -> None:
    opcode, rest = message
    wire, started = b"", False
    for length in lengths:
        wire += frame(role, CONTINUATION if started else opcode, rest[:length], fin=False)
        wire += frame(role, *between)
        rest, started = rest[length:], True
    wire += frame(role, CONTINUATION if started else opcode, rest)
    expected = [between] * len(lengths) + [message]
    assert in_pieces(framing(role), wire, sizes) == expected
    assert feed(framing(role), wire, 1) == expected


@st.composite
def nearly_frames(draw: st.DrawFn) -> tuple[int, bytes, bool, int, bool]:
    """Return the arguments of a frame that is more often right than wrong."""
    opcode = draw(st.sampled_from([0, 0, 1, 2, 2, 8, 9, 10, draw(st.integers(0, 15))]))
    payload = draw(st.binary(max_size=60))
    fin = draw(st.booleans())
    reserved = draw(st.sampled_from([0] * 12 + [0x40, 0x20, 0x10]))
    wrongly_masked = draw(st.sampled_from([False] * 12 + [True]))
    return opcode, payload, fin, reserved, wrongly_masked


@settings(max_examples=examples(200))
@given(roles, st.lists(nearly_frames(), max_size=8), st.binary(max_size=40), cuts)
def test_any_bytes_give_the_same_frames_and_failure(
    role: Role,
    nearly: list[tuple[int, bytes, bool, int, bool]],
    tail: bytes,
    sizes: list[int],
) -> None:
    wire = tail + b"".join(
        frame(
            role,
            opcode,
            payload,
            fin=fin,
            reserved=reserved,
            masked=(role is Role.SERVER) is not wrongly_masked,
        )
        for opcode, payload, fin, reserved, wrongly_masked in nearly
    )
    wire = wire[len(tail) :] + tail if len(sizes) % 2 else wire
    whole, pieces, single = (framing(role, 120, 3) for _ in range(3))
    expected = feed(whole, wire)
    assert in_pieces(pieces, wire, sizes) == expected
    assert feed(single, wire, 1) == expected
    assert str(pieces.failure) == str(single.failure) == str(whole.failure)
    assert whole.failure is None or whole.failure.code in (1002, 1007, 1008, 1009)


def test_the_message_that_is_incomplete_is_told_by_where_it_began() -> None:
    framing = WebSocketFraming(Role.CLIENT, 1000)
    assert framing.incomplete(0) is None
    feed(framing, b"\x82\x03ab")
    assert framing.incomplete(104) == 100
    feed(framing, b"c\x82")
    assert framing.incomplete(106) == 105


def test_fragments_of_one_message_are_one_whatever_comes_between() -> None:
    framing = WebSocketFraming(Role.CLIENT, 1000)
    marks = []
    for wire in (b"\x02\x01a", b"\x89\x00", b"\x00\x01b\x00", b"\x01c\x80\x01d", b"\x02\x00"):
        feed(framing, wire)
        marks.append(framing.incomplete(1000))
    assert marks == [-1, -1, -1, None, -2]


def test_fragments_that_are_passed_on_leave_nothing_incomplete() -> None:
    framing = WebSocketFraming(Role.CLIENT, 1000, keeps_boundaries=False)
    feed(framing, b"\x02\x01a")
    assert framing.incomplete(3) is None


def test_fragments_count_with_what_they_cost() -> None:
    receiver = WebSocketFraming(Role.CLIENT, LIMIT)
    first, rest = b"\x02\x01x", b"\x00\x01x"
    assert feed(receiver, first + 9 * rest) == []
    assert receiver.held() == receiver.allocated() >= 10
    assert feed(receiver, 990 * rest) == []
    assert receiver.held() == receiver.allocated() >= sys.getsizeof(receiver._message) - 64
    assert feed(receiver, b"\x80\x00") == [(Opcode.BINARY, 1000 * b"x")]
    assert receiver.held() == 0
    feed(receiver, first + rest)
    receiver.fail(FrameError("too much", 1008))
    assert receiver.held() == 0
