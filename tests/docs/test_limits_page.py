"""The page of limits has every default as it is, and it and its neighbour name tests that exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from wsmux import Config

from ..helpers.tables import each_row

ROOT = Path(__file__).parents[2]
TOPICS = ROOT / "docs" / "topics"
LIMITS_PAGE = (TOPICS / "limits.md").read_text()
PAGES = LIMITS_PAGE + (TOPICS / "tested.md").read_text()
LIMITS = [field for field in fields(Config) if field.name != "recording"]  # which is none
TESTS = sorted(set(re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", PAGES)))
ROWS = re.findall(r"^\|(?!---| what \|)(.+)\|$", LIMITS_PAGE, re.M)
KIB, MIB = 1024, 1024 * 1024


def shown(value: object) -> str:
    if isinstance(value, int) and value >= 16 * KIB:
        return f"{value // MIB} MiB" if value % MIB == 0 else f"{value // KIB} KiB"
    if value == ():
        return "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if value else str(value)


@pytest.mark.parametrize("field", LIMITS, ids=lambda field: field.name)
def test_each_default_is_told(field: object) -> None:
    name, default = field.name, shown(field.default)  # type: ignore[attr-defined]
    assert re.search(rf"\| {default} \| `{name}`[ ,]", LIMITS_PAGE)


@each_row(TESTS)
def test_each_test_is_there(test: tuple[str, str]) -> None:
    path, name = test
    assert (ROOT / path).is_file()
    assert not name or f"def {name}(" in (ROOT / path).read_text()


@each_row(ROWS)
def test_each_row_says_what_is_bounded_and_where_and_what_happens_then(row: str) -> None:
    what, default, where, beyond, test = (cell.strip() for cell in row.split(" | "))
    assert what
    assert default
    assert where
    assert beyond
    assert test.startswith("`tests/")
