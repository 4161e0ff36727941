"""Serve clients that are found by name, and do what they order: the program of each worker.

Under gunicorn it is ``benchmarks.cluster.site:app("redis://...")``.

A client connects to ``/live?name=NAME`` and is found under that name. Each stream that it opens is
an order, one line of JSON, and so is the answer. The bytes that a node sends to clients say of each
eight of them to whom they go and where they belong; see ``pattern``.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import wsmux
from wsmux.cluster import Cluster, Presence

__all__ = ["BASE", "LONGEST", "PIECE", "Node", "app", "deliver", "node_of", "order", "pattern"]

# Before the names of clients.
BASE = "client:"

# Bytes of a write, and of an order or answer.
PIECE, LONGEST = 16 * 1024, 8192

# Orders that a node carries out at once.
ORDERS = 256

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


def node_of(connection: wsmux.Connection, timeout: float) -> tuple[str, int]:
    """Return the id of the node that a client is connected to, and its process."""
    node, process = order(connection, timeout, do="node")
    return node, process


def deliver(
    cluster: Cluster,
    to: str | Presence,
    key: int,
    size: int,
    timeout: float,
    timed: Callable[..., Any] = lambda call, *arguments: call(*arguments),
    **told: Any,
) -> dict[str, Any]:
    """Open a stream to a client, send it ``size`` bytes, and return what became of it.

    Args:
        timeout: seconds of each call.
        timed: makes each call that has this limit.
        told: what the client is told besides.

    Returns:
        ``result``: ``sent``, or the name of the error. ``opened``: seconds of ``open_stream``.
        ``answer``: the client's.
    """
    opened, answer, begun = None, "", time.monotonic()

    def open_stream() -> wsmux.Stream:
        return cluster.open_stream(to, timeout=timeout)

    name = to.name if isinstance(to, Presence) else to
    header = {"to": name, "key": key, "size": size, **told}
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
    return {"result": result, "opened": opened, "answer": answer}


class Node:
    """Carry out the orders of clients.

    Attributes:
        orders: what a client may order, by name, but for ``relay``.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._pool = ThreadPoolExecutor(ORDERS, "orders")
        self.orders: dict[str, Callable[..., Any]] = {"deliver": self._deliver, "node": self._node}

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
                    answer = {"value": self.orders[fields.pop("do")](connection, **fields)}
                except (wsmux.WsmuxError, TimeoutError) as error:
                    answer = {"value": {"error": type(error).__name__}}
                except Exception as error:
                    answer = {"failed": f"{type(error).__name__}: {error}"}
                stream.write(json.dumps(answer).encode())
        except (wsmux.WsmuxError, TimeoutError, ValueError):
            pass  # the client has gone; it says itself what it did not get

    def _deliver(self, _: wsmux.Connection, to: str, **fields: Any) -> dict[str, Any]:
        return deliver(self.cluster, to, **fields)

    def _node(self, _: wsmux.Connection) -> tuple[str, int]:
        return self.cluster.node, os.getpid()


def app(
    redis: str,
    *,
    most: int | None = None,
    made_by: Callable[[Cluster], Node] = Node,
    **options: Any,
) -> Any:
    """Return the application that each worker of gunicorn serves.

    Args:
        redis: the URL of the Redis.
        most: connections that one worker takes; others try the next one.
        made_by: makes what carries out the orders.
        options: of the cluster.
    """
    from flask import Flask, request

    from wsmux.flask import Mux

    made = Flask(__name__)
    mux = Mux(made, max_connections=most)
    node = made_by(Cluster(redis, **options))

    @mux.route("/live", detach=True)
    def live(connection: wsmux.Connection) -> None:
        node.serve(connection, request.args["name"])

    @made.get("/health")
    def health() -> str:
        return "well"

    return made
