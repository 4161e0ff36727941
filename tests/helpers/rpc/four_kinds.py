"""Offer one procedure of each kind that do the same, for what is true of all four."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from wsmux import rpc

from ..inside import call_of
from ..waiting import wait_for
from .procedures import WAIT

__all__ = [
    "HANDLED",
    "KINDS",
    "Caller",
    "Gathered",
    "Held",
    "Part",
    "answer",
    "begun",
    "check_caller",
    "check_handler",
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


class Held:
    """Serve calls that last until they are over or the test lets go; hold the latest one."""

    def __init__(self) -> None:
        self.entered, self.go, self.left = (threading.Event() for _ in range(3))
        self.fails = False
        self._parts: list[Part] = []
        self.service = staged(self._act)

    def _act(self, part: Part) -> Any:
        self._parts.append(part)
        self.entered.set()
        try:
            assert self.go.wait(WAIT)
            if self.fails:
                raise LookupError("a secret")
            return "done"
        finally:
            self.left.set()

    @property
    def part(self) -> Part:
        """What the handler was given, once it has begun."""
        assert self.entered.wait(WAIT)
        return self._parts[-1]


def check_reader(reader: Any, error: str) -> None:
    """Check that a half tells of an error once and then ends."""
    with pytest.raises(rpc.RiverError, match=error):
        reader.read(WAIT)
    with pytest.raises(EOFError):
        reader.read(WAIT)


def check_handler(part: Part, error: str) -> None:
    """Check what a handler is told whose call has ended with an error."""
    part.lasts()
    if part.requests is not None:
        check_reader(part.requests, error)
    if part.responses is not None:
        assert part.responses.closed
        with pytest.raises(rpc.RiverError, match=error):
            part.responses.write("late")


def check_caller(call: Caller, error: str) -> None:
    """Check what a client is told whose call has ended with an error."""
    if isinstance(call, rpc.Upload):
        wait_for(lambda: call_of(call).writer.closed)
        with pytest.raises(rpc.RiverError, match=error):
            call.write("late")
        with pytest.raises(rpc.RiverError, match=error):
            call.finish(WAIT)
        return
    check_reader(call, error)
    if isinstance(call, rpc.StreamCall):
        with pytest.raises(rpc.RiverError, match=error):
            call.write("late")


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
