"""Define the errors of calls and sessions, and the codes reserved for the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from ..exceptions import RemoteProtocolError, WsmuxError

__all__ = [
    "CANCEL",
    "DEADLINE_EXCEEDED",
    "INVALID_REQUEST",
    "READABLE_BROKEN",
    "RESERVED_CODES",
    "UNCAUGHT_ERROR",
    "UNEXPECTED_DISCONNECT",
    "FailureKind",
    "GapError",
    "RiverError",
    "SessionFailure",
]

# The first three are sent with the cancel flag; the others are made by the receiving side.
INVALID_REQUEST = "INVALID_REQUEST"
UNCAUGHT_ERROR = "UNCAUGHT_ERROR"
CANCEL = "CANCEL"
UNEXPECTED_DISCONNECT = "UNEXPECTED_DISCONNECT"
READABLE_BROKEN = "READABLE_BROKEN"

# Sent with the cancel flag, beyond the specification, and only to a client that said how long it
# waits: the server has ended the call because that time is up. No caller sees it: the calls of such
# a client raise ``TimeoutError``, whichever side was first.
DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"

RESERVED_CODES = frozenset(
    {INVALID_REQUEST, UNCAUGHT_ERROR, CANCEL, UNEXPECTED_DISCONNECT, READABLE_BROKEN}
)


class RiverError(WsmuxError):
    """Report the error result of a call: one that the procedure declares, or the protocol's own.

    A handler raises it to answer with a declared error; a client's call raises it for any error.

    Attributes:
        code: identifies the error.
        message: a sentence for people.
        extra: data added by the procedure, or ``None``.
    """

    def __init__(self, code: str, message: str = "", extra: Any = None) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.extra = extra

    def payload(self) -> dict[str, Any]:
        """Return the error as sent; on the wire, ``extra`` is named ``extras``."""
        fields = {"code": self.code, "message": self.message}
        return fields if self.extra is None else {**fields, "extras": self.extra}

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> RiverError:
        """Return the error in a well-formed payload."""
        extra = payload.get("extras", payload.get("extra"))
        return cls(payload["code"], payload["message"], extra)


class FailureKind(StrEnum):
    """Classify failures like the ``protocolError`` events of the TypeScript implementation."""

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
    """Report that a connection lost a message: it must be closed, but its session continues."""
