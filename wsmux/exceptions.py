"""Define every error that wsmux raises.

::

    WsmuxError                                .side  .retry_safe
    ├── ProtocolError                         .code
    │   ├── LocalProtocolError                this side asked for something illegal
    │   │   └── StreamsExhausted              no stream id is left: open a further connection
    │   └── RemoteProtocolError               the peer broke the rules; the connection ends
    │       ├── FrameError                    a message that cannot be read
    │       ├── FlowControlError              more bytes, or more credit, than allowed
    │       └── StreamIdError                 a stream id that cannot stand there
    ├── HandshakeError                        upgrade, origin or subprotocol refused   .status
    ├── ConnectionClosed (ConnectionError)    .code  .reason
    │   ├── ConnectionClosedOK                closed with 1000 or 1001
    │   └── ConnectionClosedError             closed with anything else, or lost
    ├── StreamError                           .stream_id
    │   ├── StreamReset (ConnectionResetError)     .code
    │   ├── StreamWriteClosed (BrokenPipeError)    the peer reads no further
    │   └── StreamRefused                          .code; the peer handled nothing of it
    ├── WriteTimeout (TimeoutError)           .bytes_written
    ├── ConcurrencyError                      a second reader or writer on one stream
    ├── NoThreadError (RuntimeError)          no thread: the system has none, or Python is exiting
    └── ForkedError                           the object belongs to the parent process

Timeouts are the builtin ``TimeoutError``; a write that runs out of time raises its subclass
``WriteTimeout``, which tells how many bytes the stream took. Using an object after its own
``close()`` raises ``ValueError``, as for every file. A dead connection is never an end of file.

``side`` is ``"local"`` when this process caused the error, ``"remote"`` when the peer did and
``None`` when nobody can tell. ``retry_safe`` is true only when the peer is known to have handled
nothing of the work. Every error can be pickled, with its fields and notes.

``CloseCode`` names the codes that a connection ends with.
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
    """Name the close codes of WebSocket that wsmux sends, or puts into words.

    Every code is also an ``int``. A peer may send others, such as those of an application (3000 to
    4999), so the ``code`` of an error is a plain ``int``; compare it with these names.
    """

    NORMAL_CLOSURE = 1000
    """The peer has finished, or ``close()`` was called (RFC 6455 section 7.4.1)."""
    GOING_AWAY = 1001
    """A server stops, or a client leaves (RFC 6455 section 7.4.1)."""
    PROTOCOL_ERROR = 1002
    """The peer broke a rule of the protocol (RFC 6455 section 7.4.1)."""
    UNSUPPORTED_DATA = 1003
    """A text message where messages are binary (RFC 6455 section 7.4.1)."""
    NO_STATUS_RCVD = 1005
    """The peer closed without a code; never sent (RFC 6455 section 7.4.1)."""
    ABNORMAL_CLOSURE = 1006
    """The connection ended without a closing message; never sent (RFC 6455 section 7.4.1)."""
    INVALID_DATA = 1007
    """Bytes of the wrong kind, as text that is not UTF-8 (RFC 6455 section 7.4.1)."""
    POLICY_VIOLATION = 1008
    """The peer went beyond a limit, or may not do this (RFC 6455 section 7.4.1)."""
    MESSAGE_TOO_BIG = 1009
    """A message above ``Config.max_message_size`` (RFC 6455 section 7.4.1)."""
    MANDATORY_EXTENSION = 1010
    """A client misses an extension in the server's answer (RFC 6455 section 7.4.1)."""
    INTERNAL_ERROR = 1011
    """The side that closes has failed, as a handler that raises (RFC 6455 section 7.4.1)."""
    SERVICE_RESTART = 1012
    """The server restarts (IANA registry of WebSocket close codes)."""
    TRY_AGAIN_LATER = 1013
    """The server is overloaded, or the peer too slow (IANA registry of WebSocket close codes)."""
    BAD_GATEWAY = 1014
    """The server after a bridge has failed (IANA registry of WebSocket close codes)."""
    TAKEN_OVER = 4001
    """A newer connection has the session of the bus; for private use (RFC 6455 section 7.4.2)."""


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

