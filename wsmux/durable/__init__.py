"""Carry streams that outlive their connections and both processes.

A sender opens one with ``connection.open_stream(durable=NAME)``; ``DurableHandler`` receives them.
What each name has committed is kept by an ``Offsets``, together with its effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from .errors import (
        DurableError,
        DurableInterrupted,
        DurableLost,
        DurableRefused,
        JournalDamaged,
        JournalError,
        JournalFull,
        Refusal,
    )
    from .files import FileOffsets
    from .interfaces import Offsets
    from .journal import Journal
    from .receiver import DurableHandler, ReceivedStream
    from .redis_offsets import RedisOffsets
    from .sender import DurableStream
    from .sql_offsets import SqlOffsets

__all__ = [
    "DurableError",
    "DurableHandler",
    "DurableInterrupted",
    "DurableLost",
    "DurableRefused",
    "DurableStream",
    "FileOffsets",
    "Journal",
    "JournalDamaged",
    "JournalError",
    "JournalFull",
    "Offsets",
    "ReceivedStream",
    "RedisOffsets",
    "Refusal",
    "SqlOffsets",
]

__getattr__ = lazy_names(
    __name__,
    {
        "errors": (
            "DurableError",
            "DurableInterrupted",
            "DurableLost",
            "DurableRefused",
            "JournalDamaged",
            "JournalError",
            "JournalFull",
            "Refusal",
        ),
        "files": ("FileOffsets",),
        "interfaces": ("Offsets",),
        "journal": ("Journal",),
        "receiver": ("DurableHandler", "ReceivedStream"),
        "redis_offsets": ("RedisOffsets",),
        "sender": ("DurableStream",),
        "sql_offsets": ("SqlOffsets",),
    },
)
