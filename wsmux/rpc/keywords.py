"""Turn the keywords of JSON Schema into rules: a test of a value, and the errors when it fails.

These look at a value as a whole; those that hold other schemas are in ``applicators``. All are of
draft 2020-12, with the tuples of draft 7 (``items`` as an array) and what River adds: the types
``Uint8Array`` and ``Date`` with their bounds, and JavaScript's ``undefined``, ``void`` and
``bigint``. ``format`` says nothing, as the standard allows; unknown keywords are notes. Messages
are worded as TypeBox words them, so that both kinds of server give the same answers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

from .patterns import compile_pattern

__all__ = ["ARRAY", "LEAVES", "MAX_ERRORS", "Found", "Memo", "Part", "Rule", "all_of"]

# TypeBox stops at as many; whoever sends a million bad items learns nothing from the rest.
MAX_ERRORS = 8

# Letters of a member's name that an error repeats.
MAX_NAME = 100

BINARY = (bytes, bytearray, memoryview)
ARRAY = (list, tuple)

# Whether each value met under a reference holds, where a schema can come by it more than once.
Memo = dict[tuple[int, int], bool] | None
Holds = Callable[[Any, Memo], bool]


class Found:
    """Gather the errors of one value, at most ``MAX_ERRORS``."""

    __slots__ = ("errors", "memo")

    def __init__(self, memo: Memo) -> None:
        self.errors: list[dict[str, str]] = []
        self.memo = memo

    @property
    def full(self) -> bool:
        return len(self.errors) >= MAX_ERRORS

    def add(self, path: str, message: str) -> None:
        if not self.full:
            self.errors.append({"path": path, "message": message})


class Rule(NamedTuple):
    """Test a value, and tell what is wrong with it; ``explain`` adds nothing to a good value."""

    holds: Holds
    explain: Callable[[Any, str, Found], None]


class Part(Protocol):
    """Be one object of a schema, as a keyword sees it."""

    schema: Mapping[str, Any]

    def inner(self, value: Any, *place: str | int, deeper: bool = True) -> Rule | None:
        """Return the rule of a schema inside this one, ``None`` if it accepts everything.

        ``deeper`` tells whether it is about a part of the value, or about the value itself.
        """

    def wrong(self, keyword: str, sentence: str) -> ValueError:
        """Return the error of a keyword that cannot be used as it stands."""


def all_of(rules: Sequence[Rule]) -> Rule | None:
    """Return one rule for several, ``None`` for none; the first ones are tested first."""
    if len(rules) < 2:
        return rules[0] if rules else None
    first, *_, last = tests = [rule.holds for rule in rules]

    def both(value: Any, memo: Memo) -> bool:
        return first(value, memo) and last(value, memo)

    def every(value: Any, memo: Memo) -> bool:
        for holds in tests:  # noqa: SIM110 - all() with a generator costs half as much again
            if not holds(value, memo):
                return False
        return True

    def explain(value: Any, path: str, found: Found) -> None:
        for rule in rules:
            if found.full:
                return
            rule.explain(value, path, found)

    return Rule(both if len(rules) == 2 else every, explain)


def leaf(holds: Callable[[Any], bool], message: str) -> Rule:
    """Return a rule that looks at a value as a whole and has one message."""

    def explain(value: Any, path: str, found: Found) -> None:
        if not holds(value):
            found.add(path, message)

    return Rule(lambda value, memo: holds(value), explain)


def below(path: str, name: Any) -> str:
    """Return the JSON pointer (RFC 6901) of a member; a long name is cut, for it is a peer's."""
    text = name if isinstance(name, str) else f"({type(name).__name__})"
    if len(text) > MAX_NAME:
        text = f"{text[:MAX_NAME]}…"
    return f"{path}/{text.replace('~', '~0').replace('/', '~1')}"


# -- types ---------------------------------------------------------------------------------------


def is_number(value: Any) -> bool:
    """Tell whether JSON has the number; ``True`` and ``NaN`` are none."""
    kind = type(value)
    if kind is int:
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and kind is not bool


def _is_integer(value: Any) -> bool:
    return is_number(value) and (isinstance(value, int) or value.is_integer())


def _is_null(value: Any) -> bool:
    return value is None


TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, ARRAY),
    "string": lambda value: isinstance(value, str),
    "number": is_number,
    "integer": _is_integer,
    "boolean": lambda value: isinstance(value, bool),
    "null": _is_null,
    "undefined": _is_null,
    "void": _is_null,
    "bigint": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "Uint8Array": lambda value: isinstance(value, BINARY),
    "Date": lambda value: isinstance(value, datetime),
}


def _type(part: Part) -> Rule:
    named = part.schema["type"]
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not names:
        raise part.wrong("type", "must be the name of a type, or an array of them")
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            raise part.wrong("type", f"names {name!r}; known are {', '.join(TYPES)}")
    tests = [TYPES[name] for name in names]
    if len(tests) == 1:
        return leaf(tests[0], f"must be {names[0]}")
    message = f"must be either {' or '.join(names)}"
    return leaf(lambda value: any(test(value) for test in tests), message)


# -- values --------------------------------------------------------------------------------------


