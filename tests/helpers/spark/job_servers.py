"""Run servers of procedures for jobs, which a test kills and starts again."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from .sessions import ROOT

__all__ = ["JobServer"]

# Seconds for a server to end on a busy machine.
WAIT = 90.0


class JobServer:
    """Run ``job_server`` on one port, again after it was killed."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.port = 0
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.spark.job_server", str(self.port), str(self.log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=WAIT)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.communicate(timeout=WAIT)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def lines(self) -> Counter[str]:
        return Counter(self.log.read_text().split("\n")[:-1]) if self.log.exists() else Counter()
