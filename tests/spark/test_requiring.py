"""Where everything has to run, a test that is skipped has failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..helpers.programs import VARIABLE
from ..helpers.spark.sessions import ROOT

MISSING = """raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")\n"""


@pytest.mark.parametrize(("value", "status"), [("", 5), ("programs,spark", 2)])
def test_a_module_without_its_library(tmp_path: Path, value: str, status: int) -> None:
    (tmp_path / "pyarrow.py").write_text(MISSING)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "-m",
            "spark",
            "tests/spark/topics/test_segments.py",
        ]
        + ["-p", "no:cacheprovider"],
        capture_output=True,
        timeout=200,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path), VARIABLE: value},
    )
    text = done.stdout.decode()
    assert done.returncode == status, text
    told = f"{VARIABLE} has spark, but Skipped: needs pyarrow"
    assert (told in text) == bool(value), text
