"""Answers that nobody waits for go with the next message, or a pong, or after a moment."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pytest

import wsmux
from wsmux.mux import multiplexer
from wsmux.protocols.base import Role
from wsmux.protocols.events import DataReceived, Event, StreamAborted
from wsmux.protocols.framing import ByteFraming, Opcode
from wsmux.protocols.yamux_frames import Flag
from wsmux.transport import message_transport

from ..helpers.joined_streams import read_exactly
from ..helpers.machine_pairs import ACK, CLOSE, READ, WRITE
from ..helpers.pure_peer import PurePeer
from ..helpers.scripted import WAIT
from ..helpers.yamux_wire import window

ON_BOTH = pytest.mark.parametrize("protocol", ["wsmux", "yamux"])
NATIVE = pytest.mark.parametrize("protocol", ["wsmux"])


class Joined(NamedTuple):
    """A server, its peer, and a stream by which the peer has heard of a window."""

    server: wsmux.Connection
    peer: PurePeer
    known: int
    far: wsmux.Stream

    def begin(self, data: bytes) -> tuple[int, wsmux.Stream]:
        """Open a stream together with its first bytes, which the server has read."""
        stream_id = self.peer.machine.open_stream()
        self.peer.machine.send_data(stream_id, data)
        self.peer.send()
        accepted = self.server.accept_stream(WAIT)
        accepted.timeout = WAIT
        assert read_exactly(accepted, len(data)) == data
        return stream_id, accepted

    def handled(self) -> int:
        """Return how many bytes the server has sent, once it has handled all that was sent to it.

        What answers a batch is sent before the next one is received.
        """
        for _ in range(2):
            self.peer.machine.send_data(self.known, b"?")
            self.peer.send()
            assert self.far.read(1) == b"?"
        return self.server.stats().bytes_sent

    def end_one(self) -> tuple[bytes, bytes]:
        """Have the peer open a stream, and end both halves; return what answers these ends."""
        stream_id, stream = self.begin(b"question")
        self.peer.machine.close_write(stream_id, 0.0)
        self.peer.machine.close_read(stream_id)
        self.peer.send()
        assert stream.read() == b""
        stream.close()
        return bytes((stream_id, CLOSE, 1)) + WRITE, bytes((stream_id, CLOSE, 1)) + READ

    def receive_all(self, wanted: Iterable[bytes]) -> None:
        """Receive bytes until all that is wanted is among them."""
        received = b""
        while not all(each in received for each in wanted):
            received += self.peer.sock.recv(4096)

    def seen_until(self, last: type[Event]) -> list[Event]:
        events: list[Event] = []
        while not any(type(event) is last for event in events):
            events += self.peer.receive()
        return events


@pytest.fixture
def config() -> wsmux.Config:
    return wsmux.Config()


@pytest.fixture
def joined(
    protocol: str, config: wsmux.Config, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Joined]:
    if config.ping_interval is not None:  # else a test waits for it
        monkeypatch.setattr(multiplexer, "MAX_UNAWAITED_TIME", 3600.0)
    # A reader that receives for itself may leave the I/O thread a batch without messages, and with
    # such a one goes what nobody waits for.
    monkeypatch.setattr(message_transport, "LEADS_BELOW", 0)
    ours, theirs = socket.socketpair()
    with (
        wsmux.from_socket(ours, role="server", protocol=protocol, config=config) as server,
        PurePeer(theirs, protocol, Role.CLIENT, wsmux.Config(max_pending_opens=1)) as peer,
    ):
        known = peer.machine.open_stream()
        peer.send()
        with server.accept_stream(WAIT) as far:
            far.timeout = WAIT
            while not peer.machine.credit(known):
                peer.receive()
            yield Joined(server, peer, known, far)
            server.abort()


@ON_BOTH
def test_an_opening_is_answered_with_the_first_bytes(joined: Joined) -> None:
    before = joined.handled()
    _, stream = joined.begin(b"question")
    assert joined.handled() == before
    assert not joined.peer.machine.may_open()
    stream.write(b"answer")
    assert DataReceived(stream.id, b"answer") in joined.seen_until(DataReceived)
    assert joined.peer.machine.may_open()


@ON_BOTH
def test_an_opening_without_bytes_is_answered_at_once(joined: Joined) -> None:
    before = joined.handled()
    joined.peer.machine.open_stream()
    joined.peer.send()
    assert joined.handled() > before


@ON_BOTH
def test_an_opening_is_answered_with_the_next_pong(joined: Joined, protocol: str) -> None:
    stream_id, _ = joined.begin(b"question")
    if protocol == "yamux":
        joined.peer.machine.ping(1)
        joined.peer.send()
        joined.receive_all([window(stream_id, 0, Flag.ACK)])
    else:
        joined.peer.sock.sendall(ByteFraming(0).encode_control(Opcode.PING, b""))
        joined.receive_all([bytes((stream_id, ACK, 4))])


@ON_BOTH
@pytest.mark.parametrize("config", [wsmux.Config(ping_interval=None, idle_timeout=None)])
def test_an_opening_is_answered_after_a_while_even_if_nothing_is_sent(joined: Joined) -> None:
    joined.begin(b"question")
    while not joined.peer.machine.may_open():
        joined.peer.receive()


@NATIVE
@pytest.mark.parametrize("config", [wsmux.Config(ping_interval=None, idle_timeout=None)])
def test_the_echo_of_an_end_comes_after_a_while_even_if_nothing_is_sent(joined: Joined) -> None:
    joined.receive_all(joined.end_one())


@ON_BOTH
def test_an_opening_is_answered_before_its_stream_is_reset(joined: Joined) -> None:
    """Otherwise the peer would take it for refused."""
    stream_id, stream = joined.begin(b"question")
    stream.reset(77)
    assert StreamAborted(stream_id, 77, False, "") in joined.seen_until(StreamAborted)


@NATIVE
def test_the_echo_of_an_end_wakes_nobody(joined: Joined) -> None:
    before = joined.handled()
    echoes = joined.end_one()
    assert joined.handled() == before
    with joined.server.open_stream(WAIT):
        joined.receive_all(echoes)


@NATIVE
@pytest.mark.parametrize(
    "act",
    [
        lambda stream: stream.write(b"bytes"),
        wsmux.Stream.close_write,
        wsmux.Stream.close,
        wsmux.Stream.reset,
    ],
    ids=["write", "close_write", "close", "reset"],
)
def test_what_is_sent_on_another_stream_takes_it_along(
    joined: Joined, act: Callable[[wsmux.Stream], object]
) -> None:
    echoes = joined.end_one()
    joined.handled()
    act(joined.far)
    joined.receive_all(echoes)
