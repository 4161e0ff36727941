"""Record batches through procedures of a real server, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from wsmux.rpc import Context, RpcServer, Service, serve
from wsmux.spark import SparkError, batched, connection, rpc
from wsmux.spark.calls import arrow_batches
from wsmux.spark.calls.arrow import Misfit, column_of, json_texts, rows_of
from wsmux.spark.calls.values import plain
from wsmux.spark.ddl import parse

from ...helpers.programs import package
from ...helpers.spark.servers import WAIT, Seen, calls_at, offered
from ...helpers.waiting import wait_for

pytestmark = pytest.mark.spark
pa = package("pyarrow", "spark")

INF = float("inf")
NOON = datetime(2024, 1, 2, 12, tzinfo=UTC)
NAIVE = NOON.replace(tzinfo=None)


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    yield seen
    seen.gate.set()


@pytest.fixture
def server(seen: Seen) -> Iterator[RpcServer]:
    with serve([offered(seen)]) as server:
        yield server


def call(server: RpcServer, name: str, *columns: str, into: str = "out", **options: Any) -> Any:
    return rpc(connection(server.url), f"test.{name}").columns(*columns, into=into, **options)


def batches(*columns: list[Any], names: str = "abc", kind: Any = None) -> list[Any]:
    """Return a batch for each ten rows."""
    table = pa.table(
        {name: pa.array(each, kind) for name, each in zip(names, columns, strict=False)}
    )
    return table.to_batches(max_chunksize=10)


def rows(found: Any) -> list[dict[str, Any]]:
    return [row for batch in found for row in batch.to_pylist()]


def column(found: Any, name: str = "out") -> list[Any]:
    return [row[name] for row in rows(found)]


# The type of the column


def test_a_column_has_the_type_of_the_procedure(server: RpcServer) -> None:
    (found,) = call(server, "twice", "a")(batches([1, 2], kind=pa.int32()))
    assert (found.schema.field("out").type, column([found])) == (pa.int64(), [2, 4])


def test_single_rows_have_the_type_of_the_procedure_too(server: RpcServer, seen: Seen) -> None:
    (found,) = call(server, "twice", "a", batch_rows=1)(batches([1, 2], kind=pa.int32()))
    assert (found.schema.field("out").type, column([found])) == (pa.int64(), [2, 4])


def test_a_procedure_of_single_rows_gets_nothing_but_rows(server: RpcServer, seen: Seen) -> None:
    """A question for the type would be one more row to it."""
    (found,) = call(server, "slow", "a", batch_rows=1)(batches([0, 0]))
    assert (found.schema.field("out").type, seen.begun) == (pa.string(), [0, 0])


def test_a_type_that_is_given_goes_before_that_of_the_procedure(server: RpcServer) -> None:
    (found,) = call(server, "twice", "a", into_type="double")(batches([1]))
    assert found.schema.field("out").type == pa.float64()


@pytest.mark.parametrize(
    ("name", "batch_rows"),
    [("many", 8), ("same", 8), ("twice_alone", 8), ("twice_alone", 1), ("same", 1)],
)
def test_a_procedure_that_tells_no_type_makes_strings(
    server: RpcServer, name: str, batch_rows: int
) -> None:
    asked = call(server, name, "a", batch_rows=batch_rows, error_col="err")
    (found,) = asked(batches([1]))
    assert found.schema.field("out").type == pa.string()


def test_a_type_that_is_not_known_is_told(caplog: pytest.LogCaptureFixture) -> None:
    service = Service("test")

    @service.rpc()
    def odd(ctx: Context, init: Any) -> Any:
        return {"$values": init["$rows"], "$type": "number"}

    with serve([service]) as server:
        (found,) = call(server, "odd", "a")(batches([1]))
    assert found.schema.field("out").type == pa.string()
    text = "test.odd: results become strings, unless into_type= says what they are: "
    assert f"{text}$type must tell a type of Spark's: 'number' is not" in caplog.text


def test_a_struct_has_fields_of_any_name() -> None:
    service = Service("test")
    fields = {"straße": {"type": "string"}, "n": {"type": "integer"}}

    @service.rpc(response={"type": "object", "properties": fields})
    @batched
    def place(ctx: Context, row: Any) -> Any:
        return {"straße": row, "n": 1}

    with serve([service]) as server:
        (found,) = call(server, "place", "a")(batches(["x"]))
    assert found.schema.field("out").type == pa.struct([("straße", pa.string()), ("n", pa.int64())])
    assert column([found]) == [{"straße": "x", "n": 1}]


# Errors that say what to do


@pytest.mark.parametrize(("name", "batch_rows"), [("twice", 8), ("twice_alone", 1), ("one", 1)])
def test_null_for_a_procedure_that_does_not_take_it_is_told(
    server: RpcServer, name: str, batch_rows: int
) -> None:
    asked = call(server, name, "a", batch_rows=batch_rows, error_col="err")
    found = rows(asked(batches([1, None, 3])))
    assert [row["err"] is None for row in found] == [True, False, True]
    text = (
        "; column a is null in this row: if that is why, leave such rows out, as by "
        "df.where('a is not null'), or let the procedure take null"
    )
    assert found[1]["err"].endswith(text)
    with pytest.raises(SparkError) as caught:
        list(call(server, name, "a", batch_rows=batch_rows)(batches([1, None, 3])))
    assert caught.value.message.endswith(text)
    assert caught.value.place["row"] == 1


def test_the_columns_that_are_null_are_named(server: RpcServer) -> None:
    asked = call(server, "twice", "b", "a", "c", error_col="err")
    (row,) = rows(asked(batches([None], [1], [None], kind=pa.int32())))
    assert "; columns a, c are null in this row: if that is why" in row["err"]


def test_an_error_of_the_procedure_is_not_put_down_to_null(server: RpcServer) -> None:
    asked = call(server, "answer", "a", "b", into_type="int", error_col="err")
    (row,) = rows(asked(batches(["x"], [None])))
    assert "null in this row" not in row["err"]


def test_a_message_of_rows_for_a_procedure_of_one_is_told(server: RpcServer) -> None:
    with pytest.raises(SparkError, match=r"INVALID_REQUEST.*batch_rows=1 is for others"):
        list(call(server, "twice_alone", "a")(batches([1])))
    with pytest.raises(SparkError, match=r"BAD_ANSWER.*batch_rows=1 is for others"):
        list(call(server, "same", "a")(batches([1])))


# What is sent


@pytest.mark.parametrize("batch_rows", [1, 3, 64])
def test_one_column_is_sent_as_its_values(server: RpcServer, batch_rows: int) -> None:
    values = [str(i) for i in range(25)]
    name = "one" if batch_rows == 1 else "many"
    found = call(server, name, "a", batch_rows=batch_rows)(iter(batches(values)))
    assert column(found) == [value * 2 for value in values]


def test_batches_keep_their_rows_and_their_other_columns(server: RpcServer) -> None:
    given = batches(["x"] * 25, list(range(25)))
    found = list(call(server, "many", "a", batch_rows=4)(iter(given)))
    assert [batch.num_rows for batch in found] == [10, 10, 5]
    assert column(found, "b") == list(range(25))
    assert found[0].schema.names == ["a", "b", "out"]


def test_several_columns_are_sent_as_objects(server: RpcServer) -> None:
    found = call(server, "answer", "a", "b", into_type="struct<a:bigint,b:string>")(
        iter(batches([1, 2], ["x", None]))
    )
    assert column(found) == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


def test_without_columns_the_whole_row_is_sent(server: RpcServer) -> None:
    found = call(server, "answer")(iter(batches([1], ["x"])))
    assert column(found) == ['{"a":1,"b":"x"}']


def test_values_of_every_type_travel(server: RpcServer) -> None:
    noon = datetime(2020, 5, 17, 12, tzinfo=UTC)
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "date": date(2020, 5, 17),
                "time": noon,
                "naive": noon.replace(tzinfo=None),
                "decimal": Decimal("1.50"),
                "bytes": b"raw",
                "list": [date(2020, 5, 17)],
                "large": 2**62,
            }
        ]
    )
    (found,) = call(server, "answer", into_type=None)(iter([batch]))
    assert "2020-05-17T12:00:00" in found.column("out")[0].as_py()
    assert '"decimal":"1.50"' in found.column("out")[0].as_py()


def test_an_empty_batch_stays_where_it_is(server: RpcServer) -> None:
    empty = batches([1])[0].slice(0, 0)
    given = [empty, *batches([1]), empty, *batches([2]), empty]
    found = list(call(server, "answer", "a", into_type="bigint")(iter(given)))
    assert [batch.num_rows for batch in found] == [0, 1, 0, 1, 0]
    assert found[0].schema == found[1].schema


def test_no_batches_are_no_calls(server: RpcServer) -> None:
    assert list(call(server, "answer", "a")(iter([]))) == []


def test_batches_may_come_as_they_are_done(server: RpcServer) -> None:
    given = batches(list(range(95)))
    found = call(server, "answer", "a", batch_rows=3, ordered=False, into_type="bigint")(
        iter(given)
    )
    assert sorted(column(found)) == list(range(95))


def test_keys_tell_the_server_of_repetitions(server: RpcServer, seen: Seen) -> None:
    given = batches([1, 1, 2], ["x", "y", "z"])
    found = call(server, "keyed", "b", key="a", batch_rows=2)(iter(given))
    assert column(found) == ["x", "x", "z"]
    assert sorted(seen.rows) == ["x", "z"]


PAIRS = [("a", 1), ("b", None)]


@pytest.mark.parametrize(
    ("kind", "value", "sent"),
    [
        ("map<string,bigint>", PAIRS, {"a": 1, "b": None}),
        ("map<string,bigint>", [("a", 1), ("a", 2)], [["a", 1], ["a", 2]]),
        ("map<bigint,bigint>", [(1, 2)], [[1, 2]]),
        ("map<bigint,map<string,bigint>>", [(1, PAIRS)], [[1, {"a": 1, "b": None}]]),
        (
            "map<string,map<string,date>>",
            [("k", [("a", date(2020, 1, 2))])],
            {"k": {"a": "2020-01-02"}},
        ),
        ("array<map<string,bigint>>", [PAIRS, None, []], [{"a": 1, "b": None}, None, {}]),
        (
            "struct<m:map<string,bigint>,n:bigint>",
            {"m": PAIRS, "n": 3},
            {"m": {"a": 1, "b": None}, "n": 3},
        ),
        ("struct<m:map<string,bigint>>", {"m": None}, {"m": None}),
        ("array<bigint>", [1], [1]),
        ("struct<n:array<bigint>>", {"n": [1]}, {"n": [1]}),
        ("map<string,bigint>", None, None),
        ("struct<m:map<string,bigint>>", None, None),
    ],
)
def test_a_map_is_sent_as_an_object(kind: str, value: Any, sent: Any) -> None:
    batch = pa.record_batch({"a": pa.array([value], parse(kind).arrow())})
    assert rows_of(batch, ("a",), plain) == [sent]


def test_a_procedure_gets_a_map_by_its_keys(server: RpcServer) -> None:
    kind = pa.map_(pa.string(), pa.int64())
    asked = call(server, "answer", "a", into_type="struct<x:bigint>")
    (found,) = asked(iter(batches([[("x", 1), ("y", 2)]], kind=kind)))
    assert column([found]) == [{"x": 1}]


# What comes back


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("int", "bigint", 7),
        ("int", "double", 7.0),
        ("float", "double", 1.5),
        ("text", "string", "plain"),
        ("list", "array<int>", [1, 2]),
        ("object", "struct<city:string,size:bigint>", {"city": "Ulm", "size": 3}),
        ("object", "struct<city:string>", {"city": "Ulm"}),
        ("date", "date", date(2020, 5, 17)),
        ("date", "timestamp_ntz", datetime(2020, 5, 17)),
        ("decimal", "decimal(10,2)", Decimal("12.50")),
        ("bytes", "binary", b"raw"),
        ("true", "boolean", True),
        ("nothing", "int", None),
        ("int", "string", "7"),
        ("int", None, "7"),
        ("text", None, "plain"),
        ("object", None, '{"city":"Ulm","size":3}'),
        ("nothing", None, None),
    ],
)
def test_results_have_the_type_that_is_asked_for(
    server: RpcServer, name: str, kind: Any, value: Any
) -> None:
    found = call(server, "answer", "a", into_type=kind)(iter(batches([name])))
    assert column(found) == [value]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"\x00\xff", '"AP8="'),
        ({"a": [b"\x00", bytearray(b"\xff")]}, '{"a":["AA==","/w=="]}'),
        (float("nan"), '"NaN"'),
        ([INF, -INF, 1.5], '["Infinity","-Infinity",1.5]'),
        (
            {"at": NOON, "d": date(2024, 1, 2)},
            '{"at":"2024-01-02T12:00:00+00:00","d":"2024-01-02"}',
        ),
        ({1: "é"}, '{"1":"é"}'),
        ("plain", "plain"),
        (None, None),
    ],
)
def test_a_result_without_a_type_is_text_that_can_be_read(value: Any, text: str | None) -> None:
    refused: dict[int, Misfit] = {}
    assert (json_texts([value], refused.__setitem__), refused) == ([text], {})


@pytest.mark.parametrize("value", [{b"a": 1}, {"a": [object()]}])
def test_a_result_that_has_no_json_is_an_error_of_its_row(value: Any) -> None:
    refused: dict[int, Misfit] = {}
    assert json_texts([1, value, 2], refused.__setitem__) == ["1", None, "2"]
    assert "has no JSON: " in str(refused[1])


def test_bytes_and_what_is_no_number_come_back_as_json(server: RpcServer) -> None:
    asked = call(server, "answer", "a")
    (found,) = asked(iter([pa.record_batch({"a": pa.array([INF, 0.5])})]))
    assert column([found]) == ['"Infinity"', "0.5"]
    (found,) = asked(iter(batches(["bytes"])))
    assert column([found]) == ['"cmF3"']


def test_a_type_may_be_pyarrow_s(server: RpcServer) -> None:
    package("pyspark", "spark")
    found = call(server, "answer", "a", into_type=pa.float64())(iter(batches(["int"])))
    assert column(found) == [7.0]


def test_a_result_that_does_not_fit_names_its_row(server: RpcServer) -> None:
    given = batches(["int"] * 15 + ["object"])
    with pytest.raises(SparkError) as caught:
        list(call(server, "answer", "a", into_type="int")(iter(given)))
    error = caught.value
    assert error.code == "WRONG_TYPE"
    assert "'city': 'Ulm'" in error.message
    assert "does not fit int32" in error.message
    assert error.place["row"] == 15


def test_a_result_that_does_not_fit_is_an_error_of_its_row(server: RpcServer) -> None:
    found = rows(
        call(server, "answer", "a", into_type="int", error_col="err")(
            iter(batches(["int", "text", "int"]))
        )
    )
    assert [row["out"] for row in found] == [7, None, 7]
    assert found[1]["err"] == "[WRONG_TYPE] the result 'plain' does not fit int32"
    assert found[0]["err"] is None


def made(kind: str, *values: Any) -> list[Any]:
    """Return what becomes of results in a column of a type, ``Misfit`` for one that is refused."""
    refused: dict[int, Misfit] = {}
    found = column_of(list(values), parse(kind).arrow(), refused.__setitem__).to_pylist()
    assert all(found[place] is None for place in refused)
    return [Misfit if place in refused else value for place, value in enumerate(found)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bigint", 1.5),
        ("int", 2.9),
        ("tinyint", -0.5),
        ("bigint", INF),
        ("bigint", float("nan")),
        ("bigint", 1e300),
        ("bigint", True),
        ("int", 2**31),
        ("float", 1e300),
        ("float", True),
        ("float", 2**24 + 1),
        ("float", 10**39),
        ("double", True),
        ("double", 2**53 + 1),
        ("double", 10**400),
        ("double", "1.5"),
        ("decimal(10,2)", True),
        ("decimal(10,2)", 1.505),
        ("decimal(10,2)", "1.505"),
        ("decimal(10,2)", float("nan")),
        ("timestamp", 1_700_000_000),
        ("timestamp", 1.7e9),
        ("timestamp", NAIVE),
        ("timestamp", "2024-01-02T12:00:00"),
        ("timestamp", "2024-01-02"),
        ("timestamp_ntz", NOON),
        ("timestamp_ntz", "2024-01-02T12:00:00Z"),
        ("timestamp_ntz", 1_700_000_000),
        ("date", NOON),
        ("date", "2024-01-02T12:00:00"),
        ("date", 19_000),
        ("date", 19_000.0),
        ("date", ""),
        ("string", b"\xff"),
        ("array<int>", [1, 2.5]),
        ("array<string>", "ab"),
        ("array<tinyint>", b"ab"),
        ("array<timestamp>", [1.5]),
        ("array<date>", ["2024-01-02", 5]),
        ("map<string,int>", {"a": 1.5}),
        ("map<string,int>", ""),
        ("map<string,string>", ["ab"]),
        ("map<bigint,int>", [[1, 2, 3]]),
        ("map<string,date>", {"a": NOON}),
        ("struct<a:int>", {"a": 1.5}),
        ("map<string,int>", [["a", 1.5]]),
        ("struct<a:int>", []),
        ("struct<a:int>", [["a", 1]]),
        ("struct<a:int>", ""),
        ("struct<a:array<struct<b:float>>>", {"a": [{"b": 1e300}]}),
    ],
)
def test_a_result_that_would_be_changed_is_refused(kind: str, value: Any) -> None:
    """pyarrow takes many of these, and makes 1 of 1.5 and infinity of 1e300."""
    assert made(kind, value, None) == [Misfit, None]


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        ("bigint", 2.0, 2),
        ("float", INF, INF),
        ("float", 0.5, 0.5),
        ("double", 10**20, 1e20),
        ("float", 2**30, 2.0**30),
        ("decimal(10,2)", 1.5, Decimal("1.50")),
        ("decimal(10,2)", 2, Decimal("2.00")),
        ("timestamp", NOON, NOON),
        ("timestamp", "2024-01-02T14:00:00+02:00", NOON),
        ("timestamp_ntz", "2024-01-02T12:00:00", NAIVE),
        ("array<double>", [1, 10**20, None], [1.0, 1e20, None]),
        ("array<bigint>", [1.0, None], [1, None]),
        ("array<decimal(10,2)>", ["1.50", 2, None], [Decimal("1.50"), Decimal("2.00"), None]),
        ("array<timestamp>", ["2024-01-02T12:00:00Z"], [NOON]),
        ("array<array<date>>", [["2024-01-02"], None], [[date(2024, 1, 2)], None]),
        ("struct<d:date,n:int>", {"d": "2024-01-02"}, {"d": date(2024, 1, 2), "n": None}),
        ("struct<d:date>", {"d": "2024-01-02", "more": 1.5}, {"d": date(2024, 1, 2)}),
        ("struct<n:int>", {b"n": 1.5}, {"n": None}),
        ("map<string,decimal(10,2)>", {"a": "1.50"}, [("a", Decimal("1.50"))]),
        ("map<date,int>", {"2024-01-02": 1}, [(date(2024, 1, 2), 1)]),
        ("map<bigint,date>", [[1, "2024-01-02"]], [(1, date(2024, 1, 2))]),
        (
            "map<string,struct<a:array<timestamp_ntz>>>",
            {"k": {"a": ["2024-01-02T12:00:00"]}},
            [("k", {"a": [NAIVE]})],
        ),
    ],
)
def test_a_result_is_kept_whatever_no_codec_carries(kind: str, value: Any, kept: Any) -> None:
    assert made(kind, value, None) == [kept, None]


def test_a_result_that_is_refused_refuses_no_other() -> None:
    assert made("bigint", 1.5, 2, None, 3.0) == [Misfit, 2, None, 3]


@pytest.mark.parametrize("kind", ["date", "timestamp", "decimal(10,2)"])
def test_columns_of_text_are_converted_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one they take hundreds of times as long."""
    texts = {"date": "2024-01-02", "timestamp": "2024-01-02T12:00:00Z", "decimal(10,2)": "1.50"}
    monkeypatch.setattr("wsmux.spark.calls.arrow._parsed", None)
    first, second, third = made(kind, texts[kind], None, texts[kind])
    assert (first, second) == (third, None)
    assert str(first).startswith(texts[kind][:4])


