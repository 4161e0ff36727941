"""Join a stream and a socket, so that what knows nothing of streams can use one.

Two threads copy, one each way, with at most one chunk of ``CHUNK`` bytes in the hand of each: a
side that does not read holds up the other one, by the stream's credit or by the socket's buffers.

Whatever ends one side is said to the other in its own words:

==============================================  ==================================================
the socket's end of file                        ``close_write()``
the clean end of the stream                     ``shutdown(SHUT_WR)``
the stream was reset, or its connection lost    the socket is reset: ``ECONNRESET``, never an end
the socket was reset, or failed                 the stream is reset
the peer reads no further                       what still comes from the socket is dropped
nobody reads from the socket (``EPIPE``)        ``close_read()``
this side closed the stream itself              the socket is reset; what it held is dropped
==============================================  ==================================================

Both threads wait in ``poll``, on the socket and on a wake-up: ``shutdown`` would wake them as well,
but look like an end to whoever is at the socket. A Unix socket knows no reset; there a lost stream
ends in ``EPIPE`` for a writer, and in an end of file for a reader.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..exceptions import StreamWriteClosed, WsmuxError, fresh_copy
from ..runtime import fork
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from ..runtime.threads import daemon_thread, start_thread
from ..transport.socket_io import Wakeup

if TYPE_CHECKING:
    from .stream import Stream

__all__ = ["CHUNK", "as_socket", "carry", "loopback_pair", "reset_on_close"]

# Bytes of one read and of one write. As the largest frame by default.
CHUNK = 64 * 1024

# Seconds that a socket has, after all was sent to it, to stop sending what nobody reads; then it is
# reset. A reset at once could take the last bytes with it. As Apache's lingering close.
LINGER = 2.0

# Seconds between two looks whether a stream has failed while the socket takes nothing.
LOOK = 1.0

# Seconds for two sockets of this process to find each other.
PAIRING = 10.0

# Connections that others may try meanwhile, without keeping ours out.
BACKLOG = 16

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

_log = logger("wsmux")


def carry(stream: Stream, sock: socket.socket) -> None:
    """Copy between a stream and a connected socket until both directions have ended.

    Blocks, and runs one more thread. Both belong to it from the call on and are closed when it
    returns. ``stream.timeout`` counts here too: a direction of the stream that stands still for so
    long ends all.

    Raises:
        WsmuxError: the stream failed; the socket was reset. OSError: the socket failed; the stream
        was reset. NoThreadError: there is no thread; both were. ValueError: another thread
        closed the stream; the socket was reset.
    """
    _Carrier(stream, sock).run()


def as_socket(stream: Stream) -> socket.socket:
    """Return a connected socket that reads and writes a stream. See ``Stream.as_socket``."""
    ours, theirs = loopback_pair()
    carrier = None
    try:
        carrier = _Carrier(stream, ours, theirs)
        name = f"{_name(stream)}-down"
        start_thread(daemon_thread(target=carrier.run_silently, name=name))
    except BaseException:
        if carrier is not None:
            carrier.forked()  # lets go of everything
        ours.close()
        theirs.close()
        raise
    return theirs


def loopback_pair() -> tuple[socket.socket, socket.socket]:
    """Return two TCP sockets of this process that are connected to each other.

    ``socket.socketpair`` makes Unix sockets, which know no reset. Somebody else on the machine who
    connects to the port meanwhile is turned away: the addresses of both ends are compared.

    Raises:
        OSError: there is no loopback, or no descriptor. TimeoutError: they did not meet in time.
    """
    deadline = Deadline(PAIRING)
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
        caller = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            caller.settimeout(PAIRING)
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
            while True:
                listener.settimeout(max(deadline.remaining() or 0.0, 0.001))
                answerer, address = listener.accept()
                if address == caller.getsockname():
                    break
                answerer.close()
        except BaseException:
            caller.close()
            raise
    for sock in (caller, answerer):
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return caller, answerer


def reset_on_close(sock: socket.socket) -> None:
    """Make the close of a socket reset its connection; a Unix socket has no such thing."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)


def _name(stream: Stream) -> str:
    return f"{stream.connection.name}-stream-{stream.id}"


class _Over(Exception):
    """Leave a copying loop: the other thread has ended it all."""


class _Unread(Exception):
    """Leave the loop that sends: nobody reads from the socket any more."""


