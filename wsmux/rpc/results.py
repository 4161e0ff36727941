"""Build and read the payloads that every call has: results, and the message that closes a half."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import CANCEL, RiverError

__all__ = [
    "INVALID_CANCEL",
    "CLOSE_PAYLOAD",
    "NotAResult",
    "error_result",
    "is_close",
    "read_cancel",
    "read_result",
    "result",
]

CLOSE_PAYLOAD = {"type": "CLOSE"}

INVALID_CANCEL = "stream cancelled with invalid payload"


class NotAResult(ValueError):
    """Report a payload that is neither a result nor the end of a half."""


def is_close(payload: Any) -> bool:
    """Tell whether a payload only closes a half."""
    return isinstance(payload, Mapping) and payload.get("type") == "CLOSE" and "ok" not in payload


def result(value: Any) -> dict[str, Any]:
    """Return what carries a response."""
    return {"ok": True, "payload": value}


def error_result(error: RiverError) -> dict[str, Any]:
    """Return what carries an error."""
    return {"ok": False, "payload": error.payload()}


def read_result(payload: Any) -> Any:
    """Return the response that a payload carries, or the ``RiverError``.

    Raises:
        NotAResult: it carries neither.
    """
    if isinstance(payload, Mapping):
        if payload.get("ok") is True and "payload" in payload:
            return payload["payload"]
        error = payload.get("payload")
        if payload.get("ok") is False and isinstance(error, Mapping):
            code, message = error.get("code"), error.get("message")
            if isinstance(code, str) and isinstance(message, str):
                return RiverError.from_payload(error)
    raise NotAResult("the payload is no result")


def read_cancel(payload: Any) -> RiverError:
    """Return the error that a cancelling message carries, or CANCEL if it carries none."""
    try:
        error = read_result(payload)
    except NotAResult:
        error = None
    if isinstance(error, RiverError):
        return error
    return RiverError(CANCEL, INVALID_CANCEL)
