"""Open and end channels that carry whole messages, for the layers that do without streams."""

from __future__ import annotations

import socket

from .channel import Channel
from .config import KIB, Config
from .protocols.base import Role
from .protocols.carrier import Framing

__all__ = ["hang_up", "message_channel"]

# A config wants room for a frame of streams, which nobody sends here.
SMALLEST_LIMIT = 128 * KIB


def message_channel(
    sock: socket.socket,
    framing: Framing,
    role: Role,
    *,
    close_timeout: float,
    ping_interval: float | None = None,
    ping_timeout: float | None = None,
) -> Channel:
    """Return a channel over a socket whose handshake is done; the socket is the channel's then.

    Args:
        close_timeout, ping_interval, ping_timeout: seconds, as in ``Config``; by default nobody
            is pinged.

    Raises:
        OSError: the system has no descriptor to give; the socket is closed.
    """
    config = Config(
        ping_interval=ping_interval,
        ping_timeout=ping_timeout,
        close_timeout=close_timeout,
        max_message_size=max(framing.max_message_size, SMALLEST_LIMIT),
    )
    try:
        return Channel(sock, framing, role, config)
    except OSError:
        sock.close()
        raise


def hang_up(channel: Channel, code: int, reason: str) -> None:
    """Begin to close a channel behind what is queued, from any thread and without waiting."""
    with channel.mutex:
        channel.close_locked(code, reason)
    channel.flush()
    channel.wake()
