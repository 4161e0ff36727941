"""Find the rows of the table: each module here lists its own."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from ..row import Ratio, Row

__all__ = ["find_ratios", "find_rows"]


def find_rows() -> dict[str, Row]:
    """Return every row by its name."""
    return {row.name: row for module in _modules() for row in module.ROWS}


def find_ratios() -> list[Ratio]:
    """Return every ratio that is judged."""
    return [ratio for module in _modules() for ratio in module.RATIOS]


def _modules() -> list[Any]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]
