"""Gather what many ingest clients send to a dataset, and add it in one commit after another.

Each client has a stream, and a handler that reads it. A thread for each dataset that has clients
waits a little for more once rows have come, commits all of them, and tells each client how many of
its rows are durable. Of a client and of a dataset only so many bytes are in memory: a handler reads
no further until there is room, and the stream's credit stops the client.

How many rows of a client there are stands in the commit itself (``tables.group_commit``): after a
reconnect, to this process or another one, the client learns it and goes on from there. Rows that
were read from an earlier stream of a client and are not being committed by then are dropped.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from ...config import MIB
from ...exceptions import WsmuxError
from ...mux.stream import Stream
from ...rpc import RiverError
from ...runtime.deadline import Deadline, deadline
from ...runtime.logs import logger
from ...runtime.parking import Condition
from ...runtime.threads import daemon_thread, start_thread
from ..protocol import (
    FAILED,
    FAILURE,
    MAX_CLIENT,
    Code,
    Request,
    check_name,
    encode_line,
    refusal,
)
from ..store.base import DatasetStore, Span
from ..store.schemas import first_line, schema_bytes, schema_of
from .arrow_stream import ArrowSource, Limits, receive
from .named_streams import NamedStream, refusal_line
from .services import guarded

__all__ = ["GroupCommit", "IngestStream"]

# Bytes that a batch takes beside its values.
BATCH_COST = 2048

# Bytes that are read from a stream at once, if so many are there.
BUFFER = 8192

# Seconds to wait for the commit of what an earlier stream of a client has sent.
PATIENCE = 30.0

# Seconds between looks at whether the clients of a dataset have gone, if nobody tells.
IDLE = 10.0

# What one client's rows may be to blame for.
ITS_OWN_FAULT = (Code.BAD_ARROW, Code.TOO_LARGE)

_log = logger("wsmux.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommit:
    """Say how rows of ingest clients are gathered for a commit.

    Raises:
        ValueError: a value is not above 0, or a dataset may hold less than a client.
    """

    linger: float = 0.02
    """Seconds to wait for more rows once the first have come. Each commit is a version and a file
    of the dataset: where rows come all the time, a longer one makes fewer."""
    group_bytes: int = 16 * MIB
    """Bytes after which it waits no longer."""
    client_bytes: int = 8 * MIB
    """Bytes of one client in memory, and of one record batch."""
    table_bytes: int = 64 * MIB
    """Bytes of all clients of one dataset in memory, those being committed among them."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not value > 0:
                raise ValueError(f"GroupCommit.{each.name} must be above 0, not {value!r}")
        if self.table_bytes < self.client_bytes:
            raise ValueError("GroupCommit.table_bytes must not be below client_bytes")


class IngestStream(NamedStream):
    """Serve the streams of ingest clients.

    Args:
        datasets: the store; it is not closed. options: how rows are gathered.
    """

    def __init__(self, datasets: DatasetStore, options: GroupCommit) -> None:
        self._datasets = datasets
        self._options = options
        self._mutex = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._stopped = False

    def stop(self) -> None:
        """End all streams at once: their clients go on at another process, or the next one."""
        with self._mutex:
            self._stopped = True
            groups = [*self._groups.values()]
        for group in groups:
            group.end_all()

    def open(self, header: dict[str, Any]) -> Callable[[Stream], object]:
        request = Request(header)
        dataset = check_name(request.text("dataset"), "dataset")
        client, nonce = request.text("client"), request.text("session")
        for name, text in (("client", client), ("session", nonce)):
            if not 0 < len(text) <= MAX_CLIENT or not text.isprintable():
                told = f"must be 1 to {MAX_CLIENT} printable characters, not {text!r:.80}"
                raise refusal(Code.BAD_REQUEST, f"{name} {told}")
        if "create" in request:
            self._create(dataset, request.text("create"))
        return lambda stream: self._serve(stream, dataset, client, nonce)

    def _create(self, dataset: str, text: str) -> None:
        """Make a dataset if there is none."""
        try:
            schema = schema_of(base64.b64decode(text, validate=True))
        except ValueError as error:
            raise refusal(Code.BAD_REQUEST, f"create is not base64: {error}") from error
        try:
            begun = self._datasets.begin(dataset, "create", schema)
            self._datasets.commit(begun.txn, [])
        except RiverError as error:
            if error.code != Code.EXISTS:
                raise

    def _serve(self, stream: Stream, dataset: str, client: str, nonce: str) -> None:
        with self._mutex:
            if self._stopped:
                raise refusal(Code.BUSY, "the server is shutting down: connect again")
            group = self._groups.get(dataset)
            if group is None:
                group = self._groups[dataset] = _Group(self._datasets, dataset, self._options)
            session = group.join(stream, client, nonce)
        try:
            guarded(session.serve)()
        except RiverError as error:
            _log.info("ingest into %s is refused: %s", dataset, error)
            session.refuse(error)
        finally:
            group.leave(session)
            with self._mutex:
                if group.is_idle() and self._groups.get(dataset) is group:
                    del self._groups[dataset]


