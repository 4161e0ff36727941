"""The head of each frame of each wire is read, and frames are found in bytes however chopped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.exceptions import FrameError
from wsmux.protocols import bymux_packets as bymux
from wsmux.protocols.framing import Opcode, encode_close
from wsmux.protocols.varint import MAX_VARINT, encode_varint
from wsmux.protocols.yamux_frames import Flag, Type, encode_head
from wsmux.recording.frame_parser import KEPT, Cutter, FrameHead, cutter, read_head

from ..helpers.tables import each_case

NATIVE = [
    (b"\x04\x00hello", FrameHead("DATA", 4, length=5)),
    (b"\x04\x01\x00\x04\x00\x00", FrameHead("ACK", 4, credit=262_144)),
    (b"\x04\x02\x00\x40\x46", FrameHead("ERROR", 4, code=70, direction="read")),
    (b"\x04\x03\x01", FrameHead("CLOSE", 4, direction="write")),
    (b"\x06\x04\x07", FrameHead("GO_AWAY", code=7, value=6)),
]
YAMUX = [
    (
        encode_head(Type.DATA, Flag.SYN | Flag.FIN, 3, 2) + b"ab",
        FrameHead("DATA", 3, length=2, flags=("SYN", "FIN")),
    ),
    (encode_head(Type.WINDOW, Flag.ACK, 3, 9), FrameHead("WINDOW", 3, credit=9, flags=("ACK",))),
    (encode_head(Type.WINDOW, Flag.RST, 3, 9), FrameHead("WINDOW", 3, code=9, flags=("RST",))),
    (encode_head(Type.PING, Flag.SYN, 0, 9), FrameHead("PING", value=9, flags=("SYN",))),
    (encode_head(Type.GO_AWAY, 0, 0, 1), FrameHead("GO_AWAY", code=1)),
    (encode_head(Type.GO_AWAY, Flag.SYN, 0, 2), FrameHead("GO_AWAY", code=2, flags=("SYN",))),
]
BYMUX = [
    (bymux.encode_head(bymux.CREDIT, None, 3), FrameHead("CREDIT", credit=3)),
    (bymux.encode_head(bymux.CREDIT, 300, 3), FrameHead("CREDIT", 300, credit=3)),
    (bymux.encode_head(bymux.WRITE, None, 5), FrameHead("WRITE", value=5)),
    (bymux.encode_head(bymux.WRITE, 5, 3) + b"abc", FrameHead("WRITE", 5, length=3)),
    (bymux.encode_head(bymux.PING, None), FrameHead("PING")),
    (bymux.encode_head(bymux.CLOSE, 5), FrameHead("CLOSE", 5)),
]
CASES = [
    pytest.param(wire, frame, head, id=f"{wire} {head.type} {head.stream}")
    for wire, cases in (("wsmux", NATIVE), ("yamux", YAMUX), ("bymux", BYMUX))
    for frame, head in cases
]
MALFORMED = [
    ("wsmux", b""),
    ("wsmux", b"\x00"),
    ("wsmux", b"\x00\x05"),
    ("wsmux", b"\x00\x09"),
    ("wsmux", b"\x00\x01\x00"),
    ("wsmux", b"\x00\x02"),
    ("wsmux", b"\x00\x02\x00"),
    ("wsmux", b"\x00\x03\x02"),
    ("js-ws", b"\x00\x00"),
    ("yamux", b"\x00" * 11),
    ("yamux", b"\x01" + b"\x00" * 11),
    ("yamux", b"\x00\x04" + b"\x00" * 10),
    ("bymux", b""),
    ("bymux", b"\xe0"),
    ("bymux", b"\x20"),
]
STREAMS = {"yamux": b"".join(f for f, _ in YAMUX), "bymux": b"".join(f for f, _ in BYMUX)}
FRAMES = {"yamux": YAMUX, "bymux": BYMUX}
CUT = pytest.mark.parametrize("wire", ["yamux", "bymux"])


@each_case
@pytest.mark.parametrize(("wire", "frame", "head"), CASES)
def test_a_head_says_what_its_frame_does(wire: str, frame: bytes, head: FrameHead) -> None:
    assert read_head(wire, frame, len(frame)) == head


@each_case
@pytest.mark.parametrize(("wire", "frame", "head"), CASES)
def test_the_start_of_a_frame_is_enough(wire: str, frame: bytes, head: FrameHead) -> None:
    assert read_head(wire, frame[:KEPT], len(frame)) == head


def test_the_types_of_js_ws_have_two_bytes() -> None:
    assert read_head("js-ws", b"\x04\x00\x00hello", 8) == FrameHead("DATA", 4, length=5)


def test_the_longest_native_frame_without_data_is_kept_whole() -> None:
    longest = encode_varint(MAX_VARINT)
    frame = longest + b"\x00\x02\x01" + longest
    assert len(frame) <= KEPT
    assert read_head("js-ws", frame, len(frame)).code == MAX_VARINT


@each_case
@pytest.mark.parametrize(("wire", "frame"), MALFORMED)
def test_what_cannot_be_read_is_malformed_and_says_why(wire: str, frame: bytes) -> None:
    head = read_head(wire, frame, len(frame))
    assert (head.type, head.length) == ("MALFORMED", len(frame))
    assert head.detail


@pytest.mark.parametrize(
    ("kind", "data", "head"),
    [
        (Opcode.TEXT, b"hello", FrameHead("TEXT", length=5)),
        (Opcode.PING, b"12", FrameHead("CARRIER_PING", length=2)),
        (Opcode.PONG, b"12", FrameHead("CARRIER_PONG", length=2)),
        (
            Opcode.CLOSE,
            encode_close(1001, "bye"),
            FrameHead("CARRIER_CLOSE", code=1001, detail="bye"),
        ),
    ],
    ids=lambda value: str(value)[:12],
)
def test_what_the_carrier_says_is_told_apart(kind: Opcode, data: bytes, head: FrameHead) -> None:
    assert read_head("yamux", data, len(data), kind) == head


def test_a_malformed_close_of_the_carrier_is_malformed() -> None:
    assert read_head("wsmux", b"\x01", 1, Opcode.CLOSE).type == "MALFORMED"


def chopped(cut: Cutter, data: bytes, sizes: list[int], most: int | None = None) -> list[bytes]:
    found = []
    rest = memoryview(data)
    for size in [*sizes, len(data)]:
        part, rest = rest[:size], rest[size:]
        found += cut.feed(part) if most is None else cut.feed(part, most)
    assert [size for _, size in found] == [len(frame) for frame, _ in FRAMES[wire_of(data)]]
    return [frame for frame, _ in found]


def wire_of(data: bytes) -> str:
    return next(wire for wire, stream in STREAMS.items() if stream == data)


def make(wire: str, keep: bool) -> Cutter:
    found = cutter(wire, keep)
    assert found is not None
    return found


@CUT
@given(sizes=st.lists(st.integers(0, 20), max_size=20))
def test_any_chopping_gives_the_same_frames(wire: str, sizes: list[int]) -> None:
    cut = make(wire, keep=True)
    assert chopped(cut, STREAMS[wire], sizes) == [frame for frame, _ in FRAMES[wire]]
    assert not cut.incomplete


@CUT
@given(sizes=st.lists(st.integers(0, 20), max_size=20))
def test_any_chopping_gives_the_same_heads(wire: str, sizes: list[int]) -> None:
    cut = make(wire, keep=False)
    heads = chopped(cut, STREAMS[wire], sizes)
    expected = [frame[: len(frame) - (head.length or 0)] for frame, head in FRAMES[wire]]
    assert heads == expected
    assert not cut.incomplete


@CUT
@given(sizes=st.lists(st.integers(0, 20), max_size=20))
def test_of_long_frames_the_start_is_given(wire: str, sizes: list[int]) -> None:
    starts = chopped(make(wire, keep=True), STREAMS[wire], sizes, most=13)
    assert starts == [frame[:13] for frame, _ in FRAMES[wire]]


@CUT
@pytest.mark.parametrize("keep", [True, False])
def test_a_frame_that_is_cut_short_is_incomplete(wire: str, keep: bool) -> None:
    head = {"yamux": encode_head(Type.DATA, 0, 1, 5), "bymux": bymux.encode_head(bymux.WRITE, 1, 5)}
    cut = make(wire, keep)
    cut.feed(head[wire][:2])
    assert cut.incomplete
    cut.feed(head[wire][2:] + b"abcd")
    assert cut.incomplete
    cut.feed(b"e")
    assert not cut.incomplete


def test_where_nobody_knows_how_long_a_packet_is_nothing_is_cut() -> None:
    with pytest.raises(FrameError, match="undefined type"):
        make("bymux", keep=False).feed(b"\xff")


@pytest.mark.parametrize("wire", ["wsmux", "js-ws"])
def test_native_messages_need_no_cutting(wire: str) -> None:
    assert cutter(wire, keep=True) is None
