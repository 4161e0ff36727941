"""Have ``curl`` reach a Flask application in a network that cannot be connected to.

Two network namespaces with a cable between them: the laptop's lets no connection in and has
nothing that listens. Needs root, ``ip`` and ``curl``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ..helpers.programs import needs

pytestmark = [pytest.mark.long, pytest.mark.hang_bound(180)]

ROOT = Path(__file__).parent.parent.parent
FRONT, LAPTOP = f"wsmux-front-{os.getpid()}", f"wsmux-laptop-{os.getpid()}"
PLUGS = (f"wsf{os.getpid() % 100_000}", f"wsl{os.getpid() % 100_000}")
ADDRESSES = ("10.213.77.1", "10.213.77.2")
PATIENCE = 60.0


def ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.fixture
def namespaces() -> Iterator[None]:
    """Join two network namespaces by a cable."""
    needs("ip", "curl")
    made = ip("netns", "add", FRONT)
    if made.returncode:
        pytest.skip(f"needs root and network namespaces: {made.stderr.strip()}")
    try:
        steps = [
            ("netns", "add", LAPTOP),
            ("link", "add", PLUGS[0], "type", "veth", "peer", "name", PLUGS[1]),
        ]
        for name, plug, address in zip((FRONT, LAPTOP), PLUGS, ADDRESSES, strict=True):
            steps += [
                ("link", "set", plug, "netns", name),
                ("-n", name, "addr", "add", f"{address}/24", "dev", plug),
                ("-n", name, "link", "set", plug, "up"),
                ("-n", name, "link", "set", "lo", "up"),
            ]
        for step in steps:
            done = ip(*step)
            if done.returncode:
                pytest.skip(f"ip {' '.join(step)}: {done.stderr.strip()}")
        yield
    finally:
        for name in (FRONT, LAPTOP):
            ip("netns", "del", name)


@contextmanager
def running(namespace: str, *arguments: str) -> Iterator[str]:
    """Run one end in its namespace; yield the first line that it prints."""
    process = subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, "-m", "tests.helpers.behind_nat"]
        + list(arguments),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line, process.communicate(timeout=PATIENCE)[1]
        yield line
    finally:
        process.communicate(timeout=PATIENCE)  # closes its stdin, which ends it


def curl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["ip", "netns", "exec", FRONT, "curl", "-sS", "-m", "20", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def listening() -> list[str]:
    """Return the sockets that listen in the laptop's namespace."""
    text = subprocess.run(
        ["ip", "netns", "exec", LAPTOP, "cat", "/proc/net/tcp", "/proc/net/tcp6"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    ).stdout
    rows = [line.split() for line in text.splitlines()]
    return [row[1] for row in rows if len(row) > 3 and row[3] == "0A"]


@pytest.mark.usefixtures("namespaces")
def test_a_flask_application_behind_nat_answers_curl() -> None:
    with ExitStack() as stack:
        port = stack.enter_context(running(FRONT, "front", ADDRESSES[0]))
        url = f"{ADDRESSES[0]}:{port}/laptop"
        assert curl(f"http://{url}/hello/nobody", "-w", "%{http_code}").stdout.endswith("502")
        stack.enter_context(running(LAPTOP, "laptop", f"ws://{url}"))
        assert listening() == []
        assert curl(f"http://{ADDRESSES[1]}:{port}/").returncode == 7  # not from outside
        assert curl(f"http://{url}/hello/world").stdout == "hello world"
