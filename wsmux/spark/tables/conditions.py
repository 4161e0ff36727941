"""Parse conditions of SQL such as ``day = '2026-01-01' AND n > 3`` into filters. Pure.

A condition is one comparison or several joined by AND, each of one column and of values: ``=``,
``==``, ``<>``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``IN (...)``, ``BETWEEN ... AND ...``,
``IS NULL`` and ``IS NOT NULL``. Anything else is refused, and never taken for something near it:
rows are removed by it.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, NoReturn

from ...runtime.lazy_imports import pa
from ..protocol import Code, refusal
from ..store.filters import Filter, is_binary, parse_filters

__all__ = ["MAX_CONDITION", "parse_condition"]

# Characters: the log keeps a condition for good.
MAX_CONDITION = 64 * 1024

SUPPORTED = (
    "it may be comparisons joined by AND: column = value, <>, <, <=, >, >=, IN (...), "
    "BETWEEN ... AND ..., IS NULL, IS NOT NULL; text in single quotes, columns in backticks if "
    "need be"
)

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?![A-Za-z0-9_.])"
    r"|'(?P<text>(?:[^'\\]|'')*)'|`(?P<quoted>(?:[^`]|``)+)`"
    r"|(?P<word>[^\W0-9]\w*)|(?P<sign><=>|<=|>=|<>|!=|==|[=<>(),]))"
)

_COMPARISONS = {"=": "=", "==": "=", "<>": "!=", "!=": "!=", "<": "<", "<=": "<=", ">": ">"}
_COMPARISONS[">="] = ">="

# What a comparison is with its sides swapped.
_SWAPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

# Parentheses within each other.
MAX_DEPTH = 50

# Digits before or behind the point of a number: more than any decimal has.
MAX_DIGITS = 80

# Words that are no names of columns unless they stand in backticks.
_KEYWORDS = {"and", "between", "in", "is", "not", "null", "or", "like", "true", "false"}

_END = ""


class _Token(NamedTuple):
    """A piece of a condition: ``kind`` is a group of the pattern, or ``end``."""

    kind: str
    text: str


class _Number(NamedTuple):
    """A number as it was written; the type of the column says what it is."""

    text: str


def parse_condition(text: str, schema: Any) -> list[Filter]:
    """Return the filters that rows have to match all of, to match a condition.

    Columns are found whatever their case, as in Spark. Text may stand for dates and timestamps, as
    ``DATE'2026-01-01'`` does.

    Raises:
        RiverError: BAD_FILTER, which tells what is supported, or NO_COLUMN.
    """
    if len(text) > MAX_CONDITION:
        long = f"the condition has {len(text)} characters; up to {MAX_CONDITION} are accepted"
        raise refusal(Code.BAD_FILTER, long)
    return parse_filters(_Parser(text, schema).filters())


class _Parser:
    def __init__(self, text: str, schema: Any) -> None:
        self._text = text
        self._schema = schema
        self._tokens = self._split()
        self._place = 0

    def filters(self) -> list[list[Any]]:
        found = self._conditions(MAX_DEPTH)
        if self._peek().kind != "end":
            self._fail(f"{self._peek().text!r:.40} is not understood there")
        return found

    # Pieces

    def _split(self) -> list[_Token]:
        tokens, place, text = [], 0, self._text.rstrip()
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None or found.lastgroup is None:
                rest = text[place:].lstrip()[:20]
                self._fail(f"{rest!r} is not understood{_hint(rest)}")
            tokens.append(_Token(found.lastgroup, found[found.lastgroup]))
            place = found.end()
        return [*tokens, _Token("end", _END)]

    def _peek(self) -> _Token:
        return self._tokens[self._place]

    def _next(self) -> _Token:
        token = self._tokens[self._place]
        self._place = min(self._place + 1, len(self._tokens) - 1)
        return token

    def _is_word(self, word: str) -> bool:
        token = self._peek()
        return token.kind == "word" and token.text.lower() == word

    def _expect(self, text: str) -> None:
        token = self._next()
        if token.kind not in ("word", "sign") or token.text.lower() != text:
            came = repr(token.text) if token.kind != "end" else "the end"
            self._fail(f"{text.upper()!r} was expected, and {came} came")

    # Conditions

    def _conditions(self, depth: int) -> list[list[Any]]:
        found = self._condition(depth)
        while self._is_word("and"):
            self._next()
            found += self._condition(depth)
        return found

    def _condition(self, depth: int) -> list[list[Any]]:
        if self._peek() == _Token("sign", "("):
            if not depth:
                self._fail(f"it has more than {MAX_DEPTH} parentheses within each other")
            self._next()
            found = self._conditions(depth - 1)
            self._expect(")")
            return found
        if self._is_column():
            return self._of_column(self._column())
        value = self._value()
        op = self._comparison()
        if not self._is_column():
            self._fail("a comparison is of a column and a value")
        name = self._column()
        return [[name, _SWAPPED[op], self._fitted(name, value)]]

    def _of_column(self, name: str) -> list[list[Any]]:
        if self._is_word("is"):
            self._next()
            inverted = self._is_word("not")
            if inverted:
                self._next()
            self._expect("null")
            return [[name, "not_null" if inverted else "is_null"]]
        if self._is_word("between"):
            self._next()
            low = self._fitted(name, self._value())
            self._expect("and")
            return [[name, ">=", low], [name, "<=", self._fitted(name, self._value())]]
        if self._is_word("in"):
            self._next()
            return [[name, "in", self._values(name)]]
        op = self._comparison()
        if self._is_column():
            self._fail("two columns cannot be compared")
        return [[name, op, self._fitted(name, self._value())]]

    def _comparison(self) -> str:
        token = self._next()
        if token.kind != "sign" or token.text not in _COMPARISONS:
            came = repr(token.text) if token.kind != "end" else "the end"
            self._fail(f"a comparison was expected, and {came} came")
        return _COMPARISONS[token.text]

    def _values(self, name: str) -> list[Any]:
        self._expect("(")
        values = [self._fitted(name, self._value())]
        while self._peek() == _Token("sign", ","):
            self._next()
            values.append(self._fitted(name, self._value()))
        self._expect(")")
        return values

    # Columns and values

    def _is_column(self) -> bool:
        token = self._peek()
        if token.kind != "word":
            return token.kind == "quoted"
        following = self._tokens[self._place + 1].kind
        return token.text.lower() not in _KEYWORDS and following != "text"

    def _column(self) -> str:
        token = self._next()
        name = token.text.replace("``", "`") if token.kind == "quoted" else token.text
        if name in self._schema.names:
            return name
        found: list[str] = [each for each in self._schema.names if each.lower() == name.lower()]
        if len(found) != 1:
            known = ", ".join(self._schema.names)
            text = f"{self._shown()} names a column {name!r:.140}; there are {known:.1000}"
            raise refusal(Code.NO_COLUMN, text)
        return found[0]

    def _value(self) -> Any:
        token = self._next()
        if token.kind == "number":
            return _Number(token.text)
        if token.kind == "text":
            return token.text.replace("''", "'")
        word = token.text.lower()
        if token.kind == "word" and word in ("true", "false"):
            return word == "true"
        if token.kind == "word" and word in ("date", "timestamp", "timestamp_ntz"):
            return self._value_of(word)
        if token.kind == "word" and word == "null":
            self._fail("nothing equals NULL: use IS NULL or IS NOT NULL")
        came = repr(token.text) if token.kind != "end" else "the end"
        self._fail(f"a value was expected, and {came} came")

    def _value_of(self, kind: str) -> str:
        token = self._next()
        if token.kind != "text":
            self._fail(f"{kind.upper()} was expected to have a text in single quotes behind it")
        return token.text

    def _fitted(self, name: str, value: Any) -> Any:
        """Return a value as a filter of that column carries it."""
        kind = self._schema.field(name).type
        if is_binary(kind):
            self._fail(f"column {name!r:.140} is {kind}, which can only be tested for nulls")
        if not isinstance(value, _Number):
            return value
        try:
            if pa.types.is_floating(kind):
                return float(value.text)
            number = Decimal(value.text)
        except (InvalidOperation, ValueError):
            self._fail(f"{value.text!r:.80} is no number")
        if number and abs(number.adjusted()) > MAX_DIGITS:
            self._fail(f"{value.text:.80} is out of range")
        if pa.types.is_decimal(kind):
            return format(number, "f")
        if number != number.to_integral_value():
            self._fail(f"column {name!r:.140} is {kind}, and {value.text:.80} is not")
        return int(number)

    def _shown(self) -> str:
        return f"the condition {self._text!r:.200}"

    def _fail(self, why: str) -> NoReturn:
        raise refusal(Code.BAD_FILTER, f"{self._shown()} cannot be used: {why}; {SUPPORTED}")


def _hint(rest: str) -> str:
    if rest.startswith("'"):
        return ", since it does not end, or has a backslash, which engines read in several ways"
    if rest.startswith('"'):
        return ", since double quotes are a text in Spark and a column elsewhere"
    return ""