@pytest.mark.parametrize("codec", ["msgpack", "json"])
def test_a_result_that_would_be_changed_is_an_error_of_its_row(codec: Any) -> None:
    with serve([offered(Seen())], codec=codec) as server:
        asked = rpc(connection(server.url, codec=codec), "test.answer").columns(
            "a", into="out", into_type="bigint", error_col="err"
        )
        found = rows(asked(iter(batches(["int", "float"]))))
    assert [row["out"] for row in found] == [7, None]
    assert found[1]["err"] == "[WRONG_TYPE] the result 1.5 does not fit int64"


def test_a_bad_row_fails_alone_with_an_error_column(server: RpcServer) -> None:
    given = batches(["a", "bad", "b"] * 8)
    found = rows(call(server, "many", "a", batch_rows=5, error_col="err")(iter(given)))
    assert [row["out"] for row in found] == ["aa", None, "bb"] * 8
    assert [row["err"] for row in found] == [None, "[BAD] no number at all", None] * 8


def test_a_bad_row_raises_without_one(server: RpcServer) -> None:
    given = batches(["a"] * 12 + ["bad"])
    with pytest.raises(SparkError, match=r"^\[BAD\] test.many: no number at all \(.*row=12"):
        list(call(server, "many", "a", batch_rows=5)(iter(given)))


