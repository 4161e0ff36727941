"""Translate JSON Schemas into Python types, for the code generator.

Objects with named properties become records. Everything else becomes an expression, with an alias
where a name is needed or a line would be too long. Bounds, patterns, properties beyond the named
ones and negations have no Python type: the type is wider than the schema there, or ``Any``.
"""

from __future__ import annotations

import builtins
import keyword
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import product
from typing import Any

from .refs import find, resource_of

__all__ = ["Alias", "ErrorClass", "Expr", "Field", "Names", "Record", "Types", "pascal"]

# The most combinations of unions inside an intersection; the type of more is Any.
MAX_SHAPES = 32

# Keywords that combine several schemas in one type.
COMPOSING = ("$ref", "properties", "allOf", "anyOf", "oneOf")

SIMPLE = {
    "string": "str",
    "number": "float",
    "integer": "int",
    "bigint": "int",
    "boolean": "bool",
    "null": "None",
    "undefined": "None",
    "void": "None",
    "Uint8Array": "bytes",
    "Date": "datetime",
}


@dataclass(frozen=True, slots=True)
class Expr:
    """A type: a name, or a ``list``, ``dict``, ``Literal`` or union (``|``) of parts.

    The parts of a ``Literal`` are names whose text is the source of a value.
    """

    kind: str
    text: str = ""
    parts: tuple[Expr, ...] = ()

    def __str__(self) -> str:
        inside = ", ".join(str(part) for part in self.parts)
        match self.kind:
            case "name":
                return self.text
            case "|":
                return " | ".join(str(part) for part in self.parts)
            case "dict":
                return f"dict[str, {inside}]"
        return f"{self.kind}[{inside}]"

    def names(self) -> Iterator[str]:
        """Yield the names that it refers to, as defined in the module or imported."""
        if self.kind == "Literal":
            yield self.kind
        elif self.kind == "name":
            yield self.text
        else:
            for part in self.parts:
                yield from part.names()

    def words(self) -> Iterator[str]:
        """Yield all names in its source."""
        yield self.text if self.kind == "name" else self.kind
        if self.kind == "dict":
            yield "str"
        for part in self.parts if self.kind != "Literal" else ():
            yield from part.words()


def name(text: str) -> Expr:
    return Expr("name", text)


ANY = name("Any")
NEVER = name("Never")
NONE = name("None")


def union(parts: Iterable[Expr]) -> Expr:
    """Return the union of types, flat and without duplicates; with ``Any`` it is ``Any``."""
    flat: dict[Expr, None] = {}
    for part in parts:
        flat.update(dict.fromkeys(part.parts if part.kind == "|" else (part,)))
    literals = [value for part in flat if part.kind == "Literal" for value in part.parts]
    if ANY in flat:
        return ANY
    kept = [part for part in flat if part.kind != "Literal" and part not in (NEVER, NONE)]
    if literals:
        kept.insert(0, Expr("Literal", parts=tuple(dict.fromkeys(literals))))
    if NONE in flat:
        kept.append(NONE)
    if not kept:
        return NEVER
    return kept[0] if len(kept) == 1 else Expr("|", parts=tuple(kept))


@dataclass(frozen=True, slots=True)
class Field:
    """A property of a record; ``wire`` is its name on the wire."""

    wire: str
    type: Expr
    required: bool
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """An object with named properties."""

    name: str
    fields: tuple[Field, ...]
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name for a type."""

    name: str
    type: Expr


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """The class of an error; ``extra`` is ``None`` if the schema does not describe it."""

    name: str
    code: Expr
    extra: Expr | None
    description: str | None = None


class Names:
    """Choose unique names: a name that is already taken gets a number at its end."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self.given: set[str] = set()
        self._used = {*reserved, *dir(builtins), *keyword.kwlist}

    def reserve(self, names: Iterable[str]) -> None:
        """Exclude names from now on."""
        self._used.update(names)

    def take(self, wanted: str) -> str:
        """Return a name that is not taken yet, ``wanted`` if possible."""
        chosen, number = wanted, 1
        while chosen in self._used:
            number += 1
            chosen = f"{wanted}{number}"
        self._used.add(chosen)
        self.given.add(chosen)
        return chosen


