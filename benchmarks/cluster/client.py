"""Be the clients of a cluster, and of a worker whose WebSockets hold no thread."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from statistics import quantiles
from typing import NamedTuple

import wsmux

from ..processes import Worker
from .site import BASE, LONGEST, PIECE, node_of, order, pattern

__all__ = ["Address", "ClusterClient"]

# Clients of the workers, the bytes that each gets of each worker, and how many open at once.
CLIENTS, SIZE, AT_ONCE = 200, 4096, 1

# WebSockets of the one worker, and how many of them are at work at once.
WEBSOCKETS, BUSY = 1000, 8

# Seconds for a step; for a server to begin; and without progress, after which a writer is held.
STEP, BEGIN, HELD = 30.0, 60.0, 1.0

# Bytes that a writer may have sent before it is held, at most, or it is not.
MOST = 256 << 20


class Address(NamedTuple):
    """Say where to connect.

    Attributes:
        workers: the site of several workers.
        alone: the one of a single worker, for many WebSockets.
        nodes: the number of workers.
    """

    workers: str
    alone: str
    nodes: int


class ClusterClient:
    """Take the figures of a cluster; each is made anew."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def open_p99(self) -> float:
        """Return the p99 of the milliseconds that a worker needs to open a stream to a client.

        From each worker to each client; every byte that arrives is looked at.
        """
        with _clients(self._address.workers, CLIENTS) as clients, ExitStack() as stack:
            takers = ThreadPoolExecutor(len(clients))
            stack.callback(takers.shutdown)
            of_worker = {node_of(each, STEP)[0]: each for each in clients.values()}
            if len(of_worker) != self._address.nodes:
                raise RuntimeError(f"the clients are at {len(of_worker)} workers, not at all")
            opened: list[float] = []
            for origin in of_worker.values():
                for key, (name, client) in enumerate(clients.items()):
                    taken = takers.submit(_take, client, name, key)
                    told = order(
                        origin, STEP, do="deliver", to=name, key=key, size=SIZE, timeout=STEP
                    )
                    taken.result()
                    if told["result"] != "sent":
                        raise RuntimeError(f"a stream to {name} came to {told}")
                    opened.append(told["opened"])
        return 1000 * quantiles(opened, n=100, method="inclusive")[-1]

    def health_p99(self) -> float:
        """Return the p99 of the milliseconds of ``/health`` while many WebSockets are at work.

        They hold none of the eight threads of the worker that answers. Who asks is a process of its
        own: one with the WebSockets would measure how long it waits for its own threads.
        """
        url = f"http{self._address.alone[2:]}"
        with (
            _clients(self._address.alone, WEBSOCKETS) as clients,
            Worker("cluster.asking", "asking", url) as asker,
        ):
            with ThreadPoolExecutor(BUSY) as pool:
                working = [pool.submit(node_of, each, STEP) for each in clients.values()]
            for each in working:
                each.result()
            took: list[float] = asker.ask()
            return 1000 * quantiles(took, n=100, method="inclusive")[-1]

    def held_back(self) -> float:
        """Return the KiB that a client has sent to one who does not read, once it is held back.

        The two are at different workers, which relay; all arrives when the other one reads.
        """
        with _clients(self._address.workers, CLIENTS) as clients:
            names = list(clients)
            nodes = {name: node_of(clients[name], STEP)[0] for name in names}
            other = next(name for name in names if nodes[name] != nodes[names[0]])
            with clients[names[0]].open_stream(STEP) as sent:
                sent.timeout = STEP
                sent.write(json.dumps({"do": "relay", "to": other}).encode() + b"\n")
                with clients[other].accept_stream(STEP) as got:
                    got.timeout = STEP
                    size = _fill(sent)
                    _read_all(got, size, sent)
        return size / 1024


def _take(client: wsmux.Connection, name: str, key: int) -> None:
    """Take one stream, and check that it is for this client, and all of it."""
    with client.accept_stream(STEP) as stream:
        stream.timeout = STEP
        header = json.loads(stream.readline(LONGEST))
        data = stream.read(SIZE)
        if header["to"] != name or data != pattern(key, 0, SIZE) or stream.read(1):
            raise RuntimeError(f"{name} got what is not for it: {header}")
        stream.write(json.dumps({"by": name}).encode() + b"\n")


def _fill(stream: wsmux.Stream) -> int:
    """Write until nothing more is taken; return how much was."""
    before, stream.timeout = stream.timeout, HELD
    size = 0
    try:
        while size < MOST:
            size += stream.write(pattern(1, size, PIECE))
    except wsmux.WriteTimeout as error:
        stream.timeout = before
        return size + error.bytes_written
    raise RuntimeError(f"{size >> 20} MiB were taken of a client that does not read")


def _read_all(stream: wsmux.Stream, size: int, sent: wsmux.Stream) -> None:
    """Read what was written, as it was written, to its end."""
    got = bytearray(size)
    if (came := stream.fill(got)) < size:
        raise RuntimeError(f"{came} of {size} bytes came")
    if got != pattern(1, 0, -(-size // 8) * 8)[:size]:
        raise RuntimeError("other bytes came than were sent")
    sent.close_write()
    if stream.read(1):
        raise RuntimeError("more bytes came than were sent")


@contextmanager
def _clients(url: str, count: int) -> Iterator[dict[str, wsmux.Connection]]:
    """Connect so many clients; yield them by their names."""
    made: dict[str, wsmux.Connection] = {}
    lock = threading.Lock()

    def connect(number: int) -> None:
        name = f"{BASE}{number}"
        connection = _connected(f"{url}/live?name={name}")
        with lock:
            made[name] = connection

    try:
        with ThreadPoolExecutor(BUSY) as pool:
            list(pool.map(connect, range(count)))
        # Who has an answer can be found, too.
        for each in made.values():
            node_of(each, STEP)
        yield made
    finally:
        for each in made.values():
            each.abort()


def _connected(url: str) -> wsmux.Connection:
    """Connect, also while the server begins, or a worker takes no more and the next one does."""
    ends = time.monotonic() + BEGIN
    while True:
        with suppress(wsmux.HandshakeError, OSError):
            return wsmux.connect(url, timeout=STEP)
        if time.monotonic() > ends:
            raise RuntimeError(f"{url} takes no connection")
        time.sleep(0.02)
