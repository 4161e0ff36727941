"""Pass row groups of tables' files on as they are stored, and read what was passed on.

To decode a file is most of what reading it takes. A server that leaves this to those who read has
time for more of them, and sends fewer bytes. Files that take more care than that, such as those
with lists or with large row groups, are decoded by the server all the same.

Whoever reads believes nothing of what was sent: pyarrow gets a footer that is written here, and
pages that were looked at before; and a row group takes no more memory than it may.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ...config import MIB
from ...rpc import RiverError
from ...runtime.lazy_imports import pa, pq
from ..protocol import Code, Request, refusal
from ..store.schemas import reading, relaxed
from .actions import DataFile
from .data_files import Chunk as RowChunk
from .data_files import RowGroups, chunks_of, is_coded, opened, read_file
from .folder import Folder
from .parquet_format import CODECS, ENCODINGS, MAGIC, Chunk, Shape, check_pages

__all__ = ["MAX_BLOCK", "MAX_TOLD", "StoredGroup", "pass_file", "read_group"]

# Bytes of a file that is worth being passed on: for a small one, to open it costs both most.
LEAST = 64 * 1024

# The most bytes that a row group has, as it is stored or decoded, what is told of it, and both.
MAX_GROUP = 32 * MIB
MAX_TOLD = MIB
MAX_BLOCK = MAX_GROUP + 2 * MAX_TOLD

# Bytes of a row group that are decoded at once: all of it, as they are written here.
AT_ONCE = 8 * MIB

# What writes files whose footers and pages are as expected here.
_WRITER = "parquet-cpp-arrow"


class StoredGroup(NamedTuple):
    """What a file has of some columns in a row group, in pieces, and what is told of it.

    ``told`` is JSON: ``file`` (its name), ``rows`` (of the row group), ``start`` and ``end`` (those
    that are wanted), ``partition`` (the values that all rows of the file have), ``columns`` (those
    wanted that the file has) and ``chunks``: for each of these, or of those within it, where it is
    in the pieces, how many bytes it has there and decompressed, the numbers of its codec and
    encodings, and whether it begins with a dictionary.
    """

    told: dict[str, Any]
    pieces: list[Any]


def pass_file(
    folder: Folder, file: DataFile, schema: Any, columns: Sequence[str], span: range, shown: str
) -> Iterator[Any]:
    """Yield some rows of a file as ``read_file`` does, or as they are stored.

    Yields:
        Record batches; or a ``StoredGroup`` for each row group that has some of the rows.
    """
    if file.size >= LEAST:
        wanted = pa.schema([schema.field(name) for name in columns])
        with opened(folder, file, shown) as source:
            values = {name: v for name, v in file.partition.items() if name in columns}
            about = {"file": shown, "partition": values}
            with RowGroups(source, wanted, file.partition) as groups:
                plan = _plan(groups, file.rows, span, about)
            if plan is not None:
                for told, runs in plan:
                    pieces = [_read_at(source, *run) for run in runs]
                    yield StoredGroup(told, [MAGIC, *pieces])
                return
    yield from read_file(folder, file, schema, columns, span, shown)


# Where bytes are in a file, and how many.
Run = tuple[int, int]


def _plan(
    groups: RowGroups, rows: int | None, span: range, about: Mapping[str, Any]
) -> list[tuple[dict[str, Any], list[Run]]] | None:
    """Return what to tell of each row group, and what to read; ``None`` to decode the file here."""
    footer, spans = groups.footer, list(groups.spans(rows, span))
    if not str(footer.created_by).startswith(_WRITER) or not groups.known.names:
        return None
    columns = _columns(groups.known)
    if not columns.flat:
        return None
    plan = []
    for place, start, end in spans:
        chunks = {chunk.kind.path: chunk for chunk in chunks_of(footer, place, groups.columns)}
        kinds = [_kind(chunks[path].kind) for path in columns.paths if path in chunks]
        # Such as nanoseconds of others.
        if kinds != columns.kinds or any(map(_repeats, chunks.values())):
            return None
        found = [chunks[path].told for path in columns.paths]
        decoded = sum(chunk.decoded for chunk in chunks.values())
        held = footer.row_group(place).num_rows
        if not all(map(_is_plain, found)) or not all(each.num_values == held for each in found):
            return None
        runs = _joined(map(_run, found))
        if max(decoded, sum(size for _, size in runs)) > MAX_GROUP:
            return None
        told = {**about, "columns": groups.columns, "rows": held, "start": start, "end": end}
        told["chunks"] = _told(found, runs)
        if len(json.dumps(told)) > MAX_TOLD:
            return None
        plan.append((told, runs))
    return plan


def _repeats(chunk: RowChunk) -> bool:
    """Return whether it has text within another column that may take far more bytes decoded."""
    return is_coded(chunk.told) and bool(chunk.kind.path != chunk.kind.name)


def _is_plain(told: Any) -> bool:
    return told.compression in CODECS and ENCODINGS.keys() >= set(told.encodings)


def _run(told: Any) -> Run:
    """Return where a column of a row group is in its file."""
    at = told.data_page_offset
    if told.has_dictionary_page:
        at = min(at, told.dictionary_page_offset)
    return at, told.total_compressed_size


def _joined(runs: Iterable[Run]) -> list[Run]:
    joined: list[Run] = []
    for at, size in sorted(runs):
        if joined and sum(joined[-1]) == at:
            joined[-1] = (joined[-1][0], joined[-1][1] + size)
        else:
            joined.append((at, size))
    return joined


def _told(found: Sequence[Any], runs: Sequence[Run]) -> list[list[Any]]:
    """Return where each column is in the pieces that are sent, and what it is."""
    starts, start = {}, len(MAGIC)
    for at, size in runs:
        starts[at] = start
        start += size
    chunks = []
    for told in found:
        at, packed = _run(told)
        first = max(each for each in starts if each <= at)
        place = starts[first] + at - first
        encodings = [ENCODINGS[each] for each in told.encodings]
        codec, coded = CODECS[told.compression], bool(told.has_dictionary_page)
        size = told.total_uncompressed_size
        chunks.append([place, packed, size, codec, encodings, coded])
    return chunks


def _read_at(source: Any, at: int, size: int) -> Any:
    source.seek(at)
    data = source.read_buffer(size)
    if len(data) != size:
        raise pa.ArrowInvalid(f"it ends {size - len(data)} bytes early")
    return data


class _Columns(NamedTuple):
    """The columns of a file, or those within them: by their paths, and what the format knows.

    ``flat``: none is a list, of which a few bytes may have any number of values.
    """

    paths: list[str]
    kinds: list[tuple[Any, ...]]
    flat: bool
    shape: Shape


@lru_cache(16)
def _columns(schema: Any) -> _Columns:
    schema = relaxed(schema, fixed=False)
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    file = sink.getvalue()
    columns = pq.read_metadata(pa.BufferReader(file)).schema
    kinds = [columns.column(place) for place in range(len(columns))]
    shape = Shape(file.to_pybytes(), [kind.physical_type for kind in kinds])
    flat = not any(kind.max_repetition_level for kind in kinds)
    return _Columns([kind.path for kind in kinds], list(map(_kind, kinds)), flat, shape)


def _kind(kind: Any) -> tuple[Any, ...]:
    """Return what has to be the same of a column for it to be read as another one."""
    logical, levels = str(kind.logical_type), kind.max_definition_level
    return kind.path, kind.physical_type, logical, kind.length, levels


# Reading


def read_group(told: Mapping[str, Any], data: Any, wanted: Any) -> Iterator[Any]:
    """Yield the rows of a row group that was passed on.

    Args:
        told: what was told of it; see ``StoredGroup``. data: its pieces, joined.
        wanted: the schema of the rows.

    Raises:
        RiverError: CORRUPT, it is no such row group; BAD_REQUEST, what was told is malformed.
    """
    request = Request(told)
    shown, rows = request.text("file"), request.whole("rows")
    start, end = request.whole("start"), request.whole("end")
    known, partition = _known(request, wanted), _partition(told.get("partition"))
    chunks = list(_chunks(told.get("chunks")))
    with reading(shown):
        for chunk in chunks:
            if chunk.at + chunk.packed > len(data):
                raise ValueError(f"a column ends behind the {len(data)} bytes that there are")
            check_pages(data.slice(chunk.at, chunk.packed), rows, chunk.size, chunk.encodings)
        columns = _columns(known)
        if not columns.flat:
            raise ValueError("a column of a row group has lists")
        footer = pq.read_metadata(pa.BufferReader(columns.shape.footer(rows, chunks)))
        parts = list(chunks_of(footer, 0, known.names))
        if any(map(_repeats, parts)):
            raise ValueError("text within a column of a row group has a dictionary")
        decoded = sum(part.decoded for part in parts)
        if decoded > MAX_GROUP:
            raise ValueError(f"a row group has {decoded} bytes; up to {MAX_GROUP} are accepted")
        file = pa.BufferReader(data)
        group = RowGroups(file, wanted, partition, footer, at_once=AT_ONCE)
    with group:
        batches = group.read(0, start, end)
        while (batch := _next(batches, shown)) is not None:
            yield batch


def _next(batches: Iterator[Any], shown: str) -> Any:
    """Return the next batch, validated, ``None`` at the end."""
    with reading(shown):
        batch = next(batches, None)
        if batch is not None:
            batch.validate(full=True)
        return batch


def _known(request: Request, wanted: Any) -> Any:
    """Return the schema of the columns that the file has."""
    names = request.texts("columns") or []
    if not names or not set(names) <= set(wanted.names) or len(set(names)) < len(names):
        raise _malformed("columns", "name some of those wanted, each once")
    return pa.schema([wanted.field(name) for name in names])


def _partition(told: object) -> Mapping[str, str | None]:
    if isinstance(told, dict) and all(isinstance(each, str | None) for each in told.values()):
        return told
    raise _malformed("partition", "be an object with texts")


def _chunks(told: object) -> Iterator[Chunk]:
    for each in told if isinstance(told, list) else [None]:
        if not isinstance(each, list) or len(each) != len(Chunk._fields):
            raise _malformed("chunks", f"be lists of {len(Chunk._fields)}")
        chunk = Chunk(*each)
        numbers = (chunk.at, chunk.packed, chunk.size)
        whole = all(type(number) is int and number >= len(MAGIC) for number in numbers)
        known = type(chunk.codec) is int and chunk.codec in CODECS.values()
        known = known and type(chunk.coded) is bool and _are_known(chunk.encodings)
        if not (whole and known):
            raise _malformed("chunks", "tell of each column where and what it is")
        yield chunk


def _are_known(encodings: object) -> bool:
    return isinstance(encodings, list) and all(
        type(each) is int and each in ENCODINGS.values() for each in encodings
    )


def _malformed(name: str, text: str) -> RiverError:
    return refusal(Code.BAD_REQUEST, f"{name} must {text}")
