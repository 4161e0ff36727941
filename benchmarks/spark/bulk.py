"""What bulk is read from and written to: our data server, and Arrow Flight, with the same rows.

Both hold everything in memory, so that no disk is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

DATASET, TOPIC = "bulk", "heads"

# Two for each task slot.
PARTS = 4

COLUMNS = 8
ROW_BYTES = 8 * COLUMNS
SCHEMA_TEXT = ", ".join(f"c{number} bigint" for number in range(COLUMNS))

# 256 MB: a job over them takes as long as several times what Spark needs to start it.
BATCH_ROWS, BATCHES = 10_000, 400
ROWS_THERE = BATCH_ROWS * BATCHES

# Seconds that what is staged lives without a write, and what was overwritten stays in memory.
TTL = 20.0


def _batches() -> list[Any]:
    import pyarrow as pa

    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(COLUMNS)])
    made = []
    for batch in range(BATCHES):
        first = batch * BATCH_ROWS
        columns = [range(first + number, first + number + BATCH_ROWS) for number in range(COLUMNS)]
        made.append(pa.record_batch([pa.array(each, pa.int64()) for each in columns], schema))
    return made


@contextmanager
def serve_bulk() -> Iterator[dict[str, str]]:
    """Serve both; yield the addresses."""
    from wsmux.spark import DeltaDatasets, SqliteTopics, serve_data

    from .flight import FlightServer

    batches = _batches()
    schema = batches[0].schema
    datasets, topics = DeltaDatasets(ttl=TTL), SqliteTopics()
    topics.create(TOPIC, schema)
    txn = datasets.begin(DATASET, "create", schema).txn
    receipts = []
    for number in range(PARTS):
        part = datasets.open_part(txn, number, 0, schema)
        for batch in batches[number::PARTS]:
            part.write(batch)
        receipts.append(part.finish(0, 0))
    datasets.commit(txn, receipts)
    with (
        serve_data(datasets=datasets, topics=topics, sweep=1.0) as server,
        FlightServer(batches, PARTS) as flight,
    ):
        yield {"data": server.url, "flight": f"grpc://127.0.0.1:{flight.port}"}
