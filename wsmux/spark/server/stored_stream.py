"""Send and receive the rows of a table, of which row groups may come as they are stored.

What follows the first line of such a stream are blocks: eight bytes that tell a length, low bytes
first, and so many bytes. The first block is the schema, an Arrow IPC message. Each further one has
the length of JSON (four bytes, low bytes first), this JSON, and data, if there is any:
``{"arrow": true}``, behind which comes an Arrow IPC stream that is no block; or what is told of a
row group (``tables.stored_files.StoredGroup``), and its pieces. A block without bytes ends it all.

``FAILURE`` and a refusal line may stand in place of any block, as of any message of Arrow.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...rpc import RiverError
from ...runtime.lazy_imports import pa
from ..protocol import FAILURE, Code, parse_line, raise_refusal, read_line, refusal
from ..store.schemas import schema_bytes, schema_of
from ..tables.stored_files import MAX_BLOCK, MAX_TOLD, StoredGroup, read_group
from .arrow_stream import ArrowSource, Limits, Sink, Source, receive, send

__all__ = ["receive_stored", "send_stored"]

_LENGTH, _HEAD = struct.Struct("<q"), struct.Struct("<I")


def send_stored(
    sink: Sink, schema: Any, items: Iterable[Any], limits: Limits, empty: bool = False
) -> None:
    """Write record batches, and row groups as they are stored; see ``pass_file``, and ``send``.

    Errors of the stream are raised unchanged. If the iterator fails, all before has been sent.
    """
    _write(sink, schema_bytes(schema))
    rest = iter(items)
    item = next(rest, None)
    while item is not None:
        if isinstance(item, StoredGroup):
            _write(sink, *_headed(item.told), *item.pieces)
            item = next(rest, None)
        else:
            _write(sink, *_headed({"arrow": True}))
            batches = _Batches(item, rest)
            send(sink, schema, batches, limits, empty)
            item = batches.after
    _write(sink)


def _headed(told: Mapping[str, Any]) -> tuple[bytes, bytes]:
    head = json.dumps(told, separators=(",", ":")).encode()
    return _HEAD.pack(len(head)), head


def _write(sink: Sink, *pieces: Any) -> None:
    sink.write(_LENGTH.pack(sum(map(len, pieces))))
    for piece in pieces:
        sink.write(piece)


class _Batches:
    """Yield record batches until something else comes.

    Attributes:
        after: what came then, ``None`` at the end.
    """

    def __init__(self, first: Any, rest: Iterator[Any]) -> None:
        self.after: Any = first
        self._rest = rest

    def __iter__(self) -> Iterator[Any]:
        while isinstance(self.after, pa.RecordBatch):
            yield self.after
            self.after = next(self._rest, None)


def receive_stored(source: Source, limits: Limits) -> Iterator[Any]:
    """Yield the record batches of such a stream, validated.

    Raises:
        RiverError: BAD_ARROW, TOO_LARGE or CORRUPT, or what the server refused it with. Errors of
            the stream are raised unchanged.
    """
    schema = _schema(_take(source, limits.head_bytes))
    while data := _take(source):
        told, data = _parted(data)
        if "arrow" in told:
            told_schema, batches = receive(ArrowSource(source, limits, more=True), limits)
            if not told_schema.equals(schema, check_metadata=True):
                raise _bad("a part has another schema than the others")
            yield from batches
            continue
        try:
            yield from read_group(told, data, schema)
        except RiverError as error:
            if error.code != Code.BAD_REQUEST:
                raise
            raise _bad(f"a row group is malformed: {error.message}") from error
    if source.fill(bytearray(1)):
        raise _bad("bytes follow the end of the rows")


def _take(source: Source, most: int = MAX_BLOCK) -> Any:
    """Return the next block, of so many bytes at most."""
    prefix = bytearray(_LENGTH.size)
    _fill(source, prefix)
    if prefix == FAILURE:
        raise_refusal(read_line(source.fill))
    (size,) = _LENGTH.unpack(prefix)
    if not 0 <= size <= most:
        raise refusal(Code.TOO_LARGE, f"a block of {size} bytes; up to {most} are accepted")
    data = pa.allocate_buffer(size)
    with memoryview(data) as view:
        _fill(source, view)
    return data


def _fill(source: Source, target: Any) -> None:
    count = source.fill(target)
    if count < len(target):
        raise _bad(f"the rows ended within a block, {len(target) - count} bytes early")


def _parted(data: Any) -> tuple[dict[str, Any], Any]:
    """Return what is told in a block, and the rest of it."""
    start = _HEAD.size
    if start <= len(data):
        start += _HEAD.unpack_from(data)[0]
    if start > len(data):
        raise _bad(f"the head of a block ends behind its {len(data)} bytes")
    if start > MAX_TOLD + _HEAD.size:
        text = f"the head of a block has {start - _HEAD.size} bytes; up to {MAX_TOLD} are accepted"
        raise refusal(Code.TOO_LARGE, text)
    try:
        told = parse_line(data.slice(_HEAD.size, start - _HEAD.size).to_pybytes() + b"\n")
    except RiverError as error:
        raise _bad(f"the head of a block is malformed: {error.message}") from error
    return told, data.slice(start)


def _schema(data: Any) -> Any:
    try:
        schema = schema_of(data)
    except RiverError as error:
        raise _bad(error.message) from error
    if len(set(schema.names)) < len(schema):
        raise _bad("columns of the schema have the same name")
    return schema


def _bad(text: str) -> RiverError:
    return refusal(Code.BAD_ARROW, text)
