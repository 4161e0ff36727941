"""Start threads, or say in a typed error why there are none; end them with a sub-interpreter.

CPython 3.12 starts no thread once an interpreter is exiting, so in ``atexit`` what is there goes on
and nothing new comes about. And every CPython aborts the process when a sub-interpreter ends before
a thread of its own, a daemon too. There, and there only, what has threads is registered here and
ended by ``atexit``, which runs before that check.

That does not help where no ``atexit`` runs in time: a process that exits without having ended its
sub-interpreters, and the ``destroy`` of 3.11, which refuses while there are threads. There,
connections are to be closed first.
"""

from __future__ import annotations

import atexit
import importlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ..exceptions import NoThreadError
from .deadline import Deadline
from .logs import logger

__all__ = ["Leaving", "daemon_thread", "register", "start_thread"]

# Seconds that all threads of a sub-interpreter have to end. Only what an application does in a
# handler can take longer.
PATIENCE = 10.0

_log = logger("wsmux")


class Leaving(Protocol):
    """Describe what has threads."""

    def leave(self) -> None:
        """End at once, so that the threads do; must not wait for a peer."""


def daemon_thread(
    target: Callable[..., object], *, name: str, args: Iterable[Any] = ()
) -> threading.Thread:
    """Return a daemon thread that is still to be started.

    Raises:
        NoThreadError: this interpreter has none: an isolated sub-interpreter, from 3.12 on.
    """
    try:
        return threading.Thread(target=target, name=name, args=args, daemon=True)
    except RuntimeError as error:
        raise NoThreadError(f"{name} cannot be made: {error}") from error


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        NoThreadError: the system has none to give, or the interpreter is exiting.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise NoThreadError(f"{thread.name} cannot be started: {error}") from error


def _in_subinterpreter() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # the latter up to 3.12
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() != interpreters.get_main())
    return False


_known: weakref.WeakSet[Leaving] = weakref.WeakSet()
_registers = _in_subinterpreter()


def register(each: Leaving) -> None:
    """End something before the interpreter, where its threads would not end by themselves.

    The main interpreter ends daemon threads where they stand, so nothing is done there.
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
    if sys.is_finalizing():  # the process exits without having ended this one: threads run no more
        return
    for thread in threading.enumerate():
        if thread.name.startswith("wsmux") and thread is not threading.current_thread():
            thread.join(deadline.remaining())


if _registers:
    atexit.register(_leave)