class _Sent(NamedTuple):
    """A batch that waits to be committed, and the bytes that it is counted with."""

    session: _Session
    batch: Any
    size: int


class _Buffered:
    """Read small batches with one call of the stream each."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._data = memoryview(b"")

    def fill(self, target: Any, /) -> int:
        """Read until the target is full, or the end; return the number of bytes."""
        with memoryview(target) as view:
            size = len(view)
            if not self._data and size < BUFFER:
                self._data = memoryview(self._stream.read(BUFFER))
            count = min(len(self._data), size)
            view[:count] = self._data[:count]
            self._data = self._data[count:]
            return count if count == size else count + self._stream.fill(view[count:])


class _Session:
    """One stream of a client.

    Attributes:
        rows: how many rows of the client are known to be durable. schema: of its batches.
        fenced: another stream of the client has taken its place.
        held: bytes of it in memory. waiting: batches of it that wait, or are being committed.
    """

    def __init__(self, group: _Group, stream: Stream, client: str, nonce: str) -> None:
        self.client = client
        self.nonce = nonce
        self.rows = self.held = self.waiting = 0
        self.schema: Any = None
        self.fenced = False
        self._group = group
        self._stream = stream
        self._writing = threading.Lock()
        self._begun = self._described = self._ended = False
        self._admitted = 0

    def serve(self) -> None:
        """Send the client its position, and read from it to the end.

        Raises:
            RiverError: what it has sent is refused, or the store fails.
        """
        group, options = self._group, self._group.options
        target = group.admit_session(self)
        self.schema, self.rows = target.schema, target.rows
        data = schema_bytes(target.schema)
        told = {
            "ok": True,
            "offset": target.rows,
            "session": target.session,
            "partition_by": list(target.partition_by),
            "batch_bytes": options.client_bytes,
            "schema": len(data),
        }
        self._stream.write(encode_line(told) + data)
        self._begun = True
        limits = Limits(batch_bytes=options.client_bytes, head_bytes=MIB)
        source = ArrowSource(_Buffered(self._stream), limits, self._admit)
        try:
            schema, batches = receive(source, limits)
            if not schema.equals(self.schema):
                raise refusal(Code.WRONG_SCHEMA, "the rows have not the schema that was told")
            for batch in batches:
                size, self._admitted = self._admitted, 0
                group.put(_Sent(self, batch, size))
        except ValueError:
            if not self._ended:  # else the committing thread has closed the stream
                raise
        finally:
            group.release(self, self._admitted)
            group.drain(self, self._stream.timeout)

    def _admit(self, size: int) -> None:
        if not self._described:
            self._described = True  # the first message is the schema, which is not kept
            return
        self._group.reserve(self, size + BATCH_COST, self._stream.timeout)
        self._admitted += size + BATCH_COST

    def tell(self, rows: int) -> None:
        """Acknowledge so many rows as durable; also in a ``deadline`` that is over."""
        self.rows = rows
        self._write(rows.to_bytes(8, "big"))

    def refuse(self, error: RiverError) -> None:
        """Send the client the reason why its stream ends; never blocks."""
        line = refusal_line(error)
        with deadline(0):
            self._write(FAILURE + line if self._begun else line, last=True)

    def drop(self) -> None:
        """End it, so that its client connects again; never blocks."""
        with self._writing:
            self._ended = True
            self._stream.reset(FAILED)

    def _write(self, data: bytes, last: bool = False) -> None:
        with self._writing:
            if self._ended:
                return
            try:
                self._stream.write(data)
                if last:
                    self._ended = True
                    self._stream.close()
            except (WsmuxError, OSError, ValueError) as error:
                # It has gone, or reads nothing of thousands of answers: what it was to be told, it
                # learns when it connects again.
                _log.info("ingest client %s is not told of its rows: %s", self.client, error)
                self._ended = True
                self._stream.reset(FAILED)


class _Group:
    """Gather and commit what the clients of one dataset send.

    ``_changed`` guards all of it; nothing is written, and no store is called, with it held.
    """

    def __init__(self, datasets: DatasetStore, dataset: str, options: GroupCommit) -> None:
        self.options = options
        self._datasets = datasets
        self._dataset = dataset
        self._changed = Condition(threading.Lock())
        self._sessions: dict[str, _Session] = {}
        self._members = 0
        self._queue: list[_Sent] = []
        self._queued = self._held = 0
        self._due: Deadline | None = None  # when what is queued is committed
        self._committing: set[str] = set()
        self._thread: threading.Thread | None = None

    # Sessions

    def join(self, stream: Stream, client: str, nonce: str) -> _Session:
        """Return the session of a stream, which ``admit_session`` puts in its place.

        Raises:
            NoThreadError: there is no thread to commit what it sends.
        """
        with self._changed:
            if self._thread is None:
                name = f"wsmux-ingest-{self._dataset}"
                thread = daemon_thread(target=self._run, name=name)
                start_thread(thread)
                self._thread = thread
            self._members += 1
        return _Session(self, stream, client, nonce)

    def admit_session(self, session: _Session) -> Any:
        """Let a session take the place of an earlier one of its client; return what it writes to.

        Raises:
            RiverError: BUSY, TAKEN_OVER, or what the store says.
        """
        limit = Deadline(PATIENCE)
        with self._changed:
            old = self._sessions.get(session.client)
            self._sessions[session.client] = session
            if old is not None:
                old.fenced = True
                self._forget_locked(old)
            while session.client in self._committing:
                if not self._changed.wait(limit.remaining()) and limit.expired():
                    text = f"rows of client {session.client} have been committed for {PATIENCE:g} s"
                    raise refusal(Code.BUSY, f"{text} by now: connect again")
        if old is not None and old.nonce == session.nonce:
            old.drop()
        elif old is not None:
            old.refuse(_taken_over(session.client))
        target = self._datasets.ingest_target(self._dataset, session.client)
        with self._changed:
            if session.fenced:
                raise _taken_over(session.client)
        return target

    def _forget_locked(self, session: _Session) -> None:
        """Drop what a session has queued."""
        dropped = [sent for sent in self._queue if sent.session is session]
        self._queue = [sent for sent in self._queue if sent.session is not session]
        self._queued -= sum(sent.size for sent in dropped)
        self._release_locked(dropped)

    def _release_locked(self, done: Sequence[_Sent]) -> None:
        for sent in done:
            sent.session.waiting -= 1
            sent.session.held -= sent.size
            self._held -= sent.size
        self._changed.notify_all()

    def leave(self, session: _Session) -> None:
        """Let go of a session whose stream has ended."""
        with self._changed:
            self._members -= 1
            self._changed.notify_all()
            if self._sessions.get(session.client) is session:
                del self._sessions[session.client]

    def end_all(self) -> None:
        """Drop all sessions."""
        with self._changed:
            sessions = [*self._sessions.values()]
        self._end(sessions, _Session.drop)

    def is_idle(self) -> bool:
        """Return whether there are no sessions, and nothing is left to be committed."""
        with self._changed:
            return not self._members

    # What sessions send

    def reserve(self, session: _Session, size: int, timeout: float | None) -> None:
        """Wait until there is room for some bytes of a session, and take it.

        Raises:
            RiverError: TAKEN_OVER. TimeoutError: there is none in time.
        """
        limit, options = Deadline(timeout), self.options
        with self._changed:
            while not session.fenced and (
                (session.held and session.held + size > options.client_bytes)
                or (self._held and self._held + size > options.table_bytes)
            ):
                if not self._changed.wait(limit.remaining()) and limit.expired():
                    raise TimeoutError("there was no room for more rows")
            if session.fenced:
                raise _taken_over(session.client)
            session.held += size
            self._held += size

    def release(self, session: _Session, size: int) -> None:
        """Give back room that was reserved."""
        with self._changed:
            session.held -= size
            self._held -= size
            self._changed.notify_all()

    def put(self, sent: _Sent) -> None:
        """Queue a batch for the next commit.

        Raises:
            RiverError: TAKEN_OVER.
        """
        with self._changed:
            sent.session.waiting += 1
            if sent.session.fenced or not sent.batch.num_rows:
                self._release_locked([sent])
            if sent.session.fenced:
                raise _taken_over(sent.session.client)
            if not sent.batch.num_rows:
                return
            self._queue.append(sent)
            self._queued += sent.size
            if self._due is None:
                self._due = Deadline(self.options.linger, outlives=True)
            if len(self._queue) == 1 or self._is_full_locked():
                self._changed.notify_all()

    def _is_full_locked(self) -> bool:
        return self._queued >= self.options.group_bytes

    def drain(self, session: _Session, timeout: float | None) -> None:
        """Wait until nothing of a session is left to be committed."""
        limit = Deadline(timeout)
        with self._changed:
            while session.waiting and (
                self._changed.wait(limit.remaining()) or not limit.expired()
            ):
                pass

    # Committing

    def _run(self) -> None:
        while group := self._next():
            try:
                self._commit(group)
            except Exception:  # what is durable, clients learn when they connect again
                _log.exception("ingest clients of %s could not be told", self._dataset)
                self._end({sent.session for sent in group}, _Session.drop)
            finally:
                with self._changed:
                    self._committing.clear()
                    self._release_locked(group)

    def _next(self) -> list[_Sent]:
        """Wait for what is to be committed next, all of one schema; nothing when all have left."""
        with self._changed:
            while True:
                if not self._queue:
                    self._due = None
                    if not self._members:
                        self._thread = None
                        return []
                    self._changed.wait(IDLE)
                elif self._due is None or self._due.expired() or self._is_full_locked():
                    break
                else:
                    self._changed.wait(self._due.remaining())
            schema = self._queue[0].session.schema
            group = [sent for sent in self._queue if sent.session.schema.equals(schema)]
            self._queue = [sent for sent in self._queue if not sent.session.schema.equals(schema)]
            self._queued = sum(sent.size for sent in self._queue)
            self._committing = {sent.session.client for sent in group}
            return group

    def _commit(self, group: Sequence[_Sent]) -> None:
        """Commit batches, and tell the sessions; a failure is that of no more than it has to be."""
        batches = [sent.batch for sent in group]
        ends: dict[_Session, int] = {}
        for sent in group:
            ends[sent.session] = ends.get(sent.session, sent.session.rows) + sent.batch.num_rows
        spans = {each.client: Span(each.rows, end, each.nonce) for each, end in ends.items()}
        schema = group[0].session.schema
        try:
            stale = guarded(self._datasets.ingest)(self._dataset, schema, batches, spans)
        except RiverError as error:
            if len(ends) > 1 and error.code in ITS_OWN_FAULT:
                for session in ends:
                    self._commit([sent for sent in group if sent.session is session])
            elif error.code == Code.BUSY:
                self._end(ends, _Session.drop)
            else:
                self._refuse(ends, error)
        except Exception as error:
            _log.exception("rows of ingest clients could not be added to %s", self._dataset)
            text = f"the store failed: {first_line(error)}"
            self._refuse(ends, refusal(Code.STORE_FAILED, text))
        else:
            if not stale:
                with deadline(0):  # once for all, since it costs as much as what is told
                    for session, end in ends.items():
                        session.tell(end)
                return
            # Their clients have connected to another process, perhaps, and are told when they
            # connect again; the rest is committed without them.
            self._end([each for each in ends if each.client in stale], _Session.drop)
            rest = [sent for sent in group if sent.session.client not in stale]
            if rest:
                self._commit(rest)

    def _refuse(self, sessions: Iterable[_Session], error: RiverError) -> None:
        self._end(sessions, lambda session: session.refuse(error))

    def _end(self, sessions: Iterable[_Session], how: Callable[[_Session], None]) -> None:
        """End sessions, and drop what of them is queued behind what was not committed."""
        for session in sessions:
            with self._changed:
                session.fenced = True
                self._forget_locked(session)
            how(session)


def _taken_over(client: str) -> RiverError:
    text = f"another one was opened with the client id {client!r}: use an id for each that writes"
    return refusal(Code.TAKEN_OVER, text)
