"""Load engines that read Delta tables. Whoever imports this is skipped without them.

What reads by another process needs the fixture ``engines``, which starts it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wsmux.config import MIB
from wsmux.rpc import RiverError
from wsmux.spark.store.datasets import DeltaDatasets

from ..programs import package
from .arrow_data import pa

__all__ = [
    "ENGINES",
    "assert_same",
    "by_polars",
    "deltalake",
    "duckdb",
    "plain",
    "read_by",
    "running",
]

deltalake: Any = package("deltalake", "spark")
duckdb: Any = package("duckdb", "spark-test")
package("polars", "spark-test")

# Bytes of a table that is compared: more take the time and the memory of the tests.
MAX_BYTES = 4 * MIB

ENGINES = ("deltalake", "polars", "duckdb")

# Its threads and what they wait on are there for good, so before the guards count.
with tempfile.TemporaryDirectory() as _directory:
    deltalake.write_deltalake(_directory, pa.table({"id": [1]}))
    deltalake.DeltaTable(_directory).create_checkpoint()


class _Reader:
    """Hold the process that reads."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.helpers.spark.engine_reader"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.duckdb_by = self.process.stdout.readline().decode().strip()

    def read(self, engine: str, path: str, ids: tuple[int, ...]) -> Any:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        asked = {"engine": engine, "path": path, "ids": ids}
        stdin.write(json.dumps(asked).encode() + b"\n")
        stdin.flush()
        size = int(stdout.readline())
        data = stdout.read(abs(size))
        assert size > 0, f"{engine} cannot read {path}: {data.decode()}"
        return pa.ipc.open_stream(data).read_all()


_readers: list[_Reader] = []


@contextmanager
def running() -> Iterator[str]:
    """Start the process that reads; give how DuckDB reads there."""
    reader = _Reader()
    _readers.append(reader)
    try:
        yield reader.duckdb_by
    finally:
        _readers.remove(reader)
        reader.process.communicate(timeout=60)


def read_by(engine: str, path: str, *ids: int) -> Any:
    """Read a table, or the rows of some ids, by an engine of ``ENGINES``."""
    return _readers[-1].read(engine, path, ids)


def by_polars(path: str, *ids: int) -> Any:
    return read_by("polars", path, *ids)


def assert_same(directory: Path, unread: dict[str, str] | None = None) -> None:
    """Check that all engines read the tables of all stores below a directory as they are read here.

    Those that are damaged, and cannot be read here, and very large ones are left out.

    Args:
        unread: the engines that cannot read these tables, and why.
    """
    for log in sorted(directory.rglob("_delta_log")):
        home = log.parent
        if home.parent.name == "datasets":
            _assert_same(home, unread or {})


def _assert_same(home: Path, unread: dict[str, str]) -> None:
    store = DeltaDatasets(home.parent.parent, sync=False, auto_optimize=None)
    try:
        told = store.describe(home.name)
        if told.bytes > MAX_BYTES:
            return
        batches = [each for one in told.ranges for each in store.read(one.token).batches]
    except RiverError:
        return
    wanted = plain(pa.Table.from_batches(batches, told.schema))
    for engine in ENGINES:
        if engine not in unread:
            found = plain(read_by(engine, str(home)))
            assert found == wanted, f"{engine} reads {home.name} otherwise"


def plain(found: Any) -> list[str]:
    """Return rows as sorted text, maps as their pairs, times without how a zone is called."""

    def told(value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {"key", "value"}:
                return value["key"], told(value["value"])
            return {name: told(value[name]) for name in sorted(value)}
        if isinstance(value, list | tuple):
            return tuple(told(each) for each in value)
        return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value

    return sorted(str(told(row)) for row in found.to_pylist())
