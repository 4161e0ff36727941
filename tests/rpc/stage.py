"""Offer one procedure of each kind that do the same, for what is true of all four."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from wsmux import rpc

from .offers import WAIT

__all__ = [
    "HANDLED",
    "KINDS",
    "Caller",
    "Gathered",
    "Part",
    "answer",
    "begun",
    "joined",
    "staged",
]

KINDS = tuple(rpc.Kind)
HANDLED = (rpc.Kind.UPLOAD, rpc.Kind.SUBSCRIPTION, rpc.Kind.STREAM)  # their calls have handles

Caller = rpc.Upload[Any, Any] | rpc.Subscription[Any] | rpc.StreamCall[Any, Any]


@dataclass
class Part:
    """Hold what the handler of a call was given."""

    ctx: rpc.Context
    init: Any
    requests: rpc.Readable[Any] | None = None
    responses: rpc.Writable[Any] | None = None

    def lasts(self) -> None:
        """Wait until the call is over, whatever ends it."""
        assert self.ctx.ended.wait(WAIT)


def staged(act: Callable[[Part], Any], **options: Any) -> rpc.Service:
    """Return the service ``test``, whose procedures are named after their kinds."""
    service = rpc.Service("test")
    service.rpc(name="rpc", **options)(lambda ctx, init: act(Part(ctx, init)))
    service.upload(name="upload", **options)(
        lambda ctx, init, requests: act(Part(ctx, init, requests))
    )
    service.subscription(name="subscription", **options)(
        lambda ctx, init, responses: act(Part(ctx, init, None, responses))
    )
    service.stream(name="stream", **options)(
        lambda ctx, init, requests, responses: act(Part(ctx, init, requests, responses))
    )
    return service


def begun(client: rpc.Client, kind: rpc.Kind, init: Any = None) -> Caller:
    """Begin a call of a kind that has a handle."""
    match kind:
        case rpc.Kind.UPLOAD:
            return client.upload("test", "upload", init, WAIT)
        case rpc.Kind.SUBSCRIPTION:
            return client.subscribe("test", "subscription", init, WAIT)
        case rpc.Kind.STREAM:
            return client.stream("test", "stream", init, WAIT)
        case _:
            raise ValueError(f"a call of kind {kind} has no handle")


def answer(client: rpc.Client, kind: rpc.Kind, init: Any = None) -> Any:
    """Call a procedure of any kind to its end; return its response, or all of them."""
    if kind is rpc.Kind.RPC:
        return client.rpc("test", "rpc", init, WAIT)
    call = begun(client, kind, init)
    if isinstance(call, rpc.Upload):
        return call.finish()
    if isinstance(call, rpc.StreamCall):
        call.close_write()
    return list(call)


@contextmanager
def joined(*services: rpc.Service, **serving: Any) -> Iterator[rpc.Client]:
    """Yield a client of a server over a WebSocket."""
    with rpc.serve(services, **serving) as server, rpc.connect(server.url) as client:
        yield client


class Gathered:
    """Gather what threads say, and wait until enough was said."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self._changed = threading.Condition()

    def __call__(self, what: Any) -> None:
        with self._changed:
            self.said.append(what)
            self._changed.notify_all()

    def first(self, count: int) -> list[Any]:
        """Return the first things that are said."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.said) >= count, WAIT), self.said
            return self.said[:count]
