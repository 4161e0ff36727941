"""Which message is offered to which relay next, and when."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from wsmux.bus.federation.schedule import LOOK_UP, PASSES, RETRY, Job, Schedule

FAR = 1000.0


def job(*domains: str, expires_at: float = FAR) -> Job:
    made = Job("ticket", b"data", expires_at)
    made.routed(domains)
    return made


def backwards(domains: Iterable[str]) -> list[str]:
    return list(domains)[::-1]


def fail(tried: Job, random: float = 0.0) -> float:
    return tried.failed("it failed", list, random)


def test_a_message_without_relays_is_looked_up() -> None:
    assert Job("ticket", b"data", FAR).lane == LOOK_UP


def test_a_failed_look_up_is_repeated() -> None:
    unknown = Job("ticket", b"data", FAR)
    assert (fail(unknown), unknown.lane, unknown.reason) == (RETRY, LOOK_UP, "it failed")


def test_the_next_relay_is_tried_at_once() -> None:
    tried = job("a", "b")
    assert (fail(tried), tried.lane) == (0.0, "b")


@pytest.mark.parametrize(
    ("random", "pauses"), [(0.0, [0.1, 0.2]), (0.5, [0.125, 0.25]), (1.0, [0.15, 0.3])]
)
def test_passes_have_pauses_between_them(random: float, pauses: list[float]) -> None:
    tried = job("a")
    assert [fail(tried, random) for _ in range(PASSES - 1)] == pytest.approx(pauses)


def test_each_pass_is_ranked_anew() -> None:
    tried = job("a", "b")
    fail(tried)
    tried.failed("it failed", backwards, 0.0)
    assert tried.lane == "b"


def test_after_the_last_pass_the_twin_is_looked_up_again() -> None:
    tried = job("a")
    waits = [fail(tried) for _ in range(PASSES)]
    assert (waits[-1], tried.lane) == (RETRY, LOOK_UP)


def test_a_round_has_all_its_passes_again() -> None:
    tried = job("a")
    for _ in range(PASSES):
        fail(tried)
    tried.routed(["a"])
    assert fail(tried) == pytest.approx(0.1)


def test_a_relay_that_refused_is_not_asked_again() -> None:
    tried = job("a", "b")
    assert tried.refused("offline")
    fail(tried)
    assert tried.lane == "b"


def test_the_refusal_of_the_last_relay_ends_the_message() -> None:
    tried = job("a", "b")
    assert tried.refused("offline")
    assert not tried.refused("gone")
    assert tried.reason == "gone"


def test_a_relay_that_failed_is_asked_again_after_the_others_refused() -> None:
    tried = job("a", "b")
    fail(tried)
    assert tried.refused("offline")
    assert tried.lane == "a"


def test_nothing_is_taken_before_it_is_due() -> None:
    schedule = Schedule()
    late = job("a")
    schedule.add(late, 5.0)
    assert (schedule.take(4.9), schedule.next_due()) == (None, 5.0)
    assert schedule.take(5.0) == (late, "a")


def test_an_empty_schedule_is_never_due() -> None:
    assert Schedule().next_due() is None


def test_jobs_come_in_the_order_they_are_due() -> None:
    schedule = Schedule()
    jobs = [job("a") for _ in range(3)]
    for each, due in zip(jobs, (3.0, 1.0, 2.0), strict=True):
        schedule.add(each, due)
    taken = [schedule.take(9.0) for _ in jobs]
    assert [each[0] for each in taken if each] == [jobs[1], jobs[2], jobs[0]]


def test_a_job_is_due_when_it_expires() -> None:
    schedule = Schedule()
    schedule.add(job("a", expires_at=2.0), 5.0)
    assert schedule.next_due() == 2.0


def test_a_busy_relay_does_not_hold_up_others() -> None:
    schedule = Schedule(lane=1)
    first, second, other = job("a"), job("a"), job("b")
    for each in (first, second, other):
        schedule.add(each, 0.0)
    assert [schedule.take(0.0), schedule.take(0.0)] == [(first, "a"), (other, "b")]
    assert (schedule.take(0.0), schedule.next_due()) == (None, None)


def test_a_lane_that_is_released_takes_its_next_jobs_in_order() -> None:
    schedule = Schedule(lane=1)
    jobs = [job("a") for _ in range(3)]
    for each in jobs:
        schedule.add(each, 0.0)
    taken = []
    while (now := schedule.take(1.0)) is not None:
        taken.append(now[0])
        schedule.take(1.0)  # notes that the others wait
        schedule.release(now[1], 1.0)
    assert taken == jobs


def test_a_lane_counts_what_is_under_way() -> None:
    schedule = Schedule(lane=2)
    for _ in range(3):
        schedule.add(job("a"), 0.0)
    assert schedule.take(0.0)
    assert schedule.take(0.0)
    assert schedule.take(0.0) is None
    schedule.release("a", 0.0)
    assert schedule.take(0.0)


def test_the_newest_of_those_that_wait_for_a_lane_is_dropped() -> None:
    schedule = Schedule(lane=1)
    jobs = [job("a") for _ in range(3)]
    for each in jobs:
        schedule.add(each, 0.0)
    assert schedule.newest("a") is None
    assert schedule.take(0.0) == (jobs[0], "a")
    assert schedule.take(0.0) is None
    for each in reversed(jobs[1:]):
        assert schedule.newest("a") is each
        schedule.drop_newest("a")
    assert schedule.newest("a") is None
    schedule.release("a", 0.0)
    assert schedule.take(0.0) is None
