"""Stand between the two ends of WebSockets as a gateway that takes no long frames."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import BinaryIO, Self

from .timeouts import WAIT

__all__ = ["FrameLimit"]

TOO_BIG = (1009).to_bytes(2, "big")

# A close frame with that code; of a client, with a mask that changes nothing.
TO_CLIENT = b"\x88\x02" + TOO_BIG
TO_SERVER = b"\x88\x82\0\0\0\0" + TOO_BIG


class FrameLimit:
    """Carry WebSockets to a port on loopback; end each with 1009 at a frame that is too long.

    So does Amazon API Gateway, at 32 KiB.

    Attributes:
        url: where it listens.
        limit: the longest payload that passes.
        accepted: how many came.
    """

    def __init__(self, port: int, limit: int) -> None:
        self.limit = limit
        self.accepted = 0
        self._port = port
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"ws://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(WAIT)
        with self._lock:
            left = list(self._open)
        for sock in left:
            end(sock)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            self.accepted += 1
            try:
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                client.close()  # the server has been shut down
                continue
            for source, target in ((client, server), (server, client)):
                threading.Thread(
                    target=self._carry, args=(source, target, client, server), daemon=True
                ).start()

    def _carry(
        self,
        source: socket.socket,
        target: socket.socket,
        client: socket.socket,
        server: socket.socket,
    ) -> None:
        with self._lock:
            self._open.add(source)
        try:
            with source.makefile("rb") as file:
                line = None
                while line != b"\r\n":
                    line = file.readline()
                    if not line:
                        return
                    target.sendall(line)
                while piece := self._frame(file):
                    target.sendall(piece)
        except _TooLongError:
            with suppress(OSError):  # it has gone
                client.sendall(TO_CLIENT)
            with suppress(OSError):
                server.sendall(TO_SERVER)
            drain(source)
        except OSError:
            pass  # one of them has gone, so the other one goes, too
        finally:
            for sock in (source, target):
                end(sock)
            with self._lock:
                self._open.discard(source)
            source.close()

    def _frame(self, file: BinaryIO) -> bytes:
        """Return a whole frame; ``b""`` at the end of the file."""
        head = file.read(2)
        if len(head) < 2:
            return b""
        size = head[1] & 127
        if size > 125:
            longer = file.read(2 if size == 126 else 8)
            head, size = head + longer, int.from_bytes(longer, "big")
        rest = file.read(size + (4 if head[1] & 128 else 0))
        if size > self.limit:
            raise _TooLongError
        return head + rest


class _TooLongError(Exception):
    """A frame is longer than the gateway takes."""


def drain(sock: socket.socket) -> None:
    """Read until the other end closes: a reset, as by closing before, may hide the close frame."""
    with suppress(OSError):  # it has gone, or the whole gateway ends
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(WAIT)
        while sock.recv(65536):
            continue


def end(sock: socket.socket) -> None:
    with suppress(OSError):  # the other end was faster
        sock.shutdown(socket.SHUT_RDWR)
