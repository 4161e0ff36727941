"""Have a signal handler raise at a step of a call, as Ctrl-C may."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["interrupted_at"]


class _Interrupted(BaseException):
    """What the handler raises."""


class _Steps:
    """Count where CPython handles signals in this thread, and interrupt it at one of these steps.

    That is at the start of a function and after a call of one written in C; not of a callback that
    Hypothesis has the garbage collector call, at any time.
    """

    def __init__(self, number: int) -> None:
        self.fired = False
        self._left = number

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        if frame.f_globals.get("__name__", "").startswith("hypothesis."):
            return
        self._left -= event in ("call", "c_return")
        if self._left == 0:
            self.fired = True
            sys.setprofile(None)
            signal.pthread_kill(threading.get_ident(), signal.SIGALRM)


def _handle(number: int, frame: FrameType | None) -> None:
    raise _Interrupted


def interrupted_at(
    number: int, action: Callable[[], object], handle: Callable[[], object] | None = None
) -> bool:
    """Call ``action``, interrupted at that of its steps, counted from 1; return whether it was.

    Must be called in the main thread. No garbage is collected meanwhile: what a handler raises in a
    finalizer is swallowed, in any program.

    Args:
        number: of the step.
        action: called first.
        handle: called while the interrupt is handled.
    """
    steps = _Steps(number)
    before = signal.signal(signal.SIGALRM, _handle)
    gc.disable()
    try:
        try:
            sys.setprofile(steps)
            action()
        finally:
            sys.setprofile(None)
    except _Interrupted:
        assert steps.fired
        if handle is not None:
            handle()
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    return steps.fired
