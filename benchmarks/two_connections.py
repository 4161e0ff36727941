"""Measure what two connections of one process carry together, with the GIL and without.

Run by a free-threaded Python, such as ``free_threaded.sh`` builds:

    "$python" -m benchmarks.two_connections

For each figure it runs itself in turns with PYTHON_GIL=0 and PYTHON_GIL=1, and prints the ratios of
the two. Each connection has both ends here: a thread that calls, one that echoes, and two for I/O.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median

import wsmux

from .blocking import Blocking, repeated
from .peers.mux import line_of
from .words import serve_line

# Bytes of an echo of bulk, and of a ping.
BULK, SMALL = 4 * 1024 * 1024, 1024


def _bulk(client: Blocking, seconds: float) -> float:
    """Return the bytes that come back in a second."""
    took = repeated(lambda: client.echo(BULK), seconds)
    return BULK * len(took) / sum(took)


def _pings(client: Blocking, seconds: float) -> float:
    count, took = client.pings(SMALL, 1, seconds)
    return count / took


WAYS: dict[str, Callable[[Blocking, float], float]] = {"bulk": _bulk, "pings": _pings}


def serve(connection: wsmux.Connection) -> None:
    """Serve one stream after the other."""
    for stream in connection:
        with stream:
            serve_line(line_of(stream))


def _client(connection: wsmux.Connection) -> Blocking:
    return Blocking(lambda: line_of(connection.open_stream()))


def measure(way: str, connections: int, seconds: float) -> float:
    """Return what all connections do together in a second."""
    with ExitStack() as stack:
        clients: list[Blocking] = []
        for _ in range(connections):
            client, server = wsmux.pair()
            stack.callback(server.close)
            stack.callback(client.close)
            threading.Thread(target=serve, args=(server,), daemon=True).start()
            clients.append(_client(client))
        with ThreadPoolExecutor(connections) as pool:
            return sum(pool.map(lambda each: WAYS[way](each, seconds), clients))


def measured_apart(gil: str, *arguments: str) -> float:
    """Run ``measure`` in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, "--once", *arguments]
    done = subprocess.run(
        command, env=os.environ | {"PYTHON_GIL": gil}, check=True, capture_output=True, timeout=300
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--once", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        sys.stdout.write(f"{measure(given.once, given.connections, given.seconds)}\n")
        return
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        parser.error(
            f"expected a free-threaded Python, got {sys.executable}: "
            "build one with benchmarks/free_threaded.sh"
        )
    each = ("--connections", str(given.connections), "--seconds", str(given.seconds))
    for way in WAYS:
        rates: dict[str, list[float]] = {"0": [], "1": []}
        for _ in range(given.repeat):
            for gil, found in rates.items():
                found.append(measured_apart(gil, way, *each))
        ratios = [without / held for without, held in zip(*rates.values(), strict=True)]
        sys.stdout.write(
            f"{way}: {median(rates['0']):,.0f} a second without the GIL, "
            f"{median(rates['1']):,.0f} with it; median ratio {median(ratios):.2f} "
            f"({min(ratios):.2f}-{max(ratios):.2f})\n"
        )


if __name__ == "__main__":
    main()
