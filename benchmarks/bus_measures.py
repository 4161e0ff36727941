"""Say which figures there are of the bus, and make them of what a client has timed.

Messages that wait for a twin are as many as the last known rate makes of the wanted time, but no
more than half of what a queue keeps.
"""

from __future__ import annotations

from functools import partial

from .bus.figures import BusClient
from .measures import Measure

__all__ = ["BUS_MEASURES"]

KIB = 1024

# Messages that first find out how long a queue takes; and at most.
PROBE, MOST = 200, 5_000

# Idle twins connected for each second that a measurement is to take, at least, and at most.
IDLE_RATE, FEWEST_IDLE, MOST_IDLE = 2_500, 20, 1_000


def _messages(client: BusClient, seconds: float, known: dict[str, float], twins: int) -> float:
    return client.messages(twins, seconds)


def _kept(client: BusClient, seconds: float, known: dict[str, float]) -> float:
    if "kept" not in known:
        known["kept"] = PROBE / client.kept(PROBE)
    count = max(PROBE, min(MOST, round(known["kept"] * seconds)))
    known["kept"] = count / client.kept(count)
    return known["kept"]


def _call(client: BusClient, seconds: float, known: dict[str, float]) -> float:
    return client.call_p50(seconds)


def _trip(client: BusClient, seconds: float, known: dict[str, float]) -> float:
    return client.trip_p50(seconds)


def _idle(client: BusClient, seconds: float, known: dict[str, float]) -> float:
    return client.idle(min(MOST_IDLE, max(FEWEST_IDLE, round(IDLE_RATE * seconds)))) / KIB


def _flooded(client: BusClient, seconds: float, known: dict[str, float]) -> float:
    return client.flooded(seconds)


BUS_MEASURES = {
    "twins-1": Measure("messages, 1 twin", "/s", partial(_messages, twins=1)),
    "twins-10": Measure("messages, 10 twins", "/s", partial(_messages, twins=10)),
    "twins-100": Measure("messages, 100 twins", "/s", partial(_messages, twins=100)),
    "kept": Measure("messages kept for a twin, then taken", "/s", _kept),
    "trip": Measure("message and one back, median", "us", _trip, less_is_better=True),
    "call": Measure("call, median", "us", _call, less_is_better=True),
    "idle-twin": Measure("idle twin, relay", "KiB", _idle, fresh=True, less_is_better=True),
    "flood": Measure("p99 of others in a flood, of it without", "%", _flooded, less_is_better=True),
}
