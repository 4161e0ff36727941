"""The far end of what is measured: ``python -m tests.helpers.load.far KIND WIRE [NUMBER]``.

It prints its URL and serves until its standard input ends.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import wsmux
from wsmux import rpc

from .measuring import WAIT

__all__ = ["CHUNK", "FILE", "content"]

# What is read and written at a time in bulk.
CHUNK = 256 * 1024

# Bytes of one of many small files.
FILE = 32

_go = threading.Event()


def content(name: bytes) -> bytes:
    """Return the file of a name."""
    return hashlib.sha256(name).digest()[:FILE]


def echo(stream: wsmux.Stream) -> None:
    """Echo to the end; where that is all, ``stats`` is answered with the connection's."""
    stream.timeout = WAIT
    while data := stream.read(CHUNK):
        if data == b"stats":
            data = json.dumps(stream.connection.stats()._asdict()).encode()
        stream.write(data)


def drain(stream: wsmux.Stream) -> None:
    """Read to the end and answer with the digest; a stream that begins with ``-`` waits first.

    It waits until another begins with ``!``.
    """
    stream.timeout = WAIT
    buffer = bytearray(CHUNK)
    digest = hashlib.sha256()
    while count := stream.readinto(buffer):
        if buffer[:1] == b"-":
            _go.wait(WAIT)
        elif buffer[:1] == b"!":
            _go.set()
        digest.update(memoryview(buffer)[:count])
    stream.write(digest.digest())


def take(stream: wsmux.Stream) -> None:
    """Answer with the digest of what comes; no buffer of its own, so memory is the library's."""
    stream.timeout = WAIT
    digest = hashlib.sha256()
    while data := stream.read(CHUNK):
        digest.update(data)
    stream.write(digest.digest())


def mixed(stream: wsmux.Stream) -> None:
    """Do what the first byte says: echo, reset, cut the connection, or end without reading."""
    stream.timeout = WAIT
    word = stream.read(1)
    if word == b"e":
        while data := stream.read(CHUNK):
            stream.write(data)
    elif word == b"r":
        stream.reset(99)
    elif word == b"a":
        stream.connection.abort()


def each_once(connection: wsmux.Connection) -> None:
    """Accept so many streams, then echo once on each; all in this thread."""
    count = int(sys.argv[3])
    streams = [connection.accept_stream(WAIT) for _ in range(count)]
    for stream in streams:
        stream.timeout = WAIT
        stream.write(stream.read(FILE * 2))
    connection.wait_closed()


def give_files(connection: wsmux.Connection) -> None:
    """Answer each stream's line with a file, and leave the stream open for the client to end."""
    kept = []
    for stream in connection:
        stream.timeout = WAIT
        stream.write(content(stream.readline()))
        stream.close_write()
        kept.append(stream)


def in_turn(connection: wsmux.Connection) -> None:
    """Echo on one stream after the other, in this thread."""
    for stream in connection:
        with stream:
            echo(stream)


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "drain": lambda: {"stream_handler": drain, "workers": 128},
    "each": lambda: {
        "handler": each_once,
        "config": wsmux.Config(max_streams=int(sys.argv[3]), max_unaccepted=int(sys.argv[3])),
    },
    "echo": lambda: {"stream_handler": echo, "max_connections": 2000},
    "files": lambda: {
        "handler": give_files,
        "config": wsmux.Config(max_streams=int(sys.argv[3]), max_unaccepted=int(sys.argv[3])),
    },
    "mixed": lambda: {"stream_handler": mixed},
    "in-turn": lambda: {
        "handler": in_turn,
        "config": wsmux.Config(max_unaccepted=1000),
    },
    "take": lambda: {"stream_handler": take, "workers": 128},
}


def river() -> rpc.RpcServer:
    """Serve a number that can be changed, so many subscriptions to it, and an rpc beside them."""
    service = rpc.Service("test")
    changed = rpc.Signal()
    numbers = [0]
    service.rpc(name="same")(lambda ctx, init: init)

    @service.rpc()
    def change(ctx: rpc.Context, init: int) -> None:
        numbers.append(init)
        changed.notify()

    @service.subscription()
    def watch(ctx: rpc.Context, init: None) -> Iterator[int]:
        seen = 0
        while True:
            for number in numbers[seen:]:
                yield number
                seen += 1
            yield from ctx.wait(changed)

    options = rpc.Options(max_streams=int(sys.argv[3]) + 1)
    return rpc.serve([service], options=options)


def main() -> None:
    kind, protocol = sys.argv[1:3]
    streams = KINDS.get(kind)
    with wsmux.serve(protocols=[protocol], **streams()) if streams else river() as server:
        sys.stdout.write(server.url + "\n")
        sys.stdout.flush()
        sys.stdin.read()
        server.shutdown(0)


if __name__ == "__main__":
    main()
