"""Send rows in messages of one or many, and return the result of each row."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ...rpc import Completions, EncodeError, PendingCall, RiverError
from ..connection_settings import TIMEOUT, UNAUTHORIZED, Link, Recipe
from ..errors import SparkError
from .batches import Answers, NotAnswers, read_answers
from .pipeline import Pipeline, Plan, Starter, pipeline

__all__ = ["Target", "TaskCalls", "failure"]

UNEXPECTED_DISCONNECT = "UNEXPECTED_DISCONNECT"
CANNOT_SEND, BAD_ANSWER, CLIENT_FAILED = "CANNOT_SEND", "BAD_ANSWER", "CLIENT_FAILED"


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
    """

    def __init__(self, target: Target, plan: Plan, timeout: float) -> None:
        self.link = target.recipe.link()
        self._target = target
        self._starter = _River(self.link, target, timeout)
        self._pipeline: Pipeline = pipeline(self._starter, plan)

    def ask(self, messages: Iterable[tuple[Any, Any]]) -> Generator[tuple[Any, Any, Any]]:
        """Yield the tag, the answer and the error of each message, as planned.

        Raises:
            SparkError: the connection is lost, and retries failed.
        """
        with closing(self._pipeline.run(messages)) as outcomes:
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
                error = RiverError(BAD_ANSWER, str(wrong))
        told = river_error(error)
        return Answers([None] * count, dict.fromkeys(range(count), told))

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


def failure(
    link: Link, target: Target, error: Exception, in_flight: int | None = None, **more: Any
) -> SparkError:
    """Return the exception for a failed call."""
    told = river_error(error)
    lost = told.code == UNEXPECTED_DISCONNECT and link.refused()
    code = UNAUTHORIZED if lost else told.code
    return link.error(code, told.message, str(target), in_flight, **more)
