"""Types as Spark writes them."""

from __future__ import annotations

import pytest

from wsmux.spark.ddl import parse

from ..helpers.tables import each_case


@each_case
@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("double", "double"),
        (" STRING ", "string"),
        ("long", "bigint"),
        ("integer", "int"),
        ("byte", "tinyint"),
        ("decimal", "decimal(10,0)"),
        ("DEC(5)", "decimal(5,0)"),
        ("decimal(38, 18)", "decimal(38,18)"),
        ("timestamp_ntz", "timestamp_ntz"),
        ("array<int>", "array<int>"),
        ("map<string, array<double>>", "map<string,array<double>>"),
        ("struct<>", "struct<>"),
        ("struct<a: int, `b c` string>", "struct<a:int,`b c`:string>"),
        ("struct<`a``b`:struct<c:date>>", "struct<`a``b`:struct<c:date>>"),
    ],
)
def test_types_are_read(text: str, read: str) -> None:
    assert str(parse(text)) == read
    assert parse(read) == parse(text)


@each_case
@pytest.mark.parametrize(
    "text",
    [
        "",
        "number",
        "int int",
        "array",
        "array<int",
        "array<>",
        "map<int>",
        "struct<a>",
        "struct<a:int b:int>",
        "decimal(39)",
        "decimal(x)",
        "decimal(5",
        "int; drop",
        "array<" * 60 + "int" + ">" * 60,
    ],
)
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a supported Spark type"):
        parse(text)
