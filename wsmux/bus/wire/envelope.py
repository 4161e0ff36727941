"""Parse, digest, stamp and make envelopes; ``messages`` has their fields.

The digest has no separators between its parts and does not cover the kinds of message and payload,
so one signature fits several envelopes. Compatibility with the reference peers requires that;
``verification`` has the checks that compensate for it. Fields 11 and 17 are deprecated: this side
leaves them empty, which verifies everywhere, and includes them in the digest if they are set.
"""

from __future__ import annotations

import re
from enum import StrEnum
from hashlib import md5, sha256

from ..errors import EXPIRED, FROM_RELAY, BadMessage, BusError
from .address import Address, put_address
from .messages import DecodeError, Envelope

__all__ = [
    "JSON_SCHEMA",
    "MAX_AHEAD",
    "MAX_ENVELOPE",
    "MAX_LIFE",
    "Kind",
    "accepted_until",
    "digest",
    "error",
    "is_fail_fast",
    "is_for_relay",
    "kind_of",
    "parse",
    "pong_for",
    "relay_error",
    "relay_response",
    "request",
    "request_mark",
    "response",
    "stamp",
    "time_left",
]

# Maximum bytes of an envelope: what the reference peers accept in one frame. They send up to 64 MiB
# in several frames, which a relay passes on in one that no peer accepts.
MAX_ENVELOPE = 16 * 1024 * 1024

# Seconds after its timestamp that a receiver accepts an envelope at most, whatever its expiration.
# The reference gateway lets requests live for 1800 s and answers for 3600, and its relay keeps
# nothing for longer. Signatures are remembered for as long, so a life without bound would make the
# memory for them unbounded, too.
MAX_LIFE = 3600

# Seconds more that an envelope may have left on arrival, since the sender's clock may be fast.
MAX_AHEAD = 300

# The npm client sets this schema on every envelope it receives before it checks the signature.
JSON_SCHEMA = "application/json"

# How the commands begin that a relay answers itself, if a request with them goes to twin 0.
RELAY_COMMANDS = "relay."

FAIL_FAST = "fail-fast"
_TAG_MARKS = re.compile(r"[,\s]+")

# Seconds for which an error made by a relay is valid.
RELAY_ERROR_LIFE = 300

PONG_TEXT = b"hello world"


class Kind(StrEnum):
    """Name the kind of an envelope's message."""

    REQUEST = "request"
    RESPONSE = "response"
    ERROR = "error"
    PING = "ping"
    PONG = "pong"
    NONE = "none"


def parse(data: bytes | bytearray | memoryview) -> Envelope:
    """Parse an envelope; unknown fields are kept.

    Raises:
        BadMessage: the bytes are not an envelope, or more than ``MAX_ENVELOPE``.
    """
    if len(data) > MAX_ENVELOPE:
        raise BadMessage(f"an envelope has at most {MAX_ENVELOPE} bytes, not {len(data)}")
    envelope = Envelope()
    try:
        envelope.ParseFromString(bytes(data))
    except DecodeError as failure:
        raise BadMessage(f"{len(data)} bytes are not an envelope: {failure}") from failure
    return envelope


def kind_of(envelope: Envelope) -> Kind:
    """Return the kind of an envelope's message; ``Kind.NONE`` if it is absent or unknown."""
    return Kind(envelope.WhichOneof("message") or Kind.NONE)


def digest(envelope: Envelope) -> bytes:
    """Return the 16 bytes that are signed.

    An absent address counts as twin 0, as in Rust; in Go it counts as nothing. Every real envelope
    has both.
    """
    parts = [
        envelope.uid,
        envelope.tags,
        str(envelope.timestamp),
        str(envelope.expiration),
        str(envelope.source.twin),
        envelope.source.connection,
        str(envelope.destination.twin),
        envelope.destination.connection,
    ]
    kind = kind_of(envelope)
    if kind is Kind.REQUEST:
        parts.append(envelope.request.command)
    elif kind is Kind.ERROR:
        parts += [str(envelope.error.code), envelope.error.message]
    parts += [envelope.schema, envelope.federation]
    hashed = md5("".join(parts).encode(), usedforsecurity=False)
    hashed.update(envelope.plain or envelope.cipher)
    hashed.update("".join(envelope.relays).encode())
    return hashed.digest()


def request_mark(uid: str, source: Address | str) -> bytes:
    """Return 32 bytes that stand for a request, by its uid and by who sent it.

    Both texts are the sender's choice, and may fill a whole envelope. What is remembered of a
    request beyond its end must not be as long.
    """
    return sha256(f"{len(uid)} {uid}{source}".encode()).digest()


def stamp(envelope: Envelope, now: int) -> None:
    """Set the timestamp to ``now``, in Unix seconds, keeping the time of expiry.

    An envelope without a timestamp, or with a future one, keeps its whole expiration.
    """
    if 0 < envelope.timestamp <= now:
        envelope.expiration = max(0, envelope.expiration - (now - envelope.timestamp))
    envelope.timestamp = now


def time_left(envelope: Envelope, now: int) -> int:
    """Return the seconds until an envelope expires; 0 or less if it has."""
    return envelope.timestamp + envelope.expiration - now


