"""Follow a topic, for a query of Spark's.

In the process that plans a query, a feed of heads tells what has come, so that Spark can ask as
often as it does; in a task, a span of offsets is read over a stream. Spans can be read again as
long as their rows are held, and the server is told after each batch what is not needed any more.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ...rpc import RiverError
from ...runtime.logs import logger
from ..errors import SparkError
from ..protocol import TOPIC_SERVICE, Code, refusal
from ..store.base import Heads
from ..store.schemas import schema_of
from .offset_feed import OffsetFeed
from .offsets import (
    LATEST,
    Position,
    Span,
    begin_of,
    bounds,
    covered,
    gaps,
    lost,
    spans,
    split,
    starting,
    upto,
)
from .options import Options
from .planning import ask, refused
from .task_reader import read_batches
from .types import arrow_schema, check_fits

__all__ = [
    "Follower",
    "PlainStreamReader",
    "SpanPartition",
]

_log = logger("wsmux.spark")


class SpanPartition(InputPartition):
    """One span: the header of the stream that reads it."""

    def __init__(self, topic: str, span: Span) -> None:
        super().__init__({"topic": topic, **span._asdict()})


class Follower(DataSourceStreamReader):
    """Follow a topic; subclasses say how far each batch goes.

    Nothing is connected before the first question, and never in a copy that was sent to a task.

    Args:
        options: of the query.
        schema: what Spark was told, by ``schema()`` or by the user.

    Raises:
        SparkError: WRONG_TYPE.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._topic = options.topic or ""
        self._recipe = options.recipe()
        self._feed: OffsetFeed | None = None
        self._reader = ""  # the reader's name at the server
        self._told: list[str] = []
        self._idle: tuple[Heads | None, Any] = None, None
        self._most: list[int] | None = None
        try:
            self._schema = arrow_schema(schema)
        except RiverError as error:
            raise refused(self._recipe, error, options.target) from None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_feed": None, "_idle": (None, None)}

    # Planning

    def heads(self) -> Heads:
        """Return what the topic holds, from memory but for the first time.

        Raises:
            SparkError: see ``OffsetFeed``; WRONG_SCHEMA or NO_COLUMN, if the columns are not those
                that Spark was told.
        """
        return self._connected().latest()

    def _connected(self) -> OffsetFeed:
        if self._feed is None:
            feed = OffsetFeed(self._recipe, self._topic)
            try:
                self._check_schema(feed)
            except BaseException:
                feed.close()
                raise
            self._feed = feed
        return self._feed

    def _check_schema(self, feed: OffsetFeed) -> None:
        feed.latest()  # has the better errors
        told = ask(feed.link, TOPIC_SERVICE, "describe", topic=self._topic)
        try:
            check_fits(self._schema, schema_of(told["schema"]), self._options.target)
        except RiverError as error:
            raise refused(self._recipe, error, self._options.target) from None

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins.

        Raises:
            SparkError: BAD_OFFSETS, and what ``heads`` raises.
        """
        asked, heads = self._options.starting_offsets, self.heads()
        try:
            begin = tuple(starting(asked, LATEST, heads, "startingOffsets"))
        except RiverError as error:
            raise refused(self._recipe, error, self._options.target) from None
        return Position(self._topic, uuid.uuid4().hex, begin, begin).to_json()

    def next_end(
        self, start: Mapping[str, Any], rows: int | None, size: int | None
    ) -> Mapping[str, Any]:
        """Return the end of the batch that begins at ``start``; the same if there is nothing.

        Args:
            rows, size: most rows and bytes of it.

        Raises:
            SparkError: WRONG_CHECKPOINT; OFFSETS_GONE, if rows were lost and ``failOnDataLoss`` is
                set; and what ``heads`` raises.
        """
        heads = self.heads()
        if self._idle[0] is heads and self._idle[1] == start:
            return start
        position = self._position(start)
        self._note(gaps(position.offsets, heads))
        begin = covered(position.offsets, heads)
        end = tuple(upto(begin, heads, rows, size, self._most))
        if end == position.offsets:
            self._idle = heads, start
            return start
        first = position.begun if position.begun == position.offsets else None
        return Position(self._topic, position.reader, end, first).to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return what tasks read of a batch; the same again, as long as it is held.

        Raises:
            SparkError: as ``next_end`` does.
        """
        first, last = self._position(start), self._position(end)
        begin, heads = begin_of(first, last), self.heads()
        self._note(lost(begin, last.offsets, heads))
        reader = last.reader or first.reader
        if self._reader != reader:  # from now on, the server waits for this one
            self._release(reader, covered(begin, heads))
            self._reader = reader
        found = split(spans(begin, last.offsets, heads), self._options.min_partitions)
        return [SpanPartition(self._topic, span) for span in found]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Report to the server what is not needed any more; if that fails, the next call does."""
        position = self._position(end)
        self._release(position.reader or self._reader, position.offsets)

    def _release(self, reader: str, offsets: Sequence[int]) -> None:
        link = self._connected().link
        init = {"topic": self._topic, "query": reader, "offsets": list(offsets)}
        try:
            ask(link, TOPIC_SERVICE, "release", **init)
        except SparkError as error:
            _log.warning(
                "the server could not be told to drop rows that are no longer needed: %s", error
            )

    def stop(self) -> None:
        """Close the connection."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def _position(self, values: Mapping[str, Any]) -> Position:
        try:
            return Position.of(values, self._topic)
        except RiverError as error:
            raise refused(self._recipe, error, self._options.target) from None

    def _note(self, told: list[str]) -> None:
        """Raise that rows were lost, or log it, once."""
        if not told:
            return
        text = f"rows were lost: {'; '.join(told)}"
        if self._options.fail_on_data_loss:
            advice = "with the option failOnDataLoss=false, the query goes on without them"
            error = refusal(Code.OFFSETS_GONE, f"{text}; {advice}")
            raise refused(self._recipe, error, self._options.target)
        if told != self._told:
            self._told = told
            _log.warning("%s: %s", self._options.target, text)

    # Tasks

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a span; see ``read_batches``.

        Raises:
            SparkError: with the server's code; OFFSETS_GONE, unless ``failOnDataLoss`` is false.
        """
        header = {**partition.value, "columns": self._schema.names}
        while header["start"] < header["end"]:
            try:
                for batch in self._batches(dict(header)):
                    yield batch
                    header["start"] += batch.num_rows
                return
            except SparkError as error:
                losses = (Code.OFFSETS_GONE.value, Code.BAD_OFFSETS.value)
                if self._options.fail_on_data_loss or error.code not in losses:
                    raise
                _log.warning("rows were lost: %s", error)
                before = dict(header)
                self._skip(header)
                if header == before:
                    raise

    def _batches(self, header: dict[str, Any]) -> Iterator[Any]:
        return read_batches(self._recipe, header, self._schema, self._options.batch_rows)

    def _skip(self, header: dict[str, Any]) -> None:
        """Leave out of a span what is not held."""
        told = ask(self._recipe.link(), TOPIC_SERVICE, "describe", topic=self._topic)
        heads = Heads(told["earliest"], told["latest"], told["bytes"])
        earliest, latest = bounds(header["partition"], heads)
        header["start"] = max(header["start"], earliest)
        header["end"] = min(header["end"], latest)


class PlainStreamReader(Follower):
    """Follow a topic for a Spark before 4.2, which names no start and no limit.

    The start is known from what was asked before. Behind a restart it is not, so the first batch
    has no limit then.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._at: Mapping[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """See ``Follower``."""
        first = super().initialOffset()
        self._at = first
        return first

    def latestOffset(self) -> Mapping[str, Any]:
        """Return the end of the next batch; see ``Follower.next_end``."""
        if self._at is None:
            return Position(self._topic, "", tuple(self.heads().latest)).to_json()
        return self.next_end(self._at, self._options.max_rows, self._options.max_bytes)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """See ``Follower``."""
        found = super().partitions(start, end)
        last = self._position(end)
        self._at = last._replace(reader=self._reader).to_json()
        return found
