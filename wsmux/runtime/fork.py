"""Notify objects in a forked child that they are copies and must not be used there."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from .logs import logger

__all__ = ["Forkable", "register"]


class Forkable(Protocol):
    """Describe an object that must be notified of forks."""

    def forked(self) -> None:
        """Make the object unusable in a forked child, without writing or waiting.

        An error is logged, and does not keep the others from being notified.
        """


_known: weakref.WeakSet[Forkable] = weakref.WeakSet()

register = _known.add


_log = logger("wsmux")


def _after_fork_in_child() -> None:
    failed: list[tuple[str, Exception]] = []
    for each in list(_known):
        try:
            each.forked()
        except Exception as error:
            failed.append((type(each).__name__, error))
    for name, reason in failed:  # the application's handler may wait for a lock of before the fork
        _log.error("a %s of the parent may still be usable in this child", name, exc_info=reason)


os.register_at_fork(after_in_child=_after_fork_in_child)
