"""Measure ``wsmux.cluster`` between workers of gunicorn, and one worker with many WebSockets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..peer import Peer
from ..programs import REDIS, free_port, program, redis

WORKERS, THREADS = 4, 8

# Connections of each worker: so few that the clients are spread over all of them.
MOST = 60

ROOT = Path(__file__).parents[2]


@dataclass
class Site(Peer):
    """Two applications of ``cluster/site.py`` under gunicorn, and a Redis."""

    base: str = "gunicorn"
    kind: str = "cluster"
    needs: tuple[str, ...] = ("flask", "gunicorn", "redis")
    programs: tuple[str, ...] = (REDIS,)

    @contextmanager
    def serve(self) -> Iterator[Any]:
        with (
            redis() as url,
            _gunicorn(WORKERS, f"{url!r}, most={MOST}") as workers,
            _gunicorn(1, f"{url!r}, most=2000") as alone,
        ):
            yield workers, alone, WORKERS

    @contextmanager
    def connect(self, address: Any) -> Iterator[Any]:
        from ..cluster.client import Address, ClusterClient

        yield ClusterClient(Address(*address))


@contextmanager
def _gunicorn(workers: int, arguments: str) -> Iterator[str]:
    """Serve the site; yield its address, at which it may not answer yet."""
    port = free_port()
    options = ["-w", str(workers), "-k", "gthread", "--threads", str(THREADS)]
    options += ["--log-level", "error", "--no-control-socket", "--bind", f"127.0.0.1:{port}"]
    with program(
        *(sys.executable, "-m", "gunicorn", *options, f"benchmarks.cluster.site:app({arguments})"),
        folder=str(ROOT),
        environment={**os.environ, "PYTHONPATH": str(ROOT)},
    ):
        yield f"ws://127.0.0.1:{port}"


PEERS: list[Peer] = [
    Site("gunicorn", f"{WORKERS} workers of gunicorn, and one with many WebSockets")
]
