"""Run the programs that are measured, such as Redis, in processes that end with this one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from wsmux.cli.children import end, undisturbed
from wsmux.runtime.deadline import Deadline

__all__ = ["REDIS", "free_port", "program", "redis"]

REDIS = "redis-server"

# Runs a program until it ends or stdin does, as it also does when this process is killed.
KEEPER = 'exec 3<&0; "$@" & pid=$!; (cat <&3 >/dev/null; kill $pid 2>/dev/null) & wait $pid'

# Seconds for Redis to begin, for a program to end, and between two looks whether it has begun.
PATIENCE, PAUSE = 10.0, 0.02


def free_port() -> int:
    """Return a port of the loopback on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def program(
    *command: str, folder: str | None = None, environment: Mapping[str, str] = os.environ
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program, in a folder, until the block ends."""
    with undisturbed():
        process = subprocess.Popen(
            ["sh", "-c", KEEPER, "sh", *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        end(process, PATIENCE)


@contextmanager
def redis(name: str = REDIS) -> Iterator[str]:
    """Run a Redis that keeps everything in memory; yield its address.

    Raises:
        RuntimeError: it does not begin.
    """
    port = free_port()
    folder = tempfile.mkdtemp(prefix="wsmux-bench-")
    options: Sequence[str] = ["--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    try:
        with program(name, *options, "--dir", folder) as process:
            url = f"redis://127.0.0.1:{port}/0"
            _wait_for_redis(url, process)
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_redis(url: str, process: subprocess.Popen[bytes]) -> None:
    from wsmux.storage.redis_client import FAILURES, redis_client  # which other variants lack

    client = redis_client(url)
    deadline = Deadline(PATIENCE)
    try:
        while process.poll() is None and not deadline.expired():
            with suppress(*FAILURES):
                if client.ping():
                    return
            time.sleep(PAUSE)
    finally:
        client.close()
    raise RuntimeError(f"Redis does not answer at {url}")
