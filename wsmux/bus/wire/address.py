"""Write and parse addresses of sessions: as text, Redis stream key and protobuf message."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import one_line
from .messages import AddressMessage

__all__ = ["Address", "address_of", "is_text", "parse_address", "put_address"]

STREAM = "stream:"

# The number of a twin has 32 bits on the wire.
MAX_TWIN = 2**32 - 1

# No sign and no leading zero, so that an address has one text. The reference parser accepts both.
DECIMAL = re.compile(r"0|[1-9][0-9]{0,9}")


class Address(NamedTuple):
    """Address one session of a twin.

    Without a session it is the twin's gateway. The empty session is a session like any other.
    """

    twin: int
    session: str | None = None

    def __str__(self) -> str:
        return str(self.twin) if self.session is None else f"{self.twin}:{self.session}"

    def stream_key(self) -> str:
        """Return the key of the Redis stream in which relays keep its messages."""
        return f"{STREAM}{self}"

    def shown(self) -> str:
        """Return its text for logs: on one line, whatever the name of the session."""
        return one_line(str(self))


def is_text(text: str) -> bool:
    """Return whether a text is valid Unicode; JSON can also carry lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_address(text: str) -> Address:
    """Parse ``twin`` or ``twin:session``, split at the first colon.

    Raises:
        ValueError: the twin is not a decimal number of 32 bits.
    """
    number, colon, session = text.partition(":")
    if not DECIMAL.fullmatch(number) or int(number) > MAX_TWIN:
        raise ValueError(
            f"expected an address 'twin' or 'twin:session' with a twin from 0 to {MAX_TWIN}, "
            f"got {text[:80]!r}"
        )
    return Address(int(number), session if colon else None)


def address_of(message: AddressMessage) -> Address | None:
    """Return the address in a protobuf message; ``None`` if it is not set, or is twin 0.

    No twin has the number 0: relays leave their source empty, and pings go to an empty address.
    """
    if not message.twin:
        return None
    return Address(message.twin, message.connection if message.HasField("connection") else None)


def put_address(message: AddressMessage, address: Address) -> None:
    """Write an address into a protobuf message, which then counts as set.

    Raises:
        ValueError: the twin has more than 32 bits, or the session is not valid Unicode.
    """
    message.Clear()
    message.SetInParent()
    message.twin = address.twin
    if address.session is not None:
        message.connection = address.session
