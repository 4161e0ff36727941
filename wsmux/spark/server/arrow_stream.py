"""Send and receive record batches over streams as Arrow IPC, with checks and bounds on input.

pyarrow trusts its input: it allocates any length that a message states, accepts a stream that ends
between two batches, and may crash on invalid values. So each message is checked before pyarrow gets
it, the end marker is required, and every batch is validated before use.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ...config import MIB
from ...exceptions import WsmuxError
from ...runtime import clock
from ...runtime.lazy_imports import pa
from ..protocol import FAILURE, Code, raise_refusal, read_line, refusal
from ..store.schemas import check_text, decoded_size, first_line, inside

__all__ = [
    "FRAME",
    "ArrowSource",
    "Limits",
    "Sink",
    "Source",
    "check_batch",
    "pieces",
    "read_batches",
    "receive",
    "send",
]

# Bytes written at once: the largest frame, several times as fast as 1 MiB.
FRAME = 64 * 1024

# Seconds without a write after which what there is is sent, if need be an empty batch: so whoever
# waits for rows of a long scan hears of it, and it ends soon when nobody waits any more.
SILENCE = 1.0

# Bytes read at once, small enough to be in the CPU cache still for the checksum.
PIECE = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bound the memory that one stream can take; larger batches are refused."""

    batch_bytes: int = 64 * MIB
    """Bytes of a record batch with its dictionaries decoded."""
    batch_rows: int = 2**24
    """Rows of a record batch; rows may take no bytes on the wire and many in memory."""
    head_bytes: int = 16 * MIB
    """Bytes of a schema, or of the header of a batch."""


class Source(Protocol):
    """Describe what Arrow data is read from, such as a stream."""

    def fill(self, target: Any, /) -> int:
        """Read until the buffer is full, or the end; return the number of bytes."""


class Sink(Protocol):
    """Describe what Arrow data is written to, such as a stream."""

    def write(self, data: Any, /) -> int:
        """Write all of it."""


# In

_PREFIX = struct.Struct("<II")
_CONTINUATION = 0xFFFFFFFF
END = _PREFIX.pack(_CONTINUATION, 0)  # of a stream
_SCHEMA, _DICTIONARY, _RECORDS = 1, 2, 3


