"""Heads and bodies of Yamux come out the same however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.exceptions import CloseCode
from wsmux.protocols.yamux_frames import (
    HEAD_SIZE,
    INTERNAL_ERROR,
    NORMAL,
    PROTOCOL_ERROR,
    Flag,
    FrameReader,
    Head,
    Type,
    encode_head,
    ended_by_peer,
    go_away_code,
)

HEADS = st.builds(
    Head,
    version=st.just(0),
    type=st.sampled_from(Type),
    flags=st.integers(0, 15),
    stream_id=st.integers(0, 2**32 - 1),
    length=st.integers(0, 40),
)


def test_a_head_is_twelve_bytes_big_endian() -> None:
    # hashicorp/yamux, spec.md, "Framing": version, type, flags, stream id, length.
    assert encode_head(Type.WINDOW, Flag.SYN | Flag.FIN, 3, 0x01020304) == bytes.fromhex(
        "00 01 0005 00000003 01020304"
    )
    assert HEAD_SIZE == 12


def read(pieces: list[bytes], keep: bool = True) -> list[tuple[Head, bytes]]:
    """Return the frames in these pieces; data frames alone have a body."""
    reader, frames = FrameReader(), []
    head: Head | None = None
    for piece in pieces:
        data, position = memoryview(piece), 0
        while position < len(data) or head is not None:
            if head is None:
                head, position = reader.head(data, position)
                if head is None:
                    break
            size = head.length if head.type == Type.DATA else 0
            body, position = reader.body(data, position, size, keep) if size else (b"", position)
            if body is None:
                break
            frames.append((head, body))
            head = None
    assert reader.between_frames()
    assert reader.incomplete() is None
    assert reader.held() == 0
    return frames


@given(st.lists(HEADS, max_size=5), st.data())
def test_frames_come_whole_from_any_pieces(heads: list[Head], data: st.DataObject) -> None:
    frames = [
        (head, bytes(range(head.length)) if head.type == Type.DATA else b"") for head in heads
    ]
    wire = b"".join(encode_head(*head[1:]) + body for head, body in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert read(pieces) == frames
    assert [head for head, _ in read(pieces, keep=False)] == [head for head, _ in frames]


def test_a_body_that_is_not_kept_costs_nothing() -> None:
    reader = FrameReader()
    body, end = reader.body(memoryview(bytes(1000)), 0, 5000, keep=False)
    assert (body, end, reader.held()) == (None, 1000, 0)
    assert reader.incomplete() is not None
    assert reader.body(memoryview(bytes(9000)), 0, 5000, keep=False) == (b"", 4000)
    assert reader.incomplete() is None


def test_the_number_of_an_incomplete_frame_changes_with_the_frame() -> None:
    reader = FrameReader()
    head = memoryview(encode_head(Type.PING, 0, 0, 1))
    numbers = []
    for _ in range(3):
        reader.head(head[:5], 0)
        numbers.append(reader.incomplete())
        assert reader.held() == 5
        assert reader.head(head[5:], 0) == (Head(0, Type.PING, 0, 0, 1), 7)
        assert reader.incomplete() is None
    assert len(set(numbers)) == 3


@pytest.mark.parametrize(
    ("head", "extra"),
    [
        (encode_head(Type.DATA, Flag.SYN, 1, 3), b"abc"),
        (encode_head(Type.WINDOW, 0, 1, 3), b"abc"),
        (encode_head(Type.DATA, 0, 1, 0), b""),
        (encode_head(Type.DATA, 0, 1, 4), b"abc"),
        (encode_head(Type.DATA, 0, 1, 3)[:-1], b""),
    ],
    ids=["flags", "type", "empty", "cut", "half a head"],
)
def test_the_short_way_is_for_whole_plain_data_alone(head: bytes, extra: bytes) -> None:
    assert FrameReader().plain(memoryview(head + extra), 0) == (0, 0, 0)


def test_the_short_way_says_where_the_body_is() -> None:
    data = memoryview(b"??" + encode_head(Type.DATA, 0, 7, 3) + b"abcd")
    assert FrameReader().plain(data, 2) == (7, 14, 17)
    reader = FrameReader()
    reader.head(data[2:6], 0)
    assert reader.plain(data, 2) == (0, 0, 0)  # while a head is incomplete


@pytest.mark.parametrize(
    ("code", "meaning", "close"),
    [
        (PROTOCOL_ERROR, "protocol error", CloseCode.PROTOCOL_ERROR),
        (INTERNAL_ERROR, "internal error", CloseCode.INTERNAL_ERROR),
        (77, "unknown", CloseCode.INTERNAL_ERROR),
    ],
)
def test_a_peer_that_goes_away_for_a_failure_is_told(
    code: int, meaning: str, close: CloseCode
) -> None:
    error = ended_by_peer(code)
    assert f"GO_AWAY code {code} ({meaning})" in str(error)
    assert error.code == close
    assert error.ended_by == "remote"


def test_a_failure_here_is_a_protocol_error_or_an_internal_one() -> None:
    assert go_away_code(CloseCode.PROTOCOL_ERROR) == PROTOCOL_ERROR
    assert go_away_code(CloseCode.POLICY_VIOLATION) == INTERNAL_ERROR
    assert NORMAL == 0
