"""Notify objects in a forked child that they are copies and must not be used there."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["Forkable", "register"]


class Forkable(Protocol):
    """Describe an object that must be notified of forks."""

    def forked(self) -> None:
        """Make the object unusable in a forked child, without writing or waiting."""


_known: weakref.WeakSet[Forkable] = weakref.WeakSet()

register = _known.add


def _after_fork_in_child() -> None:
    for each in list(_known):
        each.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
