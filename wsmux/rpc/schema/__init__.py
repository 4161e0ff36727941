"""Check values against JSON Schemas (section "Clients, servers, and RPCs").

The TypeScript implementation checks with TypeBox and answers with what ``Value.Errors`` finds.
Here the library ``jsonschema`` checks by the rules of draft 2020-12, and the answers use TypeBox's
words. They differ in five points:

- Of alternatives that all fail, each is reported by its first error.
- An ``if`` adds no error of its own.
- A name that ``propertyNames`` forbids is reported at the object.
- Errors come in the order of the schema.
- The number of errors and the work of a check are bounded.

The library is imported when the first schema that restricts anything is made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...runtime.hints import how_to_install

if TYPE_CHECKING:
    from .validator import Checker

__all__ = ["JsonSchema", "Schema"]

JsonSchema = Mapping[str, Any] | bool

# Schemas kept for equal ones that are made later, and the characters of JSON that each may have.
MAX_KEPT = 256
MAX_KEPT_SIZE = 4096


class Schema:
    """One schema; immutable, and safe to use from any number of threads.

    Args:
        json_schema: a JSON Schema as Python data; ``None`` accepts anything. Draft 2020-12 without
            ``unevaluated*`` and ``$dynamicRef``, with the tuples of draft 7 (``items`` as an
            array), River's types ``Uint8Array`` and ``Date`` with their bounds, and JavaScript's
            ``undefined``, ``void`` and ``bigint``. It may refer to parts of itself by ``#``, a
            JSON pointer, an ``$id``, an ``$anchor`` or a name in its ``$defs``; nothing is ever
            fetched. ``format`` is not checked, as the standard allows; unknown keywords are
            ignored.

    Raises:
        ValueError: it is not a valid schema, or refers to a schema outside itself.
        ImportError: it restricts something, and ``jsonschema`` is not installed.

    Patterns are ECMAScript's and are searched with Python's ``re``, which may backtrack for a long
    time and cannot be stopped. They are trusted, because they come from the author of the service
    and never from a peer. Give a pattern with nested repeats a ``maxLength``: longer strings are
    refused without a search.

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

        ``totalErrors`` counts at most ``validator.MAX_ERRORS`` errors, of which at most
        ``validator.FIRST_ERRORS`` are listed. A value that is nested too deeply, or takes too many
        steps to check, gets one error that says so. A memory view counts as ``Uint8Array``, a
        tuple as an array.
        """
        return None if self._checker is None else self._checker.check(value)


def _copy(json_schema: Any) -> Any:
    """Return the schema as plain JSON data, not shared with the caller."""
    if not isinstance(json_schema, dict | bool):
        raise ValueError(f"a schema must be a dict or a bool, but is {json_schema!r}")
    try:
        return json.loads(json.dumps(json_schema, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a schema must be JSON: {error}") from error


def _checker(json_schema: Any) -> Checker:
    text = json.dumps(json_schema)
    return _kept(text) if len(text) <= MAX_KEPT_SIZE else _compiled(text)


def _compiled(text: str) -> Checker:
    try:
        from .validator import Checker  # needs jsonschema, an optional package
    except ImportError as error:
        raise ImportError(f"validating values needs jsonschema: {how_to_install('rpc')}") from error
    return Checker(json.loads(text))


# To compile a schema takes a millisecond or more, and the procedures of a service share many.
_kept = lru_cache(MAX_KEPT)(_compiled)
