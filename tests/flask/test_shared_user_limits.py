"""A real gunicorn with two workers, and a real Redis: users are counted over both workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import wsmux

from ..helpers.checkout import ROOT
from ..helpers.ports import free_port
from ..helpers.redis_server import RedisServer, redis_server
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for

pytestmark = [pytest.mark.wide, pytest.mark.hang_bound(240)]

# As ``limited_app`` has it.
CONNECTIONS = 6

server = pytest.fixture(scope="module", name="server")(redis_server)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def started(stack: ExitStack, redis: str) -> tuple[str, subprocess.Popen[bytes]]:
    """Start gunicorn; return the address of its route, and the process."""
    port = free_port()
    options = ["-w", "2", "-k", "gthread", "--threads", "8", "--log-level", "warning", "--preload"]
    bound = ["--bind", f"127.0.0.1:{port}", "--graceful-timeout", "2", "--no-control-socket"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", *options, *bound, "tests.helpers.limited_app:app"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "REDIS": redis},
    )

    def stop() -> None:
        process.terminate()
        process.wait(WAIT)

    stack.callback(stop)
    return f"ws://127.0.0.1:{port}/", process


def connect(url: str, user: str) -> wsmux.Connection:
    """Connect to a worker that is not full."""
    deadline = time.monotonic() + WAIT
    while True:
        try:
            return wsmux.connect(f"{url}?{user}", timeout=WAIT)
        except (ConnectionError, wsmux.HandshakeError) as error:
            full = isinstance(error, wsmux.HandshakeError) and error.status != 503
            if full or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def worker(connection: wsmux.Connection) -> int:
    with connection.open_stream(WAIT) as stream:
        stream.timeout = WAIT
        return int(stream.read())


def refused(url: str, user: str) -> bool:
    try:
        connect(url, user).close()
    except wsmux.HandshakeError as error:
        return error.status == 429
    return False


def test_two_workers_count_a_user_together_and_a_killed_one_counts_for_a_lease(
    server: RedisServer, stack: ExitStack
) -> None:
    url, _ = started(stack, server.url)
    open_ones = [stack.enter_context(connect(url, "ann")) for _ in range(CONNECTIONS)]
    workers = Counter(map(worker, open_ones))
    assert len(workers) == 2, "one worker takes four"
    assert refused(url, "ann")
    stack.enter_context(connect(url, "bob"))

    killed, lost = workers.most_common()[0]
    os.kill(killed, signal.SIGKILL)
    # What it had is free again, and no more than that.
    back: list[wsmux.Connection] = []

    def again() -> bool:
        try:
            back.append(stack.enter_context(connect(url, "ann")))
        except wsmux.HandshakeError:
            return False
        return len(back) == lost

    wait_for(again)
    assert refused(url, "ann")
