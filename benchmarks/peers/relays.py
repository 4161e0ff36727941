"""Measure the relay of ``wsmux.bus`` against an echo over the same links."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from wsmux.runtime.logs import logger

from ..bus.figures import BusClient, trips_p50
from ..calls import SMALL
from ..peer import CHUNK, ECHO, Line, Peer
from .raw import Raw, open_line

REDIS = "redis-server"

# What a twin may send in a minute: one that floods reaches it at once, the others never.
LIMIT = (4_000, 1_000_000_000)

RATES = ("twins-1", "twins-10", "twins-100")


class RawTrips(Raw):
    """Exchange messages one at a time, to hold a call against."""

    name = base = "raw-trips"
    about = "websocket-client and simple-websocket, one WebSocket, one message at a time"
    kind = "bus"
    leaves_out: ClassVar[tuple[str, ...]] = (*RATES, "kept", "idle-twin", "flood")

    @contextmanager
    def connect(self, address: str) -> Iterator[BusClient]:
        line = open_line(address)
        yield _LineTrips(line)
        line.close()


class _LineTrips(BusClient):
    """Measure a line."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def trip_p50(self, seconds: float) -> float:
        message, line = ECHO + bytes(SMALL - 1), self._line

        def trip() -> None:
            line.send(message)
            if line.receive(CHUNK) != message:
                raise RuntimeError("the echo is not what was sent")

        return trips_p50(trip, seconds)

    call_p50 = trip_p50  # what a call is held to


class LinkEcho(Peer):
    """Send every message back, over the links that the relay has, without a relay."""

    name = base = "link-echo"
    about = "an echo over the relay's links, each message sent back"
    kind = "bus"
    needs: ClassVar[tuple[str, ...]] = (
        *("base58", "cryptography", "mnemonic", "prometheus_client", "redis", "requests"),
        "sr25519",
    )
    leaves_out: ClassVar[tuple[str, ...]] = ("kept", "call", "idle-twin", "flood")

    @contextmanager
    def serve(self) -> Iterator[str]:
        from ..bus.server import echo

        with echo() as address:
            yield address

    @contextmanager
    def connect(self, address: str) -> Iterator[BusClient]:
        from ..bus.client import EchoClient

        yield EchoClient(address)


class Relay(LinkEcho):
    """Relay with queues in memory."""

    name = "relay"
    about = "wsmux relay, queues in memory; calls are encrypted and signed"
    base = "link-echo"
    leaves_out: ClassVar[tuple[str, ...]] = ("flood",)

    @contextmanager
    def serve(self) -> Iterator[str]:
        from ..bus.server import relay

        with relay() as address:
            yield address

    @contextmanager
    def connect(self, address: str) -> Iterator[BusClient]:
        from ..bus.client import RelayClient

        with RelayClient(address) as client:
            yield client


class RedisRelay(Relay):
    """Relay with queues in a Redis of its own, which shares the core of the relay."""

    name = "relay-redis"
    about = "the same with queues in Redis, which twins that are connected do without"
    base = "relay"
    leaves_out: ClassVar[tuple[str, ...]] = ("trip", "call", "idle-twin", "flood")

    def lacks(self) -> str | None:
        missing = super().lacks()
        return missing or (None if shutil.which(REDIS) else f"there is no {REDIS} here")

    @contextmanager
    def serve(self) -> Iterator[str]:
        from ..bus.server import redis, relay

        with redis(REDIS) as url, relay(redis=url) as address:
            yield address


class LimitedRelay(Relay):
    """Relay with a limit that only a twin that floods reaches."""

    name = "relay-limit"
    about = f"the same as relay, at most {LIMIT[0]:,} messages of each twin in a minute"
    base = "relay"
    leaves_out: ClassVar[tuple[str, ...]] = (*RATES, "kept", "trip", "call", "idle-twin")

    @contextmanager
    def serve(self) -> Iterator[str]:
        from ..bus.server import relay

        logger("wsmux.bus").setLevel(logging.ERROR)  # that it drops messages is known
        with relay(limit=LIMIT) as address:
            yield address


PEERS: list[Peer] = [RawTrips(), LinkEcho(), Relay(), RedisRelay(), LimitedRelay()]
