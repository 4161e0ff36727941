"""Describe a session to whoever watches it."""

from __future__ import annotations

from typing import NamedTuple

from .session import Session

__all__ = ["SessionInfo", "session_info"]


class SessionInfo(NamedTuple):
    """A session as it was at one moment; see ``RpcHandler.list_sessions`` and ``Client.session``.

    It holds no metadata, no payload and nothing by which a session could be resumed but its id,
    which is a secret of its client: show ``client_id`` to people.
    """

    client_id: str
    session_id: str
    connected: bool
    connections: int
    """Connections so far; all but the first one are reconnects."""
    calls: int
    """Calls that are open."""
    handlers: int
    """Handlers that run; a generator that waits does not. 0 for a client's end."""
    waiting_calls: int
    """Calls that wait for a worker. 0 for a client's end."""
    unacknowledged_messages: int
    """Messages sent, by all calls together, that the peer has not acknowledged."""
    unacknowledged_bytes: int


def session_info(
    session: Session, client_id: str, *, calls: int, handlers: int = 0, waiting_calls: int = 0
) -> SessionInfo:
    """Return what there is to know of a session now."""
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
