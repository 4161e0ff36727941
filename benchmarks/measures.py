"""Say which figures there are, and make them of what a client has timed.

Bulk moves as many bytes as the last known rate makes of the wanted time, and messages are as many:
no more than River lets be unread, since a peer that is not held back may be so far ahead, and half
of what a queue of the bus keeps. What is idle is as much as that time allows: of streams from 0.25
seconds up all that there may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from .peer import CONNECTION_COUNTS, Measure, Rate
from .spark.measures import SPARK_MEASURES
from .words import CHUNK, SMALL

KIB = 1024

# Bytes of the first upload and download, which only finds the rate; of the exchange on a freshly
# opened line.
PROBE, EXCHANGE = 4 * 1024 * 1024, 1024

# How many times longer a measurement under bulk takes than others: a p99 wants many messages.
LONGER = 2.5

# How many times shorter a turn is of what is compared within the same processes, and its bulk.
SHORTER, TURN_BULK = 10, 16 * 1024 * 1024

# Of what is idle: the part of the most that is opened for each second that a measurement is to
# take; the fewest; and the most connections. A client knows how many lines.
IDLE_RATE, FEWEST_IDLE, MOST_CONNECTIONS = 4, 20, 100

# Messages of the first stream of calls, which only finds the rate, and of any, at most; the same of
# those that are kept for a twin.
FIRST_MESSAGES, MOST_MESSAGES = 500, 10_000
FIRST_KEPT, MOST_KEPT = 200, 5_000

# Idle sessions and twins opened for each second that a measurement is to take; the most twins.
SESSIONS_RATE, TWINS_RATE, MOST_TWINS = 500, 2_500, 1_000


def _moved(
    name: str, first: int, most: float = math.inf, step: int | None = None, unit: float = 1.0
) -> Rate:
    """Return what moves as much as fits the time, by the last known rate.

    Args:
        first: what is moved to find it. step: what is moved at least, and a multiple of it.
    """

    def run(client: Any, seconds: float, known: dict[str, float]) -> float:
        move = getattr(client, name)
        if name not in known:
            known[name] = first / move(first)
        fits = known[name] * seconds
        size = step * max(1, round(fits / step)) if step else round(max(first, min(most, fits)))
        known[name] = size / move(size)
        return known[name] / unit

    return run


def _bulk(name: str, title: str) -> Measure:
    return Measure(title, "MB/s", _moved(name, PROBE, step=CHUNK, unit=1e6))


def _rate(counted: tuple[int, float]) -> float:
    return counted[0] / counted[1]


def _often(
    title: str, name: str, *arguments: int, fresh: bool = False, heavy: bool = False
) -> Measure:
    """Return how often a second a client does what a method counts."""

    def run(client: Any, seconds: float, known: dict[str, float]) -> float:
        return _rate(getattr(client, name)(*arguments, seconds))

    return Measure(title, "/s", run, fresh, heavy)


def _pings(size: int, lines: int) -> Measure:
    length = "1 KiB" if size == KIB else f"{size} B"
    title = f"ping {length}, {lines:,} stream{'s' if lines > 1 else ''}"
    return _often(title, "pings", size, lines, heavy=lines == 1000)


def _tail(title: str, unit: str, figure: str) -> Measure:
    """Return one figure of a measurement that gives several, each of them once."""

    def run(client: Any, seconds: float, known: dict[str, float]) -> float:
        if figure not in known:
            if "tail" not in known:
                known["tail"] = client.tail(SMALL, PROBE).rate
            size = CHUNK * max(1, round(known["tail"] * LONGER * seconds / CHUNK))
            p50, p99, rate, window = client.tail(SMALL, size)
            known |= {"tail": rate, "p50": p50 * 1e6, "p99": p99 * 1e6, "bulk": rate / 1e6}
            if window:
                known["window"] = 100 * p99 * rate / window
            elif figure == "window":
                raise NotImplementedError(f"{type(client).__name__} tells no window")
        return known.pop(figure)

    return Measure(title, unit, run, less_is_better=figure != "bulk")


def _many(rate: float, most: float, seconds: float) -> int:
    return round(max(FEWEST_IDLE, min(most, rate * seconds)))


def _idle(
    name: str, title: str, take: Callable[[Any, float], tuple[float, float]], heavy: bool = True
) -> dict[str, Measure]:
    """Return what something idle takes at both sides."""

    def measure(side: int) -> Rate:
        return lambda client, seconds, _: take(client, seconds)[side] / KIB

    return {
        f"{name}-{side}": Measure(f"{title}, {side}", "KiB", measure(place), True, heavy, True)
        for place, side in enumerate(("server", "client"))
    }


def _idle_lines(client: Any, seconds: float) -> int:
    return _many(IDLE_RATE * client.most_idle, client.most_idle, seconds)


def _beside(title: str, what: str, peer: str, rate: Callable[[Any, float], float]) -> Measure:
    """Return a rate of connections with something on, of the rate of those without it."""

    def run(client: Any, seconds: float, known: dict[str, float]) -> float:
        """Compare in short turns, so that what else the machine does meets both alike."""
        compared: float = client.beside(lambda each: rate(each, seconds / SHORTER))
        return 100 * compared

    return Measure(f"{title}, {what} on, of off", "%", run, only=peer)


def _all_beside(name: str, what: str) -> dict[str, Measure]:
    peer = f"wsmux-{name}"
    rates: dict[str, tuple[str, Callable[[Any, float], float]]] = {
        "upload": ("upload", lambda c, _: TURN_BULK / c.upload(TURN_BULK)),
        "download": ("download", lambda c, _: TURN_BULK / c.download(TURN_BULK)),
        "ping": ("ping 1 KiB", lambda c, s: _rate(c.pings(KIB, 1, s))),
        "opens": ("open + echo + close", lambda c, s: _rate(c.opens(EXCHANGE, s))),
    }
    return {
        f"{name}-{short}": _beside(title, what, peer, rate)
        for short, (title, rate) in rates.items()
    }


def _more_memory(side: int, client: Any, seconds: float, known: dict[str, float]) -> float:
    more: tuple[float, float] = client.more_memory(TURN_BULK)
    return more[side] / KIB**2


MEASURES = {
    "upload": _bulk("upload", "upload"),
    "download": _bulk("download", "download"),
    "echo": _bulk("echo", "echo, each way"),
    "ping-64": _pings(SMALL, 1),
    "ping-1k": _pings(KIB, 1),
    **{f"ping-1k-{lines}": _pings(KIB, lines) for lines in (10, 100, 1000)},
    "opens": _often("open + 1 KiB echo + close", "opens", EXCHANGE),
    "tail-p50": _tail("64 B ping under an upload, p50", "us", "p50"),
    "tail-p99": _tail("64 B ping under an upload, p99", "us", "p99"),
    "tail-bulk": _tail("that upload", "MB/s", "bulk"),
    "tail-window": _tail("that p99 x that upload, of the window at its end", "%", "window"),
    **{
        f"connections-{count}": _often(
            f"ping 64 B, {count:,} connections", "connections", SMALL, count, fresh=True, heavy=True
        )
        for count in CONNECTION_COUNTS
    },
    **_idle("idle-stream", "idle stream", lambda c, s: c.idle_lines(_idle_lines(c, s))),
    **_idle(
        "idle-connection",
        "idle connection",
        lambda c, s: c.idle_connections(_many(IDLE_RATE * MOST_CONNECTIONS, MOST_CONNECTIONS, s)),
    ),
    **_all_beside("watched", "recorder and watchdog"),
    **_all_beside("resumable", "resuming"),
    "resumable-cut": Measure(
        "ping 1 KiB across a RST",
        "ms",
        lambda c, s, _: 1e3 * c.across_cuts(KIB, s),
        less_is_better=True,
        only="wsmux-resumable",
    ),
    **{
        f"resumable-{side}": Measure(
            f"most memory for bulk, {side}, resuming on, above off",
            "MiB",
            partial(_more_memory, place),
            fresh=True,
            less_is_better=True,
            only="wsmux-resumable",
        )
        for place, side in enumerate(("server", "client"))
    },
    "among-idle": Measure(
        "64 B ping among 10,000 idle streams, of it among none",
        "%",
        lambda c, s, _: 100 * c.pings_among_idle(SMALL, _idle_lines(c, s), s),
        fresh=True,
        heavy=True,
    ),
}

RPC_MEASURES = {
    "rpc-1": _often("rpc, one at a time", "rpcs", 1),
    "rpc-32": _often("rpc, 32 at a time", "rpcs", 32),
    "stream": Measure(
        "stream, echoed messages", "/s", _moved("streamed", FIRST_MESSAGES, MOST_MESSAGES)
    ),
    "subscription": Measure(
        "subscription, messages", "/s", _moved("subscribed", FIRST_MESSAGES, MOST_MESSAGES)
    ),
    "echo-64k": Measure(
        "echo of 64 KiB, each way", "MB/s", lambda c, s, _: _rate(c.echoes(CHUNK, s)) * CHUNK / 1e6
    ),
    **_idle(
        "idle", "idle session", lambda c, s: c.idle(_many(SESSIONS_RATE, math.inf, s)), heavy=False
    ),
}


def _less(title: str, unit: str, run: Rate, fresh: bool = False) -> Measure:
    return Measure(title, unit, run, fresh, less_is_better=True)


def _messages(twins: int) -> Measure:
    title = f"messages, {twins} twin{'s' if twins > 1 else ''}"
    return Measure(title, "/s", lambda c, s, _: c.messages(twins, s))


BUS_MEASURES = {
    **{f"twins-{count}": _messages(count) for count in (1, 10, 100)},
    "kept": Measure(
        *("messages kept for a twin, then taken", "/s"), _moved("kept", FIRST_KEPT, MOST_KEPT)
    ),
    "trip": _less("message and one back, median", "us", lambda c, s, _: c.trip_p50(s)),
    "call": _less("call, median", "us", lambda c, s, _: c.call_p50(s)),
    "idle-twin": _less(
        *("idle twin, relay", "KiB"),
        lambda c, s, _: c.idle(_many(TWINS_RATE, MOST_TWINS, s)) / KIB,
        fresh=True,
    ),
    "flood": _less("p99 of others in a flood, of it without", "%", lambda c, s, _: c.flooded(s)),
}


CLUSTER_MEASURES = {
    "cluster-open": _less(
        "stream from each worker to each of 200 clients, p99", "ms", lambda c, s, _: c.open_p99()
    ),
    "cluster-held": _less(
        "sent to who does not read, over two workers", "KiB", lambda c, s, _: c.held_back()
    ),
    "health": _less(
        "/health beside 1,000 WebSockets on 8 threads, p99", "ms", lambda c, s, _: c.health_p99()
    ),
}


MEASURES_OF: dict[str, dict[str, Measure]] = {
    "streams": MEASURES,
    "rpc": RPC_MEASURES,
    "bus": BUS_MEASURES,
    "spark": SPARK_MEASURES,
    "cluster": CLUSTER_MEASURES,
}

EVERY_MEASURE = {name: each for kind in MEASURES_OF.values() for name, each in kind.items()}
