"""Handlers of signals that are called behind a block, and not within it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import count
from types import FrameType, TracebackType
from typing import Any

import pytest

from wsmux.runtime.signals import held_back

from ..helpers.connections import Spawn
from ..helpers.interrupts import interrupted_at, signalled_at
from ..helpers.timeouts import WAIT

Handler = Callable[[int, FrameType | None], Any]


class Raised(Exception):
    """What a handler of these tests raises."""


class Handled:
    """Handlers of SIGUSR1 and SIGUSR2, which note that they were called."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def note(self, number: int, frame: FrameType | None) -> None:
        self.numbers.append(number)

    def note_and_raise(self, number: int, frame: FrameType | None) -> None:
        self.numbers.append(number)
        raise Raised(number)


@pytest.fixture
def handled() -> Iterator[Handled]:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    handled = Handled()
    for number in before:
        signal.signal(number, handled.note)
    yield handled
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in sorted(signal.valid_signals())]


def test_a_handler_is_called_behind_the_block(handled: Handled) -> None:
    before, told = handlers(), []
    with held_back(lambda: told.append(1)):
        signal.raise_signal(signal.SIGUSR1)
        assert (handled.numbers, told) == ([], [1])
        signal.raise_signal(signal.SIGUSR1)
    assert set(handled.numbers) == {signal.SIGUSR1}
    assert handlers() == before
    signal.raise_signal(signal.SIGUSR2)
    assert handled.numbers[-1] == signal.SIGUSR2


def test_every_handler_is_called_though_each_raises(handled: Handled) -> None:
    before = handlers()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, handled.note_and_raise)

    def work() -> None:
        with held_back(bool):
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR2)

    with pytest.raises(Raised):
        work()
    assert sorted(handled.numbers) == [signal.SIGUSR1, signal.SIGUSR2]
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, handled.note)
    assert handlers() == before


def test_a_handler_of_the_next_block_is_the_one_that_was_set_last(handled: Handled) -> None:
    other = Handled()
    with held_back(bool):
        pass
    signal.signal(signal.SIGUSR1, other.note)
    with held_back(bool):
        signal.raise_signal(signal.SIGUSR1)
    assert (handled.numbers, other.numbers) == ([], [signal.SIGUSR1])


Setting = Callable[[], object]


def ignore(number: int) -> Setting:
    return lambda: signal.signal(number, signal.SIG_IGN)


def setting(*settings: Setting, raises: bool = True) -> Handler:
    """Return a handler that sets handlers, and then raises."""

    def handle(number: int, frame: FrameType | None) -> None:
        for each in settings:
            each()
        if raises:
            raise Raised(number)

    return handle


@pytest.mark.parametrize("raises", [False, True], ids=["it returns", "it raises"])
def test_a_handler_that_sets_others_has_the_last_word(handled: Handled, raises: bool) -> None:
    """As one does that lets a second Ctrl-C end the process, and raises KeyboardInterrupt."""
    both = [signal.SIGUSR1, signal.SIGUSR2]
    for number in both:
        signal.signal(number, setting(ignore(number), raises=raises))
    with pytest.raises(Raised) if raises else nullcontext(), held_back(bool):
        for number in both:
            signal.raise_signal(number)
    assert [signal.getsignal(number) for number in both] == [signal.SIG_IGN] * 2


@pytest.mark.parametrize("left", [signal.SIG_IGN, signal.SIG_DFL], ids=["ignored", "default"])
def test_signals_that_came_before_their_handler_was_taken_away_are_one(
    handled: Handled, left: signal.Handlers
) -> None:
    """As they are to CPython, which counts none of those that came before it called a handler."""

    def once(number: int, frame: FrameType | None) -> None:
        handled.note(number, frame)
        signal.signal(number, left)

    signal.signal(signal.SIGUSR1, once)
    with held_back(bool):
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
    assert handled.numbers == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR1) is left


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("raises", [False, True], ids=["it returns", "it raises"])
def test_what_a_handler_sets_at_any_step_of_a_block_stays(
    handled: Handled, number: int, raises: bool
) -> None:
    """Whether the handler it sets stands before its own, is its own, or stands behind it."""

    def work() -> None:
        with held_back(bool):
            pass

    before = signal.getsignal(number)
    try:
        for step in count(1):
            signal.signal(number, handled.note)
            signal.signal(signal.SIGUSR1, setting(ignore(number), raises=raises))
            with held_back(bool):
                pass  # it knows the handlers
            try:
                if not signalled_at(step, work, signal.SIGUSR1):
                    break
            except Raised:
                assert raises
            assert signal.getsignal(number) is signal.SIG_IGN, f"set at step {step}"
        assert step > 15
    finally:
        signal.signal(number, before)


