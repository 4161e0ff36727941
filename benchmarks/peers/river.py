"""Measure ``wsmux.rpc``, client and server, and give other clients its server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from ..blocking import count_at_once
from ..calls import SMALL, Calls, receive_all, time_pipelined
from ..payload import memory
from ..peer import Peer

if TYPE_CHECKING:
    from wsmux import rpc

__all__ = ["SERVICE", "serve_river"]

SERVICE = "bench"

# Seconds until a call is given up, which then has failed.
PATIENCE = 60.0


@contextmanager
def serve_river() -> Iterator[str]:
    """Serve what the clients call; yield the address."""
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


class River(Peer):
    """Ours at both ends, with msgpack."""

    name = "river"
    about = "wsmux.rpc, client and server"
    base = "raw-calls"
    kind = "rpc"
    needs: ClassVar[tuple[str, ...]] = ("msgpack",)

    @contextmanager
    def serve(self) -> Iterator[str]:
        with serve_river() as address:
            yield address

    @contextmanager
    def connect(self, address: str) -> Iterator[Calls]:
        from wsmux import rpc

        with rpc.connect(address) as client:
            client.wait_connected(PATIENCE)
            calls = RiverCalls(client, lambda: rpc.connect(address))
            yield calls
            calls.close()


class RiverCalls(Calls):
    """Measure with one client, which any number of threads use."""

    def __init__(self, client: rpc.Client, connect: Callable[[], rpc.Client]) -> None:
        self._client = client
        self._connect = connect
        self._held: list[rpc.Client] = []

    def close(self) -> None:
        """End the idle sessions."""
        for client in self._held:
            client.close()

    def rpcs(self, at_once: int, seconds: float) -> tuple[int, float]:
        message, call = bytes(SMALL), self._client.rpc

        def exchange() -> None:
            if call(SERVICE, "same", message, PATIENCE) != message:
                raise RuntimeError("the response is not what was sent")

        return count_at_once([exchange] * at_once, seconds)

    def streamed(self, count: int) -> float:
        message = bytes(SMALL)
        with self._client.stream(SERVICE, "echo", None) as stream:
            return time_pipelined(
                lambda: stream.write(message, PATIENCE),
                lambda: stream.read(PATIENCE) == message,
                count,
            )

    def subscribed(self, count: int) -> float:
        message = bytes(SMALL)
        start = time.perf_counter()
        with self._client.subscribe(SERVICE, "small", count) as subscription:
            receive_all(lambda: subscription.read(PATIENCE) == message, count)
            return time.perf_counter() - start

    def echoes(self, size: int, seconds: float) -> tuple[int, float]:
        message = bytes(size)
        with self._client.stream(SERVICE, "echo", None) as stream:

            def exchange() -> None:
                stream.write(message, PATIENCE)
                if stream.read(PATIENCE) != message:
                    raise RuntimeError("the echo is not what was sent")

            return count_at_once([exchange], seconds)

    def idle(self, count: int) -> tuple[float, float]:
        before = self._memory()
        for _ in range(count):
            self._held.append(self._connect())
            self._held[-1].wait_connected(PATIENCE)
        after = self._memory()
        return (after[0] - before[0]) / count, (after[1] - before[1]) / count

    def _memory(self) -> tuple[int, int]:
        return self._client.rpc(SERVICE, "memory", None, PATIENCE), memory()


PEERS: list[Peer] = [River()]
