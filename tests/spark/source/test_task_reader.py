"""What a task reads of ranges whose rows come late, or far apart. No session."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from wsmux.config import MIB
from wsmux.spark import Link, Recipe, SparkError, serve_data
from wsmux.spark.protocol import Code, refusal
from wsmux.spark.server import arrow_stream
from wsmux.spark.server.arrow_stream import ArrowSource, Limits, receive
from wsmux.spark.source import task_reader
from wsmux.spark.source.planning import ask_once
from wsmux.spark.source.task_reader import _limits, _resumed, read_batches
from wsmux.spark.source.task_writer import stage
from wsmux.spark.store.base import Table
from wsmux.spark.store.datasets import DeltaDatasets
from wsmux.spark.store.metadata import with_metadata
from wsmux.spark.store.schemas import schema_bytes
from wsmux.spark.tables import parquet_writer, stored_files

from ...helpers.spark.arrow_data import SCHEMA, ids, ipc, pa, rows
from ...helpers.spark.format_servers import quick
from ...helpers.timeouts import WAIT

pytestmark = pytest.mark.spark

HEADER = {"token": "any"}


class Given(DeltaDatasets):
    """Read what a test gives; each read takes the next of several iterators."""

    def __init__(self, *reads: Iterator[Any]) -> None:
        super().__init__()
        self._reads = iter(reads)
        self.skipped: list[int] = []

    def read(
        self,
        token: str,
        skip_rows: int = 0,
        columns: Sequence[str] | None = None,
        filters: Sequence[Any] = (),
    ) -> Table:
        self.skipped.append(skip_rows)
        return Table(SCHEMA, next(self._reads))


def test_the_answer_does_not_wait_for_rows() -> None:
    """The first may be found long after a client has given up waiting for an answer."""
    found = threading.Event()

    def late() -> Iterator[Any]:
        assert found.wait(WAIT)
        yield rows(0, 3)

    with serve_data(datasets=Given(late())) as server:
        try:
            stream, _ = quick(server.url, retries=0).link().ask_stream("read", **HEADER)
        finally:
            found.set()
        with stream:
            assert ids(receive(ArrowSource(stream, Limits()), Limits())[1]) == [0, 1, 2]


def test_batches_without_rows_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_stream, "SILENCE", -1.0)
    none = rows(0, 0)
    batches = [none, none, rows(0, 3), none, none, none, rows(3, 1), none, none]
    with serve_data(datasets=Given(iter(batches), iter(batches))) as server:
        recipe = quick(server.url, retries=0)
        assert ids(read_batches(recipe, HEADER, SCHEMA)) == [0, 1, 2, 3]
        with recipe.link().open_stream("read", **HEADER) as stream:  # as earlier clients
            found = receive(ArrowSource(stream, Limits()), Limits())[1]
            assert [batch.num_rows for batch in found] == [3, 1]


class CutStream(io.BytesIO):
    """A stream that is cut behind some bytes."""

    timeout: float | None = None

    def fill(self, target: Any) -> int:
        count = self.readinto(target)
        if not count:
            raise ConnectionResetError("cut")
        return count

    def reset(self) -> None:
        """Do nothing."""


class CutLink(Link):
    """Open streams that are all cut behind the same bytes."""

    def __init__(self, recipe: Recipe, data: bytes) -> None:
        super().__init__(recipe)
        self._data = data
        self.opened = 0

    def ask_stream(self, name: str | None = None, /, **header: Any) -> Any:
        self.opened += 1
        assert self.opened < 10, "it goes on for ever"
        return CutStream(self._data), {"ok": True}


def test_batches_without_rows_are_no_progress() -> None:
    """What is cut again and again behind them fails."""
    recipe = quick("ws://nowhere.invalid", retries=2)
    link = CutLink(recipe, ipc(SCHEMA, [rows(0, 0)])[:-8])
    with pytest.raises(SparkError, match=r"^\[NO_CONNECTION\] stream read: cut"):
        list(_resumed(link, HEADER, SCHEMA))
    assert link.opened == 3


def test_a_scan_ends_with_the_task_that_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_stream, "SILENCE", 0.05)
    ended = threading.Event()

    def endless() -> Iterator[Any]:
        try:
            yield rows(0, 100_000)
            while True:
                time.sleep(0.02)
                yield rows(0, 0)
        finally:
            ended.set()

    with serve_data(datasets=Given(endless())) as server:
        batches = read_batches(quick(server.url), HEADER, SCHEMA)
        assert next(batches).num_rows
        assert not ended.is_set()
        batches.close()  # type: ignore[attr-defined]  # a generator
        assert ended.wait(WAIT)


@pytest.mark.parametrize("kind", ["dataset", "topic"])
def test_a_row_that_was_taken_can_be_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large: the bound is the server's, and not that of the client."""
    monkeypatch.setattr(task_reader, "USUAL", Limits(batch_bytes=MIB))
    row = pa.record_batch([pa.array([7], pa.int64()), pa.array(["x" * 3 * MIB])], schema=SCHEMA)
    with serve_data(limits=Limits(batch_bytes=4 * MIB)) as server:
        recipe = quick(server.url)
        init: dict[str, Any] = {kind: "d", "schema": schema_bytes(SCHEMA)}
        if kind == "dataset":
            init["mode"] = "append"
        else:
            ask_once(recipe, kind, "create", **init)
        txn = ask_once(recipe, kind, "begin", **init)["txn"]
        header: dict[str, Any] = {"txn": txn, "partition": 0, "attempt": 0}
        receipt = stage(recipe, header, SCHEMA, [rows(0, 3), row, rows(8, 2)])
        assert receipt is not None
        ask_once(recipe, kind, "commit", txn=txn, receipts=[receipt.to_json()])
        if kind == "dataset":
            told = ask_once(recipe, kind, "describe", dataset="d", partitions=1)
            header = {"token": told["ranges"][0]["token"]}
        else:
            header = {"topic": "d", "partition": 0, "start": 0, "end": 6}
        assert ids(read_batches(recipe, header, SCHEMA)) == [0, 1, 2, 7, 8, 9]


