"""Serve streams whose first line says what to do; the same code behind every carrier.

A line is a command and its numbers, ``source 1000 7``. Everything a command needs from elsewhere
comes over further streams, so that a test needs nothing but its connection: ``stall 3`` waits
until another stream says ``go 3``, ``stats`` answers with the server's ``ConnectionStats``.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections.abc import Callable

import wsmux

from .timeouts import WAIT

__all__ = ["REPEAT", "WAIT", "call", "command", "digest", "echo", "handle", "pattern"]

# Seconds after which a stalled handler looks whether its connection has ended.
GLANCE = 0.05

# Bytes of a pattern before it repeats: a prime, so that no frame boundary falls on the seam twice.
REPEAT = 65_537

CHUNK = 64 * 1024

_gates: dict[str, threading.Event] = {}


def pattern(size: int, seed: int) -> bytes:
    """Return ``size`` bytes that only ``seed`` gives."""
    block = random.Random(seed).randbytes(min(size, REPEAT))
    return block if size <= REPEAT else (block * (size // REPEAT + 1))[:size]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def command(*words: object) -> bytes:
    return " ".join(str(word) for word in words).encode() + b"\n"


def call(connection: wsmux.Connection, *words: object) -> bytes:
    """Give a command on a stream of its own and return the whole answer."""
    with connection.open_stream(timeout=WAIT) as stream:
        stream.timeout = WAIT
        stream.write(command(*words))
        stream.close_write()
        return stream.read()


def handle(stream: wsmux.Stream) -> None:
    """Handle each stream."""
    stream.timeout = WAIT
    name, *numbers = stream.readline().decode().split()
    COMMANDS[name](stream, *map(int, numbers))


def echo(stream: wsmux.Stream) -> None:
    while chunk := stream.read(CHUNK):
        stream.write(chunk)


def _sink(stream: wsmux.Stream) -> None:
    """Answer with the digest of everything that comes."""
    stream.write(digest(stream.read()).encode())


def _source(stream: wsmux.Stream, size: int, seed: int) -> None:
    stream.write(pattern(size, seed))


def _reset(stream: wsmux.Stream, code: int) -> None:
    stream.reset(code)


def _stall_reset(stream: wsmux.Stream, gate: int, code: int) -> None:
    """Read nothing before ``go``, then reset."""
    _wait_for_go(stream, gate)
    stream.reset(code)


def _reset_after(stream: wsmux.Stream, size: int, code: int) -> None:
    """Reset after ``size`` bytes were read."""
    while size:
        size -= len(stream.read(size))
    stream.reset(code)


def _raise(stream: wsmux.Stream) -> None:
    raise ArithmeticError("as the test asked")


def _close_read(stream: wsmux.Stream) -> None:
    """Stop reading at once, and write on."""
    stream.close_read()
    stream.write(b"not reading")


def _close_write(stream: wsmux.Stream) -> None:
    """End writing at once, read on, and report on a stream back what was read."""
    stream.close_write()
    received = stream.read()
    with stream.connection.open_stream(timeout=WAIT) as report:
        report.write(digest(received).encode())


def _call_back(stream: wsmux.Stream) -> None:
    """Open a stream to the client and echo on it."""
    with stream.connection.open_stream(timeout=WAIT) as back:
        back.timeout = WAIT
        echo(back)


def _gate(stream: wsmux.Stream, number: int) -> threading.Event:
    # Both sides may ask at once, and must get the same one.
    return _gates.setdefault(f"{stream.connection.name} {number}", threading.Event())


def _wait_for_go(stream: wsmux.Stream, gate: int) -> None:
    while not _gate(stream, gate).wait(GLANCE):
        if stream.connection.closed:
            raise wsmux.ConnectionClosedError(1006, f"no go {gate}")


def _stall(stream: wsmux.Stream, gate: int) -> None:
    """Read nothing before ``go``, then be a sink."""
    _wait_for_go(stream, gate)
    _sink(stream)


def _go(stream: wsmux.Stream, gate: int) -> None:
    _gate(stream, gate).set()


def _stats(stream: wsmux.Stream) -> None:
    stream.write(json.dumps(stream.connection.stats()._asdict()).encode())


def _ping(stream: wsmux.Stream) -> None:
    stream.connection.ping(WAIT)


def _nest(stream: wsmux.Stream, depth: int) -> None:
    """Call the peer, which runs this handler too, ``depth`` times in turn."""
    if depth:
        stream.write(call(stream.connection, "nest", depth - 1))
    stream.write(b".")


def _go_away(stream: wsmux.Stream) -> None:
    stream.connection.go_away()
    stream.write(b"gone")


def _close_connection(stream: wsmux.Stream, code: int) -> None:
    stream.connection.begin_close(code=code, reason="as the test asked")


def _abort(stream: wsmux.Stream) -> None:
    stream.connection.abort()


COMMANDS: dict[str, Callable[..., None]] = {
    "abort": _abort,
    "call-back": _call_back,
    "close-connection": _close_connection,
    "close-read": _close_read,
    "close-write": _close_write,
    "echo": echo,
    "go": _go,
    "go-away": _go_away,
    "nest": _nest,
    "ping": _ping,
    "raise": _raise,
    "reset": _reset,
    "reset-after": _reset_after,
    "sink": _sink,
    "source": _source,
    "stall": _stall,
    "stall-reset": _stall_reset,
    "stats": _stats,
}
