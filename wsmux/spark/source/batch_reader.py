"""Read datasets and topics for Spark in batch queries.

The planning process asks for ranges; each task reads one over a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import datasource as api
from pyspark.sql.types import StringType, StructType

from ...rpc import RiverError
from ..calls.batches import UNCAUGHT_ERROR
from ..connection_settings import TIMEOUT
from ..errors import SparkError
from ..protocol import DATASET_SERVICE, TOPIC_SERVICE, Code, refusal
from ..store.base import Heads
from ..store.filters import matcher, parse_filters, wire_value
from ..store.metadata import METADATA, with_metadata
from ..store.schemas import bound_columns, schema_of
from .offsets import EARLIEST, LATEST, Span, at_time, gaps, spans, split, starting
from .options import Options
from .planning import ask_once, offsets_at, planning, told_schema
from .task_reader import read_batches
from .types import arrow_schema, check_fits, spark_schema

__all__ = ["BatchReader", "FilteringReader", "RangePartition", "reader_of", "schema_of_source"]

# Codes of a server that cannot tell so many ranges: they fit no message, or no time.
OVERTAXED = frozenset({UNCAUGHT_ERROR, TIMEOUT})


def schema_of_source(options: Options) -> StructType:
    """Ask a server for the columns of a dataset or topic; blocks for the answer.

    Raises:
        SparkError: with the server's code, or WRONG_TYPE.
    """
    told = _described(options)
    with planning(options):
        own = bound_columns(options.columns, schema_of(told["schema"]))
        hidden = [name for name in own.names if name in METADATA]
        if options.include_metadata and hidden:
            text = f"{options.target} has a column {hidden[0]!r} of its own, as includeMetadata has"
            advice = "name the other ones in the option columns"
            raise refusal(Code.WRONG_SCHEMA, f"{text}: leave out this option, or {advice}")
        return spark_schema(with_metadata(own) if options.include_metadata else own)


def reader_of(options: Options, schema: StructType) -> BatchReader:
    """Return a reader, with filter pushdown only if enabled: Spark refuses it otherwise."""
    return (FilteringReader if options.pushdown else BatchReader)(options, schema)


class RangePartition(api.InputPartition):
    """Hold one range, as the header of the stream that reads it."""

    def __init__(self, header: dict[str, Any]) -> None:
        super().__init__(header)


class BatchReader(api.DataSourceReader):
    """Read the ranges of one version of a dataset, or of a topic.

    Args:
        options: the options of the read.
        schema: the schema in Spark, from ``schema()`` or given by the user.

    Raises:
        SparkError: WRONG_TYPE.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._recipe = options.recipe()
        self._filters: list[list[Any]] = []
        self._declared = schema
        with planning(options):
            self._schema = arrow_schema(schema)

    def partitions(self) -> list[api.InputPartition]:
        """Ask for the ranges of the version; each becomes one partition.

        Raises:
            SparkError: with the server's code; WRONG_SCHEMA if the columns have changed.
        """
        options = self._options
        told = self._ranges("numPartitions", options.num_partitions)
        if options.dataset and len(told["ranges"]) < (options.min_partitions or 0):
            told = self._ranges("minPartitions", options.min_partitions)
        with planning(options):
            stored = told_schema(options, told)
            check_fits(self._schema, stored, options.target)
            headers = self._headers(told)
        if self._schema.names != stored.names:
            headers = [{**header, "columns": self._schema.names} for header in headers]
        return [RangePartition(header) for header in headers]

    def _ranges(self, option: str, wanted: int | None) -> dict[str, Any]:
        """Ask for ranges, so many if wanted; a server that fails at that is told apart."""
        try:
            return _described(self._options, wanted)
        except SparkError as error:
            if wanted is None or error.code not in OVERTAXED:
                raise
            text = (
                f"{error.message}; it was asked for {wanted:,} ranges by the option {option}: ask "
                "for fewer, and write a dataset of many small files anew with coalesce(n)"
            )
            raise SparkError(error.code, text, error.what, error.place) from None

    def _headers(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        if self._options.topic:
            heads = Heads.of(told)
            found = split(self._spans(heads), self._options.min_partitions)
            topic = {"topic": self._options.topic}
            if heads.home:
                topic["home"] = heads.home
            added = {"metadata": True} if self._options.include_metadata else {}
            return [{**topic, **span._asdict(), **added} for span in found]
        more = {"filters": self._filters} if self._filters else {}
        return [{"token": each["token"], **more} for each in told["ranges"]]

    def _spans(self, heads: Heads) -> list[Span]:
        """Return the requested range of each partition of a topic."""
        options = self._options
        if options.starting_timestamp is None:
            begin = starting(options.starting_offsets, EARLIEST, heads, "startingOffsets")
        else:
            found = offsets_at(options, options.starting_timestamp)
            begin = at_time(found, heads, options.timestamp_strategy)
        if options.ending_timestamp is None:
            end = starting(options.ending_offsets, LATEST, heads, "endingOffsets")
        else:
            end = at_time(offsets_at(options, options.ending_timestamp), heads, LATEST)
        for place, (first, last) in enumerate(zip(begin, end, strict=True)):
            if first > last:
                text = f"partition {place} begins at {first}, after its end at {last}"
                raise refusal(Code.BAD_OFFSETS, text)
        missing = gaps(begin, heads) + gaps(end, heads)
        if missing and options.fail_on_data_loss:
            text = "; set failOnDataLoss=false to read what is available"
            raise refusal(Code.OFFSETS_GONE, "; ".join(missing) + text)
        return spans(begin, end, heads)

    def read(self, partition: api.InputPartition) -> Iterator[Any]:
        """Yield the record batches of a range; see ``read_batches``."""
        if partition.value is None:  # made by Spark if there are no ranges
            return iter(())
        options = self._options
        return read_batches(self._recipe, partition.value, self._schema, options.batch_rows)


class FilteringReader(BatchReader):
    """Apply filters of Spark on the server."""

    def pushFilters(self, filters: list[api.Filter]) -> Iterable[api.Filter]:
        """Take filters that have the same meaning on the server; yield the others."""
        for each in filters:
            found = self._wire(each)
            if found is None:
                yield each
            else:
                self._filters.append(found)

    def _wire(self, each: api.Filter) -> list[Any] | None:
        """Return the encoded filter, or ``None`` if the server cannot apply it."""
        names = {field.name: field.dataType for field in self._declared}
        found = _translated(each)
        kind = names.get(found[0]) if found else None
        # Only Spark can compare text with another collation.
        if found is None or kind is None or (isinstance(kind, StringType) and kind != StringType()):
            return None
        try:
            wire = [*found[:2], *map(wire_value, found[2:])]
            matcher(parse_filters([wire]), self._schema)
        except (RiverError, TypeError):
            return None
        return wire


_OPERATORS = {
    api.EqualTo: "=",
    api.GreaterThan: ">",
    api.GreaterThanOrEqual: ">=",
    api.LessThan: "<",
    api.LessThanOrEqual: "<=",
    api.In: "in",
    api.StringStartsWith: "starts_with",
}


def _translated(each: Any) -> list[Any] | None:
    """Return column, operator and value, not yet encoded."""
    if isinstance(each, api.Not):
        inner = _translated(each.child)
        return [inner[0], "!=", inner[2]] if inner is not None and inner[1] == "=" else None
    if len(getattr(each, "attribute", ())) != 1:
        return None
    column = each.attribute[0]
    if isinstance(each, api.IsNull):
        return [column, "is_null"]
    if isinstance(each, api.IsNotNull):
        return [column, "not_null"]
    value = getattr(each, "value", None)
    if isinstance(each, api.EqualNullSafe):
        return [column, "is_null"] if value is None else [column, "=", value]
    op = _OPERATORS.get(type(each))
    return None if op is None or value is None else [column, op, value]


def _described(options: Options, partitions: int | None = None) -> dict[str, Any]:
    recipe = options.recipe()
    if options.topic:
        return ask_once(recipe, TOPIC_SERVICE, "describe", topic=options.topic)
    given = {
        "partitions": partitions,
        "version": options.version,
        "timestamp": options.timestamp,
    }
    more = {name: value for name, value in given.items() if value is not None}
    return ask_once(recipe, DATASET_SERVICE, "describe", dataset=options.dataset, **more)
