"""Measure the blocking half of ``grpcio``: a line is a call that streams both ways, in cleartext.

The client's messages come from a queue, since the library wants to ask for them; the server's are
yielded, as it wants them. Messages are bytes, without protobuf.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from ..blocking import Blocking
from ..peer import CONNECTIONS, IDLE_CONNECTIONS, OURS, Peer
from ..words import Line, answers

# Each line has one while it lives: a thousand, and those that are still being closed.
WORKERS = 1280

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0))


class Grpc(Peer):
    """One channel; its own HTTP/2 sets TCP_NODELAY."""

    @contextmanager
    def serve(self) -> Iterator[str]:
        import grpc

        handler = grpc.stream_stream_rpc_method_handler(_serve)
        with ThreadPoolExecutor(WORKERS) as pool:
            server = grpc.server(pool, options=OPTIONS)
            methods = grpc.method_handlers_generic_handler("bench.Bench", {"Line": handler})
            server.add_generic_rpc_handlers((methods,))
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            yield f"127.0.0.1:{port}"
            server.stop(None).wait()

    @contextmanager
    def connect(self, address: str) -> Iterator[Blocking]:
        import grpc

        with grpc.insecure_channel(address, options=OPTIONS) as channel:
            call = channel.stream_stream("/bench.Bench/Line")
            yield Blocking(lambda: _line(call))


def _serve(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
    yield from answers(lambda size: next(requests, b""))


def _line(call: Any) -> Line:
    requests: SimpleQueue[bytes | None] = SimpleQueue()
    responses = call(iter(requests.get, None))

    def close() -> None:
        requests.put(None)
        for _ in responses:  # until the server has ended, too
            pass

    return Line(requests.put, lambda size: next(responses, b""), close)


PEERS: list[Peer] = [
    Grpc(
        "grpcio",
        "grpcio's blocking API, one streaming call a line, 64 KiB messages",
        base="wsmux",
        needs=("grpc",),
        leaves_out=(*CONNECTIONS, *IDLE_CONNECTIONS, *OURS),
        on_demand=True,
    )
]
