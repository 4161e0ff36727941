"""Serve procedures to Spark's workers, in a process of its own that a test can kill.

``python -m tests.helpers.spark.job_server PORT LOG`` prints its port. What it handles, it writes to
LOG, a line each, so that a test can count what became of rows over several servers. ``gated`` holds
all but the first rows until there is a file LOG.go.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from wsmux import rpc
from wsmux.spark import arrow_batches, batched

__all__: list[str] = []


class Log:
    """Append lines to a file, each whole."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, line: str) -> None:
        os.write(self._fd, f"{line}\n".encode())


def offered(log: Log) -> rpc.Service:
    service = rpc.Service("job")

    @service.rpc()
    def one(ctx: rpc.Context, row: Any) -> Any:
        return row * 2

    @service.rpc()
    @batched
    def many(ctx: rpc.Context, row: Any) -> Any:
        if row == -1:
            raise rpc.RiverError("BAD", "a negative number")
        return row * 2

    @service.rpc()
    @batched
    def twice(ctx: rpc.Context, row: int) -> int:
        return row * 2

    @service.rpc()
    @batched
    def city(ctx: rpc.Context, row: Any) -> Any:
        return {"city": f"city {row['a']}", "size": row["b"]}

    @service.rpc()
    @arrow_batches
    def summed(ctx: rpc.Context, batch: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        return pa.RecordBatch.from_pydict({"total": [pc.sum(batch.column("a")).as_py() or 0]})

    def when_open(ctx: rpc.Context, row: Any) -> Any:
        if row >= 100 and not os.path.exists(f"{log.path}.go"):
            log.note("held")
            while not os.path.exists(f"{log.path}.go") and not ctx.ended.wait(0.01):
                pass
        return row * 2

    service.rpc(name="gated")(when_open)
    service.rpc(name="gated_many")(batched(when_open))

    @service.rpc()
    def held(ctx: rpc.Context, row: Any) -> Any:
        log.note("held")
        ctx.defer(lambda: log.note("over"))
        ctx.ended.wait(60)
        return row

    @service.rpc()
    def drip(ctx: rpc.Context, row: Any) -> Any:
        """Answer in half a second, with as much as makes Spark's worker write it out.

        Where Spark takes no more, the worker may be writing for a while before it learns that.
        """
        log.note("called")
        if ctx.ended.wait(0.5):
            log.note("cancelled")
        return f"{row:08}" * 1000

    @service.upload()
    def take(ctx: rpc.Context, init: Any, requests: Iterable[Any]) -> int:
        rows = list(requests)
        for row in rows:
            log.note(f"row {row['a'] if isinstance(row, dict) else row}")
        if -1 in rows:
            raise LookupError("a negative number")
        return len(rows)

    return service


def main(port: str, path: str) -> None:
    log = Log(path)
    options = rpc.Options(session_disconnect_grace=1.0)  # of workers that were killed
    with rpc.serve([offered(log)], port=int(port), options=options) as server:
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
