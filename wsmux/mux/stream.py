"""Offer one logical byte stream as a blocking file.

Lock plan: everything in a ``StreamRecord`` is guarded by the connection's mutex. A reader and a
writer may wait at once, one each; a second one gets ``ConcurrencyError``. Whoever ends a half
collects its waiter under the mutex and wakes it afterwards; the waiter looks again and raises.

``makefile`` puts the buffered files of the standard library over a stream.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, overload

from ..exceptions import ConcurrencyError, StreamReset, WriteTimeout
from ..runtime.deadline import Deadline, deadline_in
from ..runtime.interrupts import is_interrupt
from ..runtime.parking import Parker
from .multiplexer import Multiplexer
from .receive_buffer import ByteQueue
from .stream_record import MAX_ID, Failure, StreamRecord, read_closed, write_closed
from .stream_socket import as_socket

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["Both", "ReadBytes", "Stream", "Text", "TextOptions", "WriteBytes", "make_file"]

# The modes of ``Stream.makefile``, by the file that each makes.
Both: TypeAlias = Literal["rwb", "rbw", "wrb", "wbr", "brw", "bwr"]
ReadBytes: TypeAlias = Literal["rb", "br"]
WriteBytes: TypeAlias = Literal["wb", "bw"]
Text: TypeAlias = Literal[
    "r", "w", "rw", "wr", "rt", "tr", "wt", "tw", "rwt", "rtw", "wrt", "wtr", "trw", "twr"
]

File: TypeAlias = io.BufferedRWPair | io.BufferedReader | io.BufferedWriter | io.TextIOWrapper


class TextOptions(TypedDict, total=False):
    """Describe the arguments that text files take; see ``io.TextIOWrapper``."""

    encoding: str | None
    errors: str | None
    newline: str | None
    line_buffering: bool
    write_through: bool


def make_file(stream: Stream, mode: str, buffering: int, **text: Unpack[TextOptions]) -> File:
    """Return a file as ``Stream.makefile`` tells.

    Raises:
        ValueError: there is no such mode, or no buffer.
    """
    if set(mode) - set("rwbt") or not set(mode) & set("rw") or set(mode) >= set("bt"):
        raise ValueError(f"mode must combine r and w with b or t, not {mode!r}")
    if buffering == 0:
        raise ValueError(
            "the files of makefile() are buffered: for unbuffered bytes use the stream itself, "
            "which is a file, too"
        )
    size = io.DEFAULT_BUFFER_SIZE if buffering < 0 else buffering
    buffered: Any  # a pair is a buffer that TextIOWrapper takes, but not by its stub
    if "r" in mode and "w" in mode:
        buffered = _BufferedPair(stream, size)
    elif "r" in mode:
        buffered = io.BufferedReader(stream, size)
    else:
        buffered = io.BufferedWriter(stream, size)
    made: File = buffered if "b" in mode else io.TextIOWrapper(buffered, **text)
    return made


class _BufferedPair(io.BufferedRWPair):
    """A pair that may be collected unclosed, as the other buffered files may."""

    def __init__(self, stream: Stream, size: int) -> None:
        super().__init__(stream, stream, size)
        self._stream = stream

    def __del__(self) -> None:
        # BufferedRWPair's own flushes without a word; the writer inside says it to the stream.
        return

    def _dealloc_warn(self, source: object) -> None:
        self._stream._dealloc_warn(source)


# What read() to the end asks for at a time; a chunk is never larger than a message.
_ALL = 2**62


_take = ByteQueue.take


class Stream(io.RawIOBase):
    """Read and write one stream of a connection; made by ``open_stream`` and ``accept_stream``.

    It works wherever a raw binary file does. Two threads may use it at once, one reading and one
    writing; closing and resetting are allowed from any thread at any time.

    Attributes:
        timeout: seconds that each call may block, ``None`` for no limit. A call that runs out of
            time raises ``TimeoutError`` and leaves the stream as it was, usable.

    Ends: a clean end by the peer is end of file. A reset by the peer raises ``StreamReset`` (or
    what ``code_to_reason`` makes of its code), a lost or closed connection ``ConnectionClosed``,
    after what had arrived was read; the use of a half this side has closed raises ``ValueError``.
    """

    def __init__(
        self, connection: Connection, multiplexer: Multiplexer, record: StreamRecord
    ) -> None:
        super().__init__()
        self._connection = connection
        self._multiplexer = multiplexer
        self._record = record
        self._dropped = self._abandoned = False
        self.timeout: float | None = multiplexer.config.stream_timeout

    def __repr__(self) -> str:
        record = self._record
        state = "closed" if record.closed else "open"
        return (
            f"<Stream {record.id} {state} unread={record.buffer.size} of {self._connection.name}>"
        )

    @property
    def id(self) -> int:
        """The id on the wire; its parity tells which side opened the stream."""
        return self._record.id & MAX_ID

    @property
    def connection(self) -> Connection:
        """The connection that carries the stream."""
        return self._connection

    @property
    def closed(self) -> bool:
        """Whether this side has closed or reset the stream."""
        return self._record.closed or self._abandoned

    def readable(self) -> bool:
        """Return true, as a file that can be read does."""
        return True

    def writable(self) -> bool:
        """Return true, as a file that can be written does."""
        return True

    # Reading

    def read(self, size: int | None = -1, /) -> bytes:
        """Return at most ``size`` bytes as soon as there are any; all to the end without a size.

        Blocks until bytes come, the stream ends, or ``timeout``. ``b""`` means the peer has ended
        its half cleanly, or ``size`` is 0.

        Raises:
            TimeoutError: nothing came in time.
            StreamReset, ConnectionClosed, StreamRefused: the stream did not end cleanly.
            ConcurrencyError: another thread is reading.
            ValueError: this side has closed the reading half.
        """
        if size is None or size < 0:
            return self.readall()
        return self._read(_take, size, size) or b""

    def readall(self) -> bytes:
        """Return everything up to the clean end; ``timeout`` is for the whole call.

        What was read before an error is lost; read in pieces where it matters.
        """
        deadline = Deadline(self.timeout)
        chunks: list[bytes] = []
        while chunk := self._read(_take, _ALL, _ALL, deadline):
            chunks.append(chunk)
        return b"".join(chunks)

    def readinto(self, target: Any, /) -> int:
        """Read into a writable buffer; return how many bytes, 0 at the clean end. See ``read``."""
        with memoryview(target) as view, view.cast("B") as flat:
            return self._read(ByteQueue.take_into, flat, len(flat)) or 0

    def fill(self, target: Any, /) -> int:
        """Read into a writable buffer until it is full; return how many bytes.

        Fewer only at the clean end. What was read before an error is lost. ``timeout`` is for each
        wait for further bytes. For bulk this costs less than ``readinto`` does: the thread is not
        woken for each message, but for a quarter of a window.

        Raises: as ``read``.
        """
        with memoryview(target) as view, view.cast("B") as flat:
            filled, size = 0, len(flat)
            while filled < size:
                with flat[filled:] as rest:
                    count = self._read(ByteQueue.take_into, rest, len(rest), enough=len(rest))
                if not count:
                    break
                filled += count
            return filled

    def _read(
        self,
        take: Callable[[ByteQueue, Any], Any],
        argument: int | memoryview,
        wanted: int,
        deadline: Deadline | None = None,
        enough: int = 1,
    ) -> Any:
        """Wait for bytes and take them; return ``None`` at the clean end.

        Where there is a choice, as many as are ``enough`` are waited for, or the low water mark.
        """
        multiplexer, record = self._multiplexer, self._record
        transport, buffer = multiplexer.transport, record.buffer
        changing = taking = False
        try:
            with transport.mutex:
                if record.reading or transport.in_child or buffer.size < enough or not wanted:
                    failure = self._wait_bytes_locked(
                        deadline or deadline_in(self.timeout), wanted, enough
                    )
                    if failure is None and not (buffer.size and wanted):
                        return None
                else:
                    failure = None
                if failure is None:
                    before = buffer.size
                    changing = taking = True
                    taken = take(buffer, argument)
                    owes = multiplexer.consumed_locked(record, before - buffer.size)
                    changing = False
            if failure is not None:
                raise failure()
            if owes:
                multiplexer.flush()
            return taken
        except BaseException as error:
            if taking:
                # The caller never gets what was taken. No silent hole: the next read must find the
                # stream reset, though the I/O thread comes later to tell the peer.
                multiplexer.interrupted(error, changing, lost=record)
            raise

    def _wait_bytes_locked(self, deadline: Deadline, wanted: int, enough: int) -> Failure | None:
        """Wait until there are bytes, or the half has ended; return its failure, if it failed.

        Fewer than ``enough`` have to do when no more come, or not in time.

        The failure may run the application's code, so the caller raises it without the mutex.
        """
        multiplexer, record = self._multiplexer, self._record
        transport = multiplexer.transport
        multiplexer.check_forked_locked()
        if record.reading:
            raise ConcurrencyError(f"another thread is reading stream {record.id}")
        enough = min(enough, record.low_water)
        while not (record.buffer.size >= enough and wanted):
            if record.buffer.size and (record.ended or transport.error is not None):
                break
            if record.read_failure is not None:
                return record.read_failure
            if record.ended or not wanted:
                break
            if transport.error is not None:
                transport.check_locked()
            if deadline.expired():
                if record.buffer.size:
                    break
                raise TimeoutError(f"read of stream {record.id} timed out")
            record.reading, record.enough = True, enough
            try:
                record.reader.wait(transport.mutex, deadline)
            finally:
                record.reading, record.enough = False, 1
        return None

    # Writing

    def write(self, data: Any, /) -> int:
        """Send all of ``data``; return its length.

        Blocks while the peer has given no credit or the connection's send queue is full. On
        return every byte has been handed to the socket or to the queue in front of it; that the
        peer has read it is known only from what it answers.

        Raises:
            WriteTimeout: out of time (a ``TimeoutError``); ``bytes_written`` were taken.
            StreamWriteClosed: the peer reads no further. StreamReset: the stream was aborted.
            StreamRefused: the peer did not take the stream. ConnectionClosed: it has ended.
            ConcurrencyError: another thread is writing.
            ValueError: this side has closed the writing half.
        """
        if self._dropped:
            # In the finalizer of a buffered file: no lock may be taken, so the bytes go nowhere,
            # and the close that follows resets the stream, which tells the peer. An error would
            # help nobody: Python 3.13 prints it, at any moment, and those before it drop it.
            return memoryview(data).nbytes
        if type(data) is bytes:
            view, copy = memoryview(data), False
        else:
            view, copy = memoryview(data).cast("B"), True  # the caller may change it later
        deadline = deadline_in(self.timeout)
        record, multiplexer = self._record, self._multiplexer
        transport = multiplexer.transport
        size, written, more, changing = len(view), 0, False, False
        try:
            while True:
                part = view[written:] if written else view
                if copy:
                    part = memoryview(bytes(part[: multiplexer.config.max_frame_size]))
                with transport.mutex:
                    if record.writing and not more:
                        raise ConcurrencyError(f"another thread is writing to stream {record.id}")
                    failure, sent, ticket = None, 0, None
                    if record.write_failure is None and transport.error is None:
                        changing = True
                        sent, ticket = multiplexer.send_locked(record, part, waited=False)
                        changing = False
                    if ticket is None:
                        failure, sent, ticket = self._wait_and_send_locked(part, deadline)
                    written += sent
                    more = record.writing = failure is None and written < size
                if failure is not None:
                    raise failure()
                if more and not sent:
                    raise WriteTimeout(record.id, written, size)
                transport.flush(
                    ticket,
                    deadline,
                    lambda: record.write_failure is not None or transport.error is not None,
                )
                if not more:
                    if transport.cut:
                        multiplexer.check_cut()
                    return written
        except BaseException as error:
            multiplexer.interrupted(error, changing, record)
            raise
        finally:
            if more:
                record.writing = False

    def _wait_and_send_locked(
        self, part: memoryview, deadline: Deadline
    ) -> tuple[Failure | None, int, int]:
        """Queue one frame of ``part`` when it can be; return its size and its ticket.

        The size is 0 when out of time.

        The failure of the half comes first, if it has one; it may run the application's code, so
        the caller raises it without the mutex.
        """
        record, multiplexer = self._record, self._multiplexer
        transport = multiplexer.transport
        queue, waited, changing = transport.queue, False, False
        try:
            while True:
                if record.write_failure is not None:
                    return record.write_failure, 0, 0
                if transport.error is not None:
                    transport.check_locked()
                changing = True
                sent, ticket = multiplexer.send_locked(record, part, waited)
                changing = False
                if ticket is not None:
                    waited = False
                    return None, sent, ticket
                if deadline.expired():
                    return None, 0, 0
                record.writing = True
                if not multiplexer.credit_locked(record) and part:
                    record.writer.wait(transport.mutex, deadline)
                else:
                    waited = True
                    queue.wait_room_locked(record.writer, deadline)
        except BaseException as error:
            if changing and is_interrupt(error):
                multiplexer.broken_locked()
            raise
        finally:
            record.writing = False
            if waited:
                multiplexer.wake()  # the room in the queue was not used: pass it on

    def flush(self) -> None:
        """Do nothing: a write is sent at once."""

    def ping(self, timeout: float | None = None) -> float:
        """Return the seconds that a ping of this stream and its pong take; ``bymux`` only.

        Raises:
            TimeoutError: no pong in time; the stream goes on.
            LocalProtocolError: the wire has no ping of streams (``connection.ping()`` will do), or
                both halves were closed here.
            StreamError: the stream ended first, after which the peer owes no pong.
            ConnectionClosed: the connection has ended.
        """
        return self._multiplexer.ping(Deadline(timeout), self._record)

    # Ending

    def close_write(self) -> None:
        """Signal the end to the peer, after everything written. Never blocks."""
        self._close_halves(write=True, read=False)

    def close_read(self) -> None:
        """Signal to the peer that nothing further is read; drop what is unread. Never blocks."""
        self._close_halves(write=False, read=True)

    def _close_halves(self, write: bool, read: bool) -> None:
        record, multiplexer = self._record, self._multiplexer

        def close(wakes: list[Parker]) -> None:
            if write:
                record.fail_write(write_closed, wakes, own=True)
            if read:
                record.fail_read(read_closed, wakes, own=True)
            multiplexer.close_locked(record, write, read, wakes)
            record.closed = record.closed or (write and read)

        multiplexer.change(close, record)

    def close(self) -> None:
        """End writing after what was written, stop reading, and return at once.

        Calls of other threads on the stream, blocked or later, raise ``ValueError``.
        """
        if self._record.closed:
            return
        if self._dropped:
            self._abandoned = True  # a text file over the buffered one looks before it flushes
            self._multiplexer.abandon(self._record)
            return
        self._close_halves(write=True, read=True)

    def reset(self, code: int | BaseException = 0) -> int:
        """Abort both halves with an error code, and return it. Never blocks.

        Unread bytes on both sides are void.

        Args:
            code: 0 (unknown) or an application code, from 64 up; or an exception, which
                ``reason_to_code`` turns into a code.

        Calls of other threads, blocked or later, raise ``StreamReset``.

        Raises:
            ValueError: the code is reserved for the protocol.
        """
        multiplexer, record = self._multiplexer, self._record
        number = multiplexer.code_for(code)
        failure = partial(StreamReset, record.id, number, "local")

        def reset(wakes: list[Parker]) -> None:
            multiplexer.reset_locked(record, number, failure, wakes)
            record.closed = True

        multiplexer.change(reset, record)
        return number

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; after an exception reset, so that half a file never looks whole."""
        if exc is None:
            self.close()
        elif not self._record.closed:
            self.reset(exc)

    def __del__(self) -> None:
        # No lock: the garbage collector may run this inside any of ours. RawIOBase would close().
        record = getattr(self, "_record", None)
        if record is not None and not record.closed:
            self._multiplexer.abandon(record)

    def _dealloc_warn(self, source: object) -> None:
        # The io module says with this that a buffered file over the stream is being collected
        # unclosed, and will flush and close in its finalizer, where no lock may be taken.
        self._dropped = True

    @overload
    def makefile(self, mode: Both = "rwb", buffering: int = -1) -> io.BufferedRWPair: ...

    @overload
    def makefile(self, mode: ReadBytes, buffering: int = -1) -> io.BufferedReader: ...

    @overload
    def makefile(self, mode: WriteBytes, buffering: int = -1) -> io.BufferedWriter: ...

    @overload
    def makefile(
        self, mode: Text, buffering: int = -1, **text: Unpack[TextOptions]
    ) -> io.TextIOWrapper: ...

    @overload  # a mode that is known only when it runs; not IO[Any], which the pair is none of
    def makefile(self, mode: str, buffering: int = -1, **text: Unpack[TextOptions]) -> Any: ...

    def makefile(self, mode: str = "rwb", buffering: int = -1, **text: Unpack[TextOptions]) -> Any:
        """Return a buffered file over the stream; closing it closes the stream, both halves.

        That is unlike ``socket.makefile``, whose file leaves the socket open. A file for writing
        that is closed, as a ``with`` block does, leaves no stream to read an answer from: where
        one comes, ``flush()`` the file and call ``close_write()`` of the stream instead.

        Args:
            mode: ``"r"``, ``"w"`` or ``"rw"``, with ``"b"`` for bytes, else or with ``"t"`` text.
            buffering: buffer size in bytes, -1 for the default; not 0, as the stream itself is the
                file without a buffer.
            text: ``encoding``, ``errors``, ``newline``, ``line_buffering``, ``write_through`` of
                ``io.TextIOWrapper``.

        Needed where a read must return exactly what it asks for, while one of the stream itself
        may be short: csv, pickle, ``readline``, pyarrow.
        """
        return make_file(self, mode, buffering, **text)

    def as_socket(self) -> socket.socket:
        """Return a connected TCP socket that reads and writes the stream, which it owns now.

        For what needs a descriptor: ``select``, ``ssl``, ``subprocess``. Two daemon threads copy
        until both directions have ended; ``wsmux.mux.stream_socket`` says how ends and resets map.
        Close the socket, not the stream: closing the stream as well, as leaving its ``with`` block
        does, resets the socket and drops what the threads have not copied yet. Set no timeout on a
        socket that becomes a child's standard input: it would be a non-blocking file there, which
        most programs take for an end of file when nothing has come yet.

        Raises: OSError, NoThreadError: the system gives no sockets, or no threads.
        """
        return as_socket(self)
