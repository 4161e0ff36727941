"""Clients return to their sessions over any worker of a real gunicorn; other servers say that not.

A worker notes each WebSocket that it accepts before it answers, so tests know who has met whom.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

import wsmux
from wsmux.flask import Mux
from wsmux.testing import FaultProxy

from ..helpers.certificates import Certificates
from ..helpers.commands import PATIENCE
from ..helpers.detached_site import counts, log, site
from ..helpers.drained_server import gunicorn
from ..helpers.raw_peer import in_thread
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for, wait_for_value
from ..helpers.werkzeug_server import serving

WORKERS = 4

MIB = 1 << 20

# Descriptors or threads that may come and go with requests, and are less than one for each client.
SOME = 8


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wsmux-") as name:  # a short path, for its sockets
        yield Path(name)


class Workers:
    """A gunicorn of several workers, behind a proxy that takes carriers away."""

    def __init__(
        self, process: subprocess.Popen[str], url: str, folder: Path, proxy: FaultProxy
    ) -> None:
        self.process = process
        self.url = url
        self._folder = folder
        self.proxy = proxy

    def seen(self) -> list[int]:
        """Return the processes that have accepted WebSockets, one for each."""
        return [int(each) for each in (self._folder / "seen").read_text().split()]

    def connect(self, path: str = "") -> wsmux.Connection:
        return wsmux.connect(f"{self.proxy.url}/{path}", resume=True, timeout=PATIENCE)

    def cut(self, connection: wsmux.Connection) -> None:
        """Take the carrier away, and wait until the connection goes on over another."""
        before = connection.stats().reconnects
        self.proxy.reset()
        wait_for(lambda: connection.stats().reconnects > before)

    def each(self) -> dict[int, dict[str, int]]:
        """Return what each worker says that it holds."""
        found: dict[int, dict[str, int]] = {}

        def ask() -> bool:
            told = counts(self.url)
            found[told["pid"]] = told
            return len(found) == WORKERS

        wait_for(ask)
        return found


@contextmanager
def workers(folder: Path, *options: str, **arguments: Any) -> Iterator[Workers]:
    arguments = {"max_connections": 100, "workers": str(folder), **arguments}
    with (
        site("-w", str(WORKERS), *options, **arguments) as (process, url),
        FaultProxy(int(url.rsplit(":", 1)[1].strip("/"))) as proxy,
    ):
        yield Workers(process, url, folder, proxy)


def owner_of(connection: wsmux.Connection) -> int:
    """Return the process that has a connection to ``/who``."""
    with connection.open_stream(PATIENCE) as stream:
        stream.timeout = PATIENCE
        return int(stream.read())


def check_upload(connection: wsmux.Connection, enough: threading.Event) -> int:
    """Write until there is enough, and compare with what comes back; return how much it was."""
    written, read = random.Random(1), random.Random(1)
    total = 0

    def write(stream: wsmux.Stream) -> None:
        while not enough.is_set():
            stream.write(written.randbytes(65536))
        stream.close_write()

    with connection.open_stream(PATIENCE) as stream:
        stream.timeout = PATIENCE
        writing = in_thread(write, stream)
        pending = b""
        while data := stream.read(65536):
            total += len(data)
            pending += data
            while len(pending) >= 65536:
                assert pending[:65536] == read.randbytes(65536)
                pending = pending[65536:]
        writing.result(PATIENCE)
        assert not pending
        assert read.getstate() == written.getstate()
    return total


def check_pings(connection: wsmux.Connection, enough: threading.Event) -> int:
    """Send a number and read it back until there is enough; return how often."""
    count = 0
    with connection.open_stream(PATIENCE) as stream:
        stream.timeout = PATIENCE
        while not enough.is_set():
            count += 1
            stream.write(count.to_bytes(8, "big"))
            answer = b""
            while len(answer) < 8:
                answer += stream.read(8 - len(answer))
            assert answer == count.to_bytes(8, "big")
    return count


@pytest.mark.wide
@pytest.mark.parametrize(
    ("options", "arguments", "least"),
    [
        ((), {}, 50),
        (("--preload",), {}, 10),
        (("--threads", "32"), {"detach": False}, 10),
        (("--worker-class", "gevent"), {}, 10),
        (("--worker-class", "sync"), {}, 10),
    ],
    ids=["gthread", "preloaded", "held", "gevent", "sync"],
)
def test_streams_go_on_over_random_workers(
    folder: Path, options: tuple[str, ...], arguments: dict[str, Any], least: int
) -> None:
    with workers(folder, *options, **arguments) as running, running.connect() as connection:
        enough = threading.Event()
        upload, pings = (
            in_thread(check, connection, enough) for check in (check_upload, check_pings)
        )
        owner = running.seen()[0]
        cuts = 0
        while cuts < least or sum(each != owner for each in running.seen()) < least // 5:
            running.cut(connection)
            cuts += 1
        enough.set()
        assert upload.result(PATIENCE)
        assert pings.result(PATIENCE)
        held = {pid: told["connections"] for pid, told in running.each().items()}
        assert held == dict.fromkeys(held, 0) | {owner: 1}
        assert not connection.closed
        connection.close()
        assert "Traceback" not in log(running.process)


@pytest.mark.wide
def test_a_killed_owner_has_lost_its_sessions_at_once(folder: Path) -> None:
    with workers(folder) as running, running.connect("who") as connection:
        os.kill(owner_of(connection), signal.SIGKILL)
        assert connection.wait_closed(PATIENCE)
        assert isinstance(connection.error, wsmux.ResumeLost)
        assert connection.error.why == "the process that had the session has ended"


@pytest.mark.wide
def test_a_client_waits_for_an_owner_that_is_stopped(folder: Path) -> None:
    with workers(folder, "--timeout", "120") as running, running.connect("who") as connection:
        owner = owner_of(connection)
        os.kill(owner, signal.SIGSTOP)
        try:
            running.proxy.reset()
            # The next attempt comes only if the one before was told nothing that is final.
            wait_for(lambda: sum(each != owner for each in running.seen()) >= 2)
            assert connection.stats().reconnects == 0
        finally:
            os.kill(owner, signal.SIGCONT)
        wait_for(lambda: connection.stats().reconnects == 1)
        assert owner_of(connection) == owner


@pytest.mark.wide
def test_200_handed_over_leave_nothing_and_the_counts_right(folder: Path) -> None:
    with workers(folder) as running, running.connect("who") as connection:
        owner = owner_of(connection)

        def handed_over() -> int:
            return sum(each != owner for each in running.seen())

        def cut_until(count: int) -> None:
            while handed_over() < count:
                running.cut(connection)
                owner_of(connection)  # something gets through, else the client pauses

        cut_until(20)  # what is kept for good is there
        before = running.each()
        cut_until(220)

        def is_right(pid: int, told: dict[str, int]) -> bool:
            few = all(told[name] < before[pid][name] + SOME for name in ("descriptors", "threads"))
            # The one that gunicorn counts is the request that asks.
            return few and (told["counted"], told["connections"]) == (1, pid == owner)

        wait_for(lambda: all(is_right(*told) for told in running.each().items()))
        assert owner_of(connection) == owner


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["gthread", "gevent"])
def test_under_gunicorns_own_tls_a_session_stays_in_its_worker(
    folder: Path, certificates: Certificates, kind: str
) -> None:
    options = ("--certfile", str(certificates.chain), "--keyfile", str(certificates.key))
    app = f"tests.helpers.detached_app:app(max_connections=100, workers={str(folder)!r})"
    with (
        gunicorn(app, kind, "-w", str(WORKERS), *options) as (process, url),
        FaultProxy(int(url.rsplit(":", 1)[1].strip("/"))) as proxy,
    ):
        secure = proxy.url.replace("ws", "wss", 1)
        context = certificates.client
        connection = wsmux.connect(secure, resume=True, ssl_context=context, timeout=PATIENCE)
        running = Workers(process, url, folder, proxy)
        while len(set(running.seen())) == 1:
            before = len(running.seen())
            proxy.reset()
            wait_for(lambda before=before: len(running.seen()) > before)
        assert connection.wait_closed(PATIENCE)
        assert isinstance(connection.error, wsmux.ResumeLost)
        assert connection.error.why == "this server does not have the session"
        assert log(process).count("a client of another worker loses its session") == 1


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["gthread", "gevent"])
def test_a_worker_that_drains_ends_its_sessions_as_ever(folder: Path, kind: str) -> None:
    with (
        workers(folder, "--worker-class", kind, drain=5.0) as running,
        running.connect("who") as connection,
    ):
        os.kill(owner_of(connection), signal.SIGTERM)
        assert connection.wait_closed(PATIENCE)
        assert connection.close_code == 1001
        wait_for_value(lambda: sorted(each.name for each in folder.iterdir()), ["seen"])


def test_a_server_that_shuts_sockets_down_passes_none(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    apps = [Flask(f"worker {number}") for number in range(2)]
    muxes = [Mux(app, resume=wsmux.Resume(workers=folder)) for app in apps]
    for mux in muxes:
        mux.stream_route("/")(lambda stream: stream.close())
    with serving(apps[0]) as first, serving(apps[1]) as second, FaultProxy(first) as proxy:
        try:
            connection = wsmux.connect(proxy.url, resume=True, timeout=WAIT)
            proxy.target = second
            proxy.reset()
            assert connection.wait_closed(WAIT)
            assert isinstance(connection.error, wsmux.ResumeLost)
            assert "a client of another worker loses its session" in caplog.text
        finally:
            for mux in muxes:
                mux.shutdown(0)
