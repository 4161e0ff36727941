"""Write record batches to files and read ranges of them back: Parquet, or Arrow's own format.

What is written has nothing but nullable columns inside of columns (``schemas.relaxed``); reading
gives batches of at most a few MiB, whatever was written at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...config import MIB
from ...runtime.lazy_imports import pa, pq
from ...runtime.logs import logger
from ..source.ranges import overlaps
from .schemas import relaxed, restamp

__all__ = [
    "FORMATS",
    "READ_BYTES",
    "READ_ROWS",
    "FileFormat",
    "FileWriter",
    "parquet_writer",
    "sized",
]


# A row group is what is gathered in memory when writing, and the least that is read at once.
GROUP_BYTES = 8 * MIB
GROUP_ROWS = 128 * 1024

# Bytes and rows of a batch that is read: many of the former cost memory, few the time per batch.
READ_BYTES = 2 * MIB
READ_ROWS = 64 * 1024

_log = logger("wsmux.spark")


class FileWriter(ABC):
    """Write one file.

    Attributes:
        held: bytes that are gathered in memory.
    """

    held = 0

    @abstractmethod
    def write(self, batch: Any) -> None:
        """Add a batch of the stored schema."""

    @abstractmethod
    def flush(self) -> None:
        """Write what is gathered in memory."""

    @abstractmethod
    def close(self) -> list[int]:
        """End the file; return the rows of each group."""

    @abstractmethod
    def abandon(self) -> None:
        """Let go of the file, whatever is in it."""


class FileFormat(ABC):
    """One format. Errors are those of pyarrow and of the system."""

    name: str

    @abstractmethod
    def create(self, path: Path, schema: Any) -> FileWriter:
        """Begin a file for a stored schema, in place of what is there."""

    @abstractmethod
    def check(self, schema: Any) -> None:
        """Raise ``pa.ArrowException`` if a schema cannot be written."""

    @abstractmethod
    def read(
        self, path: Path, schema: Any, columns: Sequence[int], groups: Sequence[int], span: range
    ) -> Iterator[Any]:
        """Yield the rows of a range, some columns of them.

        Args:
            schema: the stored one, of all columns.
            columns: the places of those wanted, rising.
            groups: the rows of each group, as ``close`` told.
            span: the rows wanted, counted in the file.
        """


def sized(batch: Any) -> Iterator[Any]:
    """Yield a batch in pieces of about ``READ_BYTES``."""
    rows = batch.num_rows
    step = max(1, min(READ_ROWS, rows * READ_BYTES // max(1, batch.nbytes)))
    for start in range(0, rows, step):
        yield batch.slice(start, step)


def _wanted(schema: Any, columns: Sequence[int]) -> Any:
    return pa.schema([schema.field(place) for place in columns])


class _ParquetWriter(FileWriter):
    def __init__(self, path: Path, schema: Any, compression: str, names: list[str]) -> None:
        self._schema = relaxed(schema, fixed=False)
        self._names = names
        self._file = pa.OSFile(str(path), "wb")
        try:
            fields = zip(self._schema, self._names, strict=True)
            named = pa.schema([field.with_name(name) for field, name in fields])
            self._writer = _parquet(self._file, named, compression)
        except BaseException:
            self._file.close()
            raise
        self._gathered: list[Any] = []
        self._rows = self.held = 0
        self._groups: list[int] = []

    def write(self, batch: Any) -> None:
        self._gathered.append(restamp(batch, self._schema))
        self._rows += batch.num_rows
        self.held += batch.nbytes
        if self._rows >= GROUP_ROWS or self.held >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            table = pa.Table.from_batches(self._gathered, self._schema)
            table = table.rename_columns(self._names)
            # Cut where groups are many times the size, as when one large batch came.
            size = max(1, min(GROUP_ROWS, self._rows * GROUP_BYTES // max(1, self.held)))
            self._writer.write_table(table, row_group_size=size)
            whole, rest = divmod(self._rows, size)
            self._groups += [size] * whole + [rest] * bool(rest)
        self._gathered, self._rows, self.held = [], 0, 0

    def close(self) -> list[int]:
        self.flush()
        self._writer.close()
        self._file.close()
        return self._groups

    def abandon(self) -> None:
        self._gathered = []
        try:
            self._writer.close()  # it would try when it is collected
        except (pa.ArrowException, OSError) as error:
            self._writer.is_open = False
            _log.debug("an abandoned file could not be ended: %s", error)
        finally:
            self._file.close()


def parquet_writer(path: Path, schema: Any, compression: str, *, plain_names: bool) -> FileWriter:
    """Return what writes a Parquet file.

    Args:
        plain_names: give columns other names in the file if one of them has a dot.
    """
    names = _file_names(schema) if plain_names else list(schema.names)
    return _ParquetWriter(path, schema, compression, names)


def _parquet(file: Any, schema: Any, compression: str) -> Any:
    # Dictionaries pay for text only: for numbers they take several times as long to write.
    types = pa.types
    texts = [f.name for f in schema if types.is_string(f.type) or types.is_large_string(f.type)]
    return pq.ParquetWriter(
        file,
        schema,
        compression=compression,
        use_dictionary=texts or False,
        write_page_checksum=True,
    )


def _file_names(schema: Any) -> list[str]:
    """Return what columns are called in a Parquet file, where a dot leads into a column."""
    if any("." in name for name in schema.names):
        return [f"column{place}" for place in range(len(schema))]
    return list(schema.names)


class Parquet(FileFormat):
    """Write Parquet files, compressed with LZ4, with a checksum for each page."""

    name = "parquet"

    def create(self, path: Path, schema: Any) -> FileWriter:
        return parquet_writer(path, schema, "lz4", plain_names=True)

    def check(self, schema: Any) -> None:
        with pa.BufferOutputStream() as sink:
            _parquet(sink, relaxed(schema, fixed=False), "lz4").close()

    def read(
        self, path: Path, schema: Any, columns: Sequence[int], groups: Sequence[int], span: range
    ) -> Iterator[Any]:
        wanted, names = _wanted(schema, columns), _file_names(schema)
        with (
            pa.OSFile(str(path)) as source,
            pq.ParquetFile(source, page_checksum_verification=True) as file,
        ):
            metadata = file.metadata
            held = [metadata.row_group(place).num_rows for place in range(file.num_row_groups)]
            if held != list(groups):
                raise pa.ArrowInvalid(f"it has groups of {held} rows, not of {list(groups)}")
            for place, start, end in overlaps(groups, span.start, span.stop):
                size = metadata.row_group(place).total_byte_size
                rows = max(1, min(READ_ROWS, held[place] * READ_BYTES // max(1, size)))
                at = 0
                for batch in file.iter_batches(
                    rows, row_groups=[place], columns=[names[each] for each in columns]
                ):
                    first, last = max(start - at, 0), min(end - at, batch.num_rows)
                    at += batch.num_rows
                    if first < last:
                        yield restamp(batch.slice(first, last - first), wanted)
                    if at >= end:
                        break


class _ArrowWriter(FileWriter):
    def __init__(self, path: Path, schema: Any) -> None:
        self._schema = relaxed(schema)
        self._file = pa.OSFile(str(path), "wb")
        try:
            self._writer = pa.ipc.new_file(self._file, self._schema)
        except BaseException:
            self._file.close()
            raise
        self._groups: list[int] = []

    def write(self, batch: Any) -> None:
        for piece in sized(restamp(batch, self._schema)):
            self._writer.write_batch(piece)
            self._groups.append(piece.num_rows)

    def flush(self) -> None:
        pass  # nothing is gathered

    def close(self) -> list[int]:
        self._writer.close()
        self._file.close()
        return self._groups

    def abandon(self) -> None:
        self._file.close()


class ArrowFile(FileFormat):
    """Write Arrow IPC files: the fastest, and the largest; damage within values goes unseen."""

    name = "arrow"

    def create(self, path: Path, schema: Any) -> FileWriter:
        return _ArrowWriter(path, schema)

    def check(self, schema: Any) -> None:
        with pa.BufferOutputStream() as sink:
            pa.ipc.new_file(sink, relaxed(schema)).close()

    def read(
        self, path: Path, schema: Any, columns: Sequence[int], groups: Sequence[int], span: range
    ) -> Iterator[Any]:
        wanted = _wanted(schema, columns)
        options = pa.ipc.IpcReadOptions(included_fields=list(columns))
        with pa.OSFile(str(path)) as source:
            reader = pa.ipc.open_file(source, options=options)
            if reader.num_record_batches != len(groups):
                raise pa.ArrowInvalid(f"it has {reader.num_record_batches} batches")
            for place, start, end in overlaps(groups, span.start, span.stop):
                batch = reader.get_batch(place)
                if batch.num_rows != groups[place]:
                    raise pa.ArrowInvalid(f"batch {place} has {batch.num_rows} rows")
                batch.validate(full=True)  # what was damaged must not crash the process
                yield restamp(batch.slice(start, end - start), wanted)


FORMATS: dict[str, FileFormat] = {each.name: each for each in (Parquet(), ArrowFile())}
