"""What a task reads of ranges whose rows come late, or far apart. No session."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from wsmux.spark import Link, Recipe, SparkError, serve_data
from wsmux.spark.protocol import Code, refusal
from wsmux.spark.server import arrow_stream
from wsmux.spark.source.task_reader import _resumed, read_batches
from wsmux.spark.store.base import Table
from wsmux.spark.store.datasets import DeltaDatasets

from ...helpers.spark.arrow_data import SCHEMA, ids, ipc, rows
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


def after(seconds: float, *batches: Any) -> Iterator[Any]:
    for batch in batches:
        time.sleep(seconds)
        yield batch


def test_rows_may_take_longer_than_a_connection_to_come() -> None:
    store = Given(after(2.0, rows(0, 3)))
    with serve_data(datasets=store) as server:
        recipe = quick(server.url, connect_timeout=0.5, retries=0)
        assert ids(read_batches(recipe, HEADER, SCHEMA)) == [0, 1, 2]


def test_rows_may_be_further_apart_than_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sends batches without rows meanwhile, and what it has found by then."""
    monkeypatch.setattr(arrow_stream, "SILENCE", 0.05)
    none = rows(0, 0)
    store = Given(after(0.4, *[none] * 5, rows(0, 3), *[none] * 5, rows(3, 1)))
    with serve_data(datasets=store) as server:
        recipe = quick(server.url, call_timeout=1.5, retries=0)
        assert ids(read_batches(recipe, HEADER, SCHEMA)) == [0, 1, 2, 3]
    assert store.skipped == [0]


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

    def open_stream(self, name: str | None = None, /, **header: Any) -> Any:
        self.opened += 1
        assert self.opened < 10, "it goes on for ever"
        return CutStream(self._data)


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


def test_what_cannot_be_read_at_all_is_told_with_its_code() -> None:
    def failing() -> Iterator[Any]:
        raise refusal(Code.CORRUPT, "x is damaged")
        yield

    with serve_data(datasets=Given(failing())) as server:
        with pytest.raises(SparkError) as caught:
            list(read_batches(quick(server.url), HEADER, SCHEMA))
        error = caught.value
    assert (error.code, error.what, error.message) == ("CORRUPT", "stream read", "x is damaged")
