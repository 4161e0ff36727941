"""Say what a measured library must offer, and what its server does.

A line is one lane between client and server: a stream, or a WebSocket where there are no streams.
Its first message, or its first bytes, say what the client wants:

- ``E`` and anything: send all of it back, this message included, until the line ends;
- ``U`` and a uint64: that many bytes will come; answer with the number that came;
- ``D`` and a uint64: send that many bytes.
"""

from __future__ import annotations

import os
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from .interpreters import missing_module

if TYPE_CHECKING:
    from .calls import Calls

__all__ = [
    "CHUNK",
    "DOWNLOAD",
    "ECHO",
    "HEAD",
    "UPLOAD",
    "Client",
    "Line",
    "Open",
    "Peer",
    "send_bytes",
    "serve_line",
]

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


class Client(ABC):
    """Do the client's part of each measurement, and hold the clock.

    ``blocking.py`` does it with lines. A library that blocks no thread brings its own, so that
    its loops run where the library wants them.
    """

    @abstractmethod
    def upload(self, size: int) -> float:
        """Send ``size`` bytes on a new line; return the seconds until their count has come."""

    @abstractmethod
    def download(self, size: int) -> float:
        """Have ``size`` bytes sent on a new line; return the seconds until the last has come."""

    @abstractmethod
    def pings(self, size: int, lines: int, seconds: float) -> tuple[int, float]:
        """Exchange messages of ``size`` bytes on all lines at once, each after one not counted.

        Return how many came back, and the seconds that took.
        """

    @abstractmethod
    def opens(self, size: int, seconds: float) -> tuple[int, float]:
        """Open a line, exchange ``size`` bytes and close it, one line after the other.

        Return how many lines, and the seconds that took.
        """


class Peer(ABC):
    """Be one variant of the measurement: a library, or a pair of them, with its settings.

    A module in ``peers/`` lists its own in ``PEERS``. The methods are called in worker processes.

    Attributes:
        name: one word, for the command line and the results.
        about: what it is, in a few words.
        base: the variant that ratios are taken against.
        protocol: the wire it is there for; ``None`` when it is measured unasked.
        needs: modules that must be installed.
        hides: modules that are made to look as if they were not, before anything is imported.
        environment: variables to set in both processes; ``None`` removes one.
        python_variable: the environment variable that names the Python to run it, where it needs
            another one than this.
        rpc: it makes calls, and is measured with ``--rpc`` only; ``connect`` returns ``Calls``.
        leaves_out: figures that cannot be taken of it.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    base: ClassVar[str] = "raw"
    protocol: ClassVar[str | None] = None
    needs: ClassVar[tuple[str, ...]] = ()
    hides: ClassVar[tuple[str, ...]] = ()
    environment: ClassVar[dict[str, str | None]] = {}
    python_variable: ClassVar[str | None] = None
    rpc: ClassVar[bool] = False
    leaves_out: ClassVar[tuple[str, ...]] = ()

    @property
    def python(self) -> str | None:
        """The Python that runs it; ``None`` when nobody has named the one it needs."""
        variable = self.python_variable
        return sys.executable if variable is None else os.environ.get(variable) or None

    def python_of(self, role: str) -> str | None:
        """Return the Python of the server's or the client's process."""
        return self.python

    def lacks(self) -> str | None:
        """Return why it cannot be measured here; ``None`` when it can."""
        if self.python is None:
            return f"{self.python_variable} names no Python that has {self.needs[0]}"
        try:
            missing = missing_module(self.python, self.needs)
        except OSError as error:
            return str(error)
        where = f" for {self.python}" if self.python_variable else ""
        return missing and f"{missing} is not installed{where}"

    def check(self) -> None:  # noqa: B027  (most have nothing to check)
        """Raise ``RuntimeError`` when this process is not what the name promises."""

    @abstractmethod
    def serve(self) -> AbstractContextManager[str]:
        """Run ``serve_line`` for every line of every client; return the address."""

    @abstractmethod
    def connect(self, address: str) -> AbstractContextManager[Client | Calls]:
        """Return what measures a server."""


def serve_line(line: Line, first: bytes | None = None) -> None:
    """Do what the client asks for, as the server; ``first`` has been received already."""
    if first is None:
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
