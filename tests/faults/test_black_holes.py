"""Lose the peer without a word: a process that is stopped, and a link that is taken down.

A stopped process still acknowledges at the level of TCP, so only a ping finds it. The link is a
veth pair between two network namespaces, which takes root and the ``ip`` of iproute2.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

import wsmux

from ..helpers.fixtures import Tell
from ..helpers.load.measuring import far_end
from ..helpers.programs import needs
from ..helpers.raw_peer import WAIT, in_thread
from ..helpers.stream_outcomes import losing
from ..helpers.wires import NAMES

T = TypeVar("T")

IN_WIRES = pytest.mark.parametrize("protocol", NAMES)

CLONE_NEWNET = 0x40000000  # from linux/sched.h

# The figure: a second of silence, a second for the answer, and half a one for this machine.
ONE_AND_ONE = wsmux.Config(ping_interval=1.0, ping_timeout=1.0)
FOUND = 2.5

QUICK = wsmux.Config(ping_interval=0.1, ping_timeout=0.1)


def stopped(protocol: str, config: wsmux.Config) -> float:
    """Return the seconds in which a peer that was stopped is found to be lost."""
    with (
        far_end("echo", protocol) as far,
        wsmux.connect(far.url, protocol=protocol, config=config) as connection,
    ):
        try:
            return losing(connection, lambda: os.kill(far.pid, signal.SIGSTOP))
        finally:
            os.kill(far.pid, signal.SIGKILL)


def test_a_stopped_peer_is_found_and_ends_reader_and_writer() -> None:
    stopped("wsmux", QUICK)


@pytest.mark.long
@IN_WIRES
def test_a_stopped_peer_is_found_in_time(protocol: str, tell: Tell) -> None:
    seconds = stopped(protocol, ONE_AND_ONE)
    tell(f"{protocol}: a stopped peer was found after {seconds:.2f} s")
    assert seconds <= FOUND


# A link that is taken down


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=WAIT)


def within(namespace: str, function: Callable[[], T]) -> T:
    """Run a function in a thread that lives in a network namespace; its sockets stay there."""

    def enter() -> T:
        with Path(f"/var/run/netns/{namespace}").open() as file:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns failed")
        return function()

    return in_thread(enter).result(WAIT)


@contextmanager
def two_namespaces() -> Iterator[tuple[str, str]]:
    """Make two network namespaces with a veth pair between them, and take them away again."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces take root")
    needs("ip")
    near, far = (f"wsmux-{os.getpid()}-{end}" for end in ("near", "far"))
    made = []
    try:
        for name in (near, far):
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespace can be made here: {error.stderr!r}")
            made.append(name)
        ip("link", "add", "veth-a", "netns", near, "type", "veth", "peer", "veth-b", "netns", far)
        for name, link, address in ((near, "veth-a", "10.91.0.1"), (far, "veth-b", "10.91.0.2")):
            ip("-n", name, "address", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
        yield near, far
    finally:
        for name in made:
            ip("netns", "delete", name)


def far_socket(namespace: str) -> socket.socket:
    return within(namespace, lambda: socket.create_server(("10.91.0.2", 0)))


def cut_link(far: str) -> None:
    """Take the link down, which this side's system notices."""
    ip("-n", far, "link", "set", "veth-b", "down")


def swallow(far: str) -> None:
    """Have the far side take every packet, and answer none."""
    ip("-n", far, "address", "flush", "dev", "veth-b")


def dark(protocol: str, config: wsmux.Config, darken: Callable[[str], None] = cut_link) -> float:
    """Return the seconds in which a peer behind a path that went dark is found to be lost."""
    with two_namespaces() as (near, far), far_socket(far) as listener:
        address = listener.getsockname()
        ours = within(near, lambda: socket.create_connection(address, WAIT))
        theirs, _ = listener.accept()
        with (
            wsmux.from_socket(theirs, role="server", protocol=protocol, config=config) as peer,
            wsmux.from_socket(ours, role="client", protocol=protocol, config=config) as connection,
        ):
            serving = in_thread(echo_all, peer)
            try:
                return losing(connection, lambda: darken(far))
            finally:
                peer.abort()
                serving.result(WAIT)


def echo_all(connection: wsmux.Connection) -> None:
    """Echo on the first stream, and read nothing of the second."""
    try:
        stream = connection.accept_stream(WAIT)
        while data := stream.read(100):
            stream.write(data)
    except wsmux.ConnectionClosed:
        return


@pytest.mark.long
@IN_WIRES
def test_a_peer_behind_a_link_that_went_down_is_found_in_time(protocol: str, tell: Tell) -> None:
    seconds = dark(protocol, ONE_AND_ONE)
    tell(f"{protocol}: a dead link was found after {seconds:.2f} s")
    assert seconds <= FOUND


# Without pings: the system itself gives the path up

TCP_ALONE = wsmux.Config(ping_interval=None, tcp_user_timeout=2.0)
GIVEN_UP = 3.0


@pytest.mark.long
@pytest.mark.parametrize("darken", [swallow, cut_link])
def test_tcp_gives_up_a_dark_path_in_time(darken: Callable[[str], None], tell: Tell) -> None:
    seconds = dark("wsmux", TCP_ALONE, darken)
    tell(f"{darken.__name__}: with 2 s for TCP, the path was given up after {seconds:.2f} s")
    assert seconds <= GIVEN_UP
