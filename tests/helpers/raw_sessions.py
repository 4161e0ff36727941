"""Begin a resumable session by hand."""

from __future__ import annotations

import socket

from wsmux.endpoints.resumable_sessions import ResumableSessions
from wsmux.protocols.resumption import Hello, Session, Welcome, parse_answer
from wsmux.runtime.deadline import Deadline

from .raw_peer import BINARY, RawPeer
from .timeouts import WAIT

__all__ = ["ID", "welcomed"]

ID = b"sixteen bytes id"


def welcomed(sessions: ResumableSessions) -> Welcome:
    """Begin a session, whose connection is not made; return what its client is told."""
    ours, theirs = socket.socketpair()
    with ours, RawPeer(theirs, masks=True) as peer:
        peer.send_frame(BINARY, Hello(ID).encode(None))
        assert isinstance(sessions.greet(ours, Deadline(WAIT)), Session)
        welcome = parse_answer(peer.recv_message())
    assert isinstance(welcome, Welcome)
    return welcome
