"""Copy between a stream and a socket, for code that only works with sockets.

Two threads copy, one for each direction, each holding at most one chunk of ``CHUNK`` bytes: a side
that does not read blocks the other one, by the stream's credit or by the socket's buffers. The end
of one side is translated for the other:

==============================================  ==================================================
end of file on the socket                       ``close_write()``
clean end of the stream                         ``shutdown(SHUT_WR)``
stream reset, or its connection lost            the socket is reset: ``ECONNRESET``, never an end
socket reset, or failed                         the stream is reset
the peer has stopped reading                    what still arrives from the socket is dropped
nobody reads from the socket (``EPIPE``)        ``close_read()``
this side closed the stream itself              the socket is reset; its unread bytes are dropped
==============================================  ==================================================

Both threads wait in ``poll``, on the socket and on a wake-up descriptor: ``shutdown`` would wake
them too, but look like an end of file to the other end of the socket. Unix sockets cannot be reset;
there a lost stream ends in ``EPIPE`` for a writer, and in an end of file for a reader.
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

# Bytes per read and per write; the default size of the largest frame.
CHUNK = 64 * 1024

# Seconds for which bytes that nobody reads are still drained from a socket after everything was
# sent to it; then it is reset. A reset at once could discard the last bytes sent. As in Apache's
# lingering close.
LINGER = 2.0

# Seconds between checks for a failed stream while the socket accepts nothing.
LOOK = 1.0

# Seconds for the two sockets of a pair to connect to each other.
PAIRING = 10.0

# Connections of other processes that may arrive meanwhile without displacing ours.
BACKLOG = 16

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

_log = logger("wsmux")


def carry(stream: Stream, sock: socket.socket) -> None:
    """Copy between a stream and a connected socket until both directions have ended.

    Blocks, and starts one more thread. Takes ownership of both, and closes them before it returns.
    ``stream.timeout`` applies here too: a direction of the stream without progress for so long ends
    both.

    Raises:
        WsmuxError: the stream failed; the socket was reset.
        OSError: the socket failed; the stream was reset.
        NoThreadError: no thread could be started; both were reset.
        ValueError: another thread closed the stream; the socket was reset.
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
            carrier.forked()  # releases everything
        ours.close()
        theirs.close()
        raise
    return theirs


def loopback_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected TCP sockets of this process.

    ``socket.socketpair`` makes Unix sockets, which cannot be reset. The addresses of both ends are
    compared, so a connection from another process on the machine is rejected.

    Raises:
        OSError: there is no loopback interface, or no descriptor is left.
        TimeoutError: they did not connect in time.
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
    """Make closing a socket reset its connection; Unix sockets cannot do this."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)


def _name(stream: Stream) -> str:
    return f"{stream.connection.name}-stream-{stream.id}"


class _Over(Exception):
    """Leave a copying loop: the other thread has ended the copying."""


class _Unread(Exception):
    """Leave the sending loop: nobody reads from the socket any more."""


class _Carrier:
    """Copy both ways: ``down`` from the stream to the socket, ``up`` from the socket."""

    def __init__(
        self, stream: Stream, sock: socket.socket, handed: socket.socket | None = None
    ) -> None:
        self._stream = stream
        self._sock = sock
        self._handed = None if handed is None else weakref.ref(handed)
        sock.setblocking(False)
        # Guards the failure. A send that reports a reset clears the error of the socket, from which
        # the other thread then reads an end of file: so sending and recording the failure are one
        # step.
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._down_ended = False
        self._wake = Wakeup()
        fork.register(self)

    def run_silently(self) -> None:
        """Run the thread of a socket; the holder of the socket sees any failure there.

        A stream raises ``ValueError`` once its owner has closed it, for example by leaving its
        ``with`` block.
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
            del failure  # its traceback refers to this frame

    def _until_over(self, copy: Callable[[], None]) -> None:
        try:
            copy()
        except _Over:
            return
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Record the first failure, and wake the other thread wherever it waits."""
        with self._lock:
            self._failure = self._failure or error
        self._wake.set()
        if not self._stream.closed:
            self._stream.reset()

    def _finish(self) -> BaseException | None:
        """Close both ends; return the failure, without keeping it.

        Its traceback refers to this object: only the garbage collector could free such a cycle.
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
        """Return received bytes, ``b""`` at end of file, ``None`` if none came within ``wait``."""
        while True:
            if self._failure is not None:
                raise _Over
            try:
                return self._sock.recv(CHUNK)
            except BlockingIOError:
                if not poller.poll(None if wait is None else wait * 1000):
                    return None

    def _drop(self, poller: select.poll) -> None:
        """Discard incoming bytes; after the other direction has ended, only for ``LINGER``."""
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
        """Raise the failure of the stream, which is not being read at the moment."""
        record, transport = self._stream._record, self._stream._multiplexer.transport
        if not record.ended:
            if record.read_failure is not None:
                raise record.read_failure()
            if transport.error is not None:
                raise fresh_copy(transport.error)

    def forked(self) -> None:
        """Close both sockets in a forked child; the threads belong to the parent."""
        self._lock = threading.Lock()
        self._sock.close()
        self._wake.forked()
        handed = None if self._handed is None else self._handed()
        if handed is not None:
            handed.close()
