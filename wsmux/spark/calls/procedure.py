"""Call River procedures from Spark: with rows, columns, whole batches, or as uploads.

``rpc(connection(url), "service.procedure")`` names a procedure. Its methods return picklable
functions for Spark to run:

- ``.rows()`` for ``rdd.mapPartitions``: rows in, results out;
- ``.columns("ip", into="geo")`` for ``df.mapInArrow``: adds a column;
- ``.arrow()`` for ``df.mapInArrow``: one message per Arrow batch, any batches back;
- ``.upload()`` for ``foreachPartition``: the rows of a partition as the requests of one upload.

Calls are pipelined: many are in flight at once, on the worker's one connection. With ``batch_rows``
above 1, or with keys, a message carries many rows, and the procedure must support that: by
``batched``, or in any language by the format described in ``batches``. With 1, any procedure of any
River server will do.

A row is handled at least once: a task that Spark runs again calls again, and so does a retry after
a lost connection, since the outcome of the first call is unknown. With ``key=``, each row carries
the value of a column by which the server can recognise repetitions, as ``Deduplicator`` does within
its bounds.

The connection is shared by the tasks of a worker, so the server cannot tell which task calls; put
what it needs into the rows. Errors name stage, partition and attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...config import MIB
from ...runtime.arguments import check_seconds
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
    """Return an object that calls a procedure: ``rpc(conn, "geo.lookup")``.

    Args:
        conn: the connection settings; see ``connection``.
        procedure: ``"service.procedure"``, split at the last dot.
        name: the procedure, if ``procedure`` is only the service.

    Raises:
        ValueError: a name is missing.
    """
    service, _, rest = (procedure, "", name) if name is not None else procedure.rpartition(".")
    if not service or not rest:
        raise ValueError(f"expected a procedure as 'service.procedure', got {procedure!r}")
    return Procedure(Target(conn, service, rest))


@dataclass(frozen=True, slots=True)
class Procedure:
    """Call a procedure of a server; made by ``rpc``."""

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
            max_in_flight: messages in flight at once. A server accepts 1,024 by default.
            batch_rows: rows per message; above 1 only for procedures that support it.
            key: identifies rows for a ``Deduplicator``: a field's name or number, or a function.
            ordered: yield results in the order of the rows.
            on_error: ``"raise"`` raises for the first row that failed; ``"result"`` wraps results
                in ``rpc.Ok`` and ``rpc.Err``.
            timeout: seconds per call, by default the connection's ``call_timeout``.
            retries: repetitions after transient errors, by default the connection's.
            max_bytes: approximate memory of the messages in flight.
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

        Apply it with ``call.on(df)``, or ``df.mapInArrow(call, call.schema(df.schema))``.

        Args:
            columns: the columns to send: one as its value, several as an object; all if none is
                given.
            into: the name of the new column.
            into_type: its type, as Spark's DDL such as ``"double"`` or ``"struct<city:string>"``,
                or as a type of pyspark or pyarrow. By default that of the procedure, which ``on``
                and ``schema`` ask the server for: ``batched`` tells it by schema or annotation.
                One that tells none, such as any that is not made by ``batched``, makes strings. In
                a string, text is kept, and anything else becomes JSON. In any other type, a result
                that would be changed to fit it is WRONG_TYPE.
            error_col: the name of a column for errors, null for rows that succeeded; ``into`` is
                null for rows that failed. Without it the first such row fails the task. A
                connection that stays lost fails the task in any case.
            key: a column that identifies rows for a ``Deduplicator``.
            ordered: yield batches in order; the rows of a batch always are.
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
            asks=True,
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
        """Return a function for ``df.mapInArrow`` that sends one message per Arrow batch.

        The procedure gets an Arrow IPC stream of one batch as bytes, and returns one of any
        batches; ``arrow_batches`` makes it from a function of a batch. The batches must have the
        schema that ``mapInArrow`` is given. Arguments are those of ``rows``.
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
        """Return a function for ``foreachPartition`` that sends rows as the requests of an upload.

        It waits for the server's response and raises its error, or one for a lost session: Spark
        then runs the task again, from its first row. With ``retries`` the upload itself is
        repeated; rows then need a key, and a partition is split into several uploads, since rows
        are kept for repetition. The function returns the responses as a list, for
        ``mapPartitions``.

        Args:
            init: the init message of the procedure.
            key: as for ``rows``; requests are then ``{"$row": row, "$key": key}``.
            timeout: seconds for each write, and for the response.
            retries: repetitions after transient errors.
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
        check_seconds(timeout=seconds)
        return seconds


def _rows(count: int) -> int:
    if count < 1:
        raise ValueError(f"expected at least one row per message, got {count!r}")
    return count
