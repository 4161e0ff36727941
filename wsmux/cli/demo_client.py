"""Send files to the demonstration's application both ways, with the same loop and hashing."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import websocket

import wsmux

from ..runtime.parking import Condition

__all__ = ["Outcome", "over_one_connection", "over_one_websocket_each"]

CHUNK = 64 * 1024

# Seconds to wait for the next report after the last answer, and for any data.
PATIENCE = 30.0

# Failed files after which the rest is skipped.
MAX_FAILURES = 100

File = tuple[str, Path]


@dataclass
class Outcome:
    """Hold the results of one way of sending; filled by many threads under ``lock``."""

    name: str
    connections: int
    seconds: float = 0.0
    bytes: int = 0
    times: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    hashes_right: int = 0
    reports_right: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Reports:
    """Collect the streams that the server opens."""

    def __init__(self) -> None:
        self._arrived: dict[str, dict[str, Any]] = {}
        self._changed = Condition()

    def take(self, stream: wsmux.Stream) -> None:
        """Handle one stream of the server."""
        report = json.loads(stream.read())
        with self._changed:
            self._arrived[report["name"]] = report
            self._changed.notify()

    def check(self, expected: dict[str, tuple[int, str]], outcome: Outcome) -> None:
        """Wait for the expected reports and compare them."""
        with self._changed:
            while expected.keys() - self._arrived.keys():
                if not self._changed.wait(PATIENCE):
                    break
        outcome.reports_right = 0
        for name, (size, digest) in expected.items():
            wanted = {"name": name, "size": size, "sha256": digest}
            if self._arrived.get(name) == wanted:
                outcome.reports_right += 1
            else:
                outcome.failures.append(
                    f"{name}: report is {self._arrived.get(name)}, not {wanted}"
                )


def over_one_connection(
    address: str, files: Sequence[File], threads: int, progress: Callable[[int], object]
) -> Outcome:
    """Send every file on its own stream over one WebSocket."""
    outcome = Outcome("wsmux", connections=1)
    expected: dict[str, tuple[int, str]] = {}
    reports = _Reports()
    start = time.perf_counter()
    with wsmux.connect(f"ws://{address}/mux", stream_handler=reports.take) as connection:

        def send(name: str, path: Path) -> tuple[int, bytes, bytes]:
            with connection.open_stream() as stream:
                stream.timeout = PATIENCE
                size, digest = _send_hashed(stream.write, stream.write, name, path)
                stream.close_write()
                answer = stream.read()
            expected[name] = size, digest.hex()
            return size, digest, answer

        _run(send, files, threads, progress, outcome)
        reports.check(expected, outcome)
        outcome.seconds = time.perf_counter() - start
    return outcome


def over_one_websocket_each(
    address: str, files: Sequence[File], threads: int, progress: Callable[[int], object]
) -> Outcome:
    """Send every file over its own WebSocket."""
    outcome = Outcome("one WebSocket per file", connections=len(files))

    def send(name: str, path: Path) -> tuple[int, bytes, bytes]:
        client = websocket.create_connection(f"ws://{address}/single", timeout=PATIENCE)
        try:
            size, digest = _send_hashed(client.send, client.send_binary, name, path)
            client.send("end")
            answer = client.recv()
            assert isinstance(answer, bytes)
        finally:
            client.close()
        return size, digest, answer

    start = time.perf_counter()
    _run(send, files, threads, progress, outcome)
    outcome.seconds = time.perf_counter() - start
    return outcome


def _send_hashed(
    send_head: Callable[[Any], object], send: Callable[[Any], object], name: str, path: Path
) -> tuple[int, bytes]:
    """Send a first line, then the file; return its size and SHA-256."""
    send_head(json.dumps({"name": name}).encode() + b"\n")
    sha256, size = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
            size += len(chunk)
            send(chunk)
    return size, sha256.digest()


def _run(
    send: Callable[[str, Path], tuple[int, bytes, bytes]],
    files: Sequence[File],
    threads: int,
    progress: Callable[[int], object],
    outcome: Outcome,
) -> None:
    """Make the threads take files from one queue until it is empty."""
    queue = deque(files)

    def work() -> None:
        while len(outcome.failures) < MAX_FAILURES:
            try:
                name, path = queue.popleft()
            except IndexError:
                return
            begin = time.perf_counter()
            try:
                size, digest, answer = send(name, path)
                failure = None if answer == digest else f"{name}: the hash is wrong"
            except (wsmux.WsmuxError, websocket.WebSocketException, OSError) as error:
                size, failure = 0, f"{name}: {error}"
            seconds = time.perf_counter() - begin
            with outcome.lock:
                if failure is None:
                    outcome.hashes_right += 1
                    outcome.bytes += size
                    outcome.times.append(seconds)
                else:
                    outcome.failures.append(failure)
                progress(1)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
