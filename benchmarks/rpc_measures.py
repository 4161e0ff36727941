"""Say which figures there are of remote calls, and make them of what a client has timed.

A stream and a subscription carry as many messages as the last known rate makes of the wanted time,
but no more than River lets be unread: a peer that is not held back may be so far ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .calls import Calls
from .measures import Measure

__all__ = ["RPC_MEASURES"]

KIB = 1024

LARGE = 64 * KIB

# Messages of the first stream, which only finds the rate; and of any, at most.
PROBE, MOST = 500, 10_000

# Idle sessions opened for each second that a measurement is to take, and at least.
IDLE_RATE, FEWEST_IDLE = 500, 20


def _rpcs(client: Calls, seconds: float, known: dict[str, float], at_once: int) -> float:
    count, elapsed = client.rpcs(at_once, seconds)
    return count / elapsed


def _echoes(client: Calls, seconds: float, known: dict[str, float]) -> float:
    count, elapsed = client.echoes(LARGE, seconds)
    return count * LARGE / elapsed / 1e6


def _messages(
    client: Calls,
    seconds: float,
    known: dict[str, float],
    name: str,
    move: Callable[[Calls, int], float],
) -> float:
    if name not in known:
        known[name] = PROBE / move(client, PROBE)
    count = max(PROBE, min(MOST, round(known[name] * seconds)))
    known[name] = count / move(client, count)
    return known[name]


def _idle(client: Calls, seconds: float, known: dict[str, float], side: int) -> float:
    return client.idle(max(FEWEST_IDLE, round(IDLE_RATE * seconds)))[side] / KIB


_streamed = partial(_messages, name="stream", move=lambda c, count: c.streamed(count))
_subscribed = partial(_messages, name="subscription", move=lambda c, count: c.subscribed(count))

RPC_MEASURES = {
    "rpc-1": Measure("rpc, one at a time", "/s", partial(_rpcs, at_once=1)),
    "rpc-32": Measure("rpc, 32 at a time", "/s", partial(_rpcs, at_once=32)),
    "stream": Measure("stream, echoed messages", "/s", _streamed),
    "subscription": Measure("subscription, messages", "/s", _subscribed),
    "echo-64k": Measure("echo of 64 KiB, each way", "MB/s", _echoes),
    **{
        f"idle-{name}": Measure(
            f"idle session, {name}",
            "KiB",
            partial(_idle, side=side),
            fresh=True,
            less_is_better=True,
        )
        for side, name in enumerate(("server", "client"))
    },
}
