"""Speak RMB: signed requests and answers between twins, carried by relays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..naming import lazy_names

if TYPE_CHECKING:
    from .address import Address, parse_address
    from .client import Client, Reply
    from .errors import (
        BadMessage,
        BusError,
        CallTimeout,
        Replayed,
        TokenRefused,
        TwinsUnavailable,
    )
    from .keys import Identity, KeyType
    from .peer import Peer
    from .relay import Relay
    from .relay_link import LinkState, RelayStatus
    from .relay_server import RelayServer
    from .relay_setup import serve_relay
    from .services import ServiceRequest
    from .twin_chain import ChainTwins
    from .twin_http import HttpTwins
    from .twin_sources import CachedTwins, Failover, FileTwins, twins_from
    from .twins import Twin, TwinDirectory

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

# A client must not pay for a relay, nor anybody for libraries that are not used.
__getattr__ = lazy_names(
    __name__,
    {
        "address": ("Address", "parse_address"),
        "client": ("Client", "Reply"),
        "errors": (
            "BadMessage",
            "BusError",
            "CallTimeout",
            "Replayed",
            "TokenRefused",
            "TwinsUnavailable",
        ),
        "keys": ("Identity", "KeyType"),
        "peer": ("Peer",),
        "relay": ("Relay",),
        "relay_link": ("LinkState", "RelayStatus"),
        "relay_server": ("RelayServer",),
        "relay_setup": ("serve_relay",),
        "services": ("ServiceRequest",),
        "twin_chain": ("ChainTwins",),
        "twin_http": ("HttpTwins",),
        "twin_sources": ("CachedTwins", "Failover", "FileTwins", "twins_from"),
        "twins": ("Twin", "TwinDirectory"),
    },
)