def pascal(text: str) -> str:
    """Return the name of a class for a name on the wire: ``ReadFile`` for ``"read-file"``.

    Characters that are not allowed in a Python name are left out; without any other it is
    ``Unnamed``.
    """
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text))
    if text.isupper():
        words = [word.capitalize() for word in words]
    joined = unicodedata.normalize("NFKC", "".join(word[0].upper() + word[1:] for word in words))
    if not joined.isidentifier() and not f"N{joined}".isidentifier():
        joined = re.sub(r"\W", "", joined, flags=re.ASCII)
    return (joined if joined.isidentifier() else f"N{joined}") if joined else "Unnamed"


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a schema: its document, what ``#`` refers to there, and a name for its type."""

    document: int
    root: Any
    resource: Any
    name: str

    def at(self, schema: Any, *steps: str) -> _Place:
        longer = self.name + "".join(map(pascal, steps))
        return _Place(self.document, self.root, resource_of(schema, self.resource), longer)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The properties of an object, collected from the parts of an intersection."""

    properties: Mapping[str, list[tuple[Any, _Place]]] = field(default_factory=dict)
    required: frozenset[str] = frozenset()

    def merged(self, other: _Shape) -> _Shape:
        both = {key: [*schemas] for key, schemas in self.properties.items()}
        for key, schemas in other.properties.items():
            both.setdefault(key, []).extend(schemas)
        return _Shape(both, self.required | other.required)


class Types:
    """Collect the records, errors and aliases of a set of schemas, and name them."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.records: list[Record] = []
        self.aliases: list[Alias] = []
        self.errors: list[ErrorClass] = []
        self._known: dict[tuple[int, int], Expr] = {}
        self._documents: list[tuple[Any, str]] = []  # keeps the schemas alive, whose ids are keys

    def define(self, schema: Any, wanted: str) -> Expr:
        """Return the named type of a whole schema.

        Raises:
            ValueError: it refers to a schema outside itself.
        """
        self._documents.append((schema, wanted))
        return self._named(schema, _Place(len(self._documents) - 1, schema, schema, wanted))

    def define_error(self, schema: Mapping[str, Any], codes: list[str], wanted: str) -> Expr:
        """Return the class of an error, from its whole schema, which allows ``codes``.

        Raises:
            ValueError: it refers to a schema outside itself.
        """
        self._documents.append((schema, wanted))
        place = _Place(len(self._documents) - 1, schema, schema, wanted)
        taken = self.names.take(wanted)
        extra, properties = None, _mapping(schema, "properties")
        if "extras" in properties:
            extras = properties["extras"]
            extra = self._expr(extras, place.at(extras, "extras"))
            if "extras" not in _required(schema):
                extra = union([extra, NONE])
        self.errors.append(ErrorClass(taken, _literal(codes), extra, _note(schema)))
        return name(taken)

    def alias(self, wanted: str, type_: Expr) -> Expr:
        """Return a new name for a type."""
        alias = Alias(self.names.take(wanted), type_)
        self.aliases.append(alias)
        return name(alias.name)

    def _named(self, schema: Any, place: _Place) -> Expr:
        """Return the name of a schema's type, which its own parts may refer to."""
        key = place.document, id(schema)
        known = self._known.get(key)
        if known is None:
            taken = self.names.take(place.name)
            known = self._known[key] = name(taken)
            found = self._expr(schema, place, taken)
            if found != known:
                self.aliases.append(Alias(taken, found))
        return known

    def _expr(self, schema: Any, place: _Place, taken: str | None = None) -> Expr:
        """Return the type of a schema; if it is a record, ``taken`` is its name."""
        if not isinstance(schema, Mapping):
            return NEVER if schema is False else ANY
        if schema.get("not") in ({}, True):
            return NEVER
        if "const" in schema:
            return _literal([schema["const"]])
        if isinstance(schema.get("enum"), list):
            return _literal(schema["enum"])
        composed = [key for key in COMPOSING if schema.get(key)]
        if composed == ["$ref"]:
            return self._refer(schema["$ref"], place)
        if "properties" in composed or "allOf" in composed or len(composed) > 1:
            shapes = self._shapes(schema, place, ())
            if shapes is not None and all(shape.properties for shape in shapes):
                return self._records(shapes, schema, place, taken)
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                return union(
                    self._expr(branch, place.at(branch, _branch_name(branch, index)))
                    for index, branch in enumerate(schema[key], 1)
                )
        if isinstance(schema.get("allOf"), list):
            return _both(self._expr(part, place.at(part)) for part in schema["allOf"])
        named = schema.get("type", _implied(schema))
        kinds = named if isinstance(named, list) else [named]
        return union(self._of_kind(kind, schema, place) for kind in kinds)

    def _records(
        self, shapes: list[_Shape], schema: Mapping[str, Any], place: _Place, taken: str | None
    ) -> Expr:
        if len(shapes) == 1:
            return self._record(taken or self.names.take(place.name), shapes[0], schema)
        return union(
            self._record(self.names.take(f"{place.name}Option{index}"), shape, schema)
            for index, shape in enumerate(shapes, 1)
        )

    def _record(self, taken: str, shape: _Shape, schema: Mapping[str, Any]) -> Expr:
        fields = []
        for wire, schemas in sorted(shape.properties.items()):
            types = [self._expr(each, around.at(each, wire)) for each, around in schemas]
            required = wire in shape.required
            fields.append(Field(wire, _both(types), required, _note(schemas[0][0])))
        self.records.append(Record(taken, tuple(fields), _note(schema)))
        return name(taken)

    def _of_kind(self, kind: Any, schema: Mapping[str, Any], place: _Place) -> Expr:
        if kind == "array":
            return Expr("list", parts=(self._items(schema, place),))
        if kind == "object":
            values = [*_mapping(schema, "patternProperties").values()]
            others = schema.get("additionalProperties", not values)
            kinds = [self._expr(each, place.at(each, "value")) for each in (*values, others)]
            inside = union(kinds)
            return Expr("dict", parts=(ANY if inside == NEVER else inside,))
        return name(SIMPLE[kind]) if isinstance(kind, str) and kind in SIMPLE else ANY

    def _items(self, schema: Mapping[str, Any], place: _Place) -> Expr:
        items = schema.get("items", True)
        heads, rest = schema.get("prefixItems"), items
        if isinstance(items, list):
            heads, rest = items, schema.get("additionalItems", True)
        heads = heads if isinstance(heads, list) else []
        if heads and schema.get("maxItems") == len(heads):
            rest = False
        return union(self._expr(each, place.at(each, "item")) for each in (*heads, rest))

    def _refer(self, reference: Any, place: _Place) -> Expr:
        target, resource = find(place.root, place.resource, str(reference))
        wanted = self._documents[place.document][1] + pascal(re.split("[/#]", str(reference))[-1])
        return self._named(target, _Place(place.document, place.root, resource, wanted))

    def _shapes(self, schema: Any, place: _Place, seen: tuple[int, ...]) -> list[_Shape] | None:
        """Return the objects that a schema is a union of, or ``None`` if it is no such union."""
        if schema is True:
            return [_Shape()]
        if not isinstance(schema, Mapping) or id(schema) in seen:
            return None
        if schema.get("type", "object") != "object" or "const" in schema or "enum" in schema:
            return None
        seen = (*seen, id(schema))
        properties = _mapping(schema, "properties")
        own = _Shape({key: [(each, place)] for key, each in properties.items()}, _required(schema))
        groups: list[list[_Shape]] = [[own]]
        if "$ref" in schema:
            target, resource = find(place.root, place.resource, str(schema["$ref"]))
            found = self._shapes(target, replace(place, resource=resource), seen)
            groups.append(found or [])
        groups += [
            self._shapes(part, place.at(part), seen) or [] for part in _listed(schema, "allOf")
        ]
        for key in ("anyOf", "oneOf"):
            branches = _listed(schema, key)
            shapes = [self._shapes(branch, place.at(branch), seen) for branch in branches]
            if branches:
                groups.append([] if None in shapes else [s for each in shapes for s in each or ()])
        if not 0 < math.prod(map(len, groups)) <= MAX_SHAPES:
            return None
        return [reduce(_Shape.merged, combination) for combination in product(*groups)]


