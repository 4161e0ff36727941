"""Limit cheap frames of a peer, and detect stalls.

One design for all floods: a ``TokenBucket`` is charged for the frame before anything is allocated
for it, and a frame that it does not cover ends the connection with 1008 (policy violation).
Allowances for what an honest peer does in proportion to its work are earned, and never run out:
updates by the data sent to it, late frames by the number of streams. Only frames without data are
charged.

There is no clock here: the owner passes the time.
"""

from __future__ import annotations

from ..config import Config
from ..exceptions import CloseCode, FrameError

__all__ = [
    "BYTES_PER_PING",
    "FLOOD_PERIOD",
    "LATE_PER_STREAM",
    "AbuseLimits",
    "StallTimer",
    "TokenBucket",
]

# Seconds over which Config.max_empty_frames and Config.max_pings are counted. As in zmuxio.
FLOOD_PERIOD = 5.0

# Envoy's formula for window updates: 5 + 2 * (streams + 10 * data frames sent).
SPARE_UPDATES = 5
UPDATE_FACTOR = 2

# Frames that may be in flight for a stream that has ended: the end, or the echo of an end, of each
# half, by CLOSE and by ERROR.
LATE_PER_STREAM = 4

# Received bytes that earn a ping: an end that measures round trips under load pings as it sends.
BYTES_PER_PING = 1024

# Checks of a timer during its timeout.
LOOKS = 8


class TokenBucket:
    """A token bucket: ``size`` at once, refilled at ``rate`` per second."""

    __slots__ = ("_left", "_rate", "_since", "_size", "_used")

    def __init__(self, size: float, rate: float = 0.0) -> None:
        self._size = self._left = size
        self._rate = rate
        self._since = 0.0
        self._used = 0  # earned tokens spent

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenBucket) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    def charge(self, now: float, earned: int = 0) -> bool:
        """Take one token, of the total ``earned`` ones first; return whether there was one."""
        if self._used < earned:
            self._used += 1
            return True
        self._left = min(self._size, self._left + max(0.0, now - self._since) * self._rate)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class AbuseLimits:
    """Hold the limits of one connection's peer.

    Attributes:
        streams: the number of streams opened so far, by either side.
        overdrawn: the peer has caused too many resets; the next stream it opens ends the
            connection.
    """

    def __init__(self, config: Config) -> None:
        self.streams = 0
        self.overdrawn = False
        self._config = config
        self._empties = TokenBucket(config.max_empty_frames, config.max_empty_frames / FLOOD_PERIOD)
        self._late = TokenBucket(config.max_empty_frames, config.max_empty_frames / FLOOD_PERIOD)
        self._pings = TokenBucket(config.max_pings, config.max_pings / FLOOD_PERIOD)
        self._resets = TokenBucket(config.max_resets, config.reset_rate)
        self._updates = TokenBucket(SPARE_UPDATES)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbuseLimits) and vars(self) == vars(other)

    def empty(self, now: float) -> None:
        """Charge a frame that changes nothing.

        Raises:
            FrameError: the limit is exceeded, with 1008; this applies to all these methods.
        """
        if not self._empties.charge(now):
            raise self._flood("frames that change nothing", "max_empty_frames")

    def late(self, now: float) -> None:
        """Charge a frame on something that has ended, which may have crossed the end."""
        if not self._late.charge(now, LATE_PER_STREAM * self.streams):
            raise self._flood("frames for what has ended", "max_empty_frames")

    def ping(self, now: float, received: int) -> None:
        """Charge a ping or unsolicited pong of a peer that has sent ``received`` bytes in all."""
        if not self._pings.charge(now, received // BYTES_PER_PING + self.streams):
            raise self._flood("pings beyond what its data earns", "max_pings")

    def update(self, now: float, sent: int) -> None:
        """Charge a grant of credit when ``sent`` data frames have been sent."""
        frames = self._config.max_updates_per_frame * sent
        if not self._updates.charge(now, UPDATE_FACTOR * (self.streams + frames)):
            raise self._flood("grants of credit for the data sent", "max_updates_per_frame")

    def opened(self) -> None:
        """Count a stream opened by the peer; refuse it if too many were reset."""
        if self.overdrawn:
            raise self._flood("streams that had to be refused", "max_resets")
        self.streams += 1

    def reset(self, now: float) -> None:
        """Charge a stream that the peer opened and reset."""
        if not self._resets.charge(now):
            raise self._flood("resets", "max_resets")

    def solicited(self, now: float) -> None:
        """Charge a stream that this side must reset because of the peer."""
        if not self._resets.charge(now):
            self.overdrawn = True

    def _flood(self, what: str, limit: str) -> FrameError:
        allowed = getattr(self._config, limit)
        return FrameError(
            f"too many {what}: Config.{limit} is {allowed}", CloseCode.POLICY_VIOLATION
        )


class StallTimer:
    """Detect when there is no progress for ``timeout`` seconds; ``None`` disables it.

    Progress is checked at intervals, so that it costs nothing by itself. A stall is detected up to
    an eighth of the timeout late.
    """

    __slots__ = ("_look", "_mark", "_since", "_timeout")

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._mark: object = None
        self._since = 0.0
        self._look: float | None = None

    @property
    def next_look(self) -> float | None:
        """When to check again; ``None`` while there is nothing to watch."""
        return self._look

    def still_for(self, now: float) -> float | None:
        """Return for how many seconds there was no progress, as of the last check."""
        return None if self._mark is None else max(0.0, now - self._since)

    def look(self, mark: object, now: float) -> bool:
        """Record the current position, ``None`` if there is none; return whether the time is up."""
        if mark is None or self._timeout is None:
            self._mark = self._look = None
            return False
        if mark != self._mark:
            self._mark, self._since = mark, now
        self._look = min(now + self._timeout / LOOKS, self._since + self._timeout)
        return now >= self._since + self._timeout
