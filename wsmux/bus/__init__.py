"""Speak RMB: signed requests and answers between twins, carried by relays.

The *reference* relay, gateway, clients and peers that comments refer to are those of ThreeFold's
RMB. Wire format, codes, Redis keys and limits follow them except where a comment says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from .client import Client, Joined, Reply
    from .errors import (
        BadMessage,
        BusError,
        CallTimeout,
        NameTaken,
        NobodyJoined,
        RelayRefused,
        Replayed,
        TokenRefused,
        TwinsUnavailable,
    )
    from .gateway.gateway import Peer
    from .gateway.list_client import GatewayClient
    from .relay.relay import Relay
    from .relay.server import RelayServer
    from .relay.setup import serve_relay
    from .services import ServiceRequest
    from .session.relay_connection import LinkState, RelayStatus
    from .topics import Subscription, TopicMessage
    from .twins.chain import ChainTwins
    from .twins.http import HttpTwins
    from .twins.records import Twin, TwinDirectory
    from .twins.registrar import RegistrarServer, serve_registrar
    from .twins.sources import CachedTwins, Failover, FileTwins, twins_from
    from .wire.address import Address, parse_address
    from .wire.keys import Identity, KeyType
    from .wire.names import Presence, Worker
    from .wire.topics import MessageRefused, Position, TopicGap

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
    "GatewayClient",
    "HttpTwins",
    "Identity",
    "Joined",
    "KeyType",
    "LinkState",
    "MessageRefused",
    "NameTaken",
    "NobodyJoined",
    "Peer",
    "Position",
    "Presence",
    "RegistrarServer",
    "Relay",
    "RelayRefused",
    "RelayServer",
    "RelayStatus",
    "Replayed",
    "Reply",
    "ServiceRequest",
    "Subscription",
    "TokenRefused",
    "TopicGap",
    "TopicMessage",
    "Twin",
    "TwinDirectory",
    "TwinsUnavailable",
    "Worker",
    "parse_address",
    "serve_registrar",
    "serve_relay",
    "twins_from",
]

# Imported on first use: a client needs no relay, and each directory has libraries of its own.
__getattr__ = lazy_names(
    __name__,
    {
        "client": ("Client", "Joined", "Reply"),
        "errors": (
            "BadMessage",
            "BusError",
            "CallTimeout",
            "NameTaken",
            "NobodyJoined",
            "RelayRefused",
            "Replayed",
            "TokenRefused",
            "TwinsUnavailable",
        ),
        "gateway.gateway": ("Peer",),
        "gateway.list_client": ("GatewayClient",),
        "relay.relay": ("Relay",),
        "relay.server": ("RelayServer",),
        "relay.setup": ("serve_relay",),
        "services": ("ServiceRequest",),
        "session.relay_connection": ("LinkState", "RelayStatus"),
        "topics": ("Subscription", "TopicMessage"),
        "twins.chain": ("ChainTwins",),
        "twins.http": ("HttpTwins",),
        "twins.records": ("Twin", "TwinDirectory"),
        "twins.registrar": ("RegistrarServer", "serve_registrar"),
        "twins.sources": ("CachedTwins", "Failover", "FileTwins", "twins_from"),
        "wire.address": ("Address", "parse_address"),
        "wire.keys": ("Identity", "KeyType"),
        "wire.names": ("Presence", "Worker"),
        "wire.topics": ("MessageRefused", "Position", "TopicGap"),
    },
)
