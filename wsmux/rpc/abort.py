"""Cancel any number of calls by one event."""

from __future__ import annotations

import threading
from typing import Protocol

from ..exceptions import ForkedError

__all__ = ["ABORTED", "Abort", "checked"]

# What callers and servers are told of a call that was cancelled so.
ABORTED = "the caller aborted the call"


class Cancellable(Protocol):
    """A call, as an abort event knows it."""

    def cancel(self, message: str) -> object:
        """End it at both sides, unless it has ended."""


class Abort(threading.Event):
    """Cancel calls when it is set: those that were given it as ``abort=``, and are under way.

    Calls that are made with it once it is set end at once, without a message to the server. All
    raise ``RiverError`` with CANCEL. It is a ``threading.Event``, and can be handed to whatever
    sets one. Other events will not do: nothing tells a call that they were set, so each would need
    a thread that waits, or one that polls. This one knows its calls, and ``set`` cancels them: no
    thread waits, and a call costs an entry in a table.

    One may be given to calls of several clients. A handler has one in ``ctx.ended``:
    ``client.rpc(..., abort=ctx.ended)`` ends with the call that it is made for.

    ``set`` may be called from any thread. As that of any event, it is not for signal handlers.
    """

    # Tables of Python take and give single entries without a lock of ours, and so under any.

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[Cancellable, None] = {}

    def set(self) -> None:
        """Wake who waits for it, and cancel the calls."""
        super().set()
        while self._calls:
            try:
                call, _ = self._calls.popitem()
            except KeyError:
                return  # another thread has taken the last
            try:
                call.cancel(ABORTED)
            except ForkedError:
                continue  # a call of the parent's

    def mark(self) -> bool:
        """Wake who waits for it, but leave the calls to ``set``; tell whether there are any.

        It is for those who hold a lock, and call ``set`` once they have let go.
        """
        super().set()
        return bool(self._calls)

    def add(self, call: Cancellable) -> None:
        """Note a call that is under way; whoever adds one calls ``set`` if it is set by then."""
        self._calls[call] = None

    def discard(self, call: Cancellable) -> None:
        """Forget a call that is over."""
        self._calls.pop(call, None)


def checked(abort: Abort | None) -> Abort | None:
    """Return what was given as ``abort=``.

    Raises:
        TypeError: it is neither an ``Abort`` nor ``None``.
    """
    if abort is None or isinstance(abort, Abort):
        return abort
    kind = type(abort).__name__
    hint = "; a plain event cannot tell a call that it was set" if kind == "Event" else ""
    raise TypeError(f"abort must be a wsmux.rpc.Abort, not {kind}{hint}")
