"""Read the record batches of a partition in a task, resuming after lost connections.

A read that is interrupted, or ends with BUSY, resumes after the last row received: the server's
order never changes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from ...config import MIB
from ...exceptions import WsmuxError
from ...rpc import RiverError
from ..connection_settings import Link, Recipe
from ..protocol import READ, is_busy
from ..retries import Retries
from ..server.arrow_stream import ArrowSource, Limits, receive
from ..server.stored_stream import receive_stored
from .types import fit, regrouped

__all__ = ["read_batches"]

_WHAT = f"stream {READ}"

# What is accepted of a server that tells no bounds, or smaller ones, and the most bytes of a record
# batch of one that does: no value in Spark or Arrow has more.
USUAL = Limits()
MOST_BYTES = 2**31

# Bytes by which a batch may be larger as it is read than as it was written: padding of other
# columns, and those of metadata.
MORE_BYTES = MIB


def read_batches(
    recipe: Recipe, header: Mapping[str, Any], schema: Any, batch_rows: int | None = None
) -> Iterator[Any]:
    """Yield the record batches of a range.

    Blocks for up to ``call_timeout`` of the recipe without data. Closing the generator cancels the
    stream.

    Args:
        recipe: the connection settings; tasks of this process share the connection.
        header: the header of the stream: ``token`` of a dataset, or ``topic``, ``partition``,
            ``start`` and ``end``.
        schema: the schema of the batches; see ``fit``.
        batch_rows: the maximum number of rows per batch.

    Raises:
        SparkError: with the server's code; or the stream was cut, or ended with BUSY, more than
            ``retries`` times without a row in between.
    """
    with closing(_resumed(recipe.link(), header, schema)) as batches:
        yield from regrouped(batches, batch_rows)


def _resumed(link: Link, header: Mapping[str, Any], schema: Any) -> Generator[Any]:
    recipe = link.recipe
    retries = Retries(recipe.retries, recipe.retry_backoff)
    rows = 0
    while True:
        # Files of tables may come as they are stored, from servers that know of it.
        asked = {"empty": True, "stored": True, **_behind(header, rows)}
        stream, told = link.ask_stream(READ, **asked)
        stream.timeout = recipe.call_timeout
        limits = _limits(told)
        try:
            if told.get("stored") is True:
                batches = receive_stored(stream, limits)
            else:
                batches = receive(ArrowSource(stream, limits), limits)[1]
            for batch in batches:
                if not batch.num_rows:
                    continue  # the server is at it, and has found nothing that matches
                fitting = fit(batch, schema)
                rows += batch.num_rows
                retries.succeeded()
                yield fitting
            return
        except RiverError as error:
            if not is_busy(error) or not retries.again():
                raise link.error(error.code, error.message, _WHAT) from None
        except (WsmuxError, OSError) as error:
            if not retries.again():
                raise link.failure(error, _WHAT) from None
        finally:
            stream.reset()  # no effect on a stream that has ended
        retries.wait()


def _limits(told: Mapping[str, Any]) -> Limits:
    """Return the bounds for a server's batches: each row that it took can be read."""
    size = told.get("batch_bytes")
    least = USUAL.batch_bytes
    taken = max(size, least) if isinstance(size, int) else least
    return replace(USUAL, batch_bytes=min(taken + MORE_BYTES, MOST_BYTES))


def _behind(header: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return the header that requests the rows after so many."""
    if "topic" in header:
        return {**header, "start": header["start"] + rows}
    return {**header, "skip_rows": rows}
