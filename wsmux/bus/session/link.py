"""Carry envelopes over one WebSocket between a twin and a relay.

Each envelope is one binary message; there is no subprotocol. The token is the whole query string.

Threads and locks: those of the transport (see ``message_transport``). The one thread that iterates
``batches`` or ``messages`` is the link's I/O thread; it must keep iterating for pings to be
answered and for a close to complete. All other methods may be called from any thread, the I/O
thread included, except ``send`` and ``close``: they wait for the I/O thread and must not be called
in it.

The send queue is bounded by bytes, 256 KiB and one message. The reference relay bounds it by 256
messages, which with envelopes of 16 MiB could take 4 GiB.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Generator
from typing import Any
from urllib.parse import urlsplit

from ...config import Config
from ...exceptions import CloseCode, HandshakeError, WsmuxError, closed_error
from ...handshake.websocket_client import shake_hands
from ...protocols.base import Role
from ...protocols.framing import Opcode
from ...protocols.websocket import WebSocketFraming
from ...runtime.deadline import Deadline
from ...runtime.hints import check_characters, wrong_url
from ...runtime.parking import Parker, Waiter, wake
from ...transport.keepalive import Ping
from ...transport.message_transport import hang_up, message_transport
from ..wire.envelope import MAX_ENVELOPE

__all__ = ["Link", "dial"]

# Seconds of silence after which a client pings, and further seconds after which it gives up: 40 in
# all, as the reference peers.
PING_INTERVAL = PING_TIMEOUT = 20.0

# Seconds for the closing handshake, unless a caller gives more.
CLOSE_TIMEOUT = 2.0

# Makes a token for one connection; each token is used once.
TokenMaker = Callable[[], str]


class _Room(Waiter):
    """Wake the I/O thread when there is room, instead of unparking a thread."""

    __slots__ = ("_wake",)

    def __init__(self, wake_up: Callable[[], None]) -> None:
        super().__init__()
        self._wake = wake_up

    def notify(self, wakes: list[Parker]) -> None:
        self._wake()

    def notify_forced(self, wakes: list[Parker]) -> None:
        self._wake()


class Link:
    """Carry envelopes over a socket after its handshake; see the module for the threads.

    A client pings after 20 s of silence and ends the link after 40 s. A relay only answers pings.

    Args:
        sock: the socket; owned by the link.
        role: which end this is; the client masks.
        max_message: the maximum length of a message in bytes, in either direction.
        ping_interval, ping_timeout: seconds, for a client; see ``PING_INTERVAL``.

    Raises:
        OSError: the process has no file descriptor left; the socket is closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        role: Role,
        *,
        max_message: int = MAX_ENVELOPE,
        ping_interval: float | None = PING_INTERVAL,
        ping_timeout: float | None = PING_TIMEOUT,
    ) -> None:
        pings = role is Role.CLIENT
        self._max_message = max_message
        self._channel = message_transport(
            sock,
            WebSocketFraming(role, max_message),
            role,
            close_timeout=CLOSE_TIMEOUT,
            ping_interval=ping_interval if pings else None,
            ping_timeout=ping_timeout if pings else None,
        )
        self._room = _Room(self._channel.wake)
        self._drains = False

    def __repr__(self) -> str:
        state = "open" if self.error is None else f"ended: {self.error}"
        return f"<Link {self.name} {state}>"

    @property
    def name(self) -> str:
        """The name of the transport, for logs and threads."""
        return self._channel.name

    @property
    def error(self) -> WsmuxError | None:
        """The first cause that ended the link, or is ending it; ``None`` while it is open."""
        return self._channel.error

    @property
    def now(self) -> float:
        """The monotonic time at which the I/O thread last woke; for that thread."""
        return self._channel.now

    @property
    def sent(self) -> int:
        """The ticket of the last message known to be taken by the socket; may lag behind."""
        return self._channel.queue.sent

    # Called from any thread

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Queue one message, blocking until there is room; if it raises, nothing was sent.

        The I/O thread sends what the socket does not take at once.

        Raises:
            ValueError: the message is longer than ``max_message``.
            TimeoutError: there was no room before the deadline.
            ConnectionClosed: the link has ended.
            ForkedError: called in a forked child.
        """
        self._check_size(data)
        channel, waiter, waited = self._channel, Waiter(), False
        try:
            with channel.mutex:
                channel.check_locked()
                while not channel.queue.has_room_locked(waited):
                    if deadline.expired():
                        raise TimeoutError(
                            f"the send queue of {self.name} stayed full; nothing was sent"
                        )
                    waited = True
                    channel.queue.wait_room_locked(waiter, deadline)
                    channel.check_locked()
                channel.queue.add_data_locked([(b"", data)])
                waited = False
        finally:
            if waited:
                channel.wake()  # the room was not used: wake the next waiter
        channel.flush()

    def send_nowait(self, data: bytes) -> int:
        """Queue one message if there is room, without blocking.

        Returns:
            Its ticket, from 1 up; the socket has taken the message once ``sent`` has reached it. 0
            if there is no room because the peer is slow.

        Raises:
            ValueError: the message is longer than ``max_message``.
            ConnectionClosed: the link has ended.
            ForkedError: called in a forked child.
        """
        self._check_size(data)
        channel = self._channel
        with channel.mutex:
            channel.check_locked()
            if not channel.queue.has_room_locked(waited=False):
                return 0
            ticket = channel.queue.add_data_locked([(b"", data)])
        channel.flush()
        return ticket

    def ping_behind(self) -> Ping:
        """Queue a ping behind all queued messages, without blocking.

        When its ``rtt`` is set, the peer's WebSocket has read every message before it. The batch
        that brings the pong comes before the I/O thread yields the next one. A pong answers all
        earlier pings, too.

        Raises:
            ConnectionClosed: the link has ended.
            ForkedError: called in a forked child.
        """
        channel = self._channel
        with channel.mutex:
            channel.check_locked()
            ping, message = channel.keep_alive.new_ping(time.monotonic())
            channel.queue.add_data_locked([message], Opcode.PING)
        channel.flush()
        return ping

    def taken_by_peer(self) -> int:
        """Return how many bytes the peer's system has acknowledged, as far as is known here."""
        return self._channel.queue.taken_by_peer()

    def _check_size(self, data: bytes) -> None:
        if len(data) > self._max_message:
            text = f"an envelope of {len(data)} bytes is above the limit of {self._max_message}"
            raise ValueError(text)

    def has_room(self) -> bool:
        """Return whether ``send_nowait`` would take a message now."""
        with self._channel.mutex:
            room: bool = self._channel.queue.has_room_locked(waited=False)
        return room

    def ask_room(self) -> None:
        """Make the I/O thread yield a batch once the queue has room."""
        with self._channel.mutex:
            if not self._channel.queue.has_room_locked(waited=True):
                self._channel.queue.ask_room_locked(self._room)
                return
        self.wake()

    def wake(self) -> None:
        """Make the I/O thread yield a batch, even an empty one; never blocks."""
        self._channel.wake()

    def hang_up(
        self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "", *, drain: bool = False
    ) -> None:
        """Start to close after queued messages; returns at once. Keeps an earlier cause.

        Args:
            code, reason: what the Close says.
            drain: still yield the messages that the peer sends before its own Close; they are
                dropped otherwise.
        """
        self._drains = drain
        hang_up(self._channel, code, reason)

    @property
    def drops(self) -> bool:
        """Whether received messages are to be dropped: the link has ended, and does not drain."""
        return self.error is not None and not self._drains

    def fail(self, code: int, reason: str) -> None:
        """End the link for an error: drop queued messages and send the code; returns at once."""
        wakes: list[Parker] = []
        with self._channel.mutex:
            self._channel.fail_locked(closed_error(code, reason, "local"))
            self._channel.notify_forced_locked(wakes)
        wake(wakes)
        self._channel.flush()
        self.wake()

    def close(self, code: int, reason: str, deadline: Deadline) -> None:
        """Send queued messages and a Close, and wait for the peer's, at most until the deadline."""
        self._channel.close(code, reason, deadline)

    def abort(self) -> None:
        """Cut the connection without a Close; the I/O thread ends soon after."""
        self._channel.abort()

    def discard(self) -> None:
        """Cut the connection and close the socket, when no thread iterates the link."""
        self._channel.discard()

    def wait_finished(self, deadline: Deadline) -> bool:
        """Wait until the I/O thread has closed the socket; ``False`` at the deadline."""
        return self._channel.wait_finished(deadline.remaining())

    # Called from the I/O thread

    def set_timer(self, due: float | None) -> None:
        """Request a batch, even an empty one, at a monotonic time."""
        self._channel.set_owner_timer(due)

    def batches(self) -> Generator[list[bytes]]:
        """Run the link; yield received messages in order.

        A batch may be empty: after ``wake``, at the time of ``set_timer``, when there is room after
        ``ask_room``, and occasionally otherwise. A text message ends the link with 1003, one above
        ``max_message`` with 1009. The iteration ends when the socket is closed; ``error`` says why.
        Closing the generator cuts the connection.
        """
        channel, wakes = self._channel, list[Parker]()
        batches = channel.batches()
        try:
            for received in batches:
                ended = channel.error is not None
                if ended:  # waiting threads must wake
                    with channel.mutex:
                        channel.notify_forced_locked(wakes)
                    wake(wakes)
                    if not self._drains:
                        continue
                count = next(
                    (n for n, (kind, _) in enumerate(received) if kind is Opcode.TEXT), None
                )
                yield [bytes(data) for _, data in received[:count]]
                if count is not None:
                    self.fail(
                        CloseCode.UNSUPPORTED_DATA,
                        "received a text message; envelopes are binary messages",
                    )
        finally:
            batches.close()
            self.discard()  # in case the iteration never began
            with channel.mutex:
                channel.notify_forced_locked(wakes)
            wake(wakes)

    def messages(self) -> Generator[bytes]:
        """Run the link as ``batches`` does, yielding single messages."""
        batches = self.batches()
        try:
            for batch in batches:
                for data in batch:
                    if self.drops:
                        break
                    yield data
        finally:
            batches.close()


