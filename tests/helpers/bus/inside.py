"""Look inside what the bus is made of: no other place knows where its state is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wsmux.bus.client import Client
    from wsmux.bus.federation.federation import Federation
    from wsmux.bus.federation.queue import FederationQueue
    from wsmux.bus.gateway.gateway import Peer
    from wsmux.bus.relay.redis_topics import RedisTopics
    from wsmux.bus.relay.relay import Relay
    from wsmux.bus.relay.sessions import Session
    from wsmux.bus.services import Services
    from wsmux.bus.session.identity_session import IdentitySession
    from wsmux.bus.session.relay_connection import RelayConnection
    from wsmux.bus.session.relay_control import RelayControl, Standing

__all__ = [
    "control_of",
    "endpoint_of",
    "is_stuck",
    "joined_names",
    "known_topics",
    "limit_calls",
    "links_of",
    "queue_of",
    "services_of",
    "standing_of",
]


def control_of(client: Client) -> RelayControl:
    """Return what asks the relays of a client."""
    return client._control


def standing_of(client: Client) -> Standing:
    """Return what keeps the requests of a client standing at its relays."""
    return client._standing


def services_of(client: Client) -> Services:
    """Return what answers the calls that a client gets."""
    return client._services


def links_of(client: Client) -> list[RelayConnection]:
    """Return what keeps the connections of a client to its relays."""
    return client._relay_pool.connections()


def joined_names(relay: Relay) -> int:
    """Return how many names a relay remembers for all of its connections together."""
    return sum(map(len, relay.names._joined.values()))


def limit_calls(client: Client, limit: int) -> None:
    """Let only so many calls of a client wait for their answers."""
    client._calls._limit = limit


def known_topics(store: RedisTopics) -> list[str]:
    """Return the topics of which a relay knows the last position."""
    return list(store._known)


def queue_of(federation: Federation) -> FederationQueue:
    """Return what holds the envelopes for other domains."""
    return federation._queue


def endpoint_of(gateway: Peer) -> IdentitySession:
    """Return what signs the uploads of a gateway."""
    return gateway._uploads._endpoint


def is_stuck(session: Session) -> bool:
    """Return whether the connection of a twin has no room at its relay."""
    return session._stuck_since is not None
