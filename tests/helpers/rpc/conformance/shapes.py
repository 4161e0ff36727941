"""Give the tables their types."""

from __future__ import annotations

__all__ = ["Different", "NotOurs", "Ours"]

# By group and case.
Ours = dict[str, dict[str, str | tuple[str, ...]]]
Different = dict[str, dict[str, tuple[str, str | tuple[str, ...]]]]
NotOurs = dict[str, dict[str, str]]
