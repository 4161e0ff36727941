"""Be what is called: procedures of River, and a raw echo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..peers.raw import Raw

__all__ = ["serve"]


@contextmanager
def serve() -> Iterator[dict[str, str]]:
    """Serve; yield the addresses by their names."""
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
        yield {"river": server.url, "raw": raw}
