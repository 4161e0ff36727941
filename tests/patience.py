"""Say how long the tests wait for what comes; no test waits for that time to pass."""

from __future__ import annotations

__all__ = ["WAIT"]

# Seconds for what takes milliseconds when nothing else runs.
WAIT = 60.0
