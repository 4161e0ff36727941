"""Map error codes of the wire to exceptions of the application, and back."""

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
    """Hold the two mapping functions of an application, and keep protocol codes from them.

    The codes of the protocol itself never reach the functions. If a function raises, or returns an
    invalid result, that is logged; then code 0 is sent, or ``StreamReset`` raised with the received
    code.
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
        """Return the exception to raise on a stream that ended with ``code``."""
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
        """Return the code to send for the argument of ``reset``.

        Raises:
            ValueError: the number is reserved for the protocol, or not a valid code.
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
