"""Name the codec of a first message that a server cannot decode."""

from __future__ import annotations

from ...protocols.base import Buffer

__all__ = ["codec_mismatch"]

# By a server's codec: the other one, and how its messages begin. In JSON that is a brace, which in
# msgpack is the number 123; in msgpack the head of a map, which begins no text in UTF-8.
_OTHERS = {
    "msgpack": ("JSON", frozenset(b"{")),
    "json": ("msgpack", frozenset({*range(0x80, 0x90), 0xDE, 0xDF})),
}


def codec_mismatch(first: Buffer, own: str) -> str | None:
    """Return a sentence if a connection's first message looks like one of the other codec.

    Args:
        first: the message, which the server cannot decode.
        own: the name of the server's codec.
    """
    if own not in _OTHERS or not len(first):
        return None
    other, heads = _OTHERS[own]
    if first[0] not in heads:
        return None
    shown = "JSON" if own == "json" else own
    return f"the first message is {other}; this server's codec is {shown}"
