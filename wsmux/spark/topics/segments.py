"""Write the Arrow files of topics, and read ranges of them.

Columns within columns are written as nullable (``schemas.relaxed``), and small record batches are
joined into larger ones, of a few MiB at most.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...runtime.files import sync_path
from ...runtime.lazy_imports import pa
from ..protocol import Code, refusal
from ..source.ranges import overlaps
from ..store.base import READ_BYTES, READ_ROWS
from ..store.directory import checked_path
from ..store.metadata import moments
from ..store.schemas import first_line, reading, relaxed, restamp

__all__ = [
    "COLUMNS",
    "PieceWriter",
    "Segment",
    "SegmentWriter",
    "check_schema",
    "read_segment",
    "timed",
]


class Segment(NamedTuple):
    """A file of a partition: the rows from offset ``start`` on.

    Attributes:
        bytes: the size of the Arrow streams in which the rows arrived. groups: the number of rows
            in each record batch, as JSON. version, since: the commit of the first rows, and its
            time in seconds since 1970. time: that of the last rows.
    """

    start: int
    rows: int
    bytes: int
    file: str
    groups: str
    version: int
    since: float
    time: float

    @property
    def end(self) -> int:
        """The offset after the last row."""
        return self.start + self.rows


# The columns of the database that make a segment.
COLUMNS = ", ".join(Segment._fields)


def timed(schema: Any) -> Any:
    """Return the schema of a joined file: behind the stored columns, when each row came."""
    name = "_time"
    while name in schema.names:
        name = f"_{name}"
    return schema.append(pa.field(name, moments(0, 0).type, False))


def check_schema(schema: Any) -> None:
    """Check that a schema can be written.

    Raises:
        RiverError: WRONG_SCHEMA.
    """
    try:
        with pa.BufferOutputStream() as sink:
            pa.ipc.new_file(sink, relaxed(schema)).close()
    except pa.ArrowException as error:
        text = f"this schema cannot be kept in Arrow files: {first_line(error)}"
        raise refusal(Code.WRONG_SCHEMA, text) from error


class PieceWriter(ABC):
    """Gather batches, and write them in pieces of a bounded size.

    Args:
        schema: of what is written.

    Attributes:
        rows: how many were added.
    """

    def __init__(self, schema: Any) -> None:
        self.rows = 0
        self._schema = schema
        self._gathered: list[Any] = []
        self._size = 0

    @abstractmethod
    def _put(self, piece: Any) -> None:
        """Write a piece."""

    def write(self, batch: Any) -> None:
        """Add a batch of the stored schema."""
        self._gathered.append(restamp(batch, self._schema))
        self.rows += batch.num_rows
        self._size += batch.nbytes
        if self._size >= READ_BYTES or sum(each.num_rows for each in self._gathered) >= READ_ROWS:
            self._flush()

    def _flush(self) -> None:
        batches = self._gathered
        if len(batches) > 1:
            batches = pa.Table.from_batches(batches, self._schema).combine_chunks().to_batches()
        for batch in batches:
            rows = batch.num_rows
            step = max(1, min(READ_ROWS, rows * READ_BYTES // max(1, batch.nbytes)))
            for start in range(0, rows, step):
                self._put(batch.slice(start, step))
        self._gathered, self._size = [], 0


class SegmentWriter(PieceWriter):
    """Write one file; raises the errors of pyarrow and of the system.

    Attributes:
        path: the file, which is not there yet.
    """

    def __init__(self, path: Path, schema: Any, *, sync: bool) -> None:
        super().__init__(relaxed(schema))
        self.path = path
        self._sync = sync
        self._groups: list[int] = []
        self._file = pa.OSFile(str(path), "wb")
        try:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writer = pa.ipc.new_file(self._file, self._schema, options=options)
        except BaseException:
            self.abandon()
            raise

    def _put(self, piece: Any) -> None:
        self._writer.write_batch(piece)
        self._groups.append(piece.num_rows)

    def close(self) -> str:
        """Finish the file, and sync it and its folder to disk; return its ``groups``."""
        self._flush()
        self._writer.close()
        self._file.close()
        if self._sync:
            sync_path(self.path)
            sync_path(self.path.parent)
        return json.dumps(self._groups, separators=(",", ":"))

    def abandon(self) -> None:
        """Close and remove the file."""
        self._gathered = []
        self._file.close()
        self.path.unlink(missing_ok=True)


def read_segment(
    root: Path,
    segment: Segment,
    schema: Any,
    names: Sequence[str],
    span: range,
    shown: str,
    time: str | None = None,
) -> Iterator[Any]:
    """Yield the rows of a range, some columns of them.

    Args:
        root: the folder. schema: the stored one, of all columns. span: the rows wanted, counted in
            the file. shown: what to call the file in errors. time: the name of a last column that
            tells when the rows came; without names there is only this one.

    Raises:
        RiverError: CORRUPT. FileNotFoundError: it is gone.
    """
    with reading(shown):
        path = checked_path(root, segment.file, shown)
        yield from _read(path, segment, schema, names, span, time)


def _read(
    path: Path, segment: Segment, schema: Any, names: Sequence[str], span: range, time: str | None
) -> Iterator[Any]:
    groups = json.loads(segment.groups)
    places = sorted(schema.get_field_index(name) for name in names)
    wanted = pa.schema([schema.field(place) for place in places])
    with pa.OSFile(str(path)) as source:
        # Only a joined file tells it: all rows of another one came with one commit.
        told = time is not None and len(pa.ipc.open_file(source).schema) > len(schema)
        included = [*places, *([len(schema)] if told else [])]
        options = pa.ipc.IpcReadOptions(included_fields=included or [0])  # an empty list is all
        reader = pa.ipc.open_file(source, options=options)
        if reader.num_record_batches != len(groups):
            raise pa.ArrowInvalid(f"it has {reader.num_record_batches} batches, not {len(groups)}")
        for place, start, end in overlaps(groups, span.start, span.stop):
            batch = reader.get_batch(place)
            if batch.num_rows != groups[place]:
                raise pa.ArrowInvalid(f"batch {place} has {batch.num_rows} rows")
            batch.validate(full=True)  # damaged data must not crash the process
            piece = batch.slice(start, end - start)
            kept = piece.select(list(range(len(places))))
            if places:
                kept = restamp(kept, wanted).select(list(names))
            if time is not None:
                field = pa.field(time, moments(0, 0).type, False)
                times = piece.column(len(places)) if told else moments(segment.time, end - start)
                kept = kept.append_column(field, times)
            yield kept
