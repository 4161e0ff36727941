"""Compute offsets of a topic: where to begin, how far to read, which rows are lost. Pure.

Spark stores an object in its checkpoint, which is written and parsed here::

    {"topic": "clicks", "reader": "6f9d...", "offsets": {"0": 120, "1": 98}}

``offsets`` says up to where each partition was read. ``reader`` is a random id of the reader, by
which the server knows which rows are still needed: it is made with the first offsets, and lasts as
long as the checkpoint, or before Spark 4.2 until the query is started again. The end of the first
batch also has ``from``, the offsets at which that batch begins: after a crash Spark asks for those
again, and ``latest`` may have changed by then. ``home`` tells the topic from others of its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from ...rpc import RiverError
from ..protocol import MAX_WHOLE, Code, refusal
from ..store.base import Heads
from .options import EARLIEST, LATEST, WORDS, Offsets

__all__ = [
    "EARLIEST",
    "LATEST",
    "WRONG_CHECKPOINT",
    "Position",
    "Span",
    "at_time",
    "begin_of",
    "bounds",
    "covered",
    "gaps",
    "is_other",
    "lost",
    "shares",
    "spans",
    "split",
    "starting",
    "upto",
]

WRONG_CHECKPOINT = "WRONG_CHECKPOINT"


class Position(NamedTuple):
    """Hold the content of a checkpoint."""

    topic: str
    reader: str
    offsets: tuple[int, ...]
    """By partition; rows below were read."""
    begun: tuple[int, ...] | None = None
    """The start of the batch that ends here, for the first batch."""
    home: str = ""
    """Tells the topic from others of its name; see ``Heads``."""

    def to_json(self) -> dict[str, Any]:
        """Return it as Spark stores it."""
        values: dict[str, Any] = {"topic": self.topic, "reader": self.reader}
        values["offsets"] = _named(self.offsets)
        if self.begun is not None:
            values["from"] = _named(self.begun)
        if self.home:
            values["home"] = self.home
        return values

    @classmethod
    def of(cls, values: Mapping[str, Any], topic: str) -> Self:
        """Return the position in a checkpoint.

        Raises:
            RiverError: WRONG_CHECKPOINT; it is malformed, or of another topic.
        """
        try:
            found, reader, home = values["topic"], values["reader"], values.get("home", "")
            offsets = _offsets(values["offsets"])
            begun = _offsets(values["from"]) if "from" in values else offsets
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _foreign(
                f"this checkpoint holds {values!r:.200}, which wsmux did not write"
            ) from None
        if not (isinstance(reader, str) and isinstance(home, str)) or len(begun) > len(offsets):
            raise _foreign(f"this checkpoint holds {values!r:.200}, which wsmux did not write")
        if found != topic:
            text = f"this checkpoint is of topic {found}, not of {topic}; choose another one"
            raise _foreign(text)
        return cls(topic, reader, offsets, begun if "from" in values else None, home)


def _named(offsets: Sequence[int]) -> dict[str, int]:
    return {str(place): offset for place, offset in enumerate(offsets)}


def _offsets(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return offsets from JSON; raises one of several exceptions if they are invalid."""
    offsets = tuple(values[str(place)] for place in range(len(values)))
    if not offsets or not all(type(each) is int and 0 <= each <= MAX_WHOLE for each in offsets):
        raise ValueError
    return offsets


def _foreign(text: str) -> RiverError:
    return RiverError(WRONG_CHECKPOINT, text)


# Start and end of a read


def starting(asked: Offsets | None, default: str, heads: Heads, option: str) -> list[int]:
    """Return the offsets that the user requested.

    Args:
        asked: ``earliest`` or ``latest``, or a number per named partition: an offset, -2 for
            ``earliest`` or -1 for ``latest``. Other partitions get the default.
        default: ``earliest`` or ``latest``.
        heads: the offsets of the topic.
        option: the name of the option, for errors.

    Raises:
        RiverError: BAD_OFFSETS; a partition does not exist, or an offset is above its end.
    """
    words = {EARLIEST: heads.earliest, LATEST: heads.latest}
    if asked is None or isinstance(asked, str):
        return list(words[asked or default])
    found = list(words[default])
    for place, offset in asked.items():
        if place >= len(found):
            text = f"the topic has {len(found)} partitions, so {option} cannot name {place}"
            raise refusal(Code.BAD_OFFSETS, text)
        if offset > heads.latest[place]:
            text = f"partition {place} ends at {heads.latest[place]}, before {offset} of {option}"
            raise refusal(Code.BAD_OFFSETS, text)
        found[place] = words[WORDS[offset]][place] if offset in WORDS else offset
    return found


def at_time(found: Sequence[int | None], heads: Heads, strategy: str) -> list[int]:
    """Return the offsets that a server found for a time, none above the latest.

    Args:
        found: by partition; ``None`` if no row came so late.
        strategy: what stands for ``None``: ``latest``, or ``error``.

    Raises:
        RiverError: BAD_OFFSETS.
    """
    without = [place for place, offset in enumerate(found) if offset is None]
    if without and strategy != LATEST:
        text = f"partition {without[0]} has no row of startingTimestamp or later: choose an earlier"
        more = "time, or set startingOffsetsByTimestampStrategy=latest to begin behind its rows"
        raise refusal(Code.BAD_OFFSETS, f"{text} {more}")
    return [
        latest if offset is None else min(offset, latest)
        for offset, latest in zip(found, heads.latest, strict=True)
    ]


def bounds(place: int, heads: Heads) -> tuple[int, int]:
    """Return the earliest and latest offset of a partition; zeros if it does not exist."""
    if place < len(heads.latest):
        return heads.earliest[place], heads.latest[place]
    return 0, 0


