"""Run a script that drops objects, in a process of its own, which may lock up."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import wsmux

from .timeouts import WAIT

__all__ = ["run_dropping"]


def run_dropping(script: str, **values: object) -> subprocess.CompletedProcess[str]:
    """Run an indented script to its end, with its ``{fields}`` filled in.

    Raises:
        TimeoutExpired: it has locked up.
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script).format(**values)],
        capture_output=True,
        text=True,
        timeout=WAIT,
        env={"PYTHONPATH": str(Path(wsmux.__file__).parent.parent)},
        check=False,
    )
