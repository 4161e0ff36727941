"""Offer procedures of every kind, for the tests that call them over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from wsmux import rpc

from ..timeouts import WAIT

__all__ = ["WAIT", "Gate", "carrier_name", "offered"]

NUMBER = {"type": "number"}
WITH_NUMBER = {"type": "object", "properties": {"n": NUMBER}, "required": ["n"]}


class Gate:
    """Let a test see what handlers do, and hold them."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.over = threading.Event()
        self.seen: list[Any] = []
        # Handlers that last. One that has not begun is not run once its call has ended.
        self.begun: list[str] = []


def offered(gate: Gate) -> rpc.Service:
    """Return the service ``test``."""
    service = rpc.Service("test", state=lambda context: {})

    @service.rpc(init=WITH_NUMBER, response=WITH_NUMBER)
    def add(ctx: rpc.Context, init: dict[str, int]) -> dict[str, int]:
        ctx.state["sum"] = ctx.state.get("sum", 0) + init["n"]
        return {"n": ctx.state["sum"]}

    @service.rpc()
    def same(ctx: rpc.Context, init: Any) -> Any:
        return init

    @service.rpc(name="__class__")
    def odd(ctx: rpc.Context, init: Any) -> str:
        return "found by its name"

    @service.rpc(errors=[rpc.ErrorSchema("BAD", extras={"type": "array"})])
    def fails(ctx: rpc.Context, init: str) -> None:
        if init == "declared":
            raise rpc.RiverError("BAD", "as declared", [1])
        if init == "undeclared":
            raise rpc.RiverError("WORSE", "not declared")
        raise LookupError("a secret")

    @service.rpc(response=NUMBER)
    def wrong(ctx: rpc.Context, init: Any) -> str:
        return "no number"

    @service.rpc()
    def hangs(ctx: rpc.Context, init: Any) -> None:
        gate.begun.append("hangs")
        ctx.defer(gate.opened.set)
        ctx.defer(gate.over.set)
        gate.entered.set()
        gate.opened.wait(WAIT)

    @service.upload(request=NUMBER)
    def total(ctx: rpc.Context, init: Any, requests: rpc.Readable[int]) -> int:
        return sum(requests)

    @service.subscription()
    def count(ctx: rpc.Context, init: int) -> Iterator[int]:
        yield from range(init)

    @service.subscription()
    def watch(ctx: rpc.Context, init: Any, responses: rpc.Writable[Any]) -> None:
        gate.begun.append("watch")
        ctx.defer(gate.over.set)
        responses.write("first")
        gate.entered.set()
        ctx.ended.wait(WAIT)
        try:
            responses.write("late")
        except rpc.RiverError as error:
            gate.seen.append(error.code)

    @service.stream()
    def echo(
        ctx: rpc.Context, init: Any, requests: rpc.Readable[Any], responses: rpc.Writable[Any]
    ) -> None:
        gate.begun.append("echo")
        try:
            for request in requests:
                responses.write(request)
        except rpc.RiverError as error:
            gate.seen.append(error.code)

    @service.stream(response=NUMBER, errors=[rpc.ErrorSchema("BAD")])
    def halves(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> Iterator[Any]:
        for number in requests:
            if number % 2:
                yield rpc.Err(rpc.RiverError("BAD" if number > 0 else "WORSE", "odd"))
            else:
                yield number // 2

    @service.stream()
    def cancels(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> Iterator[Any]:
        yield requests.read(WAIT)
        ctx.cancel("enough")
        ctx.cancel("twice")

    return service


def carrier_name(carrier: tuple[str, bool]) -> str:
    return f"{carrier[0]}-{'websocket' if carrier[1] else 'tcp'}"
