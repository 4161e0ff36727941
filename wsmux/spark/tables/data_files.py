"""Write the Parquet files of tables, and read ranges of them back.

What is written needs memory for one row group, whatever comes: see ``parquet_writer``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Self

from ...config import MIB
from ...runtime.lazy_imports import pa, pq
from ..source.ranges import Group, overlaps
from ..store.base import READ_BYTES, READ_ROWS
from ..store.schemas import decoded_size, reading, relaxed, restamp
from .actions import DataFile
from .folder import Folder
from .parquet_writer import ParquetWriter
from .partitions import partition_value
from .statistics import Statistics

__all__ = [
    "NewFile",
    "RowGroups",
    "Written",
    "chunks_of",
    "groups_of",
    "is_coded",
    "opened",
    "read_file",
    "read_open",
    "rows_in",
]

# Bytes of a file that are worth being read apart.
GROUP_BYTES = 8 * MIB

# Rows that are read at once of text whose dictionaries cannot be kept, such as that within lists:
# nothing tells the size of it.
CODED_ROWS = 256

# Names of files that were written here, of which a row group has ``parquet_writer.GROUP_BYTES``
# at most when it is decoded.
_OWN = re.compile(r"part-[0-9]{5,19}-[0-9]{1,19}-[0-9a-f]{16}\.snappy\.parquet")

# Bytes of a decoded value by how it is stored, at least.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "FIXED_LEN_BYTE_ARRAY": 16}
_WIDEST = 8

# Encodings by which values that repeat, or begin alike, take next to nothing in a file.
_CODED = {"PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY"}

# The encodings of text, and of its nulls, from which pyarrow makes arrays with dictionaries.
_KEPT = {"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}


class Written(NamedTuple):
    """A file that was written: its exact size, and what ``AddAction`` calls statistics."""

    size: int
    rows: int
    stats: str


class NewFile:
    """Write one file of a table.

    Errors are those of pyarrow and of the system.
    """

    def __init__(self, folder: Folder, name: str, schema: Any) -> None:
        self._folder = folder
        self._name = name
        self._known = Statistics()
        self._writer = ParquetWriter(folder.writer(name), schema)

    def write(self, batch: Any) -> None:
        """Add a batch of the schema."""
        self._known.see(batch)
        self._writer.write(batch)

    @property
    def held(self) -> int:
        """Bytes that are in memory until their row group is whole."""
        return self._writer.held

    def flush(self) -> None:
        """Write what is in memory as a row group of its own."""
        self._writer.flush()

    def close(self) -> Written:
        """End the file, and make it and its name safe from a crash."""
        metadata = self._writer.close()
        size = self._folder.seal(self._name)
        return Written(size, metadata.num_rows, self._known.text(metadata))

    def abandon(self) -> None:
        """Let go of the file, and remove it."""
        self._writer.abandon()
        self._folder.remove(self._name)


def groups_of(file: DataFile) -> Iterator[Group]:
    """Yield what of a file is worth being read apart, without a look into it."""
    rows = file.rows or 0
    pieces = max(1, min(rows, round(file.size / GROUP_BYTES)))
    edges = [rows * place // pieces for place in range(pieces + 1)]
    for start, end in zip(edges, edges[1:], strict=False):
        if end > start:
            yield Group(end - start, file.size * (end - start) / rows)


def rows_in(folder: Folder, name: str, shown: str) -> int:
    """Return how many rows a file has, for one without statistics.

    Raises:
        RiverError: CORRUPT. FileNotFoundError: it is gone.
    """
    with reading(shown), folder.reader(name, shown) as source:
        return int(pq.read_metadata(source).num_rows)


def read_file(
    folder: Folder, file: DataFile, schema: Any, columns: Sequence[str], span: range, shown: str
) -> Iterator[Any]:
    """Yield some rows of a file, some columns of them.

    Args:
        schema: of the table, of all columns. span: the rows wanted, counted in the file.

    Raises:
        RiverError: CORRUPT. FileNotFoundError: it is gone.
    """
    with opened(folder, file, shown) as source:
        wanted = pa.schema([schema.field(name) for name in columns])
        yield from read_open(source, file, wanted, span, pq.read_metadata(source), folder.far)


@contextmanager
def opened(folder: Folder, file: DataFile, shown: str) -> Iterator[Any]:
    """Open a file to read it within the block.

    Raises:
        RiverError: CORRUPT, for what pyarrow says of it there. FileNotFoundError: it is gone.
    """
    try:
        with reading(shown), folder.reader(file.path, shown) as source:
            yield source
    except FileNotFoundError as error:
        raise FileNotFoundError(shown) from error


def read_open(
    source: Any, file: DataFile, wanted: Any, span: range, footer: Any, far: bool
) -> Iterator[Any]:
    """Yield some rows of an open file under a schema."""
    own = _OWN.fullmatch(PurePosixPath(file.path).name) is not None
    with RowGroups(source, wanted, file.partition, footer, own=own, far=far) as groups:
        for place, start, end in groups.spans(file.rows, span):
            yield from groups.read(place, start, end)


class RowGroups:
    """Read the row groups of an open Parquet file under a schema.

    Args:
        source: a file of pyarrow. wanted: the schema of what is read.
        partition: the values of the columns that are in no file. footer: as pyarrow has it.
        own: whether row groups are small when they are decoded, whatever is encoded. Text of others
            is decoded in pieces: a dictionary of 40 KiB may stand for gigabytes.
        far: whether each look takes a request: the columns of a row group are read at once then.
        at_once: bytes that are decoded at once; batches have ``READ_BYTES`` all the same.

    Attributes:
        there: the schema that the file has in Arrow.
        known: the schema of the wanted columns that it has.
        columns: their names, or one that is not wanted if there is none.
        more: about how many bytes what the file has not takes in each row.

    Raises:
        pa.ArrowException, OSError, ValueError: by all methods; it is damaged.
    """

    def __init__(
        self,
        source: Any,
        wanted: Any,
        partition: Mapping[str, str | None],
        footer: Any,
        *,
        own: bool = False,
        far: bool = False,
        at_once: int = READ_BYTES,
    ) -> None:
        self._wanted = wanted
        self._at_once = at_once
        self._partition = partition
        self._coded = None if own else _coded_texts(footer, wanted.names)
        self._file = pq.ParquetFile(
            source,
            metadata=footer,
            pre_buffer=far,
            page_checksum_verification=True,
            read_dictionary=self._coded or [],
        )
        self._footer = footer
        self.there = self._file.schema_arrow
        # A column that the file has not may be all that is wanted: the rows are to be counted.
        names = set(self.there.names)
        self.known = pa.schema([field for field in wanted if field.name in names])
        self.columns = self.known.names or self.there.names[:1]
        missing = [field for field in wanted if field.name not in names]
        self.more = sum(_row_bytes(each.type, partition.get(each.name)) for each in missing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def spans(self, rows: int | None, span: range) -> Iterator[tuple[int, int, int]]:
        """Yield the row groups that some rows of the file are in, and which of each."""
        footer = self._footer
        held = [footer.row_group(place).num_rows for place in range(footer.num_row_groups)]
        if sum(held) != rows:
            raise pa.ArrowInvalid(f"it has {sum(held)} rows, not {rows}")
        return overlaps(held, span.start, span.stop)

    def read(self, place: int, start: int, end: int) -> Iterator[Any]:
        """Yield rows of a row group, in batches of about ``READ_BYTES``."""
        rows = _rows_at_once(self._footer, place, self.columns, self._coded, self._at_once)
        rows = min(rows, max(1, self._at_once // max(1, self.more)))
        at = 0
        for batch in self._file.iter_batches(rows, row_groups=[place], columns=self.columns):
            first, last = max(start - at, 0), min(end - at, batch.num_rows)
            at += batch.num_rows
            if first < last:
                batch = batch.slice(first, last - first)
                for piece in _pieces(batch, self._at_once > READ_BYTES):
                    yield _whole(piece, self._wanted, self._partition)
            if at >= end:
                break


def _row_bytes(kind: Any, text: str | None = None) -> int:
    """Return about how many bytes a value takes in each row: of a partition, or a null."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _row_bytes(kind.value_type)
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    if isinstance(kind, pa.BaseExtensionType):
        return _row_bytes(kind.storage_type)
    if pa.types.is_struct(kind):
        return sum(_row_bytes(field.type) for field in kind)
    return len(text or "") * 4 + 16


