"""Implement the function that ``mapInArrow`` runs with one message per Arrow batch."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ...rpc import RiverError
from ..server.arrow_stream import pieces
from .arrow import from_ipc, to_ipc
from .pipeline import Plan
from .task_calls import BAD_ANSWER, Target, TaskCalls

__all__ = ["ArrowCalls"]

# Bytes above which a batch is sent in slices: a quarter of what a codec accepts in a message, which
# leaves room for larger answers.
MOST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ArrowCalls:
    """Call a procedure with Arrow batches; made by ``Procedure.arrow``."""

    target: Target
    plan: Plan
    timeout: float

    def __call__(self, batches: Iterable[Any]) -> Generator[Any]:
        """Yield the record batches that the server returns for each batch."""
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
        """Return the DataFrame of the answers; the schema is as for ``mapInArrow``."""
        return df.mapInArrow(self, schema)


def _messages(batches: Iterable[Any]) -> Iterator[tuple[None, bytes]]:
    for batch in batches:
        for piece in pieces(batch, MOST_BYTES):
            yield None, to_ipc(piece)
