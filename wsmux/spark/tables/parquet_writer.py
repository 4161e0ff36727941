"""Write one Parquet file with the memory of one row group, whatever comes.

What is written has nothing but nullable columns inside of columns (``schemas.relaxed``).
"""

from __future__ import annotations

from typing import Any

from ...config import MIB
from ...runtime.lazy_imports import pa, pq
from ...runtime.logs import logger
from ..store.schemas import relaxed, restamp

__all__ = ["ParquetWriter"]

# A row group is what is gathered in memory when writing, and the least that is read at once.
GROUP_BYTES = 8 * MIB
GROUP_ROWS = 128 * 1024

_log = logger("wsmux.spark")


class ParquetWriter:
    """Write one file, with a checksum for each page; errors are those of pyarrow and the system.

    Attributes:
        held: bytes that are gathered in memory.

    Args:
        file: of pyarrow, to write to; closed with this.
    """

    def __init__(self, file: Any, schema: Any) -> None:
        self._schema = relaxed(schema, fixed=False)
        self._file = file
        try:
            self._writer = _opened(self._file, self._schema)
        except BaseException:
            self._file.close()
            raise
        self._gathered: list[Any] = []
        self._rows = self.held = 0

    def write(self, batch: Any) -> None:
        """Add a batch of the schema."""
        self._gathered.append(restamp(batch, self._schema))
        self._rows += batch.num_rows
        self.held += batch.nbytes
        if self._rows >= GROUP_ROWS or self.held >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is gathered in memory."""
        if self._rows:
            table = pa.Table.from_batches(self._gathered, self._schema)
            # Cut where groups are many times the size, as when one large batch came.
            size = max(1, min(GROUP_ROWS, self._rows * GROUP_BYTES // max(1, self.held)))
            self._writer.write_table(table, row_group_size=size)
        self._gathered, self._rows, self.held = [], 0, 0

    def close(self) -> Any:
        """End the file; return its metadata."""
        self.flush()
        self._writer.close()
        self._file.close()
        return self._writer.writer.metadata

    def abandon(self) -> None:
        """Let go of the file, whatever is in it."""
        self._gathered = []
        try:
            self._writer.close()  # it would try when it is collected
        except (pa.ArrowException, OSError) as error:
            self._writer.is_open = False
            _log.debug("an abandoned file could not be ended: %s", error)
        finally:
            self._file.close()


def _opened(file: Any, schema: Any) -> Any:
    # Dictionaries pay for text only: for numbers they take several times as long to write.
    types = pa.types
    texts = [f.name for f in schema if types.is_string(f.type) or types.is_large_string(f.type)]
    return pq.ParquetWriter(
        file,
        schema,
        compression="snappy",  # since every reader of Delta knows it
        use_dictionary=texts or False,
        write_page_checksum=True,
    )
