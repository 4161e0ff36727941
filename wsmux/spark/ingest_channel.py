"""Carry what all ingest clients of a process write to a dataset, by one stream and two threads.

A client has an ``Outbox``, which numbers its rows and keeps those that are not durable. The channel
sends what the outboxes have, a message of each in turn, reads what is durable, and connects again.
One thread of it sends all that is there at once, another one reads, and wakes those that wait. So
neither an append nor an answer costs a call of the system of its own where there are many.

One mutex guards a channel and its outboxes. Nothing is sent with it held.
"""

from __future__ import annotations

import base64
import itertools
import threading
import uuid
from collections import deque
from typing import Any, NamedTuple

from ..config import MIB
from ..exceptions import StreamWriteClosed, WsmuxError
from ..mux.stream import Stream
from ..rpc import RiverError
from ..runtime import fork
from ..runtime.deadline import Deadline
from ..runtime.parking import Condition
from ..runtime.threads import daemon_thread, start_thread
from .connection_settings import TIMEOUT, Link
from .errors import SparkError
from .ingest_messages import Messages
from .protocol import (
    INGEST,
    TEMPORARY,
    Code,
    Ingest,
    Request,
    encode_line,
    ingest_message,
    parse_line,
    raise_refusal,
    refusal,
)
from .retries import Retries
from .store.schemas import schema_bytes, schema_of

__all__ = ["Outbox", "temporary_id"]

# Bytes of small batches that are sent at once.
TOGETHER = 64 * 1024

# Seconds between looks at whether there is something to send, if nobody tells.
IDLE = 10.0

# Bytes of a message of the server, which may hold a schema.
MAX_MESSAGE = 32 * MIB


def temporary_id() -> str:
    """Return a random id for a client, which a dataset forgets."""
    return f"{TEMPORARY}{uuid.uuid4().hex}"


class _Piece(NamedTuple):
    """A message with rows, and the offset after the last one."""

    end: int
    data: bytes


