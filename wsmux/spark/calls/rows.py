"""Implement the function that ``mapPartitions`` runs: rows in, results out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ...rpc import Err, Ok
from .batches import rows_message
from .pipeline import Plan
from .task_calls import Target, TaskCalls, of_none
from .values import plain_all, plainer

__all__ = ["Key", "RowCalls", "key_of"]

Key = str | int | Callable[[Any], Any]


def key_of(key: Key) -> Callable[[Any], Any]:
    """Return a function that gets the key of a row: the one given, or by field name or number."""
    if callable(key):
        return key
    return lambda row: row[key]


@dataclass(frozen=True, slots=True)
class RowCalls:
    """Call a procedure with rows; made by ``Procedure.rows``."""

    target: Target
    plan: Plan
    timeout: float
    batch_rows: int
    key: Key | None
    raises: bool

    def __call__(self, rows: Iterable[Any]) -> Generator[Any]:
        """Yield the result of each row."""
        asking = TaskCalls(self.target, self.plan, self.timeout)
        many = self.batch_rows > 1 or self.key is not None
        messages = self._of_many(iter(rows)) if many else self._of_one(rows)
        with closing(asking.ask(messages)) as outcomes:
            for sent, value, error in outcomes:
                if error is None and not many:
                    yield value if self.raises else Ok(value)
                    continue
                some = sent if many else [sent]
                values, errors = asking.answers(value, error, len(some), many)
                errors = {at: of_none(errors[at], some[at]) for at in errors}
                if not self.raises:
                    yield from _results(values, errors)
                elif errors:
                    first = min(errors)
                    yield from values[:first]
                    raise asking.error(errors[first])
                else:
                    yield from values

    def _of_one(self, rows: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        make_plain = plainer(self.target.recipe.codec)
        return ((row, make_plain(row)) for row in rows)

    def _of_many(self, rows: Iterator[Any]) -> Iterator[tuple[list[Any], Any]]:
        make_plain = plainer(self.target.recipe.codec)
        take = None if self.key is None else key_of(self.key)
        while chunk := list(islice(rows, self.batch_rows)):
            keys = None if take is None else plain_all(list(map(take, chunk)), make_plain)
            yield chunk, rows_message(plain_all(chunk, make_plain), keys)


def _results(values: Sequence[Any], errors: dict[int, Any]) -> Iterator[Any]:
    for place, value in enumerate(values):
        yield Err(errors[place]) if place in errors else Ok(value)
