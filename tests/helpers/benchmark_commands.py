"""Run ``python -m benchmarks`` as a developer does."""

from __future__ import annotations

from functools import partial

from . import commands

__all__ = ["PATIENCE", "command", "run"]

PATIENCE = commands.PATIENCE

command = partial(commands.command, module="benchmarks")
run = partial(commands.run, module="benchmarks")
