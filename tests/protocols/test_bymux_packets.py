"""Packets of Bymux are written in the fewest bytes, read in any width, and cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.exceptions import FrameError
from wsmux.protocols.bymux_packets import (
    CLOSE,
    CREDIT,
    MAX_NUMBER,
    NAMES,
    PING,
    PONG,
    STOP_READ,
    WRITE,
    Packet,
    PacketReader,
    encode_head,
)

from ..helpers.tables import each_case

IDS = st.none() | st.integers(0, MAX_NUMBER)


@st.composite
def packets(draw: st.DrawFn) -> tuple[bytes, Packet]:
    """Draw a packet and the bytes that it is written in."""
    kind, wire_id = draw(st.sampled_from(range(len(NAMES)))), draw(IDS)
    if kind == WRITE and wire_id is not None:
        body = draw(st.binary(max_size=300))
        return encode_head(WRITE, wire_id, len(body)) + body, Packet(
            WRITE, wire_id, len(body), body
        )
    if kind in (CREDIT, WRITE):
        number = draw(st.integers(0, MAX_NUMBER))
        return encode_head(kind, wire_id, number), Packet(kind, wire_id, number, None)
    return encode_head(kind, wire_id), Packet(kind, wire_id, 0, None)


def read(pieces: list[bytes]) -> list[Packet]:
    """Return the whole packets in these pieces."""
    reader, found = PacketReader(), []
    for piece in pieces:
        data, position = memoryview(piece), 0
        while position < len(data):
            packet, position = reader.packet(data, position)
            if packet is None or (reader.incomplete() is not None and packet.body is None):
                continue  # the head of a Write whose body is still to come
            body = None if packet.body is None else bytes(packet.body)
            found.append(packet._replace(body=body))
    assert reader.between_packets()
    assert reader.incomplete() is None
    assert reader.held() == 0
    return found


@given(st.lists(packets(), max_size=6), st.data())
def test_packets_come_whole_from_any_pieces(
    drawn: list[tuple[bytes, Packet]], data: st.DataObject
) -> None:
    wire = b"".join(written for written, _ in drawn)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert read(pieces) == [packet for _, packet in drawn]


@pytest.mark.parametrize(
    ("kind", "wire_id", "number", "written"),
    [
        (PING, None, None, "50"),
        (PONG, 0, None, "60 00"),
        (CLOSE, 255, None, "80 ff"),
        (STOP_READ, 256, None, "a4 0100"),
        (CREDIT, None, 65_535, "11 ffff"),
        (CREDIT, 65_536, 1, "08 00010000 01"),
        (WRITE, 2**32, 2**32 - 1, "2e 0000000100000000 ffffffff"),
        (WRITE, None, MAX_NUMBER, "33 ffffffffffffffff"),
    ],
)
def test_integers_take_the_fewest_bytes(
    kind: int, wire_id: int | None, number: int | None, written: str
) -> None:
    assert encode_head(kind, wire_id, number) == bytes.fromhex(written)


@pytest.mark.parametrize("width", range(4))
def test_an_integer_is_read_in_any_width(width: int) -> None:
    size = 1 << width
    written = bytes([WRITE << 5 | width << 2 | width]) + (7).to_bytes(size) + (1).to_bytes(size)
    assert read([written + b"x"]) == [Packet(WRITE, 7, 1, b"x")]


def test_bits_without_a_meaning_are_not_looked_at() -> None:
    assert read([bytes([PING << 5 | 0x10 | 0x0F])]) == [Packet(PING, None, 0, None)]


@each_case
@pytest.mark.parametrize("header", range(0xC0, 0x100))
def test_the_types_6_and_7_do_not_exist(header: int) -> None:
    with pytest.raises(FrameError, match=f"packet of the undefined type {header >> 5}"):
        PacketReader().packet(memoryview(bytes([header])), 0)


def test_the_length_of_a_write_is_told_before_its_body_is_kept() -> None:
    reader = PacketReader()
    head = encode_head(WRITE, 4, 1_000_000)
    assert reader.packet(memoryview(head + b"x" * 10), 0) == (
        Packet(WRITE, 4, 1_000_000, None),
        len(head),
    )
    assert reader.held() == len(head)


@pytest.mark.parametrize("number", [-1, MAX_NUMBER + 1])
def test_what_does_not_fit_64_bits_is_not_written(number: int) -> None:
    with pytest.raises(ValueError, match="does not fit the 64 bits of a Bymux integer"):
        encode_head(CREDIT, 1, number)
    with pytest.raises(ValueError, match="does not fit the 64 bits of a Bymux integer"):
        encode_head(CLOSE, number)
