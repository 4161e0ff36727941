"""Split the rows of a snapshot into ranges that can be read independently."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

__all__ = ["Cut", "Group", "cut", "overlaps", "without_large_first"]

# Default bytes of a range: a few seconds of a task.
RANGE_BYTES = 64 * 1024 * 1024

File = TypeVar("File")


class Group(NamedTuple):
    """Describe rows that are cheapest to read together, such as a row group of a file."""

    rows: int
    bytes: float


class Cut(NamedTuple):
    """Identify rows from ``start`` up to ``end``, counted over the whole snapshot."""

    start: int
    end: int
    bytes: int


def cut(groups: Iterable[Group], wanted: int | None) -> list[Cut]:
    """Return at most ``wanted`` ranges, about equal in bytes, none empty.

    They end at the ends of groups, unless there are fewer groups than wanted ranges.
    """
    held = [group for group in groups if group.rows]
    rows, size = sum(group.rows for group in held), sum(group.bytes for group in held)
    if not rows:
        return []
    if wanted is None:
        wanted = max(1, min(len(held), round(size / RANGE_BYTES)))
    if wanted > len(held):
        wanted = min(wanted, rows)
        edges = [rows * place // wanted for place in range(wanted + 1)]
        return [
            Cut(start, end, round(size * (end - start) / rows))
            for start, end in zip(edges, edges[1:], strict=False)
        ]
    return list(_by_groups(held, wanted, size))


def _by_groups(groups: Sequence[Group], wanted: int, size: float) -> Iterator[Cut]:
    start = end = made = 0
    taken = passed = 0.0
    for place, group in enumerate(groups):
        end += group.rows
        taken += group.bytes
        left = len(groups) - place - 1
        full = passed + taken >= size * (made + 1) / wanted
        if left == 0 or left == wanted - made - 1 or (full and made < wanted - 1):
            yield Cut(start, end, round(taken))
            start, passed, taken, made = end, passed + taken, 0.0, made + 1


def overlaps(sizes: Iterable[int], start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the index, start and end of each part of given sizes that overlaps a range."""
    at = 0
    for place, size in enumerate(sizes):
        if at >= end:
            return
        if at + size > start and size:
            yield place, max(0, start - at), min(size, end - at)
        at += size


def without_large_first(files: Sequence[File], size: Callable[[File], int]) -> list[File]:
    """Return files to join without the first ones that are larger than all behind them together.

    When some are joined again and again, each byte is then rewritten a few times only.
    """
    behind = sum(map(size, files))
    for place, file in enumerate(files):
        behind -= size(file)
        if size(file) <= behind:
            return list(files[place:])
    return []
