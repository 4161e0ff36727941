"""Say what a measured library must offer, and what its server does.

A line is one lane between client and server: a stream, or a WebSocket where there are no streams.
Its first message, or its first bytes, say what the client wants:

- ``E`` and anything: send all of it back, this message included, until the line ends;
- ``U`` and a uint64: that many bytes will come; answer with the number that came, and a ``W`` and a
  uint64 behind it with the bytes that may lie unread on this line by now;
- ``D`` and a uint64: send that many bytes;
- ``M`` and a uint64: answer with the bytes of memory the server takes, and the same for each
  further message of that kind.
"""

from __future__ import annotations

import os
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple

from .environment import missing_module
from .payload import CHUNK, check_piece, memory, pieces

__all__ = [
    "CHUNK",
    "CONNECTIONS",
    "DOWNLOAD",
    "ECHO",
    "HEAD",
    "IDLE_CONNECTIONS",
    "MEMORY",
    "OURS",
    "UPLOAD",
    "WINDOW",
    "Client",
    "Grown",
    "Line",
    "Open",
    "Peer",
    "Serve",
    "Tail",
    "answers",
    "serve_line",
]

# Figures that some leave out: of many connections; of idle ones, since a line is one; and of what
# only wsmux has, idle streams by the thousand and a window that is told.
CONNECTIONS = tuple(f"connections-{count}" for count in (1, 10, 50, 200))
IDLE_CONNECTIONS = ("idle-connection-server", "idle-connection-client")
OURS = ("among-idle", "tail-window")

UPLOAD, DOWNLOAD, ECHO, MEMORY, WINDOW = b"U", b"D", b"E", b"M", b"W"
HEAD = struct.Struct(">cQ")


class Line(NamedTuple):
    """Carry bytes both ways.

    ``receive(n)`` returns at most ``n`` bytes, or one message whatever its size, and ``b""`` at
    the end. ``window()`` returns the bytes that the other side may send before they are read, 0 if
    that is not known.
    """

    send: Callable[[bytes], object]
    receive: Callable[[int], bytes]
    close: Callable[[], object]
    window: Callable[[], int] = int


Open = Callable[[], Line]
Serve = Callable[[Line], object]


class Tail(NamedTuple):
    """Hold how long small messages took under bulk, in seconds, and bytes of bulk per second.

    The ``window`` is what of the bulk might be unread, in bytes, when it ended; 0 if not known.
    """

    p50: float
    p99: float
    rate: float
    window: int


class Grown(NamedTuple):
    """Hold bytes of memory for each thing that was opened."""

    server: float
    client: float


class Client(ABC):
    """Do the client's part of each measurement, and hold the clock.

    ``blocking.py`` does it with lines. A library that blocks no thread brings its own, so that
    its loops run where the library wants them. What lasts so many seconds returns how many there
    were, and the seconds that took.

    Attributes:
        most_idle: lines that may be open and idle at once.
    """

    most_idle = 1_000

    @abstractmethod
    def upload(self, size: int) -> float:
        """Send ``size`` bytes on a new line; return the seconds until their count has come."""

    @abstractmethod
    def download(self, size: int) -> float:
        """Have ``size`` bytes sent on a new line; return the seconds until the last has come."""

    @abstractmethod
    def echo(self, size: int) -> float:
        """Have ``size`` bytes sent back on a new line, none waited for; return the seconds."""

    @abstractmethod
    def pings(self, size: int, lines: int, seconds: float) -> tuple[int, float]:
        """Exchange messages of ``size`` bytes on all lines at once, each after one not counted."""

    @abstractmethod
    def opens(self, size: int, seconds: float) -> tuple[int, float]:
        """Open a line, exchange ``size`` bytes and close it, one line after the other."""

    def tail(self, size: int, bulk: int) -> Tail:
        """Exchange messages of ``size`` bytes on one line while another uploads ``bulk`` bytes."""
        raise NotImplementedError(f"{type(self).__name__} does one thing at a time")

    def connections(self, size: int, count: int, seconds: float) -> tuple[int, float]:
        """Do what ``pings`` does with one line on each of ``count`` new connections."""
        raise NotImplementedError(f"{type(self).__name__} has one connection")

    def idle_lines(self, count: int) -> Grown:
        """Open lines that do nothing; return what each takes. The processes are new ones."""
        raise NotImplementedError(f"{type(self).__name__} does not tell its memory")

    def idle_connections(self, count: int) -> Grown:
        """Do the same with connections, on each of which there was one exchange."""
        raise NotImplementedError(f"{type(self).__name__} has one connection")

    def pings_among_idle(self, size: int, count: int, seconds: float) -> float:
        """Return the rate of ``pings`` on one line among ``count`` idle ones, to that among none.

        The processes are new ones.
        """
        raise NotImplementedError(f"{type(self).__name__} has no idle lines")

    def beside(self, rate: Callable[[Client], float]) -> float:
        """Return a rate, to that of the same in the same processes without what is measured."""
        raise NotImplementedError(f"{type(self).__name__} has nothing beside it")