def _both(types: Iterable[Expr]) -> Expr:
    """Return the type of values of several types at once: ``Any`` if these differ."""
    known = {type_ for type_ in types if type_ != ANY}
    return known.pop() if len(known) == 1 else ANY


def _literal(values: Iterable[Any]) -> Expr:
    return union(map(_one_literal, values))


def _one_literal(value: Any) -> Expr:
    if isinstance(value, str):
        return Expr("Literal", parts=(name(repr(value)),))
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:  # mypy refuses larger ones in quoted types
            return name("int")
        return Expr("Literal", parts=(name(repr(value)),))
    if isinstance(value, list | Mapping):
        return Expr("list", parts=(ANY,)) if isinstance(value, list) else Expr("dict", parts=(ANY,))
    return name("None" if value is None else "float")


def _implied(schema: Mapping[str, Any]) -> str | None:
    """Return the type that a schema without ``type`` most likely describes."""
    if schema.keys() & {"properties", "patternProperties", "additionalProperties"}:
        return "object"
    return "array" if schema.keys() & {"items", "prefixItems"} else None


def _branch_name(schema: Any, index: int) -> str:
    """Return a name for a branch: the constant of a property, as in a tagged union."""
    for _, each in sorted(_mapping(schema, "properties").items()):
        literal = each.get("const") if isinstance(each, Mapping) else None
        if isinstance(literal, str):
            return literal
    return f"Option{index}"


def _mapping(schema: Any, key: str) -> Mapping[str, Any]:
    inner = schema.get(key) if isinstance(schema, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    inner = schema.get(key)
    return inner if isinstance(inner, list) else []


def _required(schema: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(each for each in _listed(schema, "required") if isinstance(each, str))


def _note(schema: Any) -> str | None:
    note = schema.get("description") if isinstance(schema, Mapping) else None
    return note if isinstance(note, str) else None
