"""Diagnose what keeps a client from its server, step by step.

Used by ``wsmux doctor URL``. Each step reports a fact and, if something is wrong, a remedy.
"""

from __future__ import annotations

from .examine import examine
from .plan import Plan
from .report import Report, Status, Step

__all__ = ["Plan", "Report", "Status", "Step", "examine"]
