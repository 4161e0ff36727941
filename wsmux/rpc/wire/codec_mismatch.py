"""Recognize the codec of a first message that a server cannot decode."""

from __future__ import annotations

from collections.abc import Callable

from ...protocols.base import Buffer

__all__ = ["codec_mismatch"]


def _is_protobuf(first: Buffer) -> bool:
    """Return whether a message begins with the fields 1 (the id, if any) and 2 of protobuf."""
    behind = 2 + first[1] if first[0] == 0x0A and len(first) > 1 else len(first)
    return behind < len(first) and first[behind] == 0x12


# By codec: the name to show, and how its messages begin. JSON begins with a brace, which msgpack
# reads as the number 123; msgpack begins with the head of a map, which UTF-8 never begins with.
_BEGINNINGS: dict[str, tuple[str, Callable[[Buffer], bool]]] = {
    "json": ("JSON", lambda first: first[0] == 0x7B),
    "msgpack": ("msgpack", lambda first: first[0] in {*range(0x80, 0x90), 0xDE, 0xDF}),
    "protobuf": ("protobuf", _is_protobuf),
}


def codec_mismatch(first: Buffer, own: str) -> str | None:
    """Return a message that names both codecs if a first message looks like another codec's.

    Args:
        first: the first message of a connection, which the server cannot decode.
        own: the name of the server's codec.
    """
    if own not in _BEGINNINGS or not len(first):
        return None
    for name, (theirs, begins) in _BEGINNINGS.items():
        if name != own and begins(first):
            ours = _BEGINNINGS[own][0]
            return f"the first message is {theirs}; this server's codec is {ours}"
    return None
