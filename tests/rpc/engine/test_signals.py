"""A signal that handlers wait for: who is woken, also if who notifies is interrupted."""

from __future__ import annotations

import linecache
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from wsmux.exceptions import NoThreadError
from wsmux.rpc import Signal
from wsmux.rpc.engine import signals
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.parking import Parker

from ...helpers.timeouts import WAIT
from ...helpers.waiting import wait_for


class Noting(Parker):
    """Note that it was unparked, unless the thread that does so can be interrupted, and is."""

    def __init__(self, *, interrupts: bool = False) -> None:
        self.unparked = threading.Event()
        self._interrupts = interrupts

    def park(self, deadline: Deadline) -> None:
        raise AssertionError("no thread parks on it")

    def unpark(self) -> None:
        if self._interrupts and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        self.unparked.set()


def armed(signal: Signal, count: int = 3, **given: Any) -> list[Noting]:
    parkers = [Noting(**given) for _ in range(count)]
    for parker in parkers:
        signal.arm(parker, signal.arm(Noting(), -1))
    return parkers


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "wsmux-rpc-signal"]


def test_an_interrupt_while_handlers_are_woken_leaves_none_asleep() -> None:
    signal = Signal()
    parkers = armed(signal, interrupts=True)
    signal.notify()
    for parker in parkers:
        assert parker.unparked.wait(WAIT)


@pytest.mark.parametrize("line", range(8))
def test_an_interrupt_at_any_line_wakes_all_or_none_and_leaves_no_lock_held(line: int) -> None:
    signal, left = Signal(), [line]

    def interrupt(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != signals.__file__:
            return None
        text = linecache.getline(signals.__file__, frame.f_lineno).strip()
        # CPython handles no signals when a block is left, before its lock is released.
        if event == "line" and not text.startswith("with "):
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
        return interrupt

    parkers = armed(signal)
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        signal.notify()
    except KeyboardInterrupt:
        pass
    else:
        assert left[0] >= 0  # there are not so many lines
    finally:
        sys.settrace(before)
    wait_for(lambda: not threads())
    assert not signal._lock.locked()
    woken = [parker.unparked.is_set() for parker in parkers]
    assert woken in ([True] * 3, [False] * 3)
    signal.notify()
    for parker in parkers:
        assert parker.unparked.wait(WAIT)


def test_a_change_that_nobody_waits_for_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signals, "start_thread")
    signal, parker = Signal(), Noting()
    signal.notify()
    assert signal.arm(parker, 0) == 1
    assert not signal._waiting


def test_without_a_thread_to_be_had_they_are_woken_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start_thread(thread: threading.Thread) -> None:
        raise NoThreadError("none left")

    monkeypatch.setattr(signals, "start_thread", start_thread)
    signal = Signal()
    parkers = armed(signal)
    signal.notify()
    assert all(parker.unparked.is_set() for parker in parkers)


def test_another_thread_wakes_them_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signals, "start_thread")
    signal = Signal()
    parkers = armed(signal, interrupts=True)
    thread = threading.Thread(target=signal.notify)
    thread.start()
    thread.join(WAIT)
    assert all(parker.unparked.is_set() for parker in parkers)


def test_one_that_is_disarmed_sleeps_on() -> None:
    signal = Signal()
    first, second = armed(signal, 2)
    signal.disarm(first)
    signal.notify()
    assert second.unparked.wait(WAIT)
    assert not first.unparked.is_set()
