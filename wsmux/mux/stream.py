"""Provide a logical byte stream as a blocking file.

Locking: everything in a ``StreamRecord`` is guarded by the connection's mutex. One reader and one
writer may wait at the same time; a second one gets ``ConcurrencyError``. Code that ends a half
collects its waiter under the mutex and wakes it afterwards; the waiter checks again and raises.

``makefile`` wraps a stream in the buffered files of the standard library.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, overload

from ..exceptions import ConcurrencyError, StreamReset, WriteTimeout
from ..runtime import clock
from ..runtime.deadline import Deadline, deadline_in
from ..runtime.interrupts import is_interrupt
from ..runtime.parking import Parker
from .multiplexer import Multiplexer
from .receive_buffer import ByteQueue
from .stream_record import Failure, StreamRecord
from .stream_socket import as_socket

if TYPE_CHECKING:
    from .connection import Connection

__all__ = [
    "Both",
    "ReadBytes",
    "Stream",
    "Text",
    "TextOptions",
    "WriteBytes",
    "drop",
    "end_read",
    "make_file",
    "read_until",
]

# The modes of ``Stream.makefile``, by the type of file that each returns.
Both: TypeAlias = Literal["rwb", "rbw", "wrb", "wbr", "brw", "bwr"]
ReadBytes: TypeAlias = Literal["rb", "br"]
WriteBytes: TypeAlias = Literal["wb", "bw"]
Text: TypeAlias = Literal[
    "r", "w", "rw", "wr", "rt", "tr", "wt", "tw", "rwt", "rtw", "wrt", "wtr", "trw", "twr"
]

File: TypeAlias = io.BufferedRWPair | io.BufferedReader | io.BufferedWriter | io.TextIOWrapper


class TextOptions(TypedDict, total=False):
    """Describe the options of text files; see ``io.TextIOWrapper``."""

    encoding: str | None
    errors: str | None
    newline: str | None
    line_buffering: bool
    write_through: bool


def make_file(stream: Stream, mode: str, buffering: int, **text: Unpack[TextOptions]) -> File:
    """Return the file that ``Stream.makefile`` describes.

    Raises:
        ValueError: the mode is unknown, or the buffer size is 0.
    """
    if set(mode) - set("rwbt") or not set(mode) & set("rw") or set(mode) >= set("bt"):
        raise ValueError(f"mode must combine r and w with b or t, not {mode!r}")
    if buffering == 0:
        raise ValueError(
            "the files of makefile() are buffered: for unbuffered bytes use the stream itself, "
            "which is a file, too"
        )
    size = io.DEFAULT_BUFFER_SIZE if buffering < 0 else buffering
    buffered: Any  # TextIOWrapper accepts a pair, but its stub does not
    if "r" in mode and "w" in mode:
        buffered = _BufferedPair(stream, size)
    elif "r" in mode:
        buffered = io.BufferedReader(stream, size)
    else:
        buffered = io.BufferedWriter(stream, size)
    made: File = buffered if "b" in mode else io.TextIOWrapper(buffered, **text)
    return made


def read_until(stream: Stream, size: int, deadline: Deadline) -> bytes:
    """Read as ``Stream.read`` does, until a deadline that ``end_read`` may move."""
    return stream._read(_take, size, size, deadline) or b""


def end_read(stream: Stream, deadline: Deadline) -> None:
    """Let a thread in ``read_until`` time out now, if nothing has come. Never blocks."""
    deadline.at = clock.monotonic()
    stream._multiplexer.change(stream._record.reader.notify_forced)


def drop(stream: Stream, whole: bool = False) -> None:
    """End a stream that nobody refers to any more; idempotent, and takes no lock.

    For whatever a finalizer may call: the garbage collector runs that in any thread, also in one
    that holds the connection's mutex. See ``Multiplexer.abandon``.
    """
    stream._drop(whole)


class _BufferedPair(io.BufferedRWPair):
    """A pair that may be garbage-collected unclosed, like the other buffered files."""

    def __init__(self, stream: Stream, size: int) -> None:
        super().__init__(stream, stream, size)
        self._stream = stream

    def __del__(self) -> None:
        # BufferedRWPair would flush silently; the writer inside it notifies the stream.
        return

    def _dealloc_warn(self, source: object) -> None:
        self._stream._dealloc_warn(source)


# Size for each step of read() to the end; a chunk is never larger than a message.
_ALL = 2**62


_take = ByteQueue.take


class Stream(io.RawIOBase):
    """Read and write one stream of a connection; made by ``open_stream`` and ``accept_stream``.

    It works wherever a raw binary file does. One thread may read while another one writes; closing
    and resetting are allowed from any thread at any time.

    Attributes:
        timeout: seconds that each call may block, ``None`` for no limit. A call that times out
            raises ``TimeoutError`` and leaves the stream usable.

    A clean end by the peer is end of file. A reset by the peer raises ``StreamReset`` (or the
    exception that ``code_to_reason`` returns), and a lost or closed connection
    ``ConnectionClosed``, once the bytes received before have been read. Using a half that this side
    has closed raises ``ValueError``.
    """

    def __init__(
        self, connection: Connection, multiplexer: Multiplexer, record: StreamRecord
    ) -> None:
        super().__init__()
        self._connection = connection
        self._multiplexer = multiplexer
        self._dropped = self._abandoned = False
        self._record = record
        self.timeout: float | None = multiplexer.config.stream_timeout

    def __repr__(self) -> str:
        record = self._record
        state = "closed" if record.closed else "open"
        return (
            f"<Stream {record.number} {state} unread={record.buffer.size} "
            f"of {self._connection.name}>"
        )

    @property
    def id(self) -> int:
        """The id on the wire; its parity shows which side opened the stream."""
        return self._record.number

    @property
    def connection(self) -> Connection:
        """The connection that carries the stream."""
        return self._connection

    @property
    def closed(self) -> bool:
        """Whether this side has closed or reset the stream."""
        return self._record.closed or self._abandoned

    def readable(self) -> bool:
        """Return true."""
        return True

    def writable(self) -> bool:
        """Return true."""
        return True

    # Reading

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes as soon as any are available; without a size, all to the end.

        Blocks until bytes arrive, the stream ends, or ``timeout`` expires. ``b""`` means that the
        peer ended its half cleanly, or that ``size`` is 0.

        Raises:
            TimeoutError: no bytes arrived in time.
            StreamReset, ConnectionClosed, StreamRefused: the stream did not end cleanly.
            ConcurrencyError: another thread is reading.
            ValueError: this side has closed the reading half.
        """
        if size is None or size < 0:
            return self.readall()
        return self._read(_take, size, size) or b""

    def readall(self) -> bytes:
        """Return all bytes up to the clean end; ``timeout`` applies to the whole call.

        Bytes read before an error are lost; if they matter, read in pieces.
        """
        deadline = Deadline(self.timeout)
        chunks: list[bytes] = []
        while chunk := self._read(_take, _ALL, _ALL, deadline):
            chunks.append(chunk)
        return b"".join(chunks)

    def readinto(self, target: Any, /) -> int:
        """Read into a writable buffer as ``read`` does; return the byte count, 0 at the end."""
        with memoryview(target) as view, view.cast("B") as flat:
            return self._read(ByteQueue.take_into, flat, len(flat)) or 0

    def fill(self, target: Any, /) -> int:
        """Read into a writable buffer until it is full; return the number of bytes.

        It returns fewer only at the clean end. Bytes read before an error are lost. ``timeout``
        applies to each wait for more bytes. For bulk this costs less than ``readinto``: the thread
        is woken once per quarter of a window rather than for each message.

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

        Wait for ``enough`` bytes, or for the low-water mark if that is less.
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
                # The bytes taken are lost. To leave no silent gap, the next read must find the
                # stream reset, even before the I/O thread has notified the peer.
                multiplexer.interrupted(error, changing, lost=record)
            raise

    def _wait_bytes_locked(self, deadline: Deadline, wanted: int, enough: int) -> Failure | None:
        """Wait until there are bytes or the half ends; return its failure, if it failed.

        Fewer than ``enough`` are sufficient if no more can arrive, or none arrive in time.

        The failure may run application code, so the caller raises it after releasing the mutex.
        """
        record, transport = self._record, self._multiplexer.transport
        if transport.in_child:  # as ``check_forked_locked``, for each wait without a call
            transport.check_locked()
        if record.reading:
            raise ConcurrencyError(f"another thread is reading stream {record.number}")
        if enough > record.low_water:
            enough = record.low_water
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
                raise TimeoutError(f"read of stream {record.number} timed out")
            record.reading, record.enough = True, enough
            try:
                transport.wait_locked(record.reader, transport.mutex, deadline)
            finally:
                record.reading, record.enough = False, 1
        return None

    # Writing

    def write(self, data: Any, /) -> int:
        """Send all of ``data``; return its length.

        Blocks while the peer grants no credit or the connection's send queue is full. On return,
        every byte is in the socket or in the send queue; whether the peer has read it can only be
        known from its answer.

        Raises:
            WriteTimeout: timed out (a ``TimeoutError``) after taking ``bytes_written`` bytes.
            StreamWriteClosed: the peer has stopped reading.
            StreamReset: the stream was reset.
            StreamRefused: the peer refused the stream.
            ConnectionClosed: the connection has ended.
            ConcurrencyError: another thread is writing.
            ValueError: this side has closed the writing half.
        """
        if self._dropped:
            # In the finalizer of a buffered file no lock may be taken, so the bytes are dropped,
            # and the close that follows resets the stream, which notifies the peer. An error would
            # help nobody: Python 3.13 prints it, at any moment, and older versions drop it.
            return memoryview(data).nbytes
        if type(data) is bytes:
            view, copy = memoryview(data), False
        else:
            view, copy = memoryview(data).cast("B"), True  # the caller may change it
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
                        text = f"another thread is writing to stream {record.number}"
                        raise ConcurrencyError(text)
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
                    raise WriteTimeout(record.number, written, size)
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
        """Queue one frame of ``part`` when possible; return its failure, its size and its ticket.

        The size is 0 on timeout. A failure of the half takes precedence; it may run application
        code, so the caller raises it after releasing the mutex.
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
                multiplexer.wake()  # did not use the room in the queue: pass it on

    def flush(self) -> None:
        """Do nothing: writes are sent at once."""

    def ping(self, timeout: float | None = None) -> float:
        """Return the round-trip time of a ping of this stream, in seconds; ``bymux`` only.

        Raises:
            TimeoutError: no pong arrived in time; the stream continues.
            LocalProtocolError: the wire has no stream pings (use ``connection.ping()``), or both
                halves were closed here.
            StreamError: the stream ended first, after which the peer need not answer.
            ConnectionClosed: the connection has ended.
        """
        return self._multiplexer.ping(Deadline(timeout), self._record)

    # Ending

    def close_write(self) -> None:
        """Send the end of the stream, after everything written. Never blocks."""
        self._close_halves(write=True, read=False)

    def close_read(self) -> None:
        """Notify the peer that nothing more is read, and drop unread bytes. Never blocks."""
        self._close_halves(write=False, read=True)

    def _close_halves(self, write: bool, read: bool) -> None:
        record, multiplexer = self._record, self._multiplexer
        multiplexer.change(
            lambda wakes: multiplexer.close_locked(record, write, read, wakes), record
        )

    def close(self) -> None:
        """Close both halves: end writing after everything written, and stop reading. Never blocks.

        Blocked and later calls of other threads on the stream raise ``ValueError``.
        """
        if self.closed:
            return
        if self._dropped:
            self._drop()
            return
        self._close_halves(write=True, read=True)

    def reset(self, code: int | BaseException = 0) -> int:
        """Abort both halves with an error code, and return the code. Never blocks.

        Unread bytes on both sides are discarded. Blocked and later calls of other threads raise
        ``StreamReset``.

        Args:
            code: 0 (unknown) or an application code, from 64 up; or an exception, which
                ``reason_to_code`` maps to a code.

        Raises:
            ValueError: the code is reserved for the protocol.
        """
        multiplexer, record = self._multiplexer, self._record
        number = multiplexer.code_for(code)
        failure = partial(StreamReset, record.number, number, "local")

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
        """Close; after an exception reset, so that a partial file never looks complete."""
        if exc is None:
            self.close()
        elif not self._record.closed:
            self.reset(exc)

    def __del__(self) -> None:
        # No lock: the garbage collector may run this while any lock is held. RawIOBase would
        # close().
        if hasattr(self, "_record"):
            self._drop()

    def _drop(self, whole: bool = False) -> None:
        if not self.closed:
            self._multiplexer.abandon(self._record, whole)
            # Afterwards, as an interrupt may come between; a text file over a buffered one checks
            # this before it flushes.
            self._abandoned = True

    def _dealloc_warn(self, source: object) -> None:
        # The io module calls this when a buffered file over the stream is collected unclosed; it
        # will then flush and close in its finalizer, where no lock may be taken.
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

    @overload  # a mode known only at run time; not IO[Any], since the pair is none
    def makefile(self, mode: str, buffering: int = -1, **text: Unpack[TextOptions]) -> Any: ...

    def makefile(self, mode: str = "rwb", buffering: int = -1, **text: Unpack[TextOptions]) -> Any:
        """Return a buffered file over the stream; closing it closes the stream, both halves.

        This differs from ``socket.makefile``, whose file leaves the socket open. Once a file for
        writing is closed, as by a ``with`` block, the stream cannot be read: if you expect an
        answer, ``flush()`` the file and call ``close_write()`` of the stream instead.

        Needed where a read must return exactly the requested number of bytes, while a read of the
        stream itself may return fewer: csv, pickle, ``readline``, pyarrow.

        Args:
            mode: ``"r"``, ``"w"`` or ``"rw"``, with ``"b"`` for bytes; text otherwise, or with
                ``"t"``.
            buffering: buffer size in bytes, -1 for the default; not 0, since the stream itself is
                the unbuffered file.
            text: ``encoding``, ``errors``, ``newline``, ``line_buffering``, ``write_through`` of
                ``io.TextIOWrapper``.
        """
        return make_file(self, mode, buffering, **text)

    def as_socket(self) -> socket.socket:
        """Return a connected TCP socket that reads and writes the stream, and that now owns it.

        For code that needs a descriptor: ``select``, ``ssl``, ``subprocess``. Two daemon threads
        copy until both directions have ended; ``wsmux.mux.stream_socket`` describes how ends and
        resets map. Close the socket, not the stream: closing the stream as well, as leaving its
        ``with`` block does, resets the socket and drops the bytes not yet copied. Do not set a
        timeout on a socket that becomes a child's standard input: the child would get a
        non-blocking file, on which most programs mistake a lack of data for an end of file.

        Raises:
            OSError: the system has no sockets left.
            NoThreadError: the system has no threads left.
        """
        return as_socket(self)
