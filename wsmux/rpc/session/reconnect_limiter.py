"""Say how long to wait before an attempt to connect.

Attempts without lasting success add up. The first of a row waits nothing, each further one up to
twice as long as the one before, up to a maximum. A connection forgives half of them at once, and
one more per interval, down to none. So a client whose connections are cut again and again soon
after they are made keeps coming back within half a second, and never at once without end.

Shipped code differs in four ways. It never forgives the last attempt, so that the first one after
any drop waits 150 to 350 ms; here it goes at once. A connection that is cut soon forgives nothing
there, so that the waits outgrow the grace of the session. It stops for good after five attempts
without success; here attempts go on at the maximum. And it adds at most 200 ms of chance to any
wait, so that a thousand clients which lost one server would come back to it within 200 ms of each
other even after half a minute; here each wait is drawn from nothing up to its longest, which
spreads them over all of it.
"""

from __future__ import annotations

import math
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

    def attempt(self, now: float, longest: float = math.inf) -> float:
        """Count an attempt, stop forgiving, and return the seconds to wait before it.

        Args:
            now: the time, in seconds.
            longest: the most that it may wait.
        """
        consumed, self._succeeded = self.consumed(now), None
        wait = self._wait(consumed, longest)
        # Beyond the maximum the count says nothing more, and would take longer to be forgiven.
        at_most = consumed > 0 and self._delay(consumed) >= self._options.backoff_max
        self._consumed = consumed if at_most else min(consumed + 1, MOST)
        return wait

    def hurried(self, longest: float = math.inf) -> float:
        """Return the seconds that the most urgent attempt after a failed one waits."""
        return self._wait(1, longest)

    def succeeded(self, now: float) -> None:
        """Forgive half, rounded down, and go on to forgive: the handshake went well."""
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
