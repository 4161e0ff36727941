"""Run the real Redis for tests, each on a port of its own.

The fixture ``server`` is one for a module; whoever kills it makes a ``RedisServer`` of its own.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
import redis as library

from wsmux.storage.redis_client import FAILURES, redis_client

from .ports import free_port
from .programs import needs
from .stopped_process import KillableProcess
from .timeouts import WAIT

__all__ = ["RedisServer", "leaked_names", "redis_server"]

PAUSE = 0.01


# ARGV: milliseconds by which all times are later.
_JUMP = """
for _, key in ipairs(redis.call('KEYS', 'wsmux:*')) do
  local left = redis.call('PTTL', key)
  if string.match(key, ':nodes$') or string.match(key, ':seen$') or string.match(key, ':limits:')
  then
    for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      redis.call('ZINCRBY', key, ARGV[1], member)
    end
  elseif string.match(key, ':clock$') then
    redis.call('INCRBY', key, ARGV[1])
  end
  if left > 0 then redis.call('PEXPIRE', key, math.max(1, left + ARGV[1])) end
end
"""


class RedisServer(KillableProcess):
    """Run one Redis server; it keeps its port and, if told so, its data over ``kill``.

    Attributes:
        url: where it listens.
    """

    def __init__(
        self, folder: Path, *, durable: bool = False, configuration: Path | None = None
    ) -> None:
        super().__init__()
        self._port = free_port()
        self._folder = folder
        self._configuration = [] if configuration is None else [str(configuration)]
        self._options = ["--appendonly", "yes", "--appendfsync", "always"] if durable else []
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it answers; skip the test where there is no Redis."""
        self._process = subprocess.Popen(
            [needs("redis-server"), *self._configuration, "--port", str(self._port)]
            + ["--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder), *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + WAIT
        while not self._answers():
            assert self._process.poll() is None, "the Redis server has ended"
            assert time.monotonic() < deadline, "the Redis server does not answer"
            time.sleep(PAUSE)

    def client(self) -> library.Redis:
        """Return a client of its own; close it."""
        return redis_client(self.url)

    def jump(self, seconds: float) -> None:
        """Make its clock jump, for all that clusters and limits of users keep there.

        The times that it has kept move the other way, which is the same to whoever asks.
        """
        with self.client() as client:
            client.eval(_JUMP, 0, -int(seconds * 1000))

    def _answers(self) -> bool:
        client = self.client()
        try:
            return bool(client.ping())
        except FAILURES:
            return False
        finally:
            client.close()


def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a server for a module."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


def leaked_names(server: RedisServer, namespace: str = "default") -> list[str]:
    """Return the keys of a cluster that are of names, or of nodes that have them."""
    prefix = f"wsmux:cluster:{namespace}:"
    with server.client() as client:
        keys = [key.decode().removeprefix(prefix) for key in client.scan_iter(f"{prefix}*")]
    return sorted(key for key in keys if key.startswith(("name:", "names", "of:")))
