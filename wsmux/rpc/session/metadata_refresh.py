"""Say when a server asks a client for new metadata, and when the answer is too late.

As shipped: one ``handshake_timeout`` before the metadata expires, or whenever the application
wishes; the answer must come within ``handshake_timeout`` or the remaining life, whichever is
shorter. The clock stands while there is no connection: the next handshake brings new metadata.
"""

from __future__ import annotations

from enum import Enum, auto

from ..options import Options

__all__ = ["MetadataRefresh", "RefreshLapse"]


class RefreshLapse(Enum):
    """Say what time it is."""

    ASK = auto()  # send the request, and say so with ``asked``
    OVERDUE = auto()  # destroy the session


class MetadataRefresh:
    """Hold the two times of one session; all are seconds of the clock that ``now`` is of."""

    def __init__(self, options: Options) -> None:
        self._timeout = options.handshake_timeout
        self._expires: float | None = None
        self._ask: float | None = None
        self._deadline: float | None = None

    def validated(self, expires: float | None) -> None:
        """Note new metadata, good until ``expires``, or for ever if that is ``None``."""
        self._expires, self._deadline = expires, None
        self._ask = None if expires is None else expires - self._timeout

    def asked(self, now: float) -> None:
        """Note that the client was asked."""
        self._ask = None
        left = self._timeout if self._expires is None else self._expires - now
        self._deadline = now + min(left, self._timeout)

    def stop(self) -> None:
        """Forget both times: the connection is gone."""
        self._expires = self._ask = self._deadline = None

    def next_timer(self) -> float | None:
        """Return when to call ``handle_timer``."""
        return self._ask if self._deadline is None else self._deadline

    def handle_timer(self, now: float) -> RefreshLapse | None:
        """Say what is due."""
        due = self.next_timer()
        if due is None or now < due:
            return None
        return RefreshLapse.ASK if self._deadline is None else RefreshLapse.OVERDUE
