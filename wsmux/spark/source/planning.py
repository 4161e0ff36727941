"""Make calls while planning, on connections that are closed afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...rpc import RiverError
from ...runtime.logs import logger
from ..calls.task_calls import Target, failure, passes
from ..connection_settings import Link, Recipe
from ..errors import SparkError, place
from ..protocol import TOPIC_SERVICE, Receipt, is_busy
from ..retries import Retries
from ..store.metadata import with_metadata
from ..store.schemas import schema_of
from .options import Options

__all__ = [
    "ask",
    "ask_once",
    "commit_once",
    "offsets_at",
    "planning",
    "refused",
    "told_schema",
]

_log = logger("wsmux.spark")


def ask(link: Link, service: str, procedure: str, /, **init: Any) -> dict[str, Any]:
    """Call an idempotent procedure of a store, retrying after transient errors and BUSY.

    Blocks for up to ``call_timeout`` of the recipe per attempt.

    Raises:
        SparkError: with the server's code, or that of the failed call.
    """
    recipe = link.recipe
    target = Target(recipe, service, procedure)
    answer = Retries(recipe.retries, recipe.retry_backoff).call(
        lambda: link.client().rpc(service, procedure, init, recipe.call_timeout),
        lambda error: failure(link, target, error),
        lambda error: is_busy(error) or passes(link, error),
    )
    if not isinstance(answer, dict):
        text = f"expected an object as answer, got {type(answer).__name__}"
        raise link.error("BAD_ANSWER", text, str(target))
    return answer


def ask_once(recipe: Recipe, service: str, procedure: str, /, **init: Any) -> dict[str, Any]:
    """Call a procedure as ``ask`` does, on a connection of its own."""
    with recipe.once() as link:
        return ask(link, service, procedure, **init)


def commit_once(
    recipe: Recipe, service: str, txn: str, receipts: Sequence[Receipt], advice: str
) -> None:
    """Commit staged parts, on a connection of its own.

    The answer of a commit that was made may be lost, and an error be all that is heard of it. The
    server is asked to abort then: it tells whether the commit was made, and if not, it never is.

    Args:
        advice: what to do where the server cannot be asked.

    Raises:
        SparkError: nothing was written, unless the message says that this is not known.
    """
    try:
        ask_once(recipe, service, "commit", txn=txn, receipts=[each.to_json() for each in receipts])
    except SparkError as error:
        if not _is_made(recipe, service, txn, error, advice):
            raise
        _log.info("%s was committed, though all that was heard of it is: %s", txn, error)


def _is_made(recipe: Recipe, service: str, txn: str, error: SparkError, advice: str) -> bool:
    """Return whether a commit was made whose answer is an error."""
    try:
        return ask_once(recipe, service, "abort", txn=txn).get("committed") is True
    except SparkError as failed:
        text = f"{error.message}; whether the rows were written is not known ({failed.code})"
        raise SparkError(error.code, f"{text}: {advice}", error.what, error.place) from None


def offsets_at(options: Options, timestamp: int) -> list[int | None]:
    """Ask for the first offsets of a topic whose rows came at a time (in ms) or later.

    Raises:
        SparkError: with the server's code.
    """
    init = {"topic": options.topic, "timestamp": timestamp}
    told = ask_once(options.recipe(), TOPIC_SERVICE, "offsets_at", **init)
    offsets: list[int | None] = told["offsets"]
    return offsets


def told_schema(options: Options, told: dict[str, Any]) -> Any:
    """Return the schema in a description, with the columns that ``includeMetadata`` adds.

    Raises:
        RiverError: BAD_REQUEST; it is none.
    """
    schema = schema_of(told["schema"])
    return with_metadata(schema) if options.include_metadata else schema


def refused(options: Options, error: RiverError) -> SparkError:
    """Return the exception for an error found while planning, without a call."""
    return SparkError(error.code, error.message, options.target, place(options.recipe().url))


@contextmanager
def planning(options: Options) -> Iterator[None]:
    """Raise an error that is found without a call as ``refused`` returns it."""
    try:
        yield
    except RiverError as error:
        raise refused(options, error) from None
