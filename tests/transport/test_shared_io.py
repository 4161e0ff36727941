"""Do the steps of many connections in one thread."""

from __future__ import annotations

import os
import select
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wsmux
from wsmux.runtime import parking
from wsmux.transport import shared_io as module
from wsmux.transport.shared_io import Dues, SharedIo
from wsmux.transport.socket_io import Wakeup

from ..helpers.connections import Spawn
from ..helpers.examples import examples
from ..helpers.interrupts import interrupted_at
from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for

NAME = "wsmux-shared-io"
NEVER = float("inf")


class Work:
    """What is done for a connection: nothing, but how often and in which thread is told."""

    alone = False

    def __init__(self, action: Callable[[Work], object] = bool) -> None:
        self.idle_until = NEVER
        self.steps = 0
        self.ident = 0
        self.ended = ""
        self.over = False
        self.wakeup = Wakeup()
        self._action = action

    @property
    def wait_fd(self) -> int:
        return self.wakeup.fd

    def step(self) -> bool:
        self.wakeup.clear()  # first: who sees the step may wake this for the next one
        self.steps += 1
        self.ident = threading.get_ident()
        self._action(self)
        if self.over:
            self.wakeup.close()
        return not self.over

    def give_up(self, reason: str) -> None:
        self.ended = reason
        self.wakeup.close()

    def end(self) -> None:
        self.over = True
        self.wakeup.set()


