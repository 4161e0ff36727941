"""Add the batches of a query to a topic, each of them once for each checkpoint.

Spark makes a writer again for each thing that it does with one, so none of them can hold what a
batch is called. A batch is known by the id of its query, which is kept in the checkpoint, and its
number; the server makes one transaction of the two, whoever asks. A task begins that, stages its
partition, and brings back the receipt with the transaction's name, which the commit works with. A
batch that was committed before a crash, and comes again after it, is known as ``done``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...rpc import RiverError
from ..errors import SparkError
from ..protocol import TOPIC_SERVICE, Receipt
from ..store.schemas import schema_bytes
from .options import Options, bad_option
from .planning import ask, ask_once, refused
from .task_writer import stage
from .types import arrow_schema

__all__ = ["StagedPart", "StreamWriter"]

# What Spark tells a task of the query it runs for.
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class StagedPart(WriterCommitMessage):
    """What a task tells the commit.

    Attributes:
        txn: the transaction of the batch.
        done: it was committed before.
        receipt: of what was staged, ``None`` if there were no rows.
    """

    def __init__(self, txn: str, done: bool, receipt: Receipt | None) -> None:
        self.txn = txn
        self.done = done
        self.receipt = receipt


class StreamWriter(DataSourceStreamArrowWriter):
    """Write the batches of one query; does nothing until it is asked to.

    Args:
        options: of the write.
        schema: of the rows.
        overwrite: Spark's word for the output mode ``complete``, which is refused.

    Raises:
        SparkError: BAD_OPTION or WRONG_TYPE.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise bad_option("topics only support appending; use the output mode append")
        self._options = options
        self._recipe = options.recipe()
        try:
            self._schema = arrow_schema(schema)
        except RiverError as error:
            raise refused(self._recipe, error, options.target) from None

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage a partition of a batch, unless the batch was committed before; see ``stage``.

        Raises:
            SparkError: with the server's code, such as NO_TOPIC or WRONG_SCHEMA, or what ``stage``
                fails with.
        """
        options, context = self._options, TaskContext.get()
        query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        if query is None or batch is None:
            text = "this task is of no streaming query; write batches with df.write"
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
        receipt = stage(
            self._recipe,
            header,
            self._schema,
            iterator,
            batch_rows=options.batch_rows,
            frame_bytes=options.frame_bytes,
        )
        return StagedPart(begun["txn"], False, receipt)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Make a batch visible at once; done again, it changes nothing.

        Raises:
            SparkError: with the server's code.
        """
        parts = _parts(messages)
        # If one task has found the batch committed, it is, whatever others have staged since.
        if parts and not any(part.done for part in parts):
            receipts = [part.receipt.to_json() for part in parts if part.receipt is not None]
            self._ask("commit", parts[0].txn, receipts=receipts)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Drop what is staged of a batch; a commit stays.

        What tasks have staged of which none has come to its end, goes with its time to live.

        Raises:
            SparkError: with the server's code.
        """
        parts = _parts(messages)
        if parts and not any(part.done for part in parts):
            self._ask("abort", parts[0].txn)

    def _ask(self, procedure: str, txn: str, **init: Any) -> None:
        ask_once(self._recipe, TOPIC_SERVICE, procedure, txn=txn, **init)


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    return [message for message in messages if isinstance(message, StagedPart)]
