"""Measure the asyncio client of PyPI ``replit-river`` against our server; it has none of v2.

The loops run in asyncio, and a thread waits for what they return.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from ..peer import Peer
from ..words import SMALL, memory
from .river import SERVICE, River

T = TypeVar("T")

PATIENCE = timedelta(seconds=60)


class ReplitRiver(River):
    """Run by a Python of its own, since the package wants a newer one and older websockets."""

    def python(self, role: str = "client") -> str | None:
        return sys.executable if role == "server" else super().python()

    @contextmanager
    def connect(self, address: str) -> Iterator[Any]:
        logging.getLogger("replit_river").setLevel(logging.CRITICAL)  # errors are raised, too
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            calls = AsyncCalls(address, loop)
            yield calls
            calls.close()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def _same(value: Any) -> Any:
    return value


def _error(payload: Any) -> Any:
    from replit_river.error_schema import RiverError

    return RiverError(code=payload["code"], message=payload["message"])


def _in_loop(work: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """Return what runs a method in the loop, and waits for it."""

    @functools.wraps(work)
    def call(self: AsyncCalls, *arguments: Any) -> T:
        return asyncio.run_coroutine_threadsafe(work(self, *arguments), self.loop).result()

    return call


class AsyncCalls:
    """Do what ``RiverCalls`` does, in asyncio."""

    def __init__(self, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._address = address
        self._held: list[Any] = []  # all clients
        self._client = _in_loop(AsyncCalls._connected)(self)

    async def _connected(self) -> Any:
        from replit_river.transport_options import TransportOptions
        from replit_river.v2.client import Client

        async def address() -> Any:
            return {"uri": self._address, "metadata": {}}

        name = f"bench-{len(self._held)}"
        client: Any = Client(address, name, "SERVER", TransportOptions())
        self._held.append(client)
        await client.ensure_connected()
        return client

    @_in_loop
    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(client.close() for client in self._held))

    async def _rpc(self, procedure: str, init: Any) -> Any:
        call = self._client.send_rpc
        return await call(SERVICE, procedure, init, _same, _same, _error, PATIENCE)

    def _stream(self, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        call = self._client.send_stream
        responses: AsyncIterator[Any] = call(
            SERVICE, "echo", {}, requests, _same, _same, _same, _error
        )
        return responses

    @_in_loop
    async def rpcs(self, at_once: int, seconds: float) -> tuple[int, float]:
        message = bytes(SMALL)
        counts: list[int] = []

        async def exchange() -> None:
            if await self._rpc("same", message) != message:
                raise RuntimeError("the response is not what was sent")

        async def work() -> None:
            count = 0
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                await exchange()
                count += 1
            counts.append(count)

        await asyncio.gather(*(exchange() for _ in range(at_once)))
        start = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(at_once)))
        return sum(counts), time.perf_counter() - start

    @_in_loop
    async def streamed(self, count: int) -> float:
        message = bytes(SMALL)

        async def requests() -> AsyncIterator[bytes]:
            for _ in range(count):
                yield message

        start = time.perf_counter()
        await _all(self._stream(requests()), message, count)
        return time.perf_counter() - start

    @_in_loop
    async def subscribed(self, count: int) -> float:
        start = time.perf_counter()
        call = self._client.send_subscription
        await _all(call(SERVICE, "small", count, _same, _same, _error), bytes(SMALL), count)
        return time.perf_counter() - start

    @_in_loop
    async def echoes(self, size: int, seconds: float) -> tuple[int, float]:
        message = bytes(size)
        wanted: asyncio.Queue[bool] = asyncio.Queue()
        wanted.put_nowait(True)  # the one that is not counted

        async def requests() -> AsyncIterator[bytes]:
            while await wanted.get():
                yield message

        count, start, elapsed = -1, 0.0, 0.0
        async for response in self._stream(requests()):
            if response != message:
                raise RuntimeError("the echo is not what was sent")
            count += 1
            start = start or time.perf_counter()
            elapsed = time.perf_counter() - start
            wanted.put_nowait(elapsed < seconds)
        return count, elapsed

    @_in_loop
    async def idle(self, count: int) -> tuple[float, float]:
        before = await self._rpc("memory", {}), memory()
        for _ in range(count):
            await self._connected()
        after = await self._rpc("memory", {}), memory()
        return (after[0] - before[0]) / count, (after[1] - before[1]) / count


async def _all(responses: AsyncIterator[Any], message: bytes, count: int) -> None:
    """Receive so many responses, all of which must be that message."""
    received = 0
    async for response in responses:
        if response != message:
            raise RuntimeError(f"response {received + 1} is not what was asked for")
        received += 1
    if received != count:
        raise RuntimeError(f"{received} of {count} responses came")


PEERS: list[Peer] = [
    ReplitRiver(
        "replit-river",
        "replit-river's asyncio client, wsmux.rpc's server",
        base="raw-calls",
        kind="rpc",
        needs=("replit_river", "websocket", "simple_websocket"),
        python_variable="WSMUX_RIVER_PYTHON",
    )
]
