"""Share one time budget across several waits, or across a whole block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from . import clock

__all__ = [
    "LONGEST_WAIT",
    "Deadline",
    "RealDeadline",
    "block_end",
    "call_within",
    "deadline",
    "deadline_in",
    "within",
]

Args = ParamSpec("Args")
Result = TypeVar("Result")

# Seconds of one wait, after which waiters check again. On Windows a lock waits at most 49 days, and
# poll takes at most 2^31 milliseconds.
LONGEST_WAIT = 86_400.0


# When the enclosing ``deadline`` block of this thread must end, by the monotonic clock.
_block_ends: ContextVar[float | None] = ContextVar("wsmux_block_ends", default=None)


class Deadline:
    """Count down ``timeout`` seconds from now, by the monotonic clock; ``None`` never expires.

    It expires no later than the enclosing ``deadline`` block of this thread, unless it is for
    something that ``outlives`` the block.

    Attributes:
        at: when it expires, by the monotonic clock; ``None`` if it never does.
    """

    __slots__ = ("at",)

    def __init__(self, timeout: float | None, *, outlives: bool = False) -> None:
        self.at = None if timeout is None else clock.monotonic() + timeout
        ends = None if outlives else _block_ends.get()
        if ends is not None and (self.at is None or ends < self.at):
            self.at = ends

    def remaining(self) -> float | None:
        """Return the seconds left, never below 0; ``None`` when there is no limit."""
        if self.at is None:
            return None
        return max(0.0, self.at - clock.monotonic())

    def expired(self) -> bool:
        """Return whether the time is up."""
        return self.at is not None and clock.monotonic() >= self.at

    def park_seconds(self) -> float:
        """Return the argument for ``Lock.acquire(timeout=)``: the seconds left, -1 for no limit."""
        remaining = self.remaining()
        return -1 if remaining is None else min(remaining, LONGEST_WAIT)


class RealDeadline(Deadline):
    """Count down real time, even while a test has replaced the clock."""

    __slots__ = ()

    def __init__(self, timeout: float) -> None:
        self.at = time.monotonic() + timeout

    def remaining(self) -> float:
        return max(0.0, (self.at or 0.0) - time.monotonic())

    def expired(self) -> bool:
        return not self.remaining()


def block_end() -> float | None:
    """Return when the enclosing ``deadline`` block must end, by the monotonic clock."""
    return _block_ends.get()


_NEVER = Deadline(None, outlives=True)


def deadline_in(timeout: float | None, *, outlives: bool = False) -> Deadline:
    """Return a deadline; all that never expire are one shared object."""
    if timeout is None and (outlives or _block_ends.get() is None):
        return _NEVER
    return Deadline(timeout, outlives=outlives)


@contextmanager
def deadline(timeout: float | None) -> Iterator[Deadline]:
    """Limit the total time of all blocking calls that this thread makes within the block.

    Each call raises the ``TimeoutError`` of its own ``timeout``, at whichever comes first. This
    applies to opening, accepting, reading, writing, pinging, closing, connecting, and the calls of
    ``wsmux.rpc`` and ``wsmux.bus``. A call made after the time is up raises at once if it would
    have to wait. Blocks may be nested; the one that ends first counts. The limit applies neither to
    threads started in the block nor to anything that continues after it, such as a subscription
    begun in it:

        with wsmux.deadline(5):
            stream = connection.open_stream()
            stream.write(question)
            answer = stream.read()

    Args:
        timeout: seconds, by the monotonic clock; ``None`` changes nothing.

    Yields:
        The ``Deadline``, whose ``remaining()`` and ``expired()`` tell the time left.

    Raises:
        ValueError: the timeout is negative or not a number.
    """
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"a timeout must be at least 0 seconds, not {timeout!r}")
    block = Deadline(timeout)
    with within(block):
        yield block


@contextmanager
def within(ends: Deadline) -> Iterator[None]:
    """Limit the calls made within the block by a deadline that already runs."""
    token = _block_ends.set(ends.at)
    try:
        yield
    finally:
        _block_ends.reset(token)


def call_within(
    ends: Deadline, call: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs
) -> Result:
    """Limit one call by a deadline that already runs.

    An interrupt may come at any step, and leaves no limit behind, as it may of ``within``: that
    would hold for all later calls of the thread.
    """
    before = _block_ends.get()
    try:
        _block_ends.set(ends.at)
        return call(*args, **kwargs)
    finally:
        _block_ends.set(before)
