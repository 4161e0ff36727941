"""Run a cluster of real processes, and let them stand still, die and come back at random."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from ..ports import free_port
from ..redis_server import RedisServer
from ..timeouts import WAIT
from ..waiting import wait_for
from .measuring import CHECKOUT

__all__ = ["World"]

WORKERS, THREADS, NODES = 4, 8, 2

# Seconds for which a process stands still, Redis does, and Redis is away: now and then for long.
STILL, REDIS_STILL, REDIS_AWAY, REDIS_LONG = 6.0, 6.0, 3.0, 30.0

# Seconds between two events.
PAUSE = (0.5, 3.0)


class Node:
    """Run one node that listens itself."""

    def __init__(self, redis: str, lease: float, errors: Path) -> None:
        with errors.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.load.cluster_site", redis, str(lease)],
                cwd=CHECKOUT,
                env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class World:
    """Hold gunicorn with four workers, and nodes that listen themselves.

    Args:
        folder: for what the processes say.
        long: whether Redis may be away for as long as half a minute.

    Attributes:
        urls: where clients may connect.
        done: what has happened.
        disturbed: when a process last died, or went on after it had stood still; for ever, while
            one stands still.
    """

    def __init__(
        self, redis: RedisServer, folder: Path, lease: float, seed: int, long: bool
    ) -> None:
        self._redis = redis
        self._folder = folder
        self._lease = lease
        self._chance = random.Random(seed)
        self._long = long
        self._stopped: dict[int, float] = {}  # until when
        self._ending: set[int] = set()  # workers that were told to
        self._redis_stopped = self._redis_back = 0.0
        self.done: Counter[str] = Counter()
        self.disturbed = 0.0
        port = free_port()
        self.health = f"http://127.0.0.1:{port}/health"
        program = f"tests.helpers.load.cluster_site:app({redis.url!r}, {lease!r})"
        options = ["-w", str(WORKERS), "-k", "gthread", "--threads", str(THREADS)]
        options += ["--graceful-timeout", "3", "--log-level", "warning", "--no-control-socket"]
        with (folder / "gunicorn.log").open("ab") as file:
            self._gunicorn = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "gunicorn",
                    *options,
                    "--bind",
                    f"127.0.0.1:{port}",
                    program,
                ],
                cwd=CHECKOUT,
                env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
                stderr=file,
            )
        self._nodes: list[Node] = []
        self._url = f"ws://127.0.0.1:{port}/live"
        self.urls = [self._url]
        self._start_node()

    def workers(self) -> list[int]:
        """Return the processes of gunicorn that serve."""
        path = Path(f"/proc/{self._gunicorn.pid}/task/{self._gunicorn.pid}/children")
        with suppress(OSError):
            return [int(each) for each in path.read_text().split()]
        return []

    def _start_node(self) -> None:
        self._nodes.append(Node(self._redis.url, self._lease, self._folder / "nodes.log"))
        self._name()

    def _name(self) -> None:
        # Most clients come to gunicorn.
        self.urls[:] = [self._url] * 3 + [each.url for each in self._nodes]

    def step(self) -> float:
        """Let one thing happen; return the seconds until the next may."""
        self._go_on(time.monotonic())
        does = self._chance.choices(
            ["start", "stop", "kill", "quit", "kill node", "redis stop", "redis kill"],
            [10, 10, 5, 3, 2, 3, 2],
        )[0]
        if self._do(does):
            self.done[does] += 1
        return self._chance.uniform(*PAUSE)

    def _do(self, does: str) -> bool:
        chance, now = self._chance, time.monotonic()
        awake = [each for each in self.workers() if each not in self._stopped]
        away = self._redis_back or self._redis_stopped
        if does == "start" and len(self._nodes) < NODES and not away:
            self._start_node()
        elif does == "stop" and awake:
            nodes = [
                each.process.pid for each in self._nodes if each.process.pid not in self._stopped
            ]
            pid = chance.choice(awake + nodes)
            self._stopped[pid] = now + chance.uniform(0.0, STILL)
            self.disturbed = float("inf")
            self._signal(pid, signal.SIGSTOP)
        elif does in ("kill", "quit") and len(awake) > 1:
            self.disturbed = max(self.disturbed, now)
            pid = chance.choice(awake)
            self._ending.add(pid)
            self._signal(pid, signal.SIGKILL if does == "kill" else signal.SIGTERM)
        elif does == "kill node" and len(self._nodes) > 1:
            node = self._nodes.pop(chance.randrange(len(self._nodes)))
            self._stopped.pop(node.process.pid, None)
            node.kill()
            self._name()
        elif does == "redis stop" and not away:
            self._redis_stopped = now + chance.uniform(0.0, REDIS_STILL)
            self._redis.signal(signal.SIGSTOP)
        elif does == "redis kill" and not away:
            long = self._long and chance.random() < 0.2
            self._redis_back = now + (REDIS_LONG if long else chance.uniform(0.0, REDIS_AWAY))
            self._redis.kill()
        else:
            return False
        return True

    def _go_on(self, now: float) -> None:
        """Let go on what has stood still for long enough."""
        if self._redis_back and now >= self._redis_back:
            self._redis_back = 0.0
            self._redis.start()
        if self._redis_stopped and now >= self._redis_stopped:
            self._redis_stopped = 0.0
            self._redis.signal(signal.SIGCONT)
        for pid, until in list(self._stopped.items()):
            if now >= until:
                del self._stopped[pid]
                self._signal(pid, signal.SIGCONT)
        if not self._stopped and self.disturbed == float("inf"):
            self.disturbed = now

    def _signal(self, pid: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # the master may have replaced it
            os.kill(pid, number)

    def settle(self) -> None:
        """Let everything go on, and wait until the workers that end have ended."""
        self._go_on(float("inf"))
        wait_for(lambda: self._ending.isdisjoint(self.workers()), 3 * WAIT)

    def kill(self) -> None:
        """End everything: half of the workers without a word, then the others as usual."""
        self._go_on(float("inf"))
        for pid in self.workers()[::2]:
            self._signal(pid, signal.SIGKILL)
        for each in self._nodes:
            each.kill()
        self._gunicorn.terminate()
        try:
            self._gunicorn.wait(WAIT)
        except subprocess.TimeoutExpired:
            for pid in self.workers():
                self._signal(pid, signal.SIGKILL)
            self._gunicorn.kill()
            self._gunicorn.wait()
            raise

    def said(self) -> str:
        """Return what the processes have said."""
        return "".join(path.read_text() for path in sorted(self._folder.glob("*.log")))
