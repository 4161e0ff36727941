"""Detect stalled connections, and report each stall once.

::

    watch = StallWatch(server, after=30)  # logs a warning for each stall

One daemon thread serves all watches of the process. It runs as long as there are any, and sleeps
between checks; a check costs the connection as much as ``connection.explain()`` does. Reading and
writing threads are not slowed down.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from ..mux.connection import Connection
from ..mux.explain import findings, look, thread_names
from ..mux.stats import Cause, Finding
from ..runtime import fork
from ..runtime.closing import Leaving
from ..runtime.deadline import LONGEST_WAIT, Deadline
from ..runtime.logs import PACED, PAUSE, logger
from ..runtime.parking import Parker, Waiter, wake
from ..runtime.threads import daemon_thread, register, start_thread
from .status import Connections, Watched

__all__ = ["Stall", "StallWatch"]

# Checks per stall time: a stall is reported up to a quarter of it late.
LOOKS = 4

# Findings per stall; a thousand stuck streams most likely have one cause.
MAX_FINDINGS = 20

# Stalls logged per second, one line each; one more line counts the rest. A network failure stalls
# every connection at once.
MAX_LINES = 20

# A stalled write is a single stall, even if the cause of its wait changes.
WRITES = frozenset({Cause.NO_CREDIT, Cause.BOTH_FULL, Cause.NO_ROOM})

_log = logger("wsmux.watchdog")

_Key = tuple[str, Cause | None, int | None]


class Stall(NamedTuple):
    """Describe a stall of a connection; ``str`` formats it as one line.

    Attributes:
        connection: the connection.
        findings: those of ``explain()``, longest first; at most 20.
        left_out: how many more there are.
    """

    connection: Connection
    findings: tuple[Finding, ...]
    left_out: int

    def __str__(self) -> str:
        more = f"; and {self.left_out} more like it" if self.left_out else ""
        return f"{self.connection.name} stalls: {'; '.join(map(str, self.findings))}{more}"


class _Seen(NamedTuple):
    """Hold the state of a wait at the last check."""

    moved: int
    since: float
    told: bool


class StallWatch(Leaving):
    """Watch connections until they have ended, or until ``stop``.

    It reports waits that keep bytes from moving: writers without credit, both sides writing and
    neither reading, bytes and streams not taken here, a full socket, a silent peer. It does not
    report threads that wait for something the peer may send. A stall is reported once; if it ends
    and recurs, it is reported again. A write that times out and is retried does not end a stall, as
    long as no byte moves.

    Args:
        connections: a connection, a ``Server`` or ``Mux`` (weakly held), a collection of these, or
            a function that returns one and is called at each check.
        after: seconds without progress; a stall is reported up to a quarter of that late.
        tell: called with a ``Stall``, in the watch's own thread, which other watches share: it must
            not block. Exceptions are logged. By default a warning is logged for each, at most 20
            per second over all watches; one more line counts the rest.

    Raises:
        ValueError: ``after`` is not above 0 s, or exceeds a day.
        NoThreadError: the system has no thread left, or the interpreter is exiting.
    """

    def __init__(
        self,
        connections: Connections,
        *,
        after: float = 30.0,
        tell: Callable[[Stall], object] | None = None,
    ) -> None:
        if not 0 < after <= LONGEST_WAIT:
            raise ValueError(f"after must be above 0 s and at most a day, not {after!r}")
        self._watched = Watched(connections)
        self._after = after
        self._tell = tell or _warnings.tell
        self._seen: dict[_Key, _Seen] = {}
        self.due: float = time.monotonic() + after / LOOKS  # of the next check; only for the thread
        _thread.add(self)

    def stop(self) -> None:
        """Stop watching. Never blocks; a ``tell`` that has begun may still be running."""
        _thread.remove(self)

    def _leave(self, error: BaseException | None) -> None:
        self.stop()

    def look(self, now: float) -> bool:
        """Check all connections; return whether there may be any later. For the thread."""
        self.due = now + self._after / LOOKS
        connections = self._watched.living()
        names = thread_names() if connections else {}
        before, self._seen = self._seen, {}
        for connection in connections or ():
            stalled = [
                finding
                for finding in findings(look(connection._multiplexer, names, idle=False))
                if finding.cause.stalls and self._lasts(connection.name, finding, before, now)
            ]
            if stalled:
                left_out = max(0, len(stalled) - MAX_FINDINGS)
                self._say(Stall(connection, tuple(stalled[:MAX_FINDINGS]), left_out))
        _warnings.tell_left_out()
        return connections is not None

    def _lasts(self, name: str, finding: Finding, before: dict[_Key, _Seen], now: float) -> bool:
        """Record a finding; return whether to report it now."""
        key = (name, None if finding.cause in WRITES else finding.cause, finding.stream_id)
        seen = before.get(key)
        if seen is None or seen.moved != finding.moved:
            seen = _Seen(finding.moved, now - finding.seconds, told=False)
        stalls = not seen.told and now - seen.since >= self._after
        self._seen[key] = seen._replace(told=seen.told or stalls)
        return stalls

    def _say(self, stall: Stall) -> None:
        try:
            self._tell(stall)
        except Exception:
            _log.exception("the callback for a stall of %s failed", stall.connection.name)


class _Warnings:
    """Log at most ``MAX_LINES`` stalls a second, and in one more line how many were suppressed.

    The limit of the logger is for repeated lines; each of these names another connection.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.forked()
        fork.register(self)

    def forked(self) -> None:
        """Start over: a forked child has none of the connections, and the lock may be held."""
        self._lock = threading.Lock()
        self._until = -math.inf  # the end of the second being counted
        self._lines = self._left_out = 0
        self._summed = False

    def tell(self, stall: Stall) -> None:
        """Log a stall, or count it."""
        with self._lock:
            self._next_second_locked()
            self._lines += 1
            if self._lines > MAX_LINES:
                self._left_out += 1
                return
        # Each sentence is a separate value, or the later ones would be lost when long values are
        # truncated.
        text = f"%s stalls: {'; '.join(['%s'] * len(stall.findings))}"
        values: tuple[object, ...] = (stall.connection.name, *stall.findings)
        if stall.left_out:
            text, values = f"{text}; and %d more like it", (*values, stall.left_out)
        _log.warning(text, *values, extra=PACED)

    def tell_left_out(self) -> None:
        """Log how many were suppressed, once a second; the rest is left to a later check."""
        with self._lock:
            self._next_second_locked()
            if not self._left_out or self._summed:
                return
            left_out, self._left_out, self._summed = self._left_out, 0, True
        _log.warning(
            "%d more stalls were found and are not logged one by one", left_out, extra=PACED
        )

    def _next_second_locked(self) -> None:
        now = self._clock()
        if now >= self._until:
            self._until, self._lines, self._summed = now + PAUSE, 0, False


