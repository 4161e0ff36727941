"""Write rows to a dataset of a data server from any program, without Spark.

::

    with wsmux.spark.ingest("ws://127.0.0.1:8765/", "orders") as rows:
        offset = rows.write({"id": 1, "word": "one"})
        rows.wait_durable(offset)

It needs pyarrow. What is written is numbered: an offset counts the rows of a client. The server
commits what many clients send at once, some milliseconds later, and tells each client how many of
its rows are durable. What is not is kept here and sent again when the connection was lost, from the
row on that the server asks for: each row is in the dataset once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..config import MIB
from ..exceptions import ForkedError
from ..rpc import RiverError
from ..runtime import fork
from ..runtime.arguments import check_seconds
from ..runtime.closing import Leaving
from ..runtime.deadline import Deadline
from ..runtime.lazy_imports import pa
from .connection_settings import Link, Recipe, connection
from .ingest_channel import Outbox, temporary_id
from .ingest_rows import RowConverter
from .protocol import MAX_CLIENT, Code
from .server.arrow_stream import pieces
from .tables.partitions import split

__all__ = ["MAX_UNACKNOWLEDGED", "IngestClient", "ingest"]

MAX_UNACKNOWLEDGED = 8 * MIB

# Bytes of a record batch that is sent, about: some go while others are made.
PIECE = MIB


def ingest(
    server: str | Recipe,
    dataset: str,
    *,
    client_id: str | None = None,
    create: Any = None,
    max_unacknowledged: int = MAX_UNACKNOWLEDGED,
    timeout: float | None = None,
    **options: Any,
) -> IngestClient:
    """Connect to a data server, and return a client that writes rows to a dataset.

    Clients of one process with equal options share a connection, and for a dataset a stream of it.

    Args:
        server: its URL, or what ``connection`` returns.
        client_id: an id of your own, for a program that goes on where it ended: ``offset`` then
            says how many of its rows are durable, and so which to write next. The dataset remembers
            it for good. One client at a time may use it. By default a random one, which the server
            remembers for its ``ttl``, a day.
        create: a pyarrow schema with which to make the dataset if there is none.
        max_unacknowledged: bytes of rows that are kept until they are durable, beyond which
            ``write`` waits.
        timeout: seconds that each call waits at most, unless it has its own; ``call_timeout`` of
            the connection by default.
        options: those of ``connection``, for a URL. How often and how long it tries to connect
            again is theirs too: ``retries``, ``retry_backoff`` and ``connect_timeout``.

    Raises:
        SparkError: NO_DATASET, WRONG_SCHEMA or another code of the server; or the server cannot be
            reached.
        ValueError: an argument is invalid. TypeError: options belong to the given settings.
    """
    if isinstance(server, Recipe) and options:
        raise TypeError(f"{', '.join(options)}: set these in connection()")
    recipe = server if isinstance(server, Recipe) else connection(server, **options)
    if client_id is None:
        client_id = temporary_id()
    if not 0 < len(client_id) <= MAX_CLIENT or not client_id.isprintable():
        text = f"client_id must be 1 to {MAX_CLIENT} printable characters, not {client_id!r:.80}"
        raise ValueError(text)
    if not max_unacknowledged > 0:
        raise ValueError(f"max_unacknowledged must be above 0 bytes, not {max_unacknowledged!r}")
    limit = recipe.call_timeout if timeout is None else timeout
    check_seconds(timeout=limit)
    return IngestClient(recipe.link(), dataset, client_id, create, max_unacknowledged, limit)


class IngestClient(Leaving):
    """Write rows to a dataset; made by ``ingest``. All methods may be called from any thread.

    Two threads for all clients of a dataset send, read what is acknowledged, and connect again. A
    client that is not closed writes what it has as long as the process lives. In a forked child it
    cannot be used: each call raises ``ForkedError``; open one there. After Ctrl-C in a call it can
    be used further; what ``write`` has numbered by then is sent, and ``written`` tells.

    Attributes:
        dataset: as given. schema: the dataset's, to which rows are converted.
    """

    def __init__(
        self,
        link: Link,
        dataset: str,
        client_id: str,
        create: Any,
        max_unacknowledged: int,
        timeout: float,
    ) -> None:
        self.dataset = dataset
        self._link = link
        self._timeout = timeout
        self._closed = self._forked = False
        fork.register(self)
        self._outbox = Outbox(link, dataset, client_id, create, max_unacknowledged)
        self.schema = self._outbox.schema
        self._converter = RowConverter(self.schema)

    def __repr__(self) -> str:
        return f"<IngestClient {self.dataset} durable={self.offset} written={self.written}>"

    def _leave(self, error: BaseException | None) -> None:
        """Close; after an exception at once, whether what was written is durable or not."""
        if error is None:
            self.close()
        else:
            self._end()

    def forked(self) -> None:
        """Make it unusable in a forked child; see ``runtime.fork``."""
        self._forked = True

    @property
    def client_id(self) -> str:
        """As given, or a random one: another one once the dataset has forgotten that."""
        return self._outbox.client_id

    @property
    def offset(self) -> int:
        """How many rows of this client are durable, those of earlier programs with its id too."""
        return self._outbox.durable

    @property
    def written(self) -> int:
        """The offset after the last row that was written."""
        return self._outbox.written

    # Writing

    def write(self, rows: Any, timeout: float | None = None) -> int:
        """Queue rows to be sent; return the offset after the last one.

        Blocks only while there is no room for more unacknowledged bytes. All rows are checked
        before any is taken. Those of one call may become visible by several commits, in order.

        Args:
            rows: a dict with a value for each column, a list of dicts, a ``pyarrow.RecordBatch`` or
                ``Table``. timeout: seconds to wait for room.

        Raises:
            SparkError: NO_COLUMN or WRONG_TYPE, with the column, what came and what was expected;
                nothing was taken. TOO_LARGE for a row above the bound of the server. TIMEOUT; then
                ``written`` tells which rows were taken. Or the client has failed.
            ValueError: it is closed. ForkedError: it is of the parent process.
        """
        self._check()
        try:
            batches = list(self._checked(rows))
        except RiverError as error:
            what = f"ingest {self.dataset}"
            raise self._link.error(error.code, error.message, what) from None
        limit = Deadline(self._timeout if timeout is None else timeout)
        end = self.written
        for batch in batches:
            end = self._outbox.put(batch, limit)
        return end

    def _checked(self, rows: Any) -> Iterator[Any]:
        """Yield rows as batches of a suitable size, not copied if they have the right types."""
        most, partition_by = self._outbox.batch_bytes, self._outbox.partition_by
        for whole in self._converter.batches(rows):
            if partition_by:
                for _ in split(whole, partition_by):
                    pass  # raises for values that no partition can have
            for batch in pieces(whole, min(PIECE, most // 2)):
                size = pa.ipc.get_record_batch_size(batch) if batch.num_rows == 1 else 0
                if size > most // 2:
                    text = f"a row takes {size} bytes, up to {most // 2} are accepted"
                    raise RiverError(Code.TOO_LARGE, text)
                if batch.num_rows:
                    yield batch

    def wait_durable(self, offset: int | None = None, timeout: float | None = None) -> int:
        """Wait until all rows up to an offset are committed and safe; return the durable offset.

        Args:
            offset: what ``write`` returned; all that was written by default. timeout: seconds.

        Raises:
            SparkError: TIMEOUT; or the client has failed. ValueError: the offset was not written,
                or the client was closed before. ForkedError: it is of the parent process.
        """
        self._check_fork()
        return self._outbox.wait(offset, Deadline(self._timeout if timeout is None else timeout))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was written is durable; see ``wait_durable``."""
        self.wait_durable(timeout=timeout)

    def close(self, timeout: float | None = None) -> None:
        """Wait until all that was written is durable, and close the stream.

        It is closed whatever is raised; then ``offset`` and ``written`` tell which rows may be
        lost. Closing it again does nothing.

        Raises: as ``wait_durable``.
        """
        if self._closed:
            return
        limit = Deadline(self._timeout if timeout is None else timeout)
        try:
            self.wait_durable(timeout=limit.remaining())
        finally:
            self._end()
        self._outbox.join(limit.remaining())

    def _check(self) -> None:
        """Raise the error that keeps it from being used."""
        self._check_fork()
        self._outbox.check()

    def _check_fork(self) -> None:
        if self._forked:
            text = "an ingest client belongs to the process that opened it: open one in this child"
            raise ForkedError(text)

    def _end(self) -> None:
        """Close it, and drop what is kept; never blocks."""
        self._closed = True
        if not self._forked:
            self._outbox.end(ValueError(f"{self!r} is closed: open another one"))
