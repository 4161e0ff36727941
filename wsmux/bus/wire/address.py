"""Name a twin and its session: as text, as the key of a Redis stream, as a protobuf message."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import one_line
from .messages import AddressMessage

__all__ = ["Address", "address_of", "is_text", "parse_address", "parse_stream_key", "put_address"]

STREAM = "stream:"

# Twins are numbered by 32 bits on the wire.
MAX_TWIN = 2**32 - 1

# No sign, no leading zero: one address has one text. The known parser takes both.
DECIMAL = re.compile(r"0|[1-9][0-9]{0,9}")


class Address(NamedTuple):
    """Name one session of a twin.

    Without a session it is the twin's gateway. An empty session is a session like any other.
    """

    twin: int
    session: str | None = None

    def __str__(self) -> str:
        return str(self.twin) if self.session is None else f"{self.twin}:{self.session}"

    def stream_key(self) -> str:
        """Return the key of the Redis stream in which relays keep its messages."""
        return f"{STREAM}{self}"

    def shown(self) -> str:
        """Return its text for people: on one line, whatever the session is called."""
        return one_line(str(self))


def is_text(text: str) -> bool:
    """Return whether envelopes and Redis can hold a text: JSON also knows halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_address(text: str) -> Address:
    """Return the address that ``twin`` or ``twin:session`` names; the first colon splits.

    Raises:
        ValueError: the twin is no decimal number of 32 bits.
    """
    number, colon, session = text.partition(":")
    if not DECIMAL.fullmatch(number) or int(number) > MAX_TWIN:
        raise ValueError(
            f"an address is 'twin' or 'twin:session' with a twin from 0 to {MAX_TWIN}, "
            f"not {text[:80]!r}"
        )
    return Address(int(number), session if colon else None)


def parse_stream_key(key: str) -> Address:
    """Return the address to which a key of a Redis stream belongs.

    Raises:
        ValueError: the key is none.
    """
    if not key.startswith(STREAM):
        raise ValueError(f"the key of a stream starts with {STREAM!r}, unlike {key[:80]!r}")
    return parse_address(key.removeprefix(STREAM))


def address_of(message: AddressMessage) -> Address | None:
    """Return what a message on the wire names; ``None`` if it is not set, or names twin 0.

    No twin has the number 0: relays leave their source out, and pings go to an empty address.
    """
    if not message.twin:
        return None
    return Address(message.twin, message.connection if message.HasField("connection") else None)


def put_address(message: AddressMessage, address: Address) -> None:
    """Write an address into a message on the wire, which counts as set from then on.

    Raises:
        ValueError: the twin has more than 32 bits, or the session is not a string of Unicode.
    """
    message.Clear()
    message.SetInParent()
    message.twin = address.twin
    if address.session is not None:
        message.connection = address.session
