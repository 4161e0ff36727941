"""Share one time budget across several waits, or across a whole block."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator
from contextvars import ContextVar
from typing import ParamSpec, Self, TypeVar

from . import clock

__all__ = [
    "LONGEST_WAIT",
    "Block",
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


class _Leave:
    """Give ``with`` the function of a block's lock; ``ExitStack``, which asks the class, ours."""

    def __get__(self, block: Block | None, owner: type[Block]) -> Callable[..., None]:
        return _leave if block is None else block.lock.__exit__


def _leave(block: Block, *error: object) -> None:
    block.lock.release()


class Block(ContextDecorator):
    """Limit the calls of a thread within a ``with`` block, or those of a function it decorates.

    It counts while its lock is held. Entering ends with the call that acquires it, and ``__exit__``
    is the lock's own function: written in C, so that no interrupt comes between leaving the block
    and the end of the limit. One that is over is replaced by its ``outer`` when it is found.

    Attributes:
        lock: held while it counts.
        at: when it must end, by the monotonic clock; ``None`` if it is unlimited.
        outer: the block around it.
    """

    __slots__ = ("_begin", "_entered", "at", "lock", "outer")

    __exit__ = _Leave()

    def __init__(self, begin: Callable[[], Deadline]) -> None:
        self._begin = begin
        self._entered = False
        self.lock = threading.Lock()
        self.at: float | None = None
        self.outer: Block | None = None

    def __enter__(self) -> Deadline:
        if self._entered:
            raise RuntimeError("a block with a deadline is entered once: make another one")
        self._entered = True
        ends = self._begin()
        self.at, self.outer = ends.at, _enclosing()
        if self.outer is not None:  # or blocks that overlap without end would keep all before
            self.outer.outer = _counting(self.outer.outer)
        _innermost.set(self)
        try:
            self.lock.acquire()
        except BaseException:  # an interrupt, behind it
            self.lock.release()
            raise
        return ends

    def _recreate_cm(self) -> Self:  # for each call of the function that it decorates
        return type(self)(self._begin)

    def counts(self) -> bool:
        """Return whether the block is entered."""
        return self.lock.locked()


# The block of this thread that was entered last; it may be over.
_innermost: ContextVar[Block | None] = ContextVar("wsmux_innermost_block", default=None)


def _enclosing() -> Block | None:
    """Return the innermost block of this thread that is not over."""
    found = _innermost.get()
    block = _counting(found)
    if block is not found:
        _innermost.set(block)
    return block


def _counting(block: Block | None) -> Block | None:
    """Return the first that is not over, of a block and those around it."""
    while block is not None and not block.counts():
        block = block.outer
    return block


class Deadline:
    """Count down ``timeout`` seconds from now, by the monotonic clock; ``None`` never expires.

    It expires no later than the enclosing ``deadline`` block of this thread, unless it is for
    something that ``outlives`` the block.

    Attributes:
        at: when it expires, by the monotonic clock; ``None`` if it never does.

    Raises:
        ValueError: the timeout is not a number, so that it would neither expire nor wait. One below
            0 has expired, as what is left of another may have.
    """

    __slots__ = ("at",)

    def __init__(self, timeout: float | None, *, outlives: bool = False) -> None:
        self.at = None if timeout is None else clock.monotonic() + timeout
        if self.at != self.at:
            raise ValueError("a timeout must be a number of seconds or None, not nan")
        ends = None if outlives or _innermost.get() is None else block_end()
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
    block = _enclosing()
    return None if block is None else block.at


_NEVER = Deadline(None, outlives=True)


def deadline_in(timeout: float | None, *, outlives: bool = False) -> Deadline:
    """Return a deadline; all that never expire are one shared object."""
    if timeout is None and (outlives or _innermost.get() is None):
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
        The block, to be entered once, which is the ``Deadline`` in it: its ``remaining()`` and
        ``expired()`` tell the time left. As a decorator it limits each call of the function anew.

    Raises:
        ValueError: the timeout is negative or not a number.
    """
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"a timeout must be at least 0 seconds, not {timeout!r}")
    return Block(lambda: Deadline(timeout))


def within(ends: Deadline) -> AbstractContextManager[Deadline]:
    """Limit the calls made within the block by a deadline that already runs.

    As for ``deadline``, an interrupt may come at any step, and leaves no limit behind, which would
    hold for all later calls of the thread.
    """
    return Block(lambda: ends)


def call_within(
    ends: Deadline, call: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs
) -> Result:
    """Limit one call by a deadline that already runs."""
    with within(ends):
        return call(*args, **kwargs)