class Shared(SharedIo):
    """One whose threads are told from those of connections that are open meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._others = set(threading.enumerate())

    def threads(self) -> list[threading.Thread]:
        several = [thread for thread in threading.enumerate() if thread not in self._others]
        return [thread for thread in several if thread.name == NAME]


@pytest.fixture
def shared() -> Iterator[Shared]:
    made = Shared()
    yield made
    wait_for(lambda: not made.threads())


def stepped(work: Work, times: int) -> None:
    wait_for(lambda: work.steps >= times)


# The thread


def test_connections_share_a_thread_which_ends_with_the_last_of_them(shared: Shared) -> None:
    several = [Work() for _ in range(20)]
    idents = {shared.add(work) for work in several}
    for work in several:
        stepped(work, 1)
    (thread,) = shared.threads()
    assert idents == {thread.ident} == {work.ident for work in several}
    for work in several[1:]:
        work.end()
    several[0].wakeup.set()
    stepped(several[0], 2)
    assert shared.threads() == [thread]
    several[0].end()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_after_the_end_of_the_thread_another_one_begins(shared: Shared) -> None:
    for _ in range(50):
        work = Work()
        shared.add(work)
        work.end()
        stepped(work, 1)
    wait_for(lambda: not shared.threads())


def test_a_connection_that_is_added_while_the_thread_ends_is_served(
    shared: Shared, spawn: Spawn
) -> None:
    """Each of these threads keeps adding connections that end with their first step."""

    def add_many() -> int:
        added = []
        for _ in range(200):
            added.append(Work(Work.end))
            shared.add(added[-1])
        for work in added:
            stepped(work, 1)
        return len(added)

    adding = [spawn(add_many) for _ in range(4)]
    assert [each.result(WAIT) for each in adding] == [200] * 4


def test_one_of_a_number_that_another_had_is_served(shared: Shared) -> None:
    """The descriptor of an ended connection goes to the next one."""
    stays = Work()
    shared.add(stays)
    numbers = set()
    for _ in range(30):
        work = Work()
        numbers.add(work.wait_fd)
        shared.add(work)
        stepped(work, 1)
        work.idle_until = time.monotonic() + 1000
        work.wakeup.set()
        stepped(work, 2)
        work.end()
        wait_for(lambda work=work: work.wakeup.fd < 0)  # type: ignore[misc]
    assert len(numbers) < 30
    stays.end()


def test_without_the_lock_of_the_interpreter_there_are_several(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "THREADS", 3)
    several = [Work() for _ in range(9)]
    idents = [shared.add(work) for work in several]
    assert len(shared.threads()) == 3
    assert sorted(idents.count(ident) for ident in set(idents)) == [3, 3, 3]
    for work in several:
        stepped(work, 1)
        work.end()


# Turns


def test_a_step_is_done_when_there_is_something_to_do_and_only_then(shared: Shared) -> None:
    work, other = Work(), Work()
    shared.add(work)
    shared.add(other)
    stepped(work, 1)
    stepped(other, 1)
    for times in range(2, 10):
        work.wakeup.set()
        stepped(work, times)
    assert other.steps == 1
    work.end()
    other.end()


def test_a_step_is_done_when_its_time_has_come(shared: Shared) -> None:
    seen: list[tuple[float, float]] = []

    def note(work: Work) -> None:
        now = time.monotonic()
        seen.append((work.idle_until, now))
        work.idle_until = now + 0.01
        work.over = len(seen) == 6

    work = Work(note)
    shared.add(work)
    stepped(work, 6)
    assert all(due <= now for due, now in seen[1:])


def test_one_that_always_has_something_to_do_lets_the_others_go_on(shared: Shared) -> None:
    def again(work: Work) -> None:
        work.idle_until = 0.0
        work.wakeup.set()

    busy = [Work(again) for _ in range(3)]
    quiet = Work()
    for work in (*busy, quiet):
        shared.add(work)
    for times in range(1, 30):
        quiet.wakeup.set()
        stepped(quiet, times)
    assert min(work.steps for work in busy) > 0
    for work in (*busy, quiet):
        work.over = True
        work.wakeup.set()


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 20)),
            st.tuples(st.just("drop"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("take"), st.just(0), st.integers(0, 20)),
        ),
        max_size=60,
    )
)
def test_times_are_those_set_last(calls: list[tuple[str, int, int]]) -> None:
    dues, model = Dues(), dict[int, float]()
    for what, key, at in calls:
        if what == "set":
            dues.set(key, at)
            model[key] = at
            assert len(dues) <= (1 + module.STALE) * len(model)
        elif what == "drop":
            dues.drop(key)
            model.pop(key, None)
        else:
            taken = dues.take(at)
            wanted = [each for each, due in model.items() if due <= at]
            assert sorted(taken) == sorted(wanted)
            assert [model[each] for each in taken] == sorted(model[each] for each in taken)
            for each in wanted:
                del model[each]
        assert dues.first() == min(model.values(), default=NEVER)


# Failures


def test_what_cannot_be_waited_for_ends_and_the_others_go_on(shared: Shared) -> None:
    works = Work()
    shared.add(works)
    with tempfile.TemporaryFile() as file:

        class OfFile(Work):
            @property
            def wait_fd(self) -> int:
                return file.fileno()  # the system refuses to wait for a file

        fails = OfFile()
        shared.add(fails)
        wait_for(lambda: fails.ended)
    assert fails.ended.startswith("it cannot be waited for: ")
    assert fails.steps == 0
    works.wakeup.set()
    stepped(works, 2)
    works.end()


def test_when_the_thread_fails_all_end_and_the_next_ones_are_served(
    shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Work) -> None:
        if failing.steps == 2:
            raise ZeroDivisionError  # which no connection lets out of a step

    several = [Work() for _ in range(3)]
    failing = Work(fail)
    for work in (*several, failing):
        shared.add(work)
    stepped(failing, 1)
    failing.wakeup.set()
    for work in (*several, failing):
        wait_for(lambda work=work: work.ended)  # type: ignore[misc]
        assert work.ended == "internal error"
    (record,) = caplog.records
    assert record.getMessage() == "the shared I/O thread failed; 4 connections end"
    later = Work()
    shared.add(later)
    stepped(later, 1)
    later.end()


def test_when_the_thread_fails_one_that_cannot_end_and_a_log_that_fails_keep_no_other_from_it(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stays(Work):
        def give_up(self, reason: str) -> None:
            super().give_up(reason)
            raise ZeroDivisionError

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module._log, "exception", fail)
    several = [Stays() for _ in range(3)]
    for work in (*several, failing := Work(fail)):
        shared.add(work)
    for work in (*several, failing):
        wait_for(lambda work=work: work.ended)  # type: ignore[misc]


@pytest.mark.parametrize("lacks", ["thread", "epoll"])
def test_a_thread_that_cannot_be_made_is_told(
    lacks: str, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def no_epoll() -> None:
        raise OSError(24, "Too many open files")

    work = Work()
    with monkeypatch.context() as patch:
        if lacks == "thread":
            patch.setattr(threading.Thread, "start", no_thread)
        else:
            patch.setattr(select, "epoll", no_epoll)
        with pytest.raises(wsmux.NoThreadError, match="shared-io|shared I/O thread"):
            shared.add(work)
    shared.add(work)
    stepped(work, 1)
    work.end()


# Who has a thread


def test_so_many_have_a_thread_of_their_own(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OWN", 2)
    several = [Work() for _ in range(4)]
    assert [shared.take_own(work) for work in several] == [True, True, False, False]
    shared.leave_own(several[0])
    shared.leave_own(several[0])
    assert shared.take_own(several[2])
    assert not shared.take_own(several[3])
    for work in several:
        work.wakeup.close()


def test_one_leaves_while_another_thread_begins(
    shared: Shared, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may be interrupted by a handler that waits for the end of the first."""
    monkeypatch.setattr(module, "OWN", 1)
    work = Work()
    assert shared.take_own(work)
    with shared._lock:
        spawn(shared.leave_own, work).result(WAIT)
    work.wakeup.close()


