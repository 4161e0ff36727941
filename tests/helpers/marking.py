"""Mark tests as they are collected: how long each may take, and which are for wide runs only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

__all__ = ["bound", "wide"]

# Seconds that a test marked as long may take; its script may have a limit of its own.
LONG_HANG_BOUND = 600.0


def bound(items: Iterable[pytest.Item], folder: Path, seconds: float = LONG_HANG_BOUND) -> None:
    """Bound the long tests that are collected in a folder and have no bound of their own."""
    inside = f"{folder}{os.sep}"  # asking for all parents of 30,000 paths takes seconds
    for item in items:
        if (
            str(item.path).startswith(inside)
            and item.get_closest_marker("hang_bound") is None
            and item.get_closest_marker("long") is not None
        ):
            item.add_marker(pytest.mark.hang_bound(seconds))


def wide(*values: object) -> list[object]:
    """Return parameters that are tried in wide runs only."""
    return [pytest.param(value, marks=pytest.mark.wide) for value in values]
