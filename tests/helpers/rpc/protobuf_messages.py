"""Write messages of River as protobuf by hand; shares no code with the library."""

from __future__ import annotations

import msgpack

__all__ = ["EMPTY", "NUMBERS", "number", "packed", "prefix", "text", "varint"]

# What each field is called in the other codecs.
NUMBERS = {
    "id": 1,
    "from": 2,
    "to": 3,
    "seq": 4,
    "ack": 5,
    "streamId": 6,
    "controlFlags": 7,
    "serviceName": 8,
    "procedureName": 9,
    "tracing": 10,
    "bytes": 11,
    "msgpack": 12,
    "timeoutMs": 2000,
}


def varint(value: int) -> bytes:
    digits = []
    while value >= 128:
        digits.append(value % 128 + 128)
        value //= 128
    return bytes([*digits, value])


def prefix(field: str | int, kind: int) -> bytes:
    """Return the tag of a field; kinds are 0 for numbers, 2 for what has a length."""
    number = NUMBERS[field] if isinstance(field, str) else field
    return varint(number * 8 + kind)


def number(field: str | int, value: int) -> bytes:
    return prefix(field, 0) + varint(value)


def text(field: str | int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return prefix(field, 2) + varint(len(data)) + data


def packed(value: object) -> bytes:
    """Return the field of a payload that msgpack carries."""
    return text("msgpack", msgpack.packb(value))


# The message of ``codec_messages.FIELDS``, but for its payload.
EMPTY = b"".join(
    (
        text("id", "i1"),
        text("from", "client"),
        text("to", "SERVER"),
        number("seq", 3),
        number("ack", 2),
        text("streamId", "s1"),
        number("controlFlags", 10),
        text("serviceName", "test"),
        text("procedureName", "add"),
        text("tracing", text(1, "p") + text(2, "s")),
        number("timeoutMs", 1500),
    )
)
