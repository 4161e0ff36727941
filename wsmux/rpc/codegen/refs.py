"""Resolve a ``$ref`` for the code generator; a library resolves those of checks."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

__all__ = ["find", "resource_of"]


def find(root: Any, resource: Any, reference: str) -> tuple[Any, Any]:
    """Return the schema that a ``$ref`` refers to, and the resource that contains it.

    Args:
        root: the whole schema.
        resource: the resource that contains the reference: the nearest schema around it with an
            ``$id``, or the root. ``#`` refers to it.
        reference: the text of the ``$ref``.

    Raises:
        ValueError: it refers to no schema in ``root``.
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
    """Return what ``#`` refers to inside ``schema``, which is part of the resource ``around``."""
    return schema if isinstance(schema, dict) and isinstance(schema.get("$id"), str) else around


def _unknown(reference: str) -> ValueError:
    return ValueError(
        f"$ref to {reference!r} refers to no schema in this document, and none is fetched"
    )


def _named(root: Any, name: str) -> Any:
    """Return the schema of a name: TypeBox refers to names in ``$defs``, and to ids."""
    definitions = root.get("$defs")
    if isinstance(definitions, dict) and isinstance(definitions.get(name), dict):
        return definitions[name]
    return _having(root, "$id", name)


def _having(node: Any, keyword: str, text: str) -> Any:
    """Return the schema inside ``node`` whose ``keyword`` is ``text``."""
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
