"""Find threads, descriptors and memory left behind, and end hangs with all stacks.

They read ``/proc``, so these guards need Linux.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import resource
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

from ..runtime.parking import drop_idle
from .large_objects import largest

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

# Seconds for threads to end and descriptors to be closed, and between checks.
SETTLE = 2.0
PAUSE = 0.005

# Seconds before the first full garbage collection and, at most, between two. In a process with many
# objects each takes a fifth of a second, and most threads and descriptors go without.
FIRST_COLLECTION = 0.05
COLLECTION_INTERVAL = 1.0

# Allowed growth of the resident set in one test; far above what the allocator retains, once it has
# been told to retain little. That of a free-threaded Python can't be told, and retained 144 MiB.
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
MAX_GROWTH = (256 if FREE_THREADED else 64) * 1024 * 1024

# For ``mallopt``, and what it sets: the bytes that stay free at the end of each arena.
M_TRIM_THRESHOLD = -1
TRIM_THRESHOLD = 1024 * 1024


class LeakError(AssertionError):
    """Report what was left behind."""


class Held(NamedTuple):
    """The resources of the process at one moment.

    Attributes:
        threads: the running threads.
        descriptors: the target of each open descriptor.
        memory: bytes of the resident set.
    """

    threads: set[threading.Thread]
    descriptors: dict[int, str]
    memory: int


def held() -> Held:
    """Return the resources in use now, after releasing those that wsmux keeps for reuse.

    The first call in a process has the C library keep less memory for reuse, if it can (glibc):
    of free memory at the end of an arena, 1 MiB.
    """
    _keep_little()
    drop_idle()  # kept for reuse by design, in limited number
    descriptors = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the one used to list them
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Held(set(threading.enumerate()), descriptors, pages * resource.getpagesize())


def leaks(before: Held, now: Held, max_growth: int = MAX_GROWTH) -> list[str]:
    """Return a line for each kind of resource of which ``now`` has more than ``before``.

    Threads and descriptors are counted, so one may replace another.
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
    """Wait up to ``settle`` seconds until no more resources are in use than ``before``.

    Raises:
        LeakError: something was left behind.
    """
    start = time.monotonic()
    next_collection = start + min(FIRST_COLLECTION, settle / 4)
    while found := leaks(before, held(), max_growth):
        now = time.monotonic()
        if now >= start + settle:
            if any(line.startswith("memory") for line in found):
                found += _of_memory()
            raise LeakError(f"left behind: {'; '.join(found)}")
        if now < next_collection:
            gc.collect(1)  # the young generations, where a test has just left its objects
        else:
            gc.collect()
            next_collection = now + min(now - start, COLLECTION_INTERVAL)
            if any(line.startswith("memory") for line in found):
                _trim()
        time.sleep(PAUSE)


@cache
def _keep_little() -> None:
    """Make the C library return what is free at the end of an arena, if it can (glibc).

    ``malloc_trim`` does so for the arena of the main thread alone. In those of other threads that
    memory goes when a block there is freed, if it is more than a threshold, which glibc raises to
    twice the size of a block that was freed, up to 64 MiB: messages of 16 MiB left 32 MiB in each
    arena that had one, and how many did was a matter of which threads ran at the same time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD)


def _trim() -> None:
    """Make the C library return free memory to the system, if it can (glibc), and Arrow its own."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()


class _Mallinfo(ctypes.Structure):
    """The result of ``mallinfo2``, as ``malloc.h`` has it."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _of_memory() -> list[str]:
    """Say what may be known of the memory in use."""
    lines = []
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)  # since glibc 2.33
    if mallinfo is not None:
        mallinfo.restype = _Mallinfo
        lines.append(f"free in the allocator, if resident: {mallinfo().fordblks // 1024} KiB")
    return [*lines, f"the largest objects: {', '.join(largest()) or 'none above 1 MiB'}"]


@contextmanager
def nothing_left(settle: float = SETTLE, max_growth: int = MAX_GROWTH) -> Iterator[Held]:
    """Check that a block leaves no threads, no descriptors and not much memory behind.

    An exception of the block itself is raised unchanged, without this check.

    Args:
        settle: seconds for threads and descriptors to go.
        max_growth: bytes by which the resident set may grow.

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
    """End the process, with the stacks of all threads, if a block exceeds its time limit.

    This works whatever the threads wait for, but there is only one limit per process: a limit
    inside another one replaces it, and then ends it.

    Args:
        seconds: the time limit of the block.
        file: where the stacks are written, a descriptor or a file with one; standard error by
            default.
    """
    guard_against_hanging(seconds, file)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def guard_against_hanging(seconds: float, file: IO[str] | int | None) -> None:
    """Start the time limit of ``hang_bound``; ``faulthandler`` ends it."""
    if file is None:
        faulthandler.dump_traceback_later(seconds, exit=True)
    else:
        faulthandler.dump_traceback_later(seconds, exit=True, file=file)
