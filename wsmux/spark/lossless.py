"""Find what pyarrow would take and change: values of Python, and columns that were cast.

pyarrow makes 1 of 1.5, infinity of 1e300, a time of any number, a UTC time of one without a zone, a
list of the letters of a text, and a struct of any tuple, whatever its fields are named. ``odd_for``
recognises such values before they are converted, ``check_kept`` such columns afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from numbers import Integral, Real
from typing import Any

from ..runtime.lazy_imports import pa, pc
from .store.schemas import inside, parts

__all__ = ["UNFIT", "Odd", "array_of", "check_kept", "odd_for"]

# What pyarrow raises for values that do not fit. ``ArrowInvalid`` is a ValueError, and
# ``ArrowNotImplementedError``, for arrays of NumPy, a NotImplementedError.
UNFIT = (TypeError, ValueError, ArithmeticError, LookupError, NotImplementedError)

# The least numbers of which 16 and 32 bits make infinity: half a step above the largest of them.
FLOAT_INFINITY = {16: 65520.0, 32: (2 - 2**-24) * 2.0**127}

# Microseconds of a unit of time.
MICROSECONDS = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}

# Texts, which pyarrow also takes for lists of their letters or bytes.
_TEXTS = (str, bytes, bytearray, memoryview)
# And sets, of which it looks at no size where all lists have the same.
_NOT_FIXED = (*_TEXTS, set, frozenset)
_NONE = type(None)
_DICT = frozenset((dict,))
_LISTS = frozenset((list, tuple))
_NUMBERS = frozenset((float, int))


class Odd:
    """Recognise values that pyarrow would take for a type, and change.

    Args:
        is_odd: says so of a value that is not ``None``; may raise one of ``UNFIT``. Of pyarrow's
            own values it is not believed, since pyarrow takes none of another type.
        harmless: the classes whose values never are, so that they need no closer look.
        may_be_odd: says quickly of values, none of them ``None``, whether one of them may be odd.
    """

    def __init__(
        self,
        is_odd: Callable[[Any], bool],
        *harmless: type,
        may_be_odd: Callable[[list[Any]], bool] | None = None,
    ) -> None:
        self._is_odd = is_odd
        self._harmless = frozenset((_NONE, *harmless))
        self._may_be_odd = may_be_odd

    def __call__(self, value: Any) -> bool:
        """Return whether a value would be changed."""
        return value is not None and self._is_odd(value) and not isinstance(value, pa.Scalar)

    def any(self, values: Collection[Any]) -> bool:
        """Return whether one of several values would be changed."""
        if self.are_harmless(values):
            return False
        if self._may_be_odd is not None and not self._may_be_odd(
            [value for value in values if value is not None]
        ):
            return False
        return any(map(self, values))

    def are_harmless(self, values: Iterable[Any]) -> bool:
        """Return whether the classes of values show that none would be changed."""
        return self._harmless.issuperset(map(type, values))


def array_of(values: list[Any], kind: Any) -> Any:
    """Return values, none of them odd, as an array; dates, times and decimals may all be text.

    Raises:
        TypeError, ValueError, OverflowError, ArithmeticError, ArrowException: they do not fit.
    """
    types = pa.types
    try:
        return pa.array(values, kind)
    except UNFIT:
        if not (types.is_date(kind) or types.is_timestamp(kind) or types.is_decimal(kind)):
            raise
        return pa.array(values, pa.string()).cast(kind)


def odd_for(kind: Any, *, extra_fields: bool = False) -> Odd | None:
    """Return what recognises odd values of a type, ``None`` if pyarrow changes none.

    Args:
        kind: the type.
        extra_fields: values of structs may have fields that the type has not, which are left out.
    """
    types = pa.types
    if types.is_integer(kind):
        return Odd(_is_odd_integer, int)
    if types.is_decimal(kind):
        return Odd(lambda value: isinstance(value, bool), Decimal, int, str)
    if types.is_date(kind):
        return Odd(_is_odd_date, date, str)
    if types.is_timestamp(kind):
        return _odd_timestamp(kind)
    if types.is_time(kind):
        return _odd_time(kind)
    if types.is_duration(kind):
        return _odd_duration(kind)
    if types.is_floating(kind):
        return _odd_float(FLOAT_INFINITY.get(kind.bit_width))
    if types.is_struct(kind):
        return _odd_struct(kind, extra_fields)
    if types.is_map(kind):
        return _odd_map(kind, extra_fields)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        refused = _NOT_FIXED if types.is_fixed_size_list(kind) else _TEXTS
        return _odd_list(odd_for(kind.value_type, extra_fields=extra_fields), refused)
    return None


def _is_odd_integer(value: Any) -> bool:
    # To NumPy a span of time is a number, too.
    return not isinstance(value, Integral) or _dtype_kind(value) == "m"


def _dtype_kind(value: Any) -> str:
    """Return NumPy's letter for what a value or an array is made of, empty for others."""
    return str(getattr(getattr(value, "dtype", None), "kind", ""))


