"""Carry one TCP connection for ``FaultProxy``: two sockets, and a link in each direction."""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import termios

from .link import How, Link, Way

__all__ = ["RESET", "Carried"]

# Bytes per read, and pieces per turn, between which the other connections have theirs.
CHUNK = 64 * 1024
PIECES = 64

# Seconds for both ends to see the end of file and end their own side.
LINGER = 2.0

# Seconds that a reset waits for the delivery of bytes forwarded before it, and between checks.
FLUSH = 1.0
GLANCE = 0.001

RESET = struct.pack("ii", 1, 0)  # SO_LINGER with a time of zero


class Flow:
    """One direction of a connection.

    Attributes:
        blocked: the receiver's socket is full until ``poll`` reports otherwise.
        deaf: it was ended before its bytes had ended; the rest is dropped.
        finished: the receiver got the end of file.
    """

    def __init__(self, source: socket.socket, sink: socket.socket, way: Way, seed: object) -> None:
        self.source = source
        self.sink = sink
        self.way = way
        self.link = Link(way, seed)
        self.blocked = self.deaf = self.finished = False

    def wants_read(self) -> bool:
        return not self.link.ended and not self.way.frozen and (self.deaf or self.link.room() > 0)

    def read(self, now: float) -> None:
        """Read as much as there is room for."""
        if not self.wants_read():
            return
        try:
            data = self.source.recv(CHUNK if self.deaf else min(CHUNK, self.link.room()))
        except (BlockingIOError, InterruptedError):
            return
        if not data:
            self.link.ended = True
        elif self.way.received(len(data)):
            if self.deaf:
                self.way.dropped(len(data))
            else:
                self.link.put(data, now)

    def write(self, now: float) -> How | None:
        """Forward everything that is due; return how to cut, if a cut is due, too."""
        if self.blocked or self.way.frozen:
            return None
        for _ in range(PIECES):
            piece = self.link.piece(now)
            if piece is None:
                break
            try:
                size = self.sink.send(self.way.passing(piece))
            except (BlockingIOError, InterruptedError):
                self.blocked = True
                return None
            self.link.taken(size, now)
            how = self.way.passed(size)
            if how is not None:
                return how
        if self.link.over() and not self.finished:
            self.finish()
        return None

    def finish(self) -> None:
        self.finished = True
        end(self.sink)

    def half_close(self) -> None:
        """End the direction after the bytes already forwarded, and drop the rest."""
        self.link.drop()
        self.deaf = True
        self.finish()

    def next_time(self) -> float | None:
        return None if self.blocked or self.way.frozen else self.link.next_time()


class Carried:
    """One connection, driven by the proxy's thread; it owns both sockets.

    Attributes:
        over: both sockets are closed.
        unreachable: the server did not answer.
    """

    def __init__(
        self,
        near: socket.socket,
        far: socket.socket,
        ways: dict[str, Way],
        seed: object,
        poller: select.poll,
    ) -> None:
        self._near, self._far = near, far
        self._flows = {
            "up": Flow(near, far, ways["up"], f"{seed} up"),
            "down": Flow(far, near, ways["down"], f"{seed} down"),
        }
        self._poller = poller
        self._interest: dict[int, int] = {}
        self._connecting = True
        self._ending: float | None = None  # when to stop waiting
        self._looked = 0.0
        self._flushing = False  # for a reset, not for the end of both sides
        self.over = self.unreachable = False

    def descriptors(self) -> tuple[int, int]:
        return self._near.fileno(), self._far.fileno()

    def ready(self, fd: int, events: int, now: float) -> None:
        """Handle the events reported by ``poll``."""
        try:
            if self._connecting:
                if fd == self._far.fileno():
                    self._connected()
            elif self._ending is not None:
                self._drain(fd)
            else:
                for flow in self._flows.values():
                    if events & ~select.POLLOUT and fd == flow.source.fileno():
                        flow.read(now)
                    if events & ~select.POLLIN and fd == flow.sink.fileno() and flow.blocked:
                        flow.blocked = False
                        flow.link.resume(now)
        except OSError:
            self.cut("rst", now)

    def _connected(self) -> None:
        error = self._far.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self.unreachable = error != 0
        if error:
            raise OSError(error, "the server cannot be reached")
        self._connecting = False

    def step(self, now: float) -> How | None:
        """Do everything that is due; return how all connections are to be cut, if they are."""
        how = None
        if self._ending is not None:
            self._end(now)
        elif not self._connecting:
            try:
                for flow in self._flows.values():
                    how = how or flow.write(now)
            except OSError:
                self.cut("rst", now)
            if all(flow.finished and flow.link.ended for flow in self._flows.values()):
                self.close()
        self._watch()
        return how

    def next_time(self) -> float | None:
        """Return when to call ``step`` without an event."""
        if self._ending is not None:
            return min(self._ending, self._looked + GLANCE) if self._flushing else self._ending
        if self._connecting:
            return None
        times = [at for flow in self._flows.values() if (at := flow.next_time()) is not None]
        return min(times, default=None)

    def cut(self, how: How, now: float, flush: bool = False) -> None:
        """End both sides; with ``flush``, bytes already forwarded arrive before a reset."""
        if self.over:
            return
        for flow in self._flows.values():
            flow.link.drop()
        self._looked = now
        if how == "rst":
            self._flushing = flush
            self._ending = now + FLUSH
            if not flush:
                self.close(reset=True)
        elif self._ending is None:
            self._ending = now + LINGER
            for flow in self._flows.values():
                end(flow.sink)
        self._watch()

    def half_close(self, way: str) -> None:
        if self._ending is None and not self._connecting and not self._flows[way].finished:
            self._flows[way].half_close()

    def close(self, reset: bool = False) -> None:
        """Close both sockets at once."""
        self.over = True
        self._watch()
        for sock in (self._near, self._far):
            if reset and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.close()

    def _drain(self, fd: int) -> None:
        """Drop bytes that arrive after the end, until the other side ends, too."""
        for flow in self._flows.values():
            if fd == flow.source.fileno() and not flow.link.ended:
                data = flow.source.recv(CHUNK)
                flow.way.received(len(data))
                flow.way.dropped(len(data))
                flow.link.ended = not data

    def _end(self, now: float) -> None:
        assert self._ending is not None
        self._looked = now
        late = now >= self._ending
        if self._flushing:
            if late or not any(unsent(sock) for sock in (self._near, self._far)):
                self.close(reset=True)
        elif late or all(flow.link.ended for flow in self._flows.values()):
            self.close()

    def _watch(self) -> None:
        """Set the events to poll for."""
        wanted = {fd: 0 for fd in self.descriptors() if fd >= 0}
        if self.over or self._flushing:
            pass
        elif self._connecting:
            wanted[self._far.fileno()] = select.POLLOUT
        else:
            for flow in self._flows.values():
                ending = self._ending is not None and not flow.link.ended
                if ending or (self._ending is None and flow.wants_read()):
                    wanted[flow.source.fileno()] |= select.POLLIN
                if flow.blocked and not flow.way.frozen and self._ending is None:
                    wanted[flow.sink.fileno()] |= select.POLLOUT
        for fd, events in wanted.items():
            if events == self._interest.get(fd, 0):
                continue
            if events:
                self._poller.register(fd, events)
                self._interest[fd] = events
            else:
                self._poller.unregister(fd)
                del self._interest[fd]


def end(sock: socket.socket) -> None:
    """Send the end of file."""
    try:
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        return  # it is no longer connected


def unsent(sock: socket.socket) -> int:
    """Return how many bytes the other side's system has not acknowledged."""
    answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    count: int = struct.unpack("i", answer)[0]
    return count
