"""The frames of durable streams are found in what a connection's streams carry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.protocols.durable import DurableSender
from wsmux.recording.durable_frames import MAX_KNOWN, DurableFrames
from wsmux.recording.frame_parser import FrameHead

from ..helpers.vectors.durable import FRAMES, Vector

EPOCH = bytes(range(16))
SENT, ANSWERED = True, False


def conversation() -> tuple[bytes, bytes, list[str], list[str]]:
    """Return what both sides say, and the types of their frames."""
    sender = DurableSender("up", EPOCH, 7)
    data = sender.open()
    said = b"\x10" + EPOCH + bytes(8)
    sender.receive(said)
    data += sender.data(3) + b"abc" + sender.data(4) + b"defg"
    data += sender.end(bytes(32))
    said += b"\x11" + (3).to_bytes(8, "big") + b"\x12" + (7).to_bytes(8, "big")
    return (
        data,
        said,
        ["DURABLE_OPEN", "DURABLE_DATA", "DURABLE_DATA", "DURABLE_END"],
        ["DURABLE_ACCEPTED", "DURABLE_COMMIT", "DURABLE_COMPLETE"],
    )


def carried(frames: DurableFrames, sent: bool, data: bytes, stream: int = 4) -> list[FrameHead]:
    return frames.feed(sent, FrameHead("DATA", stream, length=len(data)), b"head" + data)


@given(st.lists(st.integers(1, 40), max_size=20))
def test_frames_are_found_however_the_data_are_cut(sizes: list[int]) -> None:
    data, said, expected, answers = conversation()
    frames, found = DurableFrames(), []
    for size in [*sizes, len(data)]:
        if data:
            found += carried(frames, SENT, data[:size])
            data = data[size:]
    assert [head.type for head in found] == expected
    assert found[0].detail == f"name 'up' epoch {EPOCH.hex()} size 7"
    assert [head.position for head in found] == [None, 0, 3, 7]
    assert [head.length for head in found] == [None, 3, 4, None]
    told = [head for byte in said for head in carried(frames, ANSWERED, bytes((byte,)))]
    assert [head.type for head in told] == answers
    assert [head.position for head in told] == [0, 3, 7]


def test_a_refusal_has_its_kind_and_reason() -> None:
    frames = DurableFrames()
    carried(frames, SENT, DurableSender("up", EPOCH, None).open())
    (head,) = carried(frames, ANSWERED, b"\x13\x08\x00\x04busy")
    assert head == FrameHead("DURABLE_REFUSED", 4, code=8, detail="busy")


def test_an_unknown_size_is_shown_as_such() -> None:
    (head,) = carried(DurableFrames(), SENT, DurableSender("a", EPOCH, None).open())
    assert head.detail.endswith(" size unknown")


@pytest.mark.parametrize("vector", FRAMES, ids=lambda vector: vector["name"])
def test_each_frame_of_the_vectors_is_known(vector: Vector) -> None:
    frames, frame = DurableFrames(), bytes.fromhex(vector["hex"])
    if vector["type"] != "OPEN":
        carried(frames, SENT, DurableSender("a", EPOCH, None).open())
    (head,) = carried(frames, vector["side"] == "sender", frame)
    assert head.type == f"DURABLE_{vector['type']}"


@pytest.mark.parametrize("data", [b"hello", b"wsmux", b"wsmuxdur\x02", b"\x10" + bytes(24)])
def test_what_is_no_durable_stream_is_passed_over(data: bytes) -> None:
    frames = DurableFrames()
    assert carried(frames, SENT, data) == []
    assert carried(frames, SENT, b"anything") == []
    assert carried(frames, ANSWERED, b"\x11" + bytes(8)) == []


def test_what_a_durable_stream_cannot_say_is_told_once() -> None:
    frames = DurableFrames()
    carried(frames, SENT, DurableSender("a", EPOCH, None).open())
    (head,) = carried(frames, SENT, b"\x09")
    assert head.type == "MALFORMED"
    assert head.detail.startswith("durable stream: ")
    assert carried(frames, SENT, b"\x09") == []


def test_a_frame_that_was_not_kept_ends_what_can_be_told() -> None:
    frames = DurableFrames()
    carried(frames, SENT, DurableSender("a", EPOCH, None).open())
    assert frames.feed(SENT, FrameHead("DATA", 4, length=9), None) == []
    assert carried(frames, SENT, b"\x01" + bytes(8) + bytes((0, 0, 0, 1))) == []


def test_frames_without_data_say_nothing() -> None:
    frames = DurableFrames()
    assert frames.feed(SENT, FrameHead("GO_AWAY", code=1), b"abc") == []
    assert frames.feed(SENT, FrameHead("ACK", 4, credit=1), b"abc") == []
    assert frames.feed(SENT, FrameHead("DATA", 4, length=0), b"") == []


def test_a_bymux_id_may_be_used_again() -> None:
    frames, start = DurableFrames(), DurableSender("a", EPOCH, None).open()
    for _ in range(2):
        assert [head.type for head in carried(frames, SENT, start)] == ["DURABLE_OPEN"]
        frames.feed(SENT, FrameHead("CLOSE", 4), b"\x00")


def test_streams_without_end_take_no_memory_without_end() -> None:
    frames, start = DurableFrames(), DurableSender("a", EPOCH, None).open()
    carried(frames, SENT, start, 0)
    for stream in range(1, MAX_KNOWN + 1):
        carried(frames, SENT, b"hello", stream)
    assert [head.type for head in carried(frames, SENT, start, 0)] == ["DURABLE_OPEN"]
