"""Types as Spark writes them."""

from __future__ import annotations

from typing import Any

import pytest

from wsmux.spark import connection, rpc
from wsmux.spark.ddl import Ddl, ddl_of, parse

from ..helpers.programs import package
from ..helpers.tables import each_case

# Names that Spark's DDL has only in backticks.
ODD_NAMES = ["größe", "straße", "a b", "first-name", "2nd", "a`b", "a:b,c", "٣", "naïve", ""]


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


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_field_of_any_name_is_written_so_that_it_can_be_read(name: str) -> None:
    kind = Ddl("struct", (Ddl("bigint"), Ddl("string")), (name, "n"))
    assert parse(str(kind)) == kind


@pytest.mark.spark
@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_type_of_pyspark_may_have_fields_of_any_name(name: str) -> None:
    types = package("pyspark.sql.types", "spark")
    inner = types.StructType([types.StructField(name, types.LongType())])
    ddl = Ddl("struct", (Ddl("bigint"),), (name,))
    assert ddl_of(inner) == ddl
    assert ddl_of(types.ArrayType(inner)) == Ddl("array", (ddl,))
    assert ddl_of(types.MapType(types.StringType(), inner)) == Ddl("map", (Ddl("string"), ddl))


@pytest.mark.spark
def test_a_time_without_a_zone_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In some versions of pyspark a type of pyarrow has a zone unless they are told otherwise."""
    pa = package("pyarrow", "spark")
    types, pandas = (
        package("pyspark.sql.types", "spark"),
        package("pyspark.sql.pandas.types", "spark"),
    )
    from_arrow_type = pandas.from_arrow_type

    def as_before(kind: Any, prefer_timestamp_ntz: bool = False) -> Any:
        return from_arrow_type(kind, prefer_timestamp_ntz)

    monkeypatch.setattr(pandas, "from_arrow_type", as_before)
    assert str(ddl_of(pa.list_(pa.timestamp("us")))) == "array<timestamp_ntz>"
    assert str(ddl_of(pa.timestamp("us", "UTC"))) == "timestamp"
    asked = rpc(connection("ws://host"), "a.b").columns("x", into="y", into_type="timestamp_ntz")
    schema = asked.schema(types.StructType([types.StructField("x", types.LongType())]))
    assert schema["y"].dataType == types.TimestampNTZType()


@pytest.mark.spark
def test_a_type_of_pyspark_that_is_not_supported_is_refused() -> None:
    types = package("pyspark.sql.types", "spark")
    odd = types.ArrayType(types.StructType([types.StructField("a", types.NullType())]))
    with pytest.raises(ValueError, match="is not a supported Spark type"):
        ddl_of(odd)
    assert str(ddl_of(types.DecimalType(12, 3))) == "decimal(12,3)"
