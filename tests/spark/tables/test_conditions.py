"""Conditions of SQL as filters: what is understood, and that nothing else is taken for it."""

from __future__ import annotations

from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.store.filters import matcher
from wsmux.spark.tables.conditions import MAX_CONDITION, parse_condition

from ...helpers.spark.arrow_data import pa

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("Day", pa.date32()),
        ("word", pa.string()),
        ("money", pa.decimal128(10, 2)),
        ("part", pa.float64()),
        ("flag", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
        ("and", pa.int64()),
        ("a`b c", pa.int64()),
    ]
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("n = 3", [["n", "=", 3]]),
        ("n==-3", [["n", "=", -3]]),
        ("3 < n", [["n", ">", 3]]),
        ("n <> 3 AND n != 4.0", [["n", "!=", 3], ["n", "!=", 4]]),
        ("n >= 1e3\n and\tn <= +2000", [["n", ">=", 1000], ["n", "<=", 2000]]),
        ("DAY = '2026-01-01'", [["Day", "=", "2026-01-01"]]),
        ("day = DATE '2026-01-01'", [["Day", "=", "2026-01-01"]]),
        (
            "at > TIMESTAMP'2026-01-01T00:00:00Z'",
            [["at", ">", "2026-01-01T00:00:00Z"]],
        ),
        ("word IN ('a', 'it''s', '')", [["word", "in", ["a", "it's", ""]]]),
        (
            "n BETWEEN 1 AND 2 AND flag = TRUE",
            [["n", ">=", 1], ["n", "<=", 2], ["flag", "=", True]],
        ),
        ("word IS NULL and `Day` is not null", [["word", "is_null"], ["Day", "not_null"]]),
        ("money > 1.50", [["money", ">", "1.50"]]),
        ("money > -.5", [["money", ">", "-0.5"]]),
        ("part < 1e-3", [["part", "<", 0.001]]),
        ("`and` = 1 AND `a``b c` = 2", [["and", "=", 1], ["a`b c", "=", 2]]),
        (
            "((n = 1) AND (word = 'a')) AND part > 0",
            [["n", "=", 1], ["word", "=", "a"], ["part", ">", 0.0]],
        ),
        ("word = ' AND n = 1 -- '", [["word", "=", " AND n = 1 -- "]]),
    ],
)
def test_what_is_understood(text: str, wanted: list[list[Any]]) -> None:
    found = parse_condition(text, SCHEMA)
    assert [list(each)[: len(one)] for each, one in zip(found, wanted, strict=True)] == wanted
    matcher(found, SCHEMA)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a value was expected, and the end came"),
        ("n", "a comparison was expected, and the end came"),
        ("n = ", "a value was expected, and the end came"),
        ("n = 1 OR n = 2", "'OR' is not understood there"),
        ("NOT n = 1", "a value was expected, and 'NOT' came"),
        ("n NOT IN (1)", "a comparison was expected, and 'NOT' came"),
        ("word LIKE 'a%'", "a comparison was expected, and 'LIKE' came"),
        ("n <=> 1", "a comparison was expected, and '<=>' came"),
        ("n = NULL", "nothing equals NULL: use IS NULL or IS NOT NULL"),
        ("n IN ()", "a value was expected, and ')' came"),
        ("n IN (1", "')' was expected, and the end came"),
        ("n IN (1, NULL)", "nothing equals NULL"),
        ("n = and", "a value was expected, and 'and' came"),
        ("n = word", "two columns cannot be compared"),
        ("1 = 1", "a comparison is of a column and a value"),
        ("n + 1 = 2", "'+ 1 = 2' is not understood"),
        ("n = 1; DROP TABLE x", "'; DROP TABLE x' is not understood"),
        ("word = 'a", "since it does not end"),
        (r"word = 'a\'b'", "or has a backslash"),
        ('word = "a"', "double quotes are a text in Spark and a column elsewhere"),
        ("n = 1.5", "column 'n' is int64, and 1.5 is not"),
        ("money = 1e999999", "1e999999 is out of range"),
        ("n = 12abc", "'12abc' is not understood"),
        ("raw = 'abc'", "column 'raw' is binary, which can only be tested for nulls"),
        ("day = DATE 5", "two columns cannot be compared"),
        ("(" * 60 + "n = 1" + ")" * 60, "more than 50 parentheses"),
        ("(n = 1", "')' was expected"),
        ("n = 1)", "')' is not understood there"),
        ("n BETWEEN 1 OR 2", "'AND' was expected, and 'OR' came"),
        ("n IS 1", "'NULL' was expected, and '1' came"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    with pytest.raises(RiverError) as caught:
        parse_condition(text, SCHEMA)
    assert caught.value.code == "BAD_FILTER"
    assert words in caught.value.message
    assert "it may be comparisons joined by AND" in caught.value.message


def test_columns_that_are_not_there() -> None:
    with pytest.raises(RiverError, match="names a column 'none'; there are n, Day") as caught:
        parse_condition("none = 1", SCHEMA)
    assert caught.value.code == "NO_COLUMN"


def test_no_condition_is_longer_than_a_log_should_hold() -> None:
    with pytest.raises(RiverError, match="characters; up to 65536 are accepted"):
        parse_condition("n = 1" + " " * MAX_CONDITION, SCHEMA)