def test_one_that_is_added_is_served_though_a_signal_interrupts_that(shared: Shared) -> None:
    stays, number = Work(), 1
    shared.add(stays)
    stepped(stays, 1)
    (loop,) = shared._loops
    several = [Work() for _ in range(100)]
    while interrupted_at(number, partial(shared.add, several[number])):
        wait_for(lambda: not loop.new)
        number += 1
    assert number > 3
    stays.end()
    for work in several:
        if work.steps:
            work.end()
        else:  # interrupted before
            work.wakeup.close()


@pytest.mark.parametrize("why", ["it may block", "greenlets", "no epoll"])
def test_who_cannot_share_has_one(
    why: str, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OWN", 0)
    work = Work()
    if why == "it may block":
        work.alone = True
    elif why == "greenlets":
        monkeypatch.setattr(module, "real_threads", lambda: False)
    else:
        monkeypatch.delattr(select, "epoll")
    assert shared.take_own(work)
    assert parking.real_threads()
    work.wakeup.close()


# Fork


def test_a_forked_child_begins_anew_and_the_parent_goes_on(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OWN", 1)
    work = Work()
    shared.add(work)
    stepped(work, 1)
    assert shared.take_own(work)
    near, far = socket.socketpair()
    with closing(near), closing(far):
        if (child := os.fork()) == 0:
            try:
                own = Work()
                right = shared.take_own(own)
                shared.add(own)
                stepped(own, 1)
                os._exit(0 if right and work.steps == 1 else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    work.wakeup.set()
    stepped(work, 2)
    work.end()


def test_a_thread_that_forks_ends_in_the_child_and_goes_on_in_the_parent(shared: Shared) -> None:
    children: list[int] = []

    def fork(work: Work) -> None:
        child = os.fork() if not children else 1
        if child:
            children.append(child)
            return
        signal.alarm(int(WAIT))  # ends the child if the thread does not
        module._Loop.close = lambda _: os._exit(0)  # type: ignore[method-assign, assignment]
        module._log.exception = lambda *_: os._exit(1)  # type: ignore[method-assign]

    work = Work(fork)
    shared.add(work)
    wait_for(lambda: children)
    assert os.waitpid(children[0], 0)[1] == 0
    work.end()


def test_in_the_child_of_a_thread_that_forks_nothing_is_done_for_others(shared: Shared) -> None:
    children: list[int] = []

    def fork(work: Work) -> None:
        if children or work.steps < 2:
            return
        if child := os.fork():
            children.append(child)
            return
        signal.alarm(int(WAIT))
        others = [other for other in several if other is not work]
        before = [other.steps for other in others]

        def end(_: object) -> None:
            os._exit(0 if [other.steps for other in others] == before else 1)

        module._Loop.close = end  # type: ignore[method-assign, assignment]

    several = [Work(fork) for _ in range(3)]

    def set_all(_: Work) -> None:  # so that all of them are in one turn
        for work in several:
            work.wakeup.set()

    setting = Work(set_all)
    for work in several:
        shared.add(work)
        stepped(work, 1)
    shared.add(setting)
    wait_for(lambda: children)
    assert os.waitpid(children[0], 0)[1] == 0
    for work in (*several, setting):
        work.end()
