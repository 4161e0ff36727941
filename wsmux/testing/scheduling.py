"""Make the interpreter switch threads as often as possible, at unexpected points."""

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
    """Provoke races: switch threads after ``interval`` seconds, and yield at random calls.

    Args:
        interval: passed to ``sys.setswitchinterval``; applies to all threads.
        odds: the probability that the calling thread, and each thread started in the block, yields
            at a call or return of a Python function. Above 0 it replaces any profiler, and the
            block runs at most at half the speed.
        seed: the seed of each thread, together with its name: the same threads yield at the same
            calls again, although the system may schedule them differently.

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
    """The profiler that yields; each thread has its own random numbers."""

    def __init__(self, odds: float, seed: int) -> None:
        self._odds = odds
        self._random = random.Random(f"{seed} {threading.current_thread().name}").random

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if self._random() < self._odds:
            os.sched_yield()
