"""Serve clients that are found by name, and do what they order: the program of each node.

Under gunicorn it is ``benchmarks.cluster.site:app("redis://...")``; alone, as a node that listens
itself, ``python -m benchmarks.cluster.site redis://... LEASE``, which prints its URL.

A client connects to ``/live?name=NAME`` and is found under that name. Each stream that it opens is
an order, one line of JSON, and so is the answer. The bytes that a node sends to clients say of each
eight of them to whom they go and where they belong; see ``pattern``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.parse import parse_qs

import wsmux
from wsmux.cluster import Cluster, Presence, Retention

__all__ = [
    "BASE",
    "KEPT",
    "LONGEST",
    "PIECE",
    "app",
    "deliver",
    "node_of",
    "order",
    "pattern",
    "running",
]

# What a client may order.
Order = dict[str, Any]

# Before the names of clients.
BASE = "client:"

# Bytes of a write, and of an order or answer.
PIECE, LONGEST = 16 * 1024, 8192

# Messages that a topic keeps: so few that who reads slowly misses some.
KEPT = Retention(messages=200)

# Orders that a node carries out at once.
ORDERS = 256

# Seconds between two looks whether this process runs.
TICK = 0.05

# Seconds in which a client has to send the line of its order.
LINE_TIME = 30.0

WORD = 8


def pattern(key: int, start: int, size: int) -> bytes:
    """Return bytes of a stream, of which each eight say the key and their place.

    Args:
        key: below 2**32.
        start, size: multiples of eight.
    """
    first = (key << 32) + start // WORD
    return array("Q", range(first, first + size // WORD)).tobytes()


def order(connection: wsmux.Connection, timeout: float, /, **fields: Any) -> Any:
    """Have a node do something for a client; return its answer.

    Raises:
        WsmuxError, TimeoutError: there is none within ``timeout`` seconds for each step.
        RuntimeError: it failed as nothing may.
    """
    with connection.open_stream(timeout) as stream:
        stream.timeout = timeout
        stream.write(json.dumps(fields).encode() + b"\n")
        stream.close_write()
        told = stream.read()
    answer = json.loads(told)
    if "failed" in answer:
        raise RuntimeError(answer["failed"])
    return answer["value"]


_lost = 0.0


def count_lost(over: threading.Event) -> None:
    """Count the seconds in which this process does not run, in a thread, until it is over.

    Whoever waits for a moment waits longer then.
    """
    global _lost
    while not over.is_set():
        before = time.monotonic()
        over.wait(TICK)
        _lost += max(0.0, time.monotonic() - before - 2 * TICK)


def running() -> float:
    """Return a time that stands still while this process does, or others have its processor.

    Only where a thread is in ``count_lost``.
    """
    return time.monotonic() - _lost


def deliver(
    cluster: Cluster, to: str | Presence, key: int, size: int, timeout: float
) -> dict[str, Any]:
    """Open a stream to a client, send it ``size`` bytes, and return what became of it.

    Args:
        timeout: seconds of each call.

    Returns:
        ``result``: ``sent``, or the name of the error. ``opened``: seconds of ``open_stream``.
        ``late``: seconds that a call has taken beyond its limit, at most, but for those in which
        this process stood still; ``slowest``: which one.
        ``answer``: the client's.
    """
    late, slowest, opened, answer = 0.0, "", None, ""
    begun = time.monotonic()

    def timed(call: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal late, slowest
        start = running()
        try:
            return call(*arguments)
        finally:
            took = running() - start - timeout
            if took > late:
                late, slowest = took, call.__name__

    name, presence = (to.name, list(to)) if isinstance(to, Presence) else (to, None)

    def open_stream() -> wsmux.Stream:
        return cluster.open_stream(to, timeout=timeout)

    header = {"to": name, "presence": presence, "key": key, "size": size}
    try:
        with timed(open_stream) as stream:
            opened = time.monotonic() - begun
            stream.timeout = timeout
            timed(stream.write, json.dumps(header).encode() + b"\n")
            for start in range(0, size, PIECE):
                timed(stream.write, pattern(key, start, min(PIECE, size - start)))
            stream.close_write()
            answer = timed(stream.readline, LONGEST).decode()
        result = "sent" if answer else "no answer"
    except (wsmux.WsmuxError, TimeoutError) as error:
        result = type(error).__name__
    told = {"late": late, "slowest": slowest, "answer": answer}
    return {"result": result, "opened": opened, **told}


class Node:
    """Carry out the orders of clients."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        threading.Thread(target=count_lost, args=(threading.Event(),), daemon=True).start()
        self._pool = ThreadPoolExecutor(ORDERS, "orders")
        self._orders: dict[str, Callable[..., Any]] = {
            "deliver": self._deliver,
            "join": self._join,
            "leave": self._leave,
            "node": self._node,
            "publish": self._publish,
        }

    def serve(self, connection: wsmux.Connection, name: str) -> None:
        """Let a client be found under its name, and do what it orders, until it has gone."""
        with self.cluster.member(connection, name):
            for stream in connection:
                try:
                    self._pool.submit(self._do, connection, stream)
                except RuntimeError:
                    return  # this process exits

    def _do(self, connection: wsmux.Connection, stream: wsmux.Stream) -> None:
        try:
            with ExitStack() as held:
                held.enter_context(stream)
                stream.timeout = LINE_TIME
                fields = json.loads(stream.readline(LONGEST))
                if fields["do"] == "relay":
                    relayed = self.cluster.open_stream(fields["to"], timeout=LINE_TIME)
                    self.cluster.relay(stream, relayed)
                    held.pop_all()  # both are the relay's
                    return
                try:
                    answer = {"value": self._orders[fields.pop("do")](connection, **fields)}
                except (wsmux.WsmuxError, TimeoutError) as error:
                    answer = {"value": {"error": type(error).__name__}}
                except Exception as error:
                    answer = {"failed": f"{type(error).__name__}: {error}"}
                stream.write(json.dumps(answer).encode())
        except (wsmux.WsmuxError, TimeoutError, ValueError):
            pass  # the client has gone; it says itself what it did not get

    def _deliver(self, _: wsmux.Connection, to: Any, **fields: Any) -> dict[str, Any]:
        return deliver(self.cluster, to if isinstance(to, str) else Presence(*to), **fields)

    def _join(self, connection: wsmux.Connection, name: str) -> Presence:
        return self.cluster.join(connection, name)

    def _leave(self, _: wsmux.Connection, presence: list[Any]) -> None:
        self.cluster.leave(Presence(*presence))

    def _node(self, _: wsmux.Connection) -> tuple[str, int]:
        return self.cluster.node, os.getpid()

    def _publish(self, _: wsmux.Connection, topic: str, text: str) -> str:
        return str(self.cluster.publish(topic, text.encode()))


