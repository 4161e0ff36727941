"""Gather what many ingest clients send to a dataset, and add it in one commit after another.

All clients of a process share a stream, and a handler that reads it; it leaves their rows encoded.
A thread for each dataset that has clients waits a little for more once rows have come, decodes and
commits all of them, and tells each stream once how many rows of its clients are durable. Of a
client and of a dataset only so many bytes are in memory: a handler reads no further until there is
room, and the stream's credit stops its clients.

How many rows of a client there are stands in the commit itself (``tables.group_commit``): after a
reconnect, to this process or another one, the client learns it and goes on from there. Rows that
were read from an earlier stream of a client and are not being committed by then are dropped.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from ...config import KIB, MIB
from ...exceptions import WsmuxError
from ...mux.stream import Stream
from ...rpc import RiverError
from ...runtime.deadline import Deadline, deadline
from ...runtime.logs import logger
from ...runtime.parking import Condition
from ...runtime.threads import daemon_thread, start_thread
from ..ingest_messages import Messages
from ..protocol import (
    FAILED,
    MAX_CLIENT,
    Code,
    Ingest,
    Request,
    check_name,
    encode_line,
    ingest_message,
    parse_line,
    refusal,
)
from ..store.base import DatasetStore, Span
from ..store.schemas import first_line, schema_bytes, schema_of
from .arrow_stream import Limits, check_batch, read_batches
from .named_streams import NamedStream, refusal_line
from .services import guarded

__all__ = ["GroupCommit", "IngestStream"]

# Bytes that a batch takes beside its values.
BATCH_COST = 2048

# Clients of one stream, whose rows take at least so many bytes of its server.
MAX_CLIENTS = 16 * 1024

# Bytes of what a client is opened by: a schema, above all.
MAX_OPEN = 16 * MIB

# Bytes that wait to be sent while a handler sends.
MAX_UNSENT = MIB

# Seconds to wait for the commit of what an earlier stream of a client has sent.
PATIENCE = 30.0

# Seconds that a handler waits for a client to take an answer.
ANSWER = 10.0

# Seconds that a batch may take to arrive for which others wait, and bytes a second beside them.
ARRIVAL = 3.0
SLOWEST = 256 * KIB

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
    """Seconds to wait for more rows once the first have come, and the last commit has ended. Each
    commit is a version and a file of the dataset: a longer one makes fewer."""
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
        dataset = check_name(Request(header).text("dataset"), "dataset")
        return lambda stream: self._serve(stream, dataset)

    def _serve(self, stream: Stream, dataset: str) -> None:
        with self._mutex:
            group = self._groups.get(dataset)
            if group is None:
                group = self._groups[dataset] = _Group(self._datasets, dataset, self._options)
            channel = group.join(stream)
            if self._stopped:
                channel.drop()
        try:
            channel.serve()
        finally:
            group.leave(channel)
            with self._mutex:
                if group.is_idle() and self._groups.get(dataset) is group:
                    del self._groups[dataset]


class _Sent(NamedTuple):
    """A batch, encoded, that waits to be committed, and the bytes that it is counted with."""

    session: _Session
    data: bytes | bytearray
    rows: int
    size: int


class _Session:
    """One client on one stream.

    Attributes:
        number: of the client on the stream. nonce: what the client calls itself this time.
        rows: how many rows of the client are known to be durable. schema: of its batches.
        target: what the store has said; while it is held, the store does not forget the client.
        fenced: it was refused, or another stream of the client has taken its place.
        left: it sends nothing more.
        held: bytes of it in memory. waiting: batches of it that wait, or are being committed.
    """

    def __init__(self, channel: _Channel, number: int, client: str, nonce: str) -> None:
        self.channel = channel
        self.number = number
        self.client = client
        self.nonce = nonce
        self.rows = self.held = self.waiting = 0
        self.schema: Any = None
        self.target: Any = None
        self.fenced = self.left = False


class _Channel:
    """The stream of the clients of one process."""

    def __init__(self, group: _Group, stream: Stream) -> None:
        self._group = group
        self._stream = stream
        self._messages = Messages(stream)
        options = group.options
        self._limits = Limits(batch_bytes=options.client_bytes, head_bytes=MIB)
        self._sessions: dict[int, _Session] = {}
        self._told: Any = None  # the schema that it was told last
        self._mutex = threading.Lock()
        self._unsent: list[bytes] = []
        self._sending = self._ended = False

    @property
    def sessions(self) -> list[_Session]:
        """Those that have neither left nor been refused."""
        return [*self._sessions.values()]

    def serve(self) -> None:
        """Read to the end.

        Raises:
            RiverError: what came is no message. WsmuxError, OSError: the stream failed.
        """
        try:
            while (head := self._messages.head()) is not None:
                kind, number, size = head
                session = self._sessions.get(number)
                if kind == Ingest.ROWS:
                    self._take(session, size)
                elif kind == Ingest.OPEN and session is None and size <= MAX_OPEN:
                    self._open(number, self._messages.body(size))
                elif kind == Ingest.LEAVE and not size:
                    if session is not None:
                        del self._sessions[number]
                        self._group.part(session)
                else:
                    text = f"a message of kind {kind} with {size} bytes cannot be here"
                    raise refusal(Code.BAD_REQUEST, text)
        finally:
            self._group.drain(self, self._stream.timeout)

    def _open(self, number: int, body: bytes | bytearray) -> None:
        """Let a client in, and tell it where it is."""
        try:
            self._sessions[number] = session = self._session(number, bytes(body))
            target = guarded(self._group.admit_session)(session)
        except RiverError as error:
            if (left := self._sessions.get(number)) is not None:
                self._group.part(left)
            self.refuse(number, error)
            return
        session.target, session.schema, session.rows = target, target.schema, target.rows
        told = {
            "offset": target.rows,
            "session": target.session,
            "partition_by": list(target.partition_by),
            "batch_bytes": self._group.options.client_bytes,
        }
        if self._told is None or not target.schema.equals(self._told, check_metadata=True):
            self._told = target.schema
            told["schema"] = base64.b64encode(schema_bytes(target.schema)).decode()
        else:
            session.schema = self._told  # so that one look tells that they are the same
        self.send(ingest_message(Ingest.OPENED, number, encode_line(told)), ANSWER)

    def _session(self, number: int, body: bytes) -> _Session:
        if len(self._sessions) >= MAX_CLIENTS:
            text = f"{MAX_CLIENTS} clients of one process are open: close some, or share one"
            raise refusal(Code.BUSY, text)
        request = Request(parse_line(body))
        client, nonce = request.text("client"), request.text("session")
        for name, text in (("client", client), ("session", nonce)):
            if not 0 < len(text) <= MAX_CLIENT or not text.isprintable():
                told = f"must be 1 to {MAX_CLIENT} printable characters, not {text!r:.80}"
                raise refusal(Code.BAD_REQUEST, f"{name} {told}")
        if "create" in request:
            guarded(self._group.create)(request.text("create"))
        return _Session(self, number, client, nonce)

    def _take(self, session: _Session | None, size: int) -> None:
        """Queue rows; refuse the client if they are bad."""
        if session is None or session.fenced:
            self._messages.skip(size)  # sent before the client was told that it is refused
            return
        cost = size + BATCH_COST
        most = self._limits.batch_bytes + self._limits.head_bytes
        try:
            if size > most:
                text = f"a record batch takes {size} bytes, up to {most} are accepted"
                raise refusal(Code.TOO_LARGE, text)
            self._group.reserve(session, cost, self._stream.timeout)
        except RiverError as error:
            self._messages.skip(size)
            self._group.refuse([session], error)
            return
        try:
            data = self._messages.body(size)
            sent = _Sent(session, data, check_batch(data, self._limits), cost)
        except RiverError as error:
            self._group.release(session, cost)
            self._group.refuse([session], error)
        except BaseException:
            self._group.release(session, cost)
            raise
        else:
            self._group.put(sent)

    def refuse(self, number: int, error: RiverError) -> None:
        """Tell the client of a number that nothing more is taken from it; never blocks."""
        _log.info("an ingest client is refused: %s", error)
        self._sessions.pop(number, None)
        self.send(ingest_message(Ingest.REFUSED, number, refusal_line(error)))

    def drop(self) -> None:
        """End the stream, so that its clients connect again; never blocks."""
        self._ended = True
        self._stream.reset(FAILED)

    def send(self, data: bytes, patience: float = 0.0) -> None:
        """Send messages within ``patience`` seconds; what another thread is sending is not awaited.

        A client that takes too long has gone, or reads nothing of thousands of answers: what it was
        to be told, it learns when it connects again.
        """
        with self._mutex:
            if self._ended:
                return
            self._unsent.append(data)
            if self._sending and sum(map(len, self._unsent)) <= MAX_UNSENT:
                return
            alone, self._sending = not self._sending, True
        if not alone:
            _log.info("an ingest client takes no answers: its stream is ended")
            self.drop()
            return
        try:
            with deadline(patience):
                while data := self._next():
                    self._stream.write(data)
        except (WsmuxError, OSError, ValueError) as error:
            _log.info("ingest clients are not told of their rows: %s", error)
            self.drop()

    def _next(self) -> bytes:
        """Return what to send next; if that is nothing, nobody is sending."""
        with self._mutex:
            data = b"".join(self._unsent)
            self._unsent = []
            self._sending = bool(data)
            return data


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
        self._channels: set[_Channel] = set()
        self._queue: list[_Sent] = []
        self._queued = self._held = 0
        # When what room is held for should have arrived, one batch at a time of each stream.
        self._arriving: dict[_Channel, Deadline] = {}
        self._due: Deadline | None = None  # when what is queued is committed
        self._committing: set[str] = set()
        self._thread: threading.Thread | None = None

    # Sessions

    def join(self, stream: Stream) -> _Channel:
        """Return the channel of a stream.

        Raises:
            NoThreadError: there is no thread to commit what it sends.
        """
        channel = _Channel(self, stream)
        with self._changed:
            if self._thread is None:
                name = f"wsmux-ingest-{self._dataset}"
                thread = daemon_thread(target=self._run, name=name)
                start_thread(thread)
                self._thread = thread
            self._channels.add(channel)
        return channel

    def create(self, text: str) -> None:
        """Make the dataset if there is none.

        Raises:
            RiverError: BAD_REQUEST, or what the store says.
        """
        try:
            schema = schema_of(base64.b64decode(text, validate=True))
        except ValueError as error:
            raise refusal(Code.BAD_REQUEST, f"create is not base64: {error}") from error
        try:
            begun = self._datasets.begin(self._dataset, "create", schema)
            self._datasets.commit(begun.txn, [])
        except RiverError as error:
            if error.code != Code.EXISTS:
                raise

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
        if old is not None and old.nonce == session.nonce and old.channel is not session.channel:
            old.channel.drop()
        elif old is not None:
            old.channel.refuse(old.number, _taken_over(session.client))
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
            session = sent.session
            session.waiting -= 1
            session.held -= sent.size
            self._held -= sent.size
            if session.left and not session.waiting:
                self._part_locked(session)
        self._changed.notify_all()

    def _part_locked(self, session: _Session) -> None:
        if self._sessions.get(session.client) is session:
            del self._sessions[session.client]

    def part(self, session: _Session) -> None:
        """Let go of a session that sends nothing more, once what it has sent is committed."""
        with self._changed:
            session.left = True
            if not session.waiting:
                self._part_locked(session)

    def leave(self, channel: _Channel) -> None:
        """Let go of a channel whose stream has ended, and of its sessions."""
        with self._changed:
            self._channels.discard(channel)
            self._changed.notify_all()
            for session in channel.sessions:
                self._part_locked(session)

    def end_all(self) -> None:
        """Drop all sessions."""
        with self._changed:
            sessions, channels = [*self._sessions.values()], [*self._channels]
        self._end(sessions, _drop)
        for channel in channels:
            channel.drop()

    def is_idle(self) -> bool:
        """Return whether there are no sessions, and nothing is left to be committed."""
        with self._changed:
            return not self._channels

    # What sessions send

    def reserve(self, session: _Session, size: int, timeout: float | None) -> None:
        """Wait until there is room for some bytes of a session that arrive next, and take it.

        Where others hold the room for what does not arrive, their streams are ended.

        Raises:
            RiverError: TAKEN_OVER. TimeoutError: there is none in time.
        """
        limit, options = Deadline(timeout), self.options
        while True:
            with self._changed:
                if session.fenced:
                    raise _taken_over(session.client)
                full = bool(self._held) and self._held + size > options.table_bytes
                if not full and not (session.held and session.held + size > options.client_bytes):
                    session.held += size
                    self._held += size
                    due = Deadline(ARRIVAL + size / SLOWEST, outlives=True)
                    self._arriving[session.channel] = due
                    return
                arriving = self._arriving if full else {}
                late = [channel for channel, due in arriving.items() if due.expired()]
                for channel in late:
                    del self._arriving[channel]
                if not late:
                    left = [each.remaining() for each in (limit, *arriving.values())]
                    pause = min((each for each in left if each is not None), default=None)
                    if not self._changed.wait(pause) and limit.expired():
                        raise TimeoutError("there was no room for more rows")
            for channel in late:
                _log.info("an ingest stream is ended: rows that others wait for do not arrive")
                channel.drop()

    def release(self, session: _Session, size: int) -> None:
        """Give back room that was reserved."""
        with self._changed:
            self._arriving.pop(session.channel, None)
            session.held -= size
            self._held -= size
            self._changed.notify_all()

    def put(self, sent: _Sent) -> None:
        """Queue a batch for the next commit, unless it has no rows, or its session was fenced."""
        with self._changed:
            self._arriving.pop(sent.session.channel, None)
            sent.session.waiting += 1
            if sent.session.fenced or not sent.rows:
                self._release_locked([sent])
                return
            self._queue.append(sent)
            self._queued += sent.size
            if self._due is None:
                self._due = Deadline(self.options.linger, outlives=True)
            if len(self._queue) == 1 or self._is_full_locked():
                self._changed.notify_all()

    def _is_full_locked(self) -> bool:
        return self._queued >= self.options.group_bytes

    def drain(self, channel: _Channel, timeout: float | None) -> None:
        """Wait until nothing of a channel's sessions is left to be committed."""
        limit = Deadline(timeout)
        with self._changed:
            while any(session.waiting for session in channel.sessions) and (
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
                self._end({sent.session for sent in group}, _drop)
            finally:
                with self._changed:
                    self._committing.clear()
                    self._release_locked(group)

    def _next(self) -> list[_Sent]:
        """Wait for what is to be committed next, all of one schema; nothing when all have left."""
        with self._changed:
            if self._queue:
                # Who waited for the last commit follows soon, and few large groups cost less than
                # many small ones.
                self._due = Deadline(self.options.linger, outlives=True)
            while True:
                if not self._queue:
                    self._due = None
                    if not self._channels:
                        self._thread = None
                        return []
                    self._changed.wait(IDLE)
                elif self._due is None or self._due.expired() or self._is_full_locked():
                    break
                else:
                    self._changed.wait(self._due.remaining())
            group = self._cut_locked()
            self._committing = {sent.session.client for sent in group}
            return group

    def _cut_locked(self) -> list[_Sent]:
        """Take from the queue what is committed at once: all of one schema, up to a size."""
        first, size = self._queue[0].session.schema, 0
        same = {id(first): True}  # the schemas that were looked at
        group: list[_Sent] = []
        rest: list[_Sent] = []
        for sent in self._queue:
            schema = sent.session.schema
            if id(schema) not in same:
                same[id(schema)] = schema.equals(first)
            if same[id(schema)] and size < self.options.group_bytes:
                group.append(sent)
                size += sent.size
            else:
                rest.append(sent)
        self._queue, self._queued = rest, self._queued - size
        return group

    def _commit(self, group: Sequence[_Sent]) -> None:
        """Commit batches, and tell the sessions; a failure is that of no more than it has to be."""
        ends: dict[_Session, int] = {}
        for sent in group:
            ends[sent.session] = ends.get(sent.session, sent.session.rows) + sent.rows
        spans = {each.client: Span(each.rows, end, each.nonce) for each, end in ends.items()}
        schema = group[0].session.schema
        try:
            batches = _decoded(schema, group)
            stale = guarded(self._datasets.ingest)(self._dataset, schema, batches, spans)
        except RiverError as error:
            if len(ends) > 1 and error.code in ITS_OWN_FAULT:
                for session in ends:
                    self._commit([sent for sent in group if sent.session is session])
            elif error.code == Code.BUSY:
                self._end(ends, _drop)
            else:
                self.refuse(ends, error)
        except Exception as error:
            _log.exception("rows of ingest clients could not be added to %s", self._dataset)
            text = f"the store failed: {first_line(error)}"
            self.refuse(ends, refusal(Code.STORE_FAILED, text))
        else:
            if not stale:
                _tell(ends)
                return
            # Their clients have connected to another process, perhaps, and are told when they
            # connect again; the rest is committed without them.
            self._end([each for each in ends if each.client in stale], _drop)
            rest = [sent for sent in group if sent.session.client not in stale]
            if rest:
                self._commit(rest)

    def refuse(self, sessions: Iterable[_Session], error: RiverError) -> None:
        """Take nothing more of sessions, and tell their clients why."""
        self._end(sessions, lambda session: session.channel.refuse(session.number, error))

    def _end(self, sessions: Iterable[_Session], how: Callable[[_Session], None]) -> None:
        """End sessions, and drop what of them is queued behind what was not committed."""
        for session in sessions:
            with self._changed:
                session.fenced = True
                self._forget_locked(session)
                self._part_locked(session)
            how(session)


def _decoded(schema: Any, group: Sequence[_Sent]) -> Sequence[Any]:
    """Return batches as one.

    Raises:
        RiverError: BAD_ARROW.
    """
    table = read_batches(schema, [sent.data for sent in group])
    if table.num_rows != sum(sent.rows for sent in group):
        raise refusal(Code.BAD_ARROW, f"there are {table.num_rows} rows, and others were stated")
    batches: list[Any] = table.combine_chunks().to_batches()
    return batches


def _drop(session: _Session) -> None:
    session.channel.drop()


def _tell(ends: Mapping[_Session, int]) -> None:
    """Acknowledge rows as durable, all of a stream at once."""
    told: dict[_Channel, list[bytes]] = {}
    for session, rows in ends.items():
        session.rows = rows
        message = ingest_message(Ingest.DURABLE, session.number, rows.to_bytes(8, "little"))
        told.setdefault(session.channel, []).append(message)
    for channel, messages in told.items():
        channel.send(b"".join(messages))


def _taken_over(client: str) -> RiverError:
    text = f"another one was opened with the client id {client!r}: use an id for each that writes"
    return refusal(Code.TAKEN_OVER, text)
