"""A client's connection is closed with it, whatever it was doing."""

from __future__ import annotations

import socket

import wsmux
from wsmux.rpc.engine.client_engine import _retire
from wsmux.rpc.engine.dial import channel_over


def test_a_connection_that_is_left_before_it_was_read_is_closed() -> None:
    ours, theirs = socket.socketpair()
    channel = channel_over(ours, wsmux.Role.CLIENT, 2**20, websocket=False)
    batches = channel.batches()
    channel.abort()
    _retire(channel, batches)
    assert channel.wait_finished(0)
    assert theirs.recv(1) == b""
    theirs.close()
