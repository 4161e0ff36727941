"""Define the errors of the bus, and the codes that travel in error envelopes.

::

    WsmuxError
    └── BusError                        .code  .message  .twin
        ├── BadMessage                  bytes, or a frame, that are not an envelope
        ├── Replayed                    an envelope that was already accepted; never answered
        ├── TokenRefused                a connection refused for its token   .status  .reason
        ├── CallTimeout (TimeoutError)  no answer before the request expired
        └── TwinsUnavailable            no directory of twins could be asked

The codes are those of the reference peers. Code 0 marks errors raised by a relay, and by handlers
of the reference Go peer.
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

# A peer that answers with one of these has not run the command.
UNHANDLED = frozenset({EXPIRED, UNKNOWN_TWIN, BAD_SIGNATURE, NO_PUBLIC_KEY, E2E_FAILURE})

# Characters of a peer's text that an error repeats.
MAX_TEXT = 500


def one_line(text: str) -> str:
    """Return the start of an untrusted text on one line, with unprintable characters as spaces."""
    start = "".join(char if char.isprintable() else " " for char in text[:MAX_TEXT])
    return start if len(text) <= MAX_TEXT else f"{start}..."


class BusError(WsmuxError):
    """Report a message that failed, here or at the twin that was called.

    Raise it in a service function to answer with a code of your own; calls raise it for any error.
    ``str()`` of it is one line; ``message`` is unchanged.

    Args:
        code: one of the codes of this module, or the service's own.
        message: a sentence for people.
        twin: the other twin; ``None`` for a relay or this process.
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
    """Return the exception for an error envelope.

    Args:
        code: the code in the envelope.
        message: the text in the envelope.
        twin: the twin that sent it; ``None`` for a relay, which did not deliver the request.
    """
    safe = twin is None or code in UNHANDLED
    error = BusError(code, message, twin=twin, retry_safe=safe)
    error.side = "remote"
    return error


class BadMessage(BusError):
    """Report bytes that are not an envelope (101), or a frame that is not binary (100)."""

    def __init__(self, message: str, code: int = CANNOT_PARSE) -> None:
        super().__init__(code, message)
        self.side: Side | None = "remote"


class Replayed(BusError):
    """Report an envelope that was already accepted.

    Relays deliver at least once. Answering the copy with an error would fail the call that the
    first copy is being run for.
    """

    def __init__(self, message: str, twin: int) -> None:
        super().__init__(FAILED, message, twin=twin)
        self.side: Side | None = "remote"


class TokenRefused(BusError):
    """Report that a relay refused a connection for its token.

    Attributes:
        status: the HTTP status: 400 for no token, 401 for an invalid one, 500 if the relay could
            not check it.
        reason: a sentence, also the body of the HTTP response.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason, retry_safe=True)
        self.status = status
        self.reason = reason


class CallTimeout(BusError, TimeoutError):
    """Report that no answer came before the request expired.

    The command may have run, unless ``retry_safe`` is true: then no relay took the request.
    """

    def __init__(self, message: str, twin: int | None = None, *, retry_safe: bool = False) -> None:
        super().__init__(EXPIRED, message, twin=twin, retry_safe=retry_safe)


class TwinsUnavailable(BusError):
    """Report that no directory of twins could be asked; nothing was sent."""

    def __init__(self, message: str) -> None:
        super().__init__(FAILED, message, retry_safe=True)
