"""Write the Parquet files of tables, and read ranges of them back.

What is written needs memory for one row group, whatever comes: see ``parquet_writer``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ...config import MIB
from ...runtime.lazy_imports import pa, pq
from ...storage.sync import sync_path
from ..protocol import Code, refusal
from ..source.ranges import Group, overlaps
from ..store.base import READ_BYTES, READ_ROWS
from ..store.directory import checked_path
from ..store.schemas import first_line, relaxed, restamp
from .actions import DataFile
from .parquet_writer import ParquetWriter
from .partitions import partition_value
from .statistics import Statistics

__all__ = ["NewFile", "Written", "groups_of", "read_file", "remove_empty", "rows_in"]

# Bytes of a file that are worth being read apart.
GROUP_BYTES = 8 * MIB


class Written(NamedTuple):
    """A file that was written: its exact size, and what ``AddAction`` calls statistics."""

    size: int
    rows: int
    stats: str


class NewFile:
    """Write one file of a table.

    Errors are those of pyarrow and of the system.
    """

    def __init__(self, path: Path, schema: Any, *, sync: bool) -> None:
        self._path = path
        self._sync = sync
        self._known = Statistics()
        self._writer = ParquetWriter(path, schema)

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
        self._writer.close()
        metadata = pq.read_metadata(self._path)
        if self._sync:
            sync_path(self._path)
            sync_path(self._path.parent)
        size = self._path.stat().st_size
        return Written(size, metadata.num_rows, self._known.text(metadata))

    def abandon(self) -> None:
        """Let go of the file, and remove it."""
        self._writer.abandon()
        self._path.unlink(missing_ok=True)


def groups_of(file: DataFile) -> Iterator[Group]:
    """Yield what of a file is worth being read apart, without a look into it."""
    rows = file.rows or 0
    pieces = max(1, min(rows, round(file.size / GROUP_BYTES)))
    edges = [rows * place // pieces for place in range(pieces + 1)]
    for start, end in zip(edges, edges[1:], strict=False):
        if end > start:
            yield Group(end - start, file.size * (end - start) / rows)


def remove_empty(root: Path, folders: Iterable[str]) -> None:
    """Remove the folders of partitions below a table that nothing is in, and those around them.

    No link is followed. Whoever is about to write there has to make the folder again if it went
    between the two.
    """
    for folder in sorted(set(folders), reverse=True):
        inner = root
        found = []
        for name in PurePosixPath(folder).parts:
            inner = inner / name
            if "=" not in name or not inner.is_dir() or inner.is_symlink():
                break
            found.append(inner)
        else:
            with contextlib.suppress(OSError):  # something is in it, or it is gone
                for each in reversed(found):
                    each.rmdir()


def rows_in(root: Path, name: str, shown: str) -> int:
    """Return how many rows a file has, for one without statistics.

    Raises:
        RiverError: CORRUPT. FileNotFoundError: it is gone.
    """
    path = checked_path(root, name, shown)
    try:
        return int(pq.read_metadata(path).num_rows)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise refusal(Code.CORRUPT, f"{shown} is damaged: {first_line(error)}") from error


def read_file(
    root: Path, file: DataFile, schema: Any, columns: Sequence[str], span: range, shown: str
) -> Iterator[Any]:
    """Yield some rows of a file, some columns of them.

    Args:
        schema: of the table, of all columns. span: the rows wanted, counted in the file.

    Raises:
        RiverError: CORRUPT. FileNotFoundError: it is gone.
    """
    try:
        path = checked_path(root, file.path, shown)
        yield from _read(path, file, schema, columns, span)
    except FileNotFoundError as error:
        raise FileNotFoundError(shown) from error
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise refusal(Code.CORRUPT, f"{shown} is damaged: {first_line(error)}") from error


def _read(
    path: Path, file: DataFile, schema: Any, columns: Sequence[str], span: range
) -> Iterator[Any]:
    wanted = pa.schema([schema.field(name) for name in columns])
    with (
        pa.OSFile(str(path)) as source,
        pq.ParquetFile(source, page_checksum_verification=True) as parquet,
    ):
        metadata = parquet.metadata
        held = [metadata.row_group(place).num_rows for place in range(parquet.num_row_groups)]
        if sum(held) != file.rows:
            raise pa.ArrowInvalid(f"it has {sum(held)} rows, not {file.rows}")
        there = set(parquet.schema_arrow.names)
        # A column that the file has not may be all that is wanted: the rows are to be counted.
        inside = [name for name in columns if name in there] or parquet.schema_arrow.names[:1]
        for place, start, end in overlaps(held, span.start, span.stop):
            size = metadata.row_group(place).total_byte_size
            rows = max(1, min(READ_ROWS, held[place] * READ_BYTES // max(1, size)))
            at = 0
            for batch in parquet.iter_batches(rows, row_groups=[place], columns=inside):
                first, last = max(start - at, 0), min(end - at, batch.num_rows)
                at += batch.num_rows
                if first < last:
                    part = batch.slice(first, last - first)
                    yield _whole(part, wanted, file.partition)
                if at >= end:
                    break


def _whole(batch: Any, schema: Any, partition: Mapping[str, str | None]) -> Any:
    """Return a batch under a schema, with what the file has not: partitions, and columns since."""
    open_schema = relaxed(schema)
    columns = []
    for field in open_schema:
        place = batch.schema.get_field_index(field.name)
        if place >= 0:
            column = batch.column(place)
            if column.type != field.type and pa.types.is_timestamp(field.type):
                column = column.cast(field.type, safe=False)  # such as nanoseconds of others
        elif field.name in partition:
            value = partition_value(partition[field.name], field.type)
            column = pa.repeat(value, batch.num_rows)
        else:
            column = pa.nulls(batch.num_rows, field.type)
        columns.append(column)
    return restamp(pa.RecordBatch.from_arrays(columns, names=schema.names), schema)
