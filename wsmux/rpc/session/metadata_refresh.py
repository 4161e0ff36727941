"""Time a server's requests for new metadata, and the client's answers.

As in other implementations, a request is sent one ``handshake_timeout`` before the metadata
expires, or when the application asks; the answer must arrive within ``handshake_timeout``, or
before the metadata expires if that is sooner. Both timers are stopped while there is no connection:
the next handshake brings new metadata.

Beyond that, a request that is not answered yet counts for a further one, too. How long the
validation of an answer takes is not the client's affair, so its arrival stops the deadline; the
previous metadata count until it is validated, expired or not. Meanwhile the client may be asked
again, and has the whole ``handshake_timeout``.
"""

from __future__ import annotations

from enum import Enum, auto

from ..options import Options

__all__ = ["MetadataRefresh", "RefreshLapse"]


class RefreshLapse(Enum):
    """Define which timer has expired."""

    ASK = auto()  # send the request if ``ask`` says so
    OVERDUE = auto()  # destroy the session


class MetadataRefresh:
    """Hold the two timers of a session, in seconds of the clock of ``now``."""

    def __init__(self, options: Options) -> None:
        self._timeout = options.handshake_timeout
        self._expires: float | None = None
        self._ask: float | None = None
        self._deadline: float | None = None

    def validated(self, expires: float | None) -> None:
        """Record new metadata, valid until ``expires``, or for ever if ``None``."""
        self._expires = expires
        self._ask = None if expires is None else expires - self._timeout

    def ask(self, now: float) -> bool:
        """Return whether to send a request now; ``False`` if one is unanswered."""
        if self._deadline is not None:
            return False
        self._ask = None
        left = self._timeout if self._expires is None else self._expires - now
        self._deadline = now + min(left, self._timeout)
        return True

    def answered(self) -> None:
        """Record that new metadata has arrived, not yet validated."""
        self._expires = self._deadline = None

    def stop(self) -> None:
        """Stop both timers: the connection is gone, or another one has brought new metadata."""
        self._expires = self._ask = self._deadline = None

    def next_timer(self) -> float | None:
        """Return when to call ``handle_timer``."""
        return self._ask if self._deadline is None else self._deadline

    def handle_timer(self, now: float) -> RefreshLapse | None:
        """Return what is due."""
        due = self.next_timer()
        if due is None or now < due:
            return None
        return RefreshLapse.ASK if self._deadline is None else RefreshLapse.OVERDUE
