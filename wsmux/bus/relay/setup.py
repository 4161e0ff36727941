"""Put a relay together, and start it.

::

    with wsmux.bus.serve_relay(["relay.test"], wsmux.bus.FileTwins("twins.json")) as server:
        server.serve_forever()
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Iterable, Mapping

from ...config import Config
from ...endpoints.acceptor import listen
from ...handshake.origin import allowed_origins
from ...runtime.arguments import strings
from ...runtime.deadline import Deadline
from ..federation.federation import Federation
from ..federation.http_post import Poster
from ..federation.inbound import FederationInbound
from ..federation.queue import FederationQueue, MemoryFederationQueue
from ..federation.ranker import PERIOD, Ranker
from ..twins.records import TwinDirectory
from .memory_queues import MemoryQueues
from .queues import SessionQueues
from .rate_limiter import FixedWindow, Limiter, NoLimit
from .relay import Relay
from .server import ANY_ORIGIN, MAX_CONNECTIONS, RelayServer

__all__ = ["serve_relay"]

# Seconds to let go of what was made, when something else could not be.
CLEAN_UP = 5.0


def serve_relay(
    domains: Iterable[str],
    twins: TwinDirectory,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    redis: str | None = None,
    limit: tuple[int, int] | None = None,
    routes: Mapping[str, str] | None = None,
    ranker_period: float = PERIOD,
    origins: Iterable[str] | None = ANY_ORIGIN,
    ssl_context: ssl.SSLContext | None = None,
    max_connections: int = MAX_CONNECTIONS,
    config: Config | None = None,
) -> RelayServer:
    """Listen and relay in background threads; return the running server.

    Args:
        domains: the names under which twins list this relay; without one, every twin is another
            relay's.
        twins: the directory of twins; the relay closes it.
        host, port: where to listen; port 0 takes a free one, which ``server.port`` tells.
        redis: the URL of the Redis that keeps what waits, shared with other relays of these
            domains; without one, memory does, and what waits is lost with the process.
        limit: messages and bytes that a twin may send in each minute; the same again holds for
            what comes from it through other relays. None by default.
        routes: the URL of each domain that is not at ``https://DOMAIN/``.
        ranker_period: seconds for which failures of other relays count.
        origins: as in ``wsmux.serve``, but for the default: any, since a token is needed anyway.
        ssl_context: serves TLS. max_connections: at once, each with a thread.
        config: the limits of handshakes and addresses, and ``trusted_proxies``; what else it holds
            is for streams.

    Raises:
        ValueError, TypeError: an argument is wrong. OSError: it cannot listen there. ImportError: a
            package that is needed is not installed.
    """
    names = strings("domains", domains, "relay.test")
    pages = allowed_origins(origins)  # before anything is opened
    ranker, poster = Ranker(random.random, ranker_period), Poster(routes)
    from_twins, from_relays = _limiter(limit), _limiter(limit)
    queues, waiting = _queues(redis)

    def federate(relay: Relay) -> Federation:
        return Federation(
            twins, ranker, poster, waiting, relay.deliver_own, count=relay.metrics.federated
        )

    try:
        listener = listen(host, port)
        try:
            relay = Relay(names, twins, queues=queues, federate=federate, limiter=from_twins)
        except BaseException:
            listener.close()
            raise
    except BaseException:
        waiting.close()
        queues.close(Deadline(CLEAN_UP))
        raise

    take_in = FederationInbound(
        twins,
        relay.domains,
        lambda address: relay.sessions.get(address) is not None,
        relay.deliver,
        limiter=from_relays,
    )
    return RelayServer(
        relay,
        listener,
        take_in=take_in.receive,
        origins=pages,
        ssl_context=ssl_context,
        max_connections=max_connections,
        config=config,
    )


def _limiter(limit: tuple[int, int] | None) -> Limiter:
    return NoLimit() if limit is None else FixedWindow(*limit)


def _queues(redis: str | None) -> tuple[SessionQueues, FederationQueue]:
    """Return what keeps envelopes for sessions, and for other relays."""
    if redis is None:
        return MemoryQueues(), MemoryFederationQueue()
    from ..federation.redis_queue import RedisFederationQueue
    from .redis_client import redis_client  # memory does without
    from .redis_queues import RedisQueues

    return RedisQueues(redis_client(redis)), RedisFederationQueue(redis_client(redis))
