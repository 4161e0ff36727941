"""Define every error that wsmux raises.

::

    WsmuxError                                .side  .retry_safe
    ├── ProtocolError                         .code
    │   ├── LocalProtocolError                this side requested something illegal
    │   │   └── StreamsExhausted              no stream id is left: open another connection
    │   └── RemoteProtocolError               the peer broke the rules; the connection ends
    │       ├── FrameError                    an invalid message or frame
    │       ├── FlowControlError              more bytes, or more credit, than allowed
    │       └── StreamIdError                 a stream id that is not valid there
    ├── HandshakeError                        upgrade, origin or subprotocol refused   .status
    ├── ConnectionClosed (ConnectionError)    .code  .reason
    │   ├── ConnectionClosedOK                closed with 1000 or 1001
    │   └── ConnectionClosedError             closed with anything else, or lost
    │       └── ResumeLost                    a resumable one  .acknowledged  .unacknowledged
    ├── StreamError                           .stream_id
    │   ├── StreamReset (ConnectionResetError)     .code
    │   ├── StreamWriteClosed (BrokenPipeError)    the peer has stopped reading
    │   └── StreamRefused                          .code; the peer processed none of it
    ├── WriteTimeout (TimeoutError)           .bytes_written
    ├── ConcurrencyError                      a second reader or writer on one stream
    ├── NoThreadError (RuntimeError)          a thread could not be started
    └── ForkedError                           the object belongs to the parent process

Timeouts raise the builtin ``TimeoutError``; a write that times out raises its subclass
``WriteTimeout``, which holds the number of bytes taken. Using an object after its own ``close()``
raises ``ValueError``, as with any file. A lost connection is never reported as end of file.

``side`` is ``"local"`` when this process caused the error, ``"remote"`` when the peer did, and
``None`` when it cannot be determined. ``retry_safe`` is true only if the peer is known to have
processed none of the work. Every error can be pickled, with its fields and notes.

``CloseCode`` names the codes with which a connection closes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Literal

__all__ = [
    "CloseCode",
    "ConcurrencyError",
    "ConnectionClosed",
    "ConnectionClosedError",
    "ConnectionClosedOK",
    "FlowControlError",
    "ForkedError",
    "FrameError",
    "HandshakeError",
    "LocalProtocolError",
    "NoThreadError",
    "ProtocolError",
    "RemoteProtocolError",
    "ResumeLost",
    "StreamError",
    "StreamIdError",
    "StreamRefused",
    "StreamReset",
    "StreamWriteClosed",
    "StreamsExhausted",
    "WriteTimeout",
    "WsmuxError",
    "closed_error",
    "fresh_copy",
    "protocol_failure",
]

Side = Literal["local", "remote"]


class CloseCode(IntEnum):
    """Name the WebSocket close codes that wsmux sends or describes.

    A peer may send others, such as those of an application (3000 to 4999), so the ``code`` of an
    error is a plain ``int``; compare it with these members, which are ``int`` too.
    """

    NORMAL_CLOSURE = 1000
    """The peer has finished, or ``close()`` was called (RFC 6455 section 7.4.1)."""
    GOING_AWAY = 1001
    """A server is shutting down, or a client is leaving (RFC 6455 section 7.4.1)."""
    PROTOCOL_ERROR = 1002
    """The peer violated the protocol (RFC 6455 section 7.4.1)."""
    UNSUPPORTED_DATA = 1003
    """A text message where only binary ones are allowed (RFC 6455 section 7.4.1)."""
    NO_STATUS_RCVD = 1005
    """The peer closed without a code; never sent (RFC 6455 section 7.4.1)."""
    ABNORMAL_CLOSURE = 1006
    """The connection ended without a close frame; never sent (RFC 6455 section 7.4.1)."""
    INVALID_DATA = 1007
    """Inconsistent data, such as text that is not UTF-8 (RFC 6455 section 7.4.1)."""
    POLICY_VIOLATION = 1008
    """The peer exceeded a limit, or is not allowed to do this (RFC 6455 section 7.4.1)."""
    MESSAGE_TOO_BIG = 1009
    """A message larger than ``Config.max_message_size`` (RFC 6455 section 7.4.1)."""
    MANDATORY_EXTENSION = 1010
    """The server's answer lacks an extension that the client needs (RFC 6455 section 7.4.1)."""
    INTERNAL_ERROR = 1011
    """The closing side failed, for example because a handler raised (RFC 6455 section 7.4.1)."""
    SERVICE_RESTART = 1012
    """The server is restarting (IANA registry of WebSocket close codes)."""
    TRY_AGAIN_LATER = 1013
    """The server is overloaded, or the peer too slow (IANA registry of WebSocket close codes)."""
    BAD_GATEWAY = 1014
    """The server at the far end of a bridge failed (IANA registry of WebSocket close codes)."""
    TAKEN_OVER = 4001
    """A newer connection took over the session of the bus; private use (RFC 6455 section 7.4.2)."""


