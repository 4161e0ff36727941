"""Make sure that the guards of every test see what they are there for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..helpers.carriers import CHECKOUT
from ..helpers.scripted import WAIT

LEAKS = """
import os, threading, time, pytest

gate, kept = threading.Event(), []

def test_thread():
    threading.Thread(target=gate.wait, name="forgotten", daemon=True).start()

def test_descriptor():
    os.open(__file__, os.O_RDONLY)

def test_memory():
    kept.append(bytearray(os.urandom(1024)) * (320 * 1024))

def test_what_goes_soon_is_no_leak():
    threading.Thread(target=time.sleep, args=(0.05,)).start()

@pytest.fixture(scope="module")
def server():
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    yield
    ended.set()
    thread.join()

def test_a_fixture_of_a_wider_scope_is_no_leak(server):
    pass
"""

HANG = """
import threading, pytest

@pytest.mark.hang_bound(0.5)
def test_hang():
    threading.Event().wait()
"""


SETTLE = ("-o", "leak_settle=0.3")


def run(directory: Path, tests: str) -> subprocess.CompletedProcess[str]:
    guards = (CHECKOUT / "tests" / "helpers" / "guards.py").read_text()
    (directory / "conftest.py").write_text(guards)
    (directory / "test_it.py").write_text(tests)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:randomly",
            "-p",
            "no:cacheprovider",
            *SETTLE,
            ".",
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )


def test_threads_descriptors_and_memory_left_behind_are_errors(tmp_path: Path) -> None:
    done = run(tmp_path, LEAKS)
    assert "5 passed, 3 errors" in done.stdout, done.stdout
    for leak in ("threads: forgotten", "descriptors: ", "memory: "):
        assert f"left behind: {leak}" in done.stdout


def test_a_hang_ends_the_run_with_every_stack(tmp_path: Path) -> None:
    done = run(tmp_path, HANG)
    assert done.returncode != 0
    assert "Timeout" in done.stderr
    assert "in test_hang" in done.stderr
