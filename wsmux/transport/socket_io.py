"""Read and write one socket without ever blocking.

``PlainSocket`` and ``TlsSocket`` have the same methods. ``recv_into`` is for one thread, ``send``
for the holder of the transport's send lock; both return ``None`` if the call would block, and raise
``OSError`` if the connection is lost.
"""

from __future__ import annotations

import array
import fcntl
import math
import os
import select
import socket
import ssl
import termios
import threading
from collections.abc import Callable, Sequence
from functools import partial

from ..protocols.base import Buffer
from ..runtime.deadline import LONGEST_WAIT

__all__ = [
    "PlainSocket",
    "Socket",
    "TlsSocket",
    "Wakeup",
    "take_over",
    "wait_writable",
]

# Linux accepts 1,024 pieces per call; 64 keep the list short and cost nothing.
MAX_PIECES = 64

# OpenSSL writes records of 16 KiB; joining more than that only copies.
TLS_RECORD = 16 * 1024

# Unsent bytes in the system's send buffer at which the socket counts as full: a control frame waits
# behind them. Without a limit they grow to TCP's window: 64 KiB more than halve the time of a ping
# under bulk over a slow path, and cost nothing on a fast one.
UNSENT = 64 * 1024

# Unanswered probes after which a silent TCP connection is given up.
PROBES = 3

# The maximum of these options on Linux: seconds in 15 bits, milliseconds in 31.
LARGEST_TIMES = {"TCP_KEEPIDLE": 32_767, "TCP_KEEPINTVL": 32_767}
LARGEST_INT = 2**31 - 1

# Seconds for which a TLS write that must read first waits for the reading thread to do it.
TLS_READ_WAIT = 0.02


class PlainSocket:
    """Wrap a TCP or Unix socket."""

    hides_bytes = False  # pending() may return true
    read_wants_write = False
    write_wants_read = False

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock

    def fileno(self) -> int:
        """Return the descriptor, -1 if closed."""
        return self._sock.fileno()

    def recv_into(self, target: memoryview) -> int | None:
        """Receive into ``target``; 0 is end of file."""
        try:
            return self._sock.recv_into(target)
        except (BlockingIOError, InterruptedError):
            return None

    def pending(self) -> bool:
        """Return whether there are buffered bytes that ``poll`` does not see."""
        return False

    def send(self, pieces: Sequence[Buffer]) -> int | None:
        """Send the start of ``pieces``; return the number of bytes sent."""
        try:
            if len(pieces) == 1:
                return self._sock.send(pieces[0])
            return self._sock.sendmsg(pieces[:MAX_PIECES])
        except (BlockingIOError, InterruptedError):
            return None

    def limit_unsent(self, count: int) -> None:
        """Make the socket count as full at fewer unsent bytes than ``UNSENT``, if possible."""
        if self._sock.family in (socket.AF_INET, socket.AF_INET6):
            _limit_unsent(self._sock, min(count, UNSENT))

    def unacknowledged(self) -> int:
        """Return how many sent bytes the peer has not acknowledged, 0 if unknown.

        A full buffer is reported as writable only after a third of it has drained; this value
        changes before.
        """
        count = array.array("i", [0])
        try:
            fcntl.ioctl(self._sock.fileno(), termios.TIOCOUTQ, count)
        except OSError:
            return 0  # the socket is closed, or of a type without this count
        return count[0]

    def end_writing(self) -> None:
        """Send the end of file after everything else; idempotent."""
        try:
            socket.socket.shutdown(self._sock, socket.SHUT_WR)
        except OSError:
            return  # no longer connected: the peer reads that, too

    def shutdown(self) -> None:
        """Shut down both directions, which wakes every thread that polls the socket."""
        try:
            # Not SSLSocket.shutdown, which clears its TLS state first: a concurrent send would go
            # out unencrypted.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            return  # no longer connected, as intended

    def close(self) -> None:
        """Close the descriptor."""
        self._sock.close()

    def abandon(self) -> None:
        """Close only this process's copy of the descriptor (after a fork)."""
        fd = self._sock.detach()
        if fd >= 0:
            os.close(fd)


class TlsSocket(PlainSocket):
    """Wrap a TLS socket, with a lock, since an OpenSSL object must not be used by two threads."""

    hides_bytes = True

    def __init__(self, sock: ssl.SSLSocket) -> None:
        super().__init__(sock)
        self._tls = sock
        self._lock = threading.Lock()
        self._retry: Buffer | None = None  # OpenSSL requires the same bytes on a retry
        self._end: OSError | None = None  # the error after the bytes returned last

    def recv_into(self, target: memoryview) -> int | None:
        """Receive as many records as are available and fit: OpenSSL returns one at a time.

        After a record that is not full there is usually nothing, and trying is expensive.
        """
        with self._lock:
            self.read_wants_write = False
            count = 0
            try:
                end, self._end = self._end, None
                if end is not None:
                    raise end
                while count < len(target):
                    got = self._tls.recv_into(target[count:])
                    if not got and count:
                        self._end = ssl.SSLEOFError()
                    count += got
                    if got < TLS_RECORD:
                        break
            except ssl.SSLWantReadError:
                return count or None
            except ssl.SSLWantWriteError:
                self.read_wants_write = True
                return count or None
            except OSError as error:
                if count:
                    self._end = error.with_traceback(None)
                elif not isinstance(error, ssl.SSLZeroReturnError | ssl.SSLEOFError):
                    raise
            return count

    def pending(self) -> bool:
        with self._lock:
            return self._end is not None or self._tls.pending() > 0

    def send(self, pieces: Sequence[Buffer]) -> int | None:
        with self._lock:
            self.write_wants_read = False
            data = self._retry if self._retry is not None else _record(pieces)
            try:
                sent = self._tls.send(data)
            except ssl.SSLWantWriteError:
                self._retry = data
                return None
            except ssl.SSLWantReadError:
                self._retry = data
                self.write_wants_read = True
                return None
            self._retry = None
            return sent

    def abandon(self) -> None:
        self._lock = threading.Lock()
        super().abandon()


