"""Measure calls as PySpark makes them, and what it reads and writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..peer import Peer
from .raw import RAW


class PySpark(Peer):
    """Serve procedures of River, and a raw echo to hold them against."""

    @contextmanager
    def serve(self) -> Iterator[Any]:
        from wsmux import rpc
        from wsmux.spark import batched

        service = rpc.Service("bench")

        @service.rpc()
        def one(ctx: rpc.Context, row: Any) -> Any:
            return row

        @service.rpc()
        @batched
        def many(ctx: rpc.Context, row: Any) -> Any:
            return row

        with rpc.serve([service]) as server, RAW.serve() as (raw, _):
            yield {"river": server.url, "raw": raw}

    @contextmanager
    def connect(self, address: Any) -> Iterator[Any]:
        from ..spark.measures import SparkClient

        with SparkClient(address) as client:
            yield client


PEERS: list[Peer] = [
    PySpark(
        "pyspark",
        "rows of 100 bytes, bulk of 64; the outer ones from one thread, without Spark",
        base="pyspark",
        kind="spark",
        needs=("msgpack", "websocket", "simple_websocket"),
    )
]
