"""Keep peers from flooding a log, forging its lines or filling it with their data.

Every logger of this package is made by ``logger``. Its records are

- rate-limited, from INFO up: at most one line a second for each cause. A cause is the place in the
  code that logs, and for an exception also its class and where it was raised. The next line of a
  cause tells how many were suppressed. DEBUG is not limited, since whoever enables it wants every
  line.
- escaped: non-printable characters, such as line breaks and terminal codes, are shown as in a
  Python string literal. The lines of a traceback remain lines, each prefixed with ``  | ``, so that
  none can pass for a log line.
- truncated: to 500 characters per value and the last 16,000 of a traceback.

Text of an application, such as that written to ``wsgi.errors``, is logged unchanged with
``extra=VERBATIM``. Lines from one place that all differ, and whose number the caller limits, are
logged with ``extra=PACED``: escaped and truncated, but not rate-limited.

This is a filter on the logger, so it works with all handlers and formatters of the application,
except those that format ``exc_info`` themselves.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections import OrderedDict

__all__ = [
    "MAX_VALUE",
    "PACED",
    "PAUSE",
    "VERBATIM",
    "forget",
    "log_failure",
    "logger",
    "printable",
]

# Seconds between two lines with the same cause.
PAUSE = 1.0

# Characters of one value, and of a traceback.
MAX_VALUE = 500
MAX_TRACEBACK = 16_000

# Causes remembered. Fewer places log, but exceptions may be raised anywhere.
MAX_CAUSES = 1024

Cause = tuple[object, ...]

# For ``extra=``: the line is the application's own text.
VERBATIM = {"verbatim": True}

# For ``extra=``: the caller limits the rate of the line.
PACED = {"paced": True}


def printable(text: str, most: int = MAX_VALUE) -> str:
    """Return untrusted text in a form that is safe in a log line."""
    shown = text[:most]
    if not shown.isprintable():
        shown = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown
        )
    left_out = len(text) - most
    return shown if left_out <= 0 else f"{shown}... ({left_out} more characters)"


class _Shown:
    """An argument of a record, escaped when it is formatted."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return printable(str(self._value))

    def __repr__(self) -> str:
        return printable(repr(self._value))


class _Guard(logging.Filter):
    """Rate-limit records by cause, and escape those that pass."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        # Reentrant, since a signal handler that logs may interrupt a thread that is logging.
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
        """Return how many records were suppressed before this one; ``None`` if this one is."""
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
    """Return the logger of this name, protected as this module describes."""
    found = logging.getLogger(name)
    found.addFilter(_guard)
    return found


def log_failure(log: logging.Logger, text: str, *values: object) -> None:
    """Log the exception that is being handled; one that a handler of the log raises is printed.

    For what must go on to its end. The print is the one of ``logging`` for such handlers.
    """
    try:
        log.exception(text, *values)
    except BaseException:
        logging.Handler().handleError(
            log.makeRecord(log.name, logging.ERROR, "", 0, text, values, None)
        )


def forget() -> None:
    """Start counting afresh; for a forked child, whose parent may have held the lock."""
    _guard.forget()


os.register_at_fork(after_in_child=forget)
