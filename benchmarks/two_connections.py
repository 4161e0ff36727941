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
import time
from statistics import median

import wsmux

WAYS = ("bulk", "pings")
PIECE = 64 * 1024
SMALL = 1024

# Seconds in which what is on its way comes back.
PATIENCE = 60.0


def echo(connection: wsmux.Connection) -> None:
    """Serve one stream."""
    with connection.accept_stream() as stream:
        while data := stream.read(PIECE):
            stream.write(data)


def ping(stream: wsmux.Stream, until: float) -> int:
    """Send small messages, each after the answer to the one before; return how many."""
    count, message = 0, bytes(SMALL)
    while not count or time.monotonic() < until:
        stream.write(message)
        came = 0
        while came < SMALL:
            came += len(stream.read(SMALL))
        count += 1
    return count


def bulk(stream: wsmux.Stream, until: float) -> int:
    """Write while another thread reads; return the bytes that came back."""
    came: list[int] = []

    def read() -> None:
        while data := stream.read(PIECE):
            came.append(len(data))

    reader = threading.Thread(target=read)
    reader.start()
    stream.write(bytes(PIECE))
    while time.monotonic() < until:
        stream.write(bytes(PIECE))
    stream.close_write()
    reader.join(PATIENCE)
    return sum(came)


def measure(way: str, connections: int, seconds: float) -> float:
    """Return what all connections did together in a second."""
    counts: list[int] = []
    pairs = [wsmux.pair() for _ in range(connections)]
    begun = time.monotonic()

    def call(client: wsmux.Connection) -> None:
        with client.open_stream() as stream:
            counts.append({"bulk": bulk, "pings": ping}[way](stream, begun + seconds))

    threads = [threading.Thread(target=echo, args=(server,)) for _, server in pairs]
    threads += [threading.Thread(target=call, args=(client,)) for client, _ in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + PATIENCE)
    took = time.monotonic() - begun
    for client, server in pairs:
        client.close()
        server.close()
    return sum(counts) / took


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
    for way in WAYS:
        rates: dict[str, list[float]] = {"0": [], "1": []}
        for _ in range(given.repeat):
            for gil, found in rates.items():
                arguments = (way, "--connections", str(given.connections))
                found.append(measured_apart(gil, *arguments, "--seconds", str(given.seconds)))
        ratios = [without / held for without, held in zip(*rates.values(), strict=True)]
        sys.stdout.write(
            f"{way}: {median(rates['0']):,.0f} a second without the GIL, "
            f"{median(rates['1']):,.0f} with it; median ratio {median(ratios):.2f} "
            f"({min(ratios):.2f}-{max(ratios):.2f})\n"
        )


if __name__ == "__main__":
    main()
