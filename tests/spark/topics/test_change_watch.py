"""Waiting for topics: told at once in this process, looked for in others, by one thread only."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from wsmux.spark.store.base import Heads
from wsmux.spark.topics.change_watch import ChangeWatch

from ...helpers.spark.clients import WAIT
from ...helpers.waiting import wait_for


def heads(latest: int) -> Heads:
    return Heads([0], [latest], [0])


class Topic:
    """A topic that is watched, and counts the looks."""

    def __init__(self) -> None:
        self.latest = 0
        self.looks = 0
        self.looked = threading.Semaphore(0)

    def look(self) -> Heads:
        self.looks += 1
        self.looked.release()
        return heads(self.latest)


@pytest.mark.parametrize("poll", [None, 0.01])
def test_what_was_not_seen_is_told_at_once(poll: float | None) -> None:
    topic = Topic()
    assert ChangeWatch(poll).wait("t", topic.look, None, WAIT) == heads(0)
    assert ChangeWatch(poll).wait("t", topic.look, heads(7), WAIT) == heads(0)


@pytest.mark.parametrize("poll", [None, 0.01])
def test_time_runs_out(poll: float | None) -> None:
    assert ChangeWatch(poll).wait("t", Topic().look, heads(0), 0.02) == heads(0)


def test_a_change_of_this_process_is_told_to_all() -> None:
    watch, topic = ChangeWatch(None), Topic()
    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(watch.wait, "t", topic.look, heads(0), WAIT) for _ in range(5)]
        for _ in waiting:
            assert topic.looked.acquire(timeout=WAIT)
        topic.latest = 1
        watch.tell("other")
        watch.tell("t")
        assert [each.result(WAIT) for each in waiting] == [heads(1)] * 5


def test_a_change_of_another_process_is_found_by_one_for_all() -> None:
    watch, topic = ChangeWatch(0.02), Topic()
    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(watch.wait, "t", topic.look, heads(0), WAIT) for _ in range(5)]
        for _ in range(15):
            assert topic.looked.acquire(timeout=WAIT)
        began, looks = time.monotonic(), topic.looks
        wait_for(lambda: topic.looks >= looks + 10)
        per_second = (topic.looks - looks) / (time.monotonic() - began)
        topic.latest = 1
        assert [each.result(WAIT) for each in waiting] == [heads(1)] * 5
    assert per_second < 75, "one thread looks, 50 times a second at most"


def test_another_one_looks_when_the_first_has_left() -> None:
    watch, topic = ChangeWatch(0.01), Topic()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(watch.wait, "t", topic.look, heads(0), 0.05)
        second = pool.submit(watch.wait, "t", topic.look, heads(0), WAIT)
        assert first.result(WAIT) == heads(0)
        topic.latest = 1
        assert second.result(WAIT) == heads(1)
