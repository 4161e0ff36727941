"""Cancel any number of calls with one event."""

from __future__ import annotations

import threading
from typing import Protocol

from ..exceptions import ForkedError

__all__ = ["ABORTED", "Abort", "checked"]

# The message that callers and servers get for a call cancelled in this way.
ABORTED = "the caller aborted the call"


class Cancellable(Protocol):
    """A call that an abort event can cancel."""

    def cancel(self, message: str) -> object:
        """End the call on both sides, unless it has ended."""


class Abort(threading.Event):
    """Cancel calls when set: all calls in flight that were given it as ``abort=``.

    Calls made with it after it was set end at once, without a message to the server. All raise
    ``RiverError`` with CANCEL.

    It is a ``threading.Event``, and can be passed to any code that sets one. A plain event cannot
    be used: it does not notify calls when it is set, so each call would need a thread that waits or
    polls. An ``Abort`` keeps a table of its calls, and ``set`` cancels them, so a call costs only
    an entry in that table.

    One ``Abort`` may serve calls of several clients. A handler has one in ``ctx.ended``:
    ``client.rpc(..., abort=ctx.ended)`` ends with the call being handled.

    ``set`` may be called from any thread, but, as with any event, not from signal handlers.
    """

    # Adding or removing one dict entry is atomic in Python: no lock is needed, so any may be held.

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[Cancellable, None] = {}

    def set(self) -> None:
        """Wake the threads that wait for the event, and cancel the calls."""
        super().set()
        while self._calls:
            try:
                call, _ = self._calls.popitem()
            except KeyError:
                return  # another thread took the last one
            try:
                call.cancel(ABORTED)
            except ForkedError:
                continue  # a call of the parent process

    def mark(self) -> bool:
        """Wake the threads that wait for the event; cancel nothing. Return whether calls remain.

        For code that holds a lock, and calls ``set`` after releasing it.
        """
        super().set()
        return bool(self._calls)

    def add(self, call: Cancellable) -> None:
        """Add a call in flight; the caller must then call ``set`` if the event is already set."""
        self._calls[call] = None

    def discard(self, call: Cancellable) -> None:
        """Remove a call that is over."""
        self._calls.pop(call, None)


def checked(abort: Abort | None) -> Abort | None:
    """Return the value of an ``abort=`` argument.

    Raises:
        TypeError: it is neither an ``Abort`` nor ``None``.
    """
    if abort is None or isinstance(abort, Abort):
        return abort
    kind = type(abort).__name__
    hint = "; a plain event cannot tell a call that it was set" if kind == "Event" else ""
    raise TypeError(f"abort must be a wsmux.rpc.Abort, not {kind}{hint}")
