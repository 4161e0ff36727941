"""Programs that speak to their gateway over Redis: callers and services."""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

from wsmux.storage.redis_client import redis_client

from ..redis_server import RedisServer
from ..timeouts import WAIT

__all__ = ["Caller", "Service", "database", "take_all"]

# Seconds between looks of a service whether it shall end.
LOOK = 0.05

_returns = itertools.count(1)


def database(server: RedisServer, number: int) -> str:
    """Return the URL of one of the databases of a server."""
    return f"{server.url.rpartition('/')[0]}/{number}"


def _patient(url: str) -> Any:
    """Return a client that waits for Redis as long as a test does: a busy disk may be slow."""
    client: Any = redis_client(url)
    client.connection_pool.connection_kwargs["socket_timeout"] = WAIT
    return client


class Caller:
    """Push requests, and take their answers."""

    def __init__(self, url: str) -> None:
        self.redis: Any = _patient(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.redis.close()

    def push(self, command: str, to: list[int], data: Any = None, **changes: Any) -> str:
        """Push a request; return the list for its answers."""
        ret = f"answers.{next(_returns)}"
        request = {
            "ver": 1,
            "ref": "mine",
            "cmd": command,
            "exp": 60,
            "dat": base64.b64encode(json.dumps(data).encode()).decode(),
            "tag": None,
            "dst": to,
            "ret": ret,
            "shm": "application/json",
            "now": int(time.time()),
        } | changes
        self.redis.lpush("msgbus.system.local", json.dumps(request))
        return str(request["ret"])

    def answer(self, ret: str, timeout: float = WAIT) -> dict[str, Any]:
        """Wait for an answer."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = self.redis.brpop(ret, 1)
            if found is not None:
                answer: dict[str, Any] = json.loads(found[1])
                answer["dat"] = base64.b64decode(answer["dat"])
                return answer
        raise AssertionError(f"nothing came to {ret}")

    def ask(self, command: str, to: list[int], data: Any = None, **changes: Any) -> dict[str, Any]:
        return self.answer(self.push(command, to, data, **changes))


class Service:
    """Take the requests of a command and answer them, in a thread, until the block is left."""

    def __init__(
        self,
        url: str,
        command: str,
        answer: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        self._redis: Any = _patient(url)
        self._queue = f"msgbus.{command}"
        self._answer = answer or (lambda request: {})
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.requests: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(WAIT)
        self._redis.close()

    def _run(self) -> None:
        while not self._ending.is_set():
            found = self._redis.brpop(self._queue, LOOK)
            if found is None:
                continue
            request = json.loads(found[1])
            self.requests.append(request)
            response = {
                "ver": 1,
                "ref": request["ref"],
                "dat": request["dat"],
                "dst": request["src"],
                "shm": request["shm"],
                "now": int(time.time()),
                "err": None,
            } | self._answer(request)
            self._redis.lpush(request["ret"], json.dumps(response))


def take_all(caller: Caller, ret: str, count: int, patience: float = 3 * WAIT) -> Counter[str]:
    """Take as many answers; return how often each reference and source came."""
    found: Counter[str] = Counter()
    deadline = time.monotonic() + patience
    while found.total() < count:
        assert time.monotonic() < deadline, f"{count - found.total()} answers are missing"
        raw = caller.redis.brpop(ret, 1)
        if raw is not None:
            answer = json.loads(raw[1])
            assert answer["err"] is None
            found[f"{answer['ref']} {answer['src']}"] += 1
    return found
