"""A cluster of gunicorn's workers and other nodes, whose clients come and go while processes die.

``WSMUX_CLUSTER_SECONDS`` says for how long, 60 by default, ``WSMUX_CLUSTER_SEED`` in which order.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import wsmux
from benchmarks.cluster.site import BASE
from wsmux.cluster import Cluster, Presence

from ..helpers.cluster_topics import Reader, check_topic
from ..helpers.fixtures import Tell
from ..helpers.load.cluster_crowd import TOPIC, Crowd, Seen
from ..helpers.load.cluster_site import KEPT, count_lost, deliver
from ..helpers.load.cluster_world import World
from ..helpers.load.health import PATIENCE
from ..helpers.load.measuring import CHECKOUT, per_cent
from ..helpers.redis_server import RedisServer, leaked_names
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for, wait_for_value

SECONDS = float(os.environ.get("WSMUX_CLUSTER_SECONDS", "60"))
SEED = int(os.environ.get("WSMUX_CLUSTER_SEED") or random.randrange(1 << 32))

CLIENTS = 200

# Seconds of a lease: many end while a process stands still.
LEASE = 2.0

# Seconds until everything has come back, the slowest answers have come, and all have left.
SETTLE = 3 * WAIT


class Health:
    """Have a worker asked for its health again and again, and note how long each answer takes.

    Not while a worker stands still or is replaced: it may have taken the request. Who asks is a
    process of its own: the one of the clients would measure how long it waits for their threads.
    """

    def __init__(self, world: World) -> None:
        self.seconds: list[float] = []
        self._world = world
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.load.health", world.health],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._note)
        self._thread.start()

    def _note(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            begun, took = map(float, line.split())
            if self._world.disturbed < begun - 1.0:
                self.seconds.append(took)

    def end(self) -> None:
        """Have it ask no more; all answers have been noted then."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            assert self._process.wait(PATIENCE + WAIT) == 0
        finally:
            self._process.kill()
            self._thread.join(WAIT)
            self._process.stdout.close()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


def soak(redis: RedisServer, folder: Path, tell: Tell, clients: int, seconds: float) -> None:
    tell(f"WSMUX_CLUSTER_SEED={SEED}, {seconds:g} s")
    seen, over = Seen(), threading.Event()
    with (
        Cluster(redis.url, lease=LEASE, retention=KEPT) as cluster,
        Reader(cluster, TOPIC) as quick,
        Reader(cluster, TOPIC, pause=0.05) as slow,
        ExitStack() as stack,
    ):
        world = World(redis, folder, LEASE, SEED, long=seconds >= 300)
        stack.callback(world.kill)
        wait_for(lambda: len(world.workers()) == 4)
        crowd = Crowd(clients, world.urls, cluster, SEED, seen)
        stack.callback(crowd.end)
        stack.callback(crowd.stop)
        stack.callback(over.set)
        health = Health(world)
        stack.callback(health.end)
        counting = threading.Thread(target=count_lost, args=(over,))
        counting.start()
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not seen.wrong:
            over.wait(min(world.step(), max(0.0, ends - time.monotonic())))
        world.settle()
        crowd.stop()
        over.set()
        health.end()
        counting.join(WAIT)
        tell(f"{dict(world.done)}; {dict(seen.done)}")
        late, what = seen.latest
        told = [f"the latest, {what}: {late:.2f} s beyond its limit"]
        for name, values in (("open", seen.opened), ("/health", health.seconds)):
            if values:
                p50, p99 = (1000 * per_cent(values, each) for each in (50, 99))
                told.append(f"{name} of {len(values)}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        tell("; ".join(told))
        assert seen.wrong == []
        check_settled(crowd, cluster)
        end = cluster.publish(TOPIC, b"the end")
        for reader in (quick, slow):
            reader.join(end)
            tell(check_topic(seen.published, reader.read))
        assert seen.wrong == []
        crowd.end()
        wait_for_value(lambda: cluster.who(f"{BASE}*"), list[Presence](), SETTLE)
        stack.close()
        wait_for_value(cluster.who, list[Presence](), SETTLE)
        wait_for_value(lambda: leaked_names(redis), list[str](), SETTLE)
        assert "Traceback" not in world.said(), world.said()[-20_000:]
    assert seen.done["taken"] > seconds
    assert seen.published


def check_settled(crowd: Crowd, cluster: Cluster) -> None:
    """Each client that is connected is found, where it is, and reached; and nobody else is."""

    def here() -> set[tuple[str, str]]:
        for each in crowd.visitors():
            with suppress(wsmux.WsmuxError):  # that of a process which has just died
                each.settle()
        return {(each.base, each.node) for each in crowd.visitors()}

    def differing() -> set[tuple[str, str]]:
        return here() ^ {(each.name, each.node) for each in cluster.who(f"{BASE}*")}

    wait_for_value(differing, set[tuple[str, str]](), SETTLE)
    for name, _ in here():
        told = deliver(cluster, name, 0, 8, WAIT)
        assert told["result"] == "sent", (name, told)
        crowd.check_told(name, 8, told)


@pytest.mark.long
@pytest.mark.hang_bound(SECONDS + 900)
def test_whatever_dies_each_stream_reaches_who_has_its_name(
    redis: RedisServer, tmp_path: Path, tell: Tell
) -> None:
    soak(redis, tmp_path, tell, CLIENTS, SECONDS)
