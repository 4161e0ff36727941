"""The first messages of a resumable connection are read whole, and nothing behind them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from wsmux.exceptions import HandshakeError
from wsmux.handshake.greeting import MOST_CONTROLS, receive_greeting, send_greeting
from wsmux.protocols.base import Role
from wsmux.protocols.framing import Opcode, encode_close
from wsmux.protocols.resumption import LONGEST_GREETING, Hello
from wsmux.protocols.websocket import WebSocketFraming
from wsmux.runtime.deadline import Deadline

from ..helpers.machine_pairs import BOTH_ROLES, feed, other
from ..helpers.websocket_wire import CONTINUATION, frame, head

WAIT = 20.0
HELLO = Hello(bytes(range(16))).encode(None)


class Ends(NamedTuple):
    """The end under test, and the one that plays the peer."""

    ours: socket.socket
    theirs: socket.socket


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(WAIT)
        yield Ends(ours, theirs)


def received(ends: Ends, role: Role, wire: bytes) -> bytes:
    ends.theirs.sendall(wire)
    return receive_greeting(ends.ours, role, Deadline(WAIT))


@BOTH_ROLES
@pytest.mark.parametrize("message", [b"", b"x", HELLO, b"y" * LONGEST_GREETING])
def test_a_message_reaches_the_other_end(ends: Ends, role: Role, message: bytes) -> None:
    send_greeting(ends.ours, role, message, Deadline(WAIT))
    assert receive_greeting(ends.theirs, other(role), Deadline(WAIT)) == message


@BOTH_ROLES
def test_a_message_is_sent_as_one_frame_with_a_short_header(ends: Ends, role: Role) -> None:
    send_greeting(ends.ours, role, HELLO, Deadline(WAIT))
    wire = ends.theirs.recv(1000)
    masked = role is Role.CLIENT
    assert wire[:2] == bytes((0x82, masked << 7 | len(HELLO)))
    assert feed(WebSocketFraming(other(role), 200), wire) == [(Opcode.BINARY, HELLO)]


@BOTH_ROLES
def test_whatever_follows_a_message_stays_in_the_socket(ends: Ends, role: Role) -> None:
    rest = frame(role, Opcode.BINARY, b"\x00data")
    assert received(ends, role, frame(role, Opcode.BINARY, HELLO) + rest) == HELLO
    ends.theirs.shutdown(socket.SHUT_WR)
    assert ends.ours.recv(1000) == rest


@BOTH_ROLES
def test_a_message_may_come_byte_by_byte(ends: Ends, role: Role) -> None:
    wire = frame(role, Opcode.BINARY, HELLO)
    got: list[bytes] = []
    reader = threading.Thread(
        target=lambda: got.append(receive_greeting(ends.ours, role, Deadline(WAIT)))
    )
    reader.start()
    for byte in wire:
        ends.theirs.sendall(bytes((byte,)))
    reader.join(WAIT)
    assert got == [HELLO]


@BOTH_ROLES
def test_a_message_may_come_in_fragments(ends: Ends, role: Role) -> None:
    wire = frame(role, Opcode.BINARY, HELLO[:20], fin=False) + frame(role, Opcode.PONG)
    assert received(ends, role, wire + frame(role, CONTINUATION, HELLO[20:])) == HELLO


@BOTH_ROLES
def test_pings_before_it_are_answered_and_pongs_are_not(ends: Ends, role: Role) -> None:
    wire = frame(role, Opcode.PING, b"one") + frame(role, Opcode.PONG, b"x")
    wire += frame(role, Opcode.PING)
    assert received(ends, role, wire + frame(role, Opcode.BINARY, HELLO)) == HELLO
    ends.ours.shutdown(socket.SHUT_WR)
    reader = WebSocketFraming(other(role), 200)
    assert feed(reader, ends.theirs.recv(1000)) == [(Opcode.PONG, b"one"), (Opcode.PONG, b"")]


@BOTH_ROLES
def test_a_peer_that_sends_only_pings_is_given_up(ends: Ends, role: Role) -> None:
    wire = frame(role, Opcode.PONG) * (MOST_CONTROLS - 1) + frame(role, Opcode.BINARY, HELLO)
    assert received(ends, role, wire) == HELLO
    with pytest.raises(HandshakeError, match="the peer sent 8 frames and no first message"):
        received(ends, role, frame(role, Opcode.PONG) * MOST_CONTROLS)


@BOTH_ROLES
@pytest.mark.parametrize("size", [126, 65536])
def test_a_longer_message_is_refused_by_its_header(ends: Ends, role: Role, size: int) -> None:
    with pytest.raises(HandshakeError, match="has at most 125 bytes, and the peer sends a longer"):
        received(ends, role, head(role, Opcode.BINARY, size))


@BOTH_ROLES
def test_fragments_that_make_a_longer_message_are_refused(ends: Ends, role: Role) -> None:
    wire = frame(role, Opcode.BINARY, bytes(100), fin=False) + frame(role, CONTINUATION, bytes(26))
    with pytest.raises(HandshakeError, match="broke the WebSocket protocol: message of at least"):
        received(ends, role, wire)


@BOTH_ROLES
def test_a_close_frame_instead_of_it_is_told(ends: Ends, role: Role) -> None:
    with pytest.raises(HandshakeError, match="the peer closed the WebSocket instead of a first"):
        received(ends, role, frame(role, Opcode.CLOSE, encode_close(1013, "later")))


@BOTH_ROLES
def test_text_is_refused(ends: Ends, role: Role) -> None:
    with pytest.raises(HandshakeError, match="is binary, and the peer sends text"):
        received(ends, role, frame(role, Opcode.TEXT, b"hello"))


@BOTH_ROLES
def test_a_frame_against_the_rfc_is_told(ends: Ends, role: Role) -> None:
    with pytest.raises(HandshakeError, match="broke the WebSocket protocol: frame with a reserved"):
        received(ends, role, frame(role, Opcode.BINARY, HELLO, reserved=0x40))


@BOTH_ROLES
def test_a_frame_with_the_mask_of_the_wrong_role_is_told(ends: Ends, role: Role) -> None:
    with pytest.raises(HandshakeError, match="broke the WebSocket protocol: (un)?masked frame"):
        received(ends, role, frame(role, Opcode.BINARY, HELLO, masked=role is Role.CLIENT))


@BOTH_ROLES
def test_a_connection_that_ends_before_it_is_lost(role: Role) -> None:
    wire = frame(role, Opcode.BINARY, HELLO)
    for size in (0, 1, 2, 10, len(wire) - 1):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(wire[:size])
            theirs.shutdown(socket.SHUT_WR)
            with pytest.raises(ConnectionResetError, match="ended the connection before its first"):
                receive_greeting(ours, role, Deadline(WAIT))


@BOTH_ROLES
def test_a_silent_peer_is_given_up_in_time(ends: Ends, role: Role) -> None:
    ends.theirs.sendall(frame(role, Opcode.BINARY, HELLO)[:-1])
    with pytest.raises(TimeoutError):
        receive_greeting(ends.ours, role, Deadline(0.05))


@BOTH_ROLES
def test_nothing_is_sent_or_read_when_the_time_is_up(ends: Ends, role: Role) -> None:
    with pytest.raises(TimeoutError, match="did not arrive in time"):
        receive_greeting(ends.ours, role, Deadline(0.0))
    with pytest.raises(TimeoutError):
        send_greeting(ends.ours, role, HELLO, Deadline(0.0))
    ends.ours.shutdown(socket.SHUT_WR)
    assert ends.theirs.recv(10) == b""


@BOTH_ROLES
def test_without_a_deadline_the_socket_blocks(ends: Ends, role: Role) -> None:
    send_greeting(ends.ours, role, HELLO, Deadline(None))
    assert ends.ours.gettimeout() is None
    assert receive_greeting(ends.theirs, other(role), Deadline(None)) == HELLO
