"""Send rows in messages of one or many, and return the result of each row."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ...rpc import Completions, EncodeError, PendingCall, RiverError
from ...runtime.logs import logger
from ..connection_settings import TIMEOUT, UNAUTHORIZED, Link, Recipe
from ..ddl import Ddl
from ..errors import SparkError
from .batches import (
    INVALID_REQUEST,
    TYPE,
    UNCAUGHT_ERROR,
    Answers,
    NotAnswers,
    read_answers,
    read_type,
    rows_message,
)
from .pipeline import Pipeline, Plan, Starter, pipeline

__all__ = ["Target", "TaskCalls", "failure", "of_none", "of_nulls"]

UNEXPECTED_DISCONNECT = "UNEXPECTED_DISCONNECT"
# Behind what a procedure says of a message of many rows.
ONE_BY_ONE = (
    "; a message of rows is for procedures made by wsmux.spark.batched: batch_rows=1 is for others"
)

# Codes of rows that a procedure would not take, or fails at.
NOT_TAKEN = frozenset({INVALID_REQUEST, UNCAUGHT_ERROR})
CANNOT_SEND, BAD_ANSWER, CLIENT_FAILED = "CANNOT_SEND", "BAD_ANSWER", "CLIENT_FAILED"

_log = logger("wsmux.spark")


@dataclass(frozen=True, slots=True)
class Target:
    """Name a procedure of a server."""

    recipe: Recipe
    service: str
    procedure: str

    def __str__(self) -> str:
        return f"{self.service}.{self.procedure}"


class TaskCalls:
    """Make the calls of one task.

    Args:
        target: the procedure.
        plan: how calls are kept in flight.
        timeout: seconds per call.
        link: the connection, by default this process's.
    """

    def __init__(
        self, target: Target, plan: Plan, timeout: float, link: Link | None = None
    ) -> None:
        self.link = target.recipe.link() if link is None else link
        self._target = target
        self._starter = _River(self.link, target, timeout)
        self._pipeline: Pipeline = pipeline(self._starter, plan)

    def ask(self, messages: Iterable[tuple[Any, Any]]) -> Generator[tuple[Any, Any, Any]]:
        """Yield the tag, the answer and the error of each message, as planned.

        Raises:
            SparkError: the connection is lost, and retries failed.
        """
        # In use throughout: the pipeline keeps the client, and waits for rows between its calls.
        with self.link.in_use(), closing(self._pipeline.run(messages)) as outcomes:
            for outcome in outcomes:
                if outcome.error is not None and self._is_lost(outcome.error):
                    raise self.error(outcome.error) from None
                yield outcome

    def answers(self, value: Any, error: Exception | None, count: int, many: bool) -> Answers:
        """Return the results of the rows of one message."""
        if error is None and not many:
            return Answers([value], {})
        if error is None:
            try:
                return read_answers(value, count)
            except NotAnswers as wrong:
                error = RiverError(BAD_ANSWER, f"{wrong}{ONE_BY_ONE}")
        told = river_error(error)
        if many and told.code == INVALID_REQUEST:
            told = RiverError(told.code, f"{told.message}{ONE_BY_ONE}", told.extra)
        return Answers([None] * count, dict.fromkeys(range(count), told))

    def result_type(self) -> Ddl | None:
        """Ask for the type of results, by a message of no rows; ``None`` if none is told.

        Raises:
            SparkError: the connection is lost, or no answer came in time, and retries failed.
        """
        with closing(self.ask([(None, rows_message([]))])) as outcomes:
            _, answer, error = next(outcomes)
        if isinstance(error, RiverError):
            return None  # the procedure is not for such messages; the rows themselves will tell
        if error is not None:
            raise self.error(error)
        try:
            return read_type(answer)
        except NotAnswers as wrong:
            if isinstance(answer, Mapping) and TYPE in answer:
                text = "%s: results become strings, unless into_type= says what they are: %s"
                _log.warning(text, self._target, str(wrong))
            return None

    def error(self, error: Exception, **more: Any) -> SparkError:
        """Return the exception for a failed call."""
        return failure(self.link, self._target, error, self._pipeline.in_flight, **more)

    def _is_lost(self, error: Exception) -> bool:
        """Return whether the connection failed, rather than a row."""
        if isinstance(error, RiverError):
            return error.code == UNEXPECTED_DISCONNECT
        return not isinstance(error, TimeoutError | EncodeError)


class _River(Starter):
    """Start calls on the River client of this process."""

    def __init__(self, link: Link, target: Target, timeout: float) -> None:
        self._client = link.client()
        self._link = link
        self._target = target
        self._timeout = timeout

    def start(self, inits: list[Any], ended: Completions | None) -> Sequence[PendingCall]:
        target = self._target
        return self._client.submit_many(
            target.service, target.procedure, inits, self._timeout, ended
        )

    def ended(self) -> Completions:
        return self._client.completions()

    def passes(self, error: Exception) -> bool:
        return passes(self._link, error)


def passes(link: Link, error: Exception) -> bool:
    """Return whether a repeated call may succeed."""
    if isinstance(error, RiverError):
        return error.code == UNEXPECTED_DISCONNECT and not link.refused()
    return isinstance(error, OSError)  # TimeoutError included


def river_error(error: Exception) -> RiverError:
    """Return the failure of a call as a River error."""
    if isinstance(error, RiverError):
        return error
    if isinstance(error, TimeoutError):
        return RiverError(TIMEOUT, str(error))
    if isinstance(error, EncodeError):
        return RiverError(CANNOT_SEND, str(error))
    return RiverError(CLIENT_FAILED, f"{type(error).__name__}: {error}")


def of_nulls(error: RiverError, names: Sequence[str]) -> RiverError:
    """Return the error of a row, and say that it may be for these columns, which are null."""
    if not names or error.code not in NOT_TAKEN:
        return error
    what = f"column {names[0]} is" if len(names) == 1 else f"columns {', '.join(names)} are"
    text = (
        f"{error.message}; {what} null in this row: if that is why, leave such rows out, as by "
        f"df.where('{names[0]} is not null'), or let the procedure take null"
    )
    return RiverError(error.code, text, error.extra)


def of_none(error: RiverError, row: Any) -> RiverError:
    """Return the error of a row of an RDD, and say that the row may be why if it is ``None``."""
    if row is not None or error.code not in NOT_TAKEN:
        return error
    text = f"{error.message}; the row is None: if that is why, filter such rows out, or let the "
    return RiverError(error.code, f"{text}procedure take null", error.extra)


def failure(
    link: Link, target: Target, error: Exception, in_flight: int | None = None, **more: Any
) -> SparkError:
    """Return the exception for a failed call."""
    told = river_error(error)
    lost = told.code == UNEXPECTED_DISCONNECT and link.refused()
    code = UNAUTHORIZED if lost else told.code
    return link.error(code, told.message, str(target), in_flight, **more)
