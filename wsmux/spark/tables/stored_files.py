"""Pass row groups of tables' files on as they are stored, and read what was passed on.

To decode a file is most of what reading it takes. A server that leaves this to those who read has
time for more of them, and sends fewer bytes. Files that take more care than that, such as those
with lists or with large row groups, are decoded by the server all the same.

Whoever reads believes nothing of what was sent: pyarrow gets a footer that is written here, and
pages that were looked at before; and a row group takes no more memory than it may.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ...config import MIB
from ...rpc import RiverError
from ...runtime.lazy_imports import pa, pq
from ..protocol import Code, Request, refusal
from ..store.schemas import inside, reading, relaxed
from .actions import DataFile
from .data_files import Chunk as RowChunk
from .data_files import (
    RowGroups,
    chunks_of,
    is_coded,
    opened,
    read_file,
    read_open,
)
from .folder import Folder
from .parquet_format import CODECS, ENCODINGS, MAGIC, Chunk, Shape, check_pages

__all__ = ["MAX_BLOCK", "MAX_TOLD", "StoredGroup", "pass_file", "read_group"]

# Bytes of a file that is worth being passed on: for a small one, to open it costs both most.
LEAST = 64 * 1024

# The most bytes that a row group has, as it is stored or decoded, what is told of it, and both.
MAX_GROUP = 32 * MIB
MAX_TOLD = MIB
MAX_BLOCK = MAX_GROUP + 2 * MAX_TOLD

# The most columns of a row group, those within others counted.
MAX_LEAVES = 4096

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
    if file.size < LEAST:
        yield from read_file(folder, file, schema, columns, span, shown)
        return
    wanted = pa.schema([schema.field(name) for name in columns])
    with opened(folder, file, shown) as source:
        footer = pq.read_metadata(source)
        values = {name: v for name, v in file.partition.items() if name in columns}
        about = {"file": shown, "partition": values}
        with RowGroups(source, wanted, file.partition, footer, own=True) as groups:
            spans = [each for each in groups.spans(file.rows, span) if each[1] < each[2]]
            plan = _plan(groups, footer, spans, about)
        if plan is None:
            yield from read_open(source, file, wanted, span, footer, folder.far)
            return
        for told, runs in plan:
            pieces = [_read_at(source, *run) for run in runs]
            yield StoredGroup(told, [MAGIC, *pieces])


# Where bytes are in a file, and how many.
Run = tuple[int, int]


def _plan(
    groups: RowGroups,
    footer: Any,
    spans: Sequence[tuple[int, int, int]],
    about: Mapping[str, Any],
) -> list[tuple[dict[str, Any], list[Run]]] | None:
    """Return what to tell of each row group, and what to read; ``None`` to decode the file here."""
    known = groups.known
    if not str(footer.created_by).startswith(_WRITER) or not _is_flat(known):
        return None
    columns = _columns(known)
    there = [_nullable(groups.there.field(name)) for name in known.names]
    if there != [_nullable(field) for field in columns.schema]:
        return None
    plan = []
    for place, start, end in spans:
        held_chunks = list(chunks_of(footer, place, groups.columns))
        chunks = {chunk.kind.path: chunk for chunk in held_chunks}
        kinds = [_kind(chunks[path].kind) for path in columns.paths if path in chunks]
        # Such as nanoseconds of others; or names with dots, by which paths are the same.
        if kinds != columns.kinds or len(chunks) < len(held_chunks):
            return None
        if any(map(_repeats, held_chunks)):
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
    starts, start = [], len(MAGIC)
    for _, size in runs:
        starts.append(start)
        start += size
    firsts = [at for at, _ in runs]
    chunks = []
    for told in found:
        at, packed = _run(told)
        run = bisect(firsts, at) - 1
        place = starts[run] + at - firsts[run]
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
    """The columns of a file under a schema, or those within them: by their paths and kinds."""

    schema: Any
    paths: list[str]
    kinds: list[tuple[Any, ...]]
    shape: Shape


def _is_flat(schema: Any) -> bool:
    """Return whether all columns, not too many, have one plain value in each row, or structs do.

    A list may have any number of values in a few bytes, and text under an extension type is not
    kept as a dictionary.
    """
    leaves = 0
    left = [field.type for field in schema]
    while left:
        kind = left.pop()
        if pa.types.is_struct(kind):
            left.extend(field.type for field in kind)
            leaves += not kind.num_fields
        elif kind.num_fields or isinstance(kind, pa.BaseExtensionType):
            return False
        leaves += 1
        if leaves > MAX_LEAVES:
            return False
    return leaves > 0


def _nullable(field: Any) -> tuple[Any, ...]:
    """Return whether a column, and those within it, may be null."""
    return field.nullable, *map(_nullable, inside(field.type))


@lru_cache(16)
def _columns(schema: Any) -> _Columns:
    schema = relaxed(schema, fixed=False)
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    file = sink.getvalue()
    columns = pq.read_metadata(pa.BufferReader(file)).schema
    kinds = [columns.column(place) for place in range(len(columns))]
    shape = Shape(file.to_pybytes(), [kind.physical_type for kind in kinds])
    return _Columns(schema, [kind.path for kind in kinds], list(map(_kind, kinds)), shape)


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
    if not start < end <= rows:
        raise _malformed("start", "be below end, and end not above rows")
    known, partition = _known(request, wanted), _partition(told.get("partition"))
    chunks = list(_chunks(told.get("chunks")))
    with reading(shown):
        if not _is_flat(known):
            raise ValueError("a row group has lists, an extension type, or too many columns")
        columns = _columns(known)
        if len(chunks) != len(columns.paths) or sum(chunk.packed for chunk in chunks) > len(data):
            text = f"{len(chunks)} columns are told of, for {len(columns.paths)} and"
            raise ValueError(f"{text} {len(data)} bytes")
        for chunk in chunks:
            if chunk.at + chunk.packed > len(data):
                raise ValueError(f"a column ends behind the {len(data)} bytes that there are")
            check_pages(data.slice(chunk.at, chunk.packed), rows, chunk.size, chunk.encodings)
        footer = pq.read_metadata(pa.BufferReader(columns.shape.footer(rows, chunks)))
        parts = list(chunks_of(footer, 0, known.names))
        if any(map(_repeats, parts)):
            raise ValueError("text within a column of a row group has a dictionary")
        group = RowGroups(pa.BufferReader(data), wanted, partition, footer, at_once=AT_ONCE)
        decoded = sum(part.decoded for part in parts) + group.more
        if decoded > MAX_GROUP:
            raise ValueError(f"a row group has {decoded} bytes; up to {MAX_GROUP} are accepted")
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
        whole = all(type(n) is int and len(MAGIC) <= n <= MAX_GROUP for n in numbers)
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
