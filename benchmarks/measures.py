"""Say which figures there are, and make them of what a client has timed.

Bulk moves as many bytes as the last known rate makes of the wanted time, and messages are as many:
no more than River lets be unread, since a peer that is not held back may be so far ahead, and half
of what a queue of the bus keeps. What is idle is as much as that time allows: of streams from 0.25
seconds up all that there may be.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .bus.figures import BusClient
from .calls import Calls
from .figure import Measure, Rate
from .payload import CHUNK
from .peer import Client
from .spark.measures import SPARK_MEASURES

__all__ = ["BUS_MEASURES", "EVERY_MEASURE", "MEASURES", "MEASURES_OF", "RPC_MEASURES"]

KIB = 1024

# Bytes of the first upload and download, which only finds the rate.
PROBE = 4 * 1024 * 1024

# Bytes of a small message, and of the exchange on a freshly opened line.
SMALL, EXCHANGE = 64, 1024

# How many times longer a measurement under bulk takes than others: a p99 wants many messages.
LONGER = 2.5

# How many times shorter a turn is of what is compared within the same processes, and its bulk.
SHORTER, TURN_BULK = 10, 16 * 1024 * 1024

# The part of the most idle things that is opened for each second that a measurement is to take;
# the fewest; and the most connections. A client knows how many lines.
IDLE_RATE, FEWEST_IDLE, MOST_CONNECTIONS = 4.0, 20, 100

# Messages of the first stream of calls, which only finds the rate, and of any, at most; the same of
# those that are kept for a twin.
FIRST_MESSAGES, MOST_MESSAGES = 500, 10_000
FIRST_KEPT, MOST_KEPT = 200, 5_000

# Idle sessions and twins opened for each second that a measurement is to take; the most twins.
SESSIONS_RATE, TWINS_RATE, MOST_TWINS = 500, 2_500, 1_000


def _bulk(name: str, move: Callable[[Client, int], float]) -> Rate:
    def run(client: Client, seconds: float, known: dict[str, float]) -> float:
        if name not in known:
            known[name] = PROBE / move(client, PROBE)
        size = _size(known[name], seconds)
        known[name] = size / move(client, size)
        return known[name] / 1e6

    return run


def _size(rate: float, seconds: float) -> int:
    return max(1, round(rate * seconds / CHUNK)) * CHUNK


def _pings(client: Client, seconds: float, known: dict[str, float], size: int, lines: int) -> float:
    return _rate(client.pings(size, lines, seconds))


def _opens(client: Client, seconds: float, known: dict[str, float]) -> float:
    return _rate(client.opens(EXCHANGE, seconds))


def _tail(client: Client, seconds: float, known: dict[str, float], figure: str) -> float:
    """Return one figure of a measurement that gives several, each of them once."""
    if figure not in known:
        if "tail" not in known:
            known["tail"] = client.tail(SMALL, PROBE).rate
        taken = client.tail(SMALL, _size(known["tail"], LONGER * seconds))
        known |= {
            "tail": taken.rate,
            "tail-p50": taken.p50 * 1e6,
            "tail-p99": taken.p99 * 1e6,
            "tail-bulk": taken.rate / 1e6,
        }
        if taken.window:
            known["tail-window"] = 100 * taken.p99 * taken.rate / taken.window
        elif figure == "tail-window":
            raise NotImplementedError(f"{type(client).__name__} tells no window")
    return known.pop(figure)


def _connections(
    client: Client, seconds: float, known: dict[str, float], connections: int
) -> float:
    return _rate(client.connections(SMALL, connections, seconds))


def _idle_lines(client: Client, seconds: float, known: dict[str, float], side: int) -> float:
    return client.idle_lines(_many(client.most_idle, seconds))[side] / KIB


def _idle_connections(client: Client, seconds: float, known: dict[str, float], side: int) -> float:
    return client.idle_connections(_many(MOST_CONNECTIONS, seconds))[side] / KIB


def _among_idle(client: Client, seconds: float, known: dict[str, float]) -> float:
    return 100 * client.pings_among_idle(SMALL, _many(client.most_idle, seconds), seconds)


def _beside(
    client: Client, seconds: float, known: dict[str, float], rate: Callable[[Client, float], float]
) -> float:
    """Compare in short turns, so that what else the machine does meets both alike."""
    return 100 * client.beside(lambda each: rate(each, seconds / SHORTER))


def _rate(counted: tuple[int, float]) -> float:
    return counted[0] / counted[1]


def _watched(title: str, rate: Callable[[Client, float], float]) -> Measure:
    title = f"{title}, recorder and watchdog on, of off"
    return Measure(title, "%", partial(_beside, rate=rate), only="wsmux-watched")


def _many(most: int, seconds: float) -> int:
    return max(FEWEST_IDLE, min(most, round(IDLE_RATE * seconds * most)))


def _idle(title: str, run: Rate) -> Measure:
    return Measure(title, "KiB", run, fresh=True, heavy=True, less_is_better=True)


MEASURES = {
    "upload": Measure("upload", "MB/s", _bulk("upload", lambda c, size: c.upload(size))),
    "download": Measure("download", "MB/s", _bulk("download", lambda c, size: c.download(size))),
    "echo": Measure("echo, each way", "MB/s", _bulk("echo", lambda c, size: c.echo(size))),
    "ping-64": Measure("ping 64 B, 1 stream", "/s", partial(_pings, size=SMALL, lines=1)),
    "ping-1k": Measure("ping 1 KiB, 1 stream", "/s", partial(_pings, size=KIB, lines=1)),
    "ping-1k-10": Measure("ping 1 KiB, 10 streams", "/s", partial(_pings, size=KIB, lines=10)),
    "ping-1k-100": Measure("ping 1 KiB, 100 streams", "/s", partial(_pings, size=KIB, lines=100)),
    "ping-1k-1000": Measure(
        "ping 1 KiB, 1,000 streams", "/s", partial(_pings, size=KIB, lines=1000), heavy=True
    ),
    "opens": Measure("open + 1 KiB echo + close", "/s", _opens),
    "tail-p50": Measure(
        "64 B ping under an upload, p50",
        "us",
        partial(_tail, figure="tail-p50"),
        less_is_better=True,
    ),
    "tail-p99": Measure(
        "64 B ping under an upload, p99",
        "us",
        partial(_tail, figure="tail-p99"),
        less_is_better=True,
    ),
    "tail-bulk": Measure("that upload", "MB/s", partial(_tail, figure="tail-bulk")),
    "tail-window": Measure(
        "that p99 x that upload, of the window at its end",
        "%",
        partial(_tail, figure="tail-window"),
        less_is_better=True,
    ),
    **{
        f"connections-{count}": Measure(
            f"ping 64 B, {count} connections",
            "/s",
            partial(_connections, connections=count),
            fresh=True,
            heavy=True,
        )
        for count in (1, 10, 50, 200)
    },
    "idle-stream-server": _idle("idle stream, server", partial(_idle_lines, side=0)),
    "idle-stream-client": _idle("idle stream, client", partial(_idle_lines, side=1)),
    "idle-connection-server": _idle("idle connection, server", partial(_idle_connections, side=0)),
    "idle-connection-client": _idle("idle connection, client", partial(_idle_connections, side=1)),
    "watched-upload": _watched("upload", lambda c, _: TURN_BULK / c.upload(TURN_BULK)),
    "watched-download": _watched("download", lambda c, _: TURN_BULK / c.download(TURN_BULK)),
    "watched-ping": _watched("ping 1 KiB", lambda c, s: _rate(c.pings(KIB, 1, s))),
    "watched-opens": _watched("open + echo + close", lambda c, s: _rate(c.opens(EXCHANGE, s))),
    "among-idle": Measure(
        "64 B ping among 10,000 idle streams, of it among none",
        "%",
        _among_idle,
        fresh=True,
        heavy=True,
    ),
}


# Calls


def _rpcs(client: Calls, seconds: float, known: dict[str, float], at_once: int) -> float:
    return _rate(client.rpcs(at_once, seconds))


def _echoes(client: Calls, seconds: float, known: dict[str, float]) -> float:
    return _rate(client.echoes(CHUNK, seconds)) * CHUNK / 1e6


def _counted(name: str, first: int, most: int, move: Callable[[Any, int], float]) -> Rate:
    """Return what moves so many messages as fit the time, by the last known rate."""

    def run(client: Any, seconds: float, known: dict[str, float]) -> float:
        if name not in known:
            known[name] = first / move(client, first)
        count = max(first, min(most, round(known[name] * seconds)))
        known[name] = count / move(client, count)
        return known[name]

    return run


def _streamed(name: str, move: Callable[[Calls, int], float]) -> Rate:
    return _counted(name, FIRST_MESSAGES, MOST_MESSAGES, move)


def _sessions(client: Calls, seconds: float, known: dict[str, float], side: int) -> float:
    return client.idle(max(FEWEST_IDLE, round(SESSIONS_RATE * seconds)))[side] / KIB


RPC_MEASURES = {
    "rpc-1": Measure("rpc, one at a time", "/s", partial(_rpcs, at_once=1)),
    "rpc-32": Measure("rpc, 32 at a time", "/s", partial(_rpcs, at_once=32)),
    "stream": Measure(
        "stream, echoed messages", "/s", _streamed("stream", lambda c, count: c.streamed(count))
    ),
    "subscription": Measure(
        "subscription, messages", "/s", _streamed("messages", lambda c, count: c.subscribed(count))
    ),
    "echo-64k": Measure("echo of 64 KiB, each way", "MB/s", _echoes),
    **{
        f"idle-{name}": Measure(
            f"idle session, {name}",
            "KiB",
            partial(_sessions, side=side),
            fresh=True,
            less_is_better=True,
        )
        for side, name in enumerate(("server", "client"))
    },
}


# The bus


def _twins(client: BusClient, seconds: float, known: dict[str, float]) -> float:
    count = max(FEWEST_IDLE, min(MOST_TWINS, round(TWINS_RATE * seconds)))
    return client.idle(count) / KIB


def _messages(count: int) -> dict[str, Measure]:
    title = f"messages, {count} twin{'s' if count > 1 else ''}"
    return {f"twins-{count}": Measure(title, "/s", lambda c, s, _: c.messages(count, s))}


def _smaller(title: str, unit: str, run: Rate, fresh: bool = False) -> Measure:
    return Measure(title, unit, run, fresh=fresh, less_is_better=True)


BUS_MEASURES = {
    **_messages(1),
    **_messages(10),
    **_messages(100),
    "kept": Measure(
        "messages kept for a twin, then taken",
        "/s",
        _counted("kept", FIRST_KEPT, MOST_KEPT, lambda c, count: c.kept(count)),
    ),
    "trip": _smaller("message and one back, median", "us", lambda c, s, _: c.trip_p50(s)),
    "call": _smaller("call, median", "us", lambda c, s, _: c.call_p50(s)),
    "idle-twin": _smaller("idle twin, relay", "KiB", _twins, fresh=True),
    "flood": _smaller("p99 of others in a flood, of it without", "%", lambda c, s, _: c.flooded(s)),
}


MEASURES_OF: dict[str, dict[str, Measure]] = {
    "streams": MEASURES,
    "rpc": RPC_MEASURES,
    "bus": BUS_MEASURES,
    "spark": SPARK_MEASURES,
}

EVERY_MEASURE = {name: each for kind in MEASURES_OF.values() for name, each in kind.items()}
