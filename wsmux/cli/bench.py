"""Measure the performance of this machine, or of a server, against that of the two libraries.

Each wire, and websocket-client with simple-websocket alone, does the same: bulk that is echoed,
round trips, openings. They take turns, so that other load on the machine affects all alike, and
ratios are taken within a turn. The server echoes: one of this command's own, in a separate process,
or ``wsmux serve --echo`` elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..exceptions import HandshakeError, StreamError
from .addresses import (
    PROTOCOLS,
    add_connecting,
    add_subprotocol,
    add_token,
    client_tls,
    headers,
    subprotocol,
    url,
)
from .children import end, undisturbed
from .terminal import CommandError, Table, emit, positive_int, seconds, show, tqdm_class

if TYPE_CHECKING:
    from ..mux.stream import Stream

__all__ = ["EPILOG", "add_arguments", "run", "serve"]

EPILOG = (
    "Without URL both ends run here. The server at URL echoes streams: wsmux serve --echo. The "
    "raw pair is always measured on this machine's loopback, and opens a WebSocket for each "
    "stream. MB are 10^6 bytes. Comparisons with other libraries, and the targets, are in the "
    "folder benchmarks of a checkout: python -m benchmarks --help."
)

REPETITIONS, SECONDS = 7, 0.4
QUICK_REPETITIONS, QUICK_SECONDS = 3, 0.1

RAW = "raw"

CHUNK, SMALL, MANY = 64 * 1024, 1024, 10

# Seconds for our server to end after its stdin, and to read a request; the latter's maximum size.
PATIENCE, MAX_HEAD = 5.0, 64 * 1024


class Line(NamedTuple):
    """Carry bytes both ways: a stream, or a WebSocket if there are no streams."""

    send: Callable[[bytes], object]
    receive: Callable[[int], bytes]
    close: Callable[[], object]


Open = Callable[[], Line]

# By measure and variant, one figure per repetition.
Figures = dict[str, dict[str, list[float]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``wsmux bench``."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "url", type=url, metavar="URL", nargs="?", help="ws://, wss:// or tcp:// address to measure"
    )
    where.add_argument("--local", action="store_true", help="measure this machine; the default")
    parser.add_argument(
        "--protocol",
        action="append",
        choices=PROTOCOLS,
        help="wire to measure, wsmux by default; may be repeated",
    )
    parser.add_argument("--repetitions", type=positive_int, help=f"{REPETITIONS} by default")
    parser.add_argument(
        "--seconds", type=seconds, help=f"seconds per measurement; {SECONDS} by default"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_REPETITIONS} repetitions of {QUICK_SECONDS} s"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=10.0, help="seconds for each answer; 10 by default"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    add_subprotocol(parser)
    add_connecting(parser)
    add_token(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    wires = list(dict.fromkeys(args.protocol or ("wsmux",)))
    repetitions = args.repetitions or (QUICK_REPETITIONS if args.quick else REPETITIONS)
    duration = args.seconds or (QUICK_SECONDS if args.quick else SECONDS)
    with ExitStack() as stack:
        # The server that may be absent comes first: then no process is started.
        openers = {wire: stack.enter_context(_wire(args, wire)) for wire in wires}
        raw = partial(_raw_line, stack.enter_context(_serving(RAW)))
        figures = _take({RAW: raw, **openers}, repetitions, duration)
    if args.json:
        told = {"machine": _machine(), "url": args.url, "measures": _as_json(figures)}
        emit(json.dumps(told, indent=2))
    else:
        title = f"{args.url or 'this machine'}, {repetitions} x {duration:g} s"
        emit(f"{_machine()}\n")
        show(_table(figures, title))
    return 0


# Measurements


def _throughput(opener: Open, duration: float) -> float:
    """Return the MB/s, each way, of bulk that is sent without waiting for the echo."""
    line, chunk = opener(), bytes(CHUNK)
    _exchange(line, chunk)
    total: list[int] = []

    def send() -> None:
        sent, end = CHUNK, time.perf_counter() + duration
        while time.perf_counter() < end:
            line.send(chunk)
            sent += CHUNK
        total.append(sent)  # before the last one is sent, whose echo wakes the reader
        line.send(chunk)

    received, start = 0, time.perf_counter()
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            while not (total and received >= total[0]):
                received += len(_some(line))
            elapsed = time.perf_counter() - start
        finally:
            line.close()
        sending.result()
    return received / elapsed / 1e6


def _round_trips(opener: Open, duration: float, lines: int) -> float:
    """Return the exchanges per second on so many lines, each with its own thread."""
    opened, message = [opener() for _ in range(lines)], bytes(SMALL)
    for line in opened:
        _exchange(line, message)
    start = time.perf_counter()

    def work(line: Line) -> int:
        count = 0
        while time.perf_counter() - start < duration or not count:
            _exchange(line, message)
            count += 1
        line.close()
        return count

    with ThreadPoolExecutor(lines) as pool:
        count = sum(pool.map(work, opened))
    return count / (time.perf_counter() - start)


def _openings(opener: Open, duration: float) -> float:
    """Return how many lines per second are opened, carry one exchange, and are closed."""
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < duration or not count:
        line = opener()
        _exchange(line, bytes(SMALL))
        line.close()
        count += 1
    return count / elapsed


class Measure(NamedTuple):
    """Describe one figure."""

    title: str
    unit: str
    take: Callable[[Open, float], float]


MEASURES = {
    "throughput": Measure("bulk that comes back, each way", "MB/s", _throughput),
    "round-trips": Measure("1 KiB there and back, 1 stream", "/s", partial(_round_trips, lines=1)),
    "round-trips-10": Measure(
        f"1 KiB there and back, {MANY} streams", "/s", partial(_round_trips, lines=MANY)
    ),
    "openings": Measure("open, 1 KiB there and back, close", "/s", _openings),
}


def _exchange(line: Line, message: bytes) -> None:
    line.send(message)
    left = len(message)
    while left > 0:
        left -= len(_some(line))
    if left:
        raise CommandError(f"{-left} bytes more came back than were sent")


def _some(line: Line) -> bytes:
    data = line.receive(CHUNK)
    if not data:
        raise CommandError("the server ended a stream instead of sending back what it got")
    return data


# Schedule and results


def _take(openers: Mapping[str, Open], repetitions: int, duration: float) -> Figures:
    """Take every figure so many times; the order rotates."""
    figures: Figures = {name: {variant: [] for variant in openers} for name in MEASURES}
    bar_class, variants = tqdm_class(), list(openers)
    total = repetitions * len(MEASURES) * len(variants)
    with bar_class(total=total, unit=" figures") if bar_class else nullcontext() as bar:
        for repetition in range(repetitions):
            first = repetition % len(variants)
            for name, measure in MEASURES.items():
                for variant in (*variants[first:], *variants[:first]):
                    figures[name][variant].append(measure.take(openers[variant], duration))
                    if bar:
                        bar.update(1)
    return figures


def _ratio(row: Mapping[str, Sequence[float]], variant: str) -> float:
    """Return the median of the ratios to the raw pair, one per repetition."""
    return median([one / raw for one, raw in zip(row[variant], row[RAW], strict=True)])


def _table(figures: Figures, title: str) -> Table:
    """Return a row per measure: median (lowest-highest), and the ratio to the raw pair."""
    columns, rows = [""], []
    for variant in figures["openings"]:
        columns += [variant] if variant == RAW else [variant, f"x {RAW}"]
    for name, row in figures.items():
        cells = [f"{MEASURES[name].title}, {MEASURES[name].unit}"]
        for variant, values in row.items():
            cells.append(f"{median(values):,.0f} ({min(values):,.0f}-{max(values):,.0f})")
            cells += [] if variant == RAW else [f"{_ratio(row, variant):.2f}"]
        rows.append(cells)
    note = f"{RAW}: websocket-client and simple-websocket, a WebSocket a stream, on loopback"
    return Table(title, columns, rows, [note])


def _as_json(figures: Figures) -> dict[str, Any]:
    return {
        name: {
            "unit": MEASURES[name].unit,
            "variants": {
                each: {"values": values, "median": median(values), "ratio": _ratio(row, each)}
                for each, values in row.items()
            },
        }
        for name, row in figures.items()
    }


def _machine() -> str:
    from importlib.metadata import version

    from .. import __version__
    from ..protocols.masking import native_masker

    pair = ("websocket-client", "simple-websocket")
    packages = ", ".join(f"{name} {version(name)}" for name in pair)
    masking = "C" if native_masker else "Python"
    return (
        f"{os.cpu_count()} cores, {platform.platform()}; {platform.python_implementation()} "
        f"{platform.python_version()}; wsmux {__version__}, masking by {masking}; {packages}"
    )


# Both ends


@contextmanager
def _wire(args: argparse.Namespace, wire: str) -> Iterator[Open]:
    """Yield a function that opens streams on one connection.

    Raises:
        CommandError: the server does not echo them.
        OSError, WsmuxError: it cannot be reached.
    """
    import wsmux

    with ExitStack() as stack:
        address = args.url or stack.enter_context(_serving(wire))
        connection = wsmux.connect(
            address,
            protocol=wire,
            timeout=args.timeout,
            headers=headers(args, address),
            ssl_context=client_tls(args, address),
            **subprotocol(args, address),
        )
        stack.enter_context(connection)

        def opener() -> Line:
            stream = connection.open_stream(args.timeout)
            stream.timeout = args.timeout
            return Line(stream.write, stream.read, stream.close)

        try:
            line = opener()
            _exchange(line, bytes(SMALL))
            line.close()
        except (CommandError, StreamError, TimeoutError) as error:
            text = f"{address} does not send streams back: {error}; it wants wsmux serve --echo"
            raise CommandError(text) from error
        yield opener


def _raw_line(address: str) -> Line:
    import websocket

    client = websocket.create_connection(address)
    return Line(client.send_binary, lambda size: cast(bytes, client.recv()), client.close)


@contextmanager
def _serving(what: str) -> Iterator[str]:
    """Run ``serve`` in a separate process; yield its address."""
    with ExitStack() as stack:
        with undisturbed():
            process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; serve({what!r})"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0,  # this process gets Ctrl-C, and then ends the server
                text=True,
            )
            stack.enter_context(process)
            stack.callback(_stop, process)
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise CommandError("a server to measure did not begin; it says why above")
        yield address


def _stop(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    end(process, PATIENCE)


def serve(what: str) -> None:
    """Echo everything on a wire, or with ``"raw"`` without one, until stdin ends."""
    import wsmux

    if what == RAW:
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
            threading.Thread(target=_accept, args=(listener,), daemon=True).start()
            emit(f"ws://127.0.0.1:{listener.getsockname()[1]}/")
            sys.stdin.read()
    else:
        with wsmux.serve(stream_handler=_echo, protocols=(what,)) as server:
            emit(server.url)
            sys.stdin.read()


def _echo(stream: Stream) -> None:
    while chunk := stream.read(CHUNK):
        stream.write(chunk)


def _accept(listener: socket.socket) -> None:
    with suppress(OSError):  # the listener was closed: the measurement is over
        while True:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_echo_raw, args=(sock,), daemon=True).start()


def _echo_raw(sock: socket.socket) -> None:
    import simple_websocket

    from ..handshake.http_request import read_request
    from ..runtime.deadline import Deadline

    # An interrupted client may disconnect at any point.
    with suppress(OSError, HandshakeError, simple_websocket.ConnectionClosed), sock:
        environ = read_request(sock, Deadline(PATIENCE), MAX_HEAD)
        # Before its thread reads: with no timeout and not yet blocking it would get EAGAIN.
        sock.settimeout(None)
        server = simple_websocket.Server.accept(environ)
        while True:
            server.send(server.receive())
