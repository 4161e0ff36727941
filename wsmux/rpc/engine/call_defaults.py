"""Settle what a call is given with what its client says for all calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ..abort import Abort, checked

__all__ = ["CallDefaults"]


class CallDefaults(NamedTuple):
    """The defaults of a client's calls, whichever way they are made; see ``rpc.connect``."""

    raises: bool
    """Whether error results are raised; otherwise calls return ``Ok`` and ``Err``."""
    timeout: float | None
    abort: Abort | Callable[[], Abort] | None

    def timeout_of(self, timeout: float | None) -> float | None:
        """Return the timeout of a call in seconds, ``None`` for no limit."""
        chosen = self.timeout if timeout is None else timeout
        return None if chosen == math.inf else chosen

    def abort_of(self, abort: Abort | None) -> Abort | None:
        """Return the ``Abort`` of a call, if it has one.

        Raises:
            TypeError: the given one is no ``Abort``, or what the client's function returned.
        """
        if abort is None:
            abort = self.abort() if callable(self.abort) else self.abort
        return checked(abort)
