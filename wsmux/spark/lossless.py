"""Find what pyarrow would take and change: values of Python, and columns that were cast.

pyarrow makes 1 of 1.5, infinity of 1e300, a time of any integer, a UTC time of one without a zone,
and a list of the letters of a text. ``odd_for`` recognises such values before they are converted,
``check_kept`` such columns afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from ..runtime.lazy_imports import pa, pc
from .store.schemas import inside, parts

__all__ = ["UNFIT", "Odd", "check_kept", "odd_for"]

# What pyarrow raises for values that do not fit; ``ArrowInvalid`` is a ValueError.
UNFIT = (TypeError, ValueError, OverflowError, ArithmeticError)

# The least number of which 32 bits make infinity: half a step above the largest of them.
FLOAT32_INFINITY = (2 - 2**-24) * 2.0**127

_FRACTIONS = (float, Decimal)
_NO_DATES = (int, datetime)
_NONE = type(None)


class Odd:
    """Recognise values that pyarrow would take for a type, and change.

    Args:
        is_odd: says so of a value that is not ``None``; may raise one of ``UNFIT``.
        harmless: the classes whose values never are, so that they need no closer look.
    """

    def __init__(self, is_odd: Callable[[Any], bool], *harmless: type) -> None:
        self._is_odd = is_odd
        self._harmless = frozenset((_NONE, *harmless))

    def __call__(self, value: Any) -> bool:
        """Return whether a value would be changed."""
        return value is not None and self._is_odd(value)

    def any(self, values: Collection[Any]) -> bool:
        """Return whether one of several values would be changed."""
        return not self._harmless.issuperset(map(type, values)) and any(map(self, values))


def odd_for(kind: Any, *, extra_fields: bool = False) -> Odd | None:
    """Return what recognises odd values of a type, ``None`` if pyarrow changes none.

    Args:
        kind: the type.
        extra_fields: values of structs may have fields that the type has not, which are left out.
    """
    types = pa.types
    if types.is_integer(kind):
        return Odd(lambda value: isinstance(value, _FRACTIONS), int)
    if types.is_decimal(kind):
        return Odd(lambda value: isinstance(value, bool), Decimal, int, str)
    if types.is_date(kind):
        return Odd(lambda value: isinstance(value, _NO_DATES), date, str)
    if types.is_timestamp(kind):
        return _odd_time(kind.tz is None)
    if types.is_float32(kind):
        return Odd(_is_odd_float32, int)
    if types.is_floating(kind):
        return Odd(lambda value: isinstance(value, bool), float, int)
    if types.is_struct(kind):
        return _odd_struct(kind, extra_fields)
    if types.is_map(kind):
        return _odd_map(kind, extra_fields)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _odd_list(odd_for(kind.value_type, extra_fields=extra_fields))
    return None


def _odd_time(naive: bool) -> Odd:
    def is_odd(value: Any) -> bool:
        if isinstance(value, datetime):
            return (value.utcoffset() is None) is not naive
        return isinstance(value, int)

    return Odd(is_odd, str)


def _is_odd_float32(value: Any) -> bool:
    if isinstance(value, float):
        return FLOAT32_INFINITY <= abs(value) < math.inf
    return isinstance(value, bool)


def _odd_list(item: Odd | None) -> Odd:
    # A text is a sequence of its letters.
    return Odd(lambda value: isinstance(value, str) or (item is not None and item.any(value)))


def _odd_map(kind: Any, extra_fields: bool) -> Odd:
    key = odd_for(kind.key_type, extra_fields=extra_fields)
    item = odd_for(kind.item_type, extra_fields=extra_fields)

    def is_odd(value: Any) -> bool:
        if isinstance(value, str):
            return True
        pairs: Iterable[Any] = value.items() if isinstance(value, Mapping) else value
        return any(
            (key is not None and key(one)) or (item is not None and item(other))
            for one, other in pairs
        )

    return Odd(is_odd)


def _odd_struct(kind: Any, extra_fields: bool) -> Odd:
    fields = {field.name: odd_for(field.type, extra_fields=extra_fields) for field in inside(kind)}

    def is_odd(value: Any) -> bool:
        if isinstance(value, tuple):
            value = dict(zip(fields, value, strict=True))
        if not isinstance(value, Mapping):
            return True  # of an empty list or text pyarrow makes one without any value
        if not extra_fields and not fields.keys() >= value.keys():
            return True
        return any(odd is not None and odd(value.get(name)) for name, odd in fields.items())

    return Odd(is_odd)


def check_kept(given: Any, cast: Any) -> None:
    """Raise ``ValueError`` if a cast has made other values of some, which pyarrow lets it.

    It lets times become dates of any length, floats decimals and narrower floats, text infinity,
    and times with a zone times without, and drops fields of structs.
    """
    types = pa.types
    if types.is_dictionary(given.type):
        given = given.dictionary_decode()
    one, two = given.type, cast.type
    if one == two:
        return
    if types.is_timestamp(one) and types.is_timestamp(two):
        if (one.tz is None) is not (two.tz is None) and given.null_count < len(given):
            raise ValueError("one has a time zone, and the other has none")
    elif types.is_timestamp(one) and types.is_date(two):
        local = pc.local_timestamp(given)
        _check_same(given, cast, pc.equal(local, pc.cast(cast, local.type)))
    elif (types.is_floating(one) and types.is_decimal(two)) or (
        types.is_decimal(one) and types.is_floating(two)
    ):
        # By way of text, as a decimal does not become the nearest float.
        _check_same(given, cast, pc.equal(given, pc.cast(pc.cast(cast, pa.string()), one)))
    elif types.is_floating(one) and types.is_floating(two):
        if two.bit_width < one.bit_width:
            same = pc.equal(given, pc.cast(cast, one))
            _check_same(given, cast, pc.or_(same, pc.is_nan(given)))
    elif types.is_floating(two) and not types.is_primitive(one):  # text
        infinite = pc.is_inf(pc.cast(given, pa.float64()))
        _check_same(given, cast, pc.equal(infinite, pc.is_inf(cast)))
    elif types.is_map(one) is not types.is_map(two):
        raise ValueError("a map is no list")
    elif types.is_struct(one) and types.is_struct(two):
        given_fields = dict(zip((field.name for field in inside(one)), parts(given), strict=True))
        for field, column in zip(inside(two), parts(cast), strict=True):
            if field.name in given_fields:
                check_kept(given_fields.pop(field.name), column)
        if given_fields:
            raise ValueError(f"it has no field {next(iter(given_fields))!r:.140}")
    else:
        for each, other in zip(parts(given), parts(cast), strict=True):
            check_kept(each, other)


def _check_same(given: Any, cast: Any, same: Any) -> None:
    place = pc.index(same, False).as_py()
    if place >= 0:
        raise ValueError(f"{given[place]} would become {cast[place]}")
