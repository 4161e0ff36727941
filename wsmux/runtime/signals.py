"""Hold back the handlers of signals while the main thread does what must not be broken off.

CPython calls them in the main thread, between any two steps of its code, and what they raise comes
out there, as Ctrl-C does. A mask of the system is no help: another thread takes the signal then,
and the handler is called in the main thread all the same. So while a block of ``held_back`` lasts,
each handler written in Python is replaced by one that takes a note, and tells the block to end;
then they are called. What the system itself does (ignores a signal, ends the process) is left
alone, and so are handlers written in C.

Only the main thread has anything to hold back; elsewhere a block does nothing. In the main thread
it costs about 5 us. Whatever is raised at whichever step, no handler is lost: one that takes notes
when no block lasts puts the others back, and calls the one in whose place it stands. A handler that
sets handlers, its own or others, has the last word. What cannot be put back is
``signal.siginterrupt(number, False)``, which ``signal.signal`` undoes.
"""

from __future__ import annotations

# ``signal`` makes an enum of each result, for 1 us.
import _signal  # type: ignore[import-not-found]
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

from .interrupts import is_interrupt

__all__ = ["held_back", "in_main_thread"]

_NUMBERS = [int(number) for number in _signal.valid_signals()]
_get_handler: Callable[[int], Any] = _signal.getsignal
_set_handler: Callable[[int, Any], Any] = _signal.signal


class _HeldBack:
    """The blocks of the main thread, which has one at a time."""

    def __init__(self) -> None:
        self._note = self._take_note  # the same object each time
        self._known: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._notes: list[tuple[int, FrameType | None]] = []
        self._holds = False
        self._tell: Callable[[], object] = bool

    def begin(self, tell: Callable[[], object]) -> None:
        while True:
            try:
                known = list(map(_get_handler, _NUMBERS))
                if known != self._known:
                    self._learn(known)
                self._holds, self._tell = True, tell
                for number in self._handlers:
                    # A handler called meanwhile may have set this one.
                    self._handlers[number] = _set_handler(number, self._note)
            except BaseException as error:
                if is_interrupt(error):
                    self.end()
                    raise
                # A further interpreter, of which no thread calls handlers.
                self._handlers = {}
            if self._holds:
                return
            # A handler called meanwhile had a block of its own, which has put some back.

    def _learn(self, known: list[Any]) -> None:
        """Find the handlers that are written in Python."""
        if self._note in known:  # a block was not left in order
            self.end()
            known = list(map(_get_handler, _NUMBERS))
        pairs = zip(_NUMBERS, known, strict=True)
        handlers = {number: handler for number, handler in pairs if callable(handler)}
        # No call between these, after which a signal is handled: they are one state.
        self._known, self._handlers = known, handlers

    def end(self) -> None:
        """Put the handlers back, and call those whose signals have come."""
        self._holds = False
        self._tell = bool
        try:
            self._put_back()
            while self._notes:
                noted = number, frame = self._notes[0]
                handler = _get_handler(number)
                handles = callable(handler)  # one called before may have told the system to
                # No call from here on, after which a further signal is handled.
                if self._notes[:1] != [noted]:
                    continue  # one called meanwhile had a block of its own, which has done it
                del self._notes[0]
                if handles:
                    handler(number, frame)
        except BaseException:
            self.end()  # a handler has raised; what it broke off is done all the same
            raise

    def _put_back(self) -> None:
        """Put back the handlers in whose places there are still notes.

        Those that are back are called at each step from then on, and may set any other.
        """
        for number, handler in list(self._handlers.items()):
            if _get_handler(number) is self._note:
                found = _set_handler(number, handler)
                if found is not self._note:  # it was set at the beginning of this very call
                    _set_handler(number, found)

    def _take_note(self, number: int, frame: FrameType | None) -> None:
        self._notes.append((number, frame))
        if self._holds:
            self._tell()
        else:
            self.end()

    def forked(self) -> None:
        """Put the handlers back in a child that another thread has forked, its main thread now."""
        if self._holds:
            self._notes.clear()
            self.end()


class _Block:
    """A block, which has its own ``tell``, whatever handlers do before it has begun."""

    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell = tell

    def __enter__(self) -> None:
        _held_back.begin(self._tell)

    def __exit__(self, *_: object) -> None:
        _held_back.end()


_held_back = _HeldBack()
_nothing = nullcontext()

os.register_at_fork(after_in_child=_held_back.forked)


def held_back(tell: Callable[[], object]) -> AbstractContextManager[object]:
    """Return a block in which no handler of a signal is called; see the module docstring.

    There is none within another.

    Args:
        tell: called when a signal has come; the block must end soon then, as Ctrl-C waits for that.
    """
    return _Block(tell) if in_main_thread() else _nothing


def in_main_thread() -> bool:
    """Return whether this is the thread in which handlers of signals are called."""
    return threading.get_ident() == threading.main_thread().ident