def dial(
    url: str,
    make_token: TokenMaker,
    deadline: Deadline,
    *,
    ssl_context: ssl.SSLContext | None = None,
    options: dict[str, Any] | None = None,
    **link: Any,
) -> Link:
    """Connect to a relay and return the link; the caller runs it.

    Args:
        url: ``ws://`` or ``wss://``, without a query, which is for the token.
        make_token: called once, in this thread.
        deadline: bounds connecting and the handshake.
        ssl_context: the TLS settings, for ``wss``.
        options: options of websocket-client, including proxies; see ``wsmux.connect``.
        link: further arguments of ``Link``.

    Raises:
        ValueError: the URL is invalid.
        HandshakeError: the relay refused; ``status`` and the text say why, without the token.
        TimeoutError: the deadline has passed.
        OSError: the connection failed.
    """
    parts = urlsplit(url)
    shown = parts._replace(query="").geturl()
    check_characters(url, shown)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ValueError(wrong_url(shown, "ws", "wss"))
    if parts.query or parts.fragment:
        raise ValueError(f"{shown!r} must have no query and no fragment: the token goes there")
    more = dict(options or {})
    if ssl_context is not None:
        more["sslopt"] = {**more.get("sslopt", {}), "context": ssl_context}
    token = make_token()
    try:
        sock, _ = shake_hands(
            f"{url}?{token}",
            subprotocols=(),
            headers=None,
            deadline=deadline,
            max_size=Config().max_handshake_size,
            options=more,
        )
    # Error texts contain the address with the token, and their causes may too.
    except HandshakeError as error:
        raise HandshakeError(_hidden(error, token), error.status) from None
    except TimeoutError as error:
        raise TimeoutError(_hidden(error, token)) from None
    except OSError as error:
        if token not in str(error):
            raise
        raise OSError(error.errno, _hidden(error.strerror, token)) from None
    return Link(sock, Role.CLIENT, **link)


def _hidden(error: object, token: str) -> str:
    return str(error).replace(f"?{token}", "").replace(token, "...")
