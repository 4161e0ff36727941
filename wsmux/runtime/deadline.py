"""Share one time budget across several waits, or across a whole block."""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections.abc import Callable
from contextlib import ContextDecorator
from contextvars import ContextVar
from types import TracebackType
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


# When the calls of this thread must end, by the monotonic clock, or the block that says so; that
# may have ended.
_block_ends: ContextVar[float | Block | None] = ContextVar("wsmux_block_ends", default=None)


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
        ends = None if outlives else block_end()
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
    ends = _block_ends.get()
    return ends.until() if isinstance(ends, Block) else ends


class Block(ContextDecorator):
    """Limit the calls made within a block.

    An interrupt may come at any step, and leaves no limit behind. It could come at the first step
    of an ``__exit__`` in Python, before that has done anything. So a lock is held while the block
    runs, and its own ``__exit__``, which is not in Python, ends it; later calls find that it has.

    Args:
        begin: returns what limits it, once it begins.
    """

    def __init__(self, begin: Callable[[], Deadline]) -> None:
        self._begin = begin
        self._runs = allocate_lock()
        self._at: float | None = None
        self._outer: float | Block | None = None

    def _recreate_cm(self) -> Block:
        return Block(self._begin)  # for each call of a function that is decorated with it

    def __enter__(self) -> Deadline:
        ends = self._begin()
        self._at, self._outer = ends.at, _block_ends.get()
        _block_ends.set(self)
        try:
            self._runs.acquire()
        except BaseException:
            if self._runs.locked():
                self._runs.release()
            raise
        return ends

    @property
    def __exit__(
        self,
    ) -> Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]:
        return self._runs.__exit__

    def until(self) -> float | None:
        """Return when the calls of this thread must end, and forget the block if it has ended."""
        if self._runs.locked():
            return self._at
        _block_ends.set(self._outer)
        return block_end()


_NEVER = Deadline(None, outlives=True)


def deadline_in(timeout: float | None, *, outlives: bool = False) -> Deadline:
    """Return a deadline; all that never expire are one shared object."""
    if timeout is None and (outlives or _block_ends.get() is None):
        return _NEVER
    return Deadline(timeout, outlives=outlives)


def deadline(timeout: float | None) -> Block:
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

    Returns:
        A context manager, whose value is the ``Deadline``: its ``remaining()`` and ``expired()``
        tell the time left.

    Raises:
        ValueError: the timeout is negative or not a number.
    """
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"a timeout must be at least 0 seconds, not {timeout!r}")
    return Block(lambda: Deadline(timeout))


def within(ends: Deadline) -> Block:
    """Limit the calls made within the block by a deadline that already runs."""
    return Block(lambda: ends)


def call_within(
    ends: Deadline, call: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs
) -> Result:
    """Limit one call by a deadline that already runs, at less cost than ``within``.

    An interrupt may come at any step, and leaves no limit behind.
    """
    before = _block_ends.get()
    try:
        _block_ends.set(ends.at)
        return call(*args, **kwargs)
    finally:
        _block_ends.set(before)
