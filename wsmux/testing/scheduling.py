"""Make the interpreter switch threads as often as it can, and where nobody expects it."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["restless"]


@contextmanager
def restless(interval: float = 1e-6, *, odds: float = 0.0, seed: int = 0) -> Iterator[None]:
    """Look for races: switch threads after ``interval`` seconds, and yield at random calls.

    Args:
        interval: what ``sys.setswitchinterval`` is given; it holds for all threads.
        odds: how likely the calling thread, and each thread that is started in the block, gives
            its turn away at a call or return of a Python function. Above 0 it takes the place of a
            profiler, and the block runs at half the speed or less.
        seed: what each thread draws from, together with its name: the same threads yield at the
            same calls again, though what the system does in between is not the same.

    Raises:
        ValueError: ``odds`` is not between 0 and 1.
    """
    if not 0 <= odds <= 1:
        raise ValueError(f"odds must be between 0 and 1, not {odds}")
    before = sys.getswitchinterval()
    kept, kept_for_new = sys.getprofile(), threading.getprofile()
    sys.setswitchinterval(interval)
    if odds:
        hook = _Yields(odds, seed)
        threading.setprofile(hook)
        sys.setprofile(hook)
    try:
        yield
    finally:
        if odds:
            sys.setprofile(kept)
            threading.setprofile(kept_for_new)
        sys.setswitchinterval(before)


class _Yields(threading.local):
    """The profiler that gives turns away; each thread has chances of its own."""

    def __init__(self, odds: float, seed: int) -> None:
        self._odds = odds
        self._random = random.Random(f"{seed} {threading.current_thread().name}").random

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if self._random() < self._odds:
            os.sched_yield()
