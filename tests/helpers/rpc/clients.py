"""Ask a client for its session, and take its connection away."""

from __future__ import annotations

from wsmux import rpc

from ..inside import channel_of

__all__ = ["cut", "session_of"]


def session_of(client: rpc.Client) -> rpc.SessionInfo:
    """Return what a client tells of its session; it must have one."""
    session = client.session
    assert session is not None
    return session


def cut(client: rpc.Client) -> bool:
    """Break the connection of a client, as when its socket fails; return whether there was one."""
    channel = channel_of(client)
    if channel is None:
        return False
    channel.abort()
    return True
