"""Agree on a resumable connection over a plain socket, by one line each way.

A client that wants one says ``REQUEST``, the subprotocol that it would name in the handshake of a
WebSocket, and a line feed. A server that resumes answers with the same subprotocol and a line feed,
or with ``refused: `` and a reason. After that both ends go on as after the handshake of a
WebSocket: with its frames, of which the first is HELLO.

No wire begins like ``REQUEST``, so that a server that does not know it ends the connection. The
client then connects again without it. A server that resumes waits a moment for the first byte of
its client, and serves the plain wire where that does not come, or is another.
"""

from __future__ import annotations

import socket

from ..exceptions import HandshakeError
from ..protocols.registry import resumable
from ..runtime.deadline import Deadline

__all__ = ["SILENCE", "ask_to_resume", "asks_to_resume"]

# An invalid version of Yamux, an unknown type of Bymux, a length above any limit of the others.
REQUEST = b"\xff" * 20

# Seconds for which a server waits for a client that may want the plain wire, and say nothing.
SILENCE = 2.0

REFUSED = b"refused: "
LONGEST_LINE = 200


def _line(protocol: str) -> bytes:
    return resumable((protocol,))[0].encode() + b"\n"


def ask_to_resume(sock: socket.socket, protocol: str, deadline: Deadline) -> bool:
    """Ask for a resumable connection; return false if the server does not know the question.

    Blocks until the answer has arrived.

    Raises:
        HandshakeError: the server refused; the reason is its own.
        TimeoutError: it did not answer in time.
    """
    wanted = _line(protocol)
    answer = b""
    try:
        sock.settimeout(_remaining(deadline))
        sock.sendall(REQUEST + wanted)
        while not answer.endswith(b"\n"):
            sock.settimeout(_remaining(deadline))
            byte = sock.recv(1)  # what follows is for the transport
            answer += byte
            known = any(line.startswith(answer[: len(line)]) for line in (wanted, REFUSED))
            if not byte or not known or len(answer) > LONGEST_LINE:
                return False
    except ConnectionError:
        return False
    if answer != wanted:
        reason = answer.removeprefix(REFUSED).decode(errors="replace").strip()
        raise HandshakeError(f"the server refused a resumable connection: {reason}")
    return True


def asks_to_resume(sock: socket.socket, protocol: str, deadline: Deadline) -> bool:
    """Return whether a client asks for a resumable connection, which is then promised to it.

    Blocks until it says something, for ``SILENCE`` seconds at most; nothing else is read.

    Raises:
        HandshakeError: it asks for something else than the wire that is served.
        TimeoutError, OSError: it does not say all of it, or is lost.
    """
    sock.settimeout(min(SILENCE, _remaining(deadline) or SILENCE))
    try:
        if sock.recv(1, socket.MSG_PEEK) != REQUEST[:1]:
            return False
    except TimeoutError:
        return False
    wanted = REQUEST + _line(protocol)
    asked = b""
    while not asked.endswith(b"\n"):
        sock.settimeout(_remaining(deadline))
        byte = sock.recv(1)
        asked += byte
        if not byte or len(asked) > LONGEST_LINE or not REQUEST.startswith(asked[: len(REQUEST)]):
            raise HandshakeError("a client began with no wire, and with no request to resume")
    if asked == wanted:
        sock.sendall(_line(protocol))
        return True
    sock.sendall(REFUSED + b"this port serves the wire %s\n" % protocol.encode())
    raise HandshakeError(f"a client asks to resume another wire than {protocol}")


def _remaining(deadline: Deadline) -> float | None:
    remaining = deadline.remaining()
    if remaining == 0:
        raise TimeoutError("the peer did not say in time whether the connection is resumable")
    return remaining
