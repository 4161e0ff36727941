"""Many nodes of which each is linked with each other one cost what their links do, and end."""

from __future__ import annotations

import pytest

from ..helpers.load.measuring import run
from ..helpers.redis_server import RedisServer

# Descriptors that a process keeps for waits to come, by design.
KEPT = 64


def check(server: RedisServer, nodes: int) -> None:
    figures = run("many_nodes", server.url, nodes)
    links = nodes * (nodes - 1) // 2
    assert (figures["links"], figures["opened"]) == (links, 4 * links)
    # 150 nodes: 249 KiB, 6.6 threads and 11 descriptors; to Redis each node has some of its own.
    assert figures["kib"] < 400, figures
    assert figures["threads"] < 8 + 32 / nodes, figures
    assert figures["descriptors"] < 13 + 64 / nodes, figures
    # A second round needs no more of anything.
    assert figures["more_kib"] < 20, figures
    assert figures["more_threads"] < nodes, figures
    assert figures["more_descriptors"] < nodes + KEPT, figures
    assert figures["left_threads"] <= 0, figures
    assert figures["left_descriptors"] <= KEPT, figures


def test_a_few_nodes_end_without_a_trace(server: RedisServer) -> None:
    check(server, 6)


@pytest.mark.long
def test_many_nodes_end_without_a_trace(server: RedisServer) -> None:
    check(server, 40)