class Chunk(NamedTuple):
    """What a row group has of a column, or of one within others: its place, footer and kind."""

    place: int
    told: Any
    kind: Any

    @property
    def decoded(self) -> int:
        """About how many bytes it has once it is decoded; text that repeats counts once."""
        least = max(_WIDTHS.get(self.told.physical_type, _WIDEST), self.kind.length)
        return int(max(self.told.total_uncompressed_size, least * self.told.num_values))


def chunks_of(footer: Any, place: int, columns: Sequence[str]) -> Iterator[Chunk]:
    """Yield what a row group has of some columns."""
    group, names = footer.row_group(place), set(columns)
    for at in range(group.num_columns):
        kind = footer.schema.column(at)
        if not names.isdisjoint(_paths(kind.path)):
            yield Chunk(at, group.column(at), kind)


def _coded_texts(metadata: Any, columns: Sequence[str]) -> list[int]:
    """Return the places of those columns of text, not within others, whose dictionaries are kept.

    They are those that some row group has encoded, and that can be read so from all of them.
    """
    wanted, found = set(columns), []
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    for place in range(metadata.num_columns):
        column = metadata.schema.column(place)
        if column.path != column.name or column.name not in wanted:
            continue
        if column.physical_type == "BYTE_ARRAY":
            chunks = [group.column(place) for group in groups]
            if any(map(is_coded, chunks)) and all(_KEPT.issuperset(c.encodings) for c in chunks):
                found.append(place)
    return found


