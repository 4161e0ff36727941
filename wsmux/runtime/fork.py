"""Notify objects that they are copies in a forked child, which are of no use there."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["Forkable", "register"]


class Forkable(Protocol):
    """What wants to know of forks."""

    def forked(self) -> None:
        """Become useless in a forked child, without writing or waiting."""


_known: weakref.WeakSet[Forkable] = weakref.WeakSet()

register = _known.add


def _after_fork_in_child() -> None:
    for each in list(_known):
        each.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
