"""Watch one socket and a wakeup for the I/O thread, and lend the socket to another thread.

A thread that waits for what arrives may watch the socket itself, instead of being woken by the I/O
thread: it borrows the socket, reads, and gives it back. Neither wakes the I/O thread, which stays
in ``wait``: an epoll may be changed meanwhile. Whatever arrives after the socket was given back
wakes the I/O thread as ever, since the epoll reports a level.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..runtime.parking import Parker, real_threads
from .socket_io import Wakeup

__all__ = ["SocketPoller"]

READABLE = select.POLLIN


class SocketPoller:
    """Watch one socket and a wakeup.

    Attributes:
        fd: the socket's descriptor, -1 if there is none.
        wait: waits for events, at most so many seconds; for the I/O thread.
        poller: what waits, for a test's clock.
        lends: another thread may watch the socket.
        lent: the parker of the thread that does, ``None`` if none does. Without the lock, a hint.
    """

    def __init__(self, wakeup: Wakeup) -> None:
        self.fd = -1
        self.lent: Parker | None = None
        self._lock = threading.Lock()
        self._wanted = 0
        self._wakeup = wakeup.fd
        self.lends = real_threads() and hasattr(select, "epoll")
        self.poller: Any
        self.wait: Callable[[float], list[tuple[int, int]]]
        if self.lends:
            self.poller = select.epoll()
            self.wait = self.poller.poll
        else:
            self.poller = poll = select.poll()
            self.wait = lambda seconds: poll.poll(seconds * 1000)
        self.poller.register(wakeup.fd, READABLE)

    def watch(self, fd: int) -> None:
        """Begin to watch a socket; for the I/O thread."""
        with self._lock:
            self.fd, self._wanted = fd, 0
            self.poller.register(fd, 0)

    def unwatch(self) -> None:
        """Watch the socket no more, before it is closed, and send the thread away that does."""
        with self._lock:
            fd, self.fd = self.fd, -1
            reader, self.lent = self.lent, None
            if fd >= 0:
                with suppress(OSError):  # it was closed, by whom a signal kept from making more
                    self.poller.unregister(fd)
        if reader is not None:
            reader.unpark()  # another socket may get the descriptor for which it waits

    def want(self, events: int) -> None:
        """Set which events of the socket ``wait`` reports; for the I/O thread."""
        if events != self._wanted:
            with self._lock:
                self._wanted = events
                lent = self.lent is not None
                self.poller.modify(self.fd, events & ~READABLE if lent else events)

    def lend(self, parker: Parker) -> int:
        """Let the thread of a parker wait for received bytes; return the descriptor.

        It is -1 if another thread has borrowed the socket, or if there is none.
        """
        with self._lock:
            if self.lent is not None or self.fd < 0:
                return -1
            self.lent = parker
            self.poller.modify(self.fd, self._wanted & ~READABLE)
            return self.fd

    def take_back(self, parker: Parker) -> None:
        """Watch for received bytes again, unless another thread has borrowed the socket.

        Idempotent: a call that was interrupted at any step is made good by another one.
        """
        with self._lock:
            if self.lent is None or self.lent is parker:
                self.lent = None
                if self.fd >= 0:
                    self.poller.modify(self.fd, self._wanted)

    def close(self) -> None:
        """Release what was used for watching; for the I/O thread, at its end."""
        self.unwatch()
        # What a child process still holds of it, until it executes a program, must not wake a
        # thread that waits for this one.
        wakeup, self._wakeup = self._wakeup, -1
        if self.lends and wakeup >= 0:
            self.poller.unregister(wakeup)
        self._close()

    def _close(self) -> None:
        if self.lends:
            self.poller.close()

    def forked(self) -> None:
        """Close the copy of a forked child, which shares the interests of the parent."""
        self._lock = threading.Lock()
        self.fd, self.lent = -1, None
        self._close()