class ArrowSource:
    """Provide a file for pyarrow to read: one IPC stream, each message checked first.

    Args:
        source: what is read. limits: the bounds of messages. summed: whether to compute ``crc``.
        more: whether anything may follow the end marker.

    Attributes:
        bytes, crc: the number of bytes read, and their CRC-32, or 0.
        error: the exception that ended reading; pyarrow may have wrapped it.
    """

    closed = False

    def __init__(
        self, source: Source, limits: Limits, *, summed: bool = False, more: bool = False
    ) -> None:
        self._source = source
        self._limits = limits
        self._summed = summed
        self._more = more
        self._head = memoryview(b"")  # checked, not yet returned
        self._body = 0  # bytes left of the message's body
        self._dictionaries: dict[int, int] = {}  # bytes of each that the reader holds
        self._ended = False
        self.bytes = 0
        self.crc = 0
        self.error: BaseException | None = None

    def readable(self) -> bool:
        """Return true, as a readable file."""
        return True

    def close(self) -> None:
        """Leave the stream open for the answer."""

    def read(self, size: int) -> Any:
        """Return a buffer of ``size`` bytes, fewer at the end."""
        try:
            return self._read(size)
        except BaseException as error:
            self.error = error
            raise

    def _read(self, size: int) -> Any:
        if not 0 <= size <= self._limits.batch_bytes + self._limits.head_bytes:
            raise refusal(Code.TOO_LARGE, f"a message of {size} bytes")
        data = pa.allocate_buffer(size)  # of memory that was used before, and is not cleared
        filled = 0
        with memoryview(data).cast("B") as view:
            while filled < size:
                if self._head:
                    part = self._head[: size - filled]
                    view[filled : filled + len(part)] = part
                    self._head = self._head[len(part) :]
                    filled += len(part)
                elif self._body:
                    part = view[filled : filled + self._body]
                    self._fill(part)
                    self._body -= len(part)
                    filled += len(part)
                elif self._ended:
                    break
                else:
                    self._next_message()
        return data if filled == size else data.slice(0, filled)

    def finish(self) -> None:
        """Check that there is the end marker, and nothing behind it unless there may be.

        Raises:
            RiverError: BAD_ARROW.
        """
        if not self._ended:
            self._next_message()
        if not self._ended or (not self._more and self._source.fill(bytearray(1))):
            raise _bad("bytes follow the end of the Arrow stream")

    def _fill(self, view: memoryview) -> int:
        step = PIECE if self._summed else max(1, len(view))
        for start in range(0, len(view), step):
            piece = view[start : start + step]
            count = self._source.fill(piece)
            if self._summed:
                self.crc = zlib.crc32(piece[:count], self.crc)
            self.bytes += count
            if count < len(piece):
                text = "within a message" if self.bytes else "before it began"
                raise _bad(f"the Arrow stream ended {text}, after {self.bytes} bytes")
        return len(view)

    def _next_message(self) -> None:
        prefix = bytearray(_PREFIX.size)
        self._fill(memoryview(prefix))
        if prefix == FAILURE:
            raise_refusal(read_line(lambda one: self._fill(memoryview(one))))
        mark, size = _PREFIX.unpack(prefix)
        if mark != _CONTINUATION:
            raise _bad("these bytes are not an Arrow IPC stream")
        if not size:
            self._ended = True
            self._head = memoryview(prefix)
            return
        if size > self._limits.head_bytes:
            text = f"the header of a message has {size} bytes; up to {self._limits.head_bytes} are"
            raise refusal(Code.TOO_LARGE, f"{text} accepted")
        head = bytearray(size)
        self._fill(memoryview(head))
        told = _checked(head, self._limits)
        if told.dictionary is not None:
            self._dictionaries[told.dictionary] = told.body
            if sum(self._dictionaries.values()) > self._limits.batch_bytes:
                text = f"the dictionaries have more than the {self._limits.batch_bytes} bytes that"
                raise refusal(Code.TOO_LARGE, f"{text} are accepted: send plain columns")
        self._body = told.body
        self._head = memoryview(bytes(prefix) + bytes(head))


class _Head(NamedTuple):
    """What the header of a message states."""

    kind: int
    body: int
    rows: int
    dictionary: int | None = None
    """Which dictionary it brings; it takes the place of an earlier one of the same number."""


def _checked(head: Any, limits: Limits) -> _Head:
    """Check the header of a message (Arrow's Message.fbs)."""
    try:
        return _checked_table(_Table(head, struct.unpack_from("<I", head, 0)[0]), limits)
    except (struct.error, IndexError, OverflowError) as error:
        raise _bad(f"the header of a message is malformed: {error}") from error


def _checked_table(message: _Table, limits: Limits) -> _Head:
    kind, body = message.number(1, "<B"), message.number(3, "<q")
    if kind not in (_SCHEMA, _DICTIONARY, _RECORDS) or body < 0:
        raise _bad(f"a message of kind {kind} with {body} bytes cannot be part of a stream")
    if body > limits.batch_bytes:
        text = f"a record batch has {body} bytes; up to {limits.batch_bytes} are accepted"
        raise refusal(Code.TOO_LARGE, f"{text}: send smaller batches")
    if kind == _SCHEMA:
        return _Head(kind, body, 0)
    batch = message.table(2)
    dictionary = None
    if kind == _DICTIONARY:
        dictionary = batch.number(0, "<q")
        if batch.number(2, "<B"):  # deltas would grow without bound
            raise _bad("delta dictionaries are not supported; send whole ones")
        batch = batch.table(1)
    rows = batch.number(0, "<q")
    if not 0 <= rows <= limits.batch_rows:
        text = f"a record batch has {rows} rows; up to {limits.batch_rows} are accepted"
        raise refusal(Code.TOO_LARGE, f"{text}: send smaller batches")
    if batch.place(3):  # the decompressed size would be unbounded
        raise _bad("compressed record batches are not supported; send them uncompressed")
    return _Head(kind, body, rows, dictionary)


