"""What bulk is read from and written to: our data server, and clients of it without Spark.

The Parquet files of its table are served by Arrow Flight as well; see ``flight.py``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from wsmux.config import MIB

DATASET, WRITTEN, TOPIC = "bulk", "written", "heads"

# Two for each task slot.
PARTS = 4

COLUMNS = 8
ROW_BYTES = 8 * COLUMNS
SCHEMA_TEXT = ", ".join(f"c{number} bigint" for number in range(COLUMNS))

# 256 MB: a job over them takes as long as several times what Spark needs to start it.
BATCH_ROWS, BATCHES = 10_000, 400
ROWS_THERE = BATCH_ROWS * BATCHES

# Of the streams of a client without Spark: what the option of that name is within Spark.
WINDOW = 4 * MIB

# Seconds that what is staged lives without a write, and what was overwritten stays.
TTL = 20.0


def make_batches(count: int) -> list[Any]:
    """Return record batches of rows that differ."""
    import pyarrow as pa

    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(COLUMNS)])
    made = []
    for batch in range(count):
        first = batch * BATCH_ROWS
        columns = [range(first + number, first + number + BATCH_ROWS) for number in range(COLUMNS)]
        made.append(pa.record_batch([pa.array(each, pa.int64()) for each in columns], schema))
    return made


@contextmanager
def serve_bulk() -> Iterator[dict[str, str]]:
    """Serve a dataset of ``PARTS`` files and an idle topic; yield the address and the folder."""
    from wsmux.spark import DeltaDatasets, SqliteTopics, serve_data

    batches = make_batches(BATCHES)
    with tempfile.TemporaryDirectory(prefix="wsmux-bulk-") as folder:
        datasets, topics = DeltaDatasets(folder, ttl=TTL), SqliteTopics()
        topics.create(TOPIC, batches[0].schema)
        txn = datasets.begin(DATASET, "create", batches[0].schema).txn
        receipts = []
        for number in range(PARTS):
            part = datasets.open_part(txn, number, 0, batches[0].schema)
            for batch in batches[number::PARTS]:
                part.write(batch)
            receipts.append(part.finish(0, 0))
        datasets.commit(txn, receipts)
        del batches
        with serve_data(datasets=datasets, topics=topics, sweep=1.0) as server:
            yield {"data": server.url, "folder": f"{folder}/datasets/{DATASET}"}


def read_all(url: str) -> int:
    """Read the dataset, a stream for each file, one after the other; return the rows."""
    from wsmux.spark import connection
    from wsmux.spark.source.planning import ask_once
    from wsmux.spark.source.task_reader import read_batches
    from wsmux.spark.store.schemas import schema_of

    recipe = connection(url, window=WINDOW)
    told = ask_once(recipe, "dataset", "describe", dataset=DATASET, partitions=PARTS)
    schema = schema_of(told["schema"])
    found = (read_batches(recipe, {"token": each["token"]}, schema) for each in told["ranges"])
    return sum(batch.num_rows for batches in found for batch in batches)


def write_all(url: str, batches: Sequence[Any]) -> None:
    """Replace a dataset by record batches, in one stream."""
    from wsmux.spark import connection
    from wsmux.spark.source.planning import ask_once
    from wsmux.spark.source.task_writer import stage
    from wsmux.spark.store.schemas import schema_bytes

    recipe, schema = connection(url, window=WINDOW), batches[0].schema
    init = {"dataset": WRITTEN, "mode": "overwrite", "schema": schema_bytes(schema)}
    txn = ask_once(recipe, "dataset", "begin", **init)["txn"]
    receipt = stage(recipe, {"txn": txn, "partition": 0, "attempt": 0}, schema, batches)
    assert receipt is not None
    ask_once(recipe, "dataset", "commit", txn=txn, receipts=[receipt.to_json()])
