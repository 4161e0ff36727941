"""Many calls under way from one thread: order, bounds, repetitions, the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from wsmux.spark.calls.pipeline import PROBE, Plan, pipeline

from ...helpers.spark.fakes import FakeStarter, Lost


def outcomes(
    starter: FakeStarter, plan: Plan, work: Any, pauses: list[float] | None = None
) -> list[Any]:
    """Return the values and errors that come out."""
    made = pipeline(starter, plan, (pauses if pauses is not None else []).append)
    return [
        value if error is None else error
        for _, value, error in made.run((each, each) for each in work)
    ]


@pytest.mark.parametrize("ordered", [True, False])
def test_every_piece_of_work_has_an_outcome(ordered: bool) -> None:
    starter = FakeStarter(lambda init: init * 2)
    found = outcomes(starter, Plan(max_in_flight=10, ordered=ordered), range(1000))
    assert sorted(found) == list(range(0, 2000, 2))


@pytest.mark.parametrize("ordered", [True, False])
def test_no_work_is_no_call(ordered: bool) -> None:
    starter = FakeStarter()
    assert outcomes(starter, Plan(ordered=ordered), []) == []
    assert starter.calls == []


def test_outcomes_keep_the_order_of_the_work_however_answers_come() -> None:
    starter = FakeStarter()
    starter.ready = lambda calls: calls[-1:]
    assert outcomes(starter, Plan(max_in_flight=10), range(200)) == list(range(200))


def test_outcomes_come_as_the_answers_if_order_does_not_matter() -> None:
    starter = FakeStarter()
    starter.ready = lambda calls: calls[-1:]
    found = outcomes(starter, Plan(max_in_flight=4, ordered=False), range(8))
    assert found[0] == 3
    assert sorted(found) == list(range(8))


@pytest.mark.parametrize("ordered", [True, False])
def test_no_more_calls_are_open_than_allowed(ordered: bool) -> None:
    starter = FakeStarter()
    starter.ready = lambda calls: calls[:1]
    outcomes(starter, Plan(max_in_flight=7, ordered=ordered), range(100))
    assert starter.most == 7


def test_what_waits_to_be_given_counts_as_open() -> None:
    starter = FakeStarter()
    run = pipeline(starter, Plan(max_in_flight=8)).run((i, i) for i in range(100))
    next(run)
    assert len(starter.calls) == 8
    run.close()


def test_work_is_taken_only_when_there_is_room_for_it() -> None:
    taken: list[int] = []

    def work() -> Iterator[tuple[int, int]]:
        for i in range(100):
            taken.append(i)
            yield i, i

    run = pipeline(FakeStarter(), Plan(max_in_flight=5)).run(work())
    for _ in range(10):
        next(run)
    assert len(taken) <= 10 + 5
    run.close()


def test_calls_are_started_together() -> None:
    starter = FakeStarter()
    outcomes(starter, Plan(max_in_flight=64), range(640))
    assert len(starter.starts) < 100


def test_the_first_window_is_small_until_a_cost_is_known() -> None:
    starter = FakeStarter()
    outcomes(starter, Plan(max_in_flight=256), range(1000))
    assert starter.starts[0] == PROBE
    assert starter.most == 256


def test_costly_calls_make_the_window_small() -> None:
    starter = FakeStarter()
    starter.cost = 1000
    starter.ready = lambda calls: calls[:1]
    outcomes(starter, Plan(max_in_flight=256, max_bytes=5000), range(300))
    assert max(starter.starts[20:]) <= 5
    assert len(starter.open()) == 0


def test_one_call_has_room_whatever_it_costs() -> None:
    starter = FakeStarter()
    starter.cost = 1000
    assert len(outcomes(starter, Plan(max_bytes=1), range(100))) == 100


# Errors


@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_is_the_outcome_of_its_own_work_alone(ordered: bool) -> None:
    starter = FakeStarter(lambda init: ValueError("bad") if init == 5 else init)
    found = outcomes(starter, Plan(ordered=ordered), range(10))
    assert [each for each in found if isinstance(each, Exception)] != []
    assert sorted(each for each in found if isinstance(each, int)) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert len(starter.calls) == 10


@pytest.mark.parametrize("ordered", [True, False])
def test_what_may_pass_is_tried_again_together_after_a_growing_pause(ordered: bool) -> None:
    tries: dict[int, int] = {}

    def serve(init: int) -> Any:
        tries[init] = tries.get(init, 0) + 1
        return Lost("away") if tries[init] <= 2 else init

    starter = FakeStarter(serve)
    pauses: list[float] = []
    plan = Plan(max_in_flight=10, retries=2, backoff=0.5, ordered=ordered)
    assert sorted(outcomes(starter, plan, range(10), pauses)) == list(range(10))
    assert 0.25 <= pauses[0] <= 0.5 <= pauses[1] <= 1.0
    assert len(pauses) == 2
    assert starter.starts == [10, 10, 10]


@pytest.mark.parametrize("ordered", [True, False])
def test_what_does_not_pass_is_the_outcome(ordered: bool) -> None:
    starter = FakeStarter(lambda init: Lost("away") if init == 3 else init)
    found = outcomes(starter, Plan(retries=2, ordered=ordered), range(5))
    assert sum(isinstance(each, Lost) for each in found) == 1
    assert len(starter.calls) == 5 + 2


def test_those_that_went_well_are_not_tried_again() -> None:
    seen: list[int] = []

    def serve(init: int) -> Any:
        seen.append(init)
        return Lost("away") if init == 1 and seen.count(1) == 1 else init

    starter = FakeStarter(serve)
    assert outcomes(starter, Plan(), range(4)) == [0, 1, 2, 3]
    assert sorted(seen) == [0, 1, 1, 2, 3]


def test_a_late_call_is_given_up_while_others_go_on() -> None:
    starter = FakeStarter()
    starter.ready = lambda calls: [call for call in calls if call.init != 2]
    plan = Plan(max_in_flight=4, retries=0, ordered=False)
    run = pipeline(starter, plan).run((i, i) for i in range(8))
    found = [next(run) for _ in range(3)]
    starter.calls[2].late = True
    found += list(run)
    assert [each.tag for each in found if isinstance(each.error, TimeoutError)] == [2]
    assert len(found) == 8


def test_what_the_work_raises_is_raised_and_cancels_the_rest() -> None:
    def work() -> Iterator[tuple[int, int]]:
        yield from ((i, i) for i in range(PROBE + 3))
        raise LookupError("no more")

    starter = FakeStarter()
    starter.ready = lambda calls: calls[:1]
    with pytest.raises(LookupError):
        list(pipeline(starter, Plan()).run(work()))
    assert starter.open()
    assert all(call.cancelled for call in starter.open())


@pytest.mark.parametrize("ordered", [True, False])
def test_closing_cancels_what_is_open_and_nothing_else(ordered: bool) -> None:
    starter = FakeStarter()
    starter.ready = lambda calls: calls[:1]
    run = pipeline(starter, Plan(max_in_flight=6, ordered=ordered)).run((i, i) for i in range(100))
    next(run)
    run.close()
    assert [call.cancelled for call in starter.calls] == [not c.done() for c in starter.calls]
    assert starter.open()


@pytest.mark.parametrize(
    "wrong",
    [{"max_in_flight": 0}, {"max_bytes": 0}, {"retries": -1}, {"backoff": -0.1}],
)
def test_what_cannot_be_planned_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        Plan(**wrong)
