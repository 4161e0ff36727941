"""Serve procedures for the tests, in this process."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

import wsmux
from wsmux import rpc
from wsmux.spark import Deduplicator, arrow_batches, batched

from ..inside import calls_of
from ..timeouts import WAIT

__all__ = ["ANSWERS", "WAIT", "Seen", "calls_at", "echo", "offered"]

# What ``answer`` says to a name; anything but a string it gives back.
ANSWERS = {
    "int": 7,
    "float": 1.5,
    "text": "plain",
    "list": [1, 2],
    "object": {"city": "Ulm", "size": 3},
    "date": "2020-05-17",
    "decimal": "12.50",
    "bytes": b"raw",
    "true": True,
}


class Seen:
    """Let a test see what the server has handled, and hold it.

    Attributes:
        rows: how often each row was handled.
        entered, gate: set when ``slow`` has begun to wait, and what it waits for.
        begun, ended: the rows that ``slow`` was called with, and whose calls are over.
    """

    def __init__(self) -> None:
        self.rows: Counter[Any] = Counter()
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.lock = threading.Lock()
        self.uploads: list[list[Any]] = []

    def note(self, row: Any) -> None:
        with self.lock:
            self.rows[row] += 1


def calls_at(server: rpc.RpcServer) -> int:
    """Return how many calls a server holds."""
    return calls_of(server.handler)


def echo(stream: wsmux.Stream, header: dict[str, Any]) -> None:
    """Send back what comes, as a stream by name."""
    shutil.copyfileobj(stream, stream)


def offered(seen: Seen) -> rpc.Service:
    """Return the service ``test``."""
    service = rpc.Service("test")
    bad = [rpc.ErrorSchema("BAD")]

    def double(row: Any) -> Any:
        if row == "bad":
            raise rpc.RiverError("BAD", "no number at all")
        if row == "crash":
            raise LookupError("a secret")
        return row * 2

    @service.rpc(errors=bad)
    def one(ctx: rpc.Context, row: Any) -> Any:
        return double(row)

    @service.rpc(errors=bad)
    @batched
    def many(ctx: rpc.Context, row: Any) -> Any:
        seen.note(str(row))
        return double(row)

    @service.rpc()
    @batched(whole=True)
    def whole(ctx: rpc.Context, rows: list[Any]) -> list[Any]:
        failed = rpc.Err(rpc.RiverError("BAD", "odd", [1]))
        return [failed if row % 2 else row for row in rows]

    @service.rpc()
    @batched(deduplicator=Deduplicator())
    def keyed(ctx: rpc.Context, row: Any) -> Any:
        seen.note(str(row))
        return row

    @service.rpc()
    def same(ctx: rpc.Context, init: Any) -> Any:
        return init

    @service.rpc()
    def slow(ctx: rpc.Context, init: Any) -> Any:
        seen.begun.append(init)
        ctx.defer(lambda: seen.ended.append(init))
        if init == 0:
            return init
        seen.entered.set()
        while not seen.gate.wait(0.01) and not ctx.ended.is_set():
            pass
        return init

    @service.rpc()
    def short(ctx: rpc.Context, init: Any) -> Any:
        return {"$values": []}

    @service.upload(errors=bad)
    def take(ctx: rpc.Context, init: Any, requests: Iterable[Any]) -> Any:
        rows = list(requests)
        if "bad" in rows:
            raise rpc.RiverError("BAD", "no number at all")
        seen.uploads.append(rows)
        return {"init": init, "rows": len(rows)}

    @service.rpc()
    @batched
    def answer(ctx: rpc.Context, row: Any) -> Any:
        return ANSWERS.get(row) if isinstance(row, str) else row

    @service.rpc(init={"type": "integer"}, response={"type": "integer"})
    @batched
    def twice(ctx: rpc.Context, row: Any) -> Any:
        return row * 2

    @service.rpc(init={"type": "integer"}, response={"type": "integer"})
    def twice_alone(ctx: rpc.Context, row: Any) -> Any:
        return row * 2

    @service.rpc()
    @arrow_batches
    def doubled(ctx: rpc.Context, batch: Any) -> Any:
        seen.note("batch")
        if batch.num_rows == 13:
            raise LookupError("an unlucky number")
        return [batch, batch]

    @service.rpc()
    def no_arrow(ctx: rpc.Context, init: Any) -> Any:
        return b"nothing of Arrow's"

    known = Deduplicator()

    @service.upload()
    def take_once(ctx: rpc.Context, init: Any, requests: Iterable[Any]) -> int:
        fresh = list(known.fresh(requests))
        seen.uploads.append(fresh)
        return len(fresh)

    return service
