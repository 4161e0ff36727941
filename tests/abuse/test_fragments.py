"""Messages in endless, empty or very many fragments."""

from __future__ import annotations

import time

import pytest

from wsmux.protocols.base import Role
from wsmux.protocols.websocket import WebSocketFraming

from ..helpers import raw_peer
from ..helpers.raw_peer import BINARY, CONTINUATION

pytestmark = pytest.mark.hang_bound(120.0)

KIB = 1024


@pytest.mark.parametrize("role", raw_peer.ROLES)
@pytest.mark.parametrize("size", [0, 1])
def test_the_fragment_after_the_1024th_ends_the_connection(role: str, size: int) -> None:
    with raw_peer.meet(role) as met:
        met.peer.send_frame(BINARY, bytes(size), fin=False)
        met.peer.send(met.peer.frame(CONTINUATION, bytes(size), fin=False) * 1023)
        met.peer.send_frame(raw_peer.PING, b"?")
        assert met.peer.recv_frame() == (raw_peer.PONG, b"?", True)
        met.peer.send_frame(CONTINUATION, bytes(size), fin=False)
        assert met.peer.recv_close() == (1008, "message of more than 1024 fragments")
        met.check_bystanders()


@pytest.mark.parametrize("role", raw_peer.ROLES)
def test_fragments_of_more_than_a_mib_end_the_connection(role: str) -> None:
    with raw_peer.meet(role) as met:
        part = bytes(64 * KIB)
        met.peer.send_frame(BINARY, part, fin=False)
        met.peer.send(met.peer.frame(CONTINUATION, part, fin=False) * 15)
        met.peer.send(met.peer.frame(CONTINUATION, b"x", fin=False))
        code, reason = met.peer.recv_close()
        assert (code, "above the limit of 1048576" in reason) == (1009, True)


def reassembled(count: int) -> float:
    """Return the seconds of CPU that a message of so many fragments of 1 KiB costs."""
    framing = WebSocketFraming(Role.CLIENT, 64 * KIB * KIB, max_fragments=count)
    head = b"\x00\x7e\x04\x00"
    wire = b"\x02\x00" + (head + bytes(KIB)) * (count - 2) + b"\x80\x00"
    position, frames, start = 0, [], time.process_time()
    while position < len(wire):
        free = framing.get_buffer()
        part = wire[position : position + len(free)]
        free[: len(part)] = part
        position += len(part)
        frames += framing.received(len(part))
    spent = time.process_time() - start
    assert framing.failure is None
    assert [len(data) for _, data in frames] == [(count - 2) * KIB]
    return spent


def test_many_fragments_are_put_together() -> None:
    assert reassembled(2000) >= 0


@pytest.mark.long
def test_20_000_fragments_cost_half_a_second_at_most(capfd: pytest.CaptureFixture[str]) -> None:
    spent = reassembled(20_000)
    with capfd.disabled():
        print(f"\n20,000 fragments of 1 KiB: {spent:.3f} s of CPU")  # noqa: T201
    assert spent <= 0.5
