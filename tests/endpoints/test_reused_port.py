"""Real processes of ``wsmux.serve`` listen on one port; clients return over any of them."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import wsmux
from wsmux.testing import FaultProxy

from ..helpers.commands import PATIENCE, command
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for

pytestmark = pytest.mark.tools

# The system chooses the process at random, so that one alone is met with a chance of 2^-CUTS.
CUTS = 30

# Nothing here waits for it.
GRACE = wsmux.Resume(grace=1000.0)

PASSED = "a client was passed to the process that has its session"


class Site:
    """Two processes that serve one port, and a proxy that takes carriers away."""

    def __init__(self, folder: Path, made: ExitStack) -> None:
        self._folder = folder
        self._made = made
        self._logs: dict[int, Path] = {}
        self.processes: dict[int, subprocess.Popen[str]] = {}
        port = self._start("0")
        assert self._start(port) == port
        self.proxy = made.enter_context(FaultProxy(int(port)))

    def _start(self, port: str) -> str:
        log = self._folder / f"log-{len(self.processes)}"
        with log.open("w") as written:
            process = subprocess.Popen(
                command(port, str(self._folder / "sessions"), module="tests.helpers.reused_port"),
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
            )
        self._made.callback(_end, process)
        self.processes[process.pid], self._logs[process.pid] = process, log
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def log(self, pid: int) -> str:
        return self._logs[pid].read_text()

    def other(self, pid: int) -> int:
        (found,) = self.processes.keys() - {pid}
        return found

    def connect(self) -> wsmux.Connection:
        return wsmux.connect(self.proxy.url, timeout=PATIENCE, resume=GRACE)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=WAIT)


@pytest.fixture
def site() -> Iterator[Site]:
    with (
        tempfile.TemporaryDirectory(prefix="wsmux-") as name,  # a short path, for its sockets
        ExitStack() as made,
    ):
        yield Site(Path(name), made)


@contextmanager
def opened(connection: wsmux.Connection) -> Iterator[tuple[wsmux.Stream, int]]:
    """Yield a stream to the echo, and the process in which that is."""
    with connection.open_stream(PATIENCE) as stream:
        stream.timeout = PATIENCE
        yield stream, int(stream.readline())


def test_a_stream_goes_on_over_either_process(site: Site) -> None:
    with site.connect() as connection, opened(connection) as (stream, pid):
        for count in range(1, CUTS + 1):
            data = os.urandom(1000)
            stream.write(data[:500])
            site.proxy.reset()
            stream.write(data[500:])
            echoed = bytearray(1000)
            assert stream.fill(echoed) == 1000
            assert echoed == data
            wait_for(lambda count=count: connection.stats().reconnects == count)
    assert PASSED in site.log(site.other(pid))
    assert PASSED not in site.log(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_who_returns_to_a_process_that_has_ended_learns_it_from_the_other(
    site: Site, number: signal.Signals
) -> None:
    with site.connect() as connection, opened(connection) as (_, pid):
        site.proxy.refusing = True
        site.proxy.reset()
        wait_for(lambda: connection.stats().detached is not None)
        site.processes[pid].send_signal(number)
        site.processes[pid].wait(PATIENCE)
        site.proxy.refusing = False
        assert connection.wait_closed(PATIENCE)
        assert isinstance(connection.error, wsmux.ResumeLost)
        assert connection.error.why == "the process that had the session has ended"
        with site.connect() as another, opened(another) as (_, now):
            assert now == site.other(pid)


def test_a_process_that_ends_tells_its_clients_and_the_other_takes_them(site: Site) -> None:
    with site.connect() as connection, opened(connection) as (_, pid):
        site.processes[pid].terminate()
        assert connection.wait_closed(PATIENCE)
        assert connection.close_code == 1001
        assert site.processes[pid].wait(PATIENCE) == 0
        with site.connect() as another, opened(another) as (_, now):
            assert now == site.other(pid)


def test_sessions_of_one_process_alone_are_refused() -> None:
    for resume in (True, GRACE):
        with pytest.raises(ValueError, match=r"^reuse_port= and resume= need Resume.workers"):
            wsmux.serve(print, reuse_port=True, resume=resume)
