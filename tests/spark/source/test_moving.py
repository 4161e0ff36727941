"""Partitions on their way, in a task: what is cut goes on or begins anew. No session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.types import CalendarIntervalType, LongType, StructField, StructType

from wsmux.rpc import RiverError
from wsmux.spark import SparkError
from wsmux.spark.protocol import Receipt
from wsmux.spark.server.arrow_stream import Limits
from wsmux.spark.source import task_writer
from wsmux.spark.source.planning import ask_once
from wsmux.spark.source.task_reader import read_batches
from wsmux.spark.source.types import arrow_schema, fit, regrouped
from wsmux.spark.store.schemas import schema_bytes
from wsmux.spark.tables import parquet_writer
from wsmux.testing import FaultProxy

from ...helpers.spark.arrow_data import SCHEMA, ids, pa, rows
from ...helpers.spark.format_servers import filled, quick, served
from ...helpers.timeouts import WAIT
from ...helpers.waiting import wait_for

pytestmark = pytest.mark.spark

# 3.4 MB, which are read back as they are stored: 131,072 rows in 580 kB, and the rest in 310.
COUNT, EACH = 200_000, 20_000
BATCHES = [rows(start, EACH) for start in range(0, COUNT, EACH)]


def header_of(url: str) -> dict[str, Any]:
    told = ask_once(quick(url), "dataset", "describe", dataset="d", partitions=1)
    return {"token": told["ranges"][0]["token"]}


def begun(url: str) -> dict[str, Any]:
    init = {"dataset": "d", "mode": "append", "schema": schema_bytes(SCHEMA)}
    return {
        "txn": ask_once(quick(url), "dataset", "begin", **init)["txn"],
        "partition": 0,
        "attempt": 0,
    }


def committed(url: str, header: dict[str, Any], receipt: Receipt | None) -> None:
    assert receipt is not None
    ask_once(quick(url), "dataset", "commit", txn=header["txn"], receipts=[receipt.to_json()])


def test_a_reading_that_is_cut_goes_on_where_it_was() -> None:
    with served() as (server, store), FaultProxy(server.port) as proxy:
        filled(server.url, "d", BATCHES)
        header = header_of(server.url)
        proxy.cut_after(700_000, 100_000)
        found = list(read_batches(quick(proxy.url), header, SCHEMA))
        assert ids(found) == list(range(COUNT))
        assert not proxy.cutting
        skipped = [skip for skip, *_ in store.reads]
        assert skipped == sorted(skipped)
        assert skipped[-1] > 0


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write row groups of 5 kB, so that a task which has one of them has not yet asked for more."""
    monkeypatch.setattr(parquet_writer, "GROUP_ROWS", 1000)


def test_a_reading_that_comes_to_nothing_fails_after_its_retries(small_groups: None) -> None:
    with served() as (server, store), FaultProxy(server.port) as proxy:
        filled(server.url, "d", BATCHES)
        header = header_of(server.url)
        recipe = quick(proxy.url, retries=2, connect_timeout=1.0, window=16 * 1024)
        batches = read_batches(recipe, header, SCHEMA)
        next(batches)
        proxy.lose("down")
        proxy.refusing = True
        proxy.cut()
        with pytest.raises(SparkError) as caught:
            list(batches)
        # An attempt that is reset, or not even begun within its second.
        assert caught.value.code in ("NO_CONNECTION", "TIMEOUT")
        assert caught.value.what == "stream read"


@contextmanager
def away(proxy: FaultProxy) -> Iterator[None]:
    """Let no server be there for the block, until it was looked for six times."""
    proxy.refusing = True
    proxy.cut()

    def come_back() -> None:
        wait_for(lambda: proxy.refused >= 6)
        proxy.refusing = False

    coming = threading.Thread(target=come_back)
    coming.start()
    yield
    coming.join(WAIT)
    assert not proxy.refusing


def test_a_server_that_is_away_is_waited_for_by_a_reading(small_groups: None) -> None:
    with served() as (server, _), FaultProxy(server.port) as proxy:
        filled(server.url, "d", BATCHES)
        header = header_of(server.url)
        recipe = quick(proxy.url, retries=1, window=16 * 1024)
        batches = read_batches(recipe, header, SCHEMA, 10)
        found = [next(batches)]
        with away(proxy):
            found += batches
        assert ids(found) == list(range(COUNT))


def test_a_server_that_is_away_is_waited_for_by_a_part() -> None:
    with served() as (server, _), FaultProxy(server.port) as proxy:
        header = begun(server.url)
        recipe = quick(proxy.url, retries=1)
        with away(proxy):
            receipt = task_writer.stage(recipe, header, SCHEMA, iter(BATCHES))
        committed(server.url, header, receipt)
        found = list(read_batches(quick(server.url), header_of(server.url), SCHEMA))
        assert ids(found) == list(range(COUNT))


