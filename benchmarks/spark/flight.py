"""Arrow Flight, the peer of bulk: a server, and a source and sink of Spark's over it.

Both are made as ours are: a partition is a stream of record batches, a write ends with a receipt,
and a process has one connection. The server keeps what was written last, as ours does.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)


class FlightServer(flight.FlightServerBase):
    """Serve record batches, dealt out to so many parts."""

    def __init__(self, batches: list[Any], parts: int) -> None:
        self._batches, self._parts = batches, parts
        self._written: dict[bytes, list[Any]] = {}
        super().__init__("grpc://127.0.0.1:0")

    def do_get(self, context: Any, ticket: Any) -> Any:
        share = self._batches[int(ticket.ticket) :: self._parts]
        reader = pa.RecordBatchReader.from_batches(self._batches[0].schema, share)
        return flight.RecordBatchStream(reader)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        batches = [chunk.data for chunk in reader]
        self._written[descriptor.command] = batches
        writer.write(str(sum(batch.num_rows for batch in batches)).encode())


@functools.cache
def _client(url: str) -> Any:
    return flight.connect(url)


class FlightSource(DataSource):
    """Read and write by the options ``url`` and ``parts``."""

    @classmethod
    def name(cls) -> str:
        return "bench-flight"

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(self.options["url"], int(self.options["parts"]))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer(self.options["url"])


class _Reader(DataSourceReader):
    def __init__(self, url: str, parts: int) -> None:
        self._url, self._parts = url, parts

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        ticket = flight.Ticket(str(partition.value).encode())
        for chunk in _client(self._url).do_get(ticket):
            yield chunk.data


class _Writer(DataSourceArrowWriter):
    def __init__(self, url: str) -> None:
        self._url = url

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        first = next(iterator)
        name = flight.FlightDescriptor.for_command(str(context.partitionId()).encode())
        writer, receipts = _client(self._url).do_put(name, first.schema)
        with writer:
            writer.write_batch(first)
            for batch in iterator:
                writer.write_batch(batch)
            writer.done_writing()
            receipts.read()
        return WriterCommitMessage()
