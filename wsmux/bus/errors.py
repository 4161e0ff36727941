"""Define the errors of the bus, and the codes that travel in error envelopes.

::

    WsmuxError
    └── BusError                        .code  .message  .twin
        ├── BadMessage                  bytes, or a frame, that are not an envelope
        ├── Replayed                    an envelope that was already accepted; never answered
        ├── RelayRefused                what a relay says of a request to itself
        │   ├── NameTaken               another twin has the name
        │   └── NobodyJoined            no worker has joined the name
        ├── TopicGap                    messages dropped before they were read; see ``wire.topics``
        ├── MessageRefused              a message that its publisher has not signed
        ├── TokenRefused                a connection refused for its token   .status  .reason
        ├── CallTimeout (TimeoutError)  no answer before the request expired
        └── TwinsUnavailable            no directory of twins could be asked

The codes are those of the reference peers. Code 0 marks errors raised by a relay, and by handlers
of the reference Go peer. From 400 on, except 500, they are those of relays of this package, which
answer requests to themselves with them; see ``relay.control``.
"""

from __future__ import annotations

from ..exceptions import Side, WsmuxError

__all__ = [
    "BAD_INPUT",
    "BAD_SIGNATURE",
    "CANNOT_PARSE",
    "E2E_FAILURE",
    "EXPIRED",
    "FAILED",
    "FROM_RELAY",
    "MESSAGE_EXPIRED",
    "NAME_TAKEN",
    "NOBODY_JOINED",
    "NOT_BINARY",
    "NO_PUBLIC_KEY",
    "TOO_MANY",
    "UNAVAILABLE",
    "UNKNOWN_COMMAND",
    "UNKNOWN_TWIN",
    "WORKERS_GONE",
    "BadMessage",
    "BusError",
    "CallTimeout",
    "NameTaken",
    "NobodyJoined",
    "RelayRefused",
    "Replayed",
    "TokenRefused",
    "TwinsUnavailable",
    "one_line",
    "relay_refused",
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

# Of relays: the request is wrong, nobody has joined the name, another twin has it, its workers have
# gone while the request waited, a bound is reached, no such command, try again later.
BAD_INPUT = 400
NOBODY_JOINED = 404
NAME_TAKEN = 409
WORKERS_GONE = 410
TOO_MANY = 429
UNKNOWN_COMMAND = 501
UNAVAILABLE = 503

# A peer that answers with one of these has not run the command.
UNHANDLED = frozenset({EXPIRED, UNKNOWN_TWIN, BAD_SIGNATURE, NO_PUBLIC_KEY, E2E_FAILURE})

# What relays say, with code 0, of a request that expired before its twin had read it.
MESSAGE_EXPIRED = "message has expired"

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
        twin: the twin that sent it; ``None`` for a relay, which did not deliver the request. That
            it expired there is a ``CallTimeout``: a connection that was lost may have had it.
    """
    if twin is None and (code, message) == (FROM_RELAY, MESSAGE_EXPIRED):
        late = CallTimeout(message)
        late.side = "remote"
        return late
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


class RelayRefused(BusError):
    """Report that a relay did not do what it was asked to do itself; ``code`` says why.

    Code 501 is that of a relay that does not know the command.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message, retry_safe=code not in (FAILED, WORKERS_GONE))
        self.side: Side | None = "remote"


class NameTaken(RelayRefused):
    """Report that a name belongs to another twin; the text says to which."""


class NobodyJoined(RelayRefused):
    """Report that no worker has joined a name, and none has left it a moment ago.

    With code 410, there were workers when the request was made: one of them may have run it.
    """


def relay_refused(code: int, message: str) -> RelayRefused:
    """Return the exception for what a relay refused."""
    if code == NAME_TAKEN:
        return NameTaken(code, message)
    if code in (NOBODY_JOINED, WORKERS_GONE):
        return NobodyJoined(code, message)
    return RelayRefused(code, message)


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