class Outbox:
    """Number the rows of one client, and keep them until they are durable.

    The constructor waits until a server takes them.

    Args:
        link, dataset: where they go. client_id: whose they are. create: a schema for the dataset,
            if there is none. bound: bytes to keep at most.

    Attributes:
        client_id: whose rows they are by now. durable: how many rows are.
        schema, partition_by, batch_bytes: of the dataset, and what a batch may take.

    Raises:
        SparkError: the server refuses it, or cannot be reached.
    """

    def __init__(self, link: Link, dataset: str, client_id: str, create: Any, bound: int) -> None:
        self._link = link
        self._what = f"ingest {dataset}"
        self.client_id = client_id
        self._session = uuid.uuid4().hex[:12]
        self._create = None if create is None else base64.b64encode(schema_bytes(create)).decode()
        self._bound = bound
        self._kept: deque[_Piece] = deque()  # what is not durable
        self._bytes = 0  # of it
        self._sent = 0  # pieces of it on the present stream
        self._tried = 0  # pieces of it on an earlier one; what became of them may not be known
        self._before = 0  # rows that were durable when it took its present id
        self._notes: deque[bytes] = deque()  # that go before them
        self._number = 0
        self._ready = False  # the present stream takes rows of it
        self._failure: SparkError | ValueError | None = None
        self.durable = self.batch_bytes = 0
        self.schema: Any = None
        self.partition_by: list[str] = []
        self._changed: Condition
        self._channel = channel = _channels.join(link, dataset, self)
        limit = Deadline(None)  # the threads of the channel have limits, and tell how it ends
        try:
            with self._changed:
                while self.schema is None:
                    self._wait_locked(limit, "the server did not answer")
        except BaseException:
            channel.leave(self)
            raise

    @property
    def written(self) -> int:
        """How many rows were put here; an interrupt of ``put`` leaves none that is not counted."""
        try:
            return self._kept[-1].end
        except IndexError:
            return self.durable

    def check(self) -> None:
        """Raise the error that keeps rows from being taken."""
        failure = self._failure
        if isinstance(failure, SparkError):  # a new one, since each has a traceback of its own
            raise SparkError(failure.code, failure.message, failure.what, failure.place)
        if failure is not None:
            raise ValueError(*failure.args)

    def put(self, batch: Any, limit: Deadline) -> int:
        """Add rows, once there is room; return the offset after the last one.

        Raises:
            SparkError: TIMEOUT, or what has ended it.
        """
        data = ingest_message(Ingest.ROWS, self._number, batch.serialize())
        with self._changed:
            while self._bytes and self._bytes + len(data) > self._bound:
                self._wait_locked(limit, "there was no room for more rows")
            self.check()
            end: int = self.written + batch.num_rows
            self._kept.append(_Piece(end, data))
            self._bytes += len(data)
            if self._ready:
                self._channel.queue_locked(self)
        return end

    def wait(self, offset: int | None, limit: Deadline) -> int:
        """Wait until all rows up to an offset are durable; return how many are.

        Raises:
            SparkError: TIMEOUT, or what has ended it. ValueError: the offset was not written.
        """
        with self._changed:
            if self._ready:
                self._channel.queue_locked(self)  # what an interrupt may have left
            wanted = self.written if offset is None else offset
            if wanted > self.written:
                raise ValueError(f"offset {wanted} was not written: {self.written} is the last")
            while self.durable < wanted:
                self._wait_locked(limit, f"rows up to {wanted} are not durable")
            return self.durable

    def _wait_locked(self, limit: Deadline, what: str) -> None:
        self.check()
        if not self._changed.wait(limit.remaining()) and limit.expired():
            text = f"{what} in time; {self.durable} of {self.written} are durable"
            raise self._link.error(TIMEOUT, text, self._what)
        self.check()

    def end(self, reason: ValueError) -> None:
        """Drop what is kept, and send nothing more; later calls raise the reason. Never blocks."""
        self._channel.leave(self)
        with self._changed:
            self._fail_locked(reason)

    def join(self, timeout: float | None) -> None:
        """Wait until the stream has ended, if this was the last client of it."""
        self._channel.join(timeout)

    # What the channel says

    def _next_locked(self) -> bytes | None:
        """Return the next message to send."""
        if self._notes:
            return self._notes.popleft()
        if not self._ready or self._sent == len(self._kept):
            return None
        self._sent += 1
        return self._kept[self._sent - 1].data

    def _open_locked(self) -> None:
        """Begin on a new stream."""
        self._tried = max(self._tried, self._sent)
        self._ready, self._sent = False, 0
        self._notes = deque([self._opening()])

    def _opening(self) -> bytes:
        told = {"client": self.client_id, "session": self._session}
        if self.schema is None and self._create is not None:
            told["create"] = self._create
        return ingest_message(Ingest.OPEN, self._number, encode_line(told))

    def _opened_locked(self, told: Request, schema: Any) -> None:
        """Note where the server is, or begin anew there if it has forgotten a random id.

        Raises:
            RiverError: WRONG_SCHEMA or TAKEN_OVER; what was written does not go on there.
        """
        offset, session = self._before + told.whole("offset"), told.text("session")
        if self.schema is None:
            self.durable = offset
            self.partition_by = told.texts("partition_by") or []
            self.batch_bytes = told.whole("batch_bytes", least=1)
            self.schema = schema
        elif not schema.equals(self.schema):
            text = "the dataset has another schema by now, which rows that were not durable lack"
            raise refusal(Code.WRONG_SCHEMA, f"{text}: open it again, and write them again")
        elif offset > self.durable and session not in ("", self._session):
            text = f"another program has written rows with the client id {self.client_id}"
            raise refusal(Code.TAKEN_OVER, f"{text}: use an id for each that writes")
        elif self._may_begin_anew(offset, session):
            self.client_id, self._before = temporary_id(), self.durable
            self._notes.extend([ingest_message(Ingest.LEAVE, self._number), self._opening()])
            return
        self._acknowledged_locked(offset)
        self._ready = True

    def _may_begin_anew(self, offset: int, session: str) -> bool:
        """Return whether a random id was forgotten, and no rows may be there that are kept here."""
        forgotten = offset == self._before < self.durable and not session
        return forgotten and not self._tried and self.client_id.startswith(TEMPORARY)

    def _acknowledged_locked(self, offset: int) -> None:
        """Drop what is durable, up to an offset of this client.

        Raises:
            RiverError: TAKEN_OVER; these are not the rows of this client.
        """
        count = 0
        for piece in self._kept:
            if piece.end > offset:
                break
            count += 1
        if offset != (self._kept[count - 1].end if count else self.durable):
            text = f"the server has {offset} rows of client {self.client_id}, and this one wrote"
            text = f"{text} {self.written}, of which {self.durable} were durable: is the dataset"
            raise refusal(Code.TAKEN_OVER, f"{text} a new one, or the id used elsewhere?")
        self.durable = offset
        for _ in range(count):
            self._bytes -= len(self._kept.popleft().data)
        self._sent, self._tried = max(0, self._sent - count), max(0, self._tried - count)
        self._changed.notify_all()

    def _fail_locked(self, failure: SparkError | ValueError) -> None:
        self._failure = self._failure or failure
        self._ready = False
        self._changed.notify_all()

    @property
    def _waits(self) -> bool:
        """Whether the server still has to say something."""
        return self._failure is None and (bool(self._kept) or self.schema is None)


