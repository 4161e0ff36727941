"""Run an application under a WSGI server in another process: ``drained_app``, or another one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from .commands import PATIENCE
from .load.measuring import CHECKOUT

__all__ = ["GRACE", "HELD", "LONG_GRACE", "THREADS", "drained", "gunicorn"]

# Seconds that gunicorn leaves what is running; and where it is to take far less, whatever else the
# machine does.
GRACE, LONG_GRACE = 6.0, 60.0

THREADS = 8

# In the environment of ``drained_app``: connections hold the threads of their requests.
HELD = "WSMUX_TEST_HELD"

DRAINED = "tests.helpers.drained_app:app"

_GUNICORN = (
    *("-m", "gunicorn", "--threads", str(THREADS), "--graceful-timeout", str(int(GRACE))),
    *("--log-level", "warning", "--no-control-socket"),
)


@contextmanager
def drained(
    kind: str, held: bool = False, grace: float = GRACE
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run ``drained_app`` under a kind of server; yield its process and its URL.

    Args:
        held: connections hold the threads of their requests. grace: as gunicorn has it.
    """
    if kind == "werkzeug":
        with _server(["-m", "tests.helpers.drained_app"], {}) as running:
            yield running
    else:
        options = ("--graceful-timeout", str(int(grace)))
        environment = {HELD: "1"} if held else {}
        with gunicorn(DRAINED, kind, *options, environment=environment) as running:
            yield running


@contextmanager
def gunicorn(
    app: str,
    kind: str = "gthread",
    *options: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run an application under gunicorn; yield its process and its URL."""
    command = [*_GUNICORN, "--worker-class", kind, *options, app, "--bind"]
    with _server(command, environment or {}) as running:
        yield running


@contextmanager
def _server(
    command: list[str], environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        fd = listener.fileno()
        bound = f"fd://{fd}" if "gunicorn" in command else str(fd)
        process = subprocess.Popen(
            [sys.executable, *command, bound],
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), **environment},
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
