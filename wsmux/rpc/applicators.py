"""Turn the keywords that hold other schemas into rules; the others are in ``keywords``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .keywords import ARRAY, Found, Memo, Part, Rule, all_of, below, leaf
from .patterns import Search, compile_pattern

__all__ = ["APPLICATORS", "NEVER", "OVERLAPPING", "UNSUPPORTED", "WITH_REF"]

# Two schemas may look at one value by way of these, so recursion through them can go wild.
OVERLAPPING = frozenset(
    {"anyOf", "oneOf", "allOf", "not", "if", "contains", "dependentSchemas", "patternProperties"}
)

# The same, for what stands beside a reference.
WITH_REF = frozenset({"properties", "additionalProperties", "items", "prefixItems"})

# They need the marks that other keywords leave on a value, or depend on the way to a schema.
UNSUPPORTED = frozenset(
    {"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "dependencies"}
)

NEVER = leaf(lambda value: False, "schema is false")

_MISSING = object()


# -- objects -------------------------------------------------------------------------------------


def _schemas(part: Part, keyword: str, deeper: bool = True) -> dict[str, Rule | None]:
    """Return the rules of an object of schemas."""
    schemas = part.schema.get(keyword, {})
    if not isinstance(schemas, Mapping):
        raise part.wrong(keyword, "must be an object of schemas")
    return {
        name: part.inner(inner, keyword, name, deeper=deeper) for name, inner in schemas.items()
    }


def _names(part: Part, keyword: str, names: Any) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise part.wrong(keyword, "must be an array of strings")
    return names


def _properties(part: Part) -> Rule | None:
    rules = _schemas(part, "properties")
    required = _names(part, "required", part.schema.get("required", []))
    # A required one whose schema accepts everything is still looked for.
    fields = [
        (name, name in required, rules.get(name))
        for name in dict.fromkeys([*required, *rules])
        if name in required or rules[name] is not None
    ]

    def holds(value: Any, memo: Memo) -> bool:
        if not isinstance(value, dict):
            return True
        for name, needed, rule in fields:
            item = value.get(name, _MISSING)
            if item is _MISSING:
                if needed:
                    return False
            elif rule is not None and not rule.holds(item, memo):
                return False
        return True

    def explain(value: Any, path: str, found: Found) -> None:
        if not isinstance(value, dict):
            return
        missing = [name for name, needed, _ in fields if needed and name not in value]
        for name in missing:
            found.add(below(path, name), f"must have required properties {', '.join(missing)}")
        for name, _, rule in fields:
            if rule is not None and name in value and not found.full:
                rule.explain(value[name], below(path, name), found)

    return Rule(holds, explain) if fields else None


def _patterns(part: Part) -> list[tuple[Search, Rule | None]]:
    rules = _schemas(part, "patternProperties")
    try:
        return [(compile_pattern(pattern), rule) for pattern, rule in rules.items()]
    except ValueError as error:
        raise part.wrong("patternProperties", str(error)) from error


def _other_properties(part: Part) -> Rule | None:
    """Return the rule of ``patternProperties`` and ``additionalProperties``."""
    patterns = _patterns(part)
    named = frozenset(part.schema.get("properties", ()))
    others = part.inner(part.schema.get("additionalProperties", True), "additionalProperties")
    if others is None and all(rule is None for _, rule in patterns):
        return None

    def rules_of(name: Any) -> list[Rule]:
        if isinstance(name, str):
            matching = [rule for search, rule in patterns if search(name) is not None]
            if matching or name in named:
                return [rule for rule in matching if rule is not None]
        return [] if others is None else [others]

    def holds(value: Any, memo: Memo) -> bool:
        if not isinstance(value, dict):
            return True
        for name, item in value.items():
            for rule in rules_of(name):
                if not rule.holds(item, memo):
                    return False
        return True

    def explain(value: Any, path: str, found: Found) -> None:
        if not isinstance(value, dict):
            return
        for name, item in value.items():
            for rule in rules_of(name):
                if found.full:
                    return
                if rule is NEVER:
                    found.add(below(path, name), "must not have additional properties")
                else:
                    rule.explain(item, below(path, name), found)

    return Rule(holds, explain)


def _property_names(part: Part) -> Rule | None:
    rule = part.inner(part.schema["propertyNames"], "propertyNames")
    if rule is None:
        return None

    def holds(value: Any, memo: Memo) -> bool:
        return not isinstance(value, dict) or all(rule.holds(name, memo) for name in value)

    def explain(value: Any, path: str, found: Found) -> None:
        if not isinstance(value, dict):
            return
        for name in value:
            if not found.full and not rule.holds(name, found.memo):
                found.add(below(path, name), "property name is invalid")

    return Rule(holds, explain)


def _dependent_required(part: Part) -> Rule:
    table = part.schema["dependentRequired"]
    if not isinstance(table, Mapping):
        raise part.wrong("dependentRequired", "must be an object of arrays of strings")
    needs = {name: _names(part, "dependentRequired", names) for name, names in table.items()}

    def missing(value: Any) -> Iterator[tuple[str, list[str]]]:
        for name, needed in needs.items():
            if isinstance(value, dict) and name in value and not value.keys() >= set(needed):
                yield name, needed

    def explain(value: Any, path: str, found: Found) -> None:
        for name, needed in missing(value):
            text = f"must have properties {', '.join(needed)} when property {name} is present"
            found.add(path, text)

    return Rule(lambda value, memo: not any(missing(value)), explain)


def _dependent_schemas(part: Part) -> Rule | None:
    table = _schemas(part, "dependentSchemas", deeper=False)
    rules = [(name, rule) for name, rule in table.items() if rule is not None]

    def active(value: Any) -> list[Rule]:
        return [rule for name, rule in rules if isinstance(value, dict) and name in value]

    def explain(value: Any, path: str, found: Found) -> None:
        for rule in active(value):
            rule.explain(value, path, found)

    return Rule(lambda value, memo: all(rule.holds(value, memo) for rule in active(value)), explain)


# -- arrays --------------------------------------------------------------------------------------


def _items(part: Part) -> Rule | None:
    """Return the rule of ``prefixItems`` and ``items``, or of draft 7's ``items`` as an array."""
    schema = part.schema
    first, rest = "prefixItems", "items"
    if isinstance(schema.get("items"), list):
        first, rest = "items", "additionalItems"
    heads = schema.get(first, [])
    if not isinstance(heads, list):
        raise part.wrong(first, "must be an array of schemas")
    prefix = [part.inner(head, first, index) for index, head in enumerate(heads)]
    others = part.inner(schema.get(rest, True), rest)
    start = len(prefix)
    if others is None and all(rule is None for rule in prefix):
        return None

    def holds(value: Any, memo: Memo) -> bool:
        if not isinstance(value, ARRAY):
            return True
        for rule, item in zip(prefix, value, strict=False):
            if rule is not None and not rule.holds(item, memo):
                return False
        if others is not None:
            test = others.holds
            for item in value[start:] if start else value:
                if not test(item, memo):
                    return False
        return True

    def explain(value: Any, path: str, found: Found) -> None:
        if not isinstance(value, ARRAY):
            return
        for index, item in enumerate(value):
            rule = prefix[index] if index < start else others
            if found.full:
                return
            if rule is not None:
                rule.explain(item, f"{path}/{index}", found)

    return Rule(holds, explain)


