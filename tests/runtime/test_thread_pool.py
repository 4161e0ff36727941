"""The threads that run handlers: as many as help, at most as many as allowed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pytest

from wsmux.runtime import thread_pool as module
from wsmux.runtime.parking import Parker, wake
from wsmux.runtime.thread_pool import ThreadPool

from ..helpers.inside import send_watcher_home, threads_resting
from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for


@pytest.fixture
def workers() -> Iterator[ThreadPool]:
    made = ThreadPool(8, "test")
    yield made
    made.close()


def test_actions_that_wait_for_each_other_run_at_once(workers: ThreadPool) -> None:
    together = threading.Barrier(8)
    done = threading.Semaphore(0)

    def meet() -> None:
        together.wait(WAIT)
        done.release()

    for _ in range(8):
        workers.submit(meet)
    assert all(done.acquire(timeout=WAIT) for _ in range(8))


def test_no_more_run_at_once_than_are_allowed(workers: ThreadPool) -> None:
    gate, started = threading.Event(), threading.Semaphore(0)
    running: list[int] = []
    most: list[int] = []
    lock = threading.Lock()

    def work() -> None:
        with lock:
            running.append(1)
            most.append(len(running))
        started.release()
        gate.wait(WAIT)
        with lock:
            running.pop()

    for _ in range(20):
        workers.submit(work)
    assert all(started.acquire(timeout=WAIT) for _ in range(8))
    gate.set()
    assert all(started.acquire(timeout=WAIT) for _ in range(12))
    assert max(most) == 8


def test_one_thread_runs_what_comes_one_after_another(workers: ThreadPool) -> None:
    seen: list[str] = []
    for _ in range(20):
        done = threading.Event()

        def work(done: threading.Event = done) -> None:
            seen.append(threading.current_thread().name)
            done.set()

        workers.submit(work)
        assert done.wait(WAIT)
        wait_for(lambda: len(workers._parked) == 1)
    assert len(set(seen)) == 1


def test_adding_many_wakes_one_worker(workers: ThreadPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK", WAIT)  # the watcher would call further ones meanwhile
    done = threading.Semaphore(0)
    workers.submit(done.release)
    wait_for(lambda: len(workers._parked) == 1)
    wakes: list[Parker] = []
    for _ in range(5):
        workers.add(done.release, wakes)
    assert len(wakes) == 1
    wake(wakes)
    assert all(done.acquire(timeout=WAIT) for _ in range(6))


def test_workers_that_are_slow_to_come_are_not_called_twice(
    workers: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(6)
    for _ in range(6):
        workers.submit(lambda: together.wait(WAIT) and None)
    wait_for(lambda: threads_resting(workers) == 6 and not send_watcher_home(workers))
    called: list[Parker] = []
    ticks: list[int] = []

    def delay(wakes: list[Parker]) -> None:
        ticks.append(len(wakes))
        called.extend(wakes)
        wakes.clear()

    done = threading.Semaphore(0)
    with monkeypatch.context() as patched:
        patched.setattr(module, "wake", delay)
        for _ in range(3):
            workers.submit(done.release)
        wait_for(lambda: len(ticks) > 20 or workers.threads > 6)
        assert (len(called), threads_resting(workers), workers.threads) == (3, 3, 6)
    wake(called)
    assert all(done.acquire(timeout=WAIT) for _ in range(3))


def test_what_fails_is_logged_and_the_thread_goes_on(
    workers: ThreadPool, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()
    workers.submit(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    workers.submit(done.set)
    assert done.wait(WAIT)
    wait_for(lambda: "ZeroDivisionError" in caplog.text)


def test_an_idle_thread_keeps_nothing_of_what_it_ran(
    workers: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE", WAIT)

    def action() -> None:
        pass

    kept = weakref.ref(action)
    workers.submit(action)
    del action
    wait_for(lambda: kept() is None, WAIT / 2)


def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE", 0.01)
    workers = ThreadPool(8, "test")
    before = threading.active_count()
    together = threading.Barrier(3)
    for _ in range(3):
        workers.submit(lambda: together.wait(WAIT) and None)
    wait_for(lambda: threading.active_count() == before and not workers._left)
    done = threading.Event()
    workers.submit(done.set)
    assert done.wait(WAIT)
    workers.close()


def test_what_is_submitted_behind_the_end_is_run(workers: ThreadPool) -> None:
    workers.close()
    done = threading.Event()
    workers.submit(done.set)
    assert done.wait(WAIT)


def test_a_worker_that_cannot_be_started_is_asked_for_again(
    workers: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    start = threading.Thread.start

    def refuse_once(thread: threading.Thread) -> None:
        if not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    done = threading.Event()
    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    workers.submit(done.set)  # and nothing later
    assert done.wait(WAIT)
    assert "-worker-" in refused[0]


def test_a_thread_that_cannot_be_started_is_not_counted(
    workers: ThreadPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done = threading.Semaphore(0)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        workers.submit(done.release)
        workers.submit(done.release)
    assert "no thread" in caplog.text
    workers.submit(done.release)
    assert all(done.acquire(timeout=WAIT) for _ in range(3))