class _Channel:
    """The stream for the clients of one link and dataset, and its threads.

    Attributes:
        mutex: guards all of it.
    """

    def __init__(self, link: Link, dataset: str) -> None:
        self.mutex = threading.Lock()
        self._link = link
        self._dataset = dataset
        self._what = f"ingest {dataset}"
        self._changed = Condition(self.mutex)  # for its threads
        self._boxes: dict[int, Outbox] = {}
        self._numbers = itertools.count()
        self._queue: deque[Outbox] = deque()  # those that have something to send
        self._stream: Stream | None = None
        self._sending = False
        self._schema: Any = None  # the one that the stream told last
        # The first repetition is made at once, and is not counted.
        self._retries = Retries(link.recipe.retries + 1, link.recipe.retry_backoff)
        # Whether nothing was due when the last stream was lost; then there is time for a pause.
        self._idle = False
        self._ended = False
        self._reader = daemon_thread(self._run, name=f"wsmux-ingest-client-{dataset}")
        self._sender = daemon_thread(self._send, name=f"wsmux-ingest-sender-{dataset}")

    def start(self) -> None:
        """Start its threads.

        Raises:
            NoThreadError: there can be none.
        """
        start_thread(self._sender)
        try:
            start_thread(self._reader)
        except BaseException:
            with self.mutex:
                self._ended = True
                self._changed.notify_all()
            raise

    def add(self, box: Outbox) -> bool:
        """Add a client; return false if the channel has ended."""
        with self.mutex:
            if self._ended:
                return False
            box._number, box._changed = next(self._numbers), Condition(self.mutex)
            self._boxes[box._number] = box
            if self._stream is not None:
                box._open_locked()
                self.queue_locked(box)
            return True

    def queue_locked(self, box: Outbox) -> None:
        """Have sent what a client has to send."""
        self._queue.append(box)
        if not self._sending:
            self._changed.notify_all()

    def leave(self, box: Outbox) -> None:
        """Let go of a client, whatever it has kept; end with the last one. Never blocks."""
        with self.mutex:
            if self._boxes.get(box._number) is not box:
                return  # it has failed
            self._remove_locked(box)
            stream, clean = self._stream, not (box._waits or self._sending)
        if not self._ended or stream is None:
            return
        try:
            if clean:
                stream.close_write()
                return
        except (WsmuxError, OSError):
            pass  # all is durable
        stream.reset()

    def _remove_locked(self, box: Outbox) -> None:
        del self._boxes[box._number]
        box._ready = False
        box._notes.append(ingest_message(Ingest.LEAVE, box._number))
        self._ended = not self._boxes
        self.queue_locked(box)
        self._changed.notify_all()

    def join(self, timeout: float | None) -> None:
        """Wait for the end, if it has begun."""
        if self._ended:
            self._reader.join(timeout)
            self._sender.join(timeout)

    # Sending

    def _send(self) -> None:
        failed: Stream | None = None
        while True:
            with self.mutex:
                self._sending = False
                while not self._ended and (self._stream in (None, failed) or not self._queue):
                    self._changed.wait(IDLE)
                if self._ended:
                    return
                stream, data, self._sending = self._stream, self._next_locked(), True
            assert stream is not None
            try:
                stream.write(data)
            except StreamWriteClosed:
                failed = stream  # the reader is told why
            except (WsmuxError, OSError, ValueError):
                failed = stream
                stream.reset()  # which the reader sees

    def _next_locked(self) -> bytes:
        """Return what to send next, of each client in turn."""
        found: list[bytes] = []
        size = 0
        while self._queue and size < TOGETHER:
            box = self._queue.popleft()
            data = box._next_locked()
            if data is not None:
                found.append(data)
                size += len(data)
                self._queue.append(box)
        return b"".join(found)

    # The reader

    def _run(self) -> None:
        try:
            while (stream := self._connected()) is not None:
                try:
                    self._read(stream)
                    error: Exception = ConnectionError("the server ended the stream")
                except (WsmuxError, RiverError, OSError, ValueError) as caught:
                    error = caught
                stream.reset()
                self._lost(error)
        except SparkError as failure:
            with self.mutex:
                self._fail_locked([*self._boxes.values()], failure)
        finally:
            _channels.drop(self._link, self._dataset, self)

    def _connected(self) -> Stream | None:
        """Return a stream to which all clients are to be told; ``None`` when all have left.

        Raises:
            SparkError: the server cannot be reached, or refuses the dataset.
        """
        while True:
            with self.mutex:
                again = self._retries.failures > 1 or self._idle
                pause = Deadline(self._retries.delay() if again else 0.0)
                while not self._ended and not pause.expired():
                    self._changed.wait(pause.remaining())
                if self._ended:
                    return None
            stream, _ = self._link.ask_stream(INGEST, dataset=self._dataset)
            stream.timeout = self._link.recipe.call_timeout
            with self.mutex:
                self._stream, self._schema = stream, None
                self._queue.clear()
                for box in self._boxes.values():
                    box._open_locked()
                    self.queue_locked(box)
                self._changed.notify_all()
                return stream

    def _lost(self, error: Exception) -> None:
        """Note that the stream has failed.

        Raises:
            SparkError: it has done so too often.
        """
        failure = self._link.failure(error, self._what)
        with self.mutex:
            self._stream = None
            self._idle = all(box._ready and not box._waits for box in self._boxes.values())
            if self._idle:
                self._retries.succeeded()  # the stream did all that it was there for
            for box in self._boxes.values():
                box._ready = False
            if isinstance(error, TimeoutError):  # who has just come waits no longer
                new = [box for box in self._boxes.values() if box.schema is None]
                self._fail_locked(new, failure)
            if not self._retries.again():
                raise failure

    def _read(self, stream: Stream) -> None:
        """Read what the server says, until the stream ends, or all clients have left.

        Raises:
            RiverError: it is busy, or says what cannot be. WsmuxError, OSError: the stream failed.
        """
        messages = Messages(stream)
        while not self._ended:
            try:
                head = messages.head()
            except TimeoutError:
                if any(box._waits for box in [*self._boxes.values()]):
                    raise
                continue  # nothing is due
            if head is None:
                return
            while head is not None:
                kind, number, size = head
                if size > MAX_MESSAGE:
                    raise ConnectionError(f"the server sent a message of {size} bytes")
                body = bytes(messages.body(size))
                with self.mutex:
                    self._heard_locked(kind, number, body)
                head = messages.head() if messages.has(1) else None

    def _heard_locked(self, kind: int, number: int, body: bytes) -> None:
        box = self._boxes.get(number)
        told, schema = None, self._schema
        if kind == Ingest.OPENED:
            told = Request(parse_line(body))
            if "schema" in told:
                schema = self._schema = schema_of(base64.b64decode(told.text("schema")))
        elif kind not in (Ingest.DURABLE, Ingest.REFUSED):
            raise ConnectionError(f"the server sent a message of kind {kind}")
        if box is None:
            return  # it has left
        try:
            if told is not None:
                box._opened_locked(told, schema)
                self.queue_locked(box)
            elif kind == Ingest.DURABLE:
                self._retries.succeeded()
                box._acknowledged_locked(box._before + int.from_bytes(body, "little"))
            else:
                raise_refusal(body)
        except RiverError as error:
            if error.code == Code.BUSY and box.schema is not None:
                raise  # all clients connect again
            self._fail_locked([box], self._link.error(error.code, error.message, self._what))

    def _fail_locked(self, boxes: list[Outbox], failure: SparkError) -> None:
        for box in boxes:
            self._remove_locked(box)
            box._fail_locked(failure)


class _Channels:
    """Hold the channels of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[Link, str], _Channel] = {}
        fork.register(self)

    def join(self, link: Link, dataset: str, box: Outbox) -> _Channel:
        """Add a client to the channel of a dataset, made for the first one.

        Raises:
            NoThreadError: there is no thread for it.
        """
        with self._lock:
            channel = self._held.get((link, dataset))
            if channel is None or not channel.add(box):
                channel = _Channel(link, dataset)
                channel.add(box)
                channel.start()
                self._held[link, dataset] = channel
            return channel

    def drop(self, link: Link, dataset: str, channel: _Channel) -> None:
        """Forget a channel that has ended."""
        with self._lock:
            if self._held.get((link, dataset)) is channel:
                del self._held[link, dataset]

    def forked(self) -> None:
        """Drop the channels in a forked child; see ``runtime.fork``."""
        self._lock = threading.Lock()
        self._held = {}


_channels = _Channels()
