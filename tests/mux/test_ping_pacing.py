"""Pings in a loop are paced, so that a peer of this library does not take them for a flood."""

from __future__ import annotations

import pytest

import wsmux

# What a peer bears at once, and more.
MOST, MANY = 400, 410


@pytest.mark.parametrize("protocol", ["wsmux", "yamux"])
def test_pings_in_a_loop_do_not_end_the_connection(protocol: str) -> None:
    config = wsmux.Config(max_pings=MOST)
    client, server = wsmux.pair(protocol=protocol, config=config)
    with client, server:
        for _ in range(MANY):
            client.ping()
        assert not client.closed
        assert not server.closed


def test_a_ping_without_a_turn_in_time_is_a_timeout_and_sends_nothing() -> None:
    client, server = wsmux.pair(config=wsmux.Config(max_pings=1))
    with client, server:
        client.ping()
        sent = client.stats().bytes_sent
        with pytest.raises(TimeoutError, match="too many pings are waiting"):
            client.ping(0.01)
        assert client.stats().bytes_sent == sent


def test_the_end_of_a_connection_ends_the_wait_for_a_turn() -> None:
    client, server = wsmux.pair(config=wsmux.Config(max_pings=1))
    with client, server:
        client.ping()
        client.close()
        with pytest.raises((ValueError, wsmux.ConnectionClosed)):
            client.ping()
