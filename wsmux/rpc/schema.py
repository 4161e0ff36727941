"""Compile JSON Schemas, once, and check values against them (section "Clients, servers, and RPCs").

No third library does it. The kept pure one, ``jsonschema``, takes twenty times as long for a
small object and gathers every error of every branch: 100,000 wrong items under an ``anyOf`` cost
it seconds, and two alternatives that refer to themselves cost 2**depth. Others stop at the first
error or cannot know River's own types. What the keywords mean is tested against ``jsonschema``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from .applicators import APPLICATORS, NEVER, OVERLAPPING, UNSUPPORTED, WITH_REF
from .keywords import LEAVES, Found, Memo, Rule, all_of, below
from .references import find, resource_of

__all__ = ["JsonSchema", "Schema"]

JsonSchema = Mapping[str, Any] | bool

# River sends no more of them (``firstValidationErrors``).
FIRST_ERRORS = 5

# Arrays and objects whose results are kept in one check of a schema that refers to itself in
# several ways: some 200 MB, at most.
MAX_KEPT = 1_000_000

TOO_DEEP = "is nested too deeply to be checked"
TOO_MANY = "has too many parts to be checked"


class Schema:
    """Be one compiled schema; immutable, and safe to use from any number of threads.

    Args:
        json_schema: a JSON Schema as Python data, ``None`` for one that accepts anything. Draft
            2020-12 less ``unevaluated*`` and ``$dynamicRef``, and draft 7's tuples. It may refer
            to itself by ``#``, a JSON pointer, an ``$id``, an ``$anchor`` or the name of one of
            its ``$defs``; nothing is ever fetched.

    Raises:
        ValueError: it is no schema, uses what is not supported or refers to what is not in it.

    >>> schema = Schema({"type": "object", "properties": {"n": {"type": "number"}}})
    >>> schema.check({"n": 1})
    >>> schema.check({"n": "one"})["firstValidationErrors"]
    [{'path': '/n', 'message': 'must be number'}]
    """

    __slots__ = ("_json", "_keeps", "_rule", "trivial")

    trivial: bool
    """Whether it accepts anything, so that there is no need to ask."""

    def __init__(self, json_schema: JsonSchema | None = None) -> None:
        self._json = _copy({} if json_schema is None else json_schema)
        try:
            self._rule, self._keeps = _compile(self._json)
        except RecursionError:
            raise ValueError("a schema that is nested too deeply") from None
        self.trivial = self._rule is None

    def __repr__(self) -> str:
        return f"Schema({self._json!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (self._json,)

    @property
    def json(self) -> dict[str, Any] | bool:
        """Return the schema as JSON data, a fresh copy."""
        copy: dict[str, Any] | bool = _copy(self._json)
        return copy

    def check(self, value: Any) -> dict[str, Any] | None:
        """Return ``None`` for a value of the schema, else River's ``extras``.

        Errors are counted up to ``keywords.MAX_ERRORS``. A value too deep for Python's stack is
        an error like any other. A memory view counts as ``Uint8Array``, a tuple as an array.
        """
        rule = self._rule
        if rule is None:
            return None
        memo: Memo = {} if self._keeps else None
        try:
            if rule.holds(value, memo):
                return None
            found = Found(memo)
            rule.explain(value, "", found)
        except RecursionError:
            found = Found(None)
            found.add("", TOO_DEEP)
        except _TooManyError:
            found = Found(None)
            found.add("", TOO_MANY)
        return {
            "totalErrors": len(found.errors),
            "firstValidationErrors": found.errors[:FIRST_ERRORS],
        }


def _copy(json_schema: Any) -> Any:
    """Return plain JSON data, which nobody else can change."""
    if not isinstance(json_schema, dict | bool):
        raise ValueError(f"a schema must be a dict or a bool, but is {json_schema!r}")
    try:
        return json.loads(json.dumps(json_schema, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a schema must be JSON: {error}") from error


class _TooManyError(Exception):
    """Report that no more results can be kept."""


class _Target:
    """Be the rule of a schema that is referred to; there before it is compiled."""

    rule: Rule | None = None

    def holds(self, value: Any, memo: Memo) -> bool:
        rule = self.rule
        if rule is None:
            return True
        if memo is None or not isinstance(value, dict | list | tuple):
            return rule.holds(value, memo)
        key = id(value), id(self)
        known = memo.get(key)
        if known is None:
            if len(memo) >= MAX_KEPT:
                raise _TooManyError
            known = memo[key] = rule.holds(value, memo)
        return known

    def explain(self, value: Any, path: str, found: Found) -> None:
        if self.rule is not None:
            self.rule.explain(value, path, found)


@dataclass
class _Whole:
    """Hold what the parts of one schema share.

    ``edges`` tell which schemas refer to which; ``loops`` do when it is about the very same
    value, where a circle would never end.
    """

    root: Any
    targets: dict[int, _Target] = field(default_factory=dict)
    edges: dict[int, set[int]] = field(default_factory=dict)
    loops: dict[int, set[int]] = field(default_factory=dict)
    overlaps: bool = False


@dataclass
class _Part:
    """Be one schema while it is compiled: see ``keywords.Part``.

    ``owner`` is the schema referred to that it is part of, by its ``id()``; ``level`` tells
    whether both look at the same value.
    """

    whole: _Whole
    schema: Any
    resource: Any
    path: str
    owner: int
    level: bool

    def wrong(self, keyword: str, sentence: str) -> ValueError:
        return ValueError(f"{keyword} of the schema at #{self.path} {sentence}")

    def inner(self, value: Any, *place: str | int, deeper: bool = True) -> Rule | None:
        path = self.path
        for step in place:
            path = below(path, str(step))
        resource = resource_of(value, self.resource)
        level = self.level and not deeper
        return _Part(self.whole, value, resource, path, self.owner, level).compile()

    def compile(self) -> Rule | None:
        schema = self.schema
        if isinstance(schema, bool):
            return None if schema else NEVER
        if not isinstance(schema, dict):
            raise ValueError(f"the schema at #{self.path} must be an object or a bool")
        for keyword in sorted(UNSUPPORTED & schema.keys()):
            raise self.wrong(keyword, "is not supported")
        if OVERLAPPING & schema.keys() or ("$ref" in schema and WITH_REF & schema.keys()):
            self.whole.overlaps = True
        rules = [make(self) for keyword, make in LEAVES.items() if keyword in schema]
        if "$ref" in schema:
            rules.append(self.refer(schema["$ref"]))
        rules += [make(self) for keywords, make in APPLICATORS if keywords & schema.keys()]
        return all_of([rule for rule in rules if rule is not None])

    def refer(self, reference: Any) -> Rule | None:
        """Return the rule of the schema that a ``$ref`` means, which is compiled once."""
        if not isinstance(reference, str):
            raise self.wrong("$ref", "must be a string")
        schema, resource = find(self.whole.root, self.resource, reference)
        key = id(schema)
        self.whole.edges.setdefault(self.owner, set()).add(key)
        if self.level:
            self.whole.loops.setdefault(self.owner, set()).add(key)
        target = self.whole.targets.get(key)
        if target is None:
            target = self.whole.targets[key] = _Target()
            target.rule = _Part(self.whole, schema, resource, reference, key, True).compile()
        return Rule(target.holds, target.explain)


def _compile(root: Any) -> tuple[Rule | None, bool]:
    """Return the rule of a schema, and whether its checks have to keep results."""
    whole = _Whole(root)
    whole.targets[id(root)] = target = _Target()
    target.rule = _Part(whole, root, root, "", id(root), True).compile()
    if _has_circle(whole.loops):
        raise ValueError("a schema that refers to itself without going deeper into the value")
    return target.rule, whole.overlaps and _has_circle(whole.edges)


def _has_circle(graph: dict[int, set[int]]) -> bool:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return True
    return False
