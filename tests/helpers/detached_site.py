"""Run ``detached_app`` under gunicorn, and ask it what it holds."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .commands import PATIENCE
from .drained_server import gunicorn
from .waiting import wait_for

__all__ = ["Running", "counts", "fetched", "log", "site"]

Running = tuple[subprocess.Popen[str], str]


@contextmanager
def site(*options: str, kind: str = "gthread", **arguments: Any) -> Iterator[Running]:
    """Serve the application under gunicorn; yield its process and its URL."""
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    with gunicorn(f"tests.helpers.detached_app:app({given})", kind, *options) as (process, url):
        wait_for(lambda: fetched(url, "health") == b"well")  # it has started
        yield process, url


def fetched(url: str, path: str) -> bytes:
    address = url.replace("ws", "http", 1) + path
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        body: bytes = answer.read()
    return body


def counts(url: str) -> dict[str, int]:
    told: dict[str, int] = json.loads(fetched(url, "counts"))
    return told


def log(process: subprocess.Popen[str]) -> str:
    """Stop a server, and return what it has logged."""
    process.terminate()
    return process.communicate(timeout=PATIENCE)[1]
