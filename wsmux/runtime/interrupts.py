"""Distinguish interrupts from errors that a call raises itself.

A handler of SIGALRM may raise any exception between two lines of this package, typically a
``TimeoutError``, and another thread may inject any exception. An error that a call raises itself
leaves no operation half done, so nothing needs repair; an interrupt may.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..exceptions import WsmuxError

__all__ = ["is_interrupt"]

# With the separator, so that no package beside this one counts whose name has the same prefix.
HERE = str(Path(__file__).parents[1]) + os.sep

# The exceptions that this package raises explicitly.
OWN = (WsmuxError, TimeoutError, TypeError, ValueError)


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error came from outside, judging by its type and its traceback.

    A signal handler may itself use a stream, so an error may be raised by this package within the
    handler; but then a frame of the handler is between the interrupted call and that place.
    """
    trace = error.__traceback__
    if not isinstance(error, OWN) or trace is None:
        return True
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(HERE):
        trace = trace.tb_next
    return trace is not None
