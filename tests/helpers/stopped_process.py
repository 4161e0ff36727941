"""Stop a process for some time and let it go on, or kill it."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .timeouts import WAIT

__all__ = ["KillableProcess", "hold"]


def hold(process: subprocess.Popen[Any], seconds: float) -> None:
    """Stop a process for some seconds, as a machine that is short of everything does."""
    process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        process.send_signal(signal.SIGCONT)


class KillableProcess:
    """Run a process that may be killed and started again; ``start`` is for others to define."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(WAIT)
            self._process = None

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Stop it while the block runs."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, such as SIGSTOP and, some time later, SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)

    def hold(self, seconds: float) -> None:
        """Stop it for some seconds, as a machine that is short of everything does."""
        assert self._process is not None
        hold(self._process, seconds)
