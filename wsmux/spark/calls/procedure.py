"""Call River procedures from Spark: of rows, of columns, of whole batches, or as uploads.

``rpc(connection(url), "service.procedure")`` names a procedure. Its methods return functions that
pickle, for Spark to run:

- ``.rows()`` for ``rdd.mapPartitions``: rows in, results out;
- ``.columns("ip", into="geo")`` for ``df.mapInArrow``: a column more;
- ``.arrow()`` for ``df.mapInArrow``: a message for each Arrow batch, any batches back;
- ``.upload()`` for ``foreachPartition``: the rows of a partition as the requests of one upload.

Calls are pipelined: many are under way at once, on the one connection of the worker. With
``batch_rows`` above 1, or with keys, a message carries many rows, and the procedure must be made
for it: by ``batched``, or in any language by the form that ``batches`` tells. With 1 any procedure
of any River server will do.

What is promised: a row is handled at least once. A task that Spark runs again calls again, and so
does a retry after a lost connection, since nobody knows how far the first call came. With
``key=`` each row carries the value of a column that the server can tell repetitions by, as
``Deduplicator`` does, within its bounds.

Nothing tells the server which task calls: the connection is shared by the tasks of a worker. Put
into the rows what it has to know. Errors name stage, partition and attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...config import MIB
from ..connection_settings import Recipe
from ..ddl import ddl_of
from .arrow_batches import ArrowCalls
from .columns import ColumnCalls
from .pipeline import Plan
from .rows import Key, RowCalls
from .task_calls import Target
from .upload import UploadCalls

__all__ = ["Procedure", "rpc"]


def rpc(conn: Recipe, procedure: str, name: str | None = None) -> Procedure:
    """Return what calls a procedure: ``rpc(conn, "geo.lookup")``.

    Args:
        conn: how to connect; see ``connection``.
        procedure: ``"service.procedure"``, parted at the last dot.
        name: the procedure, if ``procedure`` is the service alone.

    Raises:
        ValueError: a name is missing.
    """
    service, _, rest = (procedure, "", name) if name is not None else procedure.rpartition(".")
    if not service or not rest:
        raise ValueError(f"a procedure is named 'service.procedure', not {procedure!r}")
    return Procedure(Target(conn, service, rest))


@dataclass(frozen=True, slots=True)
class Procedure:
    """A procedure of a server; made by ``rpc``."""

    target: Target

    def __repr__(self) -> str:
        return f"<Procedure {self.target} of {self.target.recipe!r}>"

    def rows(
        self,
        *,
        max_in_flight: int = 256,
        batch_rows: int = 1,
        key: Key | None = None,
        ordered: bool = True,
        on_error: Literal["raise", "result"] = "raise",
        timeout: float | None = None,
        retries: int | None = None,
        max_bytes: int = 64 * MIB,
    ) -> RowCalls:
        """Return a function for ``rdd.mapPartitions``: rows in, results out.

        Args:
            max_in_flight: messages under way at once. A server takes 1,024 unless told otherwise.
            batch_rows: rows of a message; above 1 for procedures made for it.
            key: names rows for a ``Deduplicator``: a field's name or number, or a function.
            ordered: results come in the order of the rows.
            on_error: ``"raise"`` raises for the first row that failed; ``"result"`` makes results
                of ``rpc.Ok`` and ``rpc.Err``.
            timeout: seconds of one call, the connection's ``call_timeout`` by default.
            retries: repetitions after a fault that may pass, the connection's by default.
            max_bytes: about what the messages under way may cost.
        """
        if on_error not in ("raise", "result"):
            raise ValueError(f"on_error must be 'raise' or 'result', not {on_error!r}")
        plan = self._plan(max_in_flight, max_bytes, retries, ordered)
        return RowCalls(
            self.target, plan, self._timeout(timeout), _rows(batch_rows), key, on_error == "raise"
        )

    def columns(
        self,
        *columns: str,
        into: str,
        into_type: Any = None,
        error_col: str | None = None,
        max_in_flight: int = 256,
        batch_rows: int = 64,
        key: str | None = None,
        ordered: bool = True,
        timeout: float | None = None,
        retries: int | None = None,
        max_bytes: int = 64 * MIB,
    ) -> ColumnCalls:
        """Return a function for ``df.mapInArrow`` that adds a column of results.

        ``call.on(df)`` applies it; ``df.mapInArrow(call, call.schema(df.schema))`` is the same.

        Args:
            columns: what is sent of each row: the value of one column, or an object of several;
                with none, of all.
            into: the new column.
            into_type: its type: Spark's DDL such as ``"double"`` or ``"struct<city:string>"``, or
                a type of pyspark's or pyarrow's. Without one it is a string: text stays as it is,
                anything else becomes JSON.
            error_col: a column for what went wrong with a row, null where all is well; ``into`` is
                null in such a row. Without it the first such row fails the task. A connection that
                is lost for good fails the task in any case.
            key: a column that names rows for a ``Deduplicator``.
            ordered: batches come in their order; within a batch rows always do.
            max_in_flight, batch_rows, timeout, retries, max_bytes: as for ``rows``.
        """
        if into == error_col:
            raise ValueError(f"into and error_col are both {into!r}")
        plan = self._plan(max_in_flight, max_bytes, retries, ordered)
        return ColumnCalls(
            self.target,
            plan,
            self._timeout(timeout),
            _rows(batch_rows),
            columns,
            into,
            None if into_type is None else ddl_of(into_type),
            error_col,
            key,
        )

    def arrow(
        self,
        *,
        max_in_flight: int = 4,
        ordered: bool = True,
        timeout: float | None = None,
        retries: int | None = None,
        max_bytes: int = 64 * MIB,
    ) -> ArrowCalls:
        """Return a function for ``df.mapInArrow``: a message for each Arrow batch.

        The procedure gets an Arrow IPC stream of one batch as bytes, and returns one of any
        batches; ``arrow_batches`` makes one of a function of a batch. Their schema is what
        ``mapInArrow`` is told. Arguments are those of ``rows``.
        """
        plan = self._plan(max_in_flight, max_bytes, retries, ordered)
        return ArrowCalls(self.target, plan, self._timeout(timeout))

    def upload(
        self,
        *,
        init: Any = None,
        key: Key | None = None,
        timeout: float | None = None,
        retries: int = 0,
        rows_per_call: int = 10_000,
    ) -> UploadCalls:
        """Return a function for ``foreachPartition``: rows as the requests of an upload.

        The server's response is waited for, and its error raised. A lost session raises too:
        Spark runs the task again, from its first row. With ``retries`` the upload itself is
        repeated; then rows need a key, and a partition becomes several uploads, since what may
        have to be sent again is kept. It returns the responses as a list, for ``mapPartitions``.

        Args:
            init: that of the procedure.
            key: as for ``rows``; requests are then ``{"$row": row, "$key": key}``.
            timeout: seconds that a write or the response may take.
            retries: repetitions after a fault that may pass.
            rows_per_call: rows of one upload, with ``retries``.
        """
        if retries and key is None:
            raise ValueError("retrying an upload needs key=, or rows could count twice")
        if retries < 0:
            raise ValueError("retries must not be negative")
        return UploadCalls(
            self.target, init, key, self._timeout(timeout), retries, _rows(rows_per_call)
        )

    def _plan(self, max_in_flight: int, max_bytes: int, retries: int | None, ordered: bool) -> Plan:
        recipe = self.target.recipe
        return Plan(
            max_in_flight=max_in_flight,
            max_bytes=max_bytes,
            retries=recipe.retries if retries is None else retries,
            backoff=recipe.retry_backoff,
            ordered=ordered,
        )

    def _timeout(self, timeout: float | None) -> float:
        seconds = self.target.recipe.call_timeout if timeout is None else timeout
        if not seconds > 0:
            raise ValueError(f"timeout must be above 0, not {timeout!r}")
        return seconds


def _rows(count: int) -> int:
    if count < 1:
        raise ValueError(f"a message carries at least one row, not {count!r}")
    return count
