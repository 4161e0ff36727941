"""Validate arguments that users pass to several functions."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["check_seconds", "strings"]


def check_seconds(**times: float) -> None:
    """Check times, by their names as arguments, of which each has to be longer than 0.

    Raises:
        TypeError: one is not a number.
        ValueError: one is not above 0.
    """
    for name, value in times.items():
        if isinstance(value, str | bytes | bool) or not hasattr(value, "__float__"):
            kind = type(value).__name__
            raise TypeError(f"{name} must be a number of seconds, not {kind}")
        if not value > 0:
            raise ValueError(f"{name} must be above 0 seconds, not {value!r}")


def strings(name: str, given: Iterable[str], example: str) -> tuple[str, ...]:
    """Return the items of a collection as a tuple, since an iterator can be read only once.

    A single string (an iterable of characters) or ``bytes`` (of integers) is refused, since it is
    never what was meant. Errors show no values, since they may be secret.

    Args:
        name: the name of the argument, for the error.
        given: the collection that the user passed.
        example: a valid item, for the error.

    Raises:
        TypeError: it is not a collection, or not all items are strings.
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
