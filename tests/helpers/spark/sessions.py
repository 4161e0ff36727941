"""Say what a Spark session of the tests is made with, in this process or in one of its own."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from examples.flights.spark_session import NO_JAVA, python_script
from wsmux.runtime.hints import how_to_install
from wsmux.spark.java import java_home

from ..programs import absent

__all__ = [
    "DAEMON",
    "NO_JAVA",
    "ROOT",
    "SETTINGS",
    "SLOTS",
    "WAIT",
    "environment",
    "new_session",
    "printed",
]

ROOT = Path(__file__).parents[3]

# Tasks that the session of the tests runs at once.
SLOTS = 2

# Seconds that a driver may take on a busy machine, its session included.
WAIT = 560.0

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

# Where Python finds the tests, its processes start faster and coverage keeps what they saw.
DAEMON = {"spark.python.daemon.module": "tests.helpers.spark.daemon"}


def environment(*modules: str) -> dict[str, str]:
    """Return what the process of a driver needs in its environment.

    The test is skipped without pyspark, pyarrow, a Java, or one of the modules.
    """
    for module in ("pyspark", "pyarrow", *modules):
        if find_spec(module) is None:
            absent(f"{module} is not installed: {how_to_install('spark')}", "spark")
    home = java_home()
    if home is None:
        absent(NO_JAVA, "spark")
    path = os.environ.get("PYTHONPATH")
    path = f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)
    python = str(python_script(Path(_directory().name), path))
    return {
        "JAVA_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "PYTHONPATH": path,
    }


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    """Return one that goes with this process."""
    return tempfile.TemporaryDirectory(prefix="wsmux-python-")


def printed(module: str, *arguments: str, environment: dict[str, str], timeout: float) -> str:
    """Return what a module prints that is a driver of its own; fail if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        timeout=timeout,
        cwd=ROOT,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def new_session(java: str, master: str, settings: Mapping[str, str] | None = None) -> Any:
    """Start Spark in this process, with further settings."""
    from pyspark.sql import SparkSession

    os.environ.update(environment() | {"JAVA_HOME": java})
    builder = SparkSession.builder.master(master).appName("wsmux")
    for name, value in (SETTINGS | DAEMON | dict(settings or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
