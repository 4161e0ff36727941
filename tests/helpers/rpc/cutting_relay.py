"""Stand between a client and a server, count what passes, and cut where a test says.

What is counted are the frames of a direction: over a WebSocket the HTTP head is number 0 and each
frame behind it one more; else each message behind its length is one. Nothing depends on time. Two
threads a connection read one end each; only the reader of an end closes it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, Self

__all__ = ["BEHIND", "WITHIN", "Cut", "Relay", "Side"]

Side = Literal["client", "server"]

# How much of the frame still passes: nothing of it, half of it, or all.
BEFORE, WITHIN, BEHIND = 0.0, 0.5, 1.0

RESET = struct.pack("ii", 1, 0)
CLOSE_1000 = struct.pack(">H", 1000)


class Cut(NamedTuple):
    """Say where a connection ends, and how.

    Attributes:
        toward: the end that the counted frames go to.
        index: the frame at which it happens.
        how: ``reset`` and ``close`` end the connection for ``sides``; the other end hears nothing
            more. ``swallow`` lets both hear nothing more.
        sides: the ends that are told.
        passed: the part of the frame that still passes.
    """

    toward: Side
    index: int
    how: Literal["reset", "close", "swallow"] = "reset"
    sides: tuple[Side, ...] = ("client", "server")
    passed: float = BEFORE


class Relay:
    """Carry connections to ``connect()``, each of which is cut as the next of ``cuts`` says.

    One that ends before its cut, because it was given up on a slow machine, leaves it to the next.
    ``websocket`` says how frames are told apart; a relay with a ``path`` listens there.

    Attributes:
        cuts: what is to happen to connections, in order; may be added to.
        made: the cuts that were made.
        counted: for each connection so far, the frames that went to each end.
        mute: connections that come are accepted, and nothing is carried.
    """

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        *,
        websocket: bool,
        cuts: Sequence[Cut | None] = (),
        path: str | None = None,
    ) -> None:
        self.connect = connect
        self.websocket = websocket
        self.cuts = list(cuts)
        self.made: list[Cut] = []
        self.counted: list[dict[Side, int]] = []
        self.mute = False
        self._lock = threading.Lock()
        self._pairs: list[Pair] = []
        self._threads: list[threading.Thread] = []
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            port = self._listener.getsockname()[1]
            self.url = f"{'ws' if websocket else 'tcp'}://127.0.0.1:{port}"
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(path)
            self._listener.listen()
            self.url = f"unix://{path}"
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        self.kill_all()
        for thread in self._threads:
            thread.join()

    def kill_all(self) -> None:
        """End what is carried, or swallowed, for both its ends."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            for end in pair.ends.values():
                end.kill()

    def cut_all(self) -> None:
        """Reset what is carried at this moment."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.cut("reset", ("client", "server"))

    def swallow_all(self) -> None:
        """Carry nothing any more of what is carried at this moment."""
        with self._lock:
            for pair in self._pairs:
                pair.muted = True

    def join(self, near: socket.socket) -> None:
        """Carry one more connection, whose client is at the other end of ``near``."""
        try:
            far = self.connect()
        except OSError:
            near.close()
            return
        with self._lock:
            self.counted.append({"server": 0, "client": 0})
            pair = Pair(self, near, far, self.counted[-1])
            self._pairs.append(pair)
            pair.muted = self.mute
            threads = [threading.Thread(target=pair.pump, args=(s,)) for s in ("client", "server")]
            self._threads += threads
        for thread in threads:
            thread.start()

    def cuts_now(self, pair: Pair, toward: Side, index: int) -> Cut | None:
        """Return the next cut if this frame is the one, or the first that comes behind it."""
        with self._lock:
            due = self.cuts[len(self.made) :][:1]
            if not due or due[0].toward != toward or index < due[0].index:
                return None
            if pair is not self._pairs[-1]:
                return None  # given up by its client
            self.made += due
            return due[0]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the end of the listener
            while True:
                self.join(self._listener.accept()[0])


class End:
    """One end of a carried connection."""

    def __init__(self, sock: socket.socket, masks: bool) -> None:
        sock.setblocking(False)
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.masks = masks  # what is written there
        self.lock = threading.Lock()
        self.told: str | None = None  # how its reader is to end it
        self.heard, self._teller = socket.socketpair()

    def tell(self, how: str) -> None:
        with self.lock:
            if self.told is None:
                self.told = how
                self._teller.send(b"x")  # never read, so that everybody hears it

    def write(self, data: bytes) -> None:
        """Write all, unless the end is told to go."""
        rest = memoryview(data)
        poller = select.poll()
        with contextlib.suppress(OSError, ValueError):  # it is gone, as its reader will find
            poller.register(self.sock, select.POLLOUT)
            poller.register(self.heard, select.POLLIN)
            while rest and self.told is None:
                with self.lock, contextlib.suppress(BlockingIOError):
                    rest = rest[self.sock.send(rest) :]
                    continue
                poller.poll()

    def kill(self) -> None:
        with self.lock, contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self.lock:
            self.told = self.told or "closed"
            self._teller.close()
            if self.told == "reset" and self.sock.family != socket.AF_UNIX:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.sock.close()

    def say_goodbye(self, websocket: bool) -> None:
        if websocket and self.told == "close":
            mask = bytes(4) if self.masks else b""
            self.sock.send(bytes((0x88, 2 | len(mask) << 5)) + mask + CLOSE_1000)
        if self.told == "end" or not (websocket and self.masks):  # a server closes first
            self.sock.shutdown(socket.SHUT_WR)


class Pair:
    """Carry one connection until both ends are gone."""

    def __init__(
        self,
        relay: Relay,
        near: socket.socket,
        far: socket.socket,
        counted: dict[Side, int],
    ) -> None:
        self.relay = relay
        self.counted = counted
        self.muted = False
        self.ends: dict[str, End] = {"client": End(near, False), "server": End(far, True)}

    def cut(self, how: str, sides: Sequence[Side]) -> None:
        self.muted = True
        for side in sides:
            self.ends[side].tell(how)

    def pump(self, side: Side) -> None:
        """Read one end until it is gone; be the one who closes it."""
        end = self.ends[side]
        toward: Side = "server" if side == "client" else "client"
        frames = Frames(self.relay.websocket)
        poller = select.poll()
        poller.register(end.sock, select.POLLIN)
        poller.register(end.heard, select.POLLIN)
        with contextlib.suppress(OSError):  # reset by the one under test
            while True:
                told = any(fd == end.heard.fileno() for fd, _ in poller.poll())
                if told:
                    if end.told == "reset":
                        break
                    poller.unregister(end.heard)
                    end.say_goodbye(self.relay.websocket)
                    continue
                data = end.sock.recv(65536)
                if not data:
                    break
                for index, frame in frames.of(data):
                    self._carry(toward, frame, index)
        end.close()
        end.heard.close()
        if not self.muted:  # the one under test has ended it: the other hears the same
            self.cut("end", (toward,))

    def _carry(self, toward: Side, frame: bytes, index: int) -> None:
        if self.muted:
            return
        self.counted[toward] += 1
        cut = self.relay.cuts_now(self, toward, index)
        if cut is None:
            self.ends[toward].write(frame)
            return
        self.ends[toward].write(frame[: int(len(frame) * cut.passed)])
        if cut.how == "swallow":
            self.muted = True
        else:
            self.cut(cut.how, cut.sides)


class Frames:
    """Part a direction's bytes into frames."""

    def __init__(self, websocket: bool) -> None:
        self._count = 0
        self.rest = b""
        self._head = websocket
        self._websocket = websocket

    def of(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the frames that are complete now, with their numbers."""
        self.rest += data
        while (size := self._size()) is not None and size <= len(self.rest):
            frame, self.rest = self.rest[:size], self.rest[size:]
            self._count += 1
            yield self._count - 1, frame

    def _size(self) -> int | None:
        rest = self.rest
        if self._head:
            end = rest.find(b"\r\n\r\n")
            self._head = end < 0
            return None if end < 0 else end + 4
        if not self._websocket:
            return None if len(rest) < 4 else 4 + int.from_bytes(rest[:4], "big")
        if len(rest) < 2:
            return None
        mask, short = 4 * (rest[1] >> 7), rest[1] & 127
        wide = {126: 2, 127: 8}.get(short, 0)
        if len(rest) < 2 + wide:
            return None
        size = int.from_bytes(rest[2 : 2 + wide], "big") if wide else short
        return 2 + wide + mask + size
