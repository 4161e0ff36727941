"""Say which figures there are, and make them of what a client has timed.

An upload and a download move as many bytes as the last known rate makes of the wanted time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from .peer import CHUNK, Client

__all__ = ["MEASURES", "Measure"]

# Bytes of the first upload and download, which only finds the rate.
PROBE = 4 * 1024 * 1024

# Bytes of the exchange on a freshly opened line.
EXCHANGE = 1024

# Of a ``Client``, or of ``Calls`` with ``--rpc``.
Rate = Callable[[Any, float, dict[str, float]], float]


@dataclass(frozen=True)
class Measure:
    """Name one figure; ``run(client, seconds, known)`` returns it, ``known`` keeps rates.

    A ``fresh`` one is taken of processes that have done nothing else, and do nothing more.
    """

    title: str
    unit: str
    run: Rate
    fresh: bool = False


def _bulk(name: str, move: Callable[[Client, int], float]) -> Rate:
    def run(client: Client, seconds: float, known: dict[str, float]) -> float:
        if name not in known:
            known[name] = PROBE / move(client, PROBE)
        size = max(1, round(known[name] * seconds / CHUNK)) * CHUNK
        known[name] = size / move(client, size)
        return known[name] / 1e6

    return run


def _pings(client: Client, seconds: float, known: dict[str, float], size: int, lines: int) -> float:
    count, elapsed = client.pings(size, lines, seconds)
    return count / elapsed


def _opens(client: Client, seconds: float, known: dict[str, float]) -> float:
    count, elapsed = client.opens(EXCHANGE, seconds)
    return count / elapsed


MEASURES = {
    "upload": Measure("upload", "MB/s", _bulk("upload", lambda c, size: c.upload(size))),
    "download": Measure("download", "MB/s", _bulk("download", lambda c, size: c.download(size))),
    "ping-64": Measure("ping 64 B, 1 stream", "/s", partial(_pings, size=64, lines=1)),
    "ping-1k": Measure("ping 1 KiB, 1 stream", "/s", partial(_pings, size=1024, lines=1)),
    "ping-1k-10": Measure("ping 1 KiB, 10 streams", "/s", partial(_pings, size=1024, lines=10)),
    "ping-1k-100": Measure("ping 1 KiB, 100 streams", "/s", partial(_pings, size=1024, lines=100)),
    "opens": Measure("open + 1 KiB echo + close", "/s", _opens),
}
