"""Write to datasets and topics for Spark in batch queries: all of a job, or nothing.

The planning process begins a transaction. Each task stages its partition invisibly and returns the
server's receipt. The commit names the receipts of the attempts that count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ..protocol import DATASET_SERVICE, TOPIC_SERVICE, Receipt
from ..store.schemas import schema_bytes
from .options import Options, bad_option
from .planning import ask_once, commit_once, planning
from .task_writer import stage
from .types import arrow_schema

__all__ = ["BatchWriter", "Written"]


class Written(WriterCommitMessage):
    """Carry the receipt from a task to the commit, ``None`` if it had no rows."""

    def __init__(self, receipt: Receipt | None) -> None:
        self.receipt = receipt


class BatchWriter(DataSourceArrowWriter):
    """Write the rows of one job; made by the planning process, and copied to tasks and the commit.

    Args:
        options: the options of the write.
        schema: the schema of the rows.
        overwrite: replace existing rows.

    Raises:
        SparkError: with the server's code; nothing was written.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._recipe = options.recipe()
        self._service = TOPIC_SERVICE if options.topic else DATASET_SERVICE
        with planning(options):
            self._schema = arrow_schema(schema)
        begun = self._begin(overwrite)
        self._txn: str = begun["txn"]
        # The job was already committed, by an earlier run.
        self._done: bool = begun["done"]

    def _begin(self, overwrite: bool) -> dict[str, Any]:
        options = self._options
        init: dict[str, Any] = {"schema": schema_bytes(self._schema)}
        if options.topic:
            if overwrite:
                raise bad_option("topics only support appending; use the mode append")
            init["topic"] = options.topic
            if options.app is not None:
                init |= {"query": options.app, "batch": options.app_version}
        else:
            mode = "overwrite" if overwrite else "append"
            init |= {"dataset": options.dataset, "mode": mode}
            if options.merge_schema:
                init["merge_schema"] = True
            if options.overwrite_schema:
                init["overwrite_schema"] = True
            if options.partition_by is not None:
                init["partition_by"] = list(options.partition_by)
            if options.replace_where is not None:
                init["replace_where"] = options.replace_where
            if options.app is not None:
                init |= {"app": options.app, "app_version": options.app_version}
        return ask_once(self._recipe, self._service, "begin", **init)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage a partition; see ``stage``."""
        if self._done:
            return Written(None)
        context = TaskContext.get()
        header = {
            "txn": self._txn,
            "partition": context.partitionId(),
            "attempt": context.attemptNumber(),
        }
        batch_rows = self._options.batch_rows
        receipt = stage(self._recipe, header, self._schema, iterator, batch_rows)
        return Written(receipt)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all rows visible at once; idempotent. See ``commit_once``.

        Raises:
            SparkError: with the server's code.
        """
        if not self._done:
            receipts = [
                message.receipt
                for message in messages
                if isinstance(message, Written) and message.receipt is not None
            ]
            advice = "look for them before you write them again, or run a job again with the same "
            advice += "txnAppId and txnVersion, which writes them once"
            commit_once(self._recipe, self._service, self._txn, receipts, advice)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard all staged parts, including those of lost attempts; does not undo a commit.

        Raises:
            SparkError: with the server's code; staged parts then expire with their time to live.
        """
        if not self._done:
            ask_once(self._recipe, self._service, "abort", txn=self._txn)