_CLOSE_MEANINGS: dict[int, str] = {
    CloseCode.NORMAL_CLOSURE: "normal closure",
    CloseCode.GOING_AWAY: "going away",
    CloseCode.PROTOCOL_ERROR: "protocol error",
    CloseCode.UNSUPPORTED_DATA: "unsupported data",
    CloseCode.NO_STATUS_RCVD: "no code given",
    CloseCode.ABNORMAL_CLOSURE: "connection lost without a closing message",
    CloseCode.INVALID_DATA: "invalid data",
    CloseCode.POLICY_VIOLATION: "policy violation",
    CloseCode.MESSAGE_TOO_BIG: "message too big",
    CloseCode.MANDATORY_EXTENSION: "extension required",
    CloseCode.INTERNAL_ERROR: "internal error",
    CloseCode.SERVICE_RESTART: "service restart",
    CloseCode.TRY_AGAIN_LATER: "try again later",
    CloseCode.BAD_GATEWAY: "bad gateway",
}

# RFC 6455 section 7.4.1: the peer has finished or is going away. Any other code is a failure.
CLEAN_CODES: frozenset[int] = frozenset({CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY})


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class WsmuxError(Exception):
    """The base class of all errors in this package."""

    side: Side | None = None
    retry_safe: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class ProtocolError(WsmuxError):
    """Report a protocol violation.

    Args:
        message: one sentence that names the rule.
        code: the matching WebSocket close code.
    """

    def __init__(self, message: str, code: int = CloseCode.PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code: int = int(code)


class LocalProtocolError(ProtocolError):
    """Report that this side requested something that the protocol does not allow."""

    side: Side | None = "local"


class StreamsExhausted(LocalProtocolError):
    """Report that this side has used all stream ids of its wire, 2^``bits`` of them.

    Open streams continue, and the peer may still open streams. Nothing was sent, so the stream can
    safely be opened over another connection.
    """

    retry_safe = True

    def __init__(self, bits: int) -> None:
        super().__init__(
            f"all 2^{bits} stream ids of this side are used up; further streams need another "
            f"connection, and this one can be closed when those that are open have ended"
        )
        self.bits = bits


class RemoteProtocolError(ProtocolError):
    """Report that the peer violated the protocol; the connection ends with ``code``.

    ``ended_by`` is ``"remote"`` if the peer itself ended the connection because of a failure.
    """

    side: Side | None = "remote"

    def __init__(
        self, message: str, code: int = CloseCode.PROTOCOL_ERROR, ended_by: Side = "local"
    ) -> None:
        super().__init__(message, code)
        self.ended_by: Side = ended_by


class FrameError(RemoteProtocolError):
    """Report a message or frame that cannot be parsed."""


class FlowControlError(RemoteProtocolError):
    """Report bytes beyond the granted credit, or credit beyond the range of the protocol."""


class StreamIdError(RemoteProtocolError):
    """Report a stream id that the peer may not use in this place."""


class HandshakeError(WsmuxError):
    """Report a failed handshake: the upgrade, origin or subprotocol was refused.

    ``status`` is the HTTP status of the refusal, ``None`` if there was none; ``retry_after`` are
    the seconds after which the server wants to be asked again, if it has said so. No stream data
    was sent, so a retry is safe.
    """

    retry_safe = True

    def __init__(
        self, message: str, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class ConnectionClosed(WsmuxError, ConnectionError):
    """Report that the connection has ended, with its close code and reason."""

    def __init__(self, code: int, reason: str = "", side: Side | None = None) -> None:
        who = {"local": " by this side", "remote": " by the peer", None: ""}[side]
        meaning = _CLOSE_MEANINGS.get(code, "private use" if code >= 3000 else "unknown")
        text = f"connection closed{who} with code {code} ({meaning})"
        super().__init__(f"{text}: {reason}" if reason else text)
        self.code: int = int(code)
        self.reason = reason
        self.side: Side | None = side


class ConnectionClosedOK(ConnectionClosed):
    """Report a connection that ended cleanly, with code 1000 or 1001."""


class ConnectionClosedError(ConnectionClosed):
    """Report a connection that was lost or closed because of a failure."""


class ResumeLost(ConnectionClosedError):
    """Report that a resumable connection is lost for good.

    No carrier came in time, or nothing got through those that did. Its peer may have received more
    than it has acknowledged.

    Attributes:
        acknowledged: the bytes of the wire, with its headers, that the peer has acknowledged.
        unacknowledged: those sent and not acknowledged.
    """

    def __init__(
        self, reason: str, acknowledged: int, unacknowledged: int, side: Side | None = None
    ) -> None:
        super().__init__(
            CloseCode.ABNORMAL_CLOSURE,
            f"the session is lost: {reason}; {acknowledged} bytes were acknowledged by the peer, "
            f"{unacknowledged} more were sent",
            side,
        )
        self.why = reason
        self.acknowledged = acknowledged
        self.unacknowledged = unacknowledged


def closed_error(code: int, reason: str = "", side: Side | None = None) -> ConnectionClosed:
    """Return the error of the class that matches a close code."""
    cls = ConnectionClosedOK if code in CLEAN_CODES else ConnectionClosedError
    return cls(code, reason, side)


def protocol_failure(failure: RemoteProtocolError) -> ConnectionClosed:
    """Return the error of a connection that ended because of ``failure``."""
    error = closed_error(failure.code, str(failure), failure.ended_by)
    # Without its traceback, whose frames refer to the connection: only the garbage collector could
    # free that cycle.
    error.__cause__ = failure.with_traceback(None)
    return error


def fresh_copy(error: WsmuxError) -> WsmuxError:
    """Return a copy of the error that ended a connection, so that threads share no traceback."""
    if isinstance(error, ResumeLost):
        return ResumeLost(error.why, error.acknowledged, error.unacknowledged, error.side)
    if isinstance(error, ConnectionClosed):
        return type(error)(error.code, error.reason, error.side)
    return type(error)(*error.args)


class StreamError(WsmuxError):
    """The base class of errors that concern one stream; the connection continues."""

    def __init__(self, message: str, stream_id: int) -> None:
        super().__init__(message)
        self.stream_id = stream_id


class StreamReset(StreamError, ConnectionResetError):
    """Report a stream that was reset with a code; unread bytes are lost and none can be sent."""

    def __init__(self, stream_id: int, code: int, side: Side | None, detail: str = "") -> None:
        who = {"local": "this side", "remote": "the peer", None: "the connection"}[side]
        text = f"stream {stream_id} was reset by {who} with code {code}"
        super().__init__(f"{text}: {detail}" if detail else text, stream_id)
        self.code = code
        self.side: Side | None = side


class StreamWriteClosed(StreamError, BrokenPipeError):
    """Report a write to a stream whose peer has stopped reading without an error."""

    side: Side | None = "remote"

    def __init__(self, stream_id: int) -> None:
        super().__init__(f"the peer has stopped reading stream {stream_id}", stream_id)


class StreamRefused(StreamError):
    """Report a stream that the peer refused; opening another one later is safe."""

    side: Side | None = "remote"
    retry_safe = True

    def __init__(self, stream_id: int, code: int, detail: str = "") -> None:
        text = f"stream {stream_id} was refused by the peer with code {code}"
        super().__init__(f"{text}: {detail}" if detail else text, stream_id)
        self.code = code


class WriteTimeout(WsmuxError, TimeoutError):
    """Report a write that timed out after the stream took ``bytes_written`` bytes.

    The stream is still consistent: write the rest, from ``bytes_written`` on, to continue.
    """

    side: Side | None = "local"

    def __init__(self, stream_id: int, bytes_written: int, size: int) -> None:
        super().__init__(
            f"write to stream {stream_id} timed out after {bytes_written} of {size} bytes; "
            f"write the rest to go on, or reset the stream"
        )
        self.stream_id = stream_id
        self.bytes_written = bytes_written


class ConcurrencyError(WsmuxError):
    """Report a second thread that reads, or writes, a stream while another one does."""

    side: Side | None = "local"


class NoThreadError(WsmuxError, RuntimeError):
    """Report that a thread could not be started.

    The system has none left, or the interpreter is exiting: from then on CPython 3.12 starts none,
    so open whatever ``atexit`` functions need beforehand. An isolated sub-interpreter never has
    any.
    """

    side: Side | None = "local"


class ForkedError(WsmuxError):
    """Report an object used in a forked child; it is valid only in the parent process."""

    side: Side | None = "local"
