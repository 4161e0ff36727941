"""What a relay has in flight: its window, its pings, and a twin that says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from wsmux.bus.relay.in_flight import MANY, PAUSE, WINDOW, WINDOW_BYTES, InFlight
from wsmux.bus.relay.redis_queues import RedisQueues
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import parse
from wsmux.exceptions import CloseCode
from wsmux.protocols.base import Role

from ...helpers.bus.links import link_and_peer
from ...helpers.bus.relays import Node, raw, relay, served
from ...helpers.raw_peer import BINARY, PING, PONG, RawPeer
from ...helpers.redis_server import RedisServer
from ...helpers.waiting import wait_for

LIMIT = 60.0


class Stage(NamedTuple):
    """Hold what is tested, and the twin's end."""

    flight: InFlight
    peer: RawPeer

    def pong(self) -> None:
        """Answer the next ping."""
        frame = self.peer.recv_frame()
        assert frame.opcode == PING
        self.peer.send_frame(PONG, frame.payload)

    def settled(self, count: int) -> list[str]:
        """Return what is acknowledged, once it is so much."""
        done: list[str] = []

        def enough() -> bool:
            done.extend(self.flight.settle())
            return len(done) >= count

        wait_for(enough)
        return done


@pytest.fixture
def stage() -> Iterator[Stage]:
    with link_and_peer(Role.SERVER) as (running, peer):
        yield Stage(InFlight(running.link, LIMIT), peer)


def test_a_pong_acknowledges_what_was_before_its_ping(stage: Stage) -> None:
    flight = stage.flight
    for entry in "ab":
        flight.add(entry, 1)
    flight.mark(0.0)
    flight.add("c", 1)
    flight.mark(PAUSE / 2)  # too early
    assert flight.settle() == []
    stage.pong()
    assert stage.settled(2) == ["a", "b"]
    assert len(flight) == 1
    flight.mark(PAUSE)
    stage.pong()
    assert stage.settled(1) == ["c"]


def test_a_pong_answers_earlier_pings_too(stage: Stage) -> None:
    flight = stage.flight
    for number in range(3):
        flight.add(str(number), 1)
        flight.mark(number * PAUSE)
    pings = [stage.peer.recv_frame().payload for _ in range(3)]
    stage.peer.send_frame(PONG, pings[1])
    assert stage.settled(2) == ["0", "1"]


def test_many_messages_need_no_pause(stage: Stage) -> None:
    flight = stage.flight
    for number in range(2 * MANY):
        flight.add(str(number), 1)
        flight.mark(0.0)
    frames = [stage.peer.recv_frame().opcode for _ in range(2)]  # the first one, and 256 later
    assert frames == [PING, PING]
    assert flight.due() == PAUSE


def test_pings_stand_behind_the_messages(stage: Stage) -> None:
    link = stage.flight._link
    link.send_nowait(b"first")
    stage.flight.add("first", 5)
    stage.flight.mark(0.0)
    link.send_nowait(b"second")
    opcodes = [stage.peer.recv_frame().opcode for _ in range(3)]
    assert opcodes == [BINARY, PING, BINARY]


def test_the_window_is_bounded(stage: Stage) -> None:
    flight = stage.flight
    for number in range(WINDOW):
        assert flight.has_room()
        flight.add(str(number), 1)
    assert not flight.has_room()
    flight.mark(0.0)
    stage.pong()
    stage.settled(WINDOW)
    flight.add("large", 2 * WINDOW_BYTES)
    assert not flight.has_room()


def test_a_twin_without_a_pong_is_stuck_after_the_limit(stage: Stage) -> None:
    flight = stage.flight
    assert flight.due() is None
    flight.add("a", 1)
    flight.mark(10.0)
    assert flight.due() == 10.0 + LIMIT
    assert not flight.is_stuck(10.0 + LIMIT - 1)
    assert not flight.is_stuck(10.0 + LIMIT)  # its system took the ping
    assert flight.is_stuck(10.0 + 2 * LIMIT)


def test_a_twin_that_reads_is_not_stuck(stage: Stage) -> None:
    flight = stage.flight
    flight.add("a", 1)
    flight.mark(0.0)
    assert not flight.is_stuck(LIMIT)
    stage.pong()
    stage.settled(1)
    assert not flight.is_stuck(2 * LIMIT)
    assert flight.due() is None


def test_a_connection_that_answers_no_ping_is_ended(server: RedisServer) -> None:
    queues = RedisQueues(server.client())
    with (
        served(relay(queues=queues, stuck_limit=0.2)) as running,
        Node(running, 1) as one,
        raw(running, 2) as mute,
    ):
        asked = one.ask(Address(2))
        assert parse(mute.recv_frame().payload) == asked
        assert mute.recv_frame().opcode == PING
        code, reason = mute.recv_close()
        assert (code, "answered no ping" in reason) == (CloseCode.TRY_AGAIN_LATER, True)
        with Node(running, 2) as again:
            assert again.take() == asked
