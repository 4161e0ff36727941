"""Convert payloads into values that an encoder can write, and define JavaScript's bigint.

JavaScript has two kinds of integers, and the wire keeps them apart: 5 is not 5n, and a schema
accepts only one of them. Ordinary numbers are exact from -(2^53-1) to 2^53-1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .codec import EncodeError
from .envelope import EnvelopeError

__all__ = [
    "MAX_DIGITS",
    "MAX_SAFE",
    "MIN_SAFE",
    "BigInt",
    "Rules",
    "big_text",
    "parse_big",
    "portable",
]

MIN_SAFE, MAX_SAFE = -(2**53 - 1), 2**53 - 1

# Parsing n decimal digits takes n^2 steps; this is Python's own default limit.
MAX_DIGITS = 4300
_BEYOND = 10**MAX_DIGITS

_DECIMAL = re.compile(rf"-?[0-9]{{1,{MAX_DIGITS}}}")


class BigInt(int):
    """An integer that is sent as a bigint, even if it is small.

    Received bigints are of this class, so that a value can be sent back unchanged, and a schema can
    distinguish 5n from 5. It equals the ``int`` of its value, and arithmetic returns ``int``. An
    ``int`` beyond 2^53-1 is always sent as a bigint.
    """

    __slots__ = ()


class Rules(NamedTuple):
    """Describe what an encoder can write.

    ``replace`` is called with each value that is neither in ``as_is`` nor a container, and with
    the number of levels that may still be nested. It returns a value to encode instead, or raises
    ``EncodeError``.
    """

    as_is: frozenset[type]
    reserved: frozenset[str]  # keys that would change the meaning of an object
    replace: Callable[[Any, int], Any]


def portable(value: Any, room: int, rules: Rules) -> Any:
    """Return a copy of a payload that an encoder can write, at most ``room`` containers deep.

    Raises:
        EncodeError: it is deeper, or has a key or a value that cannot be encoded.
    """
    as_is, reserved, replace = rules
    kind = type(value)
    if kind in as_is or (kind is int and MIN_SAFE <= value <= MAX_SAFE):
        return value
    if kind is dict or (kind is not list and isinstance(value, Mapping)):
        inner = level_below(room)
        fields = {}
        for key, item in value.items():
            if type(key) is not str or key in reserved:
                key = _key(key, reserved)
            kind = type(item)
            if kind not in as_is and (kind is not int or not MIN_SAFE <= item <= MAX_SAFE):
                item = portable(item, inner, rules)
            fields[key] = item
        return fields
    if isinstance(value, (list, tuple)):
        inner = level_below(room)
        return [
            item
            if type(item) in as_is or (type(item) is int and MIN_SAFE <= item <= MAX_SAFE)
            else portable(item, inner, rules)
            for item in value
        ]
    if isinstance(value, int) and not isinstance(value, (bool, BigInt)):
        return int(value) if MIN_SAFE <= value <= MAX_SAFE else replace(value, room)
    # Encoders write subclasses of str and float like these.
    return value if isinstance(value, (str, float)) else replace(value, room)


def level_below(room: int) -> int:
    """Return how many levels may be nested inside one more container."""
    if not room:
        raise EncodeError("a payload nests deeper than max_depth")
    return room - 1


def _key(key: Any, reserved: frozenset[str]) -> str:
    if not isinstance(key, str):
        raise EncodeError(f"a key of an object must be a string, not {type(key).__name__}")
    if key in reserved:
        raise EncodeError(f"an object with a key {str.__str__(key)!r} cannot be sent")
    return key


def big_text(value: int) -> str:
    """Return the decimal text of a bigint.

    Raises:
        EncodeError: it has more than ``MAX_DIGITS`` digits.
    """
    if not -_BEYOND < value < _BEYOND:
        raise EncodeError(f"an integer must have at most {MAX_DIGITS} digits")
    return int.__repr__(value)


def parse_big(text: Any) -> BigInt:
    """Return the bigint of a decimal text.

    Raises:
        EnvelopeError: it is not decimal, or has more than ``MAX_DIGITS`` digits.
    """
    if type(text) is not str or _DECIMAL.fullmatch(text) is None:
        raise EnvelopeError(f"a bigint must be decimal text of at most {MAX_DIGITS} digits")
    return BigInt(text)
