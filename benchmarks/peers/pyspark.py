"""Measure calls as PySpark makes them, and what it reads and writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from ..peer import Peer
from .raw import Raw

if TYPE_CHECKING:
    from ..spark.client import SparkClient


class PySpark(Peer):
    """Serve procedures of River, and a raw echo to hold them against."""

    name = base = "pyspark"
    about = "rows of 100 bytes, bulk of 64; the outer ones from one thread, without Spark"
    kind = "spark"
    needs: ClassVar[tuple[str, ...]] = ("msgpack", "websocket", "simple_websocket")

    @contextmanager
    def serve(self) -> Iterator[str]:
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

        with rpc.serve([service]) as server, Raw().serve() as raw:
            yield json.dumps({"river": server.url, "raw": raw})

    @contextmanager
    def connect(self, address: str) -> Iterator[SparkClient]:
        from ..spark.client import SparkClient

        client = SparkClient(address)
        try:
            yield client
        finally:
            client.close()


PEERS: list[Peer] = [PySpark()]
