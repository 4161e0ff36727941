"""Let the window of a stream grow whose reader keeps up. Guarded by the connection's mutex."""

from __future__ import annotations

import time

from .channel import Channel
from .config import KIB
from .entry import Entry
from .protocols.base import MuxProtocol
from .protocols.carrier import Kind

__all__ = ["grow_locked"]

# On a path shorter than so many seconds, time is lost in threads rather than on the way: beyond
# this window bulk gains nothing, and small messages wait behind it.
NEAR = 0.001
NEAR_WINDOW = 1024 * KIB


def grow_locked(protocol: MuxProtocol, channel: Channel, entry: Entry) -> None:
    """Widen the window of a stream whose credit was just returned, if that is due.

    Under load the path is measured once a second, by pings that nobody waits for. The least time
    counts: the others tell how long a ping waited behind what the windows let through. Where the
    carrier has no pings, as Bymux over TCP, no window grows.
    """
    if not channel.pings:
        return
    alive, now = channel.keep_alive, time.monotonic()
    rtt = alive.least
    if rtt is not None and rtt < NEAR and entry.window >= NEAR_WINDOW:
        rtt = None
    size = protocol.grow(now, rtt)
    if size:
        entry.set_window(size)
        return
    ping = alive.measure(now)
    if ping is not None:
        channel.queue.add_control_locked([ping], Kind.PING)
