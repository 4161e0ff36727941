"""Obey RFC 6455 in every case that Autobahn|Testsuite knows, as client and as server."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from wsmux.config import Config
from wsmux.handshake.websocket_client import shake_hands
from wsmux.protocols.base import Role
from wsmux.runtime.deadline import Deadline

from ..helpers.autobahn.suite import CASES, Verdicts, read_report, running
from ..helpers.carriers import SERVERS, WsgiServers
from ..helpers.message_echo import MESSAGES, channel_over, echo
from ..helpers.ports import free_port

pytestmark = [pytest.mark.long, pytest.mark.hang_bound(900)]

AGENT = "wsmux"

# Groups 1 to 7 and 10 have 247 cases, group 9 has 54.
COUNT = 301

# What RFC 6455 leaves open: when text that is not UTF-8 is refused, and the like.
MOST_NON_STRICT = 14

# Cases that may be run once more.
MOST_REPEATED = 5

# Seconds for the suite to start listening, and for a whole run as seen from outside.
START, RUN = 60.0, 800.0


Run = Callable[[list[str]], Verdicts]


def check(run: Run) -> None:
    """Run every case, and once more those that failed; fail with the names of the cases.

    The suite drops a connection after a second, which a busy machine may take for anything.
    """
    found = run(CASES)
    assert found.count == COUNT
    assert len(found.non_strict) <= MOST_NON_STRICT, found.non_strict
    bad = found.failed | found.unclean
    if bad:
        assert len(bad) <= MOST_REPEATED, bad
        again = run(list(bad))
        assert again.failed | again.unclean == {}, f"at first: {bad}"


@pytest.mark.parametrize("server", SERVERS)
def test_a_wsgi_server_passes(
    testsuite: Path, wsgi_servers: WsgiServers, server: str, tmp_path: Path
) -> None:
    url = wsgi_servers.url(server) + MESSAGES.removeprefix("/")

    def run(cases: list[str]) -> Verdicts:
        spec = {
            "outdir": str(tmp_path),
            "servers": [{"agent": AGENT, "url": url, "options": {"version": 18}}],
            "cases": cases,
            "exclude-cases": [],
            "exclude-agent-cases": {},
        }
        with running(testsuite, "fuzzingclient", spec) as process:
            process.wait(RUN)
        return read_report(tmp_path, AGENT)

    check(run)
    assert "Traceback" not in wsgi_servers.log(server)


def test_the_client_passes(testsuite: Path, tmp_path: Path) -> None:
    def run(cases: list[str]) -> Verdicts:
        url = f"ws://127.0.0.1:{free_port()}"
        spec = {
            "url": url,
            "outdir": str(tmp_path),
            "cases": cases,
            "exclude-cases": [],
            "exclude-agent-cases": {},
        }
        with running(testsuite, "fuzzingserver", spec):
            for number in range(1, case_count(url) + 1):
                echo(connect(f"{url}/runCase?case={number}&agent={AGENT}"), Role.CLIENT)
            echo(connect(f"{url}/updateReports?agent={AGENT}"), Role.CLIENT)
            return read_report(tmp_path, AGENT)

    check(run)


def connect(url: str) -> socket.socket:
    limits = Config()
    sock, _ = shake_hands(
        url,
        subprotocols=(),
        headers=None,
        deadline=Deadline(limits.handshake_timeout),
        max_size=limits.max_handshake_size,
        options={},
    )
    return sock


def case_count(url: str) -> int:
    """Ask the suite how many cases there are, as soon as it listens."""
    deadline = Deadline(START)
    while True:
        try:
            sock = connect(f"{url}/getCaseCount")
            break
        except ConnectionRefusedError:
            if deadline.expired():
                raise
            time.sleep(0.05)
    batches = channel_over(sock, Role.CLIENT).batches()
    (count,) = [int(str(data, "utf-8")) for batch in batches for _, data in batch]
    return count
