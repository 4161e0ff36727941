"""Check each row of a large table in a few tests, since a test of its own costs more than a row.

What fails is told row by row, as if each were a test.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

__all__ = ["each_row"]

Row = TypeVar("Row")

GROUPS = 10  # so that several workers share a table


def each_row(
    rows: Iterable[Row], name: Callable[[Row], object] = str
) -> Callable[[Callable[[Row], None]], Callable[[int], None]]:
    """Make of a test of one row, tests of all rows; ``name`` names a row that fails."""
    table = list(rows)

    def decorate(check: Callable[[Row], None]) -> Callable[[int], None]:
        def test(group: int) -> None:
            failed = []
            for row in table[group::GROUPS]:
                try:
                    check(row)
                except (Exception, pytest.fail.Exception):
                    failed.append(f"{name(row)}:\n{traceback.format_exc()}")
            if failed:
                pytest.fail("\n".join([f"{len(failed)} rows:", *failed]), pytrace=False)

        test.__name__, test.__doc__, test.__module__ = (
            check.__name__,
            check.__doc__,
            check.__module__,
        )
        groups = range(min(GROUPS, len(table)))
        return pytest.mark.parametrize("group", groups)(test)

    return decorate
