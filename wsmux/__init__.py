"""Carry many blocking byte streams over one WebSocket."""

from __future__ import annotations

__version__ = "0.1.0"