def is_other(home: str, heads: Heads) -> bool:
    """Return whether a topic is another one than that whose home is given, as far as is known."""
    return bool(home and heads.home and home != heads.home)


def gaps(begin: Sequence[int], heads: Heads) -> list[str]:
    """Describe partitions whose next rows are not available: dropped, or never written.

    Rows that were never written belong to an earlier topic of the same name.
    """
    found = []
    for place, offset in enumerate(begin):
        first, last = bounds(place, heads)
        if offset < first:
            found.append(f"partition {place} begins at {first}, after {offset}")
        if offset > last:
            found.append(f"partition {place} ends at {last}, before {offset}")
    return found


def covered(begin: Sequence[int], heads: Heads) -> list[int]:
    """Return the offsets to continue from: these, or the earliest where they are not available.

    New partitions start at their earliest offset.
    """
    found = []
    for place, first in enumerate(heads.earliest):
        offset = begin[place] if place < len(begin) else first
        found.append(offset if first <= offset <= heads.latest[place] else first)
    return found


# Size of a batch


def shares(wanted: Sequence[int], budget: int, turn: int = 0) -> list[int]:
    """Split a budget evenly, giving nobody more than wanted; shares differ by 1 at most otherwise.

    Args:
        wanted: the maximum of each share.
        budget: the sum to split.
        turn: the first to get the remainder. Increase it by the budget each time to rotate.

    >>> shares([10, 2, 10], 9)
    [4, 2, 3]
    """
    if sum(wanted) <= budget:
        return list(wanted)
    left, level = budget, 0
    for rank, each in enumerate(sorted(wanted)):
        level = left // (len(wanted) - rank)
        if each > level:
            break
        left -= each
    got = [min(each, level) for each in wanted]
    more = [place for place, each in enumerate(wanted) if each > level]
    more.sort(key=lambda place: (place - turn) % len(wanted))
    for place in more[: budget - sum(got)]:
        got[place] += 1
    return got


def upto(
    offsets: Sequence[int],
    heads: Heads,
    max_rows: int | None = None,
    max_bytes: int | None = None,
    most: Sequence[int] | None = None,
) -> list[int]:
    """Return the offsets at which the next batch ends.

    Args:
        offsets: where it begins, as returned by ``covered``.
        heads: the offsets of the topic.
        max_rows: the maximum number of rows.
        max_bytes: the maximum number of bytes, estimated from the mean row size of each partition;
            at least one row is read.
        most: offsets that are not exceeded, even if newer rows exist.
    """
    ends = heads.latest
    if most is not None:
        ends = [min(end, most[at] if at < len(most) else 0) for at, end in enumerate(ends)]
    wanted = [max(0, end - start) for start, end in zip(offsets, ends, strict=True)]
    turn = sum(offsets)
    if max_bytes is not None:
        wanted = _within(wanted, heads, max_bytes, turn)
    if max_rows is not None:
        wanted = shares(wanted, max_rows, turn)
    return [start + count for start, count in zip(offsets, wanted, strict=True)]


def _within(wanted: list[int], heads: Heads, budget: int, turn: int) -> list[int]:
    """Return how many rows of each partition fit a number of bytes."""
    held = [last - first for first, last in zip(heads.earliest, heads.latest, strict=True)]
    sizes = [
        -(-rows * size // max(1, all_rows))
        for rows, size, all_rows in zip(wanted, heads.bytes, held, strict=True)
    ]
    got = shares(sizes, budget, turn)
    fit = [
        rows if share == size else share * all_rows // heads.bytes[place]
        for place, (rows, share, size, all_rows) in enumerate(
            zip(wanted, got, sizes, held, strict=True)
        )
    ]
    return fit if any(fit) else shares(wanted, 1, turn)


# Content of a batch


class Span(NamedTuple):
    """Identify rows of a partition, from offset ``start`` up to ``end``."""

    partition: int
    start: int
    end: int


def begin_of(start: Position, end: Position) -> tuple[int, ...]:
    """Return the offsets at which the batch between two positions begins.

    Spark keeps only the end of the first batch of a checkpoint. Its start, requested again after a
    crash, is a new one with a new reader, so the recorded one is used.
    """
    if end.begun is not None and start.reader != end.reader:
        return end.begun
    return start.offsets


def lost(begin: Sequence[int], end: Sequence[int], heads: Heads) -> list[str]:
    """Describe the rows of a batch that are not available."""
    taken = [
        offset if place < len(end) and offset != end[place] else bounds(place, heads)[0]
        for place, offset in enumerate(begin)
    ]
    ends = [max(offset, bounds(place, heads)[0]) for place, offset in enumerate(end)]
    return gaps(taken, heads) + gaps(ends, heads)


def spans(begin: Sequence[int], end: Sequence[int], heads: Heads) -> list[Span]:
    """Return the available rows of a batch by partition, without empty spans."""
    found = [
        Span(place, start, min(end[place], heads.latest[place]))
        for place, start in enumerate(covered(begin, heads))
        if place < len(end)
    ]
    return [span for span in found if span.start < span.end]


def split(whole: Sequence[Span], least: int | None) -> list[Span]:
    """Split spans into at least so many about equal ones, if there are enough rows."""
    total = sum(span.end - span.start for span in whole)
    if least is None or least <= len(whole):
        return list(whole)
    found = []
    for span in whole:
        rows = span.end - span.start
        count = min(rows, -(-least * rows // total))
        edges = [span.start + rows * place // count for place in range(count + 1)]
        found += [Span(span.partition, *pair) for pair in zip(edges, edges[1:], strict=False)]
    return found
