"""Mark tests as they are collected: how long each may take, and which are for wide runs only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

__all__ = ["bound", "wide"]

# Seconds that a test marked as long may take; its script may have a limit of its own.
LONG_HANG_BOUND = 600.0


def bound(
    items: Iterable[pytest.Item],
    folder: Path,
    seconds: float | None = None,
    long_seconds: float = LONG_HANG_BOUND,
) -> None:
    """Bound what is collected in a folder and has no bound of its own; None leaves the plain."""
    for item in items:
        if folder not in item.path.parents or item.get_closest_marker("hang_bound") is not None:
            continue
        chosen = seconds if item.get_closest_marker("long") is None else long_seconds
        if chosen is not None:
            item.add_marker(pytest.mark.hang_bound(chosen))


def wide(*values: object) -> list[object]:
    """Return parameters that are tried in wide runs only."""
    return [pytest.param(value, marks=pytest.mark.wide) for value in values]
