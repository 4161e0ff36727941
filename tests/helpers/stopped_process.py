"""Stop a process for some time, and let it go on."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import Any

__all__ = ["hold"]


def hold(process: subprocess.Popen[Any], seconds: float) -> None:
    """Stop a process for some seconds, as a machine that is short of everything does."""
    process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        process.send_signal(signal.SIGCONT)
