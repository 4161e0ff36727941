"""The data source ``wsmux`` of Spark: datasets and topics, in batches and in streams.

What a session finds by itself is ``pyspark_wsmux``, which names the class here; ``register`` is for
one that does not find it. Spark makes an object for each thing that is done, in processes that
plan: each connects, asks, and holds nothing on.
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
    """Read and write what a data server keeps; see ``options`` for what can be set.

    Every method connects, and raises ``SparkError``.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return what stands in ``format("wsmux")``."""
        return "wsmux"

    def schema(self) -> StructType:
        """Ask the server for the columns, as Spark has them."""
        from .batch_reader import schema_of_source

        return schema_of_source(self._options(Action.SCHEMA))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a dataset, or what a topic holds."""
        from .batch_reader import reader_of

        return reader_of(self._options(Action.READ), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Begin to write; return what does it."""
        from .batch_writer import BatchWriter

        return BatchWriter(self._options(Action.WRITE), schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what follows a topic."""
        return stream_reader_of(self._options(Action.STREAM_READ), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return what adds batches of a query to a topic."""
        from .stream_writer import StreamWriter

        return StreamWriter(self._options(Action.STREAM_WRITE), schema, overwrite)

    def _options(self, action: Action) -> Options:
        return parse_options(self.options, action)


def stream_reader_of(options: Options, schema: StructType) -> DataSourceStreamReader:
    """Return what follows a topic, in the manner of the Spark that is installed.

    Raises:
        SparkError: WRONG_TYPE.
    """
    if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
        from .stream_reader import PlainStreamReader

        return PlainStreamReader(options, schema)
    from .limited_reader import LimitedStreamReader

    return LimitedStreamReader(options, schema)