class Peer(ABC):
    """One variant of the measurement: a library, or a pair of them, with its settings.

    A module in ``peers/`` lists its own in ``PEERS``. The methods are called in worker processes.

    Attributes:
        name: one word, for the command line and the results.
        about: what it is, in a few words.
        base: the variant that ratios are taken against.
        protocol: the wire it is there for, which ``--protocol`` chooses it by.
        needs: modules that must be installed.
        hides: modules that are made to look as if they were not, before anything is imported.
        environment: variables to set in both processes; ``None`` removes one.
        python_variable: the environment variable that names the Python to run it, where it needs
            another one than this.
        kind: what is measured of it: ``"streams"``, or with the option of that name ``"rpc"``,
            ``"bus"`` or ``"spark"``; ``connect`` yields a ``Client``, ``Calls``, a ``BusClient`` or
            a ``SparkClient``.
        leaves_out: figures that cannot be taken of it.
        on_demand: whether it is measured only when it is named, or with ``--all``.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    base: ClassVar[str] = "raw"
    protocol: ClassVar[str | None] = None
    needs: ClassVar[tuple[str, ...]] = ()
    hides: ClassVar[tuple[str, ...]] = ()
    environment: ClassVar[dict[str, str | None]] = {}
    python_variable: ClassVar[str | None] = None
    kind: ClassVar[str] = "streams"
    leaves_out: ClassVar[tuple[str, ...]] = ()
    on_demand: ClassVar[bool] = False

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
    def connect(self, address: str) -> AbstractContextManager[Any]:
        """Return what measures a server."""


def serve_line(line: Line, first: bytes | None = None) -> None:
    """Do what the client asks for, as the server; ``first`` has been received already."""
    send = line.send
    for message in answers(line.receive, first, line.window):
        send(message)


def answers(
    receive: Callable[[int], bytes],
    first: bytes | None = None,
    window: Callable[[], int] = int,
) -> Iterator[bytes]:
    """Yield what a server sends on a line, for libraries that ask for it."""
    if first is None:
        first = receive(CHUNK)
    if first[:1] == ECHO:
        while first:
            yield first
            first = receive(CHUNK)
        return
    while len(first) < HEAD.size:
        more = receive(CHUNK) if first else b""
        if not more:
            return  # the line has ended
        first += more
    command, size = HEAD.unpack_from(first)
    if command == UPLOAD:
        yield HEAD.pack(UPLOAD, _take(receive, size, first[HEAD.size :]))
        if receive(CHUNK)[:1] == WINDOW:
            yield HEAD.pack(WINDOW, window())
    elif command == DOWNLOAD:
        yield from pieces(size)
    elif command == MEMORY:
        while first:
            yield HEAD.pack(MEMORY, memory())
            first = receive(CHUNK)
    else:
        raise ValueError(f"unknown command {command!r}")


def _take(receive: Callable[[int], bytes], size: int, first: bytes) -> int:
    """Receive up to ``size`` bytes of bulk; return how many came."""
    received = check_piece(first, 0) if first else 0
    while received < size:
        chunk = receive(CHUNK)
        if not chunk:
            break
        received = check_piece(chunk, received)
    return received
