"""Clients of a real gunicorn with four workers reach each other, wherever they are."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux.cluster import Cluster

from ..helpers.checkout import ROOT
from ..helpers.ports import free_port
from ..helpers.programs import needs
from ..helpers.redis_server import RedisServer
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for, wait_for_value

WORKERS = 4


class Workers:
    """Run an example under gunicorn.

    Attributes:
        url: the address of its route.
    """

    def __init__(self, example: str, path: str, redis: str) -> None:
        port = free_port()
        self.url = f"ws://127.0.0.1:{port}{path}"
        options = ["-w", str(WORKERS), "-k", "gthread", "--threads", "8", "--timeout", "240"]
        options += ["--log-level", "warning"]
        bound = ["--bind", f"127.0.0.1:{port}", "--graceful-timeout", "1", "--no-control-socket"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *options, *bound, f"{example}:app"],
            cwd=ROOT / "examples",
            env={**os.environ, "PYTHONPATH": str(ROOT), "REDIS": redis},
        )

    def workers(self) -> list[int]:
        """Return the processes that serve."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(each) for each in path.read_text().split()]

    @contextmanager
    def alone(self, worker: int) -> Iterator[None]:
        """Stop the other workers, so that this one takes all who come."""
        others = [each for each in self.workers() if each != worker]
        for each in others:
            os.kill(each, signal.SIGSTOP)
        try:
            yield
        finally:
            for each in others:
                os.kill(each, signal.SIGCONT)

    def connect(self, name: str) -> wsmux.Connection:
        """Connect as a person."""
        deadline = time.monotonic() + WAIT
        while True:
            try:
                return wsmux.connect(f"{self.url}?name={name}", timeout=WAIT)
            except (ConnectionRefusedError, wsmux.HandshakeError):
                # It does not listen yet.
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WAIT)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def served(
    stack: ExitStack, server: RedisServer, example: str, path: str
) -> tuple[Workers, Cluster]:
    with server.client() as client:
        client.flushall()
    cluster = stack.enter_context(Cluster(server.url))
    workers = Workers(example, path, server.url)
    stack.callback(workers.stop)
    return workers, cluster


def joined(stack: ExitStack, workers: Workers, cluster: Cluster, count: int) -> Any:
    """Connect people, as many to each worker, and wait until all are found."""
    wait_for_value(lambda: len(workers.workers()), WORKERS)
    people: dict[int, wsmux.Connection] = {}
    for number, worker in enumerate(workers.workers()):
        with workers.alone(worker):
            for name in range(number, count, WORKERS):
                people[name] = workers.connect(str(name))
                stack.callback(people[name].abort)
    wait_for_value(lambda: len(cluster.who("person:*")), count)
    assert len({each.node for each in cluster.who()}) == WORKERS
    return people


def ask(connection: wsmux.Connection, line: str) -> str:
    with connection.open_stream() as stream:
        stream.timeout = WAIT
        stream.write(line.encode())
        stream.close_write()
        return stream.read().decode()


@pytest.mark.tools
@pytest.mark.hang_bound(240)
def test_everybody_reaches_everybody(server: RedisServer, stack: ExitStack) -> None:
    needs("redis-server")
    workers, cluster = served(stack, server, "26_chat", "/chat")
    count = 16
    people = joined(stack, workers, cluster, count)

    def talk(number: int) -> list[str]:
        return [ask(people[number], f"{other}: hello {other}") for other in range(count)]

    def listen(number: int) -> list[str]:
        heard = []
        for _ in range(count):
            with people[number].accept_stream(WAIT) as stream:
                stream.timeout = WAIT
                heard.append(stream.read().decode())
        return heard

    with ThreadPoolExecutor(2 * count) as pool:
        heard = [pool.submit(listen, number) for number in range(count)]
        said = [pool.submit(talk, number) for number in range(count)]
        assert [each.result() for each in said] == [["sent"] * count] * count
        for number, each in enumerate(heard):
            expected = sorted(f"{other}: hello {number}" for other in range(count))
            assert sorted(each.result()) == expected


@pytest.mark.tools
@pytest.mark.hang_bound(240)
def test_a_file_goes_through_two_workers_and_a_killed_one_is_forgotten(
    server: RedisServer, stack: ExitStack
) -> None:
    needs("redis-server")
    workers, cluster = served(stack, server, "27_file_drop", "/drop")
    people = joined(stack, workers, cluster, 16)
    node_of = {each.name: each.node for each in cluster.who("person:*")}
    sender = "person:0"
    other = next(name for name in node_of if node_of[name] != node_of[sender])
    data = os.urandom(1 << 20) * 8
    with people[0].open_stream() as sent:
        sent.timeout = WAIT
        sent.write(other.removeprefix("person:").encode() + b"\n")
        receiver = people[int(other.removeprefix("person:"))]

        def receive() -> None:
            with receiver.accept_stream(WAIT) as got:
                got.timeout = WAIT
                got.write(hashlib.sha256(got.read()).digest())

        receiving = threading.Thread(target=receive)
        receiving.start()
        sent.write(data)
        sent.close_write()
        assert sent.read() == hashlib.sha256(data).digest()
        receiving.join(WAIT)
    before = set(workers.workers())
    os.kill(min(before), signal.SIGKILL)
    wait_for(lambda: len(set(workers.workers()) - before) == 1)
    gone = [each for each in people.values() if _ends(each)]
    wait_for_value(lambda: len(cluster.who("person:*")), len(people) - len(gone))
    again = stack.enter_context(workers.connect("again"))
    wait_for_value(lambda: len(cluster.who("person:again")), 1)
    assert not again.closed


def _ends(connection: wsmux.Connection) -> bool:
    """Return whether the connection was of the killed worker."""
    try:
        connection.ping(timeout=WAIT)
    except (wsmux.ConnectionClosed, TimeoutError):
        return True
    return False