def check_batch(data: Any, limits: Limits) -> int:
    """Check the frame of one message that holds a record batch; return how many rows it states.

    What passes can be joined with others and be read by one call of ``read_batches``.

    Raises:
        RiverError: BAD_ARROW or TOO_LARGE.
    """
    size = len(data)
    mark, length = _PREFIX.unpack_from(data) if size >= _PREFIX.size else (0, 0)
    body = size - _PREFIX.size - length
    if mark != _CONTINUATION or not length or body < 0 or size % 8 or length % 8:
        raise _bad(f"these {size} bytes are not one message of Arrow IPC")
    head = _checked(data[_PREFIX.size : _PREFIX.size + length], limits)
    if head.kind != _RECORDS or head.body != body:
        raise _bad(f"a message of kind {head.kind} with {head.body} bytes is no record batch here")
    return head.rows


def read_batches(schema: Any, messages: Iterable[Any]) -> Any:
    """Return the rows of messages that ``check_batch`` has passed as one table, validated.

    One call of pyarrow reads all, since a call for each costs several times what is in it.

    Raises:
        RiverError: BAD_ARROW; one is invalid, or is not of the schema.
    """
    data = b"".join([schema.serialize(), *messages, END])
    try:
        table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise _bad(f"these bytes are no rows of the schema: {first_line(error)}") from error
    return table


