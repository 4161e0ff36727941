"""The part of ``python -m benchmarks --spark`` that needs a session, which it starts itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from wsmux.spark.java import java_home

from ..helpers.programs import absent, package
from ..helpers.spark.sessions import NO_JAVA

pytestmark = [pytest.mark.long, pytest.mark.hang_bound(180)]


def test_rows_within_spark_are_measured() -> None:
    package("pyspark", "spark")
    package("pyarrow", "spark")
    if java_home() is None:
        absent(NO_JAVA, "spark")
    names = "spark-alone,spark-256x1,spark-arrow"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--spark", "--measures", names, "--json"]
        + ["--repetitions", "1", "--seconds", "0.02"],
        capture_output=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    (each,) = result["passes"]
    assert each["failures"] == []
    assert {name.rpartition("-")[0] for name in each["measures"]} == set(names.split(","))
    for measure in each["measures"].values():
        assert all(value > 0 for value in measure["variants"]["pyspark"]["values"])
