"""Convert values of River from and to JSON: as its JSON codec does, plus dates.

Bytes are ``{"$t": base64}`` and bigints ``{"$b": decimal}``, both ways. A date is written as ISO
text; as input it must be ``{"$d": ISO text}``, since plain text is text. NaN and infinities, which
msgpack supports, are written as null, as by ``JSON.stringify``.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from ..rpc.wire.envelope import Envelope, EnvelopeError
from ..rpc.wire.json_codec import JsonCodec
from ..rpc.wire.values import MAX_SAFE, MIN_SAFE, BigInt
from .terminal import CommandError

__all__ = ["MAX_TEXT", "json_argument", "json_text", "parse_json"]

# Maximum size of JSON: base64 of 16 MiB, the largest message.
MAX_TEXT = 32 * 1024 * 1024

# What may hold characters that a terminal obeys, or does not show. The rest is passed by quickly.
_BEYOND_ASCII = re.compile(r"[^\n -~]+")

_CODEC = JsonCodec()
_ENVELOPE = Envelope("", "", "", seq=0, ack=0, stream_id="", flags=0, payload=None)


def parse_json(text: bytes) -> Any:
    """Return the value of JSON in UTF-8.

    Raises:
        ValueError: it is invalid, or not a value that messages can have.
    """
    try:
        json.loads(text.decode())  # to make sure that it is a single value
        value = _CODEC.decode(_CODEC.encode(_ENVELOPE, text)).payload
    except (EnvelopeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return _with_dates(value)


def _with_dates(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$d"} and isinstance(value["$d"], str):
            return datetime.fromisoformat(value["$d"])
        return {name: _with_dates(each) for name, each in value.items()}
    return [_with_dates(each) for each in value] if isinstance(value, list) else value


def json_argument(name: str, text: str | None) -> Any:
    """Return the value of an argument: JSON, or ``@FILE``; ``None`` if absent or ``-``.

    Raises:
        CommandError: it is invalid.
        OSError: the file cannot be read.
    """
    if text is None or text == "-":
        return None
    if not text.startswith("@"):
        return _argument(name, text.encode("utf-8", "surrogateescape"), 2)
    with open(text[1:], "rb") as file:
        return _argument(text[1:], file.read(MAX_TEXT + 1), 1)


def _argument(name: str, text: bytes, status: int) -> Any:
    if len(text) > MAX_TEXT:
        raise CommandError(f"{name} holds more than {MAX_TEXT} bytes", status)
    try:
        return parse_json(text)
    except ValueError as error:
        raise CommandError(f"{name} is not JSON: {error}", status) from error


def json_text(value: Any) -> str:
    """Return a decoded value as JSON in one line."""
    return escaped(
        json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    )


def escaped(text: str) -> str:
    """Return JSON with the same values, in which a terminal finds nothing to obey."""
    return _BEYOND_ASCII.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    text = found[0]
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case bytes():
            return {"$t": b64encode(value).decode()}
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case float():
            return value if isfinite(value) else None
        case BigInt():
            return {"$b": int.__repr__(value)}
        case bool() | None:
            return value
        case int() if not MIN_SAFE <= value <= MAX_SAFE:
            return {"$b": int.__repr__(value)}
    return value
