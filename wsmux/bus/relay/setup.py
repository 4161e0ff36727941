"""Assemble a relay, and start it.

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

# Seconds to close the queues if the rest could not be set up.
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
        domains: the domains under which twins list this relay; with none, every twin belongs to
            another relay.
        twins: the directory of twins; closed by the relay.
        host, port: where to listen; port 0 takes a free one, available as ``server.port``.
        redis: the URL of a Redis that holds the queues, which other relays of these domains may
            share; by default they are in memory and lost with the process.
        limit: messages and bytes that a twin may send per minute; the same limit applies separately
            to what arrives from it through other relays. Unlimited by default.
        routes: the URLs of domains that are not at ``https://DOMAIN/``.
        ranker_period: seconds for which failures of other relays count.
        origins: as in ``wsmux.serve``, but any by default, since a token is required.
        ssl_context: the TLS settings of the server; without it, the relay serves ``ws://``.
        max_connections: connections at once, each with a thread.
        config: the limits of handshakes and of connections per address, and ``trusted_proxies``;
            the rest applies to streams, which a relay does not use.

    Raises:
        ValueError, TypeError: an argument is invalid.
        OSError: the address cannot be listened on.
        ImportError: a required package is not installed.
    """
    names = strings("domains", domains, "relay.test")
    pages = allowed_origins(origins)  # checked before anything is opened
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
    """Return the queues for sessions, and the queue for other relays."""
    if redis is None:
        return MemoryQueues(), MemoryFederationQueue()
    from ..federation.redis_queue import RedisFederationQueue
    from .redis_client import redis_client  # not needed for memory
    from .redis_queues import RedisQueues

    return RedisQueues(redis_client(redis)), RedisFederationQueue(redis_client(redis))
