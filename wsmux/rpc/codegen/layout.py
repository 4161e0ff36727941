"""Write types as Python source: on one line if they fit, else one part on each line."""

from __future__ import annotations

import keyword
import re
import textwrap
import unicodedata
from collections.abc import Container, Iterable
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from .types import NONE, ErrorClass, Expr, Record, Types, name, pascal, union

__all__ = ["AMBIGUOUS", "IMPORTS", "Layout", "Style", "docstring", "listed"]

Style = Literal["typeddict", "dataclass"]

# Names that a module may import, and their modules; generated names avoid them.
IMPORTS = {
    "dataclass": "dataclasses",
    "field": "dataclasses",
    "datetime": "datetime",
    "TYPE_CHECKING": "typing",
    "Any": "typing",
    "Literal": "typing",
    "Never": "typing",
    "NotRequired": "typing",
    "TypeAlias": "typing",
    "TypedDict": "typing",
    "Abort": "wsmux.rpc",
    "Client": "wsmux.rpc",
    "StreamCall": "wsmux.rpc",
    "Subscription": "wsmux.rpc",
    "Upload": "wsmux.rpc",
    "RiverError": "wsmux.rpc.errors",
    "TypedStreamCall": "wsmux.rpc.records",
    "TypedSubscription": "wsmux.rpc.records",
    "TypedUpload": "wsmux.rpc.records",
    "Wire": "wsmux.rpc.records",
}

# Names that linters refuse because they look like digits.
AMBIGUOUS = frozenset({"I", "O", "l"})

IN_DATACLASSES = frozenset({"field", *AMBIGUOUS})

# The attributes of an error.
IN_ERRORS = frozenset({"code", "extra"})

# Names used in signatures, besides the types of the module.
IN_SIGNATURES = frozenset({"float", *IMPORTS})


