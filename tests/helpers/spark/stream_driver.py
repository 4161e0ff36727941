"""Copy one topic to another by a query of Spark's, until somebody kills this.

``python -m tests.helpers.spark.stream_driver JAVA FROM TO CHECKPOINT``; the two are addresses of
servers. A query that fails is started again, as whoever runs one does.
"""

from __future__ import annotations

import sys

from .sessions import new_session

__all__: list[str] = []

# Seconds of a wait for a query, after which there is another.
SLICE = 3600

# More than a query can have on its way in a task when a server is started anew.
OPTIONS = {"topic": "t", "connectTimeout": "5", "callTimeout": "20", "retryBackoff": "0.05"}


def main(java: str, source: str, sink: str, checkpoint: str) -> None:
    spark = new_session(java, "local[2,3]")
    while True:
        read = spark.readStream.format("wsmux").options(**OPTIONS).option("url", source)
        limits = {"startingOffsets": "earliest", "maxRowsPerTrigger": "100"}
        try:
            writer = read.options(**limits).load().writeStream.format("wsmux").options(**OPTIONS)
            writer = writer.option("url", sink).option("checkpointLocation", checkpoint)
            writer.start().awaitTermination(SLICE)
        except Exception as error:  # the next query begins where this one was
            sys.stderr.write(f"the query failed: {str(error)[-2000:]}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