def _contains(part: Part) -> Rule:
    rule = part.inner(part.schema["contains"], "contains")
    least = _limit(part, "minContains", 1)
    most = _limit(part, "maxContains", None)

    def holds(value: Any, memo: Memo) -> bool:
        if not isinstance(value, ARRAY):
            return True
        count = sum(rule is None or rule.holds(item, memo) for item in value)
        return count >= (least or 0) and (most is None or count <= most)

    def explain(value: Any, path: str, found: Found) -> None:
        if not holds(value, found.memo):
            found.add(path, f"must contain at least {least} valid item" if most is None else both)

    both = f"must contain {least} to {most} valid items"
    return Rule(holds, explain)


def _limit(part: Part, keyword: str, default: int | None) -> int | None:
    limit = part.schema.get(keyword, default)
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise part.wrong(keyword, "must be a whole number from 0 up")
    return limit


# -- the same value again ------------------------------------------------------------------------


def _branches(part: Part, keyword: str) -> list[Rule | None]:
    branches = part.schema[keyword]
    if not isinstance(branches, list) or not branches:
        raise part.wrong(keyword, "must be an array of schemas, not empty")
    return [
        part.inner(branch, keyword, index, deeper=False) for index, branch in enumerate(branches)
    ]


def _all_of(part: Part) -> Rule | None:
    return all_of([rule for rule in _branches(part, "allOf") if rule is not None])