class Layout:
    """Write the records, errors and aliases of ``types``, and note which imports they need."""

    def __init__(self, types: Types, style: Style, width: int) -> None:
        self.types = types
        self.style = style
        self.width = width
        self.used: set[str] = set()
        self.noqa: set[str] = set()  # rules of ruff that names on the wire break

    def use(self, type_: Expr) -> str:
        """Return a type's source, and note the imports that it needs."""
        self.used.update(IMPORTS.keys() & set(type_.names()))
        return str(type_)

    def definitions(self) -> list[str]:
        """Return the source of records and errors, then of aliases, which need them defined.

        Raises:
            ValueError: an alias refers to itself.
        """
        records = sorted(self.types.records, key=lambda each: each.name)
        for record in records:  # an alias made below must not be hidden by an attribute
            wires = [each.wire for each in record.fields]
            self.types.names.reserve([*wires, *_attributes(wires, IN_DATACLASSES).values()])
        write = self._dataclass if self.style == "dataclass" else self._typed_dict
        blocks = [write(record) for record in records]
        errors = sorted(self.types.errors, key=lambda each: each.name)
        blocks += [self._error(each) for each in errors]
        aliases = self._aliases()
        return [*blocks, "\n".join(aliases)] if aliases else blocks

    def methods(self, wires: Iterable[str]) -> dict[str, str]:
        """Return names for the methods of procedures that hide no type in signatures."""
        methods = _attributes(
            wires, {*IN_SIGNATURES, *AMBIGUOUS, *self.types.names.given}, private="_"
        )
        self.types.names.reserve(methods.values())
        return methods

    def error_names(self, wanted: Iterable[str], methods: Iterable[str]) -> dict[str, str]:
        """Return names for a service's errors that hide neither methods nor types."""
        hidden = {*IN_SIGNATURES, *AMBIGUOUS, *self.types.names.given, *methods}
        chosen = _attributes(wanted, hidden, private="_")
        self.types.names.reserve(chosen.values())
        return chosen

    def _fit(
        self, type_: Expr, room: int, wanted: str, hidden: Container[str] = frozenset()
    ) -> str:
        """Return the source of a type.

        It becomes an alias if it is longer than ``room`` characters, or uses a name that is
        ``hidden`` by an attribute of the class that it is written in.
        """
        clear = not any(each in hidden for each in type_.words())
        if clear and (len(str(type_)) <= room or type_.kind == "name"):
            return self.use(type_)
        return str(self.types.alias(wanted, type_))

    def _typed_dict(self, record: Record) -> str:
        self.used.add("TypedDict")
        wires = {each.wire for each in record.fields}
        plain = all(_is_plain(wire, {"NotRequired"}, "__") for wire in wires)
        if plain and not AMBIGUOUS.isdisjoint(wires):
            self.noqa.add("E741")
        if not plain and all(_could_be_plain(wire) for wire in wires):
            self.noqa.add("UP013")
        lines = []
        for each in record.fields:
            start = f"    {each.wire}: " if plain else f"        {each.wire!r}: "
            around = 0 if each.required else len("NotRequired[]")
            room = self.width - len(start) - around - (0 if plain else len('"",'))
            wanted = record.name + pascal(each.wire)
            text = self._fit(each.type, room, wanted, wires if plain else ())
            text = text if plain else f"{text!r}"
            if not each.required:
                self.used.add("NotRequired")
                text = f"NotRequired[{text}]"
            lines.append(f"{start}{text}" if plain else f"{start}{text},")
        if plain:
            start = f"class {record.name}(TypedDict):"
            return "\n".join([start, *self._about(record, "    "), *lines])
        start = f"{record.name} = TypedDict(\n    {record.name!r},\n    {{"
        return "\n".join([start, *lines, "    },", ")", *self._about(record, "")]).rstrip()

    def _dataclass(self, record: Record) -> str:
        self.used.add("dataclass")
        chosen = _attributes([each.wire for each in record.fields], IN_DATACLASSES)
        lines = []
        for each in record.fields:
            attribute = chosen[each.wire]
            type_ = each.type if each.required else union([each.type, NONE])
            room = self.width - len(f"    {attribute}:  = field(")
            wanted = record.name + pascal(each.wire)
            text = self._fit(type_, room, wanted, set(chosen.values()))
            default = "" if each.required else " = None"
            if attribute != each.wire:
                self.used.add("field")
                given = ["default=None"] * (not each.required)
                given.append(f'metadata={{"wire": {each.wire!r}}}')
                default = f" = field({', '.join(given)})"
            lines.append(f"    {attribute}: {text}{default}")
        start = f"@dataclass(frozen=True, kw_only=True)\nclass {record.name}:"
        return "\n".join([start, *self._about(record, "    "), *lines])

    def _error(self, error: ErrorClass) -> str:
        self.used.add("RiverError")
        lines = []
        for attribute, type_ in (("code", error.code), ("extra", error.extra)):
            if type_ is not None:
                room = self.width - len(f"    {attribute}: ")
                text = self._fit(type_, room, error.name + pascal(attribute), IN_ERRORS)
                lines.append(f"    {attribute}: {text}")
        about = docstring(error.description or "", {}, "    ", self.width)
        return "\n".join([f"class {error.name}(RiverError):", *about, *lines])

    def _about(self, record: Record, indent: str) -> list[str]:
        notes = {each.wire: each.description for each in record.fields if each.description}
        return docstring(record.description or "", notes, indent, self.width)

    def _aliases(self) -> list[str]:
        """Return the source of the aliases, each after those that it needs defined."""
        circular = _circular({each.name: set(each.type.names()) for each in self.types.aliases})
        texts: dict[str, str] = {}
        needs: dict[str, set[str]] = {}
        waiting = sorted(self.types.aliases, key=lambda each: each.name)
        while waiting:
            alias = waiting.pop(0)
            known = len(self.types.aliases)
            self.use(alias.type)
            type_ = _quoted(alias.type, circular)
            texts[alias.name] = self._alias(alias.name, type_)
            made = self.types.aliases[known:]
            waiting += made
            needs[alias.name] = {*type_.names(), *(each.name for each in made)}
        graph = {each: sorted(needs[each] & needs.keys()) for each in sorted(needs)}
        try:
            return [texts[each] for each in TopologicalSorter(graph).static_order()]
        except CycleError as error:
            named = ", ".join(sorted(set(error.args[1])))
            raise ValueError(f"schemas refer to themselves without going deeper: {named}") from None

    def _alias(self, alias: str, type_: Expr) -> str:
        self.used.add("TypeAlias")
        start = f"{alias}: TypeAlias = "
        if type_.kind == "name" or len(start + str(type_)) <= self.width:
            return f"{start}{self.use(type_)}"
        if type_.kind == "Literal":
            self.used.add("Literal")
            return listed(f"{start}Literal[", map(str, type_.parts), "]", self.width)
        if type_.kind == "|":
            parts = [
                self._fit(part, self.width - len("    | "), f"{alias}Option{index}")
                for index, part in enumerate(type_.parts, 1)
            ]
            return f"{start}(\n    " + "\n    | ".join(parts) + "\n)"
        inner = name(self._fit(type_.parts[0], 0, f"{alias}Item"))
        return f"{start}{replace(type_, parts=(inner,))}"