# RFC 6455 section 7.4.1: a peer that is done or going away; everything else is a failure.
CLEAN_CODES: frozenset[int] = frozenset({CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY})


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class WsmuxError(Exception):
    """The base of every error of this package."""

    side: Side | None = None
    retry_safe: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class ProtocolError(WsmuxError):
    """Report a broken rule of a protocol.

    Args:
        message: one sentence that names the rule.
        code: the WebSocket close code that goes with it.
    """

    def __init__(self, message: str, code: int = CloseCode.PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code: int = int(code)


class LocalProtocolError(ProtocolError):
    """Report that this side asked for something the protocol does not allow."""

    side: Side | None = "local"


class StreamsExhausted(LocalProtocolError):
    """Report that a side has opened as many streams as its wire has ids, 2^``bits`` of them.

    Streams that are open go on, and the peer may open further ones. Nothing was sent, so opening
    the stream over another connection is safe.
    """

    retry_safe = True

    def __init__(self, bits: int) -> None:
        super().__init__(
            f"all 2^{bits} stream ids of this side are used up; further streams need another "
            f"connection, and this one can be closed when those that are open have ended"
        )
        self.bits = bits


class RemoteProtocolError(ProtocolError):
    """Report that the peer broke the rules; the connection ends with ``code``.

    ``ended_by`` is ``"remote"`` when it is the peer that ended the connection for a failure.
    """

    side: Side | None = "remote"

    def __init__(
        self, message: str, code: int = CloseCode.PROTOCOL_ERROR, ended_by: Side = "local"
    ) -> None:
        super().__init__(message, code)
        self.ended_by: Side = ended_by


class FrameError(RemoteProtocolError):
    """Report a message or frame that cannot be read."""


class FlowControlError(RemoteProtocolError):
    """Report bytes beyond the credit given, or credit beyond what the wire can count."""


class StreamIdError(RemoteProtocolError):
    """Report a stream id that the peer may not use there."""


class HandshakeError(WsmuxError):
    """Report that no connection came about: refused upgrade, origin or subprotocol.

    ``status`` is the HTTP status that refused, or ``None`` when there was none. Nothing was sent
    over a stream, so a retry is safe.
    """

    retry_safe = True

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ConnectionClosed(WsmuxError, ConnectionError):
    """Report that the whole connection has ended, with the close code and reason."""

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
    """Report a connection that was lost or closed for a failure."""


def closed_error(code: int, reason: str = "", side: Side | None = None) -> ConnectionClosed:
    """Return the error of the class that belongs to a close code."""
    cls = ConnectionClosedOK if code in CLEAN_CODES else ConnectionClosedError
    return cls(code, reason, side)


def protocol_failure(failure: RemoteProtocolError) -> ConnectionClosed:
    """Return the end of a connection whose peer broke ``failure``'s rule, or gave it up."""
    error = closed_error(failure.code, str(failure), failure.ended_by)
    # Without its frames, which lead to what it ended: memory would wait for the garbage collector.
    error.__cause__ = failure.with_traceback(None)
    return error


def fresh_copy(error: WsmuxError) -> WsmuxError:
    """Return a copy of what ended a connection, so that threads do not share one traceback."""
    if isinstance(error, ConnectionClosed):
        return type(error)(error.code, error.reason, error.side)
    return type(error)(*error.args)


class StreamError(WsmuxError):
    """The base of the errors that concern one stream; the connection goes on."""

    def __init__(self, message: str, stream_id: int) -> None:
        super().__init__(message)
        self.stream_id = stream_id


class StreamReset(StreamError, ConnectionResetError):
    """Report a stream aborted with a code: unread bytes are gone, no more can be sent."""

    def __init__(self, stream_id: int, code: int, side: Side | None, detail: str = "") -> None:
        who = {"local": "this side", "remote": "the peer", None: "the connection"}[side]
        text = f"stream {stream_id} was reset by {who} with code {code}"
        super().__init__(f"{text}: {detail}" if detail else text, stream_id)
        self.code = code
        self.side: Side | None = side


class StreamWriteClosed(StreamError, BrokenPipeError):
    """Report a write to a stream whose peer has said, without an error, that it reads no more."""

    side: Side | None = "remote"

    def __init__(self, stream_id: int) -> None:
        super().__init__(f"the peer has stopped reading stream {stream_id}", stream_id)


class StreamRefused(StreamError):
    """Report a stream that the peer did not take; opening another one later is safe."""

    side: Side | None = "remote"
    retry_safe = True

    def __init__(self, stream_id: int, code: int, detail: str = "") -> None:
        text = f"stream {stream_id} was refused by the peer with code {code}"
        super().__init__(f"{text}: {detail}" if detail else text, stream_id)
        self.code = code


class WriteTimeout(WsmuxError, TimeoutError):
    """Report a write that ran out of time after the stream took ``bytes_written`` bytes.

    The stream stays exact: writing the rest, from ``bytes_written`` on, continues it.
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
    """Report that a thread could not be started, so that what needs one did not come about.

    The system has none to give; or the interpreter is exiting, when CPython 3.12 starts none: what
    ``atexit`` functions need is to be opened before. An isolated sub-interpreter never has any.
    """

    side: Side | None = "local"


class ForkedError(WsmuxError):
    """Report an object used in a forked child; it lives on in the parent process only."""

    side: Side | None = "local"
