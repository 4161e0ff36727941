"""Serve the clients of the soak of a cluster, and time what is done for them.

Under gunicorn it is ``tests.helpers.load.cluster_site:app("redis://...", LEASE)``; alone, as a node
that listens itself, ``python -m tests.helpers.load.cluster_site redis://... LEASE``, which prints
its URL.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import wsmux
from benchmarks.cluster import site
from wsmux.cluster import Cluster, Presence, Retention

__all__ = ["KEPT", "app", "count_lost", "deliver", "running"]

# Messages that a topic keeps: so few that who reads slowly misses some.
KEPT = Retention(messages=200)

# Seconds between two looks whether this process runs.
TICK = 0.05

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
    """Do what ``site.deliver`` does, and time its calls.

    Returns:
        Besides, ``late``: seconds that a call has taken beyond its limit, at most, but for those in
        which this process stood still; ``slowest``: which one.
    """
    late, slowest = 0.0, ""

    def timed(call: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal late, slowest
        start = running()
        try:
            return call(*arguments)
        finally:
            took = running() - start - timeout
            if took > late:
                late, slowest = took, call.__name__

    presence = list(to) if isinstance(to, Presence) else None
    told = site.deliver(cluster, to, key, size, timeout, timed, presence=presence)
    return {**told, "late": late, "slowest": slowest}


class Node(site.Node):
    """Carry out the orders of the soak, too: to have more names or fewer, and to publish."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        threading.Thread(target=count_lost, args=(threading.Event(),), daemon=True).start()
        self.orders |= {
            "deliver": self._deliver_timed,
            "join": self._join,
            "leave": self._leave,
            "publish": self._publish,
        }

    def _deliver_timed(self, _: wsmux.Connection, to: Any, **fields: Any) -> dict[str, Any]:
        return deliver(self.cluster, to if isinstance(to, str) else Presence(*to), **fields)

    def _join(self, connection: wsmux.Connection, name: str) -> Presence:
        return self.cluster.join(connection, name)

    def _leave(self, _: wsmux.Connection, presence: list[Any]) -> None:
        self.cluster.leave(Presence(*presence))

    def _publish(self, _: wsmux.Connection, topic: str, text: str) -> str:
        return str(self.cluster.publish(topic, text.encode()))


def app(redis: str, lease: float) -> Any:
    """Return the application that each worker of gunicorn serves."""
    return site.app(redis, made_by=Node, lease=lease, retention=KEPT)


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
