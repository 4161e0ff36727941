"""Notice connections on which something stands still, and tell each stall once.

::

    watch = StallWatch(server, after=30)  # logs a warning for each stall

One daemon thread looks after all watches of the process. It is there as long as there is one, and
sleeps between its looks; a look costs the connection what ``connection.explain()`` does. Nothing is
asked of the threads that read and write.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from ..mux.connection import Connection
from ..mux.explain import findings, look, thread_names
from ..mux.stats import Cause, Finding
from ..runtime import fork
from ..runtime.deadline import LONGEST_WAIT, Deadline
from ..runtime.logs import PACED, PAUSE, logger
from ..runtime.parking import Parker, Waiter, wake
from ..runtime.threads import daemon_thread, register, start_thread
from .status import Connections, Watched

__all__ = ["Stall", "StallWatch"]

# Looks in the time that something may stand still: it is told a quarter of that late at most.
LOOKS = 4

# Sentences of one stall; a thousand stuck streams have one cause, most likely.
MAX_FINDINGS = 20

# Stalls logged in a second, a line each; the rest are counted in one further line. A network that
# goes away stalls every connection at once.
MAX_LINES = 20

# A write that stands still is one stall, whatever it waits for in its course.
WRITES = frozenset({Cause.NO_CREDIT, Cause.BOTH_FULL, Cause.NO_ROOM})

_log = logger("wsmux.watchdog")

_Key = tuple[str, Cause | None, int | None]


class Stall(NamedTuple):
    """What stands still on a connection; ``str`` says it in one line.

    Attributes:
        connection: the one.
        findings: what ``explain()`` says to it, the longest first; at most 20.
        left_out: how many more there are.
    """

    connection: Connection
    findings: tuple[Finding, ...]
    left_out: int

    def __str__(self) -> str:
        more = f"; and {self.left_out} more like it" if self.left_out else ""
        return f"{self.connection.name} stalls: {'; '.join(map(str, self.findings))}{more}"


class _Seen(NamedTuple):
    """Remember what waited at the last look."""

    moved: int
    since: float
    told: bool


class StallWatch:
    """Watch connections until they have ended, or until ``stop``.

    Told is what keeps bytes from moving: writers without credit, both sides writing with nobody
    reading, bytes and streams that nobody takes here, a full socket, a mute peer. Threads that wait
    for what the peer may send are not. A stall is told once; when it is over and comes again, it is
    told again. That a write gives up and is tried again does not end a stall, as long as no byte
    moves.

    Args:
        connections: a connection, a ``Server`` or ``Mux`` (weakly held), a collection of these, or
            a function that returns one and is asked at each look.
        after: seconds of standing still; told a quarter of that later at most.
        tell: called with a ``Stall``, in the watch's own thread, which other watches share: it
            must not block. What it raises is logged. By default a warning is logged for each, of
            all watches at most 20 a second; one more line counts the rest.

    Raises:
        ValueError: ``after`` is no number of seconds above 0, or above a day.
        NoThreadError: the system has no thread to give, or the interpreter is exiting.
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
        self.due: float = time.monotonic() + after / LOOKS  # of the next look; for the thread alone
        _thread.add(self)

    def stop(self) -> None:
        """Look no further. Never blocks; a ``tell`` that has begun may still run."""
        _thread.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def look(self, now: float) -> bool:
        """Look at every connection; tell whether there may be any later. For the thread."""
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
        """Note a finding; tell whether it is to be told now."""
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
    """Log stalls in at most ``MAX_LINES`` lines a second, and how many were left out in one more.

    The limit of the logger is for lines that repeat each other; each of these names another
    connection.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.forked()
        fork.register(self)

    def forked(self) -> None:
        """Count again: a forked child has none of the connections, and maybe a lock held."""
        self._lock = threading.Lock()
        self._until = -math.inf  # the end of the second that the counts are for
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
        # Each sentence is a value by itself, or the cut of long values would lose the later ones.
        text = f"%s stalls: {'; '.join(['%s'] * len(stall.findings))}"
        values: tuple[object, ...] = (stall.connection.name, *stall.findings)
        if stall.left_out:
            text, values = f"{text}; and %d more like it", (*values, stall.left_out)
        _log.warning(text, *values, extra=PACED)

    def tell_left_out(self) -> None:
        """Log how many were left out, once a second; what it cannot say now, a later look says."""
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
    """Run the looks of all watches when they are due."""

    def __init__(self) -> None:
        self.forked()
        fork.register(self)
        register(self)

    def forked(self) -> None:
        """Begin again: a forked child has none of the connections."""
        self._mutex = threading.Lock()
        self._watches: set[StallWatch] = set()
        self._asleep = Waiter()
        self._running = False

    def leave(self) -> None:
        """Look after nothing any more; see ``runtime.threads``."""
        wakes: list[Parker] = []
        with self._mutex:
            self._watches.clear()
            self._asleep.notify(wakes)
        wake(wakes)

    def add(self, watch: StallWatch) -> None:
        """Look after a watch; the first one starts the thread."""
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
        """Look after a watch no longer; the thread ends with the last one."""
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
        """Wait until a watch is due; return ``None`` when there is none left."""
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