def _is_odd_date(value: Any) -> bool:
    return not isinstance(value, date | str) or isinstance(value, datetime)


def _odd_timestamp(kind: Any) -> Odd:
    naive, step = kind.tz is None, MICROSECONDS[kind.unit]
    # An array of NumPy within a list is taken as it is, whatever its unit.
    dtype = f"datetime64[{kind.unit}]" if naive else None

    def is_odd(value: Any) -> bool:
        if isinstance(value, datetime):
            cut = value.microsecond % step or (
                kind.unit != "ns" and getattr(value, "nanosecond", 0)  # of pandas
            )
            return bool(cut) or (value.utcoffset() is None) is not naive
        return not isinstance(value, str) and (dtype is None or getattr(value, "dtype", 0) != dtype)

    return Odd(is_odd, str)


def _odd_time(kind: Any) -> Odd:
    step = MICROSECONDS[kind.unit]

    def is_odd(value: Any) -> bool:
        return not isinstance(value, time) or bool(value.tzinfo or value.microsecond % step)

    return Odd(is_odd)


def _odd_duration(kind: Any) -> Odd:
    step, dtype = MICROSECONDS[kind.unit], f"timedelta64[{kind.unit}]"

    def is_odd(value: Any) -> bool:
        if isinstance(value, timedelta):
            cut = value.microseconds % step or (
                kind.unit != "ns" and getattr(value, "nanoseconds", 0)  # of pandas
            )
            return bool(cut)
        return bool(getattr(value, "dtype", 0) != dtype)

    return Odd(is_odd)


def _odd_float(infinity: float | None) -> Odd:
    if infinity is None:
        return Odd(lambda value: isinstance(value, bool), float, int)
    least = infinity

    def is_odd(value: Any) -> bool:
        if isinstance(value, bool):
            return True
        return isinstance(value, float | Real) and least <= abs(float(value)) < math.inf

    def may_be_odd(values: list[Any]) -> bool:
        if not _NUMBERS.issuperset(map(type, values)):
            return True
        return any(least <= abs(value) < math.inf for value in values)

    return Odd(is_odd, may_be_odd=may_be_odd)


def _odd_list(item: Odd | None, refused: tuple[type, ...]) -> Odd:
    def is_odd(value: Any) -> bool:
        return isinstance(value, refused) or (item is not None and item.any(_plain(value)))

    def may_be_odd(values: list[Any]) -> bool:
        if not _LISTS.issuperset(map(type, values)):
            return True
        return item is not None and not item.are_harmless(chain.from_iterable(values))

    return Odd(is_odd, may_be_odd=may_be_odd)


def _plain(value: Any) -> Any:
    """Return the numbers of an array of NumPy as Python's own, which are looked at much faster."""
    # Not of a subclass: one with a mask has ``None`` in places where pyarrow takes what is there.
    exact = type(value).__name__ == "ndarray" and _dtype_kind(value) in ("i", "u", "f")
    return value.tolist() if exact else value


