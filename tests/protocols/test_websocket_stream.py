"""A WebSocket that carries a stream of bytes passes them on, whatever messages they come in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.exceptions import FrameError
from wsmux.protocols.base import Role
from wsmux.protocols.framing import LARGEST_BUFFER, Opcode
from wsmux.protocols.websocket import WebSocketFraming

from ..helpers.machine_pairs import BOTH_ROLES, feed
from ..helpers.tables import each_case
from ..helpers.websocket_wire import CONTINUATION, KEY, frame, head, unmasked

LIMIT = 200
BINARY = Opcode.BINARY
CHUNKS = pytest.mark.parametrize("chunk", [None, 1, 2, 3, 7, 1000])


def framing(role: Role, limit: int = LIMIT) -> WebSocketFraming:
    return WebSocketFraming(role, limit, max_fragments=2, keeps_boundaries=False)


def numbered(size: int, start: int = 0) -> bytes:
    return bytes((start + n) % 251 for n in range(size))


def joined(frames: list[tuple[Opcode, bytes]]) -> bytes:
    """Return the bytes of the stream."""
    return b"".join(data for kind, data in frames if kind is BINARY)


def controls(frames: list[tuple[Opcode, bytes]]) -> list[tuple[Opcode, bytes]]:
    return [(kind, data) for kind, data in frames if kind is not BINARY]


def refusal(receiver: WebSocketFraming) -> tuple[str, int]:
    assert type(receiver.failure) is FrameError
    return str(receiver.failure), receiver.failure.code


# Messages


@each_case
@BOTH_ROLES
@CHUNKS
@pytest.mark.parametrize("size", [0, 1, 125, 126, LIMIT])
def test_message_up_to_the_limit_comes_whole(role: Role, size: int, chunk: int | None) -> None:
    receiver = framing(role)
    data = numbered(size)
    assert feed(receiver, frame(role, BINARY, data), chunk) == [(BINARY, data)]


@each_case
@BOTH_ROLES
@CHUNKS
@pytest.mark.parametrize("size", [LIMIT + 1, LIMIT + 2, 1000, 70_000])
def test_message_above_the_limit_comes_in_pieces(role: Role, size: int, chunk: int | None) -> None:
    receiver = framing(role)
    data = numbered(size)
    wire = frame(role, BINARY, data) + frame(role, BINARY, b"next")
    assert joined(feed(receiver, wire, chunk)) == data + b"next"
    assert receiver.failure is None
    assert receiver.between_messages()


@BOTH_ROLES
def test_piece_is_passed_on_as_soon_as_it_is_there(role: Role) -> None:
    receiver = framing(role)
    data = numbered(1000)
    wire = frame(role, BINARY, data)
    start = len(wire) - len(data)
    assert feed(receiver, wire[:start]) == []
    for position in range(start, len(wire), 7):
        piece = wire[position : position + 7]
        assert joined(feed(receiver, piece)) == data[position - start : position - start + 7]


@BOTH_ROLES
def test_message_of_any_size_takes_no_more_memory_than_the_buffer(role: Role) -> None:
    receiver = framing(role)
    start = head(role, BINARY, 2**62) + (KEY if role is Role.SERVER else b"")
    assert feed(receiver, start) == []
    for _ in range(20):
        piece = bytes(LARGEST_BUFFER)
        assert len(joined(feed(receiver, piece))) == len(piece)
    assert len(receiver.get_buffer()) <= LARGEST_BUFFER


def test_mask_goes_on_where_the_piece_before_ended() -> None:
    receiver = framing(Role.SERVER)
    data = numbered(1003)
    wire = head(Role.SERVER, BINARY, len(data)) + KEY + unmasked(data, KEY)
    received = b""
    for position in range(0, len(wire), 5):  # never a multiple of the key's length
        received += joined(feed(receiver, wire[position : position + 5]))
    assert received == data


# Fragments


@each_case
@BOTH_ROLES
@CHUNKS
def test_fragments_are_passed_on_as_they_come(role: Role, chunk: int | None) -> None:
    receiver = framing(role)
    wire = (
        frame(role, BINARY, b"one ", fin=False)
        + frame(role, CONTINUATION, b"", fin=False)
        + frame(role, CONTINUATION, b"two ", fin=False)
        + frame(role, CONTINUATION, b"three ")
        + frame(role, BINARY, b"four")
    )
    frames = feed(receiver, wire, chunk)
    assert [data for _, data in frames] == [b"one ", b"", b"two ", b"three ", b"four"]
    assert receiver.between_messages()


@BOTH_ROLES
def test_fragments_of_a_stream_are_not_counted(role: Role) -> None:
    receiver = framing(role)
    wire = frame(role, BINARY, b"x", fin=False)
    wire += 100 * frame(role, CONTINUATION, numbered(LIMIT), fin=False)
    assert len(joined(feed(receiver, wire))) == 1 + 100 * LIMIT
    assert receiver.failure is None
    assert not receiver.between_messages()


@each_case
@BOTH_ROLES
@CHUNKS
@pytest.mark.parametrize("sizes", [(500, 3), (3, 500), (500, 500), (0, 500), (500, 0)])
def test_fragment_above_the_limit_comes_in_pieces(
    role: Role, sizes: tuple[int, int], chunk: int | None
) -> None:
    receiver = framing(role)
    first, last = numbered(sizes[0]), numbered(sizes[1], 100)
    wire = frame(role, BINARY, first, fin=False) + frame(role, CONTINUATION, last)
    wire += frame(role, BINARY, b"next")
    assert joined(feed(receiver, wire, chunk)) == first + last + b"next"
    assert receiver.between_messages()


@each_case
@BOTH_ROLES
@CHUNKS
@pytest.mark.parametrize("size", [3, 500])
def test_control_frames_between_fragments_are_set_apart(
    role: Role, size: int, chunk: int | None
) -> None:
    receiver = framing(role)
    data = numbered(size)
    wire = (
        frame(role, Opcode.PING, b"before")
        + frame(role, BINARY, data, fin=False)
        + frame(role, Opcode.PING, b"between")
        + frame(role, Opcode.PONG, b"")
        + frame(role, CONTINUATION, data)
        + frame(role, Opcode.CLOSE, b"\x03\xe8")
    )
    frames = feed(receiver, wire, chunk)
    assert joined(frames) == data + data
    assert controls(frames) == [
        (Opcode.PING, b"before"),
        (Opcode.PING, b"between"),
        (Opcode.PONG, b""),
        (Opcode.CLOSE, b"\x03\xe8"),
    ]


# However they are cut


def conversation(role: Role) -> bytes:
    """Return a bit of everything, 2,000 bytes of the stream in all."""
    data = numbered(2000)
    return (
        frame(role, BINARY, data[:10])
        + frame(role, BINARY, data[10:400])
        + frame(role, Opcode.PING, b"ping")
        + frame(role, BINARY, data[400:405], fin=False)
        + frame(role, CONTINUATION, data[405:900], fin=False)
        + frame(role, Opcode.PONG, b"pong")
        + frame(role, CONTINUATION, data[900:1000])
        + frame(role, BINARY, b"")
        + frame(role, BINARY, data[1000:1300], fin=False)
        + frame(role, CONTINUATION, data[1300:2000])
        + frame(role, Opcode.CLOSE, b"")
    )


@BOTH_ROLES
def test_cut_at_any_byte_changes_nothing(role: Role) -> None:
    wire = conversation(role)
    for cut in range(1, len(wire)):
        receiver = framing(role)
        frames = feed(receiver, wire[:cut]) + feed(receiver, wire[cut:])
        assert joined(frames) == numbered(2000)
        assert [kind for kind, _ in controls(frames)] == [Opcode.PING, Opcode.PONG, Opcode.CLOSE]
        assert receiver.between_messages()


@each_case
@BOTH_ROLES
@pytest.mark.parametrize("chunk", range(1, 12))
def test_chopping_changes_nothing(role: Role, chunk: int) -> None:
    frames = feed(framing(role), conversation(role), chunk)
    assert joined(frames) == numbered(2000)
    assert len(controls(frames)) == 3


MESSAGES = st.lists(
    st.lists(st.binary(max_size=300), min_size=1, max_size=4), min_size=1, max_size=6
)


@given(
    role=st.sampled_from(Role),
    messages=MESSAGES,
    limit=st.integers(1, 300),
    chunk=st.integers(1, 400),
)
def test_any_messages_in_any_fragments_give_the_same_stream(
    role: Role, messages: list[list[bytes]], limit: int, chunk: int
) -> None:
    wire = b""
    for fragments in messages:
        last = len(fragments) - 1
        for index, data in enumerate(fragments):
            wire += frame(role, CONTINUATION if index else BINARY, data, fin=index == last)
            wire += frame(role, Opcode.PING, b"p")
    receiver = framing(role, limit)
    frames = feed(receiver, wire, chunk)
    assert joined(frames) == b"".join(b"".join(fragments) for fragments in messages)
    assert receiver.failure is None


# Ends


@each_case
@BOTH_ROLES
@pytest.mark.parametrize("wire_size", [1, 2, 3, 7, 100, 503])
def test_end_within_a_frame_cuts_something_off(role: Role, wire_size: int) -> None:
    receiver = framing(role)
    feed(receiver, frame(role, BINARY, numbered(500))[:wire_size])
    assert not receiver.between_messages()


@BOTH_ROLES
def test_end_between_fragments_cuts_the_message_off(role: Role) -> None:
    receiver = framing(role)
    feed(receiver, frame(role, BINARY, numbered(500), fin=False))
    assert not receiver.between_messages()


# What stays forbidden


@BOTH_ROLES
def test_text_comes_whole_for_its_receiver_to_refuse(role: Role) -> None:
    wire = frame(role, Opcode.TEXT, b"te", fin=False) + frame(role, CONTINUATION, b"xt")
    assert feed(framing(role), wire) == [(Opcode.TEXT, b"text")]


@BOTH_ROLES
def test_text_above_the_limit_is_refused(role: Role) -> None:
    receiver = framing(role)
    assert feed(receiver, head(role, Opcode.TEXT, LIMIT + 1)) == []
    text = f"message of at least {LIMIT + 1} bytes is above the limit of {LIMIT}"
    assert refusal(receiver) == (text, 1009)


@BOTH_ROLES
def test_fragments_of_a_text_above_the_limit_are_refused(role: Role) -> None:
    receiver = framing(role)
    wire = frame(role, Opcode.TEXT, b"t" * 100, fin=False)
    wire += frame(role, CONTINUATION, b"t" * 101)
    assert feed(receiver, wire) == []
    assert refusal(receiver)[1] == 1009


@BOTH_ROLES
def test_too_many_fragments_of_a_text_are_refused(role: Role) -> None:
    receiver = framing(role)
    wire = frame(role, Opcode.TEXT, b"t", fin=False) + 2 * frame(
        role, CONTINUATION, b"t", fin=False
    )
    assert feed(receiver, wire) == []
    assert refusal(receiver) == ("message of more than 2 fragments", 1008)


FORBIDDEN: dict[str, tuple[Callable[[Role], bytes], str]] = {
    "reserved bit": (lambda role: head(role, BINARY, 1000, reserved=0x40), "reserved bit"),
    "reserved opcode": (lambda role: head(role, 3, 1000), "reserved opcode"),
    "other masking": (
        lambda role: head(role, BINARY, 1000, masked=role is Role.CLIENT),
        "frame",
    ),
    "long length": (lambda role: head(role, BINARY, 1000, width=9), "shortest form"),
    "endless length": (lambda role: head(role, BINARY, 2**63), "top bit"),
    "lone continuation": (lambda role: head(role, CONTINUATION, 1000), "without a message"),
    "message in a message": (
        lambda role: frame(role, BINARY, numbered(300), fin=False) + head(role, BINARY, 1000),
        "before the last fragment",
    ),
    "continuation of a whole message": (
        lambda role: frame(role, BINARY, numbered(300)) + head(role, CONTINUATION, 1),
        "without a message",
    ),
    "long ping": (lambda role: head(role, Opcode.PING, 126), "125 bytes"),
    "ping in fragments": (lambda role: head(role, Opcode.PING, 1, fin=False), "fragmented"),
}


@each_case
@BOTH_ROLES
@pytest.mark.parametrize("case", FORBIDDEN)
def test_other_rules_hold_for_a_stream_too(role: Role, case: str) -> None:
    build, sentence = FORBIDDEN[case]
    receiver = framing(role)
    wire = frame(role, BINARY, b"good") + build(role)
    assert joined(feed(receiver, wire))[:4] == b"good"
    text, code = refusal(receiver)
    assert sentence in text
    assert code == 1002
