"""Count the rows of the tables that tests go through, for tests that say how many there are."""

from __future__ import annotations

import importlib

__all__ = ["rows"]


def rows(module: str, test: str) -> set[str]:
    """Return the rows of a test's longest table; another one has roles, codecs or types of keys."""
    function = getattr(importlib.import_module(f"tests.{module}"), f"test_{test}")
    tables = [mark.args[1] for mark in function.pytestmark if mark.name == "parametrize"]
    return {repr(row) for row in max(map(list, tables), key=len)}
