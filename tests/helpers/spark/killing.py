"""Kill data servers at any moment while others write and read; compare what is there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import wsmux
from wsmux import rpc
from wsmux.rpc import RiverError
from wsmux.runtime.deadline import Deadline
from wsmux.spark.store.datasets import DeltaDatasets
from wsmux.spark.topics.sqlite_topics import SqliteTopics

from .arrow_data import SCHEMA, ids, rows
from .bulk import call, get, put, schema_of
from .clients import WAIT

# Rows of a part, parts of a batch.
ROWS, PARTS = 5, 3
BATCH = ROWS * PARTS

# Soon found out that a server is gone, soon found again.
QUICK = rpc.Options(session_disconnect_grace=0.5, backoff_base=0.02, backoff_max=0.1)

# What a client may see of a server that dies. Anything else fails the test.
DEATH = (wsmux.WsmuxError, OSError, EOFError)


def excuse(error: Exception, *codes: str) -> None:
    """Raise an error of a call that no death explains."""
    if isinstance(error, RiverError) and error.code not in ("UNEXPECTED_DISCONNECT", *codes):
        raise error


class Nursery:
    """Start servers of one directory, always on the same port, and kill them."""

    def __init__(self, directory: Path, sweep: float = 0.2) -> None:
        command = [sys.executable, "-m", "tests.helpers.spark.nursery", str(directory), str(sweep)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.port = 0
        self.pid = 0
        self.start()

    def start(self, after: int = 0) -> None:
        """Start a server, which dies after so many changes to the file system if told so."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self.port} {after}\n".encode())
        self.port, self.pid = (int(word) for word in self._line().split())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode()

    def wait_dead(self) -> None:
        """Wait until the server is no more; the port is free then."""
        assert self._line() == "dead\n"

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        with suppress(ProcessLookupError):  # it may have died by itself
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(WAIT)


@contextmanager
def client(url: str) -> Iterator[tuple[rpc.Client, wsmux.Connection]]:
    with (
        rpc.connect(url, options=QUICK) as calls,
        wsmux.connect(url, timeout=WAIT) as streams,
    ):
        yield calls, streams


def batch_rows(writer: int, number: int) -> list[Any]:
    """Return the parts of a batch; its ids tell which one it is."""
    first = (writer * 1_000_000 + number) * BATCH
    return [rows(first + place * ROWS, ROWS) for place in range(PARTS)]


class Writer(threading.Thread):
    """Write batch after batch until told to stop, each until it is known to be committed."""

    def __init__(self, url: str, number: int, begin: Callable[..., Any], service: str) -> None:
        super().__init__(name=f"test-writer-{number}")
        self.url = url
        self.number = number
        self.begin = begin
        self.service = service
        self.chosen = random.Random(number)
        self.stopping = threading.Event()
        self.done = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.write(self.done)
                self.done += 1
        except BaseException as error:
            self.failure = error

    def write(self, number: int) -> None:
        patience: Deadline | None = None  # there is none to lose while servers are killed
        while patience is None or not patience.expired():
            if self.stopping.is_set() and patience is None:
                patience = Deadline(WAIT)
            txn = ""
            try:
                with client(self.url) as (calls, streams):
                    begun = self.begin(calls, self.number, number)
                    if begun["done"]:
                        return
                    txn = begun["txn"]
                    parts = batch_rows(self.number, number)
                    receipts = [put(streams, txn, at, part) for at, part in enumerate(parts)]
                    call(calls, f"{self.service}.commit", txn=txn, receipts=receipts)
                    return
            except DEATH as error:
                excuse(error)
            if txn and self.chosen.random() < 0.3 and self.abort(txn):
                return
            self.stopping.wait(0.01)  # nobody listens for a moment
        raise AssertionError(f"batch {number} was never written")

    def abort(self, txn: str) -> bool:
        """Give up a transaction whose end is not known; tell whether it was committed."""
        try:
            with client(self.url) as (calls, _):
                return bool(call(calls, f"{self.service}.abort", txn=txn)["committed"])
        except DEATH:
            return False


