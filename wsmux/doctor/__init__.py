"""Find out what stands between a client and its server, a step at a time.

Used by ``wsmux doctor URL``. Each step tells a fact and, where something is wrong, what to do.
"""

from __future__ import annotations

from .examine import examine
from .plan import Plan
from .report import Report, Status, Step

__all__ = ["Plan", "Report", "Status", "Step", "examine"]
