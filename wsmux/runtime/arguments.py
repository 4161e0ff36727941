"""Check the collections of strings that users pass."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["strings"]


def strings(name: str, given: Iterable[str], example: str) -> tuple[str, ...]:
    """Return what a collection holds, once and for all: an iterator can be read only here.

    A single string is a collection of characters to Python, and bytes are one of numbers; neither
    is ever meant. No value is shown in an error, since it may be a secret.

    Args:
        name: the argument, for the error.
        given: what the user passed.
        example: a string that would do, for the error.

    Raises:
        TypeError: it is no collection, or holds something else than strings.
    """
    form = f"{name}=[{example!r}]"
    if isinstance(given, str | bytes | bytearray | memoryview):
        raise TypeError(
            f"{name} must be a collection of strings, such as {form}, "
            f"not a single {type(given).__name__}: put it in a list"
        )
    if not isinstance(given, Iterable):
        kind = type(given).__name__
        raise TypeError(f"{name} must be a collection of strings, such as {form}, not {kind}")
    held = tuple(given)
    for place, each in enumerate(held):
        if not isinstance(each, str):
            kind = type(each).__name__
            raise TypeError(
                f"{name} must hold strings only, such as {form}, but item {place} is of type {kind}"
            )
    return held