def test_a_row_that_just_fits_can_be_read_with_more_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes more then than when it was taken."""
    monkeypatch.setattr(task_reader, "USUAL", Limits(batch_bytes=MIB))

    def row_of(length: int) -> Any:
        return pa.record_batch([pa.array([7], pa.int64()), pa.array(["x" * length])], schema=SCHEMA)

    room = MIB - pa.ipc.read_message(row_of(0).serialize()).body.size
    row = row_of(room)
    assert pa.ipc.read_message(row.serialize()).body.size == MIB
    with serve_data(limits=Limits(batch_bytes=MIB)) as server:
        recipe = quick(server.url)
        init: dict[str, Any] = {"topic": "t", "schema": schema_bytes(SCHEMA)}
        ask_once(recipe, "topic", "create", **init)
        txn = ask_once(recipe, "topic", "begin", **init)["txn"]
        receipt = stage(recipe, {"txn": txn, "partition": 0, "attempt": 0}, SCHEMA, [row])
        assert receipt is not None
        ask_once(recipe, "topic", "commit", txn=txn, receipts=[receipt.to_json()])
        span = {"topic": "t", "partition": 0, "start": 0, "end": 1, "metadata": True}
        assert ids(read_batches(recipe, span, with_metadata(SCHEMA))) == [7]


def test_what_a_server_tells_of_its_bounds_is_believed_within_bounds() -> None:
    """And a little more, as for padding."""
    for told, accepted in (
        ({}, 65 * MIB),
        ({"batch_bytes": "many"}, 65 * MIB),
        ({"batch_bytes": -1}, 65 * MIB),
        ({"batch_bytes": MIB}, 65 * MIB),
        ({"batch_bytes": 100 * MIB}, 101 * MIB),
        ({"batch_bytes": 2**62}, 2**31),
    ):
        assert _limits(told) == Limits(batch_bytes=accepted)


def test_what_cannot_be_read_at_all_is_told_with_its_code() -> None:
    def failing() -> Iterator[Any]:
        raise refusal(Code.CORRUPT, "x is damaged")
        yield

    with serve_data(datasets=Given(failing())) as server:
        with pytest.raises(SparkError) as caught:
            list(read_batches(quick(server.url), HEADER, SCHEMA))
        error = caught.value
    assert (error.code, error.what, error.message) == ("CORRUPT", "stream read", "x is damaged")


# What comes as it is stored


class CutOnce(Link):
    """Open streams of which each but the last is cut behind some bytes."""

    def __init__(self, recipe: Recipe, *behind: int) -> None:
        super().__init__(recipe)
        self._behind = iter(behind)
        self.asked: list[dict[str, Any]] = []

    def ask_stream(self, name: str | None = None, /, **header: Any) -> Any:
        self.asked.append(header)
        stream, told = super().ask_stream(name, **header)
        left = next(self._behind, None)
        return (stream if left is None else Severed(stream, left)), told


class Severed:
    """A stream that is cut behind some bytes."""

    def __init__(self, stream: Any, left: int) -> None:
        self._stream = stream
        self._left = left
        self.timeout: float | None = None
        self.reset = stream.reset

    def fill(self, target: Any) -> int:
        self._stream.timeout = WAIT
        count: int = self._stream.fill(memoryview(target)[: self._left])
        self._left -= count
        if count < len(target):
            raise ConnectionResetError("cut")
        return count


def large(folder: Path) -> tuple[DeltaDatasets, str]:
    """Return datasets of which one has 30 row groups of 1,000 rows, and a token of all of it."""
    datasets = DeltaDatasets(folder)
    begun = datasets.begin("large", "create", SCHEMA)
    part = datasets.open_part(begun.txn, 0, 0, SCHEMA)
    for start in range(0, 30_000, 1000):
        part.write(rows(start, 1000))
    datasets.commit(begun.txn, [part.finish(0, 0)])
    (found,) = datasets.describe("large").ranges
    return datasets, found.token


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_writer, "GROUP_ROWS", 1000)
    monkeypatch.setattr(stored_files, "LEAST", 0)


def test_files_are_not_decoded_by_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_groups: None
) -> None:
    datasets, token = large(tmp_path)
    monkeypatch.setattr(stored_files, "read_file", None)
    with serve_data(datasets=datasets) as server:
        recipe = quick(server.url, retries=0)
        assert ids(read_batches(recipe, {"token": token}, SCHEMA)) == list(range(30_000))
        filters = [["id", ">", 29_990]]
        found = ids(read_batches(recipe, {"token": token, "filters": filters}, SCHEMA))
        assert found == list(range(29_991, 30_000)), "what matches is found by the server"


def test_a_client_that_decodes_nothing_gets_arrow(tmp_path: Path, small_groups: None) -> None:
    """As earlier ones; nor does an earlier server send anything else."""
    datasets, token = large(tmp_path)
    with serve_data(datasets=datasets) as server:
        link = quick(server.url, retries=0).link()
        stream, told = link.ask_stream("read", token=token)
        assert told["stored"] is True
        with stream:
            found = receive(ArrowSource(stream, Limits()), Limits())[1]
            assert ids(found) == list(range(30_000))


def test_a_cut_within_what_is_stored_is_gone_over(tmp_path: Path, small_groups: None) -> None:
    """The next stream begins with the first row that was not yielded."""
    datasets, token = large(tmp_path)
    with serve_data(datasets=datasets) as server:
        link = CutOnce(quick(server.url, retries=3), 20_000, 0, 60_000)
        found = ids(_resumed(link, {"token": token}, SCHEMA))
        link.close()
    assert found == list(range(30_000))
    skipped = [header["skip_rows"] for header in link.asked]
    assert len(skipped) == 4
    assert skipped[0] == 0 < skipped[1] == skipped[2] < skipped[3]
    assert all(rows % 1000 == 0 for rows in skipped)


def test_a_damaged_file_that_is_passed_on_fails_the_read(
    tmp_path: Path, small_groups: None
) -> None:
    datasets, token = large(tmp_path)
    (path,) = (tmp_path / "datasets" / "large").glob("*.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with serve_data(datasets=datasets) as server:
        recipe = quick(server.url)
        with pytest.raises(SparkError, match=r"^\[CORRUPT\] .*datasets/large/.* is damaged"):
            list(read_batches(recipe, {"token": token}, SCHEMA))