def _any_of(part: Part) -> Rule | None:
    branches = _branches(part, "anyOf")
    rules = [rule for rule in branches if rule is not None]
    if len(rules) < len(branches):
        return None

    def holds(value: Any, memo: Memo) -> bool:
        for rule in rules:  # noqa: SIM110 - as in all_of()
            if rule.holds(value, memo):
                return True
        return False

    def explain(value: Any, path: str, found: Found) -> None:
        if holds(value, found.memo):
            return
        for rule in rules:
            rule.explain(value, path, found)
        found.add(path, "must match a schema in anyOf")

    return Rule(holds, explain)


def _one_of(part: Part) -> Rule:
    rules = _branches(part, "oneOf")

    def count(value: Any, memo: Memo) -> int:
        return sum(rule is None or rule.holds(value, memo) for rule in rules)

    def explain(value: Any, path: str, found: Found) -> None:
        matching = count(value, found.memo)
        if matching == 1:
            return
        for rule in rules:
            if rule is not None and not matching:
                rule.explain(value, path, found)
        found.add(path, "must match exactly one schema in oneOf")

    return Rule(lambda value, memo: count(value, memo) == 1, explain)


def _not(part: Part) -> Rule:
    rule = part.inner(part.schema["not"], "not", deeper=False)

    def holds(value: Any, memo: Memo) -> bool:
        return rule is not None and not rule.holds(value, memo)

    def explain(value: Any, path: str, found: Found) -> None:
        if not holds(value, found.memo):
            found.add(path, "must not be valid")

    return Rule(holds, explain)


def _if(part: Part) -> Rule:
    test = part.inner(part.schema["if"], "if", deeper=False)
    rules = {
        name: part.inner(part.schema.get(name, True), name, deeper=False)
        for name in ("then", "else")
    }

    def chosen(value: Any, memo: Memo) -> str:
        return "then" if test is None or test.holds(value, memo) else "else"

    def holds(value: Any, memo: Memo) -> bool:
        rule = rules[chosen(value, memo)]
        return rule is None or rule.holds(value, memo)

    def explain(value: Any, path: str, found: Found) -> None:
        name = chosen(value, found.memo)
        rule = rules[name]
        if rule is not None and not rule.holds(value, found.memo):
            rule.explain(value, path, found)
            found.add(path, f'must match "{name}" schema')

    return Rule(holds, explain)


# The keywords that call for a rule, and its maker.
APPLICATORS: list[tuple[frozenset[str], Callable[[Part], Rule | None]]] = [
    (frozenset({"properties", "required"}), _properties),
    (frozenset({"patternProperties", "additionalProperties"}), _other_properties),
    (frozenset({"propertyNames"}), _property_names),
    (frozenset({"dependentRequired"}), _dependent_required),
    (frozenset({"dependentSchemas"}), _dependent_schemas),
    (frozenset({"prefixItems", "items"}), _items),
    (frozenset({"contains"}), _contains),
    (frozenset({"allOf"}), _all_of),
    (frozenset({"anyOf"}), _any_of),
    (frozenset({"oneOf"}), _one_of),
    (frozenset({"not"}), _not),
    (frozenset({"if"}), _if),
]
