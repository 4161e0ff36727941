"""Check values against JSON Schemas (section "Clients, servers, and RPCs").

River itself checks with TypeBox and answers what ``Value.Errors`` finds. Here the library
``jsonschema`` does it, as draft 2020-12 says, with answers in TypeBox's words. Where they differ:
of alternatives that all fail, each is told by its first error; an ``if`` adds no error of its own;
what ``propertyNames`` forbids is told of the object; errors follow the order of the schema; and
both their number and the work of a check are bounded. The library is imported with the first schema
that forbids anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...runtime.hints import how_to_install

if TYPE_CHECKING:
    from .validator import Checker

__all__ = ["JsonSchema", "Schema"]

JsonSchema = Mapping[str, Any] | bool


class Schema:
    """One schema; immutable, and safe to use from any number of threads.

    Args:
        json_schema: a JSON Schema as Python data, ``None`` for one that accepts anything. Draft
            2020-12 less ``unevaluated*`` and ``$dynamicRef``, with the tuples of draft 7
            (``items`` as an array), River's types
            ``Uint8Array`` and ``Date`` with their bounds, and JavaScript's ``undefined``,
            ``void`` and ``bigint``. It may refer to itself by ``#``, a JSON pointer, an ``$id``,
            an ``$anchor`` or the name of one of its ``$defs``; nothing is ever fetched.
            ``format`` says nothing, as the standard allows; unknown keywords are notes.

    Raises:
        ValueError: it is no schema, or refers to what is not in it.
        ImportError: it forbids something, and ``jsonschema`` is not installed.

    Patterns are ECMAScript's, searched by Python's ``re``, which backtracks and cannot be stopped.
    They come from whoever writes the service, never from a peer, so they are trusted; put
    ``maxLength`` beside one that repeats a repeat, for longer strings are not searched.

    >>> schema = Schema({"type": "object", "properties": {"n": {"type": "number"}}})
    >>> schema.check({"n": 1})
    >>> schema.check({"n": "one"})["firstValidationErrors"]
    [{'path': '/n', 'message': 'must be number'}]
    """

    __slots__ = ("_checker", "_json")

    def __init__(self, json_schema: JsonSchema | None = None) -> None:
        self._json = _copy({} if json_schema is None else json_schema)
        self._checker = None if self._json in (True, {}) else _checker(self._json)

    def __repr__(self) -> str:
        return f"Schema({self._json!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (self._json,)

    @property
    def json(self) -> dict[str, Any] | bool:
        """Return a copy of the schema as JSON data."""
        copy: dict[str, Any] | bool = _copy(self._json)
        return copy

    def check(self, value: Any) -> dict[str, Any] | None:
        """Return ``None`` for a valid value, and River's ``extras`` for an invalid one.

        At most ``validator.MAX_ERRORS`` errors are counted as ``totalErrors``, and at most
        ``validator.FIRST_ERRORS`` listed. A value that is too deep, or takes too many steps to
        check, has a single error that says so. A memory view counts as ``Uint8Array``, a tuple as
        an array.
        """
        return None if self._checker is None else self._checker.check(value)


def _copy(json_schema: Any) -> Any:
    """Return plain JSON data that is not shared with the caller."""
    if not isinstance(json_schema, dict | bool):
        raise ValueError(f"a schema must be a dict or a bool, but is {json_schema!r}")
    try:
        return json.loads(json.dumps(json_schema, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a schema must be JSON: {error}") from error


def _checker(json_schema: Any) -> Checker:
    try:
        from .validator import Checker  # needs jsonschema, an optional package
    except ImportError as error:
        raise ImportError(f"validating values needs jsonschema: {how_to_install('rpc')}") from error
    return Checker(json_schema)
