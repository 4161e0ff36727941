"""Leave things behind in a block, and have the guards of the test kit name them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from typing import Any

import pytest

from wsmux.testing import FaultProxy, LeakError, held, leaks, nothing_left

KEEPING = """
from wsmux.testing import nothing_left

with nothing_left(settle=0.05, max_growth=4 * 1024 * 1024):
    kept = bytearray(b"x") * (32 * 1024 * 1024)
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
    assert re.search(r"LeakError: left behind: memory: [0-9]+ KiB$", done.stderr.strip())


def test_memory_that_the_allocator_keeps_is_not_left_behind() -> None:
    """Free pages below one that is in use; it gives them back when it is asked."""
    kept: list[bytes] = []
    with nothing_left(max_growth=16 * 1024 * 1024):
        pieces = [bytes(16 * 1024) for _ in range(4096)]
        kept.append(bytes(16 * 1024))
        del pieces


def test_what_goes_soon_is_no_leak() -> None:
    gate = threading.Event()
    with nothing_left():
        threading.Thread(target=gate.wait, args=(0.05,)).start()


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
