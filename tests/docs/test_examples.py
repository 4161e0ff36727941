"""Run every example and compare its output with the comment that ends it."""

from __future__ import annotations

import io
import os
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from ..helpers.checkout import ROOT, expected_output

EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))

# Those that need a browser are run in ``browser``.
ALONE = [path for path in EXAMPLES if "browser" not in path.stem]

# Seconds for one example, and for one that starts Spark on a busy machine.
PATIENCE, SPARK_PATIENCE = 120, 240


# Run in a process of its own each time: the first of all, and one whose cluster ends with it.
STARTED = ("01_echo", "27_file_drop")


def to_run(path: Path) -> Any:
    """Return the parameter of a test that starts an example."""
    marks: list[pytest.MarkDecorator] = []
    if with_spark(path):
        marks = [pytest.mark.spark, pytest.mark.hang_bound(SPARK_PATIENCE + 10)]
    elif path.stem not in STARTED:
        marks = [pytest.mark.wide]
    return pytest.param(path, id=path.stem, marks=marks)


def with_spark(path: Path) -> bool:
    return "pyspark" in path.read_text()


@pytest.mark.parametrize("path", [to_run(path) for path in ALONE])
def test_example_prints_what_it_says(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=SPARK_PATIENCE if with_spark(path) else PATIENCE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected_output(path.read_text())


@pytest.mark.parametrize(
    "path",
    [path for path in ALONE if not with_spark(path) and path.stem != "27_file_drop"],
    ids=lambda path: path.stem,
)
def test_example_prints_the_same_in_this_process(path: Path) -> None:
    """Starting a process takes longer than most examples, so those run wide."""
    output = io.StringIO()
    with redirect_stdout(output):
        runpy.run_path(str(path), run_name="__main__")
    assert output.getvalue() == expected_output(path.read_text())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_indexed(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 60
    assert path.name in (ROOT / "examples" / "README.md").read_text()
