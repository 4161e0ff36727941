"""What takes minutes: a large download over a cut tunnel, and the rate beside socat's.

Run by name: ``pytest -m long -s tests/tunnel/test_long_tunnels.py``.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from wsmux.tunnel import parse_forward

from ..helpers.commands import running, served
from ..helpers.ports import free_port
from ..helpers.programs import needs
from ..helpers.scripted import pattern
from ..helpers.tunnel_server import connected, forwarding, listens, sending, served_by, tunnels
from ..helpers.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.hang_bound(900)]

SIZE = 100 * 1024 * 1024
CUTS = 5
PATIENCE = 600

# What was asked for: the tunnel's rate over socat's.
WANTED = 0.4
ROUNDS, BULK = 5, 64 * 1024 * 1024


@contextmanager
def web(data: bytes) -> Iterator[int]:
    """Serve bytes by HTTP, from where the client asks for them; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            first = int(match[1]) if match else 0
            self.send_response(206 if match else 200)
            self.send_header("Content-Length", str(len(data) - first))
            if match:
                self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            self.close_connection = True
            try:
                self.wfile.write(memoryview(data)[first:])
            except ConnectionError:
                return

        def log_message(self, format: str, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_a_download_is_exact_over_a_tunnel_that_is_cut(tmp_path: Path) -> None:
    needs("curl")
    data, target = pattern(SIZE, 1), tmp_path / "download"
    told: list[str] = []
    cuts = sorted(random.Random(7).sample(range(SIZE // 20, SIZE // 2), CUTS))
    with (
        web(data) as port,
        tunnels() as server,
        forwarding(
            server, local=[parse_forward(f"0:127.0.0.1:{port}")], tell=told.append
        ) as forwarder,
    ):
        address = f"http://{forwarder.local[0].listen}/"
        fetch = ["curl", "-sS", "--limit-rate", "60M", "-C", "-", "-o", str(target), address]
        for cut in cuts:
            curl = subprocess.Popen(fetch, stderr=subprocess.DEVNULL)
            wait_for(lambda cut=cut: size_of(target) >= cut, PATIENCE)
            served_by(server).abort()
            assert curl.wait(PATIENCE) != 0
        assert size_of(target) < SIZE
        subprocess.run(fetch, check=True, timeout=PATIENCE)
    assert told.count("connected again") == CUTS
    assert size_of(target) == SIZE
    assert hashlib.sha256(target.read_bytes()).digest() == hashlib.sha256(data).digest()


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_a_tunnel_carries_a_good_part_of_what_socat_does() -> None:
    """Measure both in turn; a tunnel is two processes and a WebSocket, socat one and none."""
    needs("socat")
    relay = f"127.0.0.1:{free_port()}"
    with sending(send_bulk) as port, served("--allow-forward", f"127.0.0.1:{port}") as url:
        bind = f"TCP-LISTEN:{relay.rpartition(':')[2]},fork,reuseaddr,bind=127.0.0.1"
        socat = subprocess.Popen(["socat", "-b", "65536", bind, f"TCP:127.0.0.1:{port}"])
        try:
            wait_for(lambda: listens(relay))
            with running("forward", url, "-L", f"0:127.0.0.1:{port}", "--json") as line:
                ours = json.loads(line)["local"][0][0]
                rates = [(rate(ours), rate(relay)) for _ in range(ROUNDS)]
        finally:
            socat.terminate()
            socat.wait(PATIENCE)
    ratio = statistics.median(one / other for one, other in rates)
    text = ", ".join(f"{one / 1e6:.0f}/{other / 1e6:.0f}" for one, other in rates)
    sys.stderr.write(f"MB/s, tunnel/socat: {text}; median of the ratios {ratio:.2f}\n")
    assert ratio >= WANTED


def send_bulk(sock: socket.socket) -> None:
    block = bytes(1024 * 1024)
    for _ in range(BULK // len(block)):
        sock.sendall(block)


def rate(place: str) -> float:
    """Return the bytes per second of one transfer."""
    buffer, count = bytearray(1024 * 1024), 0
    with connected(place) as sock:
        began = time.monotonic()
        while size := sock.recv_into(buffer):
            count += size
        seconds = time.monotonic() - began
    assert count == BULK
    return count / seconds
