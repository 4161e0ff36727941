"""Ask the system what a socket that was taken over is set to."""

from __future__ import annotations

import socket

import pytest

import wsmux
from wsmux.transport.socket_io import UNSENT, take_over

from ..helpers.raw_peer import WAIT

BOUND = hasattr(socket, "TCP_NOTSENT_LOWAT")
NEEDS_BOUND = pytest.mark.skipif(not BOUND, reason="the system has no such bound")


@NEEDS_BOUND
def test_few_bytes_wait_in_the_system_before_a_control_frame() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname(), WAIT)
        theirs, _ = listener.accept()
    with theirs, wsmux.from_socket(ours, role="client") as connection:
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == UNSENT
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.abort()


@NEEDS_BOUND
@pytest.mark.parametrize(("wanted", "set_to"), [(1000, 1000), (2 * UNSENT, UNSENT)])
def test_fewer_may_wait_on_a_slow_path_and_never_more(wanted: int, set_to: int) -> None:
    with socket.socket() as ours:
        take_over(ours).limit_unsent(wanted)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == set_to


def test_a_socket_without_the_bound_is_left_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        taken = take_over(ours)
        taken.limit_unsent(1000)
        assert taken.send([b"unharmed"]) == 8
