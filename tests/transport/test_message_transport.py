"""The channel of whole messages echoes text and bytes, and answers pings where they came."""

from __future__ import annotations

import socket

import pytest

from wsmux.protocols.base import Role
from wsmux.transport import message_transport

from ..helpers.message_echo import echo
from ..helpers.raw_peer import (
    BINARY,
    CLOSE_FRAME,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    WAIT,
    Frame,
    RawPeer,
    close_payload,
    in_thread,
)
from ..helpers.tables import each_case

# What is sent, by opcode, payload and whether it is final, and what comes back for it.
TALKS: dict[str, tuple[list[tuple[int, bytes, bool]], list[tuple[int, bytes]]]] = {
    "bytes": ([(BINARY, b"\xff\x00", True)], [(BINARY, b"\xff\x00")]),
    "text": ([(TEXT, "żółw".encode(), True)], [(TEXT, "żółw".encode())]),
    "empty": ([(TEXT, b"", True), (BINARY, b"", True)], [(TEXT, b""), (BINARY, b"")]),
    "fragments": (
        [(TEXT, b"on", False), (CONTINUATION, b"", False), (CONTINUATION, b"e", True)],
        [(TEXT, b"one")],
    ),
    "ping before a message": (
        [(PING, b"1", True), (BINARY, b"m", True)],
        [(PONG, b"1"), (BINARY, b"m")],
    ),
    "ping behind a message": (
        [(BINARY, b"m", True), (PING, b"1", True)],
        [(BINARY, b"m"), (PONG, b"1")],
    ),
    "ping between fragments": (
        [(TEXT, b"o", False), (PING, b"1", True), (CONTINUATION, b"ne", True)],
        [(PONG, b"1"), (TEXT, b"one")],
    ),
    "pings among messages": (
        [
            (BINARY, b"a", True),
            (PING, b"1", True),
            (PING, b"2", True),
            (BINARY, b"b", True),
            (PONG, b"not asked for", True),
            (BINARY, b"c", True),
            (PING, b"3", True),
        ],
        [
            (BINARY, b"a"),
            (PONG, b"1"),
            (PONG, b"2"),
            (BINARY, b"b"),
            (BINARY, b"c"),
            (PONG, b"3"),
        ],
    ),
}


@each_case
@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize(("sent", "expected"), TALKS.values(), ids=TALKS)
def test_answers_come_in_the_order_of_what_they_answer(
    role: Role, sent: list[tuple[int, bytes, bool]], expected: list[tuple[int, bytes]]
) -> None:
    """All frames come in one segment, so the channel reads them at once."""
    ours, theirs = socket.socketpair()
    with RawPeer(theirs, masks=role is Role.SERVER) as peer:
        frames = [peer.frame(opcode, payload, fin=fin) for opcode, payload, fin in sent]
        peer.send(b"".join(frames))
        running = in_thread(echo, ours, role)
        assert [peer.recv_frame() for _ in expected] == [Frame(*each, True) for each in expected]
        peer.send_frame(CLOSE_FRAME, close_payload(1000))
        assert peer.recv_close() == (1000, "")
        theirs.shutdown(socket.SHUT_WR)
        running.result(WAIT)


def test_a_server_that_refuses_a_frame_is_first_to_end_the_tcp_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peer's part of the closing is not read any more, so it is not waited for."""
    monkeypatch.setattr(message_transport, "LINGER", 1000.0)
    ours, theirs = socket.socketpair()
    with RawPeer(theirs, masks=True) as peer:
        running = in_thread(echo, ours, Role.SERVER)
        peer.send_frame(BINARY, b"x", reserved=1)
        assert peer.recv_close() == (1002, "frame with a reserved bit set")
        assert peer.recv_to_end() == b""
        peer.send_frame(CLOSE_FRAME, close_payload(1002))  # as an answer that is late
    running.result(WAIT)
