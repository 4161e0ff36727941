"""Run the application that drains, ``drained_app``, under a WSGI server in another process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .commands import PATIENCE
from .load.measuring import CHECKOUT

__all__ = ["GRACE", "THREADS", "drained"]

# Seconds that gunicorn leaves what is running.
GRACE = 6.0

THREADS = 8

_GUNICORN = (
    *("-m", "gunicorn", "--threads", str(THREADS), "--graceful-timeout", str(int(GRACE))),
    *("--log-level", "warning", "--no-control-socket", "tests.helpers.drained_app:app"),
)


@contextmanager
def drained(kind: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run it under a kind of server; yield its process and its URL."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        fd = listener.fileno()
        werkzeug = ["-m", "tests.helpers.drained_app", str(fd)]
        gunicorn = [*_GUNICORN, "--bind", f"fd://{fd}", "--worker-class", kind]
        process = subprocess.Popen(
            [sys.executable, *(werkzeug if kind == "werkzeug" else gunicorn)],
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            pass_fds=[fd],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        url = f"ws://127.0.0.1:{listener.getsockname()[1]}/"
    try:
        yield process, url
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)
