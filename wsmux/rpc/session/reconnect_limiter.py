"""Compute the wait before an attempt to connect.

Attempts without lasting success add up. The first in a row does not wait; each further one waits up
to twice as long as the one before, up to a maximum. A connection forgives half of the attempts at
once, and one more per interval, down to none. So a client whose connections are repeatedly cut soon
after they are made returns within half a second, but never retries at once without end.

Other implementations differ in four ways. They never forgive the last attempt, so that the first
one after any drop waits 150 to 350 ms; here it does not wait. There, a connection that is cut soon
forgives nothing, so that the waits outgrow the grace period of the session. They stop after five
attempts without success; here attempts continue at the maximum. And they add at most 200 ms of
jitter to any wait, so that a thousand clients that lost one server would return within 200 ms of
each other even after half a minute; here each wait is drawn between 0 and its upper bound, which
spreads the clients over all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..options import Options

__all__ = ["ReconnectLimiter"]

# Seconds of connection that forgive one attempt; as in other implementations.
RESTORE_INTERVAL = 0.2

# Attempts counted at most: doubled this often, any base exceeds any maximum.
MOST = 32


class ReconnectLimiter:
    """Count attempts and forgive them.

    Args:
        options: the waits, in seconds.
        random: returns a number from 0 (inclusive) to 1 (exclusive).
    """

    def __init__(self, options: Options, random: Callable[[], float]) -> None:
        self._options = options
        self._random = random
        self._consumed = 0
        self._succeeded: float | None = None  # when the current connection, if any, was made

    def consumed(self, now: float) -> int:
        """Return the attempts that count against the next one."""
        if self._succeeded is None:
            return self._consumed
        return max(0, self._consumed - int((now - self._succeeded) / RESTORE_INTERVAL))

    def attempt(self, now: float, longest: float = math.inf) -> float:
        """Count an attempt, stop forgiving, and return the seconds to wait before it.

        Args:
            now: the time, in seconds.
            longest: the maximum wait.
        """
        consumed, self._succeeded = self.consumed(now), None
        wait = self._wait(consumed, longest)
        # Beyond the maximum wait a higher count has no effect, but takes longer to be forgiven.
        at_most = consumed > 0 and self._delay(consumed) >= self._options.backoff_max
        self._consumed = consumed if at_most else min(consumed + 1, MOST)
        return wait

    def hurried(self, longest: float = math.inf) -> float:
        """Return the wait in seconds of the most urgent attempt after a failed one."""
        return self._wait(1, longest)

    def succeeded(self, now: float) -> None:
        """Forgive half, rounded down, and start to forgive the rest: the handshake succeeded."""
        self._consumed -= self._consumed // 2
        self._succeeded = now

    def _delay(self, consumed: int) -> float:
        return self._options.backoff_base * 2.0 ** (consumed - 1)

    def _wait(self, consumed: int, longest: float = math.inf) -> float:
        if consumed == 0:
            return 0.0
        jitter = self._options.backoff_jitter
        delay = min(self._delay(consumed), self._options.backoff_max) + jitter
        return min(delay, longest) * (self._random() if jitter else 1.0)
