"""Shut down what serves connections when the process stops that a WSGI server runs it in.

A process has one handler for each signal, and may have several things to shut down, so they are
kept here together: all begin at once, each in a thread, and the process ends after the last. A
quick stop may follow a graceful one, also while the process exits, when no thread can be started.
So each has a second thread from the start, which hurries it then.

A server that does not know of connections, as they hold none of its threads, exits while they are
open, and not after a signal alone. So they can be shut down at exit, too. CPython starts no threads
then, from 3.12 on; that happens one after another in the main thread.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from ..runtime import fork
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from ..runtime.parking import OneShotEvent
from ..runtime.signals import held_back

__all__ = ["QUICK", "Shutdown", "shut_down_at_exit", "shut_down_on_signals"]

Shutdown = Callable[[float | None], object]

# What gunicorn and Werkzeug are stopped by. HUP, sent to gunicorn's master, is SIGTERM to a worker.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)

# Seconds that what is open has after SIGINT and SIGQUIT, by which gunicorn stops without patience.
QUICK = 1.0

_log = logger("wsmux")


def shut_down_on_signals(
    shutdown: Shutdown, timeout: float | None, *, unasked: bool = False
) -> None:
    """Call ``shutdown(timeout)`` in a thread on SIGTERM, and on SIGINT and SIGQUIT if handled.

    What a signal did before happens at once beside it; where that was to die, it happens after it.
    A process that exits meanwhile waits until the shutdown is done. After SIGINT and SIGQUIT the
    timeout is at most ``QUICK``. If one of these comes when a shutdown goes on, that is called once
    more with ``QUICK``, and has so long to end, whatever its first call does.

    Args:
        unasked: nobody has asked for this; a timeout that was given, before or later, counts.

    Raises:
        ValueError: this is not the main thread.
    """
    _process.add(shutdown, timeout, unasked)


def shut_down_at_exit(
    shutdown: Shutdown,
    timeout: float,
    longest: float | None,
    join: Callable[[Deadline], object],
) -> None:
    """Call ``shutdown(timeout)`` when the process exits, unless a signal has begun it by then.

    With ``shut_down_on_signals``, its timeout is used here as well. Holds for this process, and not
    for its forked children.

    Args:
        longest: the seconds after which the server kills a process that is still there. Nothing
            that is shut down, for this reason or by a signal, gets more; ``None`` for no limit.
        join: waits for the threads that have served, which then have ``QUICK`` to end.
    """
    _process.add_exit(shutdown, timeout, longest, join)


class _Handler:
    """Handle one signal, and do what was done before."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        dies = self._before == signal.SIG_DFL
        if dies:
            signal.signal(number, signal.SIG_DFL)  # the second signal does not wait
        before = partial(self._before, number, frame) if callable(self._before) else None
        _process.handle(number, dies, before)


