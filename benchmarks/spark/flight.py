"""Arrow Flight, the peer of bulk: a server of Parquet files, clients, a source and sink of Spark.

What both servers do to a file is the same, as far as it can be:

- A read is a stream for each of the same files, in batches of as many rows. Flight's server has
  Arrow scan the file, all in C++; ours reads it by Arrow as well, and looks at the checksum of each
  page.
- A write is a file for each stream, by the same writer of Parquet, and an fsync of file and folder.
  Its receipt is the name. A commit writes one more file, which names them, with the same two fsyncs
  and a rename. It keeps no log and no statistics, and checks nothing: ours gathers a checksum,
  validates each batch, and commits to a Delta table.
- A process has one connection. A partition of Spark is a stream.
"""

from __future__ import annotations

import functools
import json
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import dataset, flight
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from wsmux.runtime.files import sync_path
from wsmux.spark.store.base import READ_BYTES
from wsmux.spark.tables.parquet_writer import ParquetWriter

from .bulk import PARTS, ROW_BYTES


class FlightServer(flight.FlightServerBase):
    """Serve the Parquet files of a folder by their numbers; write to another one."""

    def __init__(self, folder: str, target: str) -> None:
        self._files = sorted(Path(folder).glob("*.parquet"))
        assert len(self._files) == PARTS
        self._target = Path(target)
        super().__init__("grpc://127.0.0.1:0")

    def do_get(self, context: Any, ticket: Any) -> Any:
        file = dataset.dataset(str(self._files[int(ticket.ticket)]))
        return flight.RecordBatchStream(
            file.scanner(batch_size=READ_BYTES // ROW_BYTES).to_reader()
        )

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        path = self._target / f"{uuid.uuid4().hex}.parquet"
        file = ParquetWriter(pa.OSFile(str(path), "wb"), reader.schema)
        for chunk in reader:
            file.write(chunk.data)
        file.close()
        sync_path(path)
        sync_path(self._target)
        writer.write(path.name.encode())

    def do_action(self, context: Any, action: Any) -> list[Any]:
        """Have the files of some receipts be all that there is."""
        names = json.loads(action.body.to_pybytes())
        made, table = self._target / "new.json", self._target / "table.json"
        made.write_text(json.dumps(names))
        sync_path(made)
        made.rename(table)
        sync_path(self._target)
        for each in self._target.glob("*.parquet"):
            if each.name not in names:
                each.unlink()
        return []


@contextmanager
def serve_flight(folder: str) -> Iterator[str]:
    """Serve the Parquet files of a folder; yield the address."""
    with (
        tempfile.TemporaryDirectory(prefix="wsmux-flight-") as target,
        FlightServer(folder, target) as server,
    ):
        yield f"grpc://127.0.0.1:{server.port}"


@functools.cache
def _client(url: str) -> Any:
    return flight.connect(url)


def _batches(url: str, part: int) -> Iterator[Any]:
    for chunk in _client(url).do_get(flight.Ticket(str(part).encode())):
        yield chunk.data


def _put(url: str, schema: Any, batches: Iterator[Any]) -> str:
    """Write one file; return its receipt."""
    writer, receipts = _client(url).do_put(flight.FlightDescriptor.for_command(b""), schema)
    with writer:
        for batch in batches:
            writer.write_batch(batch)
        writer.done_writing()
        return bytes(receipts.read()).decode()


def _commit(url: str, receipts: Sequence[str]) -> None:
    list(_client(url).do_action(flight.Action("commit", json.dumps(receipts).encode())))


def read_all(url: str) -> int:
    """Read all files, a stream for each, one after the other; return the rows."""
    return sum(batch.num_rows for part in range(PARTS) for batch in _batches(url, part))


def write_all(url: str, batches: Sequence[Any]) -> None:
    """Have record batches be all that was written, in one stream."""
    _commit(url, [_put(url, batches[0].schema, iter(batches))])


class FlightSource(DataSource):
    """Read and write by the option ``url``."""

    @classmethod
    def name(cls) -> str:
        return "bench-flight"

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(self.options["url"])

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer(self.options["url"])


class _Reader(DataSourceReader):
    def __init__(self, url: str) -> None:
        self._url = url

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in range(PARTS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _batches(self._url, partition.value)


class _Receipt(WriterCommitMessage):
    def __init__(self, name: str) -> None:
        self.name = name


class _Writer(DataSourceArrowWriter):
    def __init__(self, url: str) -> None:
        self._url = url

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        first = next(iterator)

        def batches() -> Iterator[Any]:
            yield first
            yield from iterator

        return _Receipt(_put(self._url, first.schema, batches()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._url, [each.name for each in messages if isinstance(each, _Receipt)])
