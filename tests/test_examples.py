"""Run every example and compare its output with the comment that ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))


def expected_output(source: str) -> str:
    comment = source.rpartition("# Output:\n")[2]
    return "".join(line.removeprefix("# ") for line in comment.splitlines(keepends=True))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_prints_what_it_says(path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=30, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected_output(path.read_text())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_indexed(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 60
    assert path.name in (ROOT / "examples" / "README.md").read_text()
