"""Name how a session or its connection can fail below the calls."""

from __future__ import annotations

from enum import StrEnum

from ..exceptions import RemoteProtocolError

__all__ = ["FailureKind", "GapError", "SessionFailure"]


class FailureKind(StrEnum):
    """Sort failures as the TypeScript implementation sorts its ``protocolError`` events."""

    HANDSHAKE = "handshake_failed"
    INVALID_MESSAGE = "invalid_message"
    ORDERING = "message_ordering_violated"
    SENDING = "message_send_failure"
    RETRIES = "conn_retry_exceeded"


class SessionFailure(RemoteProtocolError):
    """Report that a session must be destroyed, and its connection closed without an answer."""

    def __init__(self, message: str, kind: FailureKind = FailureKind.INVALID_MESSAGE) -> None:
        super().__init__(message)
        self.kind = kind


class GapError(RemoteProtocolError):
    """Report that a connection lost a message: it must be closed, its session lives on."""
