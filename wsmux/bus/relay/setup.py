"""Assemble a relay, and start it.

::

    with wsmux.bus.serve_relay(["relay.test"], wsmux.bus.FileTwins("twins.json")) as server:
        server.serve_forever()
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Collection, Iterable, Mapping

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
from .name_store import MemoryNames, NameStore
from .queues import SessionQueues
from .rate_limiter import FixedWindow, Limiter, NoLimit
from .relay import Relay
from .server import ANY_ORIGIN, MAX_CONNECTIONS, RelayServer
from .topic_log import Retention, retention_of
from .topic_store import MemoryTopics, TopicStore
from .topics import publishers_of

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
    fast: bool = False,
    limit: tuple[int, int] | None = None,
    topics: Mapping[str, Collection[int]] | None = None,
    topic_retention: tuple[int, int, float] | None = None,
    names: Mapping[str, int] | None = None,
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
        fast: with ``redis``, send to a connected twin without queueing first, and count an envelope
            as delivered once the socket has taken it. What is under way to connected twins is then
            lost if the relay is killed, or a twin's connection breaks.
        limit: messages and bytes that a twin may send per minute; the same limit applies separately
            to what arrives from it through other relays. Unlimited by default.
        topics: the twins that may publish to each of some topics, as ``{"orders": [12, 13]}``;
            anybody may publish to others, and subscribe to all.
        topic_retention: messages, bytes and seconds that each topic keeps; 10,000, 16 MiB and a day
            by default. Relays that share a Redis need the same, and the same ``topics``.
        names: the twins that own names, which no other twin may claim; any other name belongs to
            the first twin whose worker joins it, while it has workers and 30 s longer.
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
    own = strings("domains", domains, "relay.test")
    pages = allowed_origins(origins)  # checked before anything is opened
    ranker, poster = Ranker(random.random, ranker_period), Poster(routes)
    from_twins, from_relays = _limiter(limit), _limiter(limit)
    publishers = publishers_of(topics or {})
    queues, waiting, claims, logs = _stores(redis, retention_of(topic_retention))

    def federate(relay: Relay) -> Federation:
        return Federation(
            twins, ranker, poster, waiting, relay.deliver_own, count=relay.metrics.federated
        )

    try:
        listener = listen(host, port)
        try:
            relay = Relay(
                own,
                twins,
                queues=queues,
                federate=federate,
                limiter=from_twins,
                topics=logs,
                publishers=publishers,
                fast=fast,
                names=names,
                name_store=claims,
            )
        except BaseException:
            listener.close()
            raise
    except BaseException:
        waiting.close()
        claims.close()
        queues.close(Deadline(CLEAN_UP))
        logs.close(Deadline(CLEAN_UP))
        raise

    take_in = FederationInbound(
        twins,
        relay.domains,
        lambda address, at_once: (
            relay.sessions.get(address) is not None or relay.names.takes(address, at_once=at_once)
        ),
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


def _stores(
    redis: str | None, retention: Retention
) -> tuple[SessionQueues, FederationQueue, NameStore, TopicStore]:
    """Return the queues for sessions, that for other relays, claims of names, and topics."""
    if redis is None:
        return MemoryQueues(), MemoryFederationQueue(), MemoryNames(), MemoryTopics(retention)
    from ...storage.redis_client import redis_client  # not needed for memory
    from ..federation.redis_queue import RedisFederationQueue
    from .redis_names import RedisNames
    from .redis_queues import RedisQueues
    from .redis_topics import RedisTopics

    return (
        RedisQueues(redis_client(redis)),
        RedisFederationQueue(redis_client(redis)),
        RedisNames(redis_client(redis)),
        RedisTopics(redis_client(redis), retention),
    )
