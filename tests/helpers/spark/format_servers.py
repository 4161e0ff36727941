"""Read and write by ``format("wsmux")``, at servers that a test can look into and upset."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark import DataServer, SparkError, connection, error_from, serve_data
from wsmux.spark.connection_settings import Recipe
from wsmux.spark.source.planning import ask_once
from wsmux.spark.store.base import DAY, Committed, Table
from wsmux.spark.store.datasets import DeltaDatasets
from wsmux.spark.store.schemas import schema_bytes

__all__ = [
    "PATIENCE",
    "Watched",
    "failure",
    "filled",
    "load",
    "opts",
    "quick",
    "save",
    "served",
]

# Seconds that a job may take on a busy machine.
PATIENCE = 90.0


class Watched(DeltaDatasets):
    """A store that notes what is asked, and does harm when told to.

    Attributes:
        reads: the arguments of each read. aborted: what was aborted, and what was answered.
        commits: how many there were.
        commit_error: raised by commits. too_late: raised behind the commit, which counts.
        expire_first: a day and more goes by before each commit.
        staging: set when a part is begun. on_finish: called when one is finished, the receipt
            still to be sent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, Any, Any]] = []
        self.aborted: list[tuple[str, bool]] = []
        self.commits = 0
        self.commit_error: RiverError | None = None
        self.too_late = False
        self.expire_first = False
        self.staging = threading.Event()
        self.on_finish: Callable[[], object] = lambda: None

    def read(
        self,
        token: str,
        skip_rows: int = 0,
        columns: Sequence[str] | None = None,
        filters: Sequence[Any] = (),
    ) -> Table:
        self.reads.append((skip_rows, columns, [str(each) for each in filters]))
        return super().read(token, skip_rows, columns, filters)

    def open_part(self, *arguments: Any) -> Any:
        part = super().open_part(*arguments)
        finish = part.finish

        def finish_and_tell(size: int, crc: int) -> Any:
            receipt = finish(size, crc)
            self.on_finish()
            return receipt

        part.finish = finish_and_tell
        self.staging.set()
        return part

    def commit(self, txn: str, receipts: Sequence[Any]) -> Committed:
        self.commits += 1
        if self.commit_error is not None and not self.too_late:
            raise self.commit_error
        if self.expire_first:
            self.expire(time.time() + 2 * DAY)
        done = super().commit(txn, receipts)
        if self.commit_error is not None:
            raise self.commit_error
        return done

    def abort(self, txn: str) -> bool:
        committed = super().abort(txn)
        self.aborted.append((txn, committed))
        return committed


@contextmanager
def served(**options: Any) -> Iterator[tuple[DataServer, Watched]]:
    """Serve a store."""
    store = Watched()
    with serve_data(datasets=store, **options) as server:
        yield server, store


def quick(url: str, **options: Any) -> Recipe:
    return connection(url, **{"connect_timeout": 5.0, "retry_backoff": 0.01, **options})


def filled(
    url: str, dataset: str, *parts: Sequence[Any], mode: str = "append", **options: Any
) -> None:
    """Write a dataset, a part for each sequence of batches."""
    from wsmux.spark.source.task_writer import stage

    recipe, schema = quick(url), parts[0][0].schema
    init = {"dataset": dataset, "mode": mode, "schema": schema_bytes(schema), **options}
    txn = ask_once(recipe, "dataset", "begin", **init)["txn"]
    receipts = []
    for place, batches in enumerate(parts):
        header = {"txn": txn, "partition": place, "attempt": 0}
        receipt = stage(recipe, header, schema, batches)
        assert receipt is not None
        receipts.append(receipt.to_json())
    ask_once(recipe, "dataset", "commit", txn=txn, receipts=receipts)


def opts(url: str, **options: Any) -> dict[str, str]:
    given = {"url": url, "dataset": "d", "connectTimeout": 5, "retryBackoff": 0.05, **options}
    return {name: str(value) for name, value in given.items() if value is not None}


def load(spark: Any, url: str, **options: Any) -> Any:
    return spark.read.format("wsmux").options(**opts(url, **options)).load()


def save(frame: Any, url: str, mode: str = "append", **options: Any) -> None:
    frame.write.format("wsmux").mode(mode).options(**opts(url, **options)).save()


def failure(action: Callable[[], object]) -> SparkError:
    """Return what a job failed with, as its last line tells it."""
    with pytest.raises(Exception, match="SparkError") as caught:
        action()
    found = error_from(caught.value)
    assert found is not None
    return found
