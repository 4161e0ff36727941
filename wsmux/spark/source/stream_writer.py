"""Append the batches of a streaming query to a topic, each once per checkpoint.

Spark makes a new writer for each operation, so a writer cannot keep the id of a batch. A batch is
identified by the id of its query, which is in the checkpoint, and its number; the server derives
one transaction from the two for all tasks. A task begins that, stages its partition, and returns
the receipt with the transaction id, which the commit uses. A batch that was committed before a
crash, and is repeated after it, is reported as ``done``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ..errors import SparkError
from ..protocol import TOPIC_SERVICE, Receipt
from ..store.schemas import schema_bytes
from .options import Options, bad_option
from .planning import ask, ask_once, commit_once, planning
from .task_writer import stage
from .types import arrow_schema

__all__ = ["StagedPart", "StreamWriter"]

# Spark's local properties with the query and batch of a task.
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class StagedPart(WriterCommitMessage):
    """Carry the result of a task to the commit.

    Attributes:
        txn: the transaction of the batch.
        done: whether the batch was already committed.
        receipt: the receipt of the staged part, ``None`` if it had no rows.
    """

    def __init__(self, txn: str, done: bool, receipt: Receipt | None) -> None:
        self.txn = txn
        self.done = done
        self.receipt = receipt


class StreamWriter(DataSourceStreamArrowWriter):
    """Write the batches of one query; connects on first use.

    Args:
        options: the options of the write.
        schema: the schema of the rows.
        overwrite: set by Spark for the output mode ``complete``, which is refused.

    Raises:
        SparkError: BAD_OPTION or WRONG_TYPE.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise bad_option("topics only support appending; use the output mode append")
        self._options = options
        self._recipe = options.recipe()
        with planning(options):
            self._schema = arrow_schema(schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage a partition of a batch, unless the batch was already committed; see ``stage``.

        Raises:
            SparkError: with the server's code, such as NO_TOPIC or WRONG_SCHEMA, or that of
                ``stage``.
        """
        options, context = self._options, TaskContext.get()
        query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        if query is None or batch is None:
            text = "this task belongs to no streaming query; use df.write for batch writes"
            raise SparkError("NO_QUERY", text, options.target)
        begun = ask(
            self._recipe.link(),
            TOPIC_SERVICE,
            "begin",
            topic=options.topic,
            query=query,
            batch=int(batch),
            schema=schema_bytes(self._schema),
        )
        if begun["done"]:
            return StagedPart(begun["txn"], True, None)
        header = {
            "txn": begun["txn"],
            "partition": context.partitionId(),
            "attempt": context.attemptNumber(),
        }
        receipt = stage(self._recipe, header, self._schema, iterator, options.batch_rows)
        return StagedPart(begun["txn"], False, receipt)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Make a batch visible at once; idempotent. See ``commit_once``.

        Raises:
            SparkError: with the server's code.
        """
        parts = _parts(messages)
        # If one task found the batch committed, it is, whatever others have staged since.
        if parts and not any(part.done for part in parts):
            receipts = [part.receipt for part in parts if part.receipt is not None]
            advice = "start the query again from its checkpoint, which writes them once"
            commit_once(self._recipe, TOPIC_SERVICE, parts[0].txn, receipts, advice)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Discard the staged parts of a batch; does not undo a commit.

        If no task has finished, its transaction is unknown here, and staged parts expire with their
        time to live.

        Raises:
            SparkError: with the server's code.
        """
        parts = _parts(messages)
        if parts and not any(part.done for part in parts):
            ask_once(self._recipe, TOPIC_SERVICE, "abort", txn=parts[0].txn)


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    return [message for message in messages if isinstance(message, StagedPart)]