def _odd_map(kind: Any, extra_fields: bool) -> Odd:
    key = odd_for(kind.key_type, extra_fields=extra_fields)
    item = odd_for(kind.item_type, extra_fields=extra_fields)

    def is_odd(value: Any) -> bool:
        if isinstance(value, _TEXTS):
            return True
        keys: Collection[Any]
        items: Collection[Any]
        if isinstance(value, Mapping):
            keys, items = value.keys(), value.values()
        else:
            pairs = [_pair(each) for each in value]
            keys, items = [one for one, _ in pairs], [other for _, other in pairs]
        return (key is not None and key.any(keys)) or (item is not None and item.any(items))

    return Odd(is_odd)


def _pair(value: Any) -> Any:
    """Return a pair of a map, which pyarrow also takes as an object of ``key`` and ``value``."""
    if not isinstance(value, Mapping):
        return value
    if not value.keys() <= {"key", "value"}:
        raise ValueError("a pair of a map has the fields key and value, and no others")
    return value.get("key"), value.get("value")


def _odd_struct(kind: Any, extra_fields: bool) -> Odd:
    names = [field.name for field in inside(kind)]
    odds = [odd_for(field.type, extra_fields=extra_fields) for field in inside(kind)]
    known = frozenset(names)

    def has_odd_fields(value: Mapping[Any, Any]) -> bool:
        # pyarrow takes bytes for names, too.
        return not known.issuperset(value) and (not extra_fields or bytes in map(type, value))

    def is_odd(value: Any) -> bool:
        if isinstance(value, tuple):  # pyarrow looks at the places of its values only
            fields = getattr(value, "__fields__", None) or getattr(value, "_fields", None)
            if fields is not None and list(fields) != names:
                return True
            within = zip(odds, value, strict=True)
        elif not isinstance(value, Mapping):
            return True  # of an empty list or text pyarrow makes one without any value
        elif has_odd_fields(value):
            return True
        else:
            within = zip(odds, map(value.get, names), strict=True)
        return any(odd is not None and odd(each) for odd, each in within)

    def may_be_odd(values: list[Any]) -> bool:
        if not _DICT.issuperset(map(type, values)):
            return True
        if not all(map(known.issuperset, values)) and any(map(has_odd_fields, values)):
            return True
        return any(
            each is not None and each.any([value.get(name) for value in values])
            for name, each in zip(names, odds, strict=True)
        )

    return Odd(is_odd, may_be_odd=may_be_odd)


def check_kept(given: Any, cast: Any) -> None:
    """Raise ``ValueError`` if a cast has made other values of some, which pyarrow lets it.

    It lets times become dates of any length, floats decimals and narrower floats, text infinity,
    times with a zone times without, and numbers truth values or times, and drops fields of structs.
    """
    types = pa.types
    if types.is_dictionary(given.type):
        given = given.dictionary_decode()
    one, two = given.type, cast.type
    if one == two:
        return
    sorts = _sort(one), _sort(two)
    if None not in sorts and sorts[0] != sorts[1]:
        if given.null_count < len(given):
            raise ValueError(f"{sorts[0]} are not {sorts[1]}")
    elif types.is_timestamp(two) and (types.is_timestamp(one) or types.is_date(one)):
        zoned = types.is_timestamp(one) and one.tz is not None
        if zoned is (two.tz is None) and given.null_count < len(given):
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


def _sort(kind: Any) -> str | None:
    """Return what the values of a type are, where others are not the same in another form."""
    types = pa.types
    if types.is_boolean(kind):
        return "truth values"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "numbers"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "dates"
    if types.is_time(kind):
        return "times of day"
    return "spans of time" if types.is_duration(kind) else None


def _check_same(given: Any, cast: Any, same: Any) -> None:
    place = pc.index(same, False).as_py()
    if place >= 0:
        raise ValueError(f"{given[place]} would become {cast[place]}")
