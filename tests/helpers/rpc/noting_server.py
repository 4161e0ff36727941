"""Serve a procedure that notes its calls in a file: ``python -m tests.helpers.rpc.noting_server``.

The arguments are a port and the file. What is noted stays when the process is killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import wsmux
from wsmux import rpc

from ..load.measuring import CHECKOUT
from ..timeouts import WAIT

__all__ = ["LONG_WORK", "NotingServer", "noting"]

# Seconds that some calls work on after they have been noted, to be killed meanwhile: every other
# one, and every fourth. A session whose first call is long has had nothing acknowledged.
WORK, LONG_WORK = 0.01, 0.5


class NotingServer:
    """Start the server in a process of its own, kill it, and start it again.

    Attributes:
        url: where it serves.
    """

    def __init__(self, port: int, notes: Path) -> None:
        self.url = f"ws://127.0.0.1:{port}/"
        self._port = port
        self._notes = notes
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and return once it listens."""
        root = Path(wsmux.__file__).parent.parent
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self._port), str(self._notes)],
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{CHECKOUT}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "listening\n"

    def kill(self) -> None:
        """End the process with SIGKILL, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.kill()
                process.wait(WAIT)

    def notes(self) -> list[int]:
        """Return the numbers that were noted, in order."""
        return [int(line) for line in self._notes.read_text().splitlines()]


@contextmanager
def noting(port: int, notes: Path) -> Iterator[NotingServer]:
    """Serve until the block is left."""
    server = NotingServer(port, notes)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def main(port: str, path: str) -> None:
    service = rpc.Service("numbers")
    with Path(path).open("a") as notes:
        mutex = threading.Lock()

        @service.rpc()
        def note(ctx: rpc.Context, init: int) -> int:
            with mutex:
                notes.write(f"{init}\n")
                notes.flush()
            if init % 2 or init % 4 == 0:
                ctx.ended.wait(WORK if init % 2 else LONG_WORK)
            return init

        with rpc.serve([service], port=int(port)):
            sys.stdout.write("listening\n")
            sys.stdout.flush()
            sys.stdin.read()  # until the test has ended


if __name__ == "__main__":
    main(*sys.argv[1:])
