"""Let the system have no thread left, for as many starts as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from fnmatch import fnmatch

import pytest

__all__ = ["Refuse", "refusing"]

# Takes a pattern of names, and how often a thread with such a name is not to start: once.
Refuse = Callable[..., None]


# Test modules make a fixture of it, named refuse.


def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Refuse]:
    """Yield a function that lets the next start of a thread fail; all have failed in the end."""
    left: list[str] = []
    start = threading.Thread.start

    def try_to_start(thread: threading.Thread) -> None:
        for pattern in left:
            if fnmatch(thread.name, pattern):
                left.remove(pattern)
                raise RuntimeError("can't start new thread")
        start(thread)

    def refuse(pattern: str, times: int = 1) -> None:
        left.extend(times * [pattern])

    monkeypatch.setattr(threading.Thread, "start", try_to_start)
    yield refuse
    assert left == []
