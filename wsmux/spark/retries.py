"""Ask again after a transient error: how often, and how long to wait before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ..exceptions import WsmuxError
from ..runtime.backoff import delay_after
from .errors import SparkError

__all__ = ["LONGEST_RETRY", "Retries", "SourceFailed", "from_source", "retry_delay"]

# Seconds between repetitions, at most.
LONGEST_RETRY = 30.0

T = TypeVar("T")


class SourceFailed(Exception):
    """Carry an error of the task's own rows, as opposed to one of the connection."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def from_source(rows: Iterable[T]) -> Iterator[T]:
    """Yield the task's own rows; raise their errors as ``SourceFailed``."""
    try:
        for row in rows:  # noqa: UP028 - ``yield from`` would close what is read on later
            yield row
    except Exception as error:
        raise SourceFailed(error) from error


class Retries:
    """Count the failures of one piece of work in a row, and wait before each repetition.

    Args:
        most: repetitions; one failure more is final.
        first: seconds before the first repetition; see ``connection``.
        pause: sleeps.

    Attributes:
        failures: since the last success.
    """

    def __init__(
        self, most: int, first: float, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._most = most
        self._first = first
        self._pause = pause
        self._least = 0.0
        self.failures = 0

    def call(
        self,
        action: Callable[[], T],
        failure: Callable[[Exception], SparkError],
        passes: Callable[[Exception], bool],
    ) -> T:
        """Repeat an action until it succeeds, fails for good, or repetitions are used up.

        Args:
            failure: returns the exception to raise for an error of the connection.
            passes: returns whether the action may succeed if it is repeated after such an error.

        Raises:
            SparkError: that of ``failure``, or of the action itself, which is final. What
                ``SourceFailed`` carries is raised unchanged.
        """
        while True:
            own: Exception | None = None
            try:
                return action()
            except SourceFailed as failed:
                own = failed.error
            except SparkError:
                raise
            except (WsmuxError, OSError) as error:
                if not passes(error) or not self.again():
                    raise failure(error) from None  # the cause's text may contain the URL's query
            if own is not None:  # raised here, since an ``except`` would change its context
                raise own
            self.wait()

    def again(self) -> bool:
        """Count a failure; return whether there may be a repetition."""
        self.failures += 1
        return self.failures <= self._most

    def succeeded(self) -> None:
        """Forget the failures: the work goes on."""
        self.failures = 0

    def wait_at_least(self, seconds: float) -> None:
        """Make the next wait no shorter than this."""
        self._least = seconds

    def delay(self) -> float:
        """Return the seconds to wait after the failures so far."""
        return retry_delay(self._first, self.failures)

    def wait(self) -> None:
        """Wait before the repetition."""
        least, self._least = self._least, 0.0
        self._pause(max(least, self.delay()))


def retry_delay(first: float, failures: int) -> float:
    """Return the seconds to wait after a number of failures; see ``connection``."""
    return delay_after(failures, first, LONGEST_RETRY, least=0.5)
