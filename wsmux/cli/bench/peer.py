"""Say what a measured library must offer, and what its server does.

A line is one lane between client and server: a stream, or a WebSocket where there are no streams.
Its first message, or its first bytes, say what the client wants:

- ``E`` and anything: send all of it back, this message included, until the line ends;
- ``U`` and a uint64: that many bytes will come; answer with the number that came;
- ``D`` and a uint64: send that many bytes.
"""

from __future__ import annotations

import importlib.util
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ClassVar, NamedTuple

__all__ = ["CHUNK", "DOWNLOAD", "ECHO", "HEAD", "UPLOAD", "Line", "Open", "Peer", "serve_line"]

CHUNK = 64 * 1024  # a message of the raw pair, a write of a stream

UPLOAD, DOWNLOAD, ECHO = b"U", b"D", b"E"
HEAD = struct.Struct(">cQ")


class Line(NamedTuple):
    """Carry bytes both ways.

    ``receive(n)`` returns at most ``n`` bytes, or one message whatever its size, and ``b""`` at
    the end.
    """

    send: Callable[[bytes], object]
    receive: Callable[[int], bytes]
    close: Callable[[], object]


Open = Callable[[], Line]


class Peer(ABC):
    """Be one variant of the measurement: a library, or a pair of them, with its settings.

    A module in ``peers/`` lists its own in ``PEERS``. The methods are called in worker processes.

    Attributes:
        name: one word, for the command line and the results.
        about: what it is, in a few words.
        needs: modules that must be installed.
        hides: modules that are made to look as if they were not, before anything is imported.
        environment: variables to set in both processes; ``None`` removes one.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    hides: ClassVar[tuple[str, ...]] = ()
    environment: ClassVar[dict[str, str | None]] = {}

    def lacks(self) -> str | None:
        """Return the first needed module that is not installed."""
        return next((m for m in self.needs if importlib.util.find_spec(m) is None), None)

    def check(self) -> None:  # noqa: B027  (most have nothing to check)
        """Raise ``RuntimeError`` when this process is not what the name promises."""

    @abstractmethod
    def serve(self) -> AbstractContextManager[str]:
        """Run ``serve_line`` for every line of every client; return the address."""

    @abstractmethod
    def connect(self, address: str) -> AbstractContextManager[Open]:
        """Return what opens lines to a server."""


def serve_line(line: Line) -> None:
    """Do what the client asks for, as the server."""
    first = line.receive(CHUNK)
    if first[:1] == ECHO:
        while first:
            line.send(first)
            first = line.receive(CHUNK)
        return
    while first and len(first) < HEAD.size:
        first += line.receive(CHUNK)
    if not first:
        return
    command, size = HEAD.unpack_from(first)
    if command == UPLOAD:
        _take(line, size, len(first) - HEAD.size)
    elif command == DOWNLOAD:
        send_bytes(line, size)
    else:
        raise ValueError(f"unknown command {command!r}")


def _take(line: Line, size: int, received: int) -> None:
    receive = line.receive
    while received < size:
        chunk = receive(CHUNK)
        if not chunk:
            break
        received += len(chunk)
    line.send(HEAD.pack(UPLOAD, received))


def send_bytes(line: Line, size: int) -> None:
    """Send ``size`` bytes in chunks, as either side."""
    chunk, send = bytes(CHUNK), line.send
    for _ in range(size // CHUNK):
        send(chunk)
    if size % CHUNK:
        send(chunk[: size % CHUNK])
