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

import base64
import threading
import uuid
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..config import MIB
from ..exceptions import (
    ForkedError,
    NoThreadError,
    StreamWriteClosed,
    WriteTimeout,
    WsmuxError,
)
from ..mux.stream import Stream
from ..rpc import RiverError
from ..runtime import fork
from ..runtime.arguments import check_seconds
from ..runtime.closing import Leaving
from ..runtime.deadline import Deadline, deadline
from ..runtime.parking import Condition
from ..runtime.threads import daemon_thread, start_thread
from .connection_settings import TIMEOUT, Link, Recipe, connection, read_reply, retry_delay
from .errors import SparkError
from .ingest_rows import RowConverter
from .protocol import (
    FAILURE,
    INGEST,
    MAX_CLIENT,
    MAX_HEADER,
    TEMPORARY,
    Code,
    Request,
    encode_line,
    raise_refusal,
)
from .server.arrow_stream import pieces
from .store.schemas import schema_bytes, schema_of
from .tables.partitions import split

__all__ = ["MAX_UNACKNOWLEDGED", "IngestClient", "ingest"]

MAX_UNACKNOWLEDGED = 8 * MIB

# Bytes of a record batch that is sent, about: some go while others are made.
PIECE = MIB

# Bytes of small batches that are sent at once.
TOGETHER = 64 * 1024

MAX_SCHEMA = 16 * MIB

_END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow IPC stream


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

    Clients of one process with equal options share a connection.

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
        client_id = f"{TEMPORARY}{uuid.uuid4().hex}"
    if not 0 < len(client_id) <= MAX_CLIENT or not client_id.isprintable():
        text = f"client_id must be 1 to {MAX_CLIENT} printable characters, not {client_id!r:.80}"
        raise ValueError(text)
    if not max_unacknowledged > 0:
        raise ValueError(f"max_unacknowledged must be above 0 bytes, not {max_unacknowledged!r}")
    limit = recipe.call_timeout if timeout is None else timeout
    check_seconds(timeout=limit)
    return IngestClient(recipe.link(), dataset, client_id, create, max_unacknowledged, limit)


class _Piece(NamedTuple):
    """A batch as it is sent, and the offset after its last row."""

    end: int
    data: bytes


class _Opened(NamedTuple):
    """A stream, and what the server says of the client and the dataset."""

    stream: Stream
    offset: int
    session: str
    schema: Any
    partition_by: list[str]
    batch_bytes: int


