"""What is called: procedures of River, a raw echo, and what bulk is read from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ..peers.raw import Raw

__all__ = ["serve"]


@contextmanager
def serve(bulk: bool) -> Iterator[dict[str, str]]:
    """Serve, bulk too if that is wanted; yield the addresses by their names."""
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

    with rpc.serve([service]) as server, Raw().serve() as raw, ExitStack() as stack:
        addresses = {"river": server.url, "raw": raw}
        if bulk:
            from .bulk import serve_bulk

            addresses |= stack.enter_context(serve_bulk())
        yield addresses
