"""The clock of all waits, which a test may replace.

Whatever waits or keeps a time reads ``clock.monotonic()``, which is ``time.monotonic`` itself
unless a test has replaced it; looking it up here costs no more than looking it up in ``time``.
Threads that wait do so in ``parking`` or in the poll of a transport. While there is a test's clock,
they wait there through it, so that it knows what each waits for, and until when.

What measures the processor stays with ``time``: the send rate, and how soon a pool needs threads.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["FakeClock", "Parked", "monotonic", "replace", "replaced"]

monotonic: Callable[[], float] = time.monotonic


class Parked(Protocol):
    """What a thread parks on; see ``parking.Parker``."""

    def unpark(self) -> None:
        """Wake the thread."""

    def unparked_already(self) -> bool:
        """Return whether the thread has been woken, and has not noticed."""

    def await_unpark(self) -> None:
        """Wait until it has been woken, which it then still has to notice."""


class FakeClock(Protocol):
    """A clock that a test moves."""

    def monotonic(self) -> float:
        """Return the time in seconds."""

    def park(self, parker: Parked, due: float | None) -> None:
        """Let the calling thread wait until it is unparked, or until ``due``."""

    def poll(
        self, poller: select.poll, fds: dict[int, int], due: float, rouse: Callable[[], None]
    ) -> list[tuple[int, int]]:
        """Poll until an event of ``fds``, or until ``due``; ``rouse`` makes one of them."""


replaced: FakeClock | None = None


def replace(clock: FakeClock | None) -> None:
    """Put a test's clock in place of the real one, or the real one back.

    Raises:
        RuntimeError: another test's clock is in place.
    """
    global monotonic, replaced
    if clock is not None and replaced is not None:
        raise RuntimeError("another test's clock is in use: there is one for all of a process")
    replaced = clock
    monotonic = time.monotonic if clock is None else clock.monotonic
