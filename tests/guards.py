"""Guard every test: none may hang, or leave a thread, a descriptor or much memory behind."""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import signal
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings

from wsmux.bell import drop_idle

# Seconds a test may take, its fixtures included, unless `hang_bound` says otherwise.
HANG_BOUND = 60.0

# Seconds for threads to end and descriptors to be closed after a test.
SETTLE = 2.0
PAUSE = 0.005

# Growth of the resident set in one test; far above what the allocator keeps for itself.
MAX_GROWTH = 64 * 1024 * 1024

STDERR = pytest.StashKey[int]()

settings.register_profile("wsmux", derandomize=True, deadline=None)
settings.load_profile("wsmux")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "hang_bound(seconds): dump all stacks and end the run after so many seconds"
    )
    config.stash[STDERR] = os.dup(2)  # nothing is captured yet
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs so, and the processes that the tests interrupt inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Take the tests themselves off the garbage collector, which else looks at all of them."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    faulthandler.cancel_dump_traceback_later()
    if STDERR in config.stash:
        os.close(config.stash[STDERR])
        del config.stash[STDERR]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    marker = item.get_closest_marker("hang_bound")
    seconds = HANG_BOUND if marker is None else marker.args[0]
    faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[STDERR])
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


class Held(NamedTuple):
    """What the process holds at one moment."""

    threads: set[threading.Thread]
    descriptors: dict[int, str]
    memory: int


def held() -> Held:
    drop_idle()  # kept for the next waits, by design and up to a bound
    descriptors = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the one that listed them
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Held(set(threading.enumerate()), descriptors, pages * resource.getpagesize())


def leaks(before: Held, now: Held) -> list[str]:
    found = []
    if len(now.threads) > len(before.threads):
        names = sorted(thread.name for thread in now.threads - before.threads)
        found.append(f"threads: {', '.join(names)}")
    if len(now.descriptors) > len(before.descriptors):
        new = sorted(set(now.descriptors.items()) - set(before.descriptors.items()))
        found.append(f"descriptors: {', '.join(f'{fd} {target}' for fd, target in new)}")
    if now.memory > before.memory + MAX_GROWTH:
        found.append(f"memory: {(now.memory - before.memory) // 1024} KiB")
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves threads, descriptors or memory behind.

    Fixtures of a wider scope are set up before this one, so what they hold does not count.
    """
    before = held()
    yield
    deadline = time.monotonic() + SETTLE
    while found := leaks(before, held()):
        if time.monotonic() >= deadline:
            pytest.fail(f"left behind: {'; '.join(found)}")
        gc.collect()
        time.sleep(PAUSE)
