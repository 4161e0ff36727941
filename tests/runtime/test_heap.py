"""Receive bulk without having the system give the same memory again and again."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own: how much is kept may not be set back, and a heap may not be as it was.
PROGRAM = """
import resource, socket, sys

def faults_of_windows():
    "Fill and drain a window of 1 MiB at the end of the heap, and count pages that come anew."
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [bytes(65536) for _ in range(16)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

import wsmux
elsewhere = [bytes(65536) for _ in range(128)]  # all that was free before the end
faults_of_windows()
before = faults_of_windows()
ours, theirs = socket.socketpair()
with (
    wsmux.from_socket(ours, role="client", protocol="wsmux"),
    wsmux.from_socket(theirs, role="server", protocol="wsmux"),
):
    faults_of_windows()
    print(before, faults_of_windows())
"""

# Pages of 4 KiB that 20 windows have.
PAGES = 20 * 256


def test_windows_are_not_given_back_to_the_system() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    before, after = map(int, done.stdout.split())
    if before < PAGES // 2:
        pytest.skip(f"this allocator keeps freed memory by itself: {before} faults")
    assert after < PAGES // 20
