"""Reckon with the offsets of a topic: where to begin, how far to go, what is lost. Pure.

What Spark writes to its checkpoint is an object, made and read here::

    {"topic": "clicks", "reader": "6f9d...", "offsets": {"0": 120, "1": 98}}

``offsets`` says up to where each partition was read. ``reader`` is a random name of the reader, so
that the server knows what is still needed: it is made with the first offsets, and lasts as long as
the checkpoint. The end of the first batch has ``from`` too, the offsets at which the batch begins:
Spark asks for those again after a crash, and ``latest`` may be another place by then.
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
    "begin_of",
    "bounds",
    "covered",
    "gaps",
    "lost",
    "shares",
    "spans",
    "split",
    "starting",
    "upto",
]

WRONG_CHECKPOINT = "WRONG_CHECKPOINT"


class Position(NamedTuple):
    """What is in a checkpoint."""

    topic: str
    reader: str
    offsets: tuple[int, ...]
    """By partition; what lies below was read."""
    begun: tuple[int, ...] | None = None
    """Where the batch begins that ends here, if it is the first one."""

    def to_json(self) -> dict[str, Any]:
        """Return it as Spark keeps it."""
        values: dict[str, Any] = {"topic": self.topic, "reader": self.reader}
        values["offsets"] = _named(self.offsets)
        if self.begun is not None:
            values["from"] = _named(self.begun)
        return values

    @classmethod
    def of(cls, values: Mapping[str, Any], topic: str) -> Self:
        """Return what a checkpoint holds.

        Raises:
            RiverError: WRONG_CHECKPOINT, if it is none of this topic.
        """
        try:
            found, reader = values["topic"], values["reader"]
            offsets = _offsets(values["offsets"])
            begun = _offsets(values["from"]) if "from" in values else offsets
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _foreign(
                f"this checkpoint holds {values!r:.200}, which wsmux did not write"
            ) from None
        if not isinstance(reader, str) or len(begun) > len(offsets):
            raise _foreign(f"this checkpoint holds {values!r:.200}, which wsmux did not write")
        if found != topic:
            text = f"this checkpoint is of topic {found}, not of {topic}; choose another one"
            raise _foreign(text)
        return cls(topic, reader, offsets, begun if "from" in values else None)


def _named(offsets: Sequence[int]) -> dict[str, int]:
    return {str(place): offset for place, offset in enumerate(offsets)}


def _offsets(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return what an object of offsets holds; what is none raises one of several errors."""
    offsets = tuple(values[str(place)] for place in range(len(values)))
    if not offsets or not all(type(each) is int and 0 <= each <= MAX_WHOLE for each in offsets):
        raise ValueError
    return offsets


def _foreign(text: str) -> RiverError:
    return RiverError(WRONG_CHECKPOINT, text)


# Where to begin and to end


def starting(asked: Offsets | None, default: str, heads: Heads, option: str) -> list[int]:
    """Return the offsets that a user asks for.

    Args:
        asked: a word, or a number for each partition that is named: an offset, -2 for ``earliest``
            or -1 for ``latest``. Partitions that are not named have the default.
        heads: what the topic holds.
        option: what the option is called, for errors.

    Raises:
        RiverError: BAD_OFFSETS, for a partition that is not there, or an offset beyond its end.
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


def bounds(place: int, heads: Heads) -> tuple[int, int]:
    """Return the earliest and the latest offset of a partition; 0 of one that is not there."""
    if place < len(heads.latest):
        return heads.earliest[place], heads.latest[place]
    return 0, 0


def gaps(begin: Sequence[int], heads: Heads) -> list[str]:
    """Say where the rows that come next are not held: they are gone, or never were.

    The latter are of another topic of the same name, which was there before.
    """
    found = []
    for place, offset in enumerate(begin):
        first, last = bounds(place, heads)
        if offset < first:
            found.append(f"partition {place} begins at {first}, behind {offset}")
        if offset > last:
            found.append(f"partition {place} ends at {last}, before {offset}")
    return found


def covered(begin: Sequence[int], heads: Heads) -> list[int]:
    """Return the offsets to go on from: these, or the earliest of a partition that lacks them.

    Partitions that are new begin where they begin.
    """
    found = []
    for place, first in enumerate(heads.earliest):
        offset = begin[place] if place < len(begin) else first
        found.append(offset if first <= offset <= heads.latest[place] else first)
    return found


# How far to go


def shares(wanted: Sequence[int], budget: int, turn: int = 0) -> list[int]:
    """Split a budget: nobody gets more than wanted, nor less than another unless by that or by 1.

    Args:
        turn: which one gets first what cannot be split. Let it grow by the budget each time,
            and everybody's turn comes.

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
    """Return the offsets up to which the next batch goes.

    Args:
        offsets: where it begins, as ``covered`` returns it.
        heads: what the topic holds.
        max_rows: of the batch. max_bytes: the same, by the mean size of the rows that each
            partition holds; one row at least.
        most: what is not passed, whatever has come after it.
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
    """Return how many rows fit a number of bytes."""
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


# What a batch is


class Span(NamedTuple):
    """Name rows of a partition, from offset ``start`` up to ``end``."""

    partition: int
    start: int
    end: int


def begin_of(start: Position, end: Position) -> tuple[int, ...]:
    """Return the offsets at which a batch begins that Spark says to lie between two positions.

    Of the first batch of a checkpoint only the end is kept, so that its start, asked for again, is
    a new one of a new reader.
    """
    if end.begun is not None and start.reader != end.reader:
        return end.begun
    return start.offsets


def lost(begin: Sequence[int], end: Sequence[int], heads: Heads) -> list[str]:
    """Say what of a batch is not held."""
    taken = [
        offset if place < len(end) and offset != end[place] else bounds(place, heads)[0]
        for place, offset in enumerate(begin)
    ]
    ends = [max(offset, bounds(place, heads)[0]) for place, offset in enumerate(end)]
    return gaps(taken, heads) + gaps(ends, heads)


def spans(begin: Sequence[int], end: Sequence[int], heads: Heads) -> list[Span]:
    """Return what of a batch is held, by partition; of what is empty nothing."""
    found = [
        Span(place, start, min(end[place], heads.latest[place]))
        for place, start in enumerate(covered(begin, heads))
        if place < len(end)
    ]
    return [span for span in found if span.start < span.end]


def split(whole: Sequence[Span], least: int | None) -> list[Span]:
    """Return spans in at least so many pieces, about equal ones, if they have so many rows."""
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
