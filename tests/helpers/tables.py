"""Check each row of a large table in a few tests, since a test of its own costs more than a row.

What fails is told row by row, as if each were a test. A row may not skip.
"""

from __future__ import annotations

import inspect
import itertools
import traceback
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

from wsmux.runtime import logs

__all__ = ["each_case", "each_row"]

Row = TypeVar("Row")

GROUPS = 10  # so that several workers share a table
ROWS = 40  # of a ``each_case`` test, which are quick

LONGEST = 100  # of the name of a value, in characters

ParameterSet = type(pytest.param())


def each_row(
    rows: Iterable[Row], name: Callable[[Row], object] = str
) -> Callable[[Callable[[Row], None]], Callable[[int], None]]:
    """Make of a test of one row, tests of all rows; ``name`` names a row that fails."""
    table = list(rows)

    def decorate(check: Callable[[Row], None]) -> Callable[[int], None]:
        def test(group: int) -> None:
            check_rows(table[group::GROUPS], check, name)

        test.__name__, test.__doc__, test.__module__ = (
            check.__name__,
            check.__doc__,
            check.__module__,
        )
        groups = range(min(GROUPS, len(table)))
        return pytest.mark.parametrize("group", groups)(test)

    return decorate


def each_case(check: Callable[..., None]) -> Callable[..., None]:
    """Make of a test with ``parametrize`` below this, tests of 40 or more rows of the product.

    The rows of one test share its fixtures, but each begins with an empty log.
    """
    table: list[dict[str, Any]] = [{}]
    for mark in vars(check).pop("pytestmark"):
        assert mark.name == "parametrize", mark
        new = arguments(*mark.args, **mark.kwargs)
        table = [old | more for old, more in itertools.product(table, new)]
    groups = max(1, len(table) // ROWS)

    def test(group: int, **fixtures: Any) -> None:
        def check_one(row: dict[str, Any]) -> None:
            if "caplog" in fixtures:
                fixtures["caplog"].clear()
            check(**row, **fixtures)

        check_rows(table[group::groups], check_one, described)

    parameters = inspect.signature(check).parameters.values()
    test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
    test.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("group", inspect.Parameter.KEYWORD_ONLY),
            *(
                each.replace(kind=each.KEYWORD_ONLY)
                for each in parameters
                if each.name not in table[0]
            ),
        ]
    )
    return pytest.mark.parametrize("group", range(groups))(test)


def arguments(
    argnames: str | Iterable[str], argvalues: Iterable[Any], ids: object = None
) -> list[dict[str, Any]]:
    """Return what ``parametrize`` gives a test, set by set."""
    names = argnames.split(",") if isinstance(argnames, str) else argnames
    names = [name.strip() for name in names]
    found = []
    for each in argvalues:
        values = each
        if isinstance(each, ParameterSet):
            assert not each.marks, each
            values = each.values
        elif len(names) == 1:
            values = (each,)
        found.append(dict(zip(names, values, strict=True)))
    assert found, f"there are no values of {names}"
    return found


def described(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={repr(value)[:LONGEST]}" for name, value in row.items())


def check_rows(
    rows: Iterable[Row], check: Callable[[Row], None], name: Callable[[Row], object]
) -> None:
    """Check each, and tell of all that fail."""
    failed = []
    for row in rows:
        logs.forget()  # else a line that an earlier row logged may be left out, or counted
        try:
            check(row)
        except (Exception, pytest.fail.Exception, pytest.skip.Exception):
            failed.append(f"{name(row)}:\n{traceback.format_exc()}")
    if failed:
        pytest.fail("\n".join([f"{len(failed)} rows:", *failed]), pytrace=False)
