"""Follow a topic for a streaming query of Spark.

In the process that plans a query, an offset feed has the latest offsets, so Spark can ask as often
as it likes; in a task, a span of offsets is read over a stream. A span can be read again while its
rows are kept, and after each batch the server learns which rows are no longer needed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ...runtime.logs import logger
from ..errors import SparkError
from ..protocol import TOPIC_SERVICE, Code, refusal
from ..store.base import Heads
from .offset_feed import OffsetFeed
from .offsets import (
    LATEST,
    Position,
    Span,
    at_time,
    begin_of,
    bounds,
    covered,
    gaps,
    is_other,
    lost,
    spans,
    split,
    starting,
    upto,
)
from .options import Options
from .planning import ask, offsets_at, planning, refused, told_schema
from .task_reader import read_batches
from .types import arrow_schema, check_fits

__all__ = [
    "Follower",
    "PlainStreamReader",
    "SpanPartition",
]

# What is lost with a topic that was removed.
ANEW = "the topic was removed and made anew"

_log = logger("wsmux.spark")


class SpanPartition(InputPartition):
    """Hold one span, as the header of the stream that reads it."""

    def __init__(self, topic: str, span: Span, home: str) -> None:
        more = {"home": home} if home else {}
        super().__init__({"topic": topic, **span._asdict(), **more})


class Follower(DataSourceStreamReader):
    """Follow a topic; subclasses limit the batches.

    Connects on first use, and never in the copy that is sent to a task.

    Args:
        options: the options of the query.
        schema: the schema in Spark, from ``schema()`` or given by the user.

    Raises:
        SparkError: WRONG_TYPE.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._topic = options.topic or ""
        self._recipe = options.recipe()
        self._feed: OffsetFeed | None = None
        self._reader = ""  # the reader's id at the server
        self._left = ""  # the id that it had there before
        self._own = uuid.uuid4().hex  # the id of one that has none yet
        self._told: list[str] = []
        self._idle: tuple[Heads | None, Any] = None, None
        self._most: list[int] | None = None
        with planning(options):
            self._schema = arrow_schema(schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_feed": None, "_idle": (None, None)}

    # Planning

    def heads(self) -> Heads:
        """Return the offsets of the topic; blocks only the first time.

        Raises:
            SparkError: see ``OffsetFeed``; WRONG_SCHEMA or NO_COLUMN if the columns differ from
                those in Spark.
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
        feed.latest()  # first, as it raises better errors
        told = ask(feed.link, TOPIC_SERVICE, "describe", topic=self._topic)
        with planning(self._options):
            check_fits(self._schema, told_schema(self._options, told), self._options.target)

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query.

        Raises:
            SparkError: BAD_OFFSETS, and what ``heads`` raises.
        """
        options, found = self._options, None
        if options.starting_timestamp is not None:
            found = offsets_at(options, options.starting_timestamp)
            self.stop()  # what was followed may not have come so far yet
        heads = self.heads()
        with planning(self._options):
            if found is None:
                begin = starting(options.starting_offsets, LATEST, heads, "startingOffsets")
            else:
                begin = at_time(found, heads, options.timestamp_strategy)
        offsets = tuple(begin)
        return Position(self._topic, uuid.uuid4().hex, offsets, offsets, heads.home).to_json()

    def next_end(
        self, start: Mapping[str, Any], rows: int | None, size: int | None
    ) -> Mapping[str, Any]:
        """Return the end of the batch that begins at ``start``; the same if there are no rows.

        Args:
            start: the position in the checkpoint.
            rows, size: the maximum number of rows and bytes.

        Raises:
            SparkError: WRONG_CHECKPOINT; OFFSETS_GONE if rows were lost and ``failOnDataLoss`` is
                set; and what ``heads`` raises.
        """
        heads = self.heads()
        if self._idle[0] is heads and self._idle[1] == start:
            return start
        position = self._position(start)
        anew = is_other(position.home, heads)
        self._note([ANEW] if anew else gaps(position.offsets, heads))
        begin = covered(() if anew else position.offsets, heads)
        end = tuple(upto(begin, heads, rows, size, self._most))
        if end == position.offsets and not anew:
            self._idle = heads, start
            return start
        first = position.begun if position.begun == position.offsets and not anew else None
        reader = position.reader or self._own  # earlier versions wrote some without
        home = heads.home or position.home  # not every server of a topic need tell it
        return Position(self._topic, reader, end, first, home).to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return the spans of a batch; the same ones again, as long as the rows are kept.

        Raises:
            SparkError: as ``next_end`` does.
        """
        first, last = self._position(start), self._position(end)
        begin, heads = begin_of(first, last), self.heads()
        if is_other(last.home or first.home, heads):
            self._note([ANEW])
            return []  # no row of the batch is left, and the next one begins with the new topic
        if first.home and last.home and first.home != last.home:  # it begins with the new topic
            self._note([ANEW])
            begin, self._reader = (), ""  # the new topic does not know it yet
        self._note(lost(begin, last.offsets, heads))
        reader = last.reader or first.reader
        if reader and self._reader != reader:  # from now on, the server keeps rows for this reader
            if first.begun != first.offsets:  # else it is new, and the server knows nothing of it
                self._left = self._reader or first.reader
            self._release(reader, covered(begin, heads), heads.home)
            self._reader = reader
        found = split(spans(begin, last.offsets, heads), self._options.min_partitions)
        return [SpanPartition(self._topic, span, heads.home) for span in found]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Report which rows the server need not keep; a later call makes up for a failure."""
        position = self._position(end)
        reader = position.reader or self._reader
        if reader:
            self._release(reader, position.offsets, position.home)

    def _release(self, reader: str, offsets: Sequence[int], home: str) -> None:
        link = self._connected().link
        init = {"topic": self._topic, "query": reader, "offsets": list(offsets)}
        if self._left not in ("", reader):
            init["replaces"] = self._left
        try:
            if is_other(home, self.heads()):
                return  # the offsets are those of a topic that was removed
            ask(link, TOPIC_SERVICE, "release", **init)
        except SparkError as error:
            _log.warning("releasing rows that are no longer needed failed: %s", error)
        else:
            self._left = ""

    def stop(self) -> None:
        """Close the connection."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def _position(self, values: Mapping[str, Any]) -> Position:
        with planning(self._options):
            return Position.of(values, self._topic)

    def _note(self, told: list[str]) -> None:
        """Raise that rows were lost, or log it once."""
        if not told:
            return
        text = f"rows were lost: {'; '.join(told)}"
        if self._options.fail_on_data_loss:
            advice = "set the option failOnDataLoss=false to continue without them"
            error = refusal(Code.OFFSETS_GONE, f"{text}; {advice}")
            raise refused(self._options, error)
        if told != self._told:
            self._told = told
            _log.warning("%s: %s", self._options.target, text)

    # Tasks

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a span; see ``read_batches``.

        Raises:
            SparkError: with the server's code; OFFSETS_GONE only if ``failOnDataLoss`` is true.
        """
        options = self._options
        header = {**partition.value, "columns": self._schema.names}
        if options.include_metadata:
            header["metadata"] = True
        while header["start"] < header["end"]:
            try:
                rows = read_batches(self._recipe, dict(header), self._schema, options.batch_rows)
                for batch in rows:
                    yield batch
                    header["start"] += batch.num_rows
                return
            except SparkError as error:
                losses = (Code.OFFSETS_GONE.value, Code.BAD_OFFSETS.value)
                if options.fail_on_data_loss or error.code not in losses:
                    raise
                _log.warning("rows were lost: %s", error)
                before = dict(header)
                self._skip(header)
                if header == before:
                    raise

    def _skip(self, header: dict[str, Any]) -> None:
        """Reduce a span to the rows that are available."""
        told = ask(self._recipe.link(), TOPIC_SERVICE, "describe", topic=self._topic)
        heads = Heads.of(told)
        if is_other(header.get("home", ""), heads):
            header["start"] = header["end"]
            return
        earliest, latest = bounds(header["partition"], heads)
        header["start"] = max(header["start"], earliest)
        header["end"] = min(header["end"], latest)


class PlainStreamReader(Follower):
    """Follow a topic for Spark before 4.2, which passes neither start nor limit.

    The start is remembered from the previous call. After a restart it is unknown, so the first
    batch is not limited then, and its end has a new id of the reader. The server is told which one
    that replaces when both are known, as the batch is planned.
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
            heads = self.heads()
            latest = tuple(heads.latest)
            return Position(self._topic, self._own, latest, home=heads.home).to_json()
        return self.next_end(self._at, self._options.max_rows, self._options.max_bytes)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """See ``Follower``."""
        found = super().partitions(start, end)
        first, last = self._position(start), self._position(end)
        home = last.home or first.home
        self._at = last._replace(reader=self._reader, home=home).to_json()
        return found
