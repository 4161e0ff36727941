"""What is asked again: how often, after which waits, and what is raised in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from wsmux.spark.errors import SparkError
from wsmux.spark.retries import (
    LONGEST_RETRY,
    Retries,
    SourceFailed,
    from_source,
    retry_delay,
)


class Clock:
    """A clock that only waits move; a piece of work that fails until a time."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = [*errors]
        self.waits: list[float] = []
        self.calls = 0

    def sleep(self, seconds: float) -> None:
        """Move on."""
        self.waits.append(seconds)

    def work(self) -> int:
        """Raise the next error; return how many calls there were when there is none left."""
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls

    def call(
        self, retries: Retries, passes: Callable[[Exception], bool] = lambda error: True
    ) -> int:
        """Do the work."""
        return retries.call(self.work, failure, passes)


def failure(error: Exception) -> SparkError:
    return SparkError("TOLD", str(error), "work")


def lost(count: int) -> list[Exception]:
    return [ConnectionError(f"lost {number}") for number in range(count)]


def test_what_succeeds_is_done_once() -> None:
    clock = Clock()
    assert clock.call(Retries(3, 1.0, clock.sleep)) == 1
    assert clock.waits == []


def test_waits_double_with_half_of_each_at_random_up_to_the_longest() -> None:
    clock = Clock(*lost(10))
    assert clock.call(Retries(10, 1.0, clock.sleep)) == 11
    whole = [min(2.0**number, LONGEST_RETRY) for number in range(10)]
    pairs = list(zip(clock.waits, whole, strict=True))
    assert all(most / 2 <= wait <= most for wait, most in pairs)
    assert len({wait / most for wait, most in pairs}) > 1


def test_the_last_failure_is_told_without_its_cause() -> None:
    clock = Clock(*lost(9))
    with pytest.raises(SparkError, match="TOLD.*lost 2") as caught:
        clock.call(Retries(2, 1.0, clock.sleep))
    assert (clock.calls, len(clock.waits)) == (3, 2)
    assert caught.value.__suppress_context__


def test_what_does_not_pass_is_not_repeated() -> None:
    clock = Clock(*lost(9))
    with pytest.raises(SparkError, match="TOLD.*lost 0"):
        clock.call(Retries(2, 1.0, clock.sleep), lambda error: False)
    assert (clock.calls, clock.waits) == (1, [])


def test_an_error_that_is_told_already_is_final() -> None:
    told = SparkError("REFUSED", "no", "work")
    clock = Clock(told)
    with pytest.raises(SparkError) as caught:
        clock.call(Retries(2, 1.0, clock.sleep))
    assert caught.value is told
    assert clock.calls == 1


@pytest.mark.parametrize("error", [ValueError("a defect"), KeyboardInterrupt()])
def test_what_is_no_error_of_the_connection_is_raised_as_it_is(error: BaseException) -> None:
    def work() -> None:
        raise error

    clock = Clock()
    with pytest.raises(type(error)) as caught:
        Retries(2, 1.0, clock.sleep).call(work, failure, lambda error: True)
    assert caught.value is error
    assert clock.waits == []


def test_success_gives_the_whole_budget_again() -> None:
    """Four failures pass with one repetition, as long as something goes on in between."""
    clock = Clock(*lost(4))
    retries = Retries(1, 1.0, clock.sleep)

    def work() -> int:
        retries.succeeded()
        return clock.work()

    assert retries.call(work, failure, lambda error: True) == 5
    assert all(0.5 <= wait <= 1.0 for wait in clock.waits)


def test_one_wait_may_be_longer() -> None:
    clock = Clock(*lost(2))
    retries = Retries(2, 1.0, clock.sleep)
    retries.wait_at_least(7.0)
    clock.call(retries)
    assert clock.waits[0] == 7.0
    assert clock.waits[1] <= 2.0


def test_an_error_of_the_source_is_raised_unchanged_whatever_its_type() -> None:
    def rows() -> Iterator[int]:
        yield 1
        try:
            raise KeyError("why")
        except KeyError:
            raise ConnectionError("of the rows") from None

    clock = Clock()
    seen: list[int] = []
    with pytest.raises(ConnectionError, match="of the rows") as caught:
        Retries(2, 1.0, clock.sleep).call(
            lambda: seen.extend(from_source(rows())), failure, lambda error: True
        )
    assert seen == [1]
    assert clock.waits == []
    assert isinstance(caught.value.__context__, KeyError)
    assert caught.value.__cause__ is None


def test_a_source_is_read_on_where_an_iteration_ended() -> None:
    rows = (number for number in range(4))
    for row in from_source(rows):
        if row == 1:
            break
    assert list(from_source(rows)) == [2, 3]


def test_a_failed_source_tells_what_it_carries() -> None:
    assert str(SourceFailed(ValueError("why"))) == "why"


def test_no_backoff_is_no_wait() -> None:
    assert retry_delay(0.0, 5) == 0.0
