"""Translate between error codes of the wire and the application's exceptions."""

from __future__ import annotations

from collections.abc import Callable

from ..exceptions import Side, StreamReset
from ..protocols.base import CODE_UNKNOWN
from ..runtime.logs import logger

__all__ = ["CodeToReason", "ErrorCodeMap", "ReasonToCode"]

CodeToReason = Callable[[int], BaseException]
ReasonToCode = Callable[[BaseException], int]

_log = logger("wsmux")


class ErrorCodeMap:
    """Hold the two functions that an application gives, and guard the codes that are not its own.

    Codes of the protocol itself never reach the functions. One that raises, or returns what it
    must not, is logged; code 0 is sent, and ``StreamReset`` with the received code is raised.
    """

    def __init__(
        self,
        first_application_code: int,
        last_code: int,
        code_to_reason: CodeToReason | None,
        reason_to_code: ReasonToCode | None,
    ) -> None:
        self._first = first_application_code
        self._last = last_code
        self._code_to_reason = code_to_reason
        self._reason_to_code = reason_to_code

    def error(self, stream_id: int, code: int, side: Side | None, detail: str) -> BaseException:
        """Return what a call on a stream that ended with ``code`` raises."""
        reset = StreamReset(stream_id, code, side, detail)
        if side != "remote" or code < self._first or self._code_to_reason is None:
            return reset
        try:
            reason = self._code_to_reason(code)
            if not isinstance(reason, BaseException):
                raise TypeError(f"code_to_reason returned {reason!r}, not an exception")
        except Exception:
            _log.exception("code_to_reason failed for code %d of stream %d", code, stream_id)
            return reset
        if reason.__cause__ is None:
            reason.__cause__ = reset
        return reason

    def code(self, reason: int | BaseException) -> int:
        """Return the code to send for what ``reset`` was given.

        Raises:
            ValueError: the number is reserved for the protocol, or no code at all.
        """
        if isinstance(reason, int):
            if not self._allowed(reason):
                text = f"a reset code is 0 or from {self._first} to {self._last}, not {reason}"
                raise ValueError(text)
            return reason
        if self._reason_to_code is None:
            return CODE_UNKNOWN
        try:
            code = self._reason_to_code(reason)
            if not self._allowed(code):
                raise ValueError(f"reason_to_code returned {code!r}, which is reserved")
        except Exception:
            _log.exception("reason_to_code failed for %r", reason)
            return CODE_UNKNOWN
        return code

    def _allowed(self, code: int) -> bool:
        return code == CODE_UNKNOWN or self._first <= code <= self._last
