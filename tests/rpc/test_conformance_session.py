"""The list of upstream's cases names tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .conformance_session import CASES

NAMED = sorted(
    {name for tests in CASES.values() for name in ((tests,) if isinstance(tests, str) else tests)}
)


def names_in(file: str) -> set[str]:
    found = set()
    for node in ast.parse((Path(__file__).parent / file).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{n.name}" for n in node.body if isinstance(n, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_the_list_names_exists(name: str) -> None:
    file, _, test = name.partition("::")
    assert test in names_in(file)
