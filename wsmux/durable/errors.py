"""Report why a durable stream cannot go on.

::

    WsmuxError
    └── DurableError
        ├── DurableRefused        the receiver said why             .kind  .reason  .temporary
        ├── DurableInterrupted    the other side left before the end
        ├── DurableLost           what is to be sent next is gone   .committed  .oldest  .newest
        └── JournalError          a journal cannot be used
            ├── JournalFull       the disk has no room; later it may
            └── JournalDamaged    it is not as it was written       .path  .position

A lost connection raises what it raises on any stream, a ``ConnectionClosed``.
"""

from __future__ import annotations

from ..exceptions import Side, WsmuxError
from ..protocols.durable import Refusal

__all__ = [
    "DurableError",
    "DurableInterrupted",
    "DurableLost",
    "DurableRefused",
    "JournalDamaged",
    "JournalError",
    "JournalFull",
    "Refusal",
]


class DurableError(WsmuxError):
    """The base class of the errors of durable streams; the connection continues."""


class DurableRefused(DurableError):
    """Report that the receiver does not take the stream, or not any further.

    A handler of durable streams raises it to say so to the sender, who gets the same.

    Attributes:
        kind: why.
        reason: one sentence, of which 500 bytes are sent.
        temporary: whether the same may succeed later.
    """

    def __init__(self, kind: Refusal, reason: str, side: Side = "local") -> None:
        who = "this side" if side == "local" else "the receiver"
        super().__init__(f"{who} refuses the durable stream ({kind.name.lower()}): {reason}")
        self.kind = kind
        self.reason = reason
        self.side: Side | None = side
        self.temporary = kind.temporary


class DurableInterrupted(DurableError):
    """Report that the other side ended the stream in the middle; open it again to go on."""

    side: Side | None = "remote"


class DurableLost(DurableError):
    """Report that the receiver has committed less, or more, than the sender's journal holds.

    Attributes:
        committed: the offset that the receiver has.
        oldest, newest: the offsets between which the journal has data.
    """

    def __init__(self, name: str, committed: int, oldest: int, newest: int) -> None:
        what = "lost what it had committed" if committed < oldest else "has what was never sent"
        super().__init__(
            f"the receiver of {name!r} {what}: it goes on at {committed}, and the journal has "
            f"{oldest} to {newest}; begin a new journal"
        )
        self.committed = committed
        self.oldest = oldest
        self.newest = newest


class JournalError(DurableError):
    """Report a journal that cannot be opened, or takes no more."""

    side: Side | None = "local"


class JournalFull(JournalError):
    """Report that there is no room for what a journal was given, of which it kept nothing."""

    retry_safe = True


class JournalDamaged(JournalError):
    """Report a journal whose files are not as they were written.

    Attributes:
        path: the file.
        position: where in the file.
    """

    def __init__(self, path: str, position: int, what: str) -> None:
        super().__init__(
            f"the journal file {path} is damaged at byte {position}: {what}. Restore it from a "
            "copy, or remove the folder to begin anew without what was not committed"
        )
        self.path = path
        self.position = position