def begin_dataset(calls: rpc.Client, writer: int, number: int) -> Any:
    app = {"app": f"w{writer}", "app_version": number}
    schema = schema_of(SCHEMA)
    return call(calls, "dataset.begin", dataset="d", mode="append", schema=schema, **app)


def begin_topic(calls: rpc.Client, writer: int, number: int) -> Any:
    query = f"w{writer}"
    schema = schema_of(SCHEMA)
    return call(calls, "topic.begin", topic="t", query=query, batch=number, schema=schema)


class Reader(threading.Thread):
    """Look at what can be seen, all the time: only whole batches may be."""

    def __init__(self, url: str) -> None:
        super().__init__(name="test-reader")
        self.url = url
        self.stopping = threading.Event()
        self.looks = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.look()
        except BaseException as error:
            self.failure = error

    def look(self) -> None:
        try:
            with client(self.url) as (calls, streams):
                told = call(calls, "dataset.describe", dataset="d", partitions=2)
                found = []
                for one in told["ranges"]:
                    found += ids(get(streams, token=one["token"])[1])
                assert_whole(found)
                heads = call(calls, "topic.describe", topic="t")
                found = []
                for place, end in enumerate(heads["latest"]):
                    found += ids(get(streams, topic="t", partition=place, start=0, end=end)[1])
                assert_whole(found)
                self.looks += 1
        except DEATH as error:
            excuse(error, "NO_DATASET")


def assert_whole(found: list[int]) -> None:
    """Check that every batch is there whole, and once."""
    assert len(found) == len(set(found)), "doubled"
    counts = Counter(each // BATCH for each in found)
    assert set(counts.values()) <= {BATCH}, "half a batch is seen"


def survive(directory: Path, kills: int, seed: int) -> None:
    chosen = random.Random(seed)
    nursery = Nursery(directory)
    threads: list[Any] = []
    try:
        with client(nursery.url) as (calls, _):
            call(calls, "topic.create", topic="t", schema=schema_of(SCHEMA), partitions=2)
        threads += [Writer(nursery.url, at, begin_dataset, "dataset") for at in range(2)]
        threads += [Writer(nursery.url, at, begin_topic, "topic") for at in range(2)]
        threads += [Reader(nursery.url)]
        for thread in threads:
            thread.start()
        for _ in range(kills // 2):
            threads[0].stopping.wait(chosen.uniform(0.0, 0.4))  # the moment is any
            nursery.kill()
            nursery.wait_dead()
            nursery.start(after=chosen.randrange(1, 100))
            nursery.wait_dead()
            nursery.start()
        for thread in threads:
            thread.stopping.set()
        for thread in threads:
            thread.join(2 * WAIT)
            assert not thread.is_alive()
    finally:
        for thread in threads:
            thread.stopping.set()
        nursery.close()
    for thread in threads:
        if thread.failure is not None:
            raise thread.failure
    check(directory, threads)


def check(directory: Path, threads: list[Any]) -> None:
    """Compare the directory with what the writers know to be committed."""
    datasets, topics = DeltaDatasets(directory), SqliteTopics(directory)
    found = [
        each
        for one in datasets.describe("d").ranges
        for each in ids(datasets.read(one.token).batches)
    ]
    heads = topics.heads("t")
    streamed = [
        each
        for place, end in enumerate(heads.latest)
        for each in ids(topics.read("t", place, 0, end).batches)
    ]
    for service, seen in (("dataset", found), ("topic", streamed)):
        writers = [each for each in threads if isinstance(each, Writer) and each.service == service]
        wanted = [
            row
            for each in writers
            for number in range(each.done)
            for part in batch_rows(each.number, number)
            for row in ids([part])
        ]
        assert wanted, "nothing was written at all"
        assert sorted(seen) == sorted(wanted)
