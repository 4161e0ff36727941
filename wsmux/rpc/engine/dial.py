"""Make the transports of sessions: WebSockets, plain sockets, streams of a connection.

A WebSocket carries each River message in a message of its own, without a subprotocol; the others
prefix each message with its length. Two threads connect a stream to one end of a socket pair, so
that one kind of transport serves all.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from ...config import KIB, Config
from ...exceptions import (
    CloseCode,
    ConnectionClosed,
    HandshakeError,
    NoThreadError,
    WsmuxError,
)
from ...handshake.headers import check_options, header_lines
from ...handshake.tcp import connect_tcp, is_tcp
from ...handshake.websocket_client import shake_hands
from ...mux.connection import Connection
from ...mux.stream import Stream
from ...protocols.base import Role
from ...protocols.framing import LengthFraming
from ...protocols.websocket import WebSocketFraming
from ...runtime.deadline import Deadline
from ...runtime.hints import check_url, not_connected
from ...runtime.logs import logger
from ...runtime.threads import daemon_thread, start_thread
from ...transport.message_transport import MessageTransport, message_transport
from ...transport.message_transport import hang_up as end_messages

__all__ = [
    "Dialler",
    "Gone",
    "Headers",
    "Target",
    "channel_over",
    "cut_by_size",
    "dialler",
    "hang_up",
    "socket_over",
]

Target = str | Connection | Stream | socket.socket | Callable[[], Stream | socket.socket]

Headers = Mapping[str, str] | Sequence[str]

# Returns a new transport within a deadline on each call; may raise anything.
Dialler = Callable[[Deadline], MessageTransport]

CHUNK = 64 * KIB


# Seconds for the closing handshake of a WebSocket: River does not depend on it.
CLOSE_TIMEOUT = 1.0

_log = logger("wsmux.rpc")


def channel_over(
    sock: socket.socket, role: Role, max_size: int, websocket: bool
) -> MessageTransport:
    """Return a transport for messages of at most ``max_size`` bytes; River has its own pings."""
    framing = WebSocketFraming(role, max_size) if websocket else LengthFraming(max_size)
    return message_transport(sock, framing, role, close_timeout=CLOSE_TIMEOUT)


def cut_by_size(channel: MessageTransport) -> tuple[str, bool] | None:
    """Return why a message was too large for either end, if that ended the transport.

    The second value is whether this side sent the message.
    """
    error = channel.error
    if not isinstance(error, ConnectionClosed) or error.code != CloseCode.MESSAGE_TOO_BIG:
        return None
    return error.reason or "it was closed with code 1009", error.side == "remote"


def hang_up(channel: MessageTransport, sends_for: Deadline | None = None) -> None:
    """Start closing a transport, with the one code that River uses for all causes.

    What is queued has until ``sends_for``; by default a second, the closing handshake included.
    """
    end_messages(channel, CloseCode.NORMAL_CLOSURE, "", sends_for)


def dialler(
    target: Target,
    max_size: int,
    *,
    headers: Headers | Callable[[], Headers] | None,
    ssl_context: ssl.SSLContext | None,
    options: dict[str, Any],
) -> Dialler:
    """Return a function that connects to a target.

    Raises:
        ValueError: the target is not a valid address, or a header is invalid.
        TypeError: the headers are neither a mapping nor a collection of lines, or there is no such
            option.
    """
    if not callable(headers):
        lines = header_lines(headers)
        # A mapping is read again for each attempt, anything else once.
        headers = headers if isinstance(headers, Mapping) else lines
    check_options(options)
    if isinstance(target, Connection):
        return lambda deadline: _over_stream(target.open_stream(deadline.remaining()), max_size)
    if isinstance(target, Stream | socket.socket):
        return _Once(target, max_size)
    if not isinstance(target, str):
        if callable(target) and not isinstance(target, type):
            return _Made(target, max_size)
        kind = type(target).__name__
        raise TypeError(
            "expected a URL, a Connection, a Stream, a socket or a function that makes one, "
            f"not {kind}"
        )
    parts = urlsplit(target)
    if parts.scheme == "unix":
        return lambda deadline: _over_unix(unquote(parts.path), max_size, deadline)
    url = check_url(target, "ws", "wss", "tcp", "unix")
    if is_tcp(url):

        def tcp(deadline: Deadline) -> MessageTransport:
            sock = connect_tcp(url, ssl_context, deadline)
            return channel_over(sock, Role.CLIENT, max_size, websocket=False)

        return tcp
    if ssl_context is not None:
        options = {**options, "sslopt": {**options.get("sslopt", {}), "context": ssl_context}}

    def websocket(deadline: Deadline) -> MessageTransport:
        sock, _ = shake_hands(
            url,
            subprotocols=(),
            headers=_made(headers),
            deadline=deadline,
            max_size=Config().max_handshake_size,
            options=options,
        )
        return channel_over(sock, Role.CLIENT, max_size, websocket=True)

    return websocket


def _made(headers: Headers | Callable[[], Headers] | None) -> list[str]:
    """Return the header lines of an attempt."""
    try:
        made = headers() if callable(headers) else headers
    except BaseException as error:  # even SystemExit; its text may contain a secret
        text = f"the headers could not be made: {type(error).__name__}"
        raise HandshakeError(text) from error
    try:
        return header_lines(made)
    except (TypeError, ValueError) as error:
        said = (
            "the function given for headers returned what cannot be sent"
            if callable(headers)
            else "the headers cannot be sent any more"
        )
        raise HandshakeError(f"{said}: {error}") from error


class _Made:
    """Let the application make a stream or socket for each attempt."""

    def __init__(self, make: Callable[[], Stream | socket.socket], max_size: int) -> None:
        self._make = make
        self._max_size = max_size

    def __call__(self, deadline: Deadline) -> MessageTransport:
        try:
            made = self._make()
        except (OSError, WsmuxError):
            raise
        except Exception as error:
            _log.exception("the function that connects has failed")
            raise ConnectionError(f"the function that connects has failed: {error!r}") from error
        if isinstance(made, Stream):
            return _over_stream(made, self._max_size)
        if isinstance(made, socket.socket):
            return channel_over(made, Role.CLIENT, self._max_size, websocket=False)
        kind = type(made).__name__
        raise ConnectionError(f"the function that connects returned a {kind}, no socket or stream")


class Gone(ConnectionRefusedError):
    """Report that the stream or socket has been used up."""


class _Once:
    """Return an existing stream or socket once; it cannot be made again."""

    def __init__(self, target: Stream | socket.socket, max_size: int) -> None:
        self._target: Stream | socket.socket | None = target
        self._max_size = max_size

    def __call__(self, deadline: Deadline) -> MessageTransport:
        target, self._target = self._target, None
        if target is None:
            raise Gone("a single stream or socket cannot be reconnected")
        if isinstance(target, Stream):
            return _over_stream(target, self._max_size)
        return channel_over(target, Role.CLIENT, self._max_size, websocket=False)


def _over_unix(path: str, max_size: int, deadline: Deadline) -> MessageTransport:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(deadline.remaining())
        sock.connect(path)
    except TimeoutError:
        sock.close()
        raise
    except OSError as error:
        sock.close()
        raise not_connected(f"unix://{path}", error) from error
    except BaseException:
        sock.close()
        raise
    return channel_over(sock, Role.CLIENT, max_size, websocket=False)


def _over_stream(stream: Stream, max_size: int) -> MessageTransport:
    return channel_over(socket_over(stream), Role.CLIENT, max_size, websocket=False)


def socket_over(stream: Stream) -> socket.socket:
    """Return a socket with the bytes of a stream, copied by two threads.

    Raises:
        NoThreadError, OSError: the system has no thread or descriptor left; the stream is closed.
    """
    try:
        ours, theirs = socket.socketpair()
    except OSError:
        stream.close()
        raise
    ours.settimeout(None)
    joint = _Joint(stream, ours)
    left = [joint.upwards, joint.downwards]
    try:
        while left:
            name = f"{stream.connection.name}-{stream.id}-{left[0].__name__}"
            start_thread(daemon_thread(target=left[0], name=name))
            left.pop(0)
    except NoThreadError:
        theirs.close()  # ends the thread that was started, if any
        for _ in left:
            joint.leave()
        raise
    return theirs


class _Joint:
    """Copy bytes between a stream and a socket; the last of the two threads closes both."""

    def __init__(self, stream: Stream, sock: socket.socket) -> None:
        self._stream = stream
        self._socket = sock
        self._lock = threading.Lock()
        self._running = 2

    def upwards(self) -> None:
        """Copy from the socket to the stream."""
        try:
            while data := self._socket.recv(CHUNK):
                self._stream.write(data)
            self._stream.close_write()
        except (WsmuxError, OSError, ValueError) as error:
            self._cut(error)
        finally:
            self.leave()

    def downwards(self) -> None:
        """Copy from the stream to the socket."""
        try:
            while data := self._stream.read(CHUNK):
                self._socket.sendall(data)
            self._socket.shutdown(socket.SHUT_WR)
        except (WsmuxError, OSError, ValueError) as error:
            self._cut(error)
        finally:
            self.leave()

    def _cut(self, error: Exception) -> None:
        _log.debug("stream %d is carried no further: %s", self._stream.id, error)
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the other thread
        except OSError:
            _log.debug("its socket was no longer connected")
        self._stream.close()

    def leave(self) -> None:
        """Count one of the two threads as over."""
        with self._lock:
            self._running -= 1
            last = not self._running
        if last:
            self._stream.close()
            self._socket.close()
