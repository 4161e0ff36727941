"""Measure the relay of ``wsmux.bus`` against an echo over the same links."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from wsmux.runtime.logs import logger

from ..blocking import exchanging, median_us
from ..peer import Peer
from ..programs import REDIS, redis
from ..words import SMALL, Open
from .raw import Raw

# What a twin may send in a minute: one that floods reaches it at once, the others never.
LIMIT = (4_000, 1_000_000_000)

RATES = ("twins-1", "twins-10", "twins-100")


class LineTrips:
    """Exchange messages one at a time, to hold a call against."""

    def __init__(self, opener: Open) -> None:
        self._open = opener

    def trip_p50(self, seconds: float) -> float:
        """Return the median of the microseconds that a message there and back takes."""
        with closing(self._open()) as line:
            return median_us(exchanging(line, SMALL), seconds)

    call_p50 = trip_p50  # what a call is held to


@dataclass
class Relay(Peer):
    """Relay with queues in memory, or in a Redis of its own, which shares the relay's core.

    One that is ``bare`` is an echo over the links that a relay has.
    """

    base: str = "link-echo"
    kind: str = "bus"
    needs: tuple[str, ...] = (
        *("base58", "cryptography", "mnemonic", "prometheus_client", "redis", "requests"),
        "sr25519",
    )
    bare: bool = False
    limit: tuple[int, int] | None = None

    @contextmanager
    def serve(self) -> Iterator[str]:
        from ..bus.server import echo, relay

        if self.limit:
            logger("wsmux.bus").setLevel(logging.ERROR)  # that it drops messages is known
        own = redis() if self.programs else nullcontext()
        with own as url, echo() if self.bare else relay(url, self.limit) as address:
            yield address

    @contextmanager
    def connect(self, address: str) -> Iterator[Any]:
        from ..bus.client import EchoClient, RelayClient

        with (EchoClient if self.bare else RelayClient)(address) as client:
            yield client


PEERS: list[Peer] = [
    Raw(
        "raw-trips",
        "websocket-client and simple-websocket, one WebSocket, one message at a time",
        base="raw-trips",
        kind="bus",
        leaves_out=(*RATES, "kept", "idle-twin", "flood"),
        measure=LineTrips,
    ),
    Relay(
        "link-echo",
        "an echo over the relay's links, each message sent back",
        leaves_out=("kept", "call", "idle-twin", "flood"),
        bare=True,
    ),
    Relay(
        "relay",
        "wsmux relay, queues in memory; calls are encrypted and signed",
        leaves_out=("flood",),
    ),
    Relay(
        "relay-redis",
        "the same with queues in Redis, where each message stays until its twin has read it",
        base="relay",
        leaves_out=("trip", "call", "idle-twin", "flood"),
        programs=(REDIS,),
    ),
    Relay(
        "relay-limit",
        f"the same as relay, at most {LIMIT[0]:,} messages of each twin in a minute",
        base="relay",
        leaves_out=(*RATES, "kept", "trip", "call", "idle-twin"),
        limit=LIMIT,
    ),
]