def frozen(value: Any) -> Any:
    """Return something hashable that is equal for equal JSON, and in no other case.

    ``1`` and ``1.0`` are equal, ``1`` and ``True`` are not. Whole numbers of more than 64 bits
    become bytes: Python hashes them so that a sender can make them collide.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, int) and value.bit_length() > 63:
        return "int", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    if value is None or isinstance(value, str | int | float | datetime):
        return value
    if isinstance(value, ARRAY):
        return "array", tuple([frozen(item) for item in value])
    if isinstance(value, dict):
        return "object", frozenset([(name, frozen(item)) for name, item in value.items()])
    return ("bytes", bytes(value)) if isinstance(value, BINARY) else ("other", id(value))


def _one_of_values(values: Iterable[Any], message: str) -> Rule:
    known = {frozen(value) for value in values}
    if all(isinstance(value, str) for value in known):
        return leaf(lambda value: isinstance(value, str) and value in known, message)
    return leaf(lambda value: frozen(value) in known, message)


def _const(part: Part) -> Rule:
    return _one_of_values([part.schema["const"]], "must be equal to constant")


def _enum(part: Part) -> Rule:
    values = part.schema["enum"]
    if not isinstance(values, list):
        raise part.wrong("enum", "must be an array")
    return _one_of_values(values, "must be equal to one of the allowed values")


# -- bounds --------------------------------------------------------------------------------------


def _number(part: Part, keyword: str) -> int | float:
    limit = part.schema[keyword]
    if not is_number(limit):
        raise part.wrong(keyword, "must be a number")
    return limit  # type: ignore[no-any-return]


def _count(part: Part, keyword: str) -> int:
    limit = part.schema[keyword]
    if not _is_integer(limit) or limit < 0:
        raise part.wrong(keyword, "must be a whole number from 0 up")
    return int(limit)


def _bound(keyword: str, sign: str, fits: Callable[[Any, Any], bool]) -> Callable[[Part], Rule]:
    def make(part: Part) -> Rule:
        limit = _number(part, keyword)
        message = f"must be {sign} {limit}"
        return leaf(lambda value: not is_number(value) or fits(value, limit), message)

    return make


def _size(
    keyword: str, kinds: type | tuple[type, ...], message: str, size: Callable[[Any], int] = len
) -> Callable[[Part], Rule]:
    least = keyword.startswith("min")

    def make(part: Part) -> Rule:
        limit = _count(part, keyword)
        text = message.format(limit)
        if least:
            return leaf(lambda value: not isinstance(value, kinds) or size(value) >= limit, text)
        return leaf(lambda value: not isinstance(value, kinds) or size(value) <= limit, text)

    return make


def _multiple_of(part: Part) -> Rule:
    step = _number(part, "multipleOf")
    if step <= 0:
        raise part.wrong("multipleOf", "must be above 0")
    exact = Fraction(repr(step))  # the decimal that was written, not the nearest binary one

    def holds(value: Any) -> bool:
        if not is_number(value):
            return True
        number = Fraction(value if isinstance(value, int) else float.__repr__(value))
        return (number / exact).denominator == 1

    return leaf(holds, f"must be multiple of {step}")


_BYTES = "Uint8Array byteLength must be "


def _byte_size(value: Any) -> int:
    return value.nbytes if isinstance(value, memoryview) else len(value)


def _milliseconds(value: datetime) -> float:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return aware.timestamp() * 1000


def _moment(keyword: str, sign: str, fits: Callable[[Any, Any], bool]) -> Callable[[Part], Rule]:
    def make(part: Part) -> Rule:
        limit = _number(part, keyword)
        message = f"Date timestamp must be {sign} {limit}"
        return leaf(
            lambda value: not isinstance(value, datetime) or fits(_milliseconds(value), limit),
            message,
        )

    return make


def _pattern(part: Part) -> Rule:
    pattern = part.schema["pattern"]
    try:
        search = compile_pattern(pattern)
    except ValueError as error:
        raise part.wrong("pattern", str(error)) from error
    # What is too long is not searched, not even to tell more errors: see ``patterns``.
    most = part.schema.get("maxLength", math.inf)

    def holds(value: Any) -> bool:
        return not isinstance(value, str) or len(value) > most or search(value) is not None

    return leaf(holds, f'must match pattern "{pattern}"')


def _unique_items(part: Part) -> Rule | None:
    def holds(value: Any) -> bool:
        if not isinstance(value, ARRAY):
            return True
        return len({frozen(item) for item in value}) == len(value)

    return leaf(holds, "must not have duplicate items") if part.schema["uniqueItems"] else None


# In the order in which they are tested: what is cheap, and what bounds the others, comes first.
LEAVES: dict[str, Callable[[Part], Rule | None]] = {
    "type": _type,
    "const": _const,
    "enum": _enum,
    "maxLength": _size("maxLength", str, "must not have more than {} characters"),
    "minLength": _size("minLength", str, "must not have fewer than {} characters"),
    "maxItems": _size("maxItems", ARRAY, "must not have more than {} items"),
    "minItems": _size("minItems", ARRAY, "must not have fewer than {} items"),
    "maxProperties": _size("maxProperties", dict, "must not have more than {} properties"),
    "minProperties": _size("minProperties", dict, "must not have fewer than {} properties"),
    "maxByteLength": _size("maxByteLength", BINARY, _BYTES + "<= {}", _byte_size),
    "minByteLength": _size("minByteLength", BINARY, _BYTES + ">= {}", _byte_size),
    "maximum": _bound("maximum", "<=", operator.le),
    "minimum": _bound("minimum", ">=", operator.ge),
    "exclusiveMaximum": _bound("exclusiveMaximum", "<", operator.lt),
    "exclusiveMinimum": _bound("exclusiveMinimum", ">", operator.gt),
    "maximumTimestamp": _moment("maximumTimestamp", "<=", operator.le),
    "minimumTimestamp": _moment("minimumTimestamp", ">=", operator.ge),
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "uniqueItems": _unique_items,
}
