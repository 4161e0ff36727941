"""Leave things behind in a block, and have the guards of the test kit name them."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
from typing import Any

import pytest

from wsmux.testing import FaultProxy, LeakError, held, leaks, nothing_left
from wsmux.testing.guards import FREE_THREADED

KEEPING = """
from wsmux.testing import nothing_left

with nothing_left(settle=0.05, max_growth=4 * 1024 * 1024):
    kept = bytearray(b"x") * (32 * 1024 * 1024)
"""

ARENAS = """
import ctypes
import threading
from wsmux.testing import nothing_left

LARGE = 16 * 1024 * 1024
THREADS = 5

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def use():
    block = libc.malloc(LARGE)
    ctypes.memset(block, 1, LARGE)
    libc.free(block)

def run():
    together.wait()  # each has an arena of its own
    use()
    together.wait()

use()  # from now on, the allocator takes blocks of that size from arenas
together = threading.Barrier(THREADS)
with nothing_left(settle=5.0, max_growth=THREADS * LARGE // 2):
    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""

HANG = """
import threading
from wsmux.testing import hang_bound

def waiting():
    threading.Event().wait()

threading.Thread(target=waiting, daemon=True).start()
with hang_bound(60):
    pass
with hang_bound(0.3):
    threading.Event().wait()
"""


def test_a_block_that_leaves_nothing_passes() -> None:
    with nothing_left() as before, FaultProxy(1):
        assert leaks(before, held())


def test_a_thread_and_a_descriptor_left_behind_are_named() -> None:
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, name="forgotten")
    descriptors: list[int] = []

    def leave() -> None:
        with nothing_left(settle=0.05):
            thread.start()
            descriptors.append(os.open(os.devnull, os.O_RDONLY))

    with pytest.raises(LeakError) as caught:
        leave()
    gate.set()
    thread.join()
    os.close(descriptors[0])
    assert "threads: forgotten" in str(caught.value)
    assert f"descriptors: {descriptors[0]} /dev/null" in str(caught.value)


def test_memory_left_behind_is_counted() -> None:
    """In a process of its own: one that has run other tests may give back more than is kept."""
    done = subprocess.run([sys.executable, "-c", KEEPING], capture_output=True, text=True)
    assert re.search(
        r"LeakError: left behind: memory: [0-9]+ KiB; "
        r"(free in the allocator, if resident: [0-9]+ KiB; )?the largest objects: "
        r"bytearray of 32768 KiB as kept in the names of module __main__$",
        done.stderr.strip(),
    )


@pytest.mark.skipif(FREE_THREADED, reason="the allocator of a free-threaded Python can't be asked")
def test_memory_that_the_allocator_keeps_is_not_left_behind() -> None:
    """Free pages below one that is in use; it gives them back when it is asked."""
    kept: list[bytes] = []
    with nothing_left(max_growth=16 * 1024 * 1024):
        pieces = [bytes(16 * 1024) for _ in range(4096)]
        kept.append(bytes(16 * 1024))
        del pieces


def test_memory_that_the_arenas_of_threads_keep_is_not_left_behind() -> None:
    """In a process of its own, where no other test had its blocks before."""
    done = subprocess.run([sys.executable, "-c", ARENAS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_goes_soon_is_no_leak() -> None:
    gate = threading.Event()
    with nothing_left():
        threading.Thread(target=gate.wait, args=(0.05,)).start()


class Circular:
    """Hold a descriptor, and itself, until the collector of garbage comes."""

    def __init__(self) -> None:
        self.itself = self
        self.descriptor = os.open(os.devnull, os.O_RDONLY)

    def __del__(self) -> None:
        os.close(self.descriptor)


@pytest.mark.parametrize("old", [False, True], ids=["young", "old"])
def test_what_only_a_circle_holds_is_no_leak(old: bool) -> None:
    with nothing_left():
        holding = Circular()
        if old:
            gc.collect()  # moves it among those that only a full collection looks at
        del holding


def test_an_error_of_the_block_comes_first() -> None:
    descriptors: list[int] = []

    def fail() -> None:
        with nothing_left(settle=0.05):
            descriptors.append(os.open(os.devnull, os.O_RDONLY))
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    os.close(descriptors[0])


def test_a_hang_ends_the_process_with_every_stack() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANG], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert "Timeout (0:00:00.3" in done.stderr
    assert done.stderr.count("Thread 0x") == 2
    assert "in waiting" in done.stderr


def test_the_proxy_of_the_plugin_is_closed_after_the_test(fault_proxy: Any) -> None:
    assert fault_proxy(1).port  # the guard of every test looks at what it leaves