class _Carrier:
    """Copy both ways. ``down`` is from the stream to the socket, ``up`` the other way."""

    def __init__(
        self, stream: Stream, sock: socket.socket, handed: socket.socket | None = None
    ) -> None:
        self._stream = stream
        self._sock = sock
        self._handed = None if handed is None else weakref.ref(handed)
        sock.setblocking(False)
        # Guards the failure. A send that learns of a reset takes the error out of the socket, from
        # which the other thread then reads an end of file: so it sends, and says so, under this.
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._down_ended = False
        self._wake = Wakeup()
        fork.register(self)

    def run_silently(self) -> None:
        """Run the thread behind a socket; whoever holds that socket has been told of any failure.

        A stream raises ``ValueError`` once its owner has closed it, as the end of its ``with``
        block does.
        """
        try:
            self.run()
        except (WsmuxError, OSError, RuntimeError, ValueError) as error:
            _log.info("the socket of %s ended: %s", _name(self._stream), error)

    def run(self) -> None:
        up = daemon_thread(
            target=self._until_over, args=(self._up,), name=f"{_name(self._stream)}-up"
        )
        try:
            start_thread(up)
            self._until_over(self._down)
            up.join()
        except BaseException as error:  # no thread, or an interrupt of this one
            self._fail(error)
            if up.ident is not None:
                up.join()
        finally:
            failure = self._finish()
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # which has this frame in its traceback

    def _until_over(self, copy: Callable[[], None]) -> None:
        try:
            copy()
        except _Over:
            return
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Note what came first, and wake the other thread, wherever it is."""
        with self._lock:
            self._failure = self._failure or error
        self._wake.set()
        if not self._stream.closed:
            self._stream.reset()

    def _finish(self) -> BaseException | None:
        """Close both ends; return what failed, which is kept here no longer.

        Its traceback leads back here, so both would wait for the garbage collector.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            reset_on_close(self._sock)
        self._sock.close()
        self._wake.close()
        self._stream.close()
        return failure

    def _poller(self, events: int) -> select.poll:
        poller = select.poll()
        poller.register(self._sock.fileno(), events)
        poller.register(self._wake.fd, select.POLLIN)
        return poller

    # From the socket to the stream

    def _up(self) -> None:
        poller = self._poller(select.POLLIN)
        while data := self._receive(poller):
            try:
                self._stream.write(data)
            except StreamWriteClosed:
                self._drop(poller)
                return
        with self._lock:
            if self._failure is not None:
                raise _Over
        self._stream.close_write()

    def _receive(self, poller: select.poll, wait: float | None = None) -> bytes | None:
        """Return what comes, ``b""`` at the end of file, ``None`` if nothing did for ``wait``."""
        while True:
            if self._failure is not None:
                raise _Over
            try:
                return self._sock.recv(CHUNK)
            except BlockingIOError:
                if not poller.poll(None if wait is None else wait * 1000):
                    return None

    def _drop(self, poller: select.poll) -> None:
        """Drop what comes; once the other direction has ended, not for long any more."""
        deadline: Deadline | None = None
        while self._receive(poller, LOOK) != b"":
            if self._down_ended:
                deadline = deadline or Deadline(LINGER)
                if deadline.expired():
                    reset_on_close(self._sock)
                    return

    # From the stream to the socket

    def _down(self) -> None:
        poller = self._poller(select.POLLOUT)
        try:
            while data := self._stream.read(CHUNK):
                self._send(poller, data)
            self._sock.shutdown(socket.SHUT_WR)
        except _Unread:
            self._stream.close_read()
        self._down_ended = True

    def _send(self, poller: select.poll, data: bytes) -> None:
        sent = self._send_some(data)
        while sent < len(data):
            if not poller.poll(LOOK * 1000):
                self._check_stream()
            if self._failure is not None:
                raise _Over
            sent += self._send_some(memoryview(data)[sent:])

    def _send_some(self, data: bytes | memoryview) -> int:
        with self._lock:
            try:
                return self._sock.send(data)
            except BlockingIOError:
                return 0
            except BrokenPipeError as error:
                raise _Unread from error
            except OSError as error:
                self._failure = self._failure or error
                raise

    def _check_stream(self) -> None:
        """Raise what has become of the stream, of which nothing is read at the moment."""
        record, transport = self._stream._record, self._stream._multiplexer.transport
        if not record.ended:
            if record.read_failure is not None:
                raise record.read_failure()
            if transport.error is not None:
                raise fresh_copy(transport.error)

    def forked(self) -> None:
        """Let go of both sockets in a forked child; the threads behind them are the parent's."""
        self._lock = threading.Lock()
        self._sock.close()
        self._wake.forked()
        handed = None if self._handed is None else self._handed()
        if handed is not None:
            handed.close()
