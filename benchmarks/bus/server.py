"""What is measured: an echo over bare links, or a relay, with Redis or without."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from wsmux.bus.relay.setup import serve_relay
from wsmux.bus.session.link import Link
from wsmux.cli.children import end, undisturbed
from wsmux.handshake.websocket_server import accept
from wsmux.protocols.base import Role
from wsmux.runtime.deadline import Deadline
from wsmux.storage.redis_client import FAILURES, redis_client

from ..peers.raw import request_of
from ..sockets import listening
from .moving import DOMAIN, Numbered

# Runs a program until it ends or stdin does, as it also does when this process is killed.
KEEPER = 'exec 3<&0; "$@" & pid=$!; (cat <&3 >/dev/null; kill $pid 2>/dev/null) & wait $pid'

# Seconds for Redis to begin and to end, and between two looks whether it has begun.
PATIENCE, PAUSE = 10.0, 0.02


@contextmanager
def relay(redis: str | None = None, limit: tuple[int, int] | None = None) -> Iterator[str]:
    """Relay; yield the address."""
    with serve_relay([DOMAIN], Numbered(), redis=redis, limit=limit) as server:
        yield server.url


@contextmanager
def redis(program: str) -> Iterator[str]:
    """Run a Redis that keeps everything in memory; yield its address.

    Raises:
        RuntimeError: it does not begin.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="wsmux-bench-")
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
    with undisturbed():
        process = subprocess.Popen(
            ["sh", "-c", KEEPER, "sh", program, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
    assert process.stdin is not None
    try:
        url = f"redis://127.0.0.1:{port}/0"
        _wait_for_redis(url, process)
        yield url
    finally:
        process.stdin.close()
        end(process, PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_redis(url: str, process: subprocess.Popen[bytes]) -> None:
    client = redis_client(url)
    deadline = Deadline(PATIENCE)
    try:
        while process.poll() is None and not deadline.expired():
            with suppress(*FAILURES):
                if client.ping():
                    return
            time.sleep(PAUSE)
    finally:
        client.close()
    raise RuntimeError(f"Redis does not answer at {url}")


@contextmanager
def echo() -> Iterator[str]:
    """Send back what comes over links, with nothing in between; yield the address."""
    with listening(_echo) as port:
        yield f"ws://127.0.0.1:{port}"


def _echo(sock: socket.socket) -> None:
    """Serve a link by its own thread, as a relay does."""
    with sock:  # the link has a duplicate
        link = Link(accept(request_of(sock), None).socket, Role.SERVER)
    for data in link.messages():
        if not link.send_nowait(data):
            raise RuntimeError("more is under way than a client of the bench sends")
