"""Datasets and topics over a socket, from plain clients: there, back, cut, and refused."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux import rpc
from wsmux.rpc import RiverError
from wsmux.spark.server.arrow_stream import ArrowSource, Limits, receive
from wsmux.spark.server.data_server import DataServer, serve_data
from wsmux.spark.store.base import Retention
from wsmux.testing import FaultProxy

from ...helpers.spark.arrow_data import SCHEMA, delta_wide, ids, ipc, pa, rows
from ...helpers.spark.bulk import call, get, put, schema_of, write_all
from ...helpers.spark.clients import WAIT, bearer, open_named, read_line, refusal_of
from ...helpers.spark.engines import deltalake
from ...helpers.spark.inside import stores_of
from ...helpers.waiting import wait_for

pytestmark = pytest.mark.spark

MIB = 1024 * 1024
SMALL = MIB


@pytest.fixture(params=["memory", "parquet"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DataServer]:
    directory = {"directory": tmp_path} if request.param != "memory" else {}
    retention = Retention(hard_rows=20)
    limits = Limits(batch_bytes=SMALL)
    options: dict[str, Any] = {**directory, "limits": limits, "retention": retention}
    with serve_data(token="secret", resume=True, **options) as server:
        yield server


@pytest.fixture
def streams(server: DataServer) -> Iterator[wsmux.Connection]:
    with wsmux.connect(server.url, headers=bearer("secret"), timeout=WAIT) as connection:
        yield connection


@pytest.fixture
def calls(server: DataServer) -> Iterator[rpc.Client]:
    with rpc.connect(server.url, headers=bearer("secret")) as client:
        yield client


def begin(calls: rpc.Client, schema: Any = SCHEMA) -> str:
    init = {"dataset": "d", "mode": "append", "schema": schema_of(schema)}
    return str(call(calls, "dataset.begin", **init)["txn"])


def refused(calls: rpc.Client, name: str, **init: Any) -> str:
    with pytest.raises(RiverError) as caught:
        call(calls, name, **init)
    return str(caught.value.code)


# There and back


def test_a_dataset_is_written_and_read(calls: rpc.Client, streams: wsmux.Connection) -> None:
    parts = [[rows(0, 10), rows(10, 10)], [rows(20, 10)]]
    assert write_all(calls, streams, "d", parts)["rows"] == 30
    told = call(calls, "dataset.describe", dataset="d", partitions=4)
    assert pa.ipc.read_schema(pa.py_buffer(told["schema"])) == SCHEMA
    assert (told["version"], told["rows"], len(told["ranges"])) == (0, 30, 4)
    found = []
    for one in told["ranges"]:
        schema, batches = get(streams, token=one["token"])
        assert schema == SCHEMA
        assert sum(batch.num_rows for batch in batches) == one["rows"]
        found += ids(batches)
    assert found == list(range(30))
    listed = call(calls, "dataset.list")["datasets"]
    assert listed == [{"name": "d", "version": 0, "rows": 30, "bytes": told["bytes"]}]


def test_what_is_written_and_read_over_a_connection_that_is_cut_is_there_once(
    server: DataServer, calls: rpc.Client
) -> None:
    many = [rows(1000 * number, 1000) for number in range(200)]
    with (
        FaultProxy(server.port) as proxy,
        wsmux.connect(proxy.url, headers=bearer("secret"), timeout=WAIT, resume=True) as connection,
    ):
        assert connection.resumable
        proxy.cut_after(MIB // 4, MIB, way="up", how="rst")
        assert write_all(calls, connection, "d", [many])["rows"] == 200_000
        assert not proxy.cutting
        (one,) = call(calls, "dataset.describe", dataset="d", partitions=1)["ranges"]
        proxy.cut_after(MIB // 4, MIB, way="down", how="fin")
        _, batches = get(connection, token=one["token"])
        assert not proxy.cutting
        assert connection.stats().reconnects >= 4
    assert ids(batches) == list(range(200_000))


def test_every_type_goes_there_and_back(calls: rpc.Client, streams: wsmux.Connection) -> None:
    write_all(calls, streams, "d", [[delta_wide()]])
    (one,) = call(calls, "dataset.describe", dataset="d")["ranges"]
    schema, (batch,) = get(streams, token=one["token"])
    assert schema.names == delta_wide().schema.names
    assert str(batch.to_pylist()) == str(delta_wide().to_pylist())


def test_a_receipt_tells_what_was_sent(calls: rpc.Client, streams: wsmux.Connection) -> None:
    receipt = put(streams, begin(calls), 3, rows(0, 10), attempt=2)
    sent = ipc(SCHEMA, [rows(0, 10)])
    assert receipt.pop("file").startswith("p3-2-")
    wanted = {"partition": 3, "attempt": 2, "rows": 10, "bytes": len(sent)}
    assert receipt == {"ok": True, **wanted, "crc": zlib.crc32(sent)}


def test_columns_and_filters_are_pushed_down(calls: rpc.Client, streams: wsmux.Connection) -> None:
    write_all(calls, streams, "d", [[rows(0, 20)]])
    asked = {"columns": ["id"], "filters": [["id", ">=", 5], ["word", "not_null"]]}
    told = call(calls, "dataset.describe", dataset="d", **asked)
    (one,) = told["ranges"]
    schema, batches = get(streams, token=one["token"], **asked)
    assert schema.names == ["id"]
    assert ids(batches) == [each for each in range(5, 20) if each % 7 != 3]
    _, rest = get(streams, token=one["token"], skip_rows=4, **asked)
    assert ids(rest) == ids(batches)[4:]


def test_a_topic_is_written_and_read(calls: rpc.Client, streams: wsmux.Connection) -> None:
    schema = schema_of(SCHEMA)
    assert call(calls, "topic.create", topic="t", schema=schema, partitions=2)["created"]
    begun = call(calls, "topic.begin", topic="t", query="q", batch=0, schema=schema)
    receipts = [put(streams, begun["txn"], place, rows(10 * place, 10)) for place in range(3)]
    made = call(calls, "topic.commit", txn=begun["txn"], receipts=receipts)
    assert (made["version"], made["rows"]) == (1, 30)
    told = call(calls, "topic.describe", topic="t")
    assert (told["partitions"], told["earliest"], told["latest"]) == (2, [0, 0], [20, 10])
    _, batches = get(streams, topic="t", partition=0, start=5, end=15)
    assert ids(batches) == [*range(5, 10), *range(20, 25)]
    assert call(calls, "topic.begin", topic="t", query="q", batch=0, schema=schema)["done"]
    assert call(calls, "topic.release", topic="t", query="r", offsets=[20, 10]) == {}
    assert call(calls, "topic.abort", txn=begun["txn"]) == {"committed": True}


def append(calls: rpc.Client, streams: wsmux.Connection, number: int) -> None:
    """Add ten rows to topic t."""
    schema = schema_of(SCHEMA)
    txn = call(calls, "topic.begin", topic="t", query="q", batch=number, schema=schema)["txn"]
    receipt = put(streams, txn, 0, rows(10 * number, 10))
    call(calls, "topic.commit", txn=txn, receipts=[receipt])


def test_heads_are_pushed(calls: rpc.Client, streams: wsmux.Connection) -> None:
    call(calls, "topic.create", topic="t", schema=schema_of(SCHEMA))
    with calls.subscribe("topic", "heads", {"topic": "t"}, WAIT) as heads:
        assert heads.read()["latest"] == [0]
        for number in range(3):
            append(calls, streams, number)
            assert heads.read()["latest"] == [10 * number + 10]
    with (
        calls.subscribe("topic", "heads", {"topic": "none"}, WAIT) as heads,
        pytest.raises(RiverError) as caught,
    ):
        heads.read()
    assert caught.value.code == "NO_TOPIC"


def test_offsets_that_are_gone_are_told(
    server: DataServer, calls: rpc.Client, streams: wsmux.Connection
) -> None:
    call(calls, "topic.create", topic="t", schema=schema_of(SCHEMA))
    for number in range(4):
        append(calls, streams, number)
    for store in stores_of(server):
        store.expire(time.time())
    with open_named(streams, "read", topic="t", partition=0, start=5, end=40) as stream:
        answer = read_line(stream)
    assert answer["code"] == "OFFSETS_GONE"
    assert answer["message"] == "offset 5 of partition 0 of topic t is gone; the earliest is 20"


# The care of tables


def test_small_files_are_joined(calls: rpc.Client, streams: wsmux.Connection) -> None:
    for start in (0, 10, 20):
        write_all(calls, streams, "d", [[rows(start, 10)]])
    done = call(calls, "dataset.optimize", dataset="d", target_size=1 << 20)
    assert (done["version"], done["files_removed"], done["files_added"]) == (3, 3, 1)
    assert done["bytes_removed"] > done["bytes_added"] > 0
    (one,) = call(calls, "dataset.describe", dataset="d")["ranges"]
    assert ids(get(streams, token=one["token"])[1]) == list(range(30))


def test_what_made_versions_is_told(calls: rpc.Client, streams: wsmux.Connection) -> None:
    for start in (0, 10):
        write_all(calls, streams, "d", [[rows(start, 10)]])
    newest, first = call(calls, "dataset.history", dataset="d")["versions"]
    assert (newest["version"], newest["operation"]) == (1, "WRITE")
    assert newest["metrics"]["numOutputRows"] == "10"
    assert newest["parameters"] == {"mode": "Append"}
    assert abs(newest["time"] / 1000 - time.time()) < 60
    assert first["version"] == 0
    assert call(calls, "dataset.history", dataset="d", limit=1)["versions"] == [newest]


def test_what_nothing_needs_is_removed(
    calls: rpc.Client, streams: wsmux.Connection, tmp_path: Path
) -> None:
    write_all(calls, streams, "d", [[rows(0, 10)]])
    nothing = {"files": [], "count": 0, "bytes": 0}
    assert call(calls, "dataset.vacuum", dataset="d", retention=200) == nothing
    if not (tmp_path / "datasets").is_dir():
        return  # it is in a directory of the store's own
    orphan = tmp_path / "datasets" / "d" / "orphan.parquet"
    orphan.write_bytes(b"12345")
    os.utime(orphan, (1e9, 1e9))
    found = {"files": ["orphan.parquet"], "count": 1, "bytes": 5}
    assert call(calls, "dataset.vacuum", dataset="d", dry_run=True) == found
    assert orphan.exists()
    assert call(calls, "dataset.vacuum", dataset="d") == found
    assert not orphan.exists()
    assert deltalake.DeltaTable(str(orphan.parent)).version() == 0, "it is no change"


# Transactions


def test_all_or_nothing(calls: rpc.Client, streams: wsmux.Connection) -> None:
    txn = begin(calls)
    receipts = [put(streams, txn, place, rows(10 * place, 10)) for place in range(3)]
    wrong = [*receipts[:2], {**receipts[2], "crc": 1}]
    assert refused(calls, "dataset.commit", txn=txn, receipts=wrong) == "WRONG_RECEIPT"
    assert refused(calls, "dataset.describe", dataset="d") == "NO_DATASET"
    made = call(calls, "dataset.commit", txn=txn, receipts=receipts)
    assert call(calls, "dataset.commit", txn=txn, receipts=receipts) == made
    assert call(calls, "dataset.abort", txn=txn) == {"committed": True}
    assert call(calls, "dataset.describe", dataset="d")["rows"] == 30


def test_an_app_writes_once(calls: rpc.Client, streams: wsmux.Connection) -> None:
    init = {"dataset": "d", "mode": "append", "schema": schema_of(SCHEMA)}
    app = {"app": "etl", "app_version": 2**40}
    txn = call(calls, "dataset.begin", **init, **app)["txn"]
    call(calls, "dataset.commit", txn=txn, receipts=[put(streams, txn, 0, rows(0, 10))])
    assert call(calls, "dataset.begin", **init, **app) == {"txn": txn, "done": True}
    assert refused(calls, "dataset.begin", **init, app="etl") == "BAD_REQUEST"


@pytest.mark.parametrize("how", ["reset", "connection"])
def test_what_is_cut_leaves_nothing(
    server: DataServer, calls: rpc.Client, tmp_path: Path, how: str
) -> None:
    txn = begin(calls)
    data = ipc(SCHEMA, [rows(0, 100)])
    with wsmux.connect(server.url, headers=bearer("secret"), timeout=WAIT) as connection:
        stream = open_named(connection, "write", txn=txn, partition=0, attempt=0)
        assert read_line(stream) == {"ok": True}
        stream.write(data[: len(data) // 2])
        if tmp_path.exists() and any(tmp_path.iterdir()):
            wait_for(lambda: list(tmp_path.rglob("p0-0-*")), WAIT)
        stream.reset() if how == "reset" else connection.abort()
    wait_for(lambda: not list(tmp_path.rglob("p0-0-*")), WAIT)
    assert call(calls, "dataset.abort", txn=txn) == {"committed": False}


def test_a_committed_transaction_takes_nothing(
    calls: rpc.Client, streams: wsmux.Connection
) -> None:
    txn = begin(calls)
    call(calls, "dataset.commit", txn=txn, receipts=[])
    assert put(streams, txn, 0, rows(0, 1))["code"] == "NO_TXN"
    other = begin(calls)
    call(calls, "dataset.abort", txn=other)
    assert put(streams, other, 0, rows(0, 1))["code"] == "NO_TXN"
    assert refused(calls, "dataset.commit", txn=other, receipts=[]) == "NO_TXN"


# Bad bytes

GOOD = ipc(SCHEMA, [rows(0, 10)])
OTHER = ipc(pa.schema([("x", pa.int8())]), [])
LARGE = pa.record_batch([pa.array([0], pa.int64()), pa.array(["x" * 2 * SMALL])], schema=SCHEMA)
NULLS = pa.schema([pa.field("id", pa.int64(), False), pa.field("word", pa.string())])
BAD_BYTES = {
    "nothing": (b"", "BAD_ARROW"),
    "garbage": (b"garbage" * 100, "BAD_ARROW"),
    "huge length": (b"\xff\xff\xff\xff\xff\xff\xff\x7f", "TOO_LARGE"),
    "cut": (GOOD[:-20], "BAD_ARROW"),
    "no end": (GOOD[:-8], "BAD_ARROW"),
    "more": (GOOD + b"x", "BAD_ARROW"),
    "other schema": (OTHER, "WRONG_SCHEMA"),
    "large batch": (ipc(SCHEMA, [LARGE]), "TOO_LARGE"),
    "compressed": (ipc(SCHEMA, [rows(0, 1000)], compression="zstd"), "BAD_ARROW"),
}


@pytest.mark.parametrize("case", BAD_BYTES)
def test_bad_bytes_are_refused(calls: rpc.Client, streams: wsmux.Connection, case: str) -> None:
    data, code = BAD_BYTES[case]
    txn = begin(calls)
    stream = open_named(streams, "write", txn=txn, partition=0, attempt=0)
    assert read_line(stream) == {"ok": True}
    try:
        stream.write(data)
        stream.close_write()
    except wsmux.StreamWriteClosed:
        pass  # refused while it was sent
    assert refusal_of(stream) == code
    stream.close()
    assert put(streams, txn, 0, rows(0, 1))["ok"], "the transaction goes on"


def test_a_transaction_of_a_topic_needs_no_query(
    calls: rpc.Client, streams: wsmux.Connection
) -> None:
    schema = schema_of(SCHEMA)
    call(calls, "topic.create", topic="t", schema=schema)
    for number in range(2):
        begun = call(calls, "topic.begin", topic="t", schema=schema)
        assert begun["done"] is False
        receipt = put(streams, begun["txn"], 0, rows(10 * number, 10))
        for _ in range(2):
            made = call(calls, "topic.commit", txn=begun["txn"], receipts=[receipt])
            assert (made["version"], made["rows"]) == (number + 1, 10)
    assert call(calls, "topic.describe", topic="t")["latest"] == [20]


def test_nulls_where_there_are_none_are_refused(
    calls: rpc.Client, streams: wsmux.Connection
) -> None:
    lying = pa.RecordBatch.from_arrays(
        [pa.array([None], pa.int64()), pa.array(["x"])], schema=NULLS
    )
    answer = put(streams, begin(calls), 0, lying)
    assert answer["code"] == "BAD_ARROW"
    assert "'id' holds nulls" in answer["message"]


def test_a_sentence_tells_the_limit(calls: rpc.Client, streams: wsmux.Connection) -> None:
    answer = put(streams, begin(calls), 0, rows(0, 5), LARGE)
    assert answer["code"] == "TOO_LARGE"
    assert f"up to {SMALL} are accepted: send smaller batches" in answer["message"]


BAD_CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "name": ("dataset.describe", {"dataset": ".."}, "BAD_NAME"),
    "no dataset": ("dataset.describe", {"dataset": "none"}, "NO_DATASET"),
    "column": ("dataset.describe", {"dataset": "d", "columns": ["x"]}, "NO_COLUMN"),
    "filter": ("dataset.describe", {"dataset": "d", "filters": [["id", "=", "x"]]}, "BAD_FILTER"),
    "schema": ("dataset.begin", {"dataset": "d", "mode": "append", "schema": b"x"}, "BAD_REQUEST"),
    "mode": ("dataset.begin", {"dataset": "d", "mode": "?", "schema": GOOD}, "BAD_REQUEST"),
    "create": ("dataset.begin", {"dataset": "d", "mode": "create", "schema": GOOD}, "EXISTS"),
    "other": ("dataset.begin", {"dataset": "d", "mode": "append", "schema": OTHER}, "WRONG_SCHEMA"),
    "optimize": ("dataset.optimize", {"dataset": "none"}, "NO_DATASET"),
    "target": ("dataset.optimize", {"dataset": "d", "target_size": 0}, "BAD_REQUEST"),
    "vacuum": ("dataset.vacuum", {"dataset": "none"}, "NO_DATASET"),
    "vacuum soon": ("dataset.vacuum", {"dataset": "d", "retention": 0}, "BAD_REQUEST"),
    "vacuum dry": ("dataset.vacuum", {"dataset": "d", "dry_run": 1}, "BAD_REQUEST"),
    "history": ("dataset.history", {"dataset": "none"}, "NO_DATASET"),
    "limit": ("dataset.history", {"dataset": "d", "limit": 10**6}, "BAD_REQUEST"),
    "topic name": ("topic.create", {"topic": "a/b", "schema": GOOD}, "BAD_NAME"),
    "no topic": ("topic.describe", {"topic": "none"}, "NO_TOPIC"),
    "query": ("topic.begin", {"topic": "t", "batch": 0, "schema": GOOD}, "BAD_REQUEST"),
    "offsets": ("topic.release", {"topic": "t", "query": "q", "offsets": [1, 2]}, "NO_TOPIC"),
    "offsets text": ("topic.release", {"topic": "t", "query": "q", "offsets": "1"}, "BAD_REQUEST"),
    "txn": ("topic.commit", {"txn": "d:d:" + "0" * 32, "receipts": []}, "NO_TXN"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_calls_are_refused(calls: rpc.Client, streams: wsmux.Connection, case: str) -> None:
    write_all(calls, streams, "d", [[rows(0, 1)]])
    name, init, code = BAD_CALLS[case]
    assert refused(calls, name, **init) == code


BAD_READS: dict[str, tuple[dict[str, Any], str]] = {
    "token": ({"token": "x"}, "BAD_TOKEN"),
    "dataset": ({"token": "none:00000000:1:0:1"}, "NO_DATASET"),
    "home": ({"token": "d:00000000:1:0:1"}, "VERSION_GONE"),
    "columns": ({"columns": ["x"]}, "NO_COLUMN"),
    "filters": ({"filters": [["word", "<", 1]]}, "BAD_FILTER"),
    "topic": ({"topic": "none", "partition": 0, "start": 0, "end": 1, "token": None}, "NO_TOPIC"),
}


@pytest.mark.parametrize("case", BAD_READS)
def test_bad_reads_are_refused(calls: rpc.Client, streams: wsmux.Connection, case: str) -> None:
    write_all(calls, streams, "d", [[rows(0, 1)]])
    (one,) = call(calls, "dataset.describe", dataset="d")["ranges"]
    header, code = BAD_READS[case]
    with open_named(streams, "read", **{"token": one["token"], **header}) as stream:
        assert refusal_of(stream) == code


# Bounds


def big(count: int) -> Any:
    """Return a batch of about so many bytes."""
    return pa.record_batch([pa.array(range(count // 8), pa.int64())], names=["id"])


def test_memory_is_bounded_whatever_the_size(tmp_path: Path) -> None:
    """The guard of every test fails it if memory grows by 64 MiB; this writes and reads 256."""
    batch = big(2 * MIB)
    with (
        serve_data(tmp_path, sync=False) as server,
        rpc.connect(server.url) as calls,
        wsmux.connect(server.url, timeout=WAIT) as streams,
    ):
        write_all(calls, streams, "d", [[batch] * 128])
        (*_, one) = call(calls, "dataset.describe", dataset="d", partitions=1)["ranges"]
        with open_named(streams, "read", token=one["token"]) as stream:
            read_line(stream)
            with stream.makefile("rb") as file, pa.ipc.open_stream(file) as reader:
                assert sum(batch.num_rows for batch in reader) == 128 * batch.num_rows


def test_a_reader_that_does_not_read_holds_the_server_up(
    server: DataServer, calls: rpc.Client, streams: wsmux.Connection
) -> None:
    write_all(calls, streams, "d", [[big(MIB // 2)] * 16])
    (one,) = call(calls, "dataset.describe", dataset="d", partitions=1)["ranges"]
    with open_named(streams, "read", token=one["token"]) as stream:
        assert read_line(stream) == {"ok": True, "batch_bytes": SMALL, "stored": True}
        (connection,) = server.connections
        wait_for(lambda: connection.stats().waiting_writers == 1, WAIT)
        assert streams.stats().unread_bytes < 2 * MIB
        stream.reset()  # as a task that is cancelled
    wait_for(lambda: connection.stats().streams == 0, WAIT)


def test_what_is_damaged_further_on_is_told_where_it_is(tmp_path: Path) -> None:
    with (
        serve_data(tmp_path, sync=False) as server,
        rpc.connect(server.url) as calls,
        wsmux.connect(server.url, timeout=WAIT) as streams,
    ):
        write_all(calls, streams, "d", [[rows(0, 10)], [rows(10, 10)]])
        (one,) = call(calls, "dataset.describe", dataset="d", partitions=1)["ranges"]
        (second,) = tmp_path.rglob("part-00001-*.parquet")
        second.write_bytes(b"garbage")
        with open_named(streams, "read", token=one["token"]) as stream:
            assert read_line(stream)["ok"] is True
            _, batches = receive(ArrowSource(stream, Limits()), Limits())
            assert ids([next(batches)]) == list(range(10))
            with pytest.raises(RiverError, match=second.name) as caught:
                next(batches)
            assert caught.value.code == "CORRUPT"
            assert str(tmp_path) not in caught.value.message
            assert stream.read() == b""
        with pytest.raises(OSError, match="negative metadata length"):
            get(streams, token=one["token"])  # whoever does not know of it takes it for no end
        with open_named(streams, "read", token=one["token"], skip_rows=10) as stream:
            assert read_line(stream)["ok"] is True
            with pytest.raises(RiverError, match="CORRUPT"):
                receive(ArrowSource(stream, Limits()), Limits())


def test_many_streams_at_once(calls: rpc.Client, streams: wsmux.Connection) -> None:
    txn = begin(calls)
    receipts: dict[int, Any] = {}

    def stage(partition: int) -> None:
        receipts[partition] = put(streams, txn, partition, rows(100 * partition, 100))

    threads = [threading.Thread(target=stage, args=(place,)) for place in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    made = call(calls, "dataset.commit", txn=txn, receipts=list(receipts.values()))
    assert made["rows"] == 1600
    told = call(calls, "dataset.describe", dataset="d", partitions=1)
    assert ids(get(streams, token=told["ranges"][0]["token"])[1]) == list(range(1600))
