"""Describe a session for monitoring."""

from __future__ import annotations

from typing import NamedTuple

from .session import Session

__all__ = ["SessionInfo", "session_info"]


class SessionInfo(NamedTuple):
    """A snapshot of a session; see ``RpcHandler.list_sessions`` and ``Client.session``.

    It contains neither metadata nor payloads. The session id, which is a secret of the client, is
    the only field with which a session could be resumed: show ``client_id`` to people instead.
    """

    client_id: str
    session_id: str
    connected: bool
    connections: int
    """Connections so far; all but the first are reconnects."""
    calls: int
    """Open calls."""
    handlers: int
    """Running handlers, not counting waiting generators; 0 at a client."""
    waiting_calls: int
    """Calls waiting for a worker; 0 at a client."""
    unacknowledged_messages: int
    """Messages sent, by all calls together, that the peer has not acknowledged."""
    unacknowledged_bytes: int


def session_info(
    session: Session, client_id: str, *, calls: int, handlers: int = 0, waiting_calls: int = 0
) -> SessionInfo:
    """Return a snapshot of a session."""
    return SessionInfo(
        client_id,
        session.id,
        session.attached,
        session.attachments,
        calls,
        handlers,
        waiting_calls,
        session.buffered_messages,
        session.buffered_bytes,
    )