def is_coded(chunk: Any) -> bool:
    """Return whether a column of a row group has text that takes little where it repeats."""
    return chunk.physical_type == "BYTE_ARRAY" and not _CODED.isdisjoint(chunk.encodings)


def _rows_at_once(
    metadata: Any, place: int, columns: Sequence[str], coded: Container[int] | None, at_once: int
) -> int:
    """Return how many rows of a row group to read at once, for so many bytes in memory.

    Args:
        columns: those that are read. coded: the places of columns whose dictionaries are kept;
            ``None`` for a file whose row groups are small whatever is encoded.
    """
    group, most = metadata.row_group(place), READ_ROWS * at_once // READ_BYTES
    size = group.total_byte_size
    if coded is not None:
        chunks = list(chunks_of(metadata, place, columns))
        size = sum(chunk.decoded for chunk in chunks)
        if any(is_coded(chunk.told) and chunk.place not in coded for chunk in chunks):
            most = CODED_ROWS
    # As many in each batch, since one with the few rows that are left over would take as long.
    batches = math.ceil(size / (at_once + at_once // 64)) or 1
    return max(1, min(most, math.ceil(int(group.num_rows) / batches)))


def _paths(path: str) -> Iterator[str]:
    """Yield the path of a column within others, and the paths of those."""
    yield path
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _pieces(batch: Any, large: bool) -> Iterator[Any]:
    """Yield a batch in slices of ``READ_BYTES`` with dictionaries decoded, or of one row.

    Args:
        large: whether it may have more bytes without any dictionary.
    """
    coded = any(pa.types.is_dictionary(column.type) for column in batch.columns)
    if coded or large:
        size = sum(map(decoded_size, batch.columns))
        most = READ_BYTES + READ_BYTES // 64
        count = min(batch.num_rows, math.ceil(size / most))
        if count > 1:
            rows = math.ceil(batch.num_rows / count)
            for start in range(0, batch.num_rows, rows):
                # What is even over all rows is small enough now; dictionaries are not even.
                yield from _pieces(batch.slice(start, rows), large=False)
            return
    yield batch


def _whole(batch: Any, schema: Any, partition: Mapping[str, str | None]) -> Any:
    """Return a batch under a schema, with what the file has not: partitions, and columns since."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    open_schema = relaxed(schema)
    columns = []
    for field in open_schema:
        place = batch.schema.get_field_index(field.name)
        if place >= 0:
            column = batch.column(place)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            if column.type != field.type and pa.types.is_timestamp(field.type):
                column = column.cast(field.type, safe=False)  # such as nanoseconds of others
        elif field.name in partition:
            value = partition_value(partition[field.name], field.type)
            column = pa.repeat(value, batch.num_rows)
        else:
            column = pa.nulls(batch.num_rows, field.type)
        columns.append(column)
    return restamp(pa.RecordBatch.from_arrays(columns, names=schema.names), schema)
