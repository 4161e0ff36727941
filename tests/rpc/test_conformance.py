"""The tables of upstream's cases are whole, and name tests that exist."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from ..helpers.rpc.conformance import DIFFERENT, GROUPS, NOT_OURS, OURS, PYTHON, TABLES, TYPESCRIPT
from ..helpers.tables import each_case

CASES = [*OURS, *DIFFERENT, *NOT_OURS]
NAMED = OURS | {case: tests for case, (_, tests) in DIFFERENT.items()}


@cache
def names_in(file: str) -> frozenset[str]:
    found = set()
    for node in ast.parse((Path(__file__).parent / file).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{n.name}" for n in node.body if isinstance(n, ast.FunctionDef)}
    return frozenset(found)


def test_each_case_stands_in_one_table() -> None:
    assert [case for case, times in Counter(CASES).items() if times > 1] == []
    listed = [
        f"{group} > {case}"
        for table in TABLES
        for cases in (table.OURS, table.DIFFERENT, table.NOT_OURS)
        for group, named in cases.items()
        for case in named
    ]
    assert sorted(listed) == sorted(CASES)


@each_case
@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_whole(group: str) -> None:
    assert sum(case.startswith(f"{group} > ") for case in CASES) == GROUPS[group]


def test_the_groups_are_the_suites() -> None:
    assert len(CASES) == sum(GROUPS.values())
    assert sum(TYPESCRIPT.values()) == 370
    assert sum(PYTHON.values()) == 73


def test_of_twenty_cases_nineteen_are_here() -> None:
    assert len(NAMED) >= 0.95 * len(CASES)


def test_the_tests_that_are_named_exist() -> None:
    missing = [
        f"{case}: {named}"
        for case, tests in NAMED.items()
        for named in tests
        if named.partition("::")[2] not in names_in(named.partition("::")[0])
    ]
    assert missing == []


def test_every_case_has_a_test_or_a_reason() -> None:
    assert all(NAMED.values())
    assert all(why for why, _ in DIFFERENT.values())
    assert all(NOT_OURS.values())
