"""Implement Spark's data source ``wsmux``: datasets and topics, in batch and streaming queries.

Sessions find it through the module ``pyspark_wsmux``, which exports the class here; ``register`` is
for a session that does not. Spark makes an object for each operation, in planning processes; each
connects, asks, and closes its connection.
"""

from __future__ import annotations

import importlib.util
from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .options import Action, Options, parse_options

__all__ = ["DefaultSource", "stream_reader_of"]


class DefaultSource(DataSource):
    """Read and write datasets and topics of a data server; ``options`` lists the options.

    Every method connects to the server, and may raise ``SparkError``.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format("wsmux")``."""
        return "wsmux"

    def schema(self) -> StructType:
        """Ask the server for the columns, as Spark types."""
        from .batch_reader import schema_of_source

        return schema_of_source(self._options(Action.SCHEMA))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a dataset or topic."""
        from .batch_reader import reader_of

        return reader_of(self._options(Action.READ), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Begin a write, and return its writer."""
        from .batch_writer import BatchWriter

        return BatchWriter(self._options(Action.WRITE), schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader that follows a topic."""
        return stream_reader_of(self._options(Action.STREAM_READ), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer that appends the batches of a query to a topic."""
        from .stream_writer import StreamWriter

        return StreamWriter(self._options(Action.STREAM_WRITE), schema, overwrite)

    def _options(self, action: Action) -> Options:
        return parse_options(self.options, action)


def stream_reader_of(options: Options, schema: StructType) -> DataSourceStreamReader:
    """Return the reader that follows a topic, for the installed version of Spark.

    Raises:
        SparkError: WRONG_TYPE.
    """
    if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
        from .stream_reader import PlainStreamReader

        return PlainStreamReader(options, schema)
    from .limited_reader import LimitedStreamReader

    return LimitedStreamReader(options, schema)
