"""Speak RMB: signed requests and answers between twins, carried by relays.

The *reference* relay, gateway, clients and peers that comments refer to are those of ThreeFold's
RMB. Wire format, codes, Redis keys and limits follow them except where a comment says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from .client import Client, Reply
    from .errors import BadMessage, BusError, CallTimeout, Replayed, TokenRefused, TwinsUnavailable
    from .gateway.gateway import Peer
    from .relay.relay import Relay
    from .relay.server import RelayServer
    from .relay.setup import serve_relay
    from .services import ServiceRequest
    from .session.relay_connection import LinkState, RelayStatus
    from .twins.chain import ChainTwins
    from .twins.http import HttpTwins
    from .twins.records import Twin, TwinDirectory
    from .twins.sources import CachedTwins, Failover, FileTwins, twins_from
    from .wire.address import Address, parse_address
    from .wire.keys import Identity, KeyType

__all__ = [
    "Address",
    "BadMessage",
    "BusError",
    "CachedTwins",
    "CallTimeout",
    "ChainTwins",
    "Client",
    "Failover",
    "FileTwins",
    "HttpTwins",
    "Identity",
    "KeyType",
    "LinkState",
    "Peer",
    "Relay",
    "RelayServer",
    "RelayStatus",
    "Replayed",
    "Reply",
    "ServiceRequest",
    "TokenRefused",
    "Twin",
    "TwinDirectory",
    "TwinsUnavailable",
    "parse_address",
    "serve_relay",
    "twins_from",
]

# Imported on first use: a client needs no relay, and each directory has libraries of its own.
__getattr__ = lazy_names(
    __name__,
    {
        "client": ("Client", "Reply"),
        "errors": (
            "BadMessage",
            "BusError",
            "CallTimeout",
            "Replayed",
            "TokenRefused",
            "TwinsUnavailable",
        ),
        "gateway.gateway": ("Peer",),
        "relay.relay": ("Relay",),
        "relay.server": ("RelayServer",),
        "relay.setup": ("serve_relay",),
        "services": ("ServiceRequest",),
        "session.relay_connection": ("LinkState", "RelayStatus"),
        "twins.chain": ("ChainTwins",),
        "twins.http": ("HttpTwins",),
        "twins.records": ("Twin", "TwinDirectory"),
        "twins.sources": ("CachedTwins", "Failover", "FileTwins", "twins_from"),
        "wire.address": ("Address", "parse_address"),
        "wire.keys": ("Identity", "KeyType"),
    },
)
