"""Lose the connection in the middle of a stream, twice: the session goes on, and nobody notices."""

from __future__ import annotations

from collections.abc import Iterator

import wsmux
from wsmux import rpc

numbers = rpc.Service("numbers")


@numbers.stream()
def square(ctx: rpc.Context, init: None, requests: rpc.Readable[int]) -> Iterator[int]:
    for number in requests:
        yield number * number


carriers: list[wsmux.Stream] = []  # here each connection of the session is a stream of a mux
handler = rpc.handler([numbers])


def serve(stream: wsmux.Stream) -> None:
    carriers.append(stream)
    handler(stream)


with (
    handler,
    wsmux.serve(stream_handler=serve) as server,
    wsmux.connect(server.url) as connection,
    rpc.connect(connection, schema=[numbers]) as client,
    client.numbers.square(timeout=60) as stream,
):
    results = []
    for number in range(1000):
        if number in (300, 600):
            carriers[-1].reset()
        stream.write(number)
        results.append(stream.read())
    print(f"{len(results)} results, the right ones: {results == [n * n for n in range(1000)]}")
    print(f"over {len(carriers)} connections, in {handler.sessions} session")

# Output:
# 1000 results, the right ones: True
# over 3 connections, in 1 session
