"""Start threads, with a typed error if that is impossible; end them with a sub-interpreter.

CPython 3.12 starts no threads once an interpreter is exiting, so in ``atexit`` functions existing
connections continue and new ones cannot be made. Every CPython aborts the process if a
sub-interpreter ends while it still has threads, even daemons. In sub-interpreters only, objects
with threads are therefore registered here and ended by ``atexit``, which runs before that check.

This does not help where ``atexit`` does not run in time: in a process that exits without having
ended its sub-interpreters, and with ``destroy`` of 3.11, which refuses while there are threads.
There, close connections first.
"""

from __future__ import annotations

import atexit
import importlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, Protocol

from ..exceptions import NoThreadError
from .deadline import Deadline
from .logs import logger

__all__ = ["Threaded", "daemon_thread", "register", "start_thread"]

# Seconds that all threads of a sub-interpreter have to end. Only application code in a handler can
# take longer.
PATIENCE = 10.0

_log = logger("wsmux")


class Threaded(Protocol):
    """Describe an object with threads of its own."""

    def leave(self) -> None:
        """End at once, and with it the threads; must not wait for a peer."""


def daemon_thread(
    target: Callable[..., object], *, name: str, args: Iterable[Any] = ()
) -> threading.Thread:
    """Return a daemon thread, not yet started.

    It inherits no context variables, such as the end of a ``deadline`` block, not even in
    free-threaded Pythons from 3.14 on, where threads do.

    Raises:
        NoThreadError: an isolated sub-interpreter cannot have threads, from 3.12 on.
    """
    try:
        return threading.Thread(target=Context().run, name=name, args=(target, *args), daemon=True)
    except RuntimeError as error:
        raise NoThreadError(f"{name} cannot be made: {error}") from error


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        NoThreadError: the system has none left, or the interpreter is exiting.
    """
    handled = sys.exc_info()[1]
    try:
        thread.start()
    except RuntimeError as error:
        if error.__context__ not in (None, handled):
            # A signal handler raised while this waited until the thread runs: the event of the
            # standard library then raises an error of its own, that a lock is not held.
            raise error.__context__ from None
        raise NoThreadError(f"{thread.name} cannot be started: {error}") from error


def _in_subinterpreter() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # the latter up to 3.12
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() != interpreters.get_main())
    return False


_known: weakref.WeakSet[Threaded] = weakref.WeakSet()
_registers = _in_subinterpreter()


def register(each: Threaded) -> None:
    """End an object with the interpreter, if its threads would not end by themselves.

    The main interpreter simply stops daemon threads, so there this does nothing.
    """
    if _registers:
        _known.add(each)


def _leave() -> None:
    deadline = Deadline(PATIENCE)
    for each in list(_known):
        try:
            each.leave()
        except Exception:
            _log.exception("%r did not end with its interpreter", each)
    if sys.is_finalizing():  # the process exits without ending it: threads are stopped
        return
    for thread in threading.enumerate():
        if thread.name.startswith("wsmux") and thread is not threading.current_thread():
            thread.join(deadline.remaining())


if _registers:
    atexit.register(_leave)
