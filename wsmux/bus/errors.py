"""Name what can go wrong on the bus, and the codes that travel in error envelopes.

::

    WsmuxError
    └── BusError                        .code  .message  .twin
        ├── BadMessage                  bytes, or a frame, that are no envelope
        ├── Replayed                    an envelope that was accepted before; never answered
        ├── TokenRefused                a connection refused for its token   .status  .reason
        ├── CallTimeout (TimeoutError)  no answer before the request expired
        └── TwinsUnavailable            no directory of twins could be asked

The codes are those of the known peers. Code 0 stands for errors raised by a relay, and for those of
handlers of the Go peer.
"""

from __future__ import annotations

from ..exceptions import Side, WsmuxError

__all__ = [
    "BAD_SIGNATURE",
    "CANNOT_PARSE",
    "E2E_FAILURE",
    "EXPIRED",
    "FAILED",
    "FROM_RELAY",
    "NOT_BINARY",
    "NO_PUBLIC_KEY",
    "UNKNOWN_TWIN",
    "BadMessage",
    "BusError",
    "CallTimeout",
    "Replayed",
    "TokenRefused",
    "TwinsUnavailable",
    "one_line",
    "remote_error",
]

FROM_RELAY = 0
NOT_BINARY = 100
CANNOT_PARSE = 101
EXPIRED = 102
UNKNOWN_TWIN = 103
BAD_SIGNATURE = 104
NO_PUBLIC_KEY = 105
E2E_FAILURE = 106
FAILED = 500

# A peer that answers so has not looked at the command.
UNHANDLED = frozenset({EXPIRED, UNKNOWN_TWIN, BAD_SIGNATURE, NO_PUBLIC_KEY, E2E_FAILURE})

# Characters of a foreign text that an error repeats.
MAX_TEXT = 500


def one_line(text: str) -> str:
    """Return what people may read of a text that anybody may have written."""
    start = "".join(char if char.isprintable() else " " for char in text[:MAX_TEXT])
    return start if len(text) <= MAX_TEXT else f"{start}..."


class BusError(WsmuxError):
    """Report a message that failed, here or at the twin that was asked.

    A handler raises it to answer with a code of its own; a client's call raises it for any error.
    Its text is one line; ``message`` is untouched.

    Args:
        code: what tells errors apart; see the head of this module.
        message: a sentence for people.
        twin: the other twin, where there is one; ``None`` for a relay or this process.
        retry_safe: whether the command is known not to have run.
    """

    def __init__(
        self, code: int, message: str, *, twin: int | None = None, retry_safe: bool = False
    ) -> None:
        where = "" if twin is None else f", twin {twin}"
        again = "a retry is safe" if retry_safe else "a retry may repeat the work"
        super().__init__(f"{one_line(message)} (code {code}{where}; {again})")
        self.code = code
        self.message = message
        self.twin = twin
        self.retry_safe = retry_safe


def remote_error(code: int, message: str, twin: int | None) -> BusError:
    """Return the error that an error envelope tells of.

    Args:
        code: its code.
        message: its text.
        twin: the twin that sent it; ``None`` for a relay, which did not deliver the request.
    """
    safe = twin is None or code in UNHANDLED
    error = BusError(code, message, twin=twin, retry_safe=safe)
    error.side = "remote"
    return error


class BadMessage(BusError):
    """Report bytes that are no envelope (101), or a frame that is not binary (100)."""

    def __init__(self, message: str, code: int = CANNOT_PARSE) -> None:
        super().__init__(code, message)
        self.side: Side | None = "remote"


class Replayed(BusError):
    """Report an envelope that was accepted before.

    Relays deliver at least once. To answer would fail the call that the first copy serves.
    """

    def __init__(self, message: str, twin: int) -> None:
        super().__init__(FAILED, message, twin=twin)
        self.side: Side | None = "remote"


class TokenRefused(BusError):
    """Report that a relay takes no connection with this token.

    Attributes:
        status: the HTTP status: 400 for none, 401 for a bad one, 500 if nobody could tell.
        reason: a sentence, and the body of the HTTP answer.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason, retry_safe=True)
        self.status = status
        self.reason = reason


class CallTimeout(BusError, TimeoutError):
    """Report that no answer came before the request expired.

    It may have been handled, unless ``retry_safe``: then no relay took it.
    """

    def __init__(self, message: str, twin: int | None = None, *, retry_safe: bool = False) -> None:
        super().__init__(EXPIRED, message, twin=twin, retry_safe=retry_safe)


class TwinsUnavailable(BusError):
    """Report that no directory of twins could be asked; nothing was sent."""

    def __init__(self, message: str) -> None:
        super().__init__(FAILED, message, retry_safe=True)
