"""Say what client and server tell each other on a line, once for every library.

A line is one lane between them: a stream, or a WebSocket where there are no streams. Its first
message, or its first bytes, say what the client wants:

- ``E`` and anything: send all of it back, this message included, until the line ends;
- ``U`` and a uint64: that many bytes will come; answer with the number that came, and a ``W`` and a
  uint64 behind it with the bytes that may lie unread on this line by now;
- ``D`` and a uint64: send that many bytes;
- ``S`` and a uint64: send that many messages of ``SMALL`` bytes;
- ``M`` and a uint64: answer with the bytes of memory the server takes, and the same for each
  further message of that kind; with ``P`` the most that it took since it was last asked.

Each side is a generator that knows no library: it yields the bytes it wants sent, or ``None`` for
those it wants received, which are ``b""`` at the end. ``talk`` carries it out where calls block.

Bulk is a block of random bytes, over and over. What is checked of each piece is its first and last
byte, which tell its place but for one in 256: comparing all of it would take as long as some
variants take to carry it.
"""

from __future__ import annotations

import gc
import os
import random
import re
import struct
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

CHUNK = 64 * 1024  # a message of the raw pair, a write of a stream
SMALL = 64  # bytes of a small message

UPLOAD, DOWNLOAD, ECHO, SMALL_ONES = b"U", b"D", b"E", b"S"
MEMORY, PEAK, WINDOW = b"M", b"P", b"W"
HEAD = struct.Struct(">cQ")

_BLOCK = random.Random(6455).randbytes(CHUNK)


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
Talk = Generator[bytes | None, Any, T]


def talk(line: Line, words: Talk[T]) -> T:
    """Send and receive what one side wants, and return what it returns."""
    got = None
    try:
        while True:
            data = words.send(got)
            got = line.receive(CHUNK) if data is None else None
            if data is not None:
                line.send(data)
    except StopIteration as end:
        value: T = end.value
        return value


def answers(receive: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield what a server sends on a line, for libraries that ask for it."""
    words, got = answer(), None
    while True:
        try:
            data = words.send(got)
        except StopIteration:
            return
        got = receive(CHUNK) if data is None else None
        if data is not None:
            yield data


def serve_line(line: Line) -> None:
    """Do what the client asks for, as the server."""
    talk(line, answer(line.window))


# The server


def answer(window: Callable[[], int] = int) -> Talk[None]:
    """Do what the client asks for."""
    first = yield None
    if first[:1] == ECHO:
        while first:
            yield first
            first = yield None
        return
    while len(first) < HEAD.size:
        more = (yield None) if first else b""
        if not more:
            return  # the line has ended
        first += more
    command, size = HEAD.unpack_from(first)
    if command == UPLOAD:
        received = check_piece(first[HEAD.size :], 0)
        while received < size and (chunk := (yield None)):
            received = check_piece(chunk, received)
        yield HEAD.pack(UPLOAD, received)
        if (yield None)[:1] == WINDOW:
            yield HEAD.pack(WINDOW, window())
    elif command == DOWNLOAD:
        yield from pieces(size)
    elif command == SMALL_ONES:
        yield from [bytes(SMALL)] * size
    elif command in (MEMORY, PEAK):
        while first:
            yield HEAD.pack(command, memory() if command == MEMORY else peak())
            first = yield None
    else:
        raise ValueError(f"unknown command {command!r}")


# The client


def echo_of(size: int) -> bytes:
    """Return a message of ``size`` bytes that a server sends back."""
    return ECHO + b"".join(pieces(size - 1))


def exchange(message: bytes) -> Talk[None]:
    """Send a message and wait until it is back."""
    yield message
    data = yield None
    if data != message and (yield from _whole(len(message), data)) != message:
        raise RuntimeError("the echo is not what was sent")


def upload(size: int) -> Talk[None]:
    """Send ``size`` bytes, and wait until their count has come."""
    yield HEAD.pack(UPLOAD, size)
    yield from pieces(size)
    counted = yield from number(UPLOAD)
    if counted != size:
        raise RuntimeError(f"the server counted {counted} of {size} bytes")


def download(size: int) -> Talk[None]:
    """Have ``size`` bytes sent, and wait until the last has come."""
    yield HEAD.pack(DOWNLOAD, size)
    yield from take(size)


def take(size: int) -> Talk[None]:
    """Receive ``size`` bytes of bulk."""
    received = 0
    while received < size:
        chunk = yield None
        if not chunk:
            raise RuntimeError(f"{size - received} of {size} bytes did not come")
        received = check_piece(chunk, received)
    if received > size:
        raise RuntimeError(f"{received - size} bytes more than {size} came")


def subscribe(count: int) -> Talk[None]:
    """Have small messages sent, and wait until the last has come."""
    yield HEAD.pack(SMALL_ONES, count)
    yield from take_all(bytes(SMALL), count)


def take_all(message: bytes, count: int) -> Talk[None]:
    """Receive so many messages, each of which must be that one."""
    for received in range(count):
        if (yield None) != message:
            raise RuntimeError(f"message {received + 1} of {count} is not what was asked for")


def number(command: bytes) -> Talk[int]:
    """Receive what the server answers to a command."""
    answered, value = HEAD.unpack((yield from _whole(HEAD.size, (yield None))))
    if answered != command:
        raise RuntimeError(f"the server answered {answered!r} to {command!r}")
    return int(value)


def _whole(size: int, data: bytes) -> Talk[bytes]:
    """Receive so many bytes, or more that come with them; ``data`` has come already."""
    while len(data) < size:
        more = yield None
        if not more:
            raise RuntimeError("the line ended in the middle of a measurement")
        data += more
    return data


# The bytes


def pieces(size: int) -> list[bytes]:
    """Return ``size`` bytes of bulk in chunks, which are all the same object."""
    rest = size % CHUNK
    return [_BLOCK] * (size // CHUNK) + ([_BLOCK[:rest]] if rest else [])


def check_piece(piece: bytes, place: int) -> int:
    """Return the place in the bulk behind ``piece``, which begins at ``place``.

    Raises:
        RuntimeError: it is not what belongs there.
    """
    end = place + len(piece)
    if piece and (piece[0] != _BLOCK[place % CHUNK] or piece[-1] != _BLOCK[(end - 1) % CHUNK]):
        raise RuntimeError(f"the bytes from {place} to {end} are not those that were sent")
    return end


def memory() -> int:
    """Return the bytes of this process that are in memory, without garbage."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """Return the most bytes of this process that were in memory since this was last asked."""
    (most,) = re.findall(
        r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE
    )
    Path("/proc/self/clear_refs").write_text("5")
    return int(most) * 1024
