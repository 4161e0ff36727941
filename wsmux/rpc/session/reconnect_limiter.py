"""Say how long to wait before an attempt to connect.

Attempts without lasting success add up. The first of a row waits nothing, each further one up to
twice as long as the one before, up to a maximum. Once a connection is made they are forgiven, one
per interval, down to none.

Shipped code differs in three ways. It never forgives the last attempt, so that the first one after
any drop waits 150 to 350 ms; here it goes at once. It stops for good after five attempts without
success; here attempts go on at the maximum. And it adds at most 200 ms of chance to any wait, so
that a thousand clients which lost one server would come back to it within 200 ms of each other even
after half a minute; here each wait is drawn from nothing up to its longest, which spreads them over
all of it.
"""

from __future__ import annotations

from collections.abc import Callable

from ..options import Options

__all__ = ["ReconnectLimiter"]

# Seconds of connection that forgive one attempt. As shipped code.
RESTORE_INTERVAL = 0.2

# Attempts beyond it are not counted: doubled so often, any base is above any maximum.
MOST = 32


class ReconnectLimiter:
    """Count attempts and forgive them.

    Args:
        options: the waits, in seconds.
        random: returns a number from 0 up to 1, without 1.
    """

    def __init__(self, options: Options, random: Callable[[], float]) -> None:
        self._options = options
        self._random = random
        self._consumed = 0
        self._succeeded: float | None = None  # when a connection was made that may still stand

    def consumed(self, now: float) -> int:
        """Return the attempts that count against the next one."""
        if self._succeeded is None:
            return self._consumed
        return max(0, self._consumed - int((now - self._succeeded) / RESTORE_INTERVAL))

    def attempt(self, now: float) -> float:
        """Count an attempt, stop forgiving, and return the seconds to wait before it."""
        consumed, self._succeeded = self.consumed(now), None
        wait = self._wait(consumed)
        # Beyond the maximum the count says nothing more, and would take longer to be forgiven.
        at_most = consumed > 0 and self._delay(consumed) >= self._options.backoff_max
        self._consumed = consumed if at_most else min(consumed + 1, MOST)
        return wait

    def hurried(self) -> float:
        """Return the seconds that the most urgent attempt after a failed one waits."""
        return self._wait(1)

    def succeeded(self, now: float) -> None:
        """Start to forgive: the handshake went well."""
        self._succeeded = now

    def _delay(self, consumed: int) -> float:
        return self._options.backoff_base * 2.0 ** (consumed - 1)

    def _wait(self, consumed: int) -> float:
        if consumed == 0:
            return 0.0
        delay = min(self._delay(consumed), self._options.backoff_max)
        jitter = self._options.backoff_jitter
        return self._random() * (delay + jitter) if jitter else delay
