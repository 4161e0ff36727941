"""Keep peers from flooding a log, forging its lines or filling it with what they send.

Every logger of this package is made by ``logger``. What passes through one is

- at most one line a second for each cause, from INFO up: a cause is the place in the code that
  logs, for an exception with its class and where it was raised. The next line of a cause tells how
  many were left out. DEBUG is not limited: turning it on asks for every line.
- escaped: a character that does not print, line ends and terminal codes among them, stands as
  Python writes it in a string. The lines of a traceback stay lines, each after ``  | ``, so that
  none can pass for a line of the log.
- cut: of each value the first 500 characters, of a traceback the last 16,000.

What an application says in its own words, such as to ``wsgi.errors``, is logged with
``extra=VERBATIM`` and passes as it is. Lines of one place that each say something else, and whose
number the caller bounds itself, are logged with ``extra=PACED``: they are escaped and cut, not
counted.

It is a filter on the logger, so it holds whatever handlers and formatters the application has, but
for those that format ``exc_info`` by themselves.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections import OrderedDict

__all__ = ["MAX_VALUE", "PACED", "PAUSE", "VERBATIM", "forget", "logger", "printable"]

# Seconds between two lines of one cause.
PAUSE = 1.0

# Characters of one value, and of a traceback.
MAX_VALUE = 500
MAX_TRACEBACK = 16_000

# Causes remembered; there are fewer places that log, but exceptions may come from anywhere.
MAX_CAUSES = 1024

Cause = tuple[object, ...]

# For ``extra=`` of a line that is the application's own.
VERBATIM = {"verbatim": True}

# For ``extra=`` of a line that is one of no more than its caller lets out.
PACED = {"paced": True}


def printable(text: str, most: int = MAX_VALUE) -> str:
    """Return what may stand in a line of a log of a text that anybody may have written."""
    shown = text[:most]
    if not shown.isprintable():
        shown = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown
        )
    left_out = len(text) - most
    return shown if left_out <= 0 else f"{shown}... ({left_out} more characters)"


class _Shown:
    """An argument of a record, made printable when somebody formats it."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return printable(str(self._value))

    def __repr__(self) -> str:
        return printable(repr(self._value))


class _Guard(logging.Filter):
    """Let a record pass at most once a second for each cause, and make what passes harmless."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        # Reentrant, since a signal handler that logs may interrupt a thread that does.
        self._lock = threading.RLock()
        self._causes: OrderedDict[Cause, tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "verbatim", False):
            return True
        left_out = 0
        if record.levelno > logging.DEBUG and not getattr(record, "paced", False):
            passed = self._passed(_cause(record), time.monotonic())
            if passed is None:
                return False
            left_out = passed
        if isinstance(record.args, tuple):
            record.args = tuple(map(_shown, record.args))
            if left_out:
                text = str(record.msg) if record.args else str(record.msg).replace("%", "%%")
                record.msg = f"{text} (%d more like it were left out)"
                record.args += (left_out,)
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = _shown_traceback(
                "".join(traceback.format_exception(*record.exc_info))
            )
        return True

    def _passed(self, cause: Cause, now: float) -> int | None:
        """Return how many records were left out before this one; ``None`` if it is one of them."""
        with self._lock:
            last, left_out = self._causes.get(cause, (now - PAUSE, 0))
            if now - last < PAUSE:
                self._causes[cause] = last, left_out + 1
                return None
            self._causes[cause] = now, 0
            self._causes.move_to_end(cause)
            if len(self._causes) > MAX_CAUSES:
                self._causes.popitem(last=False)
            return left_out


def _cause(record: logging.LogRecord) -> Cause:
    if not record.exc_info or record.exc_info[0] is None:
        return (record.name, record.msg)
    kind, _, trace = record.exc_info
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return (record.name, record.msg, kind.__module__, kind.__qualname__, place)


def _shown(value: object) -> object:
    return value if isinstance(value, int | float) else _Shown(value)


def _shown_traceback(text: str) -> str:
    tail = text.rstrip("\n")[-MAX_TRACEBACK:]
    return "\n".join(f"  | {printable(line, MAX_TRACEBACK)}" for line in tail.split("\n"))


_guard = _Guard()


def logger(name: str) -> logging.Logger:
    """Return the logger of this name, through which nothing passes but what the module says."""
    found = logging.getLogger(name)
    found.addFilter(_guard)
    return found


def forget() -> None:
    """Begin to count again; a forked child does, whose parent may have held the lock."""
    _guard.forget()


os.register_at_fork(after_in_child=forget)
