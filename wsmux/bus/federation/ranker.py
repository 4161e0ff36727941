"""Order relays by how rarely they failed recently.

A failure counts for ``period`` seconds, so a relay recovers its rank without further action. The
rank is a hint: the last relay is still tried when the others fail. As the ranker of the reference
relay, but bounded.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

__all__ = ["MAX_DOMAINS", "MAX_FAILURES", "PERIOD", "Ranker"]

# Seconds that a failure counts by default; as the reference relay.
PERIOD = 3600.0

# The newest failures remembered per domain; relays with more rank equal. With ``MAX_DOMAINS``,
# since any twin's record may name new domains, this takes at most 8 MiB.
MAX_FAILURES = 256

# Domains remembered; the one that has not failed for the longest time is forgotten first.
MAX_DOMAINS = 1024

HOUR = 3600.0


class Ranker:
    """Remember failures and order domains by them; not thread-safe.

    Args:
        random: returns a number from 0 up to 1, which orders relays with equal failure rates.
        period: seconds that a failure counts.

    Raises:
        ValueError: the period is not above 0.
    """

    def __init__(self, random: Callable[[], float], period: float = PERIOD) -> None:
        if not period > 0:
            raise ValueError(f"a ranker's period must be above 0 seconds, not {period}")
        self._period = period
        self._random = random
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def downvote(self, domain: str, now: float) -> None:
        """Count a failure of a relay at ``now``, in seconds of a monotonic clock."""
        failures = self._failures.setdefault(domain, deque(maxlen=MAX_FAILURES))
        failures.append(now)
        self._failures.move_to_end(domain)
        if len(self._failures) > MAX_DOMAINS:
            self._failures.popitem(last=False)

    def failure_rate(self, domain: str, now: float) -> float:
        """Return the failures of a relay per hour, over the last period."""
        failures = self._failures.get(domain)
        if failures is None:
            return 0.0
        while failures and failures[0] <= now - self._period:
            failures.popleft()
        if not failures:
            del self._failures[domain]
        return len(failures) * HOUR / self._period

    def order(self, domains: Iterable[str], now: float) -> list[str]:
        """Return each domain once, the best first, equal ones in random order."""
        return sorted(
            dict.fromkeys(domains),
            key=lambda domain: (self.failure_rate(domain, now), self._random()),
        )
