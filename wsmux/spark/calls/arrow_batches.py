"""The function that ``mapInArrow`` runs: a message for each Arrow batch."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ...rpc import RiverError
from .arrow import from_ipc, slices, to_ipc
from .pipeline import Plan
from .task_calls import BAD_ANSWER, Target, TaskCalls

__all__ = ["ArrowCalls"]

# Bytes of a batch above which it is sent in pieces: a quarter of what a codec takes in a message,
# so that the answer may be larger.
MOST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ArrowCalls:
    """What ``Procedure.arrow`` returns; see there."""

    target: Target
    plan: Plan
    timeout: float

    def __call__(self, batches: Iterable[Any]) -> Generator[Any]:
        """Yield the record batches that the server makes of each."""
        asking = TaskCalls(self.target, self.plan, self.timeout)
        with closing(asking.ask(_messages(batches))) as outcomes:
            for _, value, error in outcomes:
                if error is not None:
                    raise asking.error(error) from None
                try:
                    answered = from_ipc(value)
                except ValueError as wrong:
                    raise asking.error(RiverError(BAD_ANSWER, str(wrong))) from None
                yield from answered

    def on(self, df: Any, schema: Any) -> Any:
        """Return the DataFrame of the answers, whose schema is said as ``mapInArrow`` wants it."""
        return df.mapInArrow(self, schema)


def _messages(batches: Iterable[Any]) -> Iterator[tuple[None, bytes]]:
    for batch in batches:
        for piece in slices(batch, MOST_BYTES):
            yield None, to_ipc(piece)