class _Process:
    """Know what this process shuts down, and how far that is."""

    def __init__(self) -> None:
        self._shutdowns: dict[Shutdown, float | None] = {}
        self.forked()
        fork.register(self)
        atexit.register(self._at_exit)
        atexit.register(self._exits)  # called first

    def forked(self) -> None:
        """Begin again: what the parent shuts down goes on in a forked child."""
        self._begun = self._beginning = self._quick = self._exiting = False
        self._under_way: set[Shutdown] = set()
        self._befores: list[Callable[[], object]] = []  # to be called once everything has begun
        self._left: set[OneShotEvent] = set()  # of what is being shut down; each is set at its end
        self._done = OneShotEvent()
        self._hurried = OneShotEvent()  # set when all is done, too
        self._dies_by: int | None = None
        self._at_exits: dict[Shutdown, float | None] = {}
        self._joins: list[Callable[[Deadline], object]] = []
        self._longest: float | None = None

    def add(self, shutdown: Shutdown, timeout: float | None, unasked: bool) -> None:
        for number in SIGNALS:
            before = signal.getsignal(number)
            # Nobody asked to handle the others where nobody does.
            if number == signal.SIGTERM or callable(before):
                # A server's own handler may stand there again, in a worker that was forked.
                known = isinstance(before, _Handler)
                signal.signal(number, before if known else _Handler(before))
        if not (unasked and shutdown in self._shutdowns):
            self._shutdowns[shutdown] = timeout

    def add_exit(
        self,
        shutdown: Shutdown,
        timeout: float,
        longest: float | None,
        join: Callable[[Deadline], object],
    ) -> None:
        self._at_exits[shutdown] = timeout
        self._joins.append(join)
        self._longest = longest

    def handle(self, number: int, dies: bool, before: Callable[[], object] | None) -> None:
        """Begin with everything, once, then do as before; in a signal handler of the main thread.

        Another signal may come meanwhile. What its handler raises waits until everything has begun,
        and so does what is done as before, which may raise ``SystemExit``.
        """
        if dies:
            self._dies_by = number
        if before is not None:
            self._befores.append(before)
        quick = number != signal.SIGTERM
        self._quick = self._quick or quick
        try:
            with held_back(bool):
                if not (self._begun or self._exiting):
                    self._beginning = self._begun = True
                    try:
                        self._begin(quick)
                    finally:
                        self._beginning = False
                elif quick:
                    self._hurried.set()
        finally:
            if not self._beginning:
                self._die_if_done()
                self._do_as_before()

    def _do_as_before(self) -> None:
        """Do all that was done before, whatever some of it raises."""
        if self._befores:
            try:
                self._befores.pop(0)()
            except SystemExit:
                if not self._exiting:  # otherwise it would cut the exit short
                    raise
            finally:
                self._do_as_before()

    def _begin(self, quick: bool) -> None:
        beginning = OneShotEvent()
        self._left.add(beginning)
        for shutdown, timeout in list(self._shutdowns.items()):
            given = _least(timeout, self._longest)
            at_most = _least(given, QUICK)
            each = OneShotEvent()
            self._left.add(each)
            if not _started(self._shut_down, each, shutdown, at_most if quick else given):
                self._at_exits.setdefault(shutdown, given)
                self._finished(each)
                continue
            self._under_way.add(shutdown)
            if not quick:
                _started(self._hurry, each, shutdown, at_most)
        self._finished(beginning)

    def _shut_down(self, each: OneShotEvent, shutdown: Shutdown, timeout: float | None) -> None:
        try:
            _call(shutdown, timeout)
        finally:
            self._finished(each)

    def _hurry(self, each: OneShotEvent, shutdown: Shutdown, timeout: float | None) -> None:
        self._hurried.wait()
        if each.is_set():
            return
        patience = Deadline(timeout)
        _call(shutdown, timeout)
        each.wait(patience.remaining())
        self._finished(each)

    def _finished(self, each: OneShotEvent) -> None:
        each.set()
        self._left.discard(each)
        if not self._left:
            self._done.set()
            self._hurried.set()
            self._die_if_done()

    def _die_if_done(self) -> None:
        if self._dies_by is not None and self._done.is_set():
            os.kill(os.getpid(), self._dies_by)

    def _exits(self) -> None:
        """Note that functions of ``atexit`` are being called."""
        self._exiting = True

    def _at_exit(self) -> None:
        """Wait for what has begun, and shut down the rest: its threads would end as they stand."""
        begun, self._exiting = self._begun, True
        left = Deadline(self._longest)
        for shutdown, default in list(self._at_exits.items()):
            if shutdown not in self._under_way:
                timeout = self._shutdowns.get(shutdown, default)
                if self._quick:
                    timeout = _least(timeout, QUICK)
                _call(shutdown, _least(timeout, left.remaining()))
        if begun:
            self._done.wait()
        patience = Deadline(QUICK)
        for join in list(self._joins):
            join(patience)


def _started(function: Callable[..., object], *arguments: object) -> bool:
    """Call a function in a thread; return false if the system has none left.

    Nothing may wait in a signal handler under gevent, as ``Thread.start`` does.
    """
    try:
        _thread.start_new_thread(function, arguments)
    except RuntimeError:
        _log.exception("no thread can be started to close the connections gracefully")
        return False
    return True


def _call(shutdown: Shutdown, timeout: float | None) -> None:
    try:
        shutdown(timeout)
    except Exception:
        _log.exception("closing the connections gracefully failed")


def _least(timeout: float | None, longest: float | None) -> float | None:
    """Return the shorter of two timeouts, of which ``None`` is the longest."""
    if timeout is None or longest is None:
        return longest if timeout is None else timeout
    return min(timeout, longest)


_process = _Process()
