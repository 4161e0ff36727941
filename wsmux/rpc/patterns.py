"""Compile the regular expressions of schemas, which are ECMAScript's, with Python's ``re``.

Python's engine backtracks and cannot be stopped: a pattern such as ``^(a+)+$`` takes time beyond
all bounds on thirty letters that a client chooses. Patterns come from whoever writes the service,
never from a peer, so they are trusted; put ``maxLength`` beside a pattern that repeats a repeat, in
the same schema: longer strings are not searched.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

__all__ = ["Search", "compile_pattern"]

Search = Callable[[str], "re.Match[str] | None"]

# One step through a pattern: an escape, a class with its escapes, a group's name, or one letter.
_STEP = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?<(?=[A-Za-z_$])|.", re.DOTALL)


def compile_pattern(pattern: Any) -> Search:
    r"""Return the search of a pattern, anywhere in a string.

    ``$`` is only the end, never before a last newline; ``\d`` and ``\w`` are ASCII, and so is
    ``\s``, unlike ECMAScript's.

    Raises:
        ValueError: it is no pattern, or one that Python cannot compile, such as ``\p{L}``.
    """
    if not isinstance(pattern, str):
        raise ValueError("must be a string")
    try:
        return re.compile(_STEP.sub(_translate, pattern), re.ASCII).search
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"has a pattern that Python cannot compile: {error}") from error


def _translate(step: re.Match[str]) -> str:
    text = step.group()
    return {"$": r"\Z", "(?<": "(?P<"}.get(text, text)
