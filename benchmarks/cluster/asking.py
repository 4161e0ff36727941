"""Ask a server for ``/health`` again and again, in a process that does nothing else."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.error import HTTPError

__all__ = ["asking"]

# Seconds for an answer.
PATIENCE = 30.0


@contextmanager
def asking(url: str) -> Iterator[Callable[..., list[float]]]:
    """Ask from now on; yield what returns the seconds that each answer has taken, and ends it."""
    took: list[float] = []
    failed: list[Exception] = []
    over = threading.Event()

    def ask() -> None:
        try:
            while len(took) < 2 or not over.is_set():
                begun = time.perf_counter()
                with urllib.request.urlopen(f"{url}/health", timeout=PATIENCE) as answer:
                    answer.read()
                took.append(time.perf_counter() - begun)
        except HTTPError as error:
            error.close()
            failed.append(error)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()

    def told() -> list[float]:
        over.set()
        thread.join()
        if failed:
            raise failed[0]
        return took

    try:
        yield told
    finally:
        over.set()
        thread.join()