def accepted_until(envelope: Envelope, now: int) -> int:
    """Return the Unix second from which a receiver refuses an envelope.

    That is when it expires, but at most ``MAX_LIFE`` after its timestamp.

    Raises:
        BusError: code 102; it is refused at ``now``, or it is dated so far ahead that it would be
            accepted for longer than ``MAX_LIFE`` and ``MAX_AHEAD``.
    """
    end = envelope.timestamp + min(envelope.expiration, MAX_LIFE)
    twin = envelope.source.twin or None
    if end <= now:
        raise BusError(EXPIRED, "the message has expired", twin=twin)
    if end > now + MAX_LIFE + MAX_AHEAD:
        ahead = envelope.timestamp - now
        text = f"the message is dated {ahead} seconds ahead of this side's clock"
        raise BusError(EXPIRED, text, twin=twin)
    return end


def is_fail_fast(tags: str | None) -> bool:
    """Return whether tags ask relays not to queue for an absent twin; case-sensitive."""
    return FAIL_FAST in _TAG_MARKS.split(tags or "")


def is_for_relay(envelope: Envelope) -> bool:
    """Return whether an envelope is a request to the relay itself."""
    return (
        kind_of(envelope) is Kind.REQUEST
        and envelope.HasField("destination")
        and not envelope.destination.twin
        and envelope.request.command.startswith(RELAY_COMMANDS)
    )


def request(
    uid: str,
    source: Address,
    destination: Address,
    command: str,
    now: int,
    life: int,
    *,
    plain: bytes | None = None,
    cipher: bytes | None = None,
    schema: str = JSON_SCHEMA,
    tags: str | None = None,
) -> Envelope:
    """Return an unsigned request that expires ``life`` seconds after ``now``.

    Raises:
        ValueError: a text is not valid Unicode, or a number is negative or too large for its field.
    """
    made = Envelope(uid=uid, timestamp=now, expiration=life, schema=schema, tags=tags)
    made.request.command = command
    put_address(made.source, source)
    put_address(made.destination, destination)
    _put_payload(made, plain, cipher)
    return made


def response(
    asked: Envelope,
    source: Address,
    now: int,
    life: int,
    *,
    plain: bytes | None = None,
    cipher: bytes | None = None,
) -> Envelope:
    """Return an unsigned answer to a request, with its uid and schema, addressed to its source.

    Pass a payload: the npm client takes an empty one for no answer.
    """
    made = _answer(asked, source, now, life)
    made.response.SetInParent()
    _put_payload(made, plain, cipher)
    return made


def error(
    asked: Envelope, source: Address, code: int, message: str, now: int, life: int
) -> Envelope:
    """Return an unsigned error that answers a request."""
    made = _answer(asked, source, now, life)
    made.error.code = code
    made.error.message = message
    return made


def relay_error(
    asked: Envelope, text: str, now: int, *, code: int = FROM_RELAY, to: Address | None = None
) -> Envelope:
    """Return the error that a relay sends to the source of a request that it did not deliver.

    It is unsigned and has no source, which tells peers that it comes from a relay. The reference
    relay leaves the destination empty in errors of its federation; here it is always set.

    Args:
        asked: the request.
        text: the text of the error.
        now: Unix seconds.
        code: the code; another one than 0 is for twins that use what the reference relay lacks.
        to: the connection's own address, where the source of the request may be wrong.
    """
    made = _of_relay(asked, now, to)
    made.error.code = code
    made.error.message = text
    return made


def relay_response(asked: Envelope, to: Address, data: bytes, now: int) -> Envelope:
    """Return the answer of a relay to a request to itself, unsigned and without a source."""
    made = _of_relay(asked, now, to)
    made.schema = JSON_SCHEMA
    made.response.SetInParent()
    made.plain = data
    return made


def pong_for(ping: Envelope) -> Envelope:
    """Return the answer to a ping: a copy with swapped addresses and a greeting added."""
    made = Envelope()
    made.CopyFrom(ping)
    made.pong.SetInParent()
    made.plain = ping.plain + PONG_TEXT
    for name, other in (("source", ping.destination), ("destination", ping.source)):
        made.ClearField(name)
        getattr(made, name).CopyFrom(other)
    return made


def _of_relay(asked: Envelope, now: int, to: Address | None) -> Envelope:
    made = Envelope(uid=asked.uid, timestamp=now, expiration=RELAY_ERROR_LIFE)
    if to is None:
        made.destination.CopyFrom(asked.source)
    else:
        put_address(made.destination, to)
    return made


def _answer(asked: Envelope, source: Address, now: int, life: int) -> Envelope:
    schema = asked.schema or JSON_SCHEMA
    made = Envelope(uid=asked.uid, timestamp=now, expiration=life, schema=schema)
    made.destination.CopyFrom(asked.source)
    put_address(made.source, source)
    return made


def _put_payload(envelope: Envelope, plain: bytes | None, cipher: bytes | None) -> None:
    if cipher is not None:
        envelope.cipher = cipher
    elif plain is not None:
        envelope.plain = plain
