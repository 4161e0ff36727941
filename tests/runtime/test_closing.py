"""The end of an object: one run at a time, and none within another."""

from __future__ import annotations

import threading

import pytest

from wsmux.runtime.closing import Ending

from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for


def test_a_run_within_another_does_nothing_and_says_so() -> None:
    ending, runs = Ending(), list[str]()

    def end() -> None:
        runs.append("outer")
        assert not ending.run(lambda: runs.append("inner"))

    assert ending.run(end)
    assert ending.run(lambda: runs.append("again"))
    assert runs == ["outer", "again"]


def test_a_run_that_fails_may_be_repeated() -> None:
    ending, runs = Ending(), list[str]()

    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ending.run(fail)
    assert ending.run(lambda: runs.append("again"))
    assert runs == ["again"]


def test_a_run_of_another_thread_is_waited_for() -> None:
    ending, runs = Ending(), list[str]()
    begun, goes_on = threading.Event(), threading.Event()

    def end() -> None:
        begun.set()
        assert goes_on.wait(WAIT)
        runs.append("first")

    threads = [threading.Thread(target=ending.run, args=(end,), daemon=True)]
    threads[0].start()
    assert begun.wait(WAIT)
    second = threading.Thread(target=ending.run, args=(lambda: runs.append("second"),), daemon=True)
    threads.append(second)
    second.start()
    wait_for(second.is_alive)
    assert runs == []
    goes_on.set()
    for thread in threads:
        thread.join(WAIT)
    assert runs == ["first", "second"]
