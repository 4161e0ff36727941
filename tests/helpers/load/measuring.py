"""Measure processes from outside, and run each end of a measurement in a process of its own.

``run`` starts a script, one of the modules here, which starts its far end with ``far_end``. A
process of its own has no memory, threads or descriptors that another test left.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import wsmux

from ..timeouts import WAIT

__all__ = ["LIMIT", "MB", "WAIT", "Peak", "Process", "far_end", "per_cent", "report", "run"]

MB = 1_000_000

# Seconds that a script may take, where its test says no more.
LIMIT = 200.0

PAUSE = 0.05

CHECKOUT = Path(__file__).parents[3]

Figures = dict[str, Any]


class Process(NamedTuple):
    """Look at a running process; ``url`` is where it serves, if it does."""

    pid: int
    url: str = ""

    def memory(self) -> int:
        """Return the bytes that it holds in memory."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


class Peak:
    """Sample the memory of processes in a thread, and keep the most that each had."""

    def __init__(self, *processes: Process) -> None:
        self._processes = processes
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.most = [process.memory() for process in processes]

    def __enter__(self) -> list[int]:
        self._thread.start()
        return self.most

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(PAUSE):
            for place, process in enumerate(self._processes):
                self.most[place] = max(self.most[place], process.memory())


def per_cent(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` per cent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))]


def wait_until(condition: Callable[[], object], seconds: float = WAIT) -> float:
    """Wait for a condition; return the seconds that took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() < start + seconds, "did not come in time"
        time.sleep(0.002)
    return time.monotonic() - start


def _start(module: str, arguments: Sequence[object], **options: Any) -> subprocess.Popen[str]:
    root = Path(wsmux.__file__).parent.parent
    words = [str(argument) for argument in arguments]
    # What coverage notes is memory, too.
    hidden = ("COV_", "COVERAGE_") if module == "ended_connections" else ()
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", f"tests.helpers.load.{module}", *words],
        cwd=CHECKOUT,
        # One arena: else the allocator of the system keeps something for each thread there was, and
        # what a process holds of its own does not show.
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(hidden)},
            "PYTHONPATH": f"{root}{os.pathsep}{CHECKOUT}",
            "MALLOC_ARENA_MAX": "1",
        },
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


@contextmanager
def far_end(kind: str, protocol: str, *arguments: object) -> Iterator[Process]:
    """Run a server of ``far`` in a process of its own; it ends with the block."""
    process = _start("far", [kind, protocol, *arguments], stdin=subprocess.PIPE)
    with process:
        try:
            assert process.stdout is not None
            yield Process(process.pid, process.stdout.readline().strip())
            assert process.stdin is not None
            process.stdin.close()
            process.wait(WAIT)
        finally:
            process.kill()


def run(module: str, *arguments: object, limit: float = LIMIT) -> Figures:
    """Run a script to its end and return its figures; after ``limit`` seconds it has failed."""
    process = _start(module, arguments, stderr=subprocess.PIPE, start_new_session=True)
    try:
        output, problems = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)  # makes faulthandler show where they hang
        output, problems = process.communicate(timeout=LIMIT)
    assert (process.returncode, problems) == (0, ""), problems
    figures: Figures = json.loads(output)
    return figures


def report(main: Callable[..., Figures]) -> None:
    """Run a script: call ``main`` with its arguments, and print the figures."""
    sys.stdout.write(json.dumps(main(*sys.argv[1:])) + "\n")
