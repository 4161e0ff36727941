"""Start and end child processes reliably when this process gets a signal."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["end", "undisturbed"]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Defer SIGINT and SIGTERM to the end of the block.

    An exception in the middle of ``Popen`` would leave an untracked process. A signal mask would be
    inherited by the child.
    """
    caught: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    before = {kind: signal.signal(kind, remember) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        for number in caught:
            signal.raise_signal(number)


def end(process: subprocess.Popen[bytes] | subprocess.Popen[str], patience: float) -> None:
    """Wait for a process that was asked to end, and kill it if it takes too long."""
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
