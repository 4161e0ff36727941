"""Ask a server how it is, again and again, in a process that does nothing else.

``python -m tests.helpers.load.health URL`` prints a line for each answer, until stdin ends: when it
asked, by the monotonic clock, and how many seconds that took.
"""

from __future__ import annotations

import sys
import threading
import time
import urllib.request
from contextlib import suppress
from http.client import HTTPException

__all__ = ["PATIENCE"]

# Seconds between two questions, and that an answer may take.
PAUSE, PATIENCE = 0.02, 30.0


def main(url: str) -> None:
    over = threading.Event()
    threading.Thread(target=_wait, args=(over,)).start()
    while not over.wait(PAUSE):
        begun = time.monotonic()
        # A worker that is killed breaks off what it says.
        with suppress(OSError, HTTPException):
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                answer.read()
            sys.stdout.write(f"{begun} {time.monotonic() - begun}\n")
            sys.stdout.flush()


def _wait(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
