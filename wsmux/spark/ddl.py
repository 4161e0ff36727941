"""Parse Spark's type names without Spark: ``double``, ``struct<city:string>``.

A worker has no JVM, and a driver may not have a session yet. Names are those of Spark's DDL; field
names may be in backticks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

__all__ = ["Ddl", "ddl_of", "from_arrow", "parse"]

# Arrow's name of a type, by Spark's.
ARROW_NAMES = {
    "boolean": "bool_",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "binary": "binary",
    "date": "date32",
}
SYNONYMS = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}

# Maximum nesting; no real schema is deeper.
MOST_DEPTH = 50

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|([A-Za-z_0-9]+)|([<>(),:]))")

# Names that need no backticks.
_BARE = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


class Ddl(NamedTuple):
    """Hold one type: its name, and its element types and fields."""

    name: str
    inner: tuple[Ddl, ...] = ()
    fields: tuple[str, ...] = ()
    digits: tuple[int, int] = (10, 0)
    """Precision and scale of a decimal."""

    def __str__(self) -> str:
        if self.name == "decimal":
            return f"decimal({self.digits[0]},{self.digits[1]})"
        if self.name == "struct":
            return _struct_text(zip(self.fields, map(str, self.inner), strict=True))
        return f"{self.name}<{','.join(map(str, self.inner))}>" if self.inner else self.name

    def arrow(self) -> Any:
        """Return the pyarrow type that Spark maps it to."""
        import pyarrow as pa

        inner = [each.arrow() for each in self.inner]
        match self.name:
            case "decimal":
                return pa.decimal128(*self.digits)
            case "timestamp":
                return pa.timestamp("us", tz="UTC")
            case "timestamp_ntz":
                return pa.timestamp("us")
            case "array":
                return pa.list_(inner[0])
            case "map":
                return pa.map_(*inner)
            case "struct":
                return pa.struct(list(zip(self.fields, inner, strict=True)))
            case name:
                return getattr(pa, ARROW_NAMES[name])()


def ddl_of(value: Any) -> Ddl:
    """Return the type given as text, or as a type of pyspark or pyarrow.

    Raises:
        ValueError: Spark has no such type, or it is not supported here.
    """
    if isinstance(value, str):
        return parse(value)
    if not hasattr(value, "simpleString"):
        try:
            value = from_arrow(value)
        except Exception as error:
            raise ValueError(f"Spark has no type for {value!r}") from error
    return parse(_written(value))


def from_arrow(kind: Any) -> Any:
    """Return pyspark's type for one of pyarrow, a time without a zone as such.

    Not all versions of pyspark do so unless they are told to.
    """
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def _written(kind: Any) -> str:
    """Return the name of a type of pyspark, whose ``simpleString`` puts no backticks."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return _struct_text((field.name, _written(field.dataType)) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return f"array<{_written(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_written(kind.keyType)},{_written(kind.valueType)}>"
    return str(kind.simpleString())


def parse(text: str) -> Ddl:
    """Parse a type.

    Raises:
        ValueError: it is not a supported type.

    >>> str(parse("STRUCT<city: string, at: array<LONG>>"))
    'struct<city:string,at:array<bigint>>'
    """
    reader = _Reader(text)
    found = reader.type(0)
    reader.end()
    return found


class _Reader:
    """Parse one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._tokens.reverse()

    def type(self, depth: int) -> Ddl:
        word = self._next()
        name = SYNONYMS.get(word.lower(), word.lower())
        if depth > MOST_DEPTH:
            raise self._wrong()
        if name in ARROW_NAMES or name in ("timestamp", "timestamp_ntz"):
            return Ddl(name)
        if name == "decimal":
            return Ddl(name, digits=self._digits())
        if name in ("array", "map"):
            self._expect("<")
            inner = [self.type(depth + 1)]
            if name == "map":
                self._expect(",")
                inner.append(self.type(depth + 1))
            self._expect(">")
            return Ddl(name, tuple(inner))
        if name == "struct":
            return self._struct(depth)
        raise self._wrong()

    def _struct(self, depth: int) -> Ddl:
        self._expect("<")
        names: list[str] = []
        inner: list[Ddl] = []
        while self._peek() != ">":
            if names:
                self._expect(",")
            word = self._next()
            names.append(word[1:-1].replace("``", "`") if word.startswith("`") else word)
            if self._peek() == ":":
                self._next()
            inner.append(self.type(depth + 1))
        self._expect(">")
        return Ddl("struct", tuple(inner), tuple(names))

    def _digits(self) -> tuple[int, int]:
        if self._peek() != "(":
            return 10, 0
        self._next()
        precision, scale = self._next(), "0"
        if self._peek() == ",":
            self._next()
            scale = self._next()
        self._expect(")")
        if not (precision.isdigit() and scale.isdigit() and 0 < int(precision) <= 38):
            raise self._wrong()
        return int(precision), int(scale)

    def _peek(self) -> str:
        return self._tokens[-1] if self._tokens else ""

    def _next(self) -> str:
        if not self._tokens:
            raise self._wrong()
        return self._tokens.pop()

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise self._wrong()

    def end(self) -> None:
        """Raise an error unless the whole text was parsed."""
        if self._tokens:
            raise self._wrong()

    def _wrong(self) -> ValueError:
        return ValueError(f"{self._text!r} is not a supported Spark type")


def _tokens(text: str) -> Iterator[str]:
    place = 0
    text = text.rstrip()
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise ValueError(f"{text!r} is not a supported Spark type")
        place = found.end()
        yield found[1] or found[2] or found[3]


def _struct_text(fields: Iterable[tuple[str, str]]) -> str:
    return f"struct<{','.join(f'{_quoted(name)}:{kind}' for name, kind in fields)}>"


def _quoted(name: str) -> str:
    return name if _BARE.fullmatch(name) else f"`{name.replace('`', '``')}`"
