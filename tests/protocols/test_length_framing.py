"""Messages behind their lengths."""

from __future__ import annotations

import pytest

from wsmux.protocols.framing import LengthFraming, Opcode

LIMIT = 100


def feed(framing: LengthFraming, data: bytes) -> list[bytes]:
    """Give it bytes, as many at once as it takes, and return the messages."""
    messages: list[bytes] = []
    while data:
        buffer = framing.get_buffer()
        count = min(len(buffer), len(data))
        buffer[:count], data = data[:count], data[count:]
        received = framing.received(count)
        assert all(kind is Opcode.BINARY for kind, _ in received)
        messages += [bytes(message) for _, message in received]
    return messages


def framed(*messages: bytes) -> bytes:
    framing = LengthFraming(LIMIT)
    return b"".join(bytes(part) for m in messages for part in framing.encode((m[:3], m[3:])))


MESSAGES = [b"", b"one", bytes(LIMIT), b"four"]


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 1000])
def test_messages_come_whole_however_they_are_cut(step: int) -> None:
    data, framing = framed(*MESSAGES), LengthFraming(LIMIT)
    cut = [data[start : start + step] for start in range(0, len(data), step)]
    assert [message for piece in cut for message in feed(framing, piece)] == MESSAGES
    assert framing.failure is None


def test_the_length_comes_first() -> None:
    assert framed(b"abcde") == b"\x00\x00\x00\x05abcde"


def test_a_message_above_the_limit_is_refused_by_its_length_alone() -> None:
    framing = LengthFraming(LIMIT)
    assert feed(framing, framed(b"before") + b"\x00\x00\x00\x65") == [b"before"]
    assert str(framing.failure) == "message of 101 bytes is above the limit of 100"
    assert feed(framing, bytes(200)) == []


def test_there_is_no_word_for_pings_and_closes() -> None:
    framing = LengthFraming(LIMIT)
    assert not framing.has_controls
    assert framing.encode_control(Opcode.PING, b"") == b""
