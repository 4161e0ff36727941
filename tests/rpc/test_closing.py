"""Closing a client: what was sent has the time that it is given, and nobody else is waited for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from wsmux import rpc
from wsmux.rpc import testing

from ..helpers.inside import channel_of
from ..helpers.rpc.procedures import WAIT
from ..helpers.rpc.raw_river import RawRiver, RawServer
from ..helpers.waiting import wait_for

# More than the systems of both ends take.
SIZE, COUNT = 8 * 2**20, 4
CARRIERS = pytest.mark.parametrize("websocket", [True, False], ids=["websocket", "tcp"])


class Closing:
    """Have a client send a lot, and close it in another thread, with so many seconds for it."""

    def __init__(self, server: RawServer, seconds: float | None) -> None:
        self.client = rpc.connect(server.url)
        calls = [self.client.submit("test", "same", bytes(SIZE)) for _ in range(COUNT)]
        self.peer: RawRiver = server.attached()
        self.peer.recv()
        self.channel = channel_of(self.client)
        self.thread = threading.Thread(target=self.client.close, args=(seconds,))
        self.thread.start()
        wait_for(lambda: all(call.done() for call in calls))

    def read_rest(self) -> None:
        """Read the other requests, and the end of the connection."""
        for _ in range(COUNT - 1):
            assert len(self.peer.recv()["payload"]) == SIZE
        assert self.peer.recv_end() == self.peer.clean

    def over(self) -> bool:
        """Return whether the transport has ended."""
        assert self.channel is not None
        return self.channel.wait_finished(0)


@CARRIERS
@pytest.mark.parametrize("seconds", [30, None])
def test_what_was_sent_has_the_time_that_close_is_given(
    websocket: bool, seconds: float | None, clock: testing.Clock
) -> None:
    with RawServer("msgpack", websocket=websocket) as server:
        closing = Closing(server, seconds)
        clock.advance(29)
        assert not closing.over()
        closing.read_rest()
        closing.peer.sock.close()
        wait_for(closing.over)
        closing.thread.join(WAIT)


@CARRIERS
def test_a_peer_that_reads_nothing_ends_it_when_the_time_is_up(
    websocket: bool, clock: testing.Clock
) -> None:
    with RawServer("msgpack", websocket=websocket) as server:
        closing = Closing(server, 30)
        clock.advance(30.9)
        assert not closing.over()
        clock.advance(0.2)
        wait_for(closing.over)
        closing.thread.join(WAIT)
        closing.peer.sock.close()


@CARRIERS
def test_a_peer_that_has_read_all_has_a_second_to_close(
    websocket: bool, clock: testing.Clock
) -> None:
    with RawServer("msgpack", websocket=websocket) as server:
        closing = Closing(server, None)
        for _ in range(COUNT - 1):
            closing.peer.recv()
        clock.advance(0.9)
        assert not closing.over()
        clock.advance(0.2)
        wait_for(closing.over)
        closing.thread.join(WAIT)
        closing.peer.sock.close()


class Late:
    """Connect to nobody in particular, only after a test has said so."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.called = threading.Event()
        self.go = threading.Event()

    def __call__(self) -> socket.socket:
        self.called.set()
        assert self.go.wait(WAIT)
        return self.ours


@pytest.fixture
def late() -> Iterator[Late]:
    late = Late()
    yield late
    late.go.set()
    late.theirs.close()
    wait_for(lambda: late.ours.fileno() < 0)


def close_in_time(client: rpc.Client, timeout: float | None) -> None:
    closing = threading.Thread(target=client.close, args=(timeout,))
    closing.start()
    closing.join(WAIT / 2)
    assert not closing.is_alive()


def test_an_attempt_that_hangs_is_not_waited_for(late: Late) -> None:
    client = rpc.connect(late)
    call = client.submit("test", "same", 1)
    assert late.called.wait(WAIT)
    close_in_time(client, None)
    with pytest.raises(rpc.RiverError, match="the client was closed"):
        call.result(0)
    late.theirs.settimeout(WAIT)
    late.go.set()
    assert late.theirs.recv(1) == b""  # what it makes all the same is closed


def test_a_server_that_is_silent_is_not_waited_for() -> None:
    options = rpc.Options(connection_timeout=WAIT)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = rpc.connect(
            f"ws://127.0.0.1:{listener.getsockname()[1]}", options=options, eager=True
        )
        sock, _ = listener.accept()
        close_in_time(client, None)
        sock.close()


def test_a_thread_that_cannot_connect_any_more_ends(late: Late) -> None:
    def refused() -> socket.socket:
        late()
        raise ConnectionRefusedError("nobody there")

    client = rpc.connect(refused, eager=True)
    assert late.called.wait(WAIT)
    close_in_time(client, None)
    late.go.set()
    wait_for(lambda: not any("connecting" in each.name for each in threading.enumerate()))
    late.ours.close()
