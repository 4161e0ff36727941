"""Connect to Redis for the bus: bounded connections, bounded waits, and no repeats of its own."""

from __future__ import annotations

from ...runtime.hints import how_to_install

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.exceptions import ResponseError
    from redis.retry import Retry
except ImportError as error:
    raise ImportError(f"wsmux.bus needs redis: {how_to_install('bus')}") from error

__all__ = [
    "FAILURES",
    "REPLY_TIME",
    "ResponseError",
    "cause",
    "explain",
    "is_wrong_type",
    "redis_client",
]

# Seconds for a connection, for an answer, and for a free connection of the pool.
CONNECT_TIME = 2.0
REPLY_TIME = 3.0
POOL_TIME = 3.0

# Whoever finds none free waits: threads of connections use them for the time of a round trip.
CONNECTIONS = 32

# What stands between a command of a pipeline and its error.
_COMMAND_END = "of pipeline caused error: "

# What says that Redis could not be asked, or would not.
FAILURES = (redis.RedisError, OSError)


def redis_client(url: str, connections: int = CONNECTIONS) -> redis.Redis:
    """Return a client for any number of threads; it connects when it is used.

    Args:
        url: ``redis://host:port/number``, ``rediss://...`` or ``unix://path``.
        connections: most connections at once.

    Raises:
        ValueError: the URL is none of these.
    """
    pool = redis.BlockingConnectionPool.from_url(
        url,
        max_connections=connections,
        timeout=POOL_TIME,
        socket_connect_timeout=CONNECT_TIME,
        socket_timeout=REPLY_TIME,
        protocol=2,  # replies have one shape whatever the library's version
        retry=Retry(NoBackoff(), 0),  # its default sleeps for seconds; callers have deadlines
    )
    return redis.Redis.from_pool(pool)


def explain(error: Exception) -> str:
    """Return one sentence about a failure."""
    return f"Redis failed: {cause(error)}"


def cause(error: Exception) -> str:
    """Return what Redis says, without the command: the library repeats that, message and all."""
    return str(error).rpartition(_COMMAND_END)[2] or type(error).__name__


def is_wrong_type(error: object) -> bool:
    """Return whether a key holds something else than the command is for."""
    return isinstance(error, ResponseError) and cause(error).startswith("WRONGTYPE")
