"""Connect to Redis: bounded connections and timeouts, and no retries in the client."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from functools import cache
from typing import Any

from ..runtime.hints import how_to_install

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.connection import AbstractConnection
    from redis.exceptions import NoScriptError, ResponseError
    from redis.retry import Retry
except ImportError as error:
    raise ImportError(f"Redis needs its client: {how_to_install('bus')}, or [cluster]") from error

__all__ = [
    "FAILURES",
    "REPLY_TIME",
    "ResponseError",
    "cause",
    "explain",
    "is_passing",
    "is_wrong_type",
    "redis_client",
    "run_together",
]

# Seconds to connect, to get a reply, and to get a free connection of the pool.
CONNECT_TIME = 2.0
REPLY_TIME = 3.0
POOL_TIME = 3.0

# Connections of a pool. A thread that finds none free waits: each is used for one round trip.
CONNECTIONS = 32

# A connection does not say of which library it is: that takes two round trips before its first
# call, and whoever has to connect to a Redis that is far would wait twice as long.
_SAYS_NOTHING: dict[str, Any] = (
    {"driver_info": None}
    if "driver_info" in inspect.signature(AbstractConnection).parameters
    else {"lib_name": None, "lib_version": None}  # before version 7.2 of the client
)

# The text between a command of a pipeline and its error.
_COMMAND_END = "of pipeline caused error: "

WRONG_URL = (
    "expected the URL of a Redis, such as redis://localhost:6379/0, rediss://... or unix://...; "
    "its port must be a number, and characters such as / # ? @ of its password percent-encoded"
)

# Errors that mean that Redis could not be reached, or refused.
FAILURES = (redis.RedisError, OSError)


def redis_client(url: str, connections: int = CONNECTIONS) -> redis.Redis:
    """Return a client for any number of threads; it connects on first use.

    Args:
        url: ``redis://host:port/number``, ``rediss://...`` or ``unix://path``.
        connections: the maximum number of connections.

    Raises:
        ValueError: the URL is none of these. It is not shown, since it may have a password.
    """
    try:
        pool = redis.BlockingConnectionPool.from_url(
            url,
            max_connections=connections,
            timeout=POOL_TIME,
            socket_connect_timeout=CONNECT_TIME,
            socket_timeout=REPLY_TIME,
            **_SAYS_NOTHING,
            protocol=2,  # the same shape of replies with each version of the library
            retry=Retry(NoBackoff(), 0),  # its default sleeps for seconds; callers have deadlines
        )
    except ValueError:  # its text may have a part of the password, which it took for the port
        raise ValueError(WRONG_URL) from None
    return redis.Redis.from_pool(pool)


def run_together(client: redis.Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Run commands in one round trip, and return the result of each, or its error.

    Of an ``EVAL``, Redis is sent the digest, and the text in another round trip if it does not know
    it, as after its start.

    Raises:
        redis.RedisError, OSError: the connection failed; some commands may have run.
    """
    results = _send(client, [_by_digest(each) for each in commands])
    unknown = [at for at, each in enumerate(results) if isinstance(each, NoScriptError)]
    if unknown:
        again = _send(client, [commands[at] for at in unknown])
        for at, result in zip(unknown, again, strict=True):
            results[at] = result
    return results


def _send(client: redis.Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    pipeline: Any = client.pipeline(transaction=False)
    for each in commands:
        pipeline.execute_command(*each)
    results: list[Any] = pipeline.execute(raise_on_error=False)
    return results


def _by_digest(command: tuple[Any, ...]) -> tuple[Any, ...]:
    if command[0] != "EVAL":
        return command
    return "EVALSHA", _digest(command[1]), *command[2:]


@cache
def _digest(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def explain(error: Exception) -> str:
    """Describe a failure in one sentence."""
    return f"Redis failed: {cause(error)}"


def cause(error: Exception) -> str:
    """Return Redis's error without the command, which the library repeats with all its data."""
    return str(error).rpartition(_COMMAND_END)[2] or type(error).__name__


def is_passing(error: Exception) -> bool:
    """Return whether a failure may be over soon: no connection, no answer, or a Redis not ready."""
    if isinstance(error, redis.exceptions.AuthenticationError):
        return False
    lost = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError, OSError)
    return isinstance(error, lost) or cause(error).startswith(("BUSY ", "LOADING", "TRYAGAIN"))


def is_wrong_type(error: object) -> bool:
    """Return whether a command failed because the key holds another type.

    Before version 7, Redis puts the place in a script before the code of an error.
    """
    return isinstance(error, ResponseError) and "WRONGTYPE " in cause(error)
