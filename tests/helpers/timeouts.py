"""Say how long the tests wait for what comes; no test waits for that time to pass."""

from __future__ import annotations

__all__ = ["CONNECTS", "WAIT"]

# Seconds for what takes milliseconds when nothing else runs.
WAIT = 60.0

# A grace for sessions that a test waits out: so short, but a busy machine connects within it. The
# grace runs before the first connection, too.
CONNECTS = 3.0
