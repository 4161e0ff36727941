"""A plain install is enough: Spark finds the format from anywhere, in SQL too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wsmux.spark.java import java_home

from ...helpers.programs import absent, package
from ...helpers.spark.sessions import NO_JAVA, ROOT, SETTINGS

pytestmark = [pytest.mark.long, pytest.mark.hang_bound(240)]

PROGRAM = f"""
import sys
from pyspark.sql import SparkSession
import pyspark_wsmux, wsmux
from wsmux.spark import serve_data

assert pyspark_wsmux.__file__.startswith(sys.argv[1]), pyspark_wsmux.__file__
assert wsmux.__file__.startswith(sys.argv[1]), wsmux.__file__
builder = SparkSession.builder.master("local[2]")
for name, value in {SETTINGS!r}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
with serve_data() as server:
    options = {{"url": server.url, "dataset": "d"}}
    spark.range(5).write.format("wsmux").mode("append").options(**options).save()
    print(spark.read.format("wsmux").options(**options).load().count())
    text = f"OPTIONS (url '{{server.url}}', dataset 'd')"
    spark.sql(f"CREATE TEMPORARY VIEW seen USING wsmux {{text}}")
    print(spark.sql("SELECT sum(id) FROM seen").first()[0])
spark.stop()
"""


def test_the_format_is_found_wherever_it_is_installed(tmp_path: Path) -> None:
    package("pyspark", "spark")
    home = java_home()
    if home is None:
        absent(NO_JAVA, "spark")
    source, target, elsewhere = (tmp_path / name for name in ("source", "target", "elsewhere"))
    source.mkdir()
    elsewhere.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "pyspark_wsmux.py"):
        shutil.copy(ROOT / name, source)  # what is built leaves files beside
    shutil.copytree(ROOT / "wsmux", source / "wsmux", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
    subprocess.run([*command, "--target", target, source], check=True, timeout=120)
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [str(target), *(each for each in others if each and Path(each).resolve() != ROOT)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(target)],
        cwd=elsewhere,
        env=os.environ
        | {
            "JAVA_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path),
        },
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout.split() == ["5", "10"], done.stderr


def test_the_module_that_spark_imports_never_fails(tmp_path: Path) -> None:
    """One that does hides the sources of others."""
    (tmp_path / "pyspark.py").write_text("raise RuntimeError('broken')\n")
    code = "import pyspark_wsmux; print(pyspark_wsmux.__all__)"
    path = os.pathsep.join((str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "[]\n"
