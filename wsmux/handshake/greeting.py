"""Exchange the first messages of a resumable connection over a WebSocket, before any other.

They fit frames with a short header, so a frame is read whole and nothing behind it: whatever
follows stays in the socket for the transport.
"""

from __future__ import annotations

import socket

from ..exceptions import HandshakeError
from ..protocols.base import Role
from ..protocols.framing import Opcode
from ..protocols.resumption import LONGEST_GREETING
from ..protocols.websocket import WebSocketFraming
from ..runtime.deadline import Deadline

__all__ = ["receive_greeting", "send_greeting"]

# Pings and pongs tolerated before the message: a proxy may send some.
MOST_CONTROLS = 8

_LENGTH, _MASKED = 0x7F, 0x80


def send_greeting(sock: socket.socket, role: Role, message: bytes, deadline: Deadline) -> None:
    """Send one message.

    Raises:
        TimeoutError: it took too long.
        OSError: the connection was lost.
    """
    sock.settimeout(_remaining(deadline))
    sock.sendall(b"".join(WebSocketFraming(role, LONGEST_GREETING).encode((message, b""))))


def receive_greeting(sock: socket.socket, role: Role, deadline: Deadline) -> bytes:
    """Return the first message of the peer.

    Raises:
        HandshakeError: the peer closed the WebSocket, or sent something else.
        TimeoutError: it took too long.
        OSError: the connection was lost.
    """
    framing = WebSocketFraming(role, LONGEST_GREETING)
    for _ in range(MOST_CONTROLS):
        frame = _read(sock, 2, deadline)
        size = frame[1] & _LENGTH
        if size > LONGEST_GREETING:
            raise HandshakeError(
                "the first message of a resumable connection has at most "
                f"{LONGEST_GREETING} bytes, and the peer sends a longer one"
            )
        frame += _read(sock, size + (4 if frame[1] & _MASKED else 0), deadline)
        framing.get_buffer()[: len(frame)] = frame
        received = framing.received(len(frame))
        if framing.failure is not None:
            raise HandshakeError(f"the peer broke the WebSocket protocol: {framing.failure}")
        for kind, data in received:
            if kind is Opcode.BINARY:
                return bytes(data)
            if kind is Opcode.CLOSE:
                raise HandshakeError("the peer closed the WebSocket instead of a first message")
            if kind is Opcode.TEXT:
                raise HandshakeError(
                    "the first message of a resumable connection is binary, and the peer sends text"
                )
            if kind is Opcode.PING:
                sock.sendall(framing.encode_control(Opcode.PONG, bytes(data)))
    raise HandshakeError(f"the peer sent {MOST_CONTROLS} frames and no first message")


def _read(sock: socket.socket, size: int, deadline: Deadline) -> bytes:
    data = b""
    while len(data) < size:
        sock.settimeout(_remaining(deadline))
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the peer ended the connection before its first message")
        data += part
    return data


def _remaining(deadline: Deadline) -> float | None:
    remaining = deadline.remaining()
    if remaining == 0:
        raise TimeoutError("the first message of the connection did not arrive in time")
    return remaining
