"""Translate River's schemas into JSON Schema of draft 2020-12, and refuse invalid ones.

TypeBox writes tuples as in draft 7, may refer to ``$defs`` by their bare names, and has regular
expressions of ECMAScript. River's own types and bounds are kept: the metaschema is extended with
them here, and ``validator`` implements them. References are resolved here, once.

``message`` describes an error in the words of TypeBox, so that clients get the same text from
servers in both languages.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from jsonschema_specifications import REGISTRY
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

__all__ = [
    "MAX_NAME",
    "MAX_TEXT",
    "TOO_DEEP",
    "TOO_LONG",
    "Target",
    "message",
    "pointer",
    "python_pattern",
    "shortened",
    "standard",
]

# Characters of a property's name in a pointer, which a peer chooses, and of a message.
MAX_NAME = 100
MAX_TEXT = 200

TOO_DEEP = "is nested too deeply to be checked"
TOO_LONG = "takes too many steps to be checked"

# By keyword; {} stands for its value.
_SENTENCES = {
    "$ref": "must match the schema referred to",
    "anyOf": "must match a schema in anyOf",
    "const": "must be equal to constant",
    "contains": "must contain valid items",
    "dependentRequired": "must have properties that others require",
    "enum": "must be equal to one of the allowed values",
    "exclusiveMaximum": "must be < {}",
    "exclusiveMinimum": "must be > {}",
    "maxByteLength": "Uint8Array byteLength must be <= {}",
    "maxContains": "must contain at most {} valid items",
    "maxItems": "must not have more than {} items",
    "maxLength": "must not have more than {} characters",
    "maxProperties": "must not have more than {} properties",
    "maximum": "must be <= {}",
    "maximumTimestamp": "Date timestamp must be <= {}",
    "minByteLength": "Uint8Array byteLength must be >= {}",
    "minContains": "must contain at least {} valid items",
    "minItems": "must not have fewer than {} items",
    "minLength": "must not have fewer than {} characters",
    "minProperties": "must not have fewer than {} properties",
    "minimum": "must be >= {}",
    "minimumTimestamp": "Date timestamp must be >= {}",
    "multipleOf": "must be multiple of {}",
    "not": "must not be valid",
    "oneOf": "must match exactly one schema in oneOf",
    "pattern": 'must match pattern "{}"',
    "uniqueItems": "must not have duplicate items",
}


def message(place: Iterable[Any], keyword: str, says: Any) -> str:
    """Return the message for a value that violates a keyword of a schema.

    Args:
        place: the path of the keyword in the schema.
        keyword: its name.
        says: its value; for ``required``, the names that are missing.
    """
    if keyword == "type":
        kinds = [says] if isinstance(says, str) else says
        return f"must be {'either ' if len(kinds) > 1 else ''}{' or '.join(kinds)}"
    if keyword == "required":
        return shortened(f"must have required properties {', '.join(says)}")
    if list(place)[-2:] == ["additionalProperties", "not"]:
        return "must not have additional properties"
    return shortened(_SENTENCES.get(keyword, f"must be valid under {keyword}").format(says))


def pointer(path: Iterable[Any]) -> str:
    """Return a JSON pointer (RFC 6901) in which long names are shortened."""
    names = (shortened(str(name), MAX_NAME) for name in path)
    return "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in names)


def shortened(text: str, most: int = MAX_TEXT) -> str:
    """Return a text cut to ``most`` characters, with an ellipsis if it was longer."""
    return text if len(text) <= most else f"{text[:most]}…"


TYPES = ("undefined", "void", "bigint", "Uint8Array", "Date")

# The keywords that River adds, each with the keyword whose values have the same form.
BOUNDS = {
    "minByteLength": "minLength",
    "maxByteLength": "maxLength",
    "minimumTimestamp": "minimum",
    "maximumTimestamp": "maximum",
}

# Keywords whose value is a schema, an array of schemas, or an object of schemas.
_ALONE = frozenset(
    {"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
)
_ARRAYS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_OBJECTS = frozenset({"$defs", "definitions", "dependentSchemas", "properties"})

# Their meaning depends on the path to them, or they are of other drafts and would be ignored.
_UNSUPPORTED = frozenset(
    {"$dynamicRef", "$recursiveRef", "dependencies", "unevaluatedItems", "unevaluatedProperties"}
)

# Keywords without any effect on a check.
_NOTES = frozenset(
    {"$comment", "$schema", "contentSchema", "default", "deprecated", "description", "examples"}
    | {"format", "readOnly", "title", "writeOnly"}
)

# One element of a pattern: an escape, a character class, the start of a named group, or any other
# character.
_STEP = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?<(?=[A-Za-z_$])|.", re.DOTALL)


def _metaschema() -> Any:
    """Return a validator of schemas: the draft's metaschema with River's keywords added."""
    uri = "https://json-schema.org/draft/2020-12/meta/validation"
    vocabulary: Any = copy.deepcopy(REGISTRY.contents(uri))
    vocabulary["$defs"]["simpleTypes"]["enum"] += TYPES
    vocabulary["properties"] |= {new: vocabulary["properties"][old] for new, old in BOUNDS.items()}
    registry = Registry().with_resource(uri, DRAFT202012.create_resource(vocabulary))
    return Draft202012Validator(Draft202012Validator.META_SCHEMA, registry=registry)


_METASCHEMA = _metaschema()


class Target:
    """The value of a ``$ref`` once it is resolved."""

    __slots__ = ("schema",)

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema


def standard(json_schema: Any) -> dict[str, Any]:
    """Return a schema translated to draft 2020-12, with a ``Target`` in each ``$ref``.

    Raises:
        ValueError: it is not a valid schema, or refers to a schema outside itself.
    """
    try:
        own = copy.deepcopy(json_schema)
        names = own.get("$defs") if isinstance(own, dict) else None
        schema: dict[str, Any] = _rewritten(own, names if isinstance(names, dict) else {})
        wrong = best_match(_METASCHEMA.iter_errors(schema))
        if wrong is not None:
            # For a type, the first of the context says that its name is unknown.
            wrong = wrong.context[0] if wrong.context else wrong
            text = f"the schema is wrong at #{pointer(wrong.absolute_path)}: {wrong.message}"
            raise ValueError(shortened(text))
        _follow(schema)
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None
    return schema


def _rewritten(schema: Any, names: dict[str, Any]) -> Any:
    """Rewrite a schema in place, and return it.

    Args:
        names: the schemas of ``$defs``; one that is referred to by its name gets that as ``$id``.
    """
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        return schema
    for keyword in sorted(_UNSUPPORTED & schema.keys()):
        raise ValueError(f"{keyword} is not supported")
    for note in _NOTES & schema.keys():
        del schema[note]
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        schema["items"] = schema.pop("additionalItems", True)
    for keyword, value in list(schema.items()):
        if keyword == "$ref" and isinstance(value, str):
            name = value.partition("#")[0]
            if name and isinstance(names.get(name), dict):
                names[name].setdefault("$id", name)
        elif keyword == "pattern" and isinstance(value, str):
            python_pattern(value)
        elif keyword in _ALONE:
            value = _rewritten(value, names)
        elif keyword in _ARRAYS and isinstance(value, list):
            value = [_rewritten(inner, names) for inner in value]
        elif keyword == "patternProperties" and isinstance(value, dict):
            value = {
                python_pattern(pattern).pattern: _rewritten(inner, names)
                for pattern, inner in value.items()
            }
        elif keyword in _OBJECTS and isinstance(value, dict):
            value = {name: _rewritten(inner, names) for name, inner in value.items()}
        else:
            continue
        # Keywords that contain schemas go last: the others are quick to check and may fail first.
        del schema[keyword]
        schema[keyword] = value
    return schema


@lru_cache(1024)
def python_pattern(pattern: str) -> re.Pattern[str]:
    r"""Return a pattern of ECMAScript, compiled for Python.

    ``$`` matches at the very end only, not before a last newline. ``\d`` and ``\w`` are limited to
    ASCII, and so is ``\s``, unlike in ECMAScript.

    Raises:
        ValueError: Python cannot compile it, as with ``\p{L}``.
    """
    try:
        return re.compile(f"(?a:{_STEP.sub(_translate, pattern)})")
    except (re.error, OverflowError, RecursionError) as error:
        text = f"Python cannot compile the pattern {shortened(pattern)!r}: {error}"
        raise ValueError(text) from error


def _translate(step: re.Match[str]) -> str:
    text = step.group()
    return {"$": r"\Z", "(?<": "(?P<"}.get(text, text)


def _follow(root: dict[str, Any]) -> None:
    """Resolve all references of a schema, in place.

    Raises:
        ValueError: one leads nowhere, or to itself without going deeper into the value.
    """
    resource = DRAFT202012.create_resource(root)
    # The registry holds this document alone, and fetches nothing.
    registry = Registry().with_resource(resource.id() or "", resource).crawl()
    waiting = [(root, registry.resolver())]
    targets: dict[int, Any] = {}
    schemas: list[dict[str, Any]] = []
    while waiting:
        schema, resolver = waiting.pop()
        schemas.append(schema)
        resource = DRAFT202012.create_resource(schema)
        resolver = resolver.in_subresource(resource)
        waiting += [(inner.contents, resolver) for inner in resource.subresources()]
        if "$ref" in schema:
            targets[id(schema)] = _target(resolver, schema["$ref"])
    known = {id(schema) for schema in schemas}
    for schema in schemas:
        schema.pop("$id", None)  # or the library would resolve it at each check
        if "$ref" in schema:
            target = targets[id(schema)]
            if id(target) not in known:
                raise _unknown(schema["$ref"])
            schema["$ref"] = Target(target)
    _check_circles(schemas)


def _target(resolver: Any, reference: str) -> Any:
    try:
        return resolver.lookup(reference).contents
    except (Unresolvable, LookupError, TypeError, ValueError):
        raise _unknown(reference) from None


def _unknown(reference: str) -> ValueError:
    return ValueError(
        f"$ref to {reference!r} refers to no schema in this document, and none is fetched"
    )


def _check_circles(schemas: list[dict[str, Any]]) -> None:
    beside: dict[int, list[int]] = {}  # by schema, those it applies to the same value
    for schema in schemas:
        level = [schema[each] for each in ("not", "if", "then", "else") if each in schema]
        level += [each for name in ("allOf", "anyOf", "oneOf") for each in schema.get(name, ())]
        level += schema.get("dependentSchemas", {}).values()
        level += [schema["$ref"].schema] if "$ref" in schema else []
        beside[id(schema)] = [id(each) for each in level]
    try:
        TopologicalSorter(beside).prepare()
    except CycleError:
        text = "the schema refers to itself without going deeper into the value"
        raise ValueError(text) from None
