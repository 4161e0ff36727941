"""Distinguish an interrupt from the errors that a call raises itself.

A handler of SIGALRM may raise anything between two lines of ours, a ``TimeoutError`` above all, and
another thread may throw anything in. What a call raises itself leaves nothing half done, and need
not be made good; what came from outside may.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..exceptions import WsmuxError

__all__ = ["is_interrupt"]

# With the separator, or a package beside this one whose name begins alike would count as this one.
HERE = str(Path(__file__).parents[1]) + os.sep

# What this package raises where it says so.
OWN = (WsmuxError, TimeoutError, TypeError, ValueError)


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error came from outside: by its type, or by the way that it took.

    A handler of a signal may itself use a stream, and what it raises then was raised here: but
    there is a frame of the handler's between the interrupted call and that place.
    """
    trace = error.__traceback__
    if not isinstance(error, OWN) or trace is None:
        return True
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(HERE):
        trace = trace.tb_next
    return trace is not None
