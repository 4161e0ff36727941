"""A forked child may not use its parent's calls, and does them no harm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..helpers.rpc.procedures import WAIT


def test_children_of_a_process_with_calls_under_way() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.helpers.rpc.forks"],
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
        timeout=2 * WAIT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