class IngestClient(Leaving):
    """Write rows to a dataset; made by ``ingest``. All methods may be called from any thread.

    A thread of its own reads what the server acknowledges, and connects again. A client that is not
    closed writes what it has as long as the process lives. In a forked child it cannot be used:
    each call raises ``ForkedError``; open one there. After Ctrl-C in a call it can be used further;
    what ``write`` has numbered by then is sent, and ``written`` tells.

    Attributes:
        dataset, client_id: as given. schema: the dataset's, to which rows are converted.
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
        self.client_id = client_id
        self._link = link
        self._what = f"ingest {dataset}"
        self._limit = max_unacknowledged
        self._timeout = timeout
        self._session = uuid.uuid4().hex[:12]
        self._changed = Condition(threading.Lock())
        self._kept: deque[_Piece] = deque()  # what is not durable
        self._bytes = self._sent = 0  # of what is kept; pieces of it on the stream by now
        self._sender: Stream | None = None  # to which a thread is writing
        self._failure: SparkError | None = None
        self._closed = self._forked = False
        self._failures = 0  # in a row
        opened = self._opened(create)
        self._stream: Stream | None = opened.stream
        self._durable = self._written = opened.offset
        self.schema = opened.schema
        self._converter = RowConverter(opened.schema)
        self._partition_by = opened.partition_by
        self._batch_bytes = opened.batch_bytes
        self._reader = daemon_thread(self._run, name=f"wsmux-ingest-client-{dataset}")
        fork.register(self)
        try:
            start_thread(self._reader)
        except BaseException:
            opened.stream.reset()
            raise

    def __repr__(self) -> str:
        return f"<IngestClient {self.dataset} durable={self._durable} written={self._written}>"

    def _leave(self, error: BaseException | None) -> None:
        """Close; after an exception at once, whether what was written is durable or not."""
        if error is None:
            self.close()
        else:
            self._end()

    def forked(self) -> None:
        """Make it unusable in a forked child; see ``runtime.fork``."""
        self._forked = True
        self._changed = Condition(threading.Lock())  # a thread of the parent may hold the other

    @property
    def offset(self) -> int:
        """How many rows of this client are durable, those of earlier programs with its id too."""
        return self._durable

    @property
    def written(self) -> int:
        """The offset after the last row that was written."""
        return self._written

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
            raise self._link.error(error.code, error.message, self._what) from None
        limit = Deadline(self._timeout if timeout is None else timeout)
        end = self._written
        for batch in batches:
            data = bytes(batch.serialize())
            with self._changed:
                while self._bytes and self._bytes + len(data) > self._limit:
                    self._wait_locked(limit, "there was no room for more rows")
                self._check()
                self._written = end = self._written + batch.num_rows
                self._kept.append(_Piece(end, data))
                self._bytes += len(data)
            self._send()
        return end

    def _checked(self, rows: Any) -> Iterator[Any]:
        """Yield rows as batches of a suitable size, not copied if they have the right types."""
        most = self._batch_bytes
        for whole in self._converter.batches(rows):
            if self._partition_by:
                for _ in split(whole, self._partition_by):
                    pass  # raises for values that no partition can have
            for batch in pieces(whole, min(PIECE, most // 2)):
                if batch.num_rows == 1 and batch.nbytes > most // 2:
                    text = f"a row takes {batch.nbytes} bytes, up to {most // 2} are accepted"
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
        if self._forked:
            self._check()
        self._send()  # what an interrupt may have left
        limit = Deadline(self._timeout if timeout is None else timeout)
        with self._changed:
            wanted = self._written if offset is None else offset
            if wanted > self._written:
                raise ValueError(f"offset {wanted} was not written: {self._written} is the last")
            while self._durable < wanted:
                self._check()
                self._wait_locked(limit, f"rows up to {wanted} are not durable")
            return self._durable

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
        self._reader.join(limit.remaining())

    def _wait_locked(self, limit: Deadline, what: str) -> None:
        if not self._changed.wait(limit.remaining()) and limit.expired():
            text = f"{what} in time; {self._durable} of {self._written} are durable"
            raise self._link.error(TIMEOUT, text, self._what)
        self._check()

    def _check(self) -> None:
        """Raise the error that keeps it from being used."""
        if self._forked:
            text = "an ingest client belongs to the process that opened it: open one in this child"
            raise ForkedError(text)
        failure = self._failure
        if failure is not None:  # a new one, since each has a traceback of its own
            raise SparkError(failure.code, failure.message, failure.what, failure.place)
        if self._closed:
            raise ValueError(f"{self!r} is closed: open another one")

    def _end(self) -> None:
        """Close the stream, and drop what is kept; never blocks."""
        with self._changed:
            self._closed = True
            stream, clean = self._stream, not self._kept and self._sender is None
            self._stream = None
            self._changed.notify_all()
        if stream is None or self._forked:
            return
        try:
            if clean:
                with deadline(0):
                    stream.write(_END)
                stream.close_write()
                return
        except (WsmuxError, OSError):
            pass  # all is durable
        stream.reset()

    # Sending

    def _send(self) -> None:
        """Send what is not sent yet, as far as the server takes it now."""
        stream, data = None, b""
        try:
            stream = self._begin_sending()
            if stream is None:
                return
            with deadline(0):
                while data := self._next_data(stream):
                    stream.write(data)
        except WriteTimeout as error:
            rest, name = data[error.bytes_written :], f"wsmux-ingest-sender-{self.dataset}"
            try:
                start_thread(daemon_thread(self._send_rest, name=name, args=(stream, rest)))
            except NoThreadError:
                self._reset_sender()  # the reader sends it when it has connected again
        except StreamWriteClosed:
            pass  # the reader is told why
        except (WsmuxError, OSError, ValueError):
            self._reset_sender()  # which the reader sees
        except BaseException:
            self._reset_sender()  # it may have ended within a batch
            raise

    def _reset_sender(self) -> None:
        sender = self._sender
        if sender is not None:
            sender.reset()

    def _send_rest(self, stream: Stream, data: bytes) -> None:
        """Send the rest of a batch, and what has come since; blocks as long as the server does."""
        try:
            while data:
                stream.write(data)
                data = self._next_data(stream)
        except StreamWriteClosed:
            pass  # the reader is told why
        except (WsmuxError, OSError, ValueError):
            stream.reset()  # which the reader sees

    def _begin_sending(self) -> Stream | None:
        """Return the stream if there is something to send, and no thread is sending."""
        with self._changed:
            stream = self._stream
            if stream is None or self._sender is stream or self._sent == len(self._kept):
                return None
            self._sender = stream
            return stream

    def _next_data(self, stream: Stream) -> bytes:
        """Return what to send next; if that is nothing, the sender is done."""
        with self._changed:
            found: list[bytes] = []
            size = 0
            while self._stream is stream and self._sent < len(self._kept) and size < TOGETHER:
                found.append(self._kept[self._sent].data)
                size += len(found[-1])
                self._sent += 1
            if not found and self._sender is stream:
                self._sender = None
            return b"".join(found)

    # The reader

    def _run(self) -> None:
        try:
            while (stream := self._stream) is not None:
                try:
                    self._read(stream)
                    error: Exception = ConnectionError("the server ended the stream")
                except RiverError:
                    stream.reset()
                    raise
                except (WsmuxError, OSError, ValueError) as caught:
                    error = caught
                stream.reset()
                if self._closed:
                    return
                self._connect_again(error)
        except SparkError as error:
            self._fail(error)
        except RiverError as error:
            self._fail(self._link.error(error.code, error.message, self._what))

    def _read(self, stream: Stream) -> None:
        """Read what is durable, until the stream ends.

        Raises:
            RiverError: the server has refused rows. WsmuxError, OSError: the stream failed.
        """
        stream.timeout = self._link.recipe.call_timeout
        heard = bytearray()
        while True:
            try:
                data = stream.read(TOGETHER)
            except TimeoutError:
                if self._kept:
                    raise
                continue  # nothing is due
            if not data:
                return
            heard += data
            if heard.startswith(FAILURE):
                self._refused(stream, heard)
            whole = len(heard) // 8 * 8
            for at in range(0, whole, 8):
                if heard[at : at + 8] == FAILURE:
                    self._refused(stream, heard[at:])
                if at + 16 > whole or heard[at + 8 : at + 16] == FAILURE:
                    self._acknowledged(int.from_bytes(heard[at : at + 8], "big"))
            del heard[:whole]

    def _acknowledged(self, offset: int) -> None:
        with self._changed:
            self._forget_locked(offset)
            self._failures = 0
            self._changed.notify_all()

    def _forget_locked(self, offset: int) -> None:
        """Drop what is durable.

        Raises:
            RiverError: TAKEN_OVER; these are not the rows of this client.
        """
        count = 0
        for piece in self._kept:
            if piece.end > offset:
                break
            count += 1
        if offset != (self._kept[count - 1].end if count else self._durable):
            text = f"the server has {offset} rows of client {self.client_id}, and this one wrote"
            text = f"{text} {self._written}, of which {self._durable} were durable: is the dataset"
            raise RiverError(Code.TAKEN_OVER, f"{text} a new one, or the id used elsewhere?")
        for _ in range(count):
            self._bytes -= len(self._kept.popleft().data)
        self._sent = max(0, self._sent - count)
        self._durable = offset

    def _refused(self, stream: Stream, heard: bytearray) -> None:
        while not heard.endswith(b"\n") and len(heard) < MAX_HEADER:
            data = stream.read(MAX_HEADER)
            if not data:
                break
            heard += data
        raise_refusal(bytes(heard[len(FAILURE) :]))

    def _connect_again(self, error: Exception) -> None:
        """Open another stream, and send what is kept.

        Raises:
            SparkError: the server cannot be reached. RiverError: it has other rows than these.
        """
        recipe = self._link.recipe
        while True:
            self._failures += 1
            if self._failures > recipe.retries + 1:
                raise self._link.failure(error, self._what)
            with self._changed:
                self._stream, self._sent = None, 0
                pause = Deadline(retry_delay(recipe.retry_backoff, self._failures), outlives=True)
                while not self._closed and self._failures > 1 and not pause.expired():
                    self._changed.wait(pause.remaining())
                if self._closed:
                    return
            try:
                opened = self._opened(None)
                break
            except SparkError as failure:
                if failure.code != Code.BUSY:
                    raise
                error = failure
            except (WsmuxError, OSError) as failure:
                error = failure
        try:
            self._check_same(opened)
            with self._changed:
                self._forget_locked(opened.offset)
                self._changed.notify_all()
                self._stream = None if self._closed else opened.stream
        except RiverError:
            opened.stream.reset()
            raise
        if self._stream is None:
            opened.stream.reset()
        elif self._begin_sending() is not None:
            self._send_rest(opened.stream, self._next_data(opened.stream))

    def _check_same(self, opened: _Opened) -> None:
        """Raise WRONG_SCHEMA or TAKEN_OVER if what was written does not go on there."""
        if not opened.schema.equals(self.schema):
            text = "the dataset has another schema by now, which rows that were not durable lack"
            raise RiverError(Code.WRONG_SCHEMA, f"{text}: open it again, and write them again")
        if opened.offset > self._durable and opened.session not in ("", self._session):
            text = f"another program has written rows with the client id {self.client_id}"
            raise RiverError(Code.TAKEN_OVER, f"{text}: use an id for each that writes")

    def _fail(self, failure: SparkError) -> None:
        with self._changed:
            self._failure = failure
            self._stream = None
            self._changed.notify_all()

    def _opened(self, create: Any) -> _Opened:
        """Open a stream for rows.

        Raises:
            SparkError: the server refuses it, or cannot be reached. WsmuxError, OSError: the stream
                has failed.
        """
        header = {"dataset": self.dataset, "client": self.client_id, "session": self._session}
        if create is not None:
            header["create"] = base64.b64encode(schema_bytes(create)).decode()
        stream, _ = self._link.ask_stream(INGEST, **header)
        try:
            stream.timeout = self._link.recipe.call_timeout
            reply = read_reply(stream)
            raise_refusal(encode_line(reply))
            told = Request(reply)
            data = bytearray(min(told.whole("schema"), MAX_SCHEMA))
            if stream.fill(data) < len(data):
                raise ConnectionError("the server ended the stream within its answer")
            schema = schema_of(bytes(data))
            offset, batch_bytes = told.whole("offset"), told.whole("batch_bytes", least=1)
            stream.write(schema_bytes(schema))
        except RiverError as error:
            stream.reset()
            raise self._link.error(error.code, error.message, self._what) from None
        except BaseException:
            stream.reset()
            raise
        session, partition_by = told.text("session"), told.texts("partition_by") or []
        return _Opened(stream, offset, session, schema, partition_by, batch_bytes)