_warnings = _Warnings()


class _Thread:
    """Run the checks of all watches when they are due."""

    def __init__(self) -> None:
        self.forked()
        fork.register(self)
        register(self)

    def forked(self) -> None:
        """Start over: a forked child has none of the connections."""
        self._mutex = threading.Lock()
        self._watches: set[StallWatch] = set()
        self._asleep = Waiter()
        self._running = False

    def leave(self) -> None:
        """Stop all watches; see ``runtime.threads``."""
        wakes: list[Parker] = []
        with self._mutex:
            self._watches.clear()
            self._asleep.notify(wakes)
        wake(wakes)

    def add(self, watch: StallWatch) -> None:
        """Add a watch; the first one starts the thread."""
        wakes: list[Parker] = []
        with self._mutex:
            if not self._running:
                thread = daemon_thread(target=self._run, name="wsmux-watchdog")
                start_thread(thread)  # it waits for the mutex
                self._running = True
            self._watches.add(watch)
            self._asleep.notify(wakes)
        wake(wakes)

    def remove(self, watch: StallWatch) -> None:
        """Remove a watch; the thread ends with the last one."""
        wakes: list[Parker] = []
        with self._mutex:
            self._watches.discard(watch)
            self._asleep.notify(wakes)
        wake(wakes)

    def _run(self) -> None:
        while (watch := self._next()) is not None:
            try:
                lasts = watch.look(time.monotonic())
            except Exception:
                _log.exception("the stall watch failed and has ended")
                lasts = False
            if not lasts:
                self.remove(watch)

    def _next(self) -> StallWatch | None:
        """Wait until a watch is due; return ``None`` when none is left."""
        with self._mutex:
            while self._watches:
                watch = min(self._watches, key=lambda watch: watch.due)
                left = watch.due - time.monotonic()
                if left <= 0:
                    return watch
                self._asleep.wait(self._mutex, Deadline(left, outlives=True))
            self._running = False
            return None


_thread = _Thread()