def node_of(connection: wsmux.Connection, timeout: float) -> tuple[str, int]:
    """Return the id of the node that a client is connected to, and its process."""
    node, process = order(connection, timeout, do="node")
    return node, process


def app(redis: str, *, lease: float = 15.0, most: int | None = None) -> Any:
    """Return the application that each worker of gunicorn serves.

    Args:
        redis: the URL of the Redis.
        lease: seconds of the lease of each node.
        most: connections that one worker takes; others try the next one.
    """
    from flask import Flask, request

    from wsmux.flask import Mux

    made = Flask(__name__)
    mux = Mux(made, max_connections=most)
    node = Node(Cluster(redis, lease=lease, retention=KEPT))

    @mux.route("/live", detach=True)
    def live(connection: wsmux.Connection) -> None:
        node.serve(connection, request.args["name"])

    @made.get("/health")
    def health() -> str:
        return "well"

    return made


def main(redis: str, lease: str) -> None:
    """Serve as a node of its own until stdin ends."""
    node = Node(Cluster(redis, lease=float(lease), retention=KEPT))

    def live(connection: wsmux.Connection) -> None:
        assert connection.request is not None
        node.serve(connection, parse_qs(connection.request.query)["name"][0])

    with wsmux.serve(live) as server:
        sys.stdout.write(f"{server.url}/live\n")
        sys.stdout.flush()
        sys.stdin.read()
    node.cluster.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
