"""Watch the peer of one channel: what it dribbles, what it does not take, how often it pings.

For the I/O thread; nothing here is locked. It costs nothing while bytes move: the thread looks now
and then at counters that are there anyway.
"""

from __future__ import annotations

from .config import Config
from .exceptions import ConnectionClosed, closed_error
from .inbox import Inbox
from .protocols.budgets import Floods, Watch
from .protocols.carrier import Framing
from .sendqueue import SendQueue

__all__ = ["Vigil"]

# RFC 6455 section 7.4.1: the code for a peer that breaks a limit which is no rule of the protocol.
POLICY = 1008


class Vigil:
    """Look at one channel when ``next_look`` says so.

    Attributes:
        reading: a message is incomplete, and timed.
        sending: bytes wait for the peer, and are timed.
    """

    def __init__(self, config: Config, framing: Framing, inbox: Inbox, queue: SendQueue) -> None:
        self.reading = self.sending = False
        self._config = config
        self._framing = framing
        self._inbox = inbox
        self._queue = queue
        self._floods = Floods(config)
        self._message = Watch(config.message_timeout)
        self._output = Watch(config.stall_timeout)

    def next_look(self) -> float | None:
        """Return when to call ``look`` again."""
        looks = (self._message.next_look, self._output.next_look)
        return min((look for look in looks if look is not None), default=None)

    def look(self, now: float) -> ConnectionClosed | None:
        """Note where everything stands; return what ends the channel, if something must."""
        message = self._framing.incomplete(self._inbox.bytes_received)
        late = self._message.look(message, now)
        taken = self._queue.taken_by_peer() if self._queue.has_output() else None
        stalled = self._output.look(taken, now)
        self.reading, self.sending = message is not None, taken is not None
        if not self.sending:
            self._queue.blocked = False
        if late:
            limit = f"Config.message_timeout = {self._config.message_timeout} s"
            return closed_error(POLICY, f"a message stayed incomplete for {limit}", "local")
        if stalled:
            limit = f"Config.stall_timeout = {self._config.stall_timeout} s"
            return closed_error(POLICY, f"the peer took no byte for {limit}", "local")
        return None

    def full_for(self, now: float) -> float | None:
        """Return for how many seconds the peer's system has taken no byte of those that wait.

        As the last look had it: ``None`` when there were none, or nobody times them.
        """
        return self._output.still_for(now)

    def pinged(self, now: float) -> None:
        """Charge a ping of the carrier, or a pong nobody asked for.

        Raises:
            FrameError: it is one too many.
        """
        self._floods.ping(now, self._inbox.bytes_received)
