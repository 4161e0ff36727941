"""Make objects end or close with a ``with`` block, and in a signal handler."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["Closing", "Ending", "Leaving"]


class Leaving:
    """Return an object from ``with``, and call its ``_leave`` at the end of the block."""

    __slots__ = ()

    def _leave(self, error: BaseException | None) -> None:
        """End the object; ``error`` is what left the block, if anything. Defined by subclasses."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(exc)


class Closing(Leaving):
    """Close an object at the end of its ``with`` block, even after an exception."""

    __slots__ = ()

    def close(self) -> None:
        """Close the object; defined by subclasses."""
        raise NotImplementedError

    def _leave(self, error: BaseException | None) -> None:
        self.close()


class Ending:
    """Run what ends an object, one run at a time.

    That blocks, so a signal may come meanwhile whose handler ends the same object. Its run would
    wait for the one that it interrupts, which holds locks and goes on only when the handler has
    returned. So within a run, in the same thread, another one returns at once.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # whoever holds it is known at each step
        self._runs = False

    def run(self, end: Callable[[], object]) -> bool:
        """Call ``end``, after another thread's run; within one of this thread, return false."""
        with self._lock:
            if self._runs:
                return False
            self._runs = True  # no signal is handled in between
            try:
                end()
            finally:
                self._runs = False
            return True
