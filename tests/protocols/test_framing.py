"""Native messages cross a plain byte stream whole, however it is chopped.

What both framings share, the receive buffer and the close payload, is tested here too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsmux.exceptions import FrameError, RemoteProtocolError
from wsmux.protocols.base import MuxProtocol, Role
from wsmux.protocols.events import DataReceived, Event, StreamEnded, StreamOpened
from wsmux.protocols.framing import (
    LARGEST_BUFFER,
    SAVING_BUFFER,
    SMALLEST_BUFFER,
    ByteFraming,
    Framing,
    NoFraming,
    Opcode,
    check_close,
    decode_close,
    encode_close,
)
from wsmux.protocols.websocket import WebSocketFraming

from ..helpers.examples import examples
from ..helpers.machine_pairs import BOTH_ROLES, feed, native, other
from ..helpers.tables import each_case

LIMIT = 2**20
WIDTHS = pytest.mark.parametrize("width", [1, 2])
CHUNKS = pytest.mark.parametrize("chunk", [None, 1, 2, 3, 7])
FRAMINGS = pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: ByteFraming(LIMIT), id="bytes"),
        pytest.param(lambda: WebSocketFraming(Role.CLIENT, LIMIT), id="websocket"),
    ],
)
SIZES = [1, 100, SMALLEST_BUFFER - 1, SMALLEST_BUFFER, SMALLEST_BUFFER + 1, 3 * LARGEST_BUFFER]


def of(wire: str) -> bytes:
    return bytes.fromhex(wire)


def encoded(framing: Framing, head: bytes, body: bytes = b"") -> bytes:
    return b"".join(framing.encode((head, body)))


def failed(framing: Framing) -> tuple[type[RemoteProtocolError], int, str]:
    failure = framing.failure
    assert failure is not None
    return type(failure), failure.code, str(failure)


# The wire


def test_kinds_are_numbered_as_the_opcodes_of_the_rfc() -> None:
    assert {kind.name: kind.value for kind in Opcode} == {
        "TEXT": 1,
        "BINARY": 2,
        "CLOSE": 8,
        "PING": 9,
        "PONG": 10,
    }


@pytest.mark.parametrize(
    ("head", "body", "wire"),
    [
        pytest.param("0001", "00100000", "0001 04 00100000", id="open"),
        pytest.param("0000", "68656c6c6f", "0000 05 68656c6c6f", id="data"),
        pytest.param("0003", "00", "0003 01 00", id="close"),
        pytest.param("0002", "00404d", "0002 03 00 404d", id="abort"),
        pytest.param("404000", "", "4040 00 00", id="empty"),
    ],
)
def test_message_on_the_wire(head: str, body: str, wire: str) -> None:
    assert encoded(ByteFraming(LIMIT), of(head), of(body)) == of(wire)


def test_long_message_on_the_wire() -> None:
    assert encoded(ByteFraming(LIMIT), b"\x00\x00", b"x" * 70000)[:6] == of("0000 80011170")


def test_body_is_not_copied_when_encoding() -> None:
    body = b"x" * 5000
    assert ByteFraming(LIMIT).encode((b"\x00\x00", body))[1] is body


@WIDTHS
@pytest.mark.parametrize(
    ("kind", "payload", "after_type"),
    [
        (Opcode.CLOSE, "03e8 627965", "05 03e8 627965"),
        (Opcode.PING, "", "00"),
        (Opcode.PONG, "01", "01 01"),
    ],
)
def test_control_message_on_the_wire(
    width: int, kind: Opcode, payload: str, after_type: str
) -> None:
    wire = b"\x00" + kind.to_bytes(width, "big") + of(after_type)
    assert ByteFraming(LIMIT, width).encode_control(kind, of(payload)) == wire


@CHUNKS
def test_message_is_decoded(chunk: int | None) -> None:
    framing = ByteFraming(LIMIT)
    frames = feed(framing, of("0000 05 68656c6c6f 0003 01 00"), chunk)
    assert frames == [(Opcode.BINARY, of("0000 68656c6c6f")), (Opcode.BINARY, of("0003 00"))]


@pytest.mark.parametrize("length", ["4005", "80000005", "c000000000000005"])
def test_longer_form_of_a_length_is_accepted(length: str) -> None:
    frames = feed(ByteFraming(LIMIT), of("0000" + length + "68656c6c6f"))
    assert frames == [(Opcode.BINARY, of("0000 68656c6c6f"))]


@each_case
@WIDTHS
@CHUNKS
@pytest.mark.parametrize("kind", [Opcode.CLOSE, Opcode.PING, Opcode.PONG])
def test_control_message_is_decoded(width: int, chunk: int | None, kind: Opcode) -> None:
    wire = ByteFraming(LIMIT, width).encode_control(kind, b"abc")
    assert feed(ByteFraming(LIMIT, width), wire, chunk) == [(kind, b"abc")]


def test_longer_form_of_id_0_still_names_a_control_message() -> None:
    assert feed(ByteFraming(LIMIT), of("4000 09 00")) == [(Opcode.PING, b"")]


@pytest.mark.parametrize("wire", ["01 09 00", "02 08 00", "4040 0a 00"])
def test_control_type_on_another_id_is_left_to_the_machine(wire: str) -> None:
    [(kind, message)] = feed(ByteFraming(LIMIT), of(wire))
    assert (kind, message) == (Opcode.BINARY, of(wire)[:-1])


def test_control_payload_of_125_bytes_is_taken() -> None:
    assert feed(ByteFraming(LIMIT), of("0009 407d") + bytes(125)) == [(Opcode.PING, bytes(125))]


@CHUNKS
def test_control_payload_above_125_bytes_is_refused(chunk: int | None) -> None:
    framing = ByteFraming(LIMIT)
    assert feed(framing, of("0009 407e") + bytes(126), chunk) == []
    sentence = "control message of 126 bytes is above the limit of 125"
    assert failed(framing) == (FrameError, 1002, sentence)


@FRAMINGS
def test_control_payload_above_125_bytes_is_never_sent(make: Callable[[], Framing]) -> None:
    framing = make()
    with pytest.raises(ValueError, match="at most 125 bytes"):
        framing.encode_control(Opcode.PING, bytes(126))


# The limit


def test_message_of_exactly_the_limit_is_taken() -> None:
    framing = ByteFraming(100)
    assert feed(framing, of("0000 4062") + bytes(98)) == [(Opcode.BINARY, bytes(100))]


def test_limit_counts_one_message_at_a_time() -> None:
    framing = ByteFraming(100)
    assert len(feed(framing, (of("0000 4062") + bytes(98)) * 3)) == 3


@each_case
@CHUNKS
@pytest.mark.parametrize("length", ["4063", "80000063", "ffffffffffffffff"])
def test_message_above_the_limit_is_refused_by_its_head_alone(
    chunk: int | None, length: str
) -> None:
    framing = ByteFraming(100)
    assert feed(framing, of("0000" + length), chunk) == []
    size = 2**62 - 1 if length[0] == "f" else 99
    sentence = f"message of {size} bytes is above the limit of 100"
    assert failed(framing) == (FrameError, 1009, sentence)


def test_what_came_before_a_failure_is_returned() -> None:
    framing = ByteFraming(100)
    assert feed(framing, of("0000 01 61 0000 ffffffffffffffff")) == [(Opcode.BINARY, of("000061"))]


@FRAMINGS
def test_nothing_follows_a_failure(make: Callable[[], Framing]) -> None:
    framing = make()
    good = encoded(WebSocketFraming(Role.SERVER, LIMIT), b"\x00\x00", b"x")
    if isinstance(framing, ByteFraming):
        good = encoded(framing, b"\x00\x00", b"x")
    feed(framing, b"\x00\x00" + b"\xff" * 8)
    failure = framing.failure
    assert failure is not None
    framing.get_buffer()[: len(good)] = good
    assert framing.received(len(good)) == []
    assert framing.failure is failure


# The receive buffer


@FRAMINGS
def test_new_buffer_has_the_smallest_size(make: Callable[[], Framing]) -> None:
    assert len(make().get_buffer()) == SMALLEST_BUFFER


@FRAMINGS
def test_read_that_fills_the_buffer_doubles_it(make: Callable[[], Framing]) -> None:
    framing = make()
    feed(framing, wire_of(framing, SMALLEST_BUFFER))
    assert framing.filled
    assert len(framing.get_buffer()) == 2 * SMALLEST_BUFFER


@FRAMINGS
def test_read_that_leaves_room_does_not_grow_the_buffer(make: Callable[[], Framing]) -> None:
    framing = make()
    feed(framing, wire_of(framing, SMALLEST_BUFFER - 1))
    assert not framing.filled
    assert len(framing.get_buffer()) == SMALLEST_BUFFER


@FRAMINGS
def test_filled_buffer_grows_no_further_than_the_largest(make: Callable[[], Framing]) -> None:
    framing = make()
    feed(framing, wire_of(framing, 4000) * (3 * LARGEST_BUFFER // 4000))
    assert len(framing._buffer) == LARGEST_BUFFER


@FRAMINGS
def test_buffer_grows_with_what_came_of_a_message_larger_than_all(
    make: Callable[[], Framing],
) -> None:
    framing = make()
    wire = wire_of(framing, LIMIT - 16)
    for came in range(1000, len(wire), 1000):
        feed(framing, wire[came - 1000 : came])
        framing.get_buffer()
        assert framing.held() == came
        assert len(framing._buffer) <= max(SMALLEST_BUFFER, 8 * came // 3)
    assert len(framing._buffer) == len(wire)


@FRAMINGS
def test_head_of_a_long_message_takes_no_memory(make: Callable[[], Framing]) -> None:
    framing = make()
    feed(framing, wire_of(framing, LIMIT - 16)[:20])
    framing.get_buffer()
    assert len(framing._buffer) == SMALLEST_BUFFER
    assert (framing.held(), framing.allocated()) == (20, 20)


@FRAMINGS
def test_memory_counts_before_it_is_taken(make: Callable[[], Framing]) -> None:
    framing = make()
    wire = wire_of(framing, LIMIT - 16)
    feed(framing, wire[: 2 * LARGEST_BUFFER])
    counted = framing.allocated()
    framing.get_buffer()
    assert counted == len(framing._buffer) == framing.allocated()


@FRAMINGS
def test_long_message_is_not_paid_for_by_short_ones(make: Callable[[], Framing]) -> None:
    framing = make()
    feed(framing, wire_of(framing, LIMIT - 16))
    assert len(framing._buffer) == LARGEST_BUFFER
    assert framing.allocated() == 0


@FRAMINGS
def test_a_failure_gives_the_memory_back(make: Callable[[], Framing]) -> None:
    framing = make()
    feed(framing, wire_of(framing, LIMIT - 16)[: LIMIT // 2])
    framing.fail(FrameError("too much", 1008))
    assert (framing.held(), framing.allocated()) == (0, 0)
    assert len(framing._buffer) == SMALLEST_BUFFER
    assert failed(framing) == (FrameError, 1008, "too much")


@FRAMINGS
def test_a_released_buffer_is_gone(make: Callable[[], Framing]) -> None:
    framing = make()
    feed(framing, wire_of(framing, LIMIT - 16)[: LIMIT // 2])
    framing.release()
    assert (framing.held(), framing.allocated(), len(framing._buffer)) == (0, 0, 0)


@FRAMINGS
def test_where_memory_is_short_the_buffer_stays_small(make: Callable[[], Framing]) -> None:
    framing = make()
    framing.save_memory(True)
    feed(framing, wire_of(framing, 4000) * (3 * LARGEST_BUFFER // 4000))
    assert len(framing._buffer) == SAVING_BUFFER
    framing.save_memory(False)
    feed(framing, wire_of(framing, 4000) * (3 * LARGEST_BUFFER // 4000))
    assert len(framing._buffer) == LARGEST_BUFFER
    framing.save_memory(True)
    assert len(framing._buffer) == SMALLEST_BUFFER


@FRAMINGS
def test_a_message_has_the_buffer_that_it_needs_where_memory_is_short(
    make: Callable[[], Framing],
) -> None:
    framing = make()
    framing.save_memory(True)
    wire = wire_of(framing, 2 * SAVING_BUFFER)
    assert len(feed(framing, wire)) == 1
    assert len(framing._buffer) == SAVING_BUFFER


@FRAMINGS
@pytest.mark.parametrize("cut", [1, 2, 5, 1000])
def test_buffer_is_never_empty_while_a_message_is_coming(
    make: Callable[[], Framing], cut: int
) -> None:
    framing = make()
    wire = wire_of(framing, 3 * LARGEST_BUFFER // 2)
    [(_, message)] = feed(framing, wire[:cut]) + feed(framing, wire[cut:])
    assert len(message) > LARGEST_BUFFER


@FRAMINGS
def test_buffer_is_kept_while_it_is_large_enough(make: Callable[[], Framing]) -> None:
    framing = make()
    before = framing._buffer
    feed(framing, wire_of(framing, 1000) * 20, 100)
    assert framing._buffer is before


@FRAMINGS
def test_buffer_is_never_empty_after_a_failure(make: Callable[[], Framing]) -> None:
    framing = make()
    feed(framing, b"\x00\x00" + b"\xff" * 8)
    for _ in range(2 * LARGEST_BUFFER // SMALLEST_BUFFER):
        free = framing.get_buffer()
        assert len(free) > 0
        assert framing.received(len(free)) == []


@FRAMINGS
def test_rest_of_a_message_moves_to_the_front(make: Callable[[], Framing]) -> None:
    framing = make()
    wire = wire_of(framing, 1000)
    feed(framing, wire + wire[:10])
    assert len(framing.get_buffer()) == SMALLEST_BUFFER - 10
    assert len(feed(framing, wire[10:])) == 1


@FRAMINGS
def test_views_of_a_buffer_outlive_its_growth(make: Callable[[], Framing]) -> None:
    framing = make()
    wire = wire_of(framing, SMALLEST_BUFFER)
    framing.get_buffer()[:] = wire
    [(_, payload)] = framing.received(len(wire))
    message = bytes(payload)
    framing.get_buffer()[:] = bytes(2 * SMALLEST_BUFFER)
    assert bytes(payload) == message


@FRAMINGS
def test_empty_buffer_shrinks(make: Callable[[], Framing]) -> None:
    framing = make()
    feed(framing, wire_of(framing, LARGEST_BUFFER))
    framing.shrink()
    assert len(framing.get_buffer()) == SMALLEST_BUFFER


@FRAMINGS
@pytest.mark.parametrize("held", [100, SMALLEST_BUFFER, LARGEST_BUFFER - 100])
def test_buffer_that_holds_something_shrinks_around_it(
    make: Callable[[], Framing], held: int
) -> None:
    framing = make()
    wire = wire_of(framing, LARGEST_BUFFER)
    feed(framing, wire + wire[:held])
    framing.shrink()
    assert held < len(framing._buffer) <= max(SMALLEST_BUFFER, 2 * held)
    assert len(feed(framing, wire[held:])) == 1


@FRAMINGS
def test_small_buffer_is_kept_when_shrinking(make: Callable[[], Framing]) -> None:
    framing = make()
    before = framing._buffer
    framing.shrink()
    assert framing._buffer is before


@FRAMINGS
def test_end_between_messages_cuts_nothing_off(make: Callable[[], Framing]) -> None:
    framing = make()
    feed(framing, wire_of(framing, 100))
    assert framing.between_messages()


@FRAMINGS
@pytest.mark.parametrize("size", [1, 2, 50])
def test_end_within_a_message_cuts_it_off(make: Callable[[], Framing], size: int) -> None:
    framing = make()
    feed(framing, wire_of(framing, 100)[:size])
    assert not framing.between_messages()


@FRAMINGS
def test_a_message_that_is_not_whole_is_known_by_where_it_began(
    make: Callable[[], Framing],
) -> None:
    framing = make()
    whole = wire_of(make(), 100)
    feed(framing, whole)
    assert framing.incomplete(len(whole)) is None
    for size in (1, 3):
        feed(framing, whole[size // 3 : size])
        assert framing.incomplete(len(whole) + size) == len(whole)
    feed(framing, whole[3:])
    assert framing.incomplete(2 * len(whole)) is None
    assert framing.controls is False


@WIDTHS
def test_controls_are_told_until_the_next_read(width: int) -> None:
    framing = ByteFraming(LIMIT, width)
    feed(framing, framing.encode_control(Opcode.PING, b"now?"))
    assert framing.controls is True
    feed(framing, wire_of(framing, 10))
    assert framing.controls is False


def wire_of(framing: Framing, size: int) -> bytes:
    """Return a message that is ``size`` bytes on the wire that ``framing`` receives."""
    sender = framing if isinstance(framing, ByteFraming) else WebSocketFraming(Role.SERVER, LIMIT)
    for overhead in range(16):
        if size - overhead >= 2:
            wire = encoded(sender, b"\x00\x00", bytes(size - overhead - 2))
            if len(wire) == size:
                return wire
    raise AssertionError(f"no message is {size} bytes long")


# The close payload, for both framings


def test_close_with_code_and_reason_on_the_wire() -> None:
    assert encode_close(1000, "bye") == of("03e8 627965")


def test_close_without_a_code_is_empty() -> None:
    assert encode_close(1005, "ignored") == b""


def test_empty_close_reads_as_no_code() -> None:
    assert decode_close(b"") == (1005, "")


def test_reason_is_cut_to_what_a_control_frame_holds() -> None:
    assert encode_close(1000, "x" * 200) == of("03e8") + b"x" * 123


def test_reason_is_cut_between_characters() -> None:
    payload = encode_close(1000, "x" * 122 + "é")
    assert decode_close(payload) == (1000, "x" * 122)


def test_reason_that_just_fits_is_kept() -> None:
    payload = encode_close(1000, "x" * 121 + "é")
    assert decode_close(payload) == (1000, "x" * 121 + "é")


@pytest.mark.parametrize("code", [1000, 1003, 1007, 1014, 3000, 4999])
def test_codes_that_may_be_sent_are_taken(code: int) -> None:
    assert decode_close(code.to_bytes(2, "big") + b"why") == (code, "why")


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 2999, 5000, 65535])
def test_codes_that_must_not_be_sent_are_refused(code: int) -> None:
    with pytest.raises(FrameError, match=f"the code {code}, which must not be sent") as caught:
        decode_close(code.to_bytes(2, "big"))
    assert caught.value.code == 1002


@pytest.mark.parametrize("code", [1000, 1003, 1005, 1007, 1014, 3000, 4999])
def test_a_close_may_be_asked_for_with_such_a_code(code: int) -> None:
    check_close(code, "x" * 200 + "é")


@pytest.mark.parametrize("code", [-1, 0, 999, 1004, 1006, 1015, 2000, 2999, 5000, 70000])
def test_a_close_with_a_code_that_must_not_be_sent_is_not_begun(code: int) -> None:
    with pytest.raises(ValueError, match=f"not carry the code {code}: use 1000 to 1003"):
        check_close(code, "")


def test_a_close_with_a_reason_that_is_no_text_is_not_begun() -> None:
    with pytest.raises(ValueError, match="cannot be sent as UTF-8"):
        check_close(1000, "\ud800")


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [("1000", "", "an integer such as 1000, not str"), (1000, b"", "is a string, not bytes")],
)
def test_a_close_with_arguments_of_other_types_is_not_begun(
    code: Any, reason: Any, words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        check_close(code, reason)


@pytest.mark.parametrize(
    ("payload", "code", "words"),
    [(b"\x03", 1002, "half a code"), (b"\x03\xe8\xff", 1007, "a reason that is not UTF-8")],
)
def test_a_close_that_is_cut_or_no_text_is_refused(payload: bytes, code: int, words: str) -> None:
    with pytest.raises(FrameError, match=words) as caught:
        decode_close(payload)
    assert caught.value.code == code


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_close_is_decoded_from_any_buffer(kind: type) -> None:
    assert decode_close(kind(of("0fa0 627965"))) == (4000, "bye")


@given(st.sampled_from([1000, 1001, 1002, 1003, 1007, 1011, 1014, 3000, 4999]), st.text())
def test_close_decodes_to_what_was_encoded(code: int, reason: str) -> None:
    decoded, kept = decode_close(encode_close(code, reason))
    assert decoded == code
    assert reason.startswith(kept)
    assert kept == reason or len(kept.encode()) > 123 - 4


# Chopping

messages = st.tuples(
    st.sampled_from([b"\x00", b"\x3f", b"\x40\x40", b"\xc0\x00\x00\x00\x40\x00\x00\x00"]),
    st.binary(max_size=300),
)
controls = st.tuples(
    st.sampled_from([Opcode.CLOSE, Opcode.PING, Opcode.PONG]), st.binary(max_size=125)
)
cuts = st.lists(st.integers(1, 40), max_size=30)


def in_pieces(framing: Framing, wire: bytes, sizes: list[int]) -> list[tuple[Opcode, bytes]]:
    frames = []
    for size in sizes:
        frames += feed(framing, wire[:size])
        wire = wire[size:]
    return frames + feed(framing, wire)


@settings(max_examples=examples(80))
@given(
    st.sampled_from([1, 2]),
    st.lists(st.one_of(messages, controls), max_size=8),
    cuts,
)
def test_any_chopping_gives_the_same_frames(
    width: int, sent: list[tuple[bytes, bytes] | tuple[Opcode, bytes]], sizes: list[int]
) -> None:
    framing = ByteFraming(LIMIT, width)
    wire, expected = b"", []
    for first, payload in sent:
        if isinstance(first, Opcode):
            wire += framing.encode_control(first, payload)
            expected.append((first, payload))
        else:
            head = first + bytes(width)
            wire += encoded(framing, head, payload)
            expected.append((Opcode.BINARY, head + payload))
    assert in_pieces(ByteFraming(LIMIT, width), wire, sizes) == expected
    assert feed(ByteFraming(LIMIT, width), wire, 1) == expected


@settings(max_examples=examples(150))
@given(st.sampled_from([1, 2]), st.binary(max_size=200), cuts)
def test_any_bytes_give_the_same_frames_and_failure(
    width: int, wire: bytes, sizes: list[int]
) -> None:
    whole, pieces, single = (ByteFraming(150, width) for _ in range(3))
    expected = feed(whole, wire)
    assert in_pieces(pieces, wire, sizes) == expected
    assert feed(single, wire, 1) == expected
    assert str(pieces.failure) == str(single.failure) == str(whole.failure)
    assert whole.failure is None or whole.failure.code in (1002, 1009)


# Two machines over it


def carry(sender: MuxProtocol, framing: Framing, receiver: MuxProtocol, chunk: int) -> list[Event]:
    """Carry all that one machine has to send; accept what it opens."""
    wire = b"".join(
        bytes(piece)
        for message in sender.control_to_send() + sender.data_to_send()
        for piece in framing.encode(message)
    )
    events = []
    for kind, message in feed(framing, wire, chunk):
        assert kind is Opcode.BINARY
        receiver.receive_data(message)
        for event in receiver.events():
            events.append(event)
            if isinstance(event, StreamOpened):
                receiver.accept(event.stream_id, 100)
    return events


@BOTH_ROLES
@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_machines_understand_each_other_over_a_byte_stream(role: Role, chunk: int) -> None:
    near, far = native(role), native(other(role))
    out, back = ByteFraming(LIMIT), ByteFraming(LIMIT)
    stream_id = near.open_stream()
    carry(near, out, far, chunk)
    carry(far, back, near, chunk)
    near.send_data(stream_id, b"hello")
    near.close_write(stream_id, 0.0)
    assert carry(near, out, far, chunk) == [
        DataReceived(stream_id, b"hello"),
        StreamEnded(stream_id),
    ]


# No framing at all


@each_case
@CHUNKS
@pytest.mark.parametrize("size", SIZES)
def test_bytes_without_framing_come_in_as_they_are(size: int, chunk: int | None) -> None:
    receiver = NoFraming()
    wire = bytes(n % 251 for n in range(size if chunk is None else min(size, 1000)))
    frames = feed(receiver, wire, chunk)
    assert {kind for kind, _ in frames} == {Opcode.BINARY}
    assert b"".join(data for _, data in frames) == wire
    assert receiver.failure is None


def test_bytes_without_framing_are_a_view_of_the_receive_buffer() -> None:
    receiver = NoFraming()
    receiver.get_buffer()[:3] = b"abc"
    ((_, data),) = receiver.received(3)
    assert isinstance(data, memoryview)
    assert bytes(data) == b"abc"


def test_buffer_without_framing_grows_with_full_reads_and_shrinks() -> None:
    receiver = NoFraming()
    feed(receiver, bytes(3 * LARGEST_BUFFER))
    assert len(receiver.get_buffer()) == LARGEST_BUFFER
    receiver.shrink()
    assert len(receiver.get_buffer()) == SMALLEST_BUFFER


@pytest.mark.parametrize(
    ("head", "body", "pieces"),
    [(b"head", b"body", [b"head", b"body"]), (b"head", b"", [b"head"])],
)
def test_bytes_without_framing_go_out_as_they_are(
    head: bytes, body: bytes, pieces: list[bytes]
) -> None:
    assert NoFraming().encode((head, body)) == pieces


@pytest.mark.parametrize("kind", [Opcode.PING, Opcode.PONG, Opcode.CLOSE])
def test_without_framing_there_is_no_word_for_control(kind: Opcode) -> None:
    assert NoFraming().encode_control(kind, b"payload") == b""
    assert not NoFraming.has_controls
    assert Framing.has_controls


def test_every_end_without_framing_is_between_messages() -> None:
    receiver = NoFraming()
    feed(receiver, b"half of something")
    assert receiver.between_messages()
