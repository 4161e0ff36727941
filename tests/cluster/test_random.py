"""Workers come, go, die and stand still, as Redis does, while streams are opened to their names.

``WSMUX_CLUSTER_SECONDS`` says for how long, 60 by default, ``WSMUX_CLUSTER_SEED`` in which order.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import wsmux
from wsmux.cluster import Cluster, Position, Presence, Unreachable
from wsmux.runtime.clock import monotonic

from ..helpers.cluster_topics import Reader, check_topic
from ..helpers.fixtures import Tell
from ..helpers.redis_server import RedisServer, leaked_names
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for, wait_for_value

SECONDS = float(os.environ.get("WSMUX_CLUSTER_SECONDS", "60"))
SEED = int(os.environ.get("WSMUX_CLUSTER_SEED", "1"))

# Seconds of a lease: so short that many end during the test.
LEASE = 1.0

WORKERS = 3
NAMES = [f"user:{number}" for number in range(8)]

# Seconds for which something stands still or is away, at most: longer than a lease.
AWAY = 2.5

# A worker does what its input tells, line by line, and answers each with a line. Its clients answer
# each stream with the very presence that they have.
WORKER = """
import json, sys, threading, wsmux
from wsmux.cluster import Cluster

cluster = Cluster(sys.argv[1], lease=float(sys.argv[2]))
held = {}

def answer(client, told):
    try:
        for stream in client:
            try:
                stream.timeout = 30.0
                told[0].wait()
                stream.write(json.dumps(told[1]).encode())
                stream.close()
            except (wsmux.StreamReset, TimeoutError):
                stream.reset()
    except wsmux.ConnectionClosed:
        pass

for line in sys.stdin:
    does, name = line.split()
    if does == "join":
        client, connection = wsmux.pair()
        told = [threading.Event(), None]
        threading.Thread(target=answer, args=(client, told), daemon=True).start()
        told[1] = cluster.join(connection, name)
        told[0].set()
        held[told[1].id] = client, connection, told[1]
    elif does != "list" and (mine := [each for each in held.values() if each[2].name == name]):
        client, connection, presence = mine[0]
        if does == "leave":
            cluster.leave(presence)
        client.abort()
        connection.abort()
        del held[presence.id]
    print(json.dumps([each[2] for each in held.values()]), flush=True)
"""


class Worker:
    """Run one worker process."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, url, str(LEASE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.asked = 0
        self.goes_on = 0.0  # when it does, if it stands still

    def tell(self, line: str) -> None:
        """Have it do something, without waiting for that."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        self.asked += 1

    def members(self) -> list[Presence]:
        """Return who has joined, once all that it was told is done."""
        self.tell("list -")
        assert self.process.stdout is not None
        for _ in range(self.asked):
            told = self.process.stdout.readline()
        self.asked = 0
        return [Presence(*each) for each in json.loads(told)]

    def stand_still(self, seconds: float) -> None:
        self.goes_on = monotonic() + seconds
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.goes_on = 0.0
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class World:
    """Do things at random, and note what came out."""

    def __init__(self, redis: RedisServer, cluster: Cluster) -> None:
        self.redis = redis
        self.cluster = cluster
        self.chance = random.Random(SEED)
        self.workers: list[Worker] = []
        self.redis_back = 0.0  # when Redis is started, if it is away
        self.over = threading.Event()
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.published: list[tuple[Position, bytes]] = []

    # What happens to processes, in one thread

    def step(self) -> None:
        chance, now = self.chance, monotonic()
        if self.redis_back and now > self.redis_back:
            self.redis_back = 0.0
            self.redis.start()
        for each in self.workers:
            if each.goes_on and now > each.goes_on:
                each.go_on()
        does = chance.choices(
            ["start", "kill", "stop", "redis stop", "redis kill", "join", "leave", "end"],
            [8, 1, 2, 0.5, 0.3, 30, 10, 10],
        )[0]
        awake = [each for each in self.workers if not each.goes_on and each.asked < 500]
        if does == "start" and len(self.workers) < WORKERS:
            self.workers.append(Worker(self.redis.url))
        elif does == "kill" and len(self.workers) > 1:
            worker = chance.choice(self.workers)
            self.workers.remove(worker)
            worker.kill()
        elif does == "stop" and awake:
            chance.choice(awake).stand_still(chance.uniform(0.0, AWAY))
        elif does == "redis stop" and not self.redis_back:
            self.redis.hold(chance.uniform(0.0, AWAY))
        elif does == "redis kill" and not self.redis_back:
            self.redis.kill()
            self.redis_back = now + chance.uniform(0.0, AWAY)
        elif does in ("join", "leave", "end") and awake:
            chance.choice(awake).tell(f"{does} {chance.choice(NAMES)}")
        else:
            return
        self.done[does] += 1

    def settle(self) -> list[Presence]:
        """Let everything go on; return who has joined."""
        if self.redis_back:
            self.redis.start()
        for each in self.workers:
            each.go_on()
        return sorted(member for each in self.workers for member in each.members())

    def kill(self) -> None:
        for each in self.workers:
            each.kill()

    # What clients do, in threads

    def ask(self, seed: int) -> None:
        """Open streams, to names and to presences, until it is over."""
        chance = random.Random(seed)
        while not self.over.is_set():
            to: str | Presence = chance.choice(NAMES)
            try:
                if chance.random() < 0.5:
                    found = self.cluster.who(str(to))
                    to = chance.choice(found) if found else to
                self.answered(to, chance.choice([0.3, 2.0]))
            except (wsmux.WsmuxError, TimeoutError) as error:
                self.done[type(error).__name__] += 1

    def answered(self, to: str | Presence, timeout: float) -> None:
        with self.cluster.open_stream(to, timeout=timeout) as stream:
            stream.timeout = timeout
            told = stream.read()
        answer = Presence(*json.loads(told)) if told else None
        self.done["answered"] += answer is not None
        if answer is not None and to not in (answer, answer.name):
            self.wrong.append(f"{to} was asked for, and {answer} has answered")

    def publish(self) -> None:
        number = 0
        while not self.over.wait(0.01):
            number += 1
            data = b"%d" % number
            try:
                self.published.append((self.cluster.publish("news", data), data))
            except Unreachable:
                self.done["not published"] += 1


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Run a Redis that the test may kill."""
    with RedisServer(tmp_path) as server:
        yield server


@pytest.mark.long
@pytest.mark.hang_bound(SECONDS + 300)
def test_whatever_happens_nobody_gets_the_stream_of_another(redis: RedisServer, tell: Tell) -> None:
    with (
        Cluster(redis.url, lease=LEASE) as cluster,
        Reader(cluster, "news") as news,
        ExitStack() as stack,
    ):
        world = World(redis, cluster)
        stack.callback(world.kill)
        stack.callback(world.over.set)
        threads = [threading.Thread(target=world.ask, args=(SEED + n,)) for n in range(4)]
        threads += [threading.Thread(target=world.publish)]
        for thread in threads:
            thread.start()
        ends = monotonic() + SECONDS
        while monotonic() < ends:
            world.step()
            world.over.wait(0.02)
        joined = world.settle()
        world.over.set()
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        wait_for_value(lambda: sorted(cluster.who()), joined)
        for each in joined:
            world.answered(each, WAIT)
        assert world.wrong == []
        news.join(cluster.publish("news", b"the end"))
        tell(check_topic(world.published, news.read))
        world.kill()
        wait_for(lambda: not leaked_names(redis))
        tell(f"{dict(world.done)}")
        assert world.done["answered"] > SECONDS
