"""Speak ``yamux`` and ``bymux`` over WebSockets whose messages mean nothing.

The peer is a machine of the wire, whose bytes are put into frames by hand. ``wsmux`` is there
where the rule is the WebSocket's.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import wsmux
from wsmux.protocols.base import MuxProtocol, Role
from wsmux.protocols.bymux_state import HalfState
from wsmux.protocols.events import DataReceived, StreamEnded
from wsmux.protocols.registry import wire

from ..helpers.raw_peer import (
    BINARY,
    CONTINUATION,
    PING,
    PONG,
    ROLES,
    TEXT,
    WAIT,
    Meeting,
    RawPeer,
    in_thread,
    meet,
    read_head,
    response,
)
from ..helpers.tables import each_case

WIRES = pytest.mark.parametrize("protocol", ["yamux", "bymux"])
BOTH = pytest.mark.parametrize("role", ROLES)

# Small, so that what is above it costs little to send.
LIMIT = 2000
CONFIG = wsmux.Config(max_frame_size=1000, max_message_size=LIMIT, ping_interval=None)

DATA = bytes(n % 251 for n in range(5000))

Cut = Callable[[RawPeer, bytes], bytes]


def whole(peer: RawPeer, data: bytes) -> bytes:
    return peer.frame(BINARY, data)


def byte_by_byte(peer: RawPeer, data: bytes) -> bytes:
    return b"".join(peer.frame(BINARY, data[n : n + 1]) for n in range(len(data)))


def in_sevens(peer: RawPeer, data: bytes) -> bytes:
    return b"".join(peer.frame(BINARY, data[n : n + 7]) for n in range(0, len(data), 7))


def with_empty_ones(peer: RawPeer, data: bytes) -> bytes:
    empty = peer.frame(BINARY)
    return empty + peer.frame(BINARY, data[:5]) + empty + peer.frame(BINARY, data[5:]) + empty


def in_fragments(peer: RawPeer, data: bytes) -> bytes:
    """Return one message in fragments of 100 bytes, with pings between."""
    pieces = [data[n : n + 100] for n in range(0, len(data), 100)]
    frames = [
        peer.frame(CONTINUATION if n else BINARY, piece, fin=False)
        for n, piece in enumerate(pieces)
    ]
    frames.append(peer.frame(CONTINUATION))
    return peer.frame(PING, b"between").join(frames)


def in_two_large_fragments(peer: RawPeer, data: bytes) -> bytes:
    half = len(data) // 2
    return peer.frame(BINARY, data[:half], fin=False) + peer.frame(CONTINUATION, data[half:])


CUTS: list[Cut] = [
    whole,
    byte_by_byte,
    in_sevens,
    with_empty_ones,
    in_fragments,
    in_two_large_fragments,
]


class Other:
    """The machine at the other end of a meeting; its bytes go out when they are asked for."""

    def __init__(self, meeting: Meeting, protocol: str, role: str) -> None:
        other = Role.SERVER if role == "client" else Role.CLIENT
        _, machine = wire(protocol).over_websocket(other, wsmux.Config(), None)
        self.machine: MuxProtocol = machine
        self.peer = meeting.peer
        self.received = bytearray()
        self.ended = False

    def output(self) -> bytes:
        messages = self.machine.control_to_send() + self.machine.data_to_send()
        return b"".join(bytes(part) for message in messages for part in message)

    def listen(self, until: Callable[[], object]) -> None:
        """Take messages until something holds."""
        while not until():
            self.machine.receive_data(self.peer.recv_message())
            for event in self.machine.events():
                if isinstance(event, DataReceived):
                    self.received += event.data
                self.ended |= isinstance(event, StreamEnded)


@contextmanager
def conversation(protocol: str, role: str) -> Iterator[tuple[Meeting, Other, int]]:
    """Meet a peer, have it open a stream with all the credit it needs."""
    with meet(role, CONFIG, protocol=protocol) as meeting:
        other = Other(meeting, protocol, role)
        other.listen(other.machine.may_open)
        stream_id = other.machine.open_stream()
        meeting.peer.send(meeting.peer.frame(BINARY, other.output()))
        other.listen(lambda: other.machine.credit(stream_id) > len(DATA) // 2)
        yield meeting, other, stream_id


@each_case
@WIRES
@BOTH
@pytest.mark.parametrize("cut", CUTS)
def test_messages_of_any_boundaries_say_the_same(protocol: str, role: str, cut: Cut) -> None:
    with conversation(protocol, role) as (meeting, other, stream_id):
        assert other.machine.send_data(stream_id, DATA) == len(DATA)
        other.machine.close_write(stream_id, 0.0)
        wire_bytes = other.output()
        assert len(wire_bytes) > LIMIT
        sending = in_thread(meeting.peer.send, cut(meeting.peer, wire_bytes))
        stream = meeting.connection.accept_stream(WAIT)
        stream.timeout = WAIT
        assert stream.read() == DATA
        sending.result(WAIT)
        stream.write(b"answer")
        stream.close_write()
        other.listen(lambda: other.ended)
        assert other.received == b"answer"
        meeting.check_bystanders()


@WIRES
@BOTH
def test_several_frames_in_one_message_are_taken_one_by_one(protocol: str, role: str) -> None:
    with conversation(protocol, role) as (meeting, other, stream_id):
        for word in (b"one ", b"two ", b"three"):
            other.machine.send_data(stream_id, word)
        other.machine.close_write(stream_id, 0.0)
        meeting.peer.send(meeting.peer.frame(BINARY, other.output()))
        stream = meeting.connection.accept_stream(WAIT)
        stream.timeout = WAIT
        assert stream.read() == b"one two three"


@WIRES
@BOTH
def test_bytes_are_passed_on_before_their_message_is_whole(protocol: str, role: str) -> None:
    with conversation(protocol, role) as (meeting, other, stream_id):
        other.machine.send_data(stream_id, b"early")
        first = other.output()
        other.machine.send_data(stream_id, b"late")
        frame = meeting.peer.frame(BINARY, first + bytes(LIMIT))
        header = len(frame) - len(first) - LIMIT
        meeting.peer.send(frame[: header + len(first)])
        stream = meeting.connection.accept_stream(WAIT)
        stream.timeout = WAIT
        assert stream.read(5) == b"early"
        assert not meeting.connection.closed


@WIRES
@BOTH
def test_every_message_sent_is_a_whole_number_of_frames(protocol: str, role: str) -> None:
    """A peer that takes each message for a frame of the wire understands them."""
    with conversation(protocol, role) as (meeting, other, stream_id):
        stream = meeting.connection.accept_stream(WAIT)
        stream.timeout = WAIT
        stream.write(DATA)
        stream.close_write()
        while not other.ended:
            other.machine.receive_data(meeting.peer.recv_message())
            for event in other.machine.events():
                if isinstance(event, DataReceived):
                    other.received += event.data
                other.ended |= isinstance(event, StreamEnded)
            assert other.machine.incomplete() is None
        assert other.received == DATA


@pytest.mark.parametrize("protocol", ["wsmux", "yamux", "bymux"])
@BOTH
def test_a_text_message_is_refused(protocol: str, role: str) -> None:
    with meet(role, CONFIG, protocol=protocol) as meeting:
        meeting.peer.send_frame(TEXT, b"words")
        code, reason = meeting.peer.recv_close()
        assert code == 1003
        assert "text message" in reason
        with pytest.raises(wsmux.ConnectionClosedError) as error:
            meeting.connection.accept_stream(WAIT)
        assert (error.value.code, error.value.side) == (1003, "local")
        meeting.check_bystanders()


# Ends


def frames_to_the_close(peer: RawPeer) -> tuple[bytes, int, str]:
    """Return the bytes of the wire that come before the Close, its code and its reason."""
    data = bytearray()
    while (frame := peer.recv_frame()).opcode in (BINARY, PING, PONG):
        data += frame.payload if frame.opcode == BINARY else b""
    return bytes(data), int.from_bytes(frame.payload[:2], "big"), frame.payload[2:].decode()


GRANT = {"yamux": b"", "bymux": bytes.fromhex("110400")}


@each_case
@pytest.mark.parametrize(
    ("protocol", "code", "said"),
    [
        ("yamux", 1000, "0003 0000 00000000 00000000"),
        ("yamux", 1001, "0003 0000 00000000 00000000"),
        ("yamux", 1011, "0003 0000 00000000 00000002"),
        ("bymux", 1000, "90 b0"),
        ("bymux", 1011, ""),
    ],
)
@BOTH
def test_the_wire_says_its_farewell_before_the_close(
    protocol: str, role: str, code: int, said: str
) -> None:
    with meet(role, CONFIG, protocol=protocol) as meeting:
        closing = in_thread(meeting.connection.close, WAIT, code=code, reason="enough")
        data, seen, reason = frames_to_the_close(meeting.peer)
        assert data == GRANT[protocol] + bytes.fromhex(said)
        assert (seen, reason) == (code, "enough")
        meeting.peer.sock.close()
        closing.result(WAIT)


@pytest.mark.parametrize(
    ("protocol", "said"), [("yamux", "0003 0000 00000000 00000001"), ("bymux", "")]
)
@BOTH
def test_a_broken_rule_is_said_by_the_wire_and_by_the_close(
    protocol: str, role: str, said: str
) -> None:
    with meet(role, CONFIG, protocol=protocol) as meeting:
        meeting.peer.send_frame(BINARY, b"\xff" * 12)
        data, code, reason = frames_to_the_close(meeting.peer)
        assert data == GRANT[protocol] + bytes.fromhex(said)
        assert code == 1002
        assert reason
        meeting.check_bystanders()


# The first bytes


@pytest.mark.parametrize(
    ("protocol", "frame", "stream_id"),
    [
        ("yamux", "0000 0001 00000002 00000005" + b"hello".hex(), 2),
        (
            "yamux",
            "0001 0001 00000002 00000000" + "0000 0000 00000002 00000005" + b"hello".hex(),
            2,
        ),
        ("bymux", "30 01 20 01 05" + b"hello".hex(), 1),
    ],
)
def test_a_frame_in_the_segment_of_the_101_is_not_lost(
    protocol: str, frame: str, stream_id: int
) -> None:
    allowed = wsmux.BymuxState(accepting=HalfState(credit=1), peer_starting_credit=5)
    state = allowed if protocol == "bymux" else None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT)
        url = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        connecting = in_thread(wsmux.connect, url, protocol=protocol, bymux_state=state)
        sock, _ = listener.accept()
        with RawPeer(sock, masks=False) as peer:
            head = response(
                read_head(sock)[1]["sec-websocket-key"], {"Sec-WebSocket-Protocol": protocol}
            )
            sock.sendall(head + peer.frame(BINARY, bytes.fromhex(frame)))
            connection = connecting.result(WAIT)
            stream = connection.accept_stream(WAIT)
            assert stream.id == stream_id
            assert stream.read(5) == b"hello"
            connection.abort()
            assert connection.wait_closed(WAIT)
