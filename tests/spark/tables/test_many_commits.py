"""The same as a test of ``test_table``, for longer: a commit costs no more behind 10,000 others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.hang_bound(900)]

# In a process of its own, since the memory of many checkpoints stays with that.
SCRIPT = """
import sys
from pathlib import Path
from tests.spark.tables.test_table import calls_of, store, write

datasets = store(Path(sys.argv[1]))
for number in range(10):
    write(datasets, number * 10)
early = calls_of(datasets, 10, 11, 12)
for number in range(13, 10_000):
    write(datasets, number * 10)
print(early, calls_of(datasets, 10_000, 10_001, 10_002))
"""


def test_a_commit_costs_the_same_behind_ten_thousand(tmp_path: Path) -> None:
    """It makes as many calls, of Python and of the system."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, timeout=850, text=True)
    assert ran.returncode == 0, ran.stderr
    early, late = map(int, ran.stdout.split())
    assert late <= 1.05 * early
