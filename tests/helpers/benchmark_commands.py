"""Run ``python -m benchmarks`` as a developer does."""

from __future__ import annotations

import subprocess
from functools import partial

from benchmarks.processes import Processes

from . import commands

__all__ = ["PATIENCE", "command", "process_of", "run"]

PATIENCE = commands.PATIENCE

command = partial(commands.command, module="benchmarks")
run = partial(commands.run, module="benchmarks")


def process_of(running: Processes) -> subprocess.Popen[str]:
    """Return the first process of a measurement: the server."""
    return running._running[0].process
