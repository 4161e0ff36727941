"""Datasets in S3: committed once whoever dies or hears nothing, and errors that tell what to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark import SqliteTopics, serve_data
from wsmux.spark.protocol import Receipt
from wsmux.spark.store.base import Committed, Span
from wsmux.spark.store.datasets import DeltaDatasets
from wsmux.spark.tables import object_folder
from wsmux.spark.tables.staging import StagedPart
from wsmux.spark.tables.table import DeltaDirectory

from ...helpers.spark.arrow_data import SCHEMA, ids, pa, rows
from ...helpers.spark.inside import table_of
from ...helpers.spark.object_store import BUCKET, KEY, SECRET, Between, ObjectStore, between
from ...helpers.timeouts import WAIT
from ...helpers.waiting import wait_for

pytestmark = pytest.mark.spark

TTL = 86_400.0


@pytest.fixture
def address(objects: ObjectStore) -> str:
    return objects.address()


@pytest.fixture
def store(objects: ObjectStore, address: str) -> DeltaDatasets:
    return DeltaDatasets(address, storage_options=objects.options())


@pytest.fixture
def middle(objects: ObjectStore) -> Iterator[Between]:
    with between(objects) as middle:
        yield middle


@pytest.fixture
def far(objects: ObjectStore, address: str, middle: Between) -> DeltaDatasets:
    """Return another server's store of the same datasets, with something in between."""
    return DeltaDatasets(address, storage_options=objects.options(middle.port))


def staged(datasets: DeltaDatasets, start: int, count: int = 10, **app: Any) -> tuple[str, Receipt]:
    txn = datasets.begin("d", "append", SCHEMA, **app).txn
    part = datasets.open_part(txn, 0, 0, SCHEMA)
    part.write(rows(start, count))
    return txn, part.finish(1, 1)


def write(datasets: DeltaDatasets, start: int, count: int = 10, **app: Any) -> Committed:
    txn, receipt = staged(datasets, start, count, **app)
    return datasets.commit(txn, [receipt])


def read(datasets: DeltaDatasets, **which: Any) -> list[int]:
    ranges = datasets.describe("d", **which).ranges
    return [each for one in ranges for each in ids(datasets.read(one.token).batches)]


def parquet(objects: ObjectStore, address: str) -> list[str]:
    return [key for key in objects.keys(address) if key.endswith(".parquet")]


# Once