Socket = PlainSocket | TlsSocket


def _record(pieces: Sequence[Buffer]) -> Buffer:
    """Join small leading pieces, up to a TLS record; a long first piece is sent alone."""
    if len(pieces) == 1 or len(pieces[0]) >= TLS_RECORD:
        return pieces[0]
    joined: list[Buffer] = []
    room = TLS_RECORD
    for piece in pieces:
        joined.append(piece[:room])
        room -= len(joined[-1])
        if not room:
            break
    return b"".join(joined)


def take_over(sock: socket.socket, user_timeout: float | None = None) -> Socket:
    """Wrap a connected socket and set the options that interactive use needs.

    With ``user_timeout``, in seconds, the system gives up a TCP connection whose peer acknowledges
    neither data nor, if none is in flight, keepalive probes for so long; where such options exist.

    Without TCP_NODELAY, Nagle's algorithm and delayed acknowledgements make opening a stream, one
    small exchange and closing it take 43 ms. Unix sockets have no such option.
    """
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _limit_unsent(sock, UNSENT)
        if user_timeout is not None:
            _limit_silence(sock, user_timeout)
    return TlsSocket(sock) if isinstance(sock, ssl.SSLSocket) else PlainSocket(sock)


def _limit_unsent(sock: socket.socket, count: int) -> None:
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, count)


def _limit_silence(sock: socket.socket, seconds: float) -> None:
    probes = {
        "TCP_USER_TIMEOUT": math.ceil(seconds * 1000),
        "TCP_KEEPIDLE": math.ceil(seconds / 2),
        "TCP_KEEPINTVL": math.ceil(seconds / 2 / PROBES),
        "TCP_KEEPCNT": PROBES,
    }
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in probes.items():
        if hasattr(socket, name):
            largest = LARGEST_TIMES.get(name, LARGEST_INT)
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), min(value, largest))


def wait_writable(sock: Socket, timeout: float | None, interrupt: int) -> None:
    """Wait until the socket is writable or has failed, ``interrupt`` is readable, or time is up."""
    poller = select.poll()
    if sock.write_wants_read:
        timeout = TLS_READ_WAIT if timeout is None else min(timeout, TLS_READ_WAIT)
        poller.register(sock.fileno(), select.POLLIN)
    else:
        poller.register(sock.fileno(), select.POLLOUT)
    poller.register(interrupt, select.POLLIN)
    poller.poll(None if timeout is None else min(timeout, LONGEST_WAIT) * 1000 + 1)


class Wakeup:
    """Wake a thread out of ``poll``.

    ``set`` never blocks and may be called from anywhere, even from a finalizer that runs inside
    ``set``. A small lock keeps the descriptor from being closed, and reused, during a write.

    Attributes:
        fd: the descriptor to poll for reading.
    """

    def __init__(self) -> None:
        self._new_guard()
        self._wanted = False
        if hasattr(os, "eventfd"):
            self.fd = self._write = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.fd, self._write = os.pipe()
            os.set_blocking(self.fd, False)
            os.set_blocking(self._write, False)

    def _new_guard(self) -> None:
        self._guard = threading.Lock()
        self._try_guard = partial(self._guard.acquire, False)

    # ``write`` is bound here: streams that are freed when the interpreter exits call this, and
    # without the GIL that may be after the globals are gone.
    def set(self, write: Callable[[int, bytes], int] = os.write) -> None:
        """Make the descriptor readable; does nothing after ``close``."""
        self._wanted = True
        # A thread that does not get the guard leaves the work to the holder, which checks again
        # after releasing it. A loop over an iterator, since an interrupt can arrive after a call
        # that acquired it.
        while self._wanted:
            for _ in iter(self._try_guard, False):
                try:
                    self._wanted = False
                    if self._write >= 0:
                        write(self._write, b"\x01\0\0\0\0\0\0\0")
                except BlockingIOError:
                    return  # full, so it is already readable
                finally:
                    self._guard.release()
                break
            else:
                return

    def clear(self) -> None:
        """Make the descriptor unreadable again."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close the descriptors; idempotent."""
        with self._guard:
            # Forgotten first: a child that is forked in between must not close them again, as by
            # then they may be of something else.
            fds = {self.fd, self._write} - {-1}
            self.fd = self._write = -1
            for fd in fds:
                os.close(fd)

    def forked(self) -> None:
        """Close the copies in a forked child, where the holder of the guard may not exist."""
        self._new_guard()
        self.close()