def test_a_reading_that_is_closed_cancels_its_stream(small_groups: None) -> None:
    with served() as (server, store):
        filled(server.url, "d", BATCHES)
        recipe = quick(server.url, window=16 * 1024)
        batches = read_batches(recipe, header_of(server.url), SCHEMA, 10)
        assert next(batches).num_rows == 10
        assert recipe.streams().stats().streams == 1
        batches.close()
        assert recipe.streams().stats().streams == 0


def test_filters_and_columns_go_with_a_reading_that_is_cut() -> None:
    with served() as (server, store), FaultProxy(server.port) as proxy:
        filled(server.url, "d", BATCHES)
        header = header_of(server.url) | {"filters": [["id", ">=", 5000]], "columns": ["id"]}
        proxy.cut_after(500_000, 500_000)
        found = list(read_batches(quick(proxy.url), header, pa.schema([SCHEMA.field("id")])))
        assert ids(found) == list(range(5000, COUNT))
        assert not proxy.cutting


def test_a_part_that_is_cut_is_sent_again() -> None:
    with served() as (server, store), FaultProxy(server.port) as proxy:
        header = begun(server.url)
        proxy.cut_after(60_000, 1_200_000, way="up")
        receipt = task_writer.stage(quick(proxy.url), header, SCHEMA, iter(BATCHES))
        assert not proxy.cutting
        committed(server.url, header, receipt)
        assert ids(read_batches(quick(server.url), header_of(server.url), SCHEMA)) == list(
            range(COUNT)
        )


def test_a_part_that_is_cut_before_its_receipt_is_sent_again() -> None:
    with served() as (server, store), FaultProxy(server.port) as proxy:
        header = begun(server.url)
        cuts = [proxy.cut]
        store.on_finish = lambda: cuts.pop()() if cuts else None
        receipt = task_writer.stage(quick(proxy.url), header, SCHEMA, iter(BATCHES))
        assert not cuts
        committed(server.url, header, receipt)
        assert ids(read_batches(quick(server.url), header_of(server.url), SCHEMA)) == list(
            range(COUNT)
        )


def test_a_part_too_large_to_be_held_fails_when_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_writer, "MOST_HELD", 500_000)
    with served() as (server, store), FaultProxy(server.port) as proxy:
        header = begun(server.url)
        proxy.cut_after(2_000_000, way="up")
        with pytest.raises(SparkError) as caught:
            task_writer.stage(quick(proxy.url), header, SCHEMA, iter(BATCHES))
        assert caught.value.code == "NO_CONNECTION"
        assert "Spark does not supply its rows twice" in caught.value.message


def test_a_part_that_is_refused_on_the_way_says_why() -> None:
    with served(limits=Limits(batch_rows=10)) as (server, store):
        with pytest.raises(SparkError) as caught:
            task_writer.stage(quick(server.url), begun(server.url), SCHEMA, iter(BATCHES))
        assert (caught.value.code, caught.value.what) == ("TOO_LARGE", "stream write")
        assert "send smaller batches" in caught.value.message


def busy(times: int) -> Callable[[], None]:
    """Return what raises BUSY so many times, and nothing later."""
    left = [RiverError("BUSY", "others were at it: nothing was changed")] * times

    def raise_busy() -> None:
        if left:
            raise left.pop()

    return raise_busy


def test_a_commit_that_others_hold_up_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as (server, store):
        header = begun(server.url)
        receipt = task_writer.stage(quick(server.url), header, SCHEMA, iter(BATCHES[:1]))
        assert receipt is not None
        held_up, commit = busy(2), store.commit

        def commit_later(*arguments: Any) -> Any:
            held_up()
            return commit(*arguments)

        monkeypatch.setattr(store, "commit", commit_later)
        init = {"txn": header["txn"], "receipts": [receipt.to_json()]}
        with pytest.raises(SparkError) as caught:
            ask_once(quick(server.url, retries=0), "dataset", "commit", **init)
        assert caught.value.code == "BUSY"
        ask_once(quick(server.url, retries=1), "dataset", "commit", **init)
        assert ids(read_batches(quick(server.url), header_of(server.url), SCHEMA)) == list(
            range(EACH)
        )


def test_a_part_that_others_hold_up_is_sent_again() -> None:
    with served() as (server, store):
        header = begun(server.url)
        store.on_finish = busy(2)
        with pytest.raises(SparkError) as caught:
            task_writer.stage(quick(server.url, retries=0), header, SCHEMA, iter(BATCHES))
        assert (caught.value.code, caught.value.what) == ("BUSY", "stream write")
        receipt = task_writer.stage(quick(server.url, retries=1), header, SCHEMA, iter(BATCHES))
        committed(server.url, header, receipt)
        assert ids(read_batches(quick(server.url), header_of(server.url), SCHEMA)) == list(
            range(COUNT)
        )


