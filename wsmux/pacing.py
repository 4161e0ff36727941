"""Hold back pings that a peer of this library would take for a flood."""

from __future__ import annotations

import time

from .channel import Channel
from .deadlines import Deadline
from .protocols.budgets import BYTES_PER_PING, FLOOD_PERIOD, Budget

__all__ = ["Turns"]

# The part of Config.max_pings that is used: keepalive and measurements have the rest.
SHARE = 0.75


class Turns:
    """Give pings their turns on one connection, by the bound that its own peer is held to."""

    def __init__(self, channel: Channel) -> None:
        size = max(1.0, SHARE * channel.config.max_pings)
        self._channel = channel
        self._pause = FLOOD_PERIOD / size
        self._budget = Budget(size, size / FLOOD_PERIOD)

    def wait(self, deadline: Deadline) -> None:
        """Wait until one more ping is no flood, or the connection has ended.

        Raises:
            TimeoutError: that is not so in time.
        """
        channel = self._channel
        while True:
            with channel.mutex:
                earned = channel.queue.bytes_sent // BYTES_PER_PING
                if self._budget.charge(time.monotonic(), earned):
                    return
            if deadline.expired():
                raise TimeoutError(f"no turn for a ping on {channel.name} in time")
            left = deadline.remaining()
            if channel.wait_finished(self._pause if left is None else min(left, self._pause)):
                return
