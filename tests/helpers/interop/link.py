"""Hold a connection between this process and a real peer, and what the tests do with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

import wsmux

from ..timeouts import WAIT
from .peer_process import PeerProcess, generate, sha256

HOST = "127.0.0.1"

KIB = 1024
MIB = 1024 * KIB

BULK_WAIT = 40.0  # the same for steps that move megabytes, or thousands of messages

SMALL = 5
LARGE = 3 * MIB  # three times the window that js-ws announces, twelve times all others

MANY = 100
MANY_SIZE = 20_000
MANY_CHUNK = 500

by_either = pytest.mark.parametrize("opener", ["wsmux", "peer"])

# For the tests of Yamux, which have two peers, two roles and two carriers.
node_only = pytest.mark.parametrize("yamux_process", ["node"], indirect=True)
python_only = pytest.mark.parametrize("yamux_process", ["python"], indirect=True)
server_only = pytest.mark.parametrize("yamux_role", ["peer-server"], indirect=True)
tcp_only = pytest.mark.parametrize("carrier", ["tcp"], indirect=True)
websocket_only = pytest.mark.parametrize("carrier", ["ws"], indirect=True)

# The first test of a run may have to install the packages, which counts as its time.
marks = [pytest.mark.interop, pytest.mark.hang_bound(400)]
yamux_marks = [pytest.mark.interop, pytest.mark.hang_bound(700)]


@dataclass
class Link:
    """Hold both ends of one connection."""

    connection: wsmux.Connection
    peer: PeerProcess
    peer_is_client: bool
    carrier: str = "ws"
    uncaught_expected: bool = False
    failures: list[BaseException] = field(default_factory=list)

    def open(self) -> wsmux.Stream:
        """Open a stream here."""
        stream = self.connection.open_stream(timeout=WAIT)
        stream.timeout = WAIT
        return stream

    def accept(self) -> wsmux.Stream:
        """Take a stream that the peer opened."""
        stream = self.connection.accept_stream(timeout=WAIT)
        stream.timeout = WAIT
        return stream

    def open_pair(self) -> tuple[wsmux.Stream, int]:
        """Open a stream here and accept it in the peer, which names it by the handle."""
        return self.open(), self.peer.call("accept")["handle"]

    def accept_pair(self) -> tuple[wsmux.Stream, int]:
        """Open a stream in the peer and accept it here."""
        handle: int = self.peer.call("open")["handle"]
        return self.accept(), handle

    def pair(self, opener: str) -> tuple[wsmux.Stream, int]:
        """Return both ends of a new stream that `opener` opened."""
        return self.open_pair() if opener == "wsmux" else self.accept_pair()

    def echo_all(self) -> None:
        """Echo every stream that the peer opens from now on."""
        spawn(self._echo_all)

    def _echo_all(self) -> None:
        for stream in self.connection:
            stream.timeout = WAIT
            spawn(self._echo, stream)

    def _echo(self, stream: wsmux.Stream) -> None:
        try:
            echo(stream)
        except Exception as error:
            self.failures.append(error)

    def assert_alive(self) -> None:
        """Exchange bytes on a new stream."""
        stream, handle = self.open_pair()
        stream.write(b"still there?")
        stream.close_write()
        assert self.peer.call("readAll", stream=handle)["sha256"] == sha256(b"still there?")
        self.peer.call("write", stream=handle, hex=b"yes".hex())
        self.peer.call("close", stream=handle)
        assert stream.read() == b"yes"
        stream.close()


def spawn(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Run a function in a daemon thread, so that a hang cannot keep the process alive."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def echo(stream: wsmux.Stream) -> None:
    """Return every byte, then end."""
    while chunk := stream.read(64 * KIB):
        stream.write(chunk)
    stream.close()


def write_in_chunks(stream: wsmux.Stream, data: bytes, size: int) -> None:
    """Write `data` with many small calls, then end the writing half."""
    for start in range(0, len(data), size):
        stream.write(data[start : start + size])
    stream.close_write()


def write_and_close(stream: wsmux.Stream, data: bytes) -> None:
    """Write `data` with many small calls, then close the whole stream."""
    write_in_chunks(stream, data, MANY_CHUNK)
    stream.close()


def digests(seed: str, count: int, size: int) -> list[str]:
    """Return the digests of what the peer generates from `seed-0`, `seed-1`, ..."""
    return [sha256(generate(f"{seed}-{index}", size)) for index in range(count)]


def good(answers: list[dict[str, Any]]) -> list[Any]:
    """Return the digests in the answers, or the error where there is one."""
    return [answer.get("sha256", answer.get("error")) for answer in answers]


Connector = Callable[..., Link]
