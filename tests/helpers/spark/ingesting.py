"""Write rows by ingest clients, and read back what a dataset has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wsmux.spark import DeltaDatasets, IngestClient, ingest
from wsmux.spark.store.base import DatasetStore

from ..timeouts import WAIT
from .arrow_data import SCHEMA, ids
from .engines import deltalake

__all__ = ["Gated", "Producer", "held", "opened", "row"]


assert deltalake  # loaded before the guards count


def row(number: int) -> dict[str, Any]:
    return {"id": number, "word": f"w{number % 5}"}


def opened(url: str, dataset: str = "d", **options: Any) -> IngestClient:
    """Open a client that soon finds a server again, and waits long for one."""
    quick = {"retries": 50, "retry_backoff": 0.02, "connect_timeout": 1.0, "call_timeout": WAIT}
    return ingest(url, dataset, **{"create": SCHEMA, **quick, **options})


def held(source: Path | DatasetStore, dataset: str = "d") -> list[int]:
    """Return the ids that a dataset has, in the order of its rows."""
    store = DeltaDatasets(source) if isinstance(source, Path) else source
    ranges = store.describe(dataset).ranges
    return [each for one in ranges for each in ids(store.read(one.token).batches)]


class Gated(DeltaDatasets):
    """A store in which a test does something before a group is committed, and behind that.

    Attributes:
        before, behind: called with the clients of the group. groups: those that were committed.
    """

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(directory, **options)
        self.before: Callable[[Sequence[str]], object] = lambda clients: None
        self.behind: Callable[[Sequence[str]], object] = lambda clients: None
        self.groups: list[list[str]] = []

    def ingest(self, dataset: str, schema: Any, batches: Any, spans: Any) -> list[str]:
        self.before([*spans])
        done = super().ingest(dataset, schema, batches, spans)
        self.groups.append([*spans])
        self.behind([*spans])
        return done


class Producer(threading.Thread):
    """Write row after row until told to stop; now and then wait until what is written is durable.

    Attributes:
        done: how many rows were written, all of which are durable once it has ended.
    """

    def __init__(self, url: str, number: int) -> None:
        super().__init__(name=f"test-producer-{number}")
        self.client = opened(url)
        self.number = number
        self.stopping = threading.Event()
        self.done = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with self.client as client:
                while not self.stopping.is_set():
                    many = self.done % 3 + 1
                    first = self.number * 1_000_000 + self.done
                    offset = client.write([row(first + place) for place in range(many)])
                    self.done += many
                    assert offset == self.done
                    if self.done % 4:
                        assert client.wait_durable(offset) >= offset
        except BaseException as error:
            self.failure = error

    @property
    def ids(self) -> list[int]:
        """The ids that it has written, in order."""
        return [self.number * 1_000_000 + place for place in range(self.done)]
