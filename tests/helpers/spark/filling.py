"""Write to the stores of a directory while the disk takes so much and no more; check what is kept.

Run as ``python -m tests.helpers.spark.filling KIND DIRECTORY HOW FROM TO STEP``, since the
limit ``file``, which no file may become longer than, is one of the process; ``disk`` leaves so many
bytes of the file system of the directory, which has to be small. It prints how many writes were
refused and how many went through.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from wsmux.rpc import RiverError
from wsmux.spark.store.datasets import DeltaDatasets
from wsmux.spark.topics.sqlite_topics import SqliteTopics

from .arrow_data import SCHEMA, ids, rows
from .topics import add, held

ROWS = 40

Limit = Callable[[int], AbstractContextManager[None]]


class Kept(Protocol):
    """A destination of rows."""

    def write(self, number: int) -> None:
        """Add the rows of a number; the same number may be tried again, and counts once."""

    def read(self) -> list[int]:
        """Return the ids that are kept."""


class Table:
    """Keep rows in a dataset, a transaction for each number."""

    def __init__(self, directory: Path) -> None:
        self._store = DeltaDatasets(directory)

    def write(self, number: int) -> None:
        begun = self._store.begin("d", "append", SCHEMA, "filling", number)
        if begun.done:
            return
        part = self._store.open_part(begun.txn, 0, 0, SCHEMA)
        try:
            part.write(rows(number * ROWS, ROWS))
            receipt = part.finish(1, 1)
        except BaseException:
            part.discard()
            raise
        self._store.commit(begun.txn, [receipt])

    def read(self) -> list[int]:
        ranges = self._store.describe("d").ranges
        return [each for one in ranges for each in ids(self._store.read(one.token).batches)]


class Topic:
    """Keep rows in a topic, a batch for each number."""

    def __init__(self, directory: Path) -> None:
        self._store = SqliteTopics(directory)
        self._store.create("t", SCHEMA, 1)

    def write(self, number: int) -> None:
        if not self._store.begin("t", "generator", number, SCHEMA).done:
            add(self._store, "t", number, ROWS, first=number * ROWS)

    def read(self) -> list[int]:
        return held(self._store, "t")


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Have the system refuse what makes any file longer."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def disk_with(size: int, directory: Path) -> Iterator[None]:
    """Use up the file system of a directory but for so many bytes."""
    system = os.statvfs(directory)
    filler = directory / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, system.f_bavail * system.f_frsize - size)
    try:
        yield
    finally:
        filler.unlink()


def fill(kept: Kept, limit: Limit, sizes: range) -> tuple[int, int]:
    """Try a write at each size, then again without a limit; return how many each ended with."""
    refused = done = 0
    wanted: list[int] = []
    for number, size in enumerate(sizes):
        new = list(range(number * ROWS, (number + 1) * ROWS))
        try:
            with limit(size):
                kept.write(number)
            done += 1
        except (OSError, RiverError):
            refused += 1
            if wanted:
                assert kept.read() in (wanted, wanted + new), f"limited to {size}"
            kept.write(number)
        wanted += new
        assert kept.read() == wanted, f"limited to {size}"
    return refused, done


def main() -> None:
    kind, place, how = sys.argv[1:4]
    directory = Path(place)
    kept = (Table if kind == "table" else Topic)(directory / "store")
    limit = functools.partial(disk_with, directory=directory) if how == "disk" else no_file_beyond
    refused, done = fill(kept, limit, range(*map(int, sys.argv[4:])))
    sys.stdout.write(f"{refused} {done}\n")


if __name__ == "__main__":
    main()