def test_an_error_column_of_a_good_batch_is_null(server: RpcServer) -> None:
    (found,) = call(server, "many", "a", error_col="err")(iter(batches(["a"])))
    assert found.schema.field("err").type == pa.string()
    assert found.column("err").null_count == 1


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (("z",), {}, "there is no column 'z'; there are a, b"),
        (("a",), {"key": "z"}, "there is no column 'z'"),
        (("a",), {"into": "b"}, "there is a column 'b' already"),
        (("a",), {"error_col": "b"}, "there is a column 'b' already"),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(
    server: RpcServer, columns: tuple[str, ...], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        list(call(server, "many", *columns, **options)(iter(batches([1], [2]))))


def test_closing_cancels_the_calls(server: RpcServer, seen: Seen) -> None:
    found = call(server, "slow", "a", batch_rows=1, max_in_flight=8, into_type="bigint")(
        iter(batches([0] * 10 + [1] * 90))
    )
    next(found)
    assert seen.entered.wait(WAIT)
    assert calls_at(server)
    found.close()
    wait_for(lambda: not calls_at(server))
    assert len(seen.begun) < 50


# Whole batches


def arrow(server: RpcServer, name: str, **options: Any) -> Any:
    return rpc(connection(server.url), f"test.{name}").arrow(**options)


def test_a_batch_is_a_message_and_may_come_back_as_several(server: RpcServer, seen: Seen) -> None:
    given = batches(list(range(25)))
    found = list(arrow(server, "doubled")(iter(given)))
    assert [batch.num_rows for batch in found] == [10, 10, 10, 10, 5, 5]
    assert seen.rows["batch"] == 3


def test_a_large_batch_is_sent_in_pieces(
    server: RpcServer, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_batches, "MOST_BYTES", 40_000)
    large = pa.RecordBatch.from_pydict({"a": ["x" * 1000] * 100})
    found = list(arrow(server, "doubled")(iter([large])))
    assert sum(batch.num_rows for batch in found) == 200
    assert seen.rows["batch"] == 4


def test_a_batch_that_fails_raises(server: RpcServer) -> None:
    given = [pa.RecordBatch.from_pydict({"a": list(range(13))})]
    with pytest.raises(SparkError, match=r"^\[UNCAUGHT_ERROR\] test.doubled"):
        list(arrow(server, "doubled")(iter(given)))


@pytest.mark.parametrize("name", ["no_arrow", "short"])
def test_what_is_no_arrow_is_told(server: RpcServer, name: str) -> None:
    with pytest.raises(SparkError, match=r"^\[BAD_ANSWER\]"):
        list(arrow(server, name)(iter(batches([1]))))
