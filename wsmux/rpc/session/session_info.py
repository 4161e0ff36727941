"""Describe a session for monitoring."""

from __future__ import annotations

from typing import NamedTuple

from ...protocols.base import Role
from .session import Session

__all__ = ["SessionInfo", "session_info"]


class SessionInfo(NamedTuple):
    """A snapshot of a session; see ``RpcHandler.list_sessions`` and ``Client.session``.

    It contains neither metadata nor payloads. The session id, which is a secret of the client, is
    the only field with which a session could be resumed: show ``client_id`` and ``number`` to
    people instead, as the live page does.
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
    """Calls waiting for a worker, or until large answers are acknowledged; 0 at a client."""
    unacknowledged_messages: int
    """Messages sent, by all calls together, that the peer has not acknowledged."""
    unacknowledged_bytes: int
    unread_messages: int
    """Messages received, for all open calls together, that nobody has read."""
    unread_bytes: int
    number: int
    """The number of the session among those of this process."""
    role: str
    """The side that this is: ``"client"`` or ``"server"``."""
    server_id: str
    state: str
    """``"connected"``, or at a server ``"waiting_for_reconnect"``, or at a client the state of the
    connection as ``on_connection_status`` is told it, such as ``"backing_off"``."""
    age: float
    """Seconds since it began."""
    state_age: float
    """Seconds since it got its connection, or lost it; the age if it had none so far."""
    ends_in: float | None
    """Seconds until it ends unless a connection is made; ``None`` while it has one."""

    def __repr__(self) -> str:
        """Describe the session without its id, which must not reach a log."""
        return f"<SessionInfo {self.number} {self.role} {self.client_id} {self.state}>"


def session_info(
    session: Session,
    state: str,
    now: float,
    *,
    calls: int,
    unread: tuple[int, int],
    handlers: int = 0,
    waiting_calls: int = 0,
) -> SessionInfo:
    """Return a snapshot of a session, whose state is ``state`` unless it is connected."""
    server = session.role is Role.SERVER
    ends = None if session.attached else session.next_timer()
    return SessionInfo(
        session.peer_id if server else session.own_id,
        session.id,
        session.attached,
        session.attachments,
        calls,
        handlers,
        waiting_calls,
        session.buffered_messages,
        session.buffered_bytes,
        *unread,
        number=session.number,
        role=str(session.role),
        server_id=session.own_id if server else session.peer_id,
        state="connected" if session.attached else state,
        age=now - session.began,
        state_age=now - session.moved,
        ends_in=None if ends is None else max(0.0, ends - now),
    )
