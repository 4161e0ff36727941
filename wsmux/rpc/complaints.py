"""Say what is wrong with a value, shortly, in the words of TypeBox: both kinds of server agree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["MAX_NAME", "MAX_TEXT", "TOO_DEEP", "TOO_LONG", "message", "pointer", "shortened"]

# Letters of a member's name in a pointer, for it is a peer's, and of a sentence.
MAX_NAME = 100
MAX_TEXT = 200

TOO_DEEP = "is nested too deeply to be checked"
TOO_LONG = "takes too many steps to be checked"

# With what the keyword says.
_SENTENCES = {
    "$ref": "must match the schema referred to",
    "anyOf": "must match a schema in anyOf",
    "const": "must be equal to constant",
    "contains": "must contain valid items",
    "dependentRequired": "must have properties that others require",
    "enum": "must be equal to one of the allowed values",
    "exclusiveMaximum": "must be < {}",
    "exclusiveMinimum": "must be > {}",
    "maxByteLength": "Uint8Array byteLength must be <= {}",
    "maxContains": "must contain at most {} valid items",
    "maxItems": "must not have more than {} items",
    "maxLength": "must not have more than {} characters",
    "maxProperties": "must not have more than {} properties",
    "maximum": "must be <= {}",
    "maximumTimestamp": "Date timestamp must be <= {}",
    "minByteLength": "Uint8Array byteLength must be >= {}",
    "minContains": "must contain at least {} valid items",
    "minItems": "must not have fewer than {} items",
    "minLength": "must not have fewer than {} characters",
    "minProperties": "must not have fewer than {} properties",
    "minimum": "must be >= {}",
    "minimumTimestamp": "Date timestamp must be >= {}",
    "multipleOf": "must be multiple of {}",
    "not": "must not be valid",
    "oneOf": "must match exactly one schema in oneOf",
    "pattern": 'must match pattern "{}"',
    "uniqueItems": "must not have duplicate items",
}


def message(place: Iterable[Any], keyword: str, says: Any) -> str:
    """Return a sentence about a value that breaks a keyword of a schema.

    Args:
        place: where the keyword stands in the schema.
        keyword: its name.
        says: its value; of ``required``, the names that are missing.
    """
    if keyword == "type":
        kinds = [says] if isinstance(says, str) else says
        return f"must be {'either ' if len(kinds) > 1 else ''}{' or '.join(kinds)}"
    if keyword == "required":
        return shortened(f"must have required properties {', '.join(says)}")
    if list(place)[-2:] == ["additionalProperties", "not"]:
        return "must not have additional properties"
    return shortened(_SENTENCES.get(keyword, f"must be valid under {keyword}").format(says))


def pointer(path: Iterable[Any]) -> str:
    """Return a JSON pointer (RFC 6901); long names are cut."""
    names = (shortened(str(name), MAX_NAME) for name in path)
    return "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in names)


def shortened(text: str, most: int = MAX_TEXT) -> str:
    """Return a text of at most so many letters, and a mark if it had more."""
    return text if len(text) <= most else f"{text[:most]}…"