def listed(start: str, items: Iterable[str], end: str, width: int) -> str:
    """Return items between brackets, on one line if they fit, else one on each line.

    A single item always stays on the line: a comma after it would make it a tuple in a type.
    """
    several = [*items]
    line = f"{start}{', '.join(several)}{end}"
    if len(line) <= width or len(several) == 1:
        return line
    indent = " " * (len(start) - len(start.lstrip()))
    return "\n".join([start, *(f"{indent}    {each}," for each in several), f"{indent}{end}"])


def docstring(text: str, notes: dict[str, str], indent: str, width: int) -> list[str]:
    """Return the lines of a docstring and an empty line, or none if there is no text."""
    lines = _wrapped(text, width - len(indent) - 3)
    if notes:
        lines += ["", "Attributes:"] if lines else ["The fields.", "", "Attributes:"]
    for wire, note in sorted(notes.items()):
        first, *others = _wrapped(f"{wire}: {note}", width - len(indent) - 8) or ["-"]
        lines += [f"    {first}", *(f"        {other}" for other in others)]
    if not lines:
        return []
    if len(lines) == 1 and len(indent + lines[0]) + 6 <= width:
        return [f'{indent}"""{lines[0]}"""', ""]
    lines[0] = f'"""{lines[0]}'
    return [*(f"{indent}{line}".rstrip() for line in lines), f'{indent}"""', ""]


def _wrapped(text: str, width: int) -> list[str]:
    """Return a text of the schema as lines that cannot end the docstring around them."""
    clean = "".join(letter if letter.isprintable() else " " for letter in text)
    plain = " ".join(clean.split()).replace("\\", "\\\\").replace('"', "'")
    return textwrap.wrap(plain, max(width, 20), break_long_words=False, break_on_hyphens=False)


def _is_plain(wire: str, hides: Container[str], private: str) -> bool:
    """Return whether a name on the wire can be an attribute; Python mangles some private ones."""
    return _is_name(wire) and not wire.startswith(private) and wire not in hides


def _is_name(text: str) -> bool:
    """Return whether a text is a name in Python that normalization leaves unchanged."""
    same = unicodedata.normalize("NFKC", text) == text
    return same and text.isidentifier() and not keyword.iskeyword(text)


def _could_be_plain(wire: str) -> bool:
    """Return whether ruff would ask for a name to be written as an attribute of a class."""
    return wire.isidentifier() and not keyword.iskeyword(wire) and not wire.startswith("__")


def _attributes(wires: Iterable[str], hides: Container[str], private: str = "__") -> dict[str, str]:
    """Return an attribute for each name on the wire, the name itself where possible."""
    chosen: dict[str, str] = {}
    taken: set[str] = set()
    for wire in sorted(wires, key=lambda wire: (not _is_plain(wire, hides, private), wire)):
        wanted = wire if _is_plain(wire, hides, private) else _attribute(wire, hides)
        attribute, number = wanted, 1
        while attribute in taken or attribute in hides:
            number += 1
            attribute = f"{wanted}_{number}"
        taken.add(attribute)
        chosen[wire] = attribute
    return chosen


def _attribute(wire: str, hides: Container[str]) -> str:
    attribute = re.sub(r"\W+", "_", wire, flags=re.ASCII).strip("_") or "unnamed"
    if attribute[0].isdigit():
        attribute = f"n{attribute}"
    return attribute if _is_plain(attribute, hides, "_") else f"{attribute}_"


def _circular(edges: dict[str, set[str]]) -> set[str]:
    """Return the aliases that refer to themselves, directly or by others."""
    circular = set()
    for start in edges:
        seen: set[str] = set()
        waiting = [*edges[start]]
        while waiting:
            each = waiting.pop()
            if each in edges and each not in seen:
                seen.add(each)
                waiting.extend(edges[each])
        if start in seen:
            circular.add(start)
    return circular


def _quoted(type_: Expr, names: set[str], inside: bool = False) -> Expr:
    """Return a type with these names in quotes, which is possible inside brackets only."""
    if type_.kind == "Literal" or names.isdisjoint(type_.words()):
        return type_
    if inside and type_.kind in ("name", "|"):
        return name(repr(str(type_)))
    inside = inside or type_.kind != "|"
    return replace(type_, parts=tuple(_quoted(part, names, inside) for part in type_.parts))
