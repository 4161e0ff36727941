"""Have a signal handler called at a step of a call, where it may raise, as Ctrl-C does."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from wsmux.runtime.parking import OneShotEvent

__all__ = ["interrupted_at", "interrupted_by", "signalled_at"]

# Seconds until a signal is sent again whose handler was not called.
SENT_AGAIN = 0.1


class _Interrupted(BaseException):
    """What the handler raises."""


class _Steps:
    """Count where CPython handles signals in this thread, and send it one at one of these steps.

    That is at the start of a function and after a call of one written in C; not of a callback that
    Hypothesis has the garbage collector call, at any time, nor in a finalizer: what a handler
    raises there is swallowed, in any program.
    """

    def __init__(self, number: int, sent: signal.Signals) -> None:
        self.fired = False
        self._left, self._sent = number, sent
        self._finalizer: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        if self._finalizer is None and frame.f_code.co_name == "__del__":
            self._finalizer = frame
        if self._finalizer is not None:
            if self._finalizer is frame and event == "return":
                self._finalizer = None
            return
        if frame.f_globals.get("__name__", "").startswith("hypothesis."):
            return
        self._left -= event in ("call", "c_return")
        if self._left == 0:
            self.fired = True
            sys.setprofile(None)
            signal.pthread_kill(threading.get_ident(), self._sent)


def _handle(number: int, frame: FrameType | None) -> None:
    raise _Interrupted


def interrupted_at(
    number: int, action: Callable[[], object], handle: Callable[[], object] | None = None
) -> bool:
    """Call ``action``, interrupted at that of its steps, counted from 1; return whether it was.

    Must be called in the main thread. No garbage is collected meanwhile.

    Args:
        number: of the step.
        action: called first.
        handle: called while the interrupt is handled.
    """
    before = signal.signal(signal.SIGALRM, _handle)
    try:
        return signalled_at(number, action, signal.SIGALRM)
    except _Interrupted:
        if handle is not None:
            handle()
        return True
    finally:
        signal.signal(signal.SIGALRM, before)


@contextmanager
def interrupted_by(
    number: signal.Signals, handle: Callable[[], object]
) -> Iterator[Callable[[], None]]:
    """Call something in a handler of a signal, once, in the main thread, which must enter this.

    Yields what sends the signal, from any other thread, and returns when the handler has begun. It
    sends it again and again: if a signal comes between CPython's last look for one and the system
    call in which the main thread then waits, the handler is not called before the end of that wait.
    """
    begun, main = OneShotEvent(), threading.get_ident()
    sending = threading.Lock()

    def run(*_: object) -> None:
        if not begun.is_set():
            begun.set()
            handle()

    def send() -> None:
        while not begun.is_set():
            with sending:
                if not begun.is_set():
                    signal.pthread_kill(main, number)
            begun.wait(SENT_AGAIN)

    before = signal.signal(number, run)
    try:
        yield send
    finally:
        with sending:  # by default, such a signal would end the process from here on
            begun.set()
        signal.signal(number, before)


def signalled_at(number: int, action: Callable[[], object], sent: signal.Signals) -> bool:
    """Call ``action``, and send this thread a signal at one of its steps; return whether it was.

    Must be called in the main thread. No garbage is collected meanwhile.

    Args:
        number: of the step, counted from 1.
        action: called first.
        sent: the signal.
    """
    steps = _Steps(number, sent)
    gc.disable()
    try:
        sys.setprofile(steps)
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return steps.fired
