"""Stage the record batches of a partition in a task, and return the receipt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from ...config import MIB
from ...exceptions import WsmuxError
from ...mux.stream import Stream
from ...rpc import RiverError
from ..connection_settings import Link, Recipe
from ..errors import SparkError
from ..protocol import WRITE, Receipt, is_busy, parse_line
from ..retries import Retries, from_source
from ..server.arrow_stream import Limits, send
from .types import fit, regrouped

__all__ = ["stage"]

_WHAT = f"stream {WRITE}"


# Bytes of a partition up to which it is kept, to be sent again after a lost connection.
MOST_HELD = 64 * MIB

TOO_MUCH = (
    f"a partition above {MOST_HELD // MIB} MiB is not kept to be sent again, and Spark does not "
    "supply its rows twice: let Spark retry the task, or write more partitions"
)

# Maximum bytes of the answer.
MAX_ANSWER = 64 * 1024


def stage(
    recipe: Recipe,
    header: dict[str, Any],
    schema: Any,
    batches: Iterable[Any],
    batch_rows: int | None = None,
) -> Receipt | None:
    """Send the rows of a partition; return the receipt, ``None`` if there are no rows.

    After a lost connection or BUSY, a partition of up to 64 MiB is sent again from the start; a
    larger one fails, since Spark does not supply rows twice.

    Args:
        recipe: the connection settings; tasks of this process share the connection.
        header: the header of the stream: ``txn``, ``partition`` and ``attempt``.
        schema: the schema to write; see ``fit``.
        batches: Spark's record batches; their exceptions are raised unchanged.
        batch_rows: the maximum number of rows per batch sent.

    Raises:
        SparkError: with the server's code, or that of the failed connection.
    """
    link = recipe.link()
    fitting = (_fitted(link, batch, schema) for batch in batches if batch.num_rows)
    held = _Held(regrouped(fitting, batch_rows))
    if held.is_empty():
        return None

    def attempt() -> Receipt:
        with link.open_stream(WRITE, **header) as stream:
            stream.timeout = recipe.call_timeout
            try:
                return _sent(stream, schema, held)
            except RiverError as error:
                if is_busy(error):
                    raise  # it is sent again
                raise link.error(error.code, error.message, _WHAT) from None

    def failure(error: Exception) -> SparkError:
        failed = link.failure(error, _WHAT)
        if held.whole:
            return failed
        return link.error(failed.code, f"{failed.message}; {TOO_MUCH}", _WHAT)

    retries = Retries(recipe.retries, recipe.retry_backoff)
    return retries.call(attempt, failure, lambda error: held.whole)


def _fitted(link: Link, batch: Any, schema: Any) -> Any:
    try:
        return fit(batch, schema)
    except RiverError as error:
        raise link.error(error.code, error.message, _WHAT) from None


class _Held:
    """Iterate over batches repeatedly from the first, as long as they fit in memory.

    Attributes:
        whole: whether iteration still begins with the first batch.
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self._rest = batches
        self._held: list[Any] = []
        self._bytes = 0
        self.whole = True

    def is_empty(self) -> bool:
        """Return whether there are no batches; blocks for the first."""
        first = next(self._rest, None)
        if first is None:
            return True
        self._rest = chain([first], self._rest)
        return False

    def __iter__(self) -> Iterator[Any]:
        yield from self._held
        for batch in from_source(self._rest):
            self._hold(batch)
            yield batch

    def _hold(self, batch: Any) -> None:
        self._bytes += batch.nbytes
        if self._bytes > MOST_HELD:
            self.whole = False
            self._held.clear()
        else:
            self._held.append(batch)


def _sent(stream: Stream, schema: Any, batches: Iterable[Any]) -> Receipt:
    """Send a part and return its receipt.

    Raises:
        RiverError: the server refused the part. WsmuxError, OSError: the connection failed first.
    """
    try:
        send(stream, schema, batches, Limits())
        stream.close_write()
    except (WsmuxError, OSError):
        # A server that refuses a part stops reading, and sends the reason.
        answer = None
        with suppress(WsmuxError, OSError):
            answer = _answer(stream)
        if answer is None:
            raise
    else:
        answer = _answer(stream)
    if answer.get("ok") is not True:
        raise RiverError(str(answer.get("code")), str(answer.get("message")))
    return Receipt.of(answer)


def _answer(stream: Stream) -> dict[str, Any]:
    line = bytearray()
    while len(line) < MAX_ANSWER and (part := stream.read(MAX_ANSWER - len(line))):
        line += part
    return parse_line(bytes(line))
