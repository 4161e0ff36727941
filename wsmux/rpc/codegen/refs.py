"""Find what a ``$ref`` means, for the code generator; checking values leaves that to a library."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

__all__ = ["find", "resource_of"]


def find(root: Any, resource: Any, reference: str) -> tuple[Any, Any]:
    """Return the schema that a ``$ref`` means, and the resource that it lies in.

    Args:
        root: the whole schema.
        resource: where the reference stands: the nearest schema around it with an ``$id``, or
            the root. ``#`` means that one.
        reference: the text of the ``$ref``.

    Raises:
        ValueError: there is none.
    """
    base, _, fragment = reference.partition("#")
    if base:
        resource = _named(root, base)
    if fragment and not fragment.startswith("/"):
        return _having(resource, "$anchor", fragment), resource
    found = resource
    for step in unquote(fragment).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(name) if isinstance(found, list) else name]
        except (LookupError, TypeError, ValueError):
            raise _unknown(reference) from None
        resource = resource_of(found, resource)
    if not isinstance(found, dict | bool):
        raise _unknown(reference)
    return found, resource


def resource_of(schema: Any, around: Any) -> Any:
    """Return what ``#`` means inside ``schema``, which stands in the resource ``around``."""
    return schema if isinstance(schema, dict) and isinstance(schema.get("$id"), str) else around


def _unknown(reference: str) -> ValueError:
    return ValueError(
        f"$ref to {reference!r} refers to no schema in this document, and none is fetched"
    )


def _named(root: Any, name: str) -> Any:
    """Return what a name stands for: TypeBox refers to ids, and to names in ``$defs``."""
    definitions = root.get("$defs")
    if isinstance(definitions, dict) and isinstance(definitions.get(name), dict):
        return definitions[name]
    return _having(root, "$id", name)


def _having(node: Any, keyword: str, text: str) -> Any:
    """Return the schema inside ``node`` that has a keyword with this text."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if node.get(keyword) == text:
                return node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
    raise _unknown(text)
