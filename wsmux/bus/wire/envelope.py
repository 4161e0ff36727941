"""Read, digest, stamp and make envelopes; see ``messages`` for their fields.

The digest has no marks between its parts and leaves out which kind of message and of payload it
covers, so one signature fits several envelopes. It must stay so for the known peers; ``receipt``
holds the rules that make up for it. Fields 11 and 17 are deprecated: this side leaves them empty,
which verifies everywhere, and digests them where they are set.
"""

from __future__ import annotations

import re
from enum import StrEnum
from hashlib import md5

from ..errors import FROM_RELAY, BadMessage
from .address import Address, put_address
from .messages import DecodeError, Envelope

__all__ = [
    "JSON_SCHEMA",
    "MAX_ENVELOPE",
    "Kind",
    "digest",
    "error",
    "is_fail_fast",
    "kind_of",
    "parse",
    "pong_for",
    "relay_error",
    "request",
    "response",
    "stamp",
    "time_left",
]

# Bytes of an envelope: what known peers take in one frame. They send up to 64 MiB in several, which
# a relay then passes on as one that nobody takes.
MAX_ENVELOPE = 16 * 1024 * 1024

# The npm client stamps this schema on whatever it receives, and only then checks the signature.
JSON_SCHEMA = "application/json"

FAIL_FAST = "fail-fast"
_TAG_MARKS = re.compile(r"[,\s]+")

# Seconds for which an error made by a relay is worth delivering.
RELAY_ERROR_LIFE = 300

PONG_TEXT = b"hello world"


class Kind(StrEnum):
    """Name what an envelope holds."""

    REQUEST = "request"
    RESPONSE = "response"
    ERROR = "error"
    PING = "ping"
    PONG = "pong"
    NONE = "none"


def parse(data: bytes | bytearray | memoryview) -> Envelope:
    """Return the envelope that bytes hold; fields that nobody knows are kept.

    Raises:
        BadMessage: they are no envelope, or more than ``MAX_ENVELOPE``.
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
    """Return what an envelope holds; ``Kind.NONE`` for nothing, or for what this side lacks."""
    return Kind(envelope.WhichOneof("message") or Kind.NONE)


def digest(envelope: Envelope) -> bytes:
    """Return the 16 bytes that are signed.

    An absent address counts as twin 0, as in Rust; for the Go peer it counts as nothing. Every
    real message has both.
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


def stamp(envelope: Envelope, now: int) -> None:
    """Set the time of an envelope to ``now``, in Unix seconds; its end stays where it was.

    One without a time, or with one to come, keeps its whole life.
    """
    if 0 < envelope.timestamp <= now:
        envelope.expiration = max(0, envelope.expiration - (now - envelope.timestamp))
    envelope.timestamp = now


def time_left(envelope: Envelope, now: int) -> int:
    """Return the seconds that an envelope has to live at ``now``; it is expired from 0 down."""
    return envelope.timestamp + envelope.expiration - now


def is_fail_fast(tags: str | None) -> bool:
    """Return whether tags ask relays not to queue for a twin that is away; case matters."""
    return FAIL_FAST in _TAG_MARKS.split(tags or "")


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
    """Return an unsigned request that lives for ``life`` seconds from ``now``.

    Raises:
        ValueError: a text is no Unicode, or a number is negative or too large for its field.
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
    """Return an unsigned answer to a request: its uid and schema, back to its source.

    The npm client takes an empty payload for no answer at all.
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


def relay_error(asked: Envelope, text: str, now: int) -> Envelope:
    """Return what a relay tells the source of a request that goes no further.

    It is unsigned and has no source, by which peers know that it comes from a relay. Where the
    source of a request was refused, ``put_address`` the connection's own. Known relays leave the
    destination of errors of their federation empty; here every one has it.
    """
    made = Envelope(uid=asked.uid, timestamp=now, expiration=RELAY_ERROR_LIFE)
    made.destination.CopyFrom(asked.source)
    made.error.code = FROM_RELAY
    made.error.message = text
    return made


def pong_for(ping: Envelope) -> Envelope:
    """Return the answer to a ping: the same with its addresses swapped and a greeting added."""
    made = Envelope()
    made.CopyFrom(ping)
    made.pong.SetInParent()
    made.plain = ping.plain + PONG_TEXT
    for name, other in (("source", ping.destination), ("destination", ping.source)):
        made.ClearField(name)
        getattr(made, name).CopyFrom(other)
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
