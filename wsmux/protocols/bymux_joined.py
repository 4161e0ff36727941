"""Join the Writes that stand behind each other on one stream, and cut what is sent into such.

A turn of a stream is several packets. Sent as one message and reported as one piece of data, it
costs little more than a single packet would.
"""

from __future__ import annotations

from ..config import KIB
from .base import Buffer, Message
from .bymux_packets import WRITE, WRITE_LAYOUTS, encode_head
from .bymux_state import Scope

__all__ = ["MAX_BODY", "take_writes", "writes"]

# Most bytes of data in one packet: 13 ms at 10 Mbit/s, so other streams need not wait long.
MAX_BODY = 16 * KIB

# Most bytes reported as one piece; a read mostly asks for no more, and would cut it again.
MAX_PIECE = 64 * KIB


def writes(wire_id: int | None, data: Buffer) -> Message:
    """Return the Writes that carry ``data``, as many as it takes."""
    size = len(data)
    if size <= MAX_BODY:
        return encode_head(WRITE, wire_id, size), data
    parts: list[Buffer] = []
    rest = size % MAX_BODY
    whole = size - rest
    head = encode_head(WRITE, wire_id, MAX_BODY)
    for start in range(0, whole, MAX_BODY):
        parts += (head, data[start : start + MAX_BODY])
    if rest:
        parts += (encode_head(WRITE, wire_id, rest), data[whole:])
    return b"", b"".join(parts)


def take_writes(
    active: dict[int, Scope], data: memoryview, position: int
) -> tuple[Scope | None, bytes, int]:
    """Take whole Writes on one stream, of bytes that it has the credit for and that are read.

    Returns:
        The stream, the bytes and where they end. No stream where another packet stands, or a Write
        that must be looked at closer; then nothing was taken.
    """
    header, size = data[position], len(data)
    layout = WRITE_LAYOUTS.get(header)
    if layout is None or position + layout.size > size:
        return None, b"", position
    read, head = layout.unpack_from, layout.size
    _, wire_id, number = read(data, position)
    stream = active.get(wire_id)
    start = position + head
    end = start + number
    if stream is None or end > size or not stream.incoming.take(number):
        return None, b"", position
    if end == size:
        return stream, bytes(data[start:end]), end
    bodies, joined = [data[start:end]], 0
    room = min(stream.incoming.credit, MAX_PIECE - number)
    while end + head <= size:
        kind, following, number = read(data, end)
        start = end + head
        if kind != header or following != wire_id or not 0 < number <= room - joined:
            break
        if start + number > size:
            break
        end = start + number
        joined += number
        bodies.append(data[start:end])
    stream.incoming.take(joined)
    return stream, b"".join(bodies), end
