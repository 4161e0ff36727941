"""Measure ``wsmux.rpc``, client and server, and give other clients its server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..blocking import LineCalls, count_at_once, spent
from ..peer import Peer
from ..words import SMALL, Line, memory, take_all

SERVICE = "bench"

# Seconds until a call is given up, which then has failed.
PATIENCE = 60.0


class River(Peer):
    """Ours at both ends, with msgpack."""

    @contextmanager
    def serve(self) -> Iterator[str]:
        from wsmux import rpc

        service = rpc.Service(SERVICE)

        @service.rpc()
        def same(ctx: rpc.Context, init: Any) -> Any:
            return init

        @service.stream()
        def echo(
            ctx: rpc.Context, init: Any, requests: rpc.Readable[Any], responses: rpc.Writable[Any]
        ) -> None:
            for request in requests:
                responses.write(request)

        @service.subscription()
        def small(ctx: rpc.Context, init: int, responses: rpc.Writable[bytes]) -> None:
            message = bytes(SMALL)
            for _ in range(init):
                responses.write(message)

        @service.rpc(name="memory")
        def used(ctx: rpc.Context, init: Any) -> int:
            return memory()

        with rpc.serve([service]) as server:
            yield server.url

    @contextmanager
    def connect(self, address: str) -> Iterator[Any]:
        calls = RiverCalls(address)
        yield calls
        calls.close()


class RiverCalls(LineCalls):
    """Measure with one client, which any number of threads use."""

    def __init__(self, address: str) -> None:
        super().__init__(self._stream)
        self._address = address
        self._held: list[Any] = []  # all clients
        self._client = self._connected()

    def _connected(self) -> Any:
        from wsmux import rpc

        self._held.append(rpc.connect(self._address))
        self._held[-1].wait_connected(PATIENCE)
        return self._held[-1]

    def _stream(self) -> Line:
        stream = self._client.stream(SERVICE, "echo", None)
        return Line(
            lambda data: stream.write(data, PATIENCE),
            lambda size: stream.read(PATIENCE),
            stream.cancel,
        )

    def close(self) -> None:
        """End all sessions."""
        for client in self._held:
            client.close()

    def rpcs(self, at_once: int, seconds: float) -> tuple[int, float]:
        message, call = bytes(SMALL), self._client.rpc

        def exchange() -> None:
            if call(SERVICE, "same", message, PATIENCE) != message:
                raise RuntimeError("the response is not what was sent")

        return count_at_once([exchange] * at_once, seconds)

    def subscribed(self, count: int) -> float:
        with self._client.subscribe(SERVICE, "small", count) as ones:
            line = Line(len, lambda _: ones.read(PATIENCE), ones.close)
            return spent(line, take_all(bytes(SMALL), count))

    def idle(self, count: int) -> tuple[float, float]:
        """Open sessions that stay; return the bytes by which both processes grew for each."""
        before = self._memory()
        for _ in range(count):
            self._connected()
        after = self._memory()
        return (after[0] - before[0]) / count, (after[1] - before[1]) / count

    def _memory(self) -> tuple[int, int]:
        return self._client.rpc(SERVICE, "memory", None, PATIENCE), memory()


PEERS: list[Peer] = [
    River("river", "wsmux.rpc, client and server", base="raw-calls", kind="rpc", needs=("msgpack",))
]
