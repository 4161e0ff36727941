"""Report why there is no tunnel, with the status sent over the wire."""

from __future__ import annotations

from ..exceptions import WsmuxError

__all__ = ["MEANINGS", "TunnelError"]

# The meanings of an answer's statuses; RFC 9110 section 15, as proxies use them.
MEANINGS = {
    400: "bad request",
    403: "not allowed",
    502: "cannot be reached",
    503: "too many at once",
    504: "out of time",
}


class TunnelError(WsmuxError):
    """Report that a tunnel or a remote command could not be started.

    ``status`` is one of ``MEANINGS``. No data was carried, so a retry is safe.
    """

    retry_safe = True

    def __init__(self, status: int, words: str) -> None:
        super().__init__(status, words)
        self.status = status
        self.words = words

    def __str__(self) -> str:
        return f"{self.words} ({self.status} {MEANINGS.get(self.status, 'unknown')})"
