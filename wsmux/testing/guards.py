"""Find threads, descriptors and memory that are left behind, and end what hangs with every stack.

What is held is read from ``/proc``, so these guards need Linux.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from ..runtime.parking import drop_idle

__all__ = [
    "SETTLE",
    "Held",
    "LeakError",
    "hang_bound",
    "held",
    "leaks",
    "nothing_left",
    "wait_until_gone",
]

# Seconds for threads to end and descriptors to be closed, and between two looks.
SETTLE = 2.0
PAUSE = 0.005

# Growth of the resident set in one test; far above what the allocator keeps for itself.
MAX_GROWTH = 64 * 1024 * 1024


class LeakError(AssertionError):
    """Say what was left behind."""


class Held(NamedTuple):
    """What the process holds at one moment.

    Attributes:
        threads: the threads that run.
        descriptors: what each open descriptor stands for.
        memory: bytes of the resident set.
    """

    threads: set[threading.Thread]
    descriptors: dict[int, str]
    memory: int


def held() -> Held:
    """Return what the process holds now; what wsmux keeps for later use is given up first."""
    drop_idle()  # kept for the next waits, by design and up to a bound
    descriptors = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the one that listed them
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Held(set(threading.enumerate()), descriptors, pages * resource.getpagesize())


def leaks(before: Held, now: Held, max_growth: int = MAX_GROWTH) -> list[str]:
    """Return a line for each kind of thing that ``now`` holds more of than ``before``.

    Threads and descriptors are counted, so that one may take the place of another.
    """
    found = []
    if len(now.threads) > len(before.threads):
        names = sorted(thread.name for thread in now.threads - before.threads)
        found.append(f"threads: {', '.join(names)}")
    if len(now.descriptors) > len(before.descriptors):
        new = sorted(set(now.descriptors.items()) - set(before.descriptors.items()))
        found.append(f"descriptors: {', '.join(f'{fd} {target}' for fd, target in new)}")
    if now.memory > before.memory + max_growth:
        found.append(f"memory: {(now.memory - before.memory) // 1024} KiB")
    return found


def wait_until_gone(before: Held, settle: float = SETTLE, max_growth: int = MAX_GROWTH) -> None:
    """Return once nothing is held beyond ``before``; wait ``settle`` seconds for it at most.

    Raises:
        LeakError: something was left behind.
    """
    deadline = time.monotonic() + settle
    while found := leaks(before, held(), max_growth):
        if time.monotonic() >= deadline:
            raise LeakError(f"left behind: {'; '.join(found)}")
        gc.collect()
        if any(line.startswith("memory") for line in found):
            _trim()
        time.sleep(PAUSE)


def _trim() -> None:
    """Make the C library give back the free pages that it keeps, where it can: glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def nothing_left(settle: float = SETTLE, max_growth: int = MAX_GROWTH) -> Iterator[Held]:
    """Make sure that a block leaves no thread, no descriptor and not much memory behind.

    An error of the block itself is raised unchanged, without a look at what it left.

    Args:
        settle: seconds that threads and descriptors are given to go.
        max_growth: bytes that the resident set may grow by.

    Raises:
        LeakError: something was left behind.

    >>> from wsmux.testing import nothing_left
    >>> with nothing_left():
    ...     pass
    """
    before = held()
    yield before
    wait_until_gone(before, settle, max_growth)


@contextmanager
def hang_bound(seconds: float, file: IO[str] | int | None = None) -> Iterator[None]:
    """End the process, with the stacks of all threads, when a block takes longer than told.

    That works whatever the threads wait for, but there is one such bound in a process: a bound
    inside another one replaces it, and ends it.

    Args:
        seconds: how long the block may take.
        file: where the stacks go, a descriptor or a file with one; standard error by default.
    """
    guard_against_hanging(seconds, file)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def guard_against_hanging(seconds: float, file: IO[str] | int | None) -> None:
    """Begin what ``hang_bound`` does; ``faulthandler`` ends it."""
    if file is None:
        faulthandler.dump_traceback_later(seconds, exit=True)
    else:
        faulthandler.dump_traceback_later(seconds, exit=True, file=file)
