"""Run a command in several processes, and restart those that end."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from .children import end, undisturbed
from .terminal import CommandError, talk

__all__ = ["supervise"]

# Seconds between checks of the processes.
LOOK = 0.2

# A process that ends sooner counts as unable to run; after so many in a row, all are ended.
SHORT_LIFE = 5.0
MOST_SHORT = 5

# Seconds that a process has to end when asked.
PATIENCE = 15.0


class _Child:
    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # it ends with this process, whatever happens
            stdout=subprocess.PIPE,
            env=dict(environment),
            text=True,
        )

    def url(self) -> str:
        """Wait for its first line; empty if it has ended instead."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        """Wait for its end, and release it."""
        end(self.process, PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def supervise(
    command: Sequence[str],
    count: int,
    *,
    environment: Mapping[str, str],
    ready: Callable[[str], object],
) -> int:
    """Run ``count`` processes of a command until Ctrl-C; replace each one that ends.

    Args:
        ready: called with the first line of the first process once all have printed theirs.

    Raises:
        CommandError: they cannot run.
    """
    children: list[_Child] = []
    short = 0
    try:
        for _ in range(count):
            with undisturbed():
                children.append(_Child(command, environment))
        lines = [child.url() for child in children]
        if not all(lines):
            raise CommandError("a process ended before it served; see its output above")
        ready(lines[0])
        while True:
            threading.Event().wait(LOOK)
            for child in [each for each in children if each.process.poll() is not None]:
                short = short + 1 if time.monotonic() - child.began < SHORT_LIFE else 0
                if short >= MOST_SHORT:
                    raise CommandError(f"{short} processes in a row ended as soon as they began")
                talk(f"process {child.process.pid} ended with {child.process.returncode}")
                with undisturbed():
                    children.remove(child)
                    children.append(_Child(command, environment))
                child.close()
    finally:
        for child in children:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        for child in children:
            child.close()