def test_a_read_that_others_hold_up_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as (server, store):
        filled(server.url, "d", BATCHES)
        header = header_of(server.url)
        held_up, read = busy(2), store.read

        def read_later(*arguments: Any) -> Any:
            held_up()
            return read(*arguments)

        monkeypatch.setattr(store, "read", read_later)
        with pytest.raises(SparkError) as caught:
            list(read_batches(quick(server.url, retries=0), header, SCHEMA))
        assert (caught.value.code, caught.value.what) == ("BUSY", "stream read")
        found = read_batches(quick(server.url, retries=1), header, SCHEMA)
        assert ids(found) == list(range(COUNT))


def test_a_read_that_others_hold_up_on_the_way_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as (server, store):
        filled(server.url, "d", BATCHES)
        header = header_of(server.url)
        held_up, read = busy(3), store.read

        def slowly(items: Iterator[Any]) -> Iterator[Any]:
            held_up()
            yield next(items)
            held_up()
            yield from items

        def read_slowly(*arguments: Any) -> Any:
            table = read(*arguments)
            return table._replace(stored=slowly(table.stored))

        monkeypatch.setattr(store, "read", read_slowly)
        with pytest.raises(SparkError) as caught:
            list(read_batches(quick(server.url, retries=0), header, SCHEMA))
        assert (caught.value.code, caught.value.what) == ("BUSY", "stream read")
        found = read_batches(quick(server.url, retries=2), header, SCHEMA)
        assert ids(found) == list(range(COUNT))


def test_a_part_of_nothing_needs_no_stream() -> None:
    recipe = quick("ws://127.0.0.1:1")
    assert task_writer.stage(recipe, {}, SCHEMA, iter([rows(0, 0)])) is None


def test_what_gives_the_rows_fails_as_it_does() -> None:
    def failing() -> Iterator[Any]:
        yield from BATCHES
        raise LookupError("no more of them")

    with served() as (server, store):
        header = begun(server.url)
        recipe = quick(server.url)
        with pytest.raises(LookupError, match="no more of them"):
            task_writer.stage(recipe, header, SCHEMA, failing())
        assert recipe.streams().stats().streams == 0


def test_rows_that_fail_with_the_connection_are_not_taken_for_all() -> None:
    """The part would be sent again, and look whole: what gave its rows has ended."""
    with served() as (server, store), FaultProxy(server.port) as proxy:
        header = begun(server.url)
        recipe = quick(proxy.url)
        streams = recipe.streams()

        def failing() -> Iterator[Any]:
            yield BATCHES[0]
            proxy.cut()
            wait_for(lambda: streams.closed)
            raise LookupError("no more of them")

        with pytest.raises(LookupError, match="no more of them"):
            task_writer.stage(recipe, header, SCHEMA, failing())


def test_small_batches_carry_the_same() -> None:
    with served() as (server, store):
        header = begun(server.url)
        receipt = task_writer.stage(
            quick(server.url), header, SCHEMA, iter(BATCHES), batch_rows=700
        )
        committed(server.url, header, receipt)
        assert ids(read_batches(quick(server.url), header_of(server.url), SCHEMA)) == list(
            range(COUNT)
        )


def test_a_batch_that_fits_is_not_touched() -> None:
    batch = rows(0, 3)
    assert fit(batch, SCHEMA) is batch


def test_values_that_do_not_fit_are_an_error_not_a_loss() -> None:
    nanos = pa.record_batch([pa.array([1], pa.timestamp("ns"))], ["t"])
    with pytest.raises(Exception, match="WRONG_TYPE: values do not fit: Casting from timestamp"):
        fit(nanos, pa.schema([("t", pa.timestamp("us"))]))


@pytest.mark.parametrize(
    ("counts", "most", "expected"),
    [
        ([], None, []),
        ([3, 4, 5], None, [12]),
        ([3, 4, 5], 7, [7, 5]),
        ([3, 4, 5], 4, [3, 4, 4, 1]),
        ([20, 1], 8, [8, 8, 4, 1]),
        ([1, 50_000, 1, 1], None, [50_001, 2]),
        ([50_000, 50_000], None, [50_000, 50_000]),
        ([0], None, []),
        ([0, 0], None, []),
        ([0, 0, 3, 0, 4, 0], None, [7]),
        ([0, 50_000, 0, 0, 1], 50_000, [50_000, 1]),
    ],
)
def test_batches_are_regrouped(counts: list[int], most: int | None, expected: list[int]) -> None:
    starts = [sum(counts[:place]) for place in range(len(counts))]
    batches = [rows(*each) for each in zip(starts, counts, strict=True)]
    found = list(regrouped(batches, most))
    assert [batch.num_rows for batch in found] == expected
    assert ids(found) == list(range(sum(counts)))


def test_a_type_that_arrow_has_no_word_for_is_named() -> None:
    schema = StructType([StructField("id", LongType()), StructField("odd", CalendarIntervalType())])
    with pytest.raises(RiverError) as caught:
        arrow_schema(schema)
    assert caught.value.code == "WRONG_TYPE"
    assert caught.value.message == "column 'odd' is interval, for which Arrow has no type"
