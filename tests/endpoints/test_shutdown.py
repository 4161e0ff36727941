"""Connections in threads of somebody else are told to go, drained, and closed together."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import wsmux
from wsmux.endpoints.shutdown import REASON, ConnectionRegistry, end_connections
from wsmux.exceptions import CloseCode, HandshakeError, StreamRefused
from wsmux.runtime.deadline import Deadline

from ..helpers.raw_peer import in_thread

WAIT = 20.0


@pytest.fixture
def pairs() -> Iterator[list[tuple[wsmux.Connection, wsmux.Connection]]]:
    with ExitStack() as stack:
        made = [wsmux.pair() for _ in range(3)]
        for ours, theirs in made:
            stack.enter_context(ours)
            stack.enter_context(theirs)
        yield made


Pairs = list[tuple[wsmux.Connection, wsmux.Connection]]


def open_for_ever(connection: wsmux.Connection) -> None:
    """Open streams until this end has heard that the other one goes away."""
    while True:
        connection.open_stream(WAIT).close()


def test_each_peer_is_told_that_the_server_goes_away(pairs: Pairs) -> None:
    end_connections([ours for ours, _ in pairs], Deadline(WAIT), WAIT)
    for _, theirs in pairs:
        assert theirs.wait_closed(WAIT)
        assert (theirs.close_code, theirs.close_reason) == (CloseCode.GOING_AWAY, REASON)


def test_streams_that_are_open_may_end_first(pairs: Pairs) -> None:
    ours, theirs = pairs[0]
    stream = theirs.open_stream()
    stream.write(b"half")
    taken = ours.accept_stream(WAIT)
    ending = threading.Thread(
        target=end_connections, args=([each for each, _ in pairs], Deadline(WAIT), WAIT)
    )
    ending.start()
    with pytest.raises(StreamRefused):
        open_for_ever(theirs)
    stream.write(b" and half")
    stream.close()
    assert taken.read() == b"half and half"
    taken.close()
    ending.join(WAIT)
    assert not ending.is_alive()
    assert theirs.close_code == CloseCode.GOING_AWAY


def test_a_stream_that_does_not_end_is_cut_when_the_time_is_over(pairs: Pairs) -> None:
    ours, theirs = pairs[0]
    stream = theirs.open_stream()
    stream.write(b"x")
    taken = ours.accept_stream(WAIT)
    end_connections([ours], Deadline(0.05), WAIT)
    assert ours.closed
    assert theirs.wait_closed(WAIT)
    for each in (taken, stream):
        with pytest.raises(wsmux.ConnectionClosed):
            each.write(b"y")


def test_one_that_has_ended_does_not_keep_the_others(pairs: Pairs) -> None:
    pairs[0][0].close()
    end_connections([ours for ours, _ in pairs], Deadline(WAIT), WAIT)
    assert all(ours.closed for ours, _ in pairs)


# The registry


def test_a_registry_knows_connections_as_long_as_they_are_served(pairs: Pairs) -> None:
    registry = ConnectionRegistry(WAIT)
    ours = pairs[0][0]
    with registry.serving(ours):
        assert registry.connections == [ours]
    assert registry.connections == []


def test_a_peer_that_answers_nothing_keeps_a_shutdown_no_longer_than_asked() -> None:
    sock, peer = socket.socketpair()
    with peer, wsmux.from_socket(sock, role="server", protocol="yamux") as ours:
        registry = ConnectionRegistry(10 * WAIT)
        with registry.serving(ours):
            start = time.monotonic()
            registry.shutdown(WAIT, closing=0.05)
        assert time.monotonic() - start < 5 * WAIT
        assert ours.closed


def test_a_shutdown_ends_what_is_served_and_refuses_what_comes(pairs: Pairs) -> None:
    registry = ConnectionRegistry(WAIT)
    (ours, _), (late, late_peer), (unknown, _) = pairs
    registry.check()
    with registry.serving(ours):
        registry.shutdown(WAIT)
        assert registry.stopping
        assert ours.closed
    with pytest.raises(HandshakeError, match="the server shuts down") as refused:
        registry.check()
    assert refused.value.status == 503
    with registry.serving(late):  # its check was before the shutdown
        assert late_peer.wait_closed(WAIT)
        assert late_peer.close_code == CloseCode.GOING_AWAY
    assert not unknown.closed


def test_who_looks_at_the_connections_does_not_wait_for_a_shutdown(pairs: Pairs) -> None:
    """A signal handler may call that in the middle of the look, which would never end."""
    registry = ConnectionRegistry(WAIT)
    with registry.serving(pairs[0][0]), registry._lock:
        assert in_thread(lambda: registry.connections).result(WAIT) == [pairs[0][0]]
