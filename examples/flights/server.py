"""Serve what flights are enriched with: planes and weather by calls, distances by a stream.

It runs in a process of its own, and ends when its stdin does.
"""

from __future__ import annotations

import csv
import functools
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from wsmux.mux.stream import Stream
from wsmux.rpc import Context, ErrorSchema, RiverError, Service
from wsmux.spark import batched, serve_data

from .data import EARTH, NO_VALUE, data_directory

__all__ = ["main"]

CHUNK = 64 * 1024


def main() -> None:
    """Print the URL, and serve those who have the token in WSMUX_TOKEN."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends stdin
    token = os.environ["WSMUX_TOKEN"]
    with serve_data(
        services=[planes(), weather()], streams={"distances": distances()}, token=token
    ) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        sys.stdin.read()


def planes() -> Service:
    """Return the service that knows planes by what is painted on their tails."""
    known = {
        row["tailnum"]: {"seats": int(row["seats"]), "built": _whole(row["year"])}
        for row in _rows("planes.csv")
    }
    service = Service("planes")

    @service.rpc(errors=[ErrorSchema("NO_PLANE")])
    @batched
    def lookup(ctx: Context, tailnum: str | None) -> dict[str, int | None]:
        if tailnum not in known:
            raise RiverError("NO_PLANE", f"no plane is known as {tailnum}")
        return known[tailnum]

    return service


def weather() -> Service:
    """Return the service that knows what the weather at an airport was like, by the hour."""
    known = {(row["origin"], row["time_hour"]): _sky(row) for row in _rows("weather.csv")}
    service = Service("weather")

    @service.rpc(errors=[ErrorSchema("NO_REPORT")])
    @batched
    def sky(ctx: Context, asked: dict[str, str]) -> str:
        place, hour = asked["origin"], asked["time_hour"]
        if (place, hour) not in known:
            raise RiverError("NO_REPORT", f"there is no report of {place} at {hour}")
        return known[place, hour]

    return service


def _sky(report: dict[str, str]) -> str:
    """Return one word or two for a report; by the same rules as pandas in ``data.py``."""
    wind, rain, sight = (_number(report[name]) for name in ("wind_speed", "precip", "visib"))
    if rain is not None and rain > 0:
        return "rain"
    if sight is not None and sight < 5:
        return "poor sight"
    return "wind" if wind is not None and wind >= 20 else "fair"


def distances() -> Callable[[Stream, dict[str, Any]], None]:
    """Return the handler of a stream: ``JFK LAX`` a line in, kilometres a line out.

    A line with an airport that is not known is answered by an empty one.
    """
    places = {
        row["faa"]: (math.radians(float(row["lat"])), math.radians(float(row["lon"])))
        for row in _rows("airports.csv")
    }

    @functools.lru_cache(maxsize=100_000)
    def answer(line: bytes) -> bytes:
        ends = [places.get(name) for name in line.decode().split()]
        if len(ends) != 2 or ends[0] is None or ends[1] is None:
            return b"\n"
        return b"%d\n" % round(_great_circle(*ends[0], *ends[1]))

    def serve(stream: Stream, header: dict[str, Any]) -> None:
        rest = b""
        while chunk := stream.read(CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            stream.write(b"".join(map(answer, lines)))

    return serve


def _great_circle(lat: float, lon: float, to_lat: float, to_lon: float) -> float:
    half = math.sin((to_lat - lat) / 2) ** 2
    half += math.cos(lat) * math.cos(to_lat) * math.sin((to_lon - lon) / 2) ** 2
    return 2 * EARTH * math.asin(math.sqrt(half))


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (data_directory() / name).open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _number(text: str) -> float | None:
    return None if text in NO_VALUE else float(text)


def _whole(text: str) -> int | None:
    return None if text in NO_VALUE else int(text)


if __name__ == "__main__":
    main()
