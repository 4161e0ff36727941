"""The page of limits has every default as it is, and names tests that there are."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from wsmux import Config

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "topics" / "limits.md").read_text()
LIMITS = [field for field in fields(Config) if field.name != "recording"]  # which is none
KIB, MIB = 1024, 1024 * 1024


def shown(value: object) -> str:
    if isinstance(value, int) and value >= 16 * KIB:
        return f"{value // MIB} MiB" if value % MIB == 0 else f"{value // KIB} KiB"
    if value == ():
        return "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if value else str(value)


@pytest.mark.parametrize("field", LIMITS, ids=lambda field: field.name)
def test_each_default_is_told(field: object) -> None:
    assert f"| `{field.name}` | {shown(field.default)} |" in PAGE  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", sorted(set(re.findall(r"tests/[\w/]+\.py", PAGE))))
def test_each_test_is_there(path: str) -> None:
    assert (ROOT / path).is_file()