class _Table:
    """Read fields of a FlatBuffers table; out-of-bounds access raises ``struct.error``."""

    def __init__(self, data: bytearray, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        if self._fields < 0:
            raise struct.error("a table starts before its message")
        self._size = struct.unpack_from("<H", data, self._fields)[0]

    def place(self, field: int) -> int:
        """Return the position of a field, 0 if it is absent."""
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return 0
        offset: int = struct.unpack_from("<H", self._data, self._fields + entry)[0]
        return self._at + offset if offset else 0

    def number(self, field: int, form: str) -> int:
        """Return a number, 0 if it is absent."""
        place = self.place(field)
        number: int = struct.unpack_from(form, self._data, place)[0] if place else 0
        return number

    def table(self, field: int) -> _Table:
        """Return a nested table."""
        place = self.place(field)
        if not place:
            raise struct.error(f"field {field} is missing")
        return _Table(self._data, place + struct.unpack_from("<I", self._data, place)[0])


def receive(source: ArrowSource, limits: Limits) -> tuple[Any, Iterator[Any]]:
    """Return the schema of an IPC stream, and an iterator of its validated record batches.

    The end is checked after the last batch.

    Raises:
        RiverError: BAD_ARROW or TOO_LARGE, here or while iterating. Errors of the stream are raised
            unchanged.
    """
    try:
        reader = pa.ipc.open_stream(source)
        check_text(reader.schema)
    except Exception as error:
        raise _failure(source, error) from error
    return reader.schema, _batches(source, reader, limits)


def _batches(source: ArrowSource, reader: Any, limits: Limits) -> Iterator[Any]:
    grows = _with_dictionaries(reader.schema)  # else a batch takes what its message has
    while True:
        try:
            batch = reader.read_next_batch()
            batch.validate(full=True)
        except StopIteration:
            source.finish()
            return
        except Exception as error:
            raise _failure(source, error) from error
        size = sum(decoded_size(column) for column in batch.columns) if grows else 0
        if size > limits.batch_bytes:
            text = f"a record batch has {size} bytes with its dictionaries decoded; up to"
            raise refusal(Code.TOO_LARGE, f"{text} {limits.batch_bytes} are accepted")
        yield batch


def _with_dictionaries(fields: Iterable[Any]) -> bool:
    kinds = [field.type for field in fields]
    return any(pa.types.is_dictionary(kind) or _with_dictionaries(inside(kind)) for kind in kinds)


def _failure(source: ArrowSource, error: Exception) -> BaseException:
    """Return the cause of an error: of the stream, of a check, or invalid bytes."""
    if source.error is not None:
        return source.error
    if isinstance(error, pa.ArrowException | OSError | ValueError | EOFError):
        return _bad(f"these bytes are not an Arrow IPC stream: {first_line(error)}")
    return error


def _bad(text: str) -> Exception:
    return refusal(Code.BAD_ARROW, text)


# Out


class _Frames:
    """Provide a file for pyarrow to write: gather small writes, and send whole frames.

    Attributes:
        dead: nothing more is sent, so that a failed stream never gets its end marker.
        sent: when something was sent last, by ``clock.monotonic``; before that, when this was made.
        error: the exception of the stream; pyarrow may have wrapped it.
    """

    closed = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._gathered = bytearray()
        self.sent = clock.monotonic()
        self.dead = False
        self.error: BaseException | None = None

    def writable(self) -> bool:
        """Return true, as a writable file."""
        return True

    def write(self, data: Any) -> int:
        """Write all of it."""
        with memoryview(data) as whole, whole.cast("B") as view:
            size = len(view)
            first = 0
            if self._gathered or size < FRAME:
                first = min(size, FRAME - len(self._gathered))
                self._gathered += view[:first]
                if len(self._gathered) == FRAME:
                    self.flush()
            middle = first + (size - first) // FRAME * FRAME
            if middle > first:
                self._send(view[first:middle])
            self._gathered += view[middle:]
        return size

    def flush(self) -> None:
        """Send gathered bytes."""
        if self._gathered:
            gathered, self._gathered = self._gathered, bytearray()
            self._send(bytes(gathered))

    def close(self) -> None:
        """Leave the stream open."""

    def _send(self, data: Any) -> None:
        if self.dead:
            return
        try:
            self._sink.write(data)
        except BaseException as error:
            self.dead, self.error = True, error
            raise
        self.sent = clock.monotonic()


def send(
    sink: Sink, schema: Any, batches: Iterable[Any], limits: Limits, empty: bool = False
) -> None:
    """Write one IPC stream; its end marker is sent only if nothing failed.

    Batches above the limit are sent in slices. Where nothing was sent for ``SILENCE`` seconds, what
    was gathered is sent with the next batch, whether that has rows or not. Errors of the stream are
    raised unchanged; if the iterator of batches fails, the batches before have been sent.

    Args:
        empty: whether a batch without rows is sent then; others without rows never are.
    """
    frames = _Frames(sink)
    try:
        writer = pa.ipc.new_stream(frames, schema)
        for batch in batches:
            late = clock.monotonic() - frames.sent > SILENCE
            if batch.num_rows or (empty and late):
                for piece in pieces(batch, limits.batch_bytes):
                    writer.write_batch(piece)
            if late:
                frames.flush()
        writer.close()
        frames.flush()
    except Exception:
        if frames.error is not None:
            raise frames.error from None
        with suppress(WsmuxError, OSError):  # the error of the batches counts, and is no cut
            frames.flush()  # complete messages
        raise
    finally:
        frames.dead = True


def pieces(batch: Any, limit: int) -> Iterator[Any]:
    """Yield a batch in slices of at most so many bytes, or of one row."""
    if batch.num_rows < 2 or batch.nbytes <= limit:
        yield batch
        return
    half = batch.num_rows // 2
    yield from pieces(batch.slice(0, half), limit)
    yield from pieces(batch.slice(half), limit)
