"""Link each node of a cluster with each other one, all in this process, and end them again.

``python -m tests.helpers.load.many_nodes REDIS COUNT``; the figures of a link are of both its ends.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import wsmux
from wsmux.cluster import Cluster
from wsmux.runtime.threads import daemon_thread

from .measuring import WAIT, Process, report, wait_until

HERE = Process(os.getpid())


class Held(NamedTuple):
    """What this process holds."""

    memory: int
    threads: int
    descriptors: int


def held() -> Held:
    return Held(HERE.memory(), HERE.threads(), HERE.descriptors())


def waits(thread: threading.Thread) -> bool:
    assert thread.ident is not None
    return sys._current_frames()[thread.ident].f_code.co_name == "park"


def shared() -> bool:
    """Return whether connections share an I/O thread."""
    return any(thread.name == "wsmux-shared-io" for thread in threading.enumerate())


def echo(client: wsmux.Connection) -> None:
    try:
        for stream in client:
            stream.write(stream.read(100))
            stream.close()
    except wsmux.ConnectionClosed:
        pass  # it is over


def ask_each(nodes: list[Cluster]) -> int:
    """Open a stream from each node to each client that it does not have; return how many."""
    pairs = list(itertools.permutations(range(len(nodes)), 2))
    for one, other in pairs:
        question = b"%d to %d" % (one, other)
        with nodes[one].open_stream(f"user:{other}", header=question, timeout=WAIT) as stream:
            stream.timeout = WAIT
            answer = stream.read(100)
            assert answer == question, (answer, question)
    return len(pairs)


def main(redis: str, count: str) -> dict[str, Any]:
    with ExitStack() as clients:
        nodes, ends = [Cluster(redis) for _ in range(int(count))], []
        for _ in nodes:
            client, connection = wsmux.pair()
            clients.callback(connection.abort)
            clients.callback(client.abort)
            echoing = daemon_thread(target=echo, name="client", args=(client,))
            echoing.start()
            wait_until(partial(waits, echoing))  # for which it needs a descriptor
            ends.append(connection)
        before, sharing = held(), shared()
        for number, (node, connection) in enumerate(zip(nodes, ends, strict=True)):
            node.join(connection, f"user:{number}")
        unlinked = held()
        opened = ask_each(nodes)
        linked = held()
        opened += ask_each(nodes)  # over the same links
        again = held()
        for node in nodes:
            node.close()
        # The nodes' own threads end, too; that of their links ends behind the last of these.
        wait_until(lambda: held().threads <= before.threads and shared() <= sharing)
        links = len(nodes) * (len(nodes) - 1) // 2
        return {
            "links": links,
            "opened": opened,
            "kib": (linked.memory - unlinked.memory) / 1024 / links,
            "threads": (linked.threads - unlinked.threads) / links,
            "descriptors": (linked.descriptors - unlinked.descriptors) / links,
            "more_kib": (again.memory - linked.memory) / 1024 / links,
            "more_threads": again.threads - linked.threads,
            "more_descriptors": again.descriptors - linked.descriptors,
            "left_threads": held().threads - before.threads,
            "left_descriptors": held().descriptors - before.descriptors,
        }


if __name__ == "__main__":
    report(main)