@pytest.mark.wide
def test_two_servers_commit_at_once(objects: ObjectStore, address: str) -> None:
    """Neither loses a commit, nor makes one twice, though no lock excludes one from the other."""
    each = 100
    failed: list[BaseException] = []

    def commit(first: int) -> None:
        try:
            mine = DeltaDatasets(address, storage_options=objects.options(), auto_optimize=None)
            for number in range(first, first + each):
                write(mine, number, 1, app=f"writer {first}", app_version=number)
        except BaseException as error:
            failed.append(error)

    writers = [threading.Thread(target=commit, args=(first,)) for first in (0, each)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(5 * WAIT)
    assert failed == []
    after = DeltaDatasets(address, storage_options=objects.options())
    assert after.describe("d").version == 2 * each - 1
    assert sorted(read(after)) == list(range(2 * each))


STAGES = """
import json, sys
from tests.spark.tables.test_object_folder import DeltaDatasets, staged
txn, receipt = staged(DeltaDatasets(sys.argv[1], storage_options=json.loads(sys.argv[2])), 0)
print(json.dumps([txn, receipt.to_json()]), flush=True)
sys.stdin.read()
"""


def test_a_server_that_is_killed_before_the_commit_is_replaced(
    objects: ObjectStore, address: str, store: DeltaDatasets
) -> None:
    """What it has uploaded is committed by another one; or goes, when it is old."""
    command = [sys.executable, "-c", STAGES, address, json.dumps(objects.options())]
    dead: list[tuple[str, Receipt]] = []
    for _ in range(2):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            txn, receipt = json.loads(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            process.wait(WAIT)
        dead.append((txn, Receipt.of(receipt)))
    (txn, receipt), (lost, _) = dead
    assert store.commit(txn, [receipt]) == store.commit(txn, [receipt]) == Committed(0, 10, 1)
    assert len(parquet(objects, address)) == 2
    store.expire(time.time() + TTL / 2)
    assert len(parquet(objects, address)) == 2
    store.expire(time.time() + TTL + 60)
    assert len(parquet(objects, address)) == 1
    assert read(store) == list(range(10))
    with pytest.raises(RiverError, match="has expired"):
        store.commit(lost, [receipt])
    assert not [key for key in objects.keys(address) if "/staged/" in key]


def test_a_commit_whose_answer_is_lost_is_made_once(
    far: DeltaDatasets, middle: Between, store: DeltaDatasets
) -> None:
    write(far, 0)
    lost: list[str] = []

    def lose(method: str, path: str) -> bool:
        if method == "PUT" and "/_delta_log/" in path and not lost:
            lost.append(path)
            return True
        return False

    middle.lose = lose
    assert write(far, 10).version == 1
    assert lost
    assert lost[0].endswith("/00000000000000000001.json")
    assert read(far) == read(store) == list(range(20))
    assert store.describe("d").version == 1


def test_a_commit_that_nobody_knows_of_is_made_once(
    objects: ObjectStore,
    address: str,
    middle: Between,
    store: DeltaDatasets,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its entry is there, and every answer is lost: nothing that it names is removed."""
    monkeypatch.setattr(object_folder, "PATIENCE", 0.0)
    far = DeltaDatasets(address, storage_options=objects.options(middle.port))
    txn, receipt = staged(far, 0)
    middle.lose = lambda method, path: method == "PUT" and "/_delta_log/" in path
    with pytest.raises(RiverError, match="see that it can be reached") as caught:
        far.commit(txn, [receipt])
    assert caught.value.code == "STORE_FAILED"
    table = table_of(far, "d")
    assert table.folder.in_doubt()
    table.clear(txn.rpartition(":")[2])
    assert len(parquet(objects, address)) == 1
    assert store.commit(txn, [receipt]) == Committed(0, 10, 1)
    assert read(store) == list(range(10))


@pytest.mark.parametrize("versions", [0, 1])
def test_a_commit_that_is_followed_by_an_outage_is_made(
    objects: ObjectStore,
    address: str,
    middle: Between,
    monkeypatch: pytest.MonkeyPatch,
    versions: int,
) -> None:
    """The store answered that the entry is there; nothing more is heard of it."""
    monkeypatch.setattr(object_folder, "PATIENCE", 0.0)
    far = DeltaDatasets(address, storage_options=objects.options(middle.port))
    for number in range(versions):
        write(far, 10 * number)
    txn, receipt = staged(far, 10 * versions)
    away: list[str] = []

    def lose(method: str, path: str) -> bool:
        if not away and method == "PUT" and "/_delta_log/" in path:
            away.append(path)
            return False
        return bool(away)

    middle.lose = lose
    assert far.commit(txn, [receipt]) == Committed(versions, 10, 1)
    assert len(away) == 1
    middle.lose = lambda method, path: False
    assert read(far) == list(range(10 * versions + 10))
    write(far, 10 * versions + 10)
    assert read(far) == list(range(10 * versions + 20))


def test_an_outage_is_waited_for(far: DeltaDatasets, middle: Between) -> None:
    """Requests are made again: those to stage and to read, and the one of the commit."""
    write(far, 0)
    middle.cuts = 4
    txn, receipt = staged(far, 10)
    middle.cuts = 4
    assert far.commit(txn, [receipt]).version == 1
    middle.cuts = 4
    assert read(far) == list(range(20))
    assert middle.cuts == 0


# Without a lock


def test_who_aborts_and_who_commits_agree(
    objects: ObjectStore,
    address: str,
    store: DeltaDatasets,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An abort comes between the last look of another server and its entry."""
    other = DeltaDatasets(address, storage_options=objects.options())
    write(store, 0)
    txn, receipt = staged(store, 10)
    add_entry, aborted = DeltaDirectory.add_entry, []

    def late(self: DeltaDirectory, *arguments: Any) -> bool:
        if self is table_of(store, "d") and not aborted:
            aborted.append(other.abort(txn))
        return add_entry(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaDirectory, "add_entry", late)
        with pytest.raises(RiverError, match="was aborted") as caught:
            store.commit(txn, [receipt])
    assert caught.value.code == "NO_TXN"
    assert aborted == [False]
    assert read(store) == read(other) == list(range(10))
    assert len(parquet(objects, address)) == 1
    assert store.history("d")[0].operation == "ABORT"
    txn, receipt = staged(store, 10)
    assert store.commit(txn, [receipt]).version == 2
    assert other.abort(txn) is True
    assert read(other) == list(range(20))


def add(datasets: DeltaDatasets, before: int, count: int) -> list[str]:
    """Add rows of an ingest client."""
    schema = datasets.ingest_target("d", "a").schema
    spans = {"a": Span(before, before + count)}
    return datasets.ingest("d", schema, [rows(before, count)], spans)


def test_rows_that_another_server_sweeps_are_not_acknowledged(
    store: DeltaDatasets, far: DeltaDatasets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does whose clock is ahead."""
    write(store, 100, 1)
    end = StagedPart.end

    def swept_end(part: StagedPart) -> Any:
        finished = end(part)
        far.expire(time.time() + 2 * TTL)
        return finished

    with monkeypatch.context() as sweeping:
        sweeping.setattr(StagedPart, "end", swept_end)
        with pytest.raises(RiverError, match="^BUSY: datasets/d was swept while"):
            add(store, 0, 3)
    assert read(far) == [100]
    assert add(store, 0, 3) == []
    assert read(far) == [100, 0, 1, 2]


def test_a_server_that_dies_while_it_sweeps_stops_no_ingest(
    store: DeltaDatasets, far: DeltaDatasets, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, 100, 1)
    assert add(store, 0, 3) == []

    def die(*arguments: Any) -> None:
        raise OSError("no more")

    with monkeypatch.context() as dying:
        dying.setattr(table_of(far, "d").staging, "drop", die)
        far.expire(time.time() + 2 * TTL)  # refuses what ingest has staged, and does not remove it
    assert add(store, 3, 2) == []
    assert read(far) == [100, 0, 1, 2, 3, 4]


def test_an_abort_before_there_is_a_table_leaves_the_files_to_sweeps(
    objects: ObjectStore, address: str, store: DeltaDatasets
) -> None:
    txn, receipt = staged(store, 0)
    assert store.abort(txn) is False
    with pytest.raises(RiverError, match="was aborted"):
        store.commit(txn, [receipt])
    assert len(parquet(objects, address)) == 1
    store.expire(time.time() + TTL + 60)
    assert objects.keys(address) == ["wsmux-store.json"]


# Uploads


def test_a_part_is_uploaded_in_pieces(
    objects: ObjectStore, address: str, far: DeltaDatasets, middle: Between
) -> None:
    """No more than a few pieces are held, and what is discarded leaves nothing."""
    noise = pa.array([os.urandom(1 << 20) for _ in range(14)], pa.binary())
    batch = pa.record_batch([noise], names=["noise"])
    txn = far.begin("d", "append", batch.schema).txn
    for finished in (False, True):
        part = far.open_part(txn, 0, 0, batch.schema)
        for at in range(batch.num_rows):
            part.write(batch.slice(at, 1))
        # In the background, while it is written.
        wait_for(lambda: any(way == "PUT" and "partNumber=" in path for way, path in middle.seen))
        if finished:
            receipt = part.finish(1, 1)
        part.discard()
        assert len(parquet(objects, address)) == finished
    far.commit(txn, [receipt])
    found = [b for one in far.describe("d").ranges for b in far.read(one.token).batches]
    assert pa.Table.from_batches(found).column(0).combine_chunks().equals(noise)


# The rest of what tables do


ENGINES = """
import json, sys, deltalake, polars
found = deltalake.DeltaTable(sys.argv[1]).to_pyarrow_table().column("id").to_pylist()
print(json.dumps([sorted(found), sorted(polars.read_delta(sys.argv[1])["id"].to_list())]))
"""


def test_other_engines_open_it_in_place(
    objects: ObjectStore, address: str, store: DeltaDatasets
) -> None:
    """After an abort, a join, a checkpoint and a vacuum; and older versions are there."""
    for start in (0, 10, 20):
        write(store, start)
    store.abort(staged(store, 90)[0])
    assert store.optimize("d").files_removed == 3
    table_of(store, "d").checkpoint()
    store.vacuum("d")
    write(store, 30)
    options = objects.options()
    variables = {name.upper(): value for name, value in options.items()}
    command = [sys.executable, "-c", ENGINES, f"{address}/datasets/d"]
    told = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, check=True)
    assert json.loads(told.stdout) == [list(range(40))] * 2
    again = DeltaDatasets(address, storage_options=options)
    assert read(again) == list(range(40))
    assert read(again, version=1) == list(range(20))


def test_files_are_skipped_by_their_statistics(far: DeltaDatasets, middle: Between) -> None:
    from wsmux.spark.store.filters import parse_filters

    for start in range(0, 50, 10):
        write(far, start)
    told = far.describe("d")
    del middle.seen[:]
    wanted = parse_filters([["id", ">=", 40]])
    found = [ids(far.read(one.token, filters=wanted).batches) for one in told.ranges]
    assert sum(found, []) == list(range(40, 50))
    assert len({path for _, path in middle.seen if path.endswith(".parquet")}) == 1


# What is wrong


def refusal_of(address: str, options: dict[str, str]) -> str:
    with pytest.raises(RiverError) as caught:
        DeltaDatasets(address, storage_options=options)
    assert caught.value.code == "STORE_FAILED"
    return str(caught.value.message)


def test_what_is_wrong_is_told_without_secrets(
    objects: ObjectStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = objects.options()
    assert refusal_of("s3://no-such-bucket/x", options) == (
        "there is no bucket no-such-bucket: make it, or name another one"
    )
    with ObjectStore(strict=True) as strict:
        words = refusal_of(f"s3://{BUCKET}/x", strict.options())
    assert words.startswith(f"s3://{BUCKET}/x refused the credentials (")
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of who may list, read" in words
    monkeypatch.setattr(object_folder, "PATIENCE", 0.1)
    gone = refusal_of(f"s3://{BUCKET}/x", {**options, "aws_endpoint_url": "http://127.0.0.1:9"})
    assert "s3://bucket-of-tests/x cannot be used, see that it can be reached: " in gone
    for said in (words, gone, caplog.text, repr(DeltaDatasets(objects.address(), **_(options)))):
        assert SECRET not in said
        assert KEY not in said


def _(options: dict[str, str]) -> dict[str, Any]:
    return {"storage_options": options}


def test_a_secret_in_what_the_store_says_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-environment")
    options = {"aws_secret_access_key": SECRET, "aws_region": "eu"}
    text = object_folder._hidden(f"{SECRET} of-the-environment eu", options)
    assert text == "*** *** eu"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"storage_options": {"aws_conditional_put": "disabled"}}, "must be etag"),
        ({"storage_options": {"aws_no_such_thing": "x"}}, "'aws_no_such_thing' is not valid"),
        ({"ttl": 60.0}, r"ttl must be at least 600 s in S3, not 60\.0"),
        ({"retention": None}, "retention is for topics, and there are none in S3"),
        ({"topics": "s3://b/p"}, r"is no store: pass topics="),
        ({"datasets": None}, "directory and datasets exclude each other"),
    ],
)
def test_wrong_arguments_are_told(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        serve_data(f"s3://{BUCKET}/x", **arguments)


def test_options_of_s3_are_not_for_directories(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="storage_options are for s3://BUCKET/PREFIX"):
        DeltaDatasets(tmp_path, storage_options={"aws_region": "x"})
    with pytest.raises(ValueError, match="only datasets can be in an object store"):
        SqliteTopics(f"s3://{BUCKET}/x")


def test_a_prefix_of_other_things_is_left_alone(objects: ObjectStore, address: str) -> None:
    import obstore

    at = obstore.store.S3Store(BUCKET, config=objects.options())
    obstore.put(at, f"{address.partition(BUCKET)[2].strip('/')}/thesis.txt", b"precious")
    with pytest.raises(RiverError, match="holds other things and is no store"):
        DeltaDatasets(address, storage_options=objects.options())
    assert objects.keys(address) == ["thesis.txt"]