def test_what_the_system_does_is_left_alone(handled: Handled) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with held_back(bool):
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
        signal.raise_signal(signal.SIGUSR1)
    assert handled.numbers == []


def test_another_thread_holds_nothing_back(handled: Handled, spawn: Spawn) -> None:
    def hold() -> None:
        with held_back(bool):
            assert signal.getsignal(signal.SIGUSR1) == handled.note

    spawn(hold).result(WAIT)


@pytest.mark.parametrize("raises", [False, True], ids=["it returns", "it raises"])
def test_an_interrupt_at_any_step_breaks_off_no_block(handled: Handled, raises: bool) -> None:
    """Nor does it leave another handler behind, nor does the handler that waits go astray."""
    before = handlers()
    signal.signal(signal.SIGUSR1, handled.note_and_raise if raises else handled.note)
    places: list[str] = []
    begun: list[TracebackType] = []

    def work() -> None:
        with suppress(Raised), held_back(bool):
            places.append("begun")
            signal.raise_signal(signal.SIGUSR1)
            places.append("ended")

    def look() -> None:
        """Note whether a handler was broken off at its first step, as in any program."""
        trace = sys.exc_info()[2]
        while trace is not None:
            if trace.tb_frame.f_code.co_name.startswith("note"):
                begun.append(trace)
            trace = trace.tb_next

    interrupted_at(1_000_000, work)  # from here on it knows the handlers
    found: set[bool] = set()
    for number in count(1):
        for each in (places, handled.numbers, begun):
            each.clear()
        interrupted = interrupted_at(number, work, handle=look)
        assert places in ([], ["begun", "ended"])
        assert len(handled.numbers or begun) == len(places) // 2
        found.add(bool(places))
        signal.raise_signal(signal.SIGUSR2)
        assert handled.numbers[-1] == signal.SIGUSR2
        if not interrupted:
            break
    assert found == {False, True}
    assert number > 15
    signal.signal(signal.SIGUSR1, handled.note)
    assert handlers() == before


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_handler_called_at_any_step_may_have_a_block_of_its_own(
    handled: Handled, number: signal.Signals
) -> None:
    """Whether it stands before the other handler or behind it; each block is told of a signal."""
    (other,) = {signal.SIGUSR1, signal.SIGUSR2} - {number}
    before, told = handlers(), {"outer": 0, "inner": 0}

    def hold(name: str) -> None:
        def tell() -> None:
            told[name] += 1

        with held_back(tell):
            handled_before, told_before = len(handled.numbers), told[name]
            signal.raise_signal(other)
            assert len(handled.numbers) == handled_before
            assert told[name] > told_before

    def handle(number: int, frame: FrameType | None) -> None:
        hold("inner")
        handled.note(number, frame)

    for step in count(1):
        signal.signal(number, handle)
        handled.numbers.clear()
        if not signalled_at(step, lambda: hold("outer"), number):
            break
        assert sorted(handled.numbers) == sorted([other, other, number]), f"at step {step}"
        signal.signal(number, handled.note)
        assert handlers() == before, f"at step {step}"
    assert step > 15


def test_an_interrupt_while_it_learns_the_handlers_mixes_none_up(handled: Handled) -> None:
    """It learns anew within, and stands where it stood before outside."""
    before = handlers()

    def work() -> None:
        with held_back(bool):
            pass

    work()
    number, interrupted = 0, True
    while interrupted:
        number += 1
        interrupted = interrupted_at(number, work)
        if interrupted:
            work()
        assert handlers() == before, f"interrupted at step {number}"
    assert number > 60


def test_a_child_forked_meanwhile_has_its_handlers(handled: Handled, spawn: Spawn) -> None:
    """It has the thread as its main thread that forked, and no block there."""
    holding, forked = threading.Event(), threading.Event()

    def fork() -> int:
        assert holding.wait(WAIT)
        child = os.fork()
        if not child:
            try:
                signal.raise_signal(signal.SIGUSR2)
            finally:
                os._exit(handled.numbers != [signal.SIGUSR2])
        forked.set()
        return os.waitpid(child, 0)[1]

    status = spawn(fork)
    with held_back(bool):
        signal.raise_signal(signal.SIGUSR1)
        holding.set()
        assert forked.wait(WAIT)
    assert status.result(WAIT) == 0
    assert handled.numbers == [signal.SIGUSR1]
