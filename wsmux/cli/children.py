"""Start child processes that a signal to this one does not leave behind."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["end", "undisturbed"]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put SIGINT and SIGTERM off to the end of the block.

    An exception out of the middle of ``Popen`` would leave a process that nobody knows of.
    Masking the signals instead would be inherited by it.
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
    """Wait for a process that was asked to end, and kill it when that takes too long."""
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
