"""Run a hundred conversations at once over one WebSocket."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import wsmux


def square(stream: wsmux.Stream) -> None:
    number = int(stream.read())
    stream.write(str(number * number).encode())


def ask(connection: wsmux.Connection, number: int) -> int:
    with connection.open_stream() as stream:
        stream.write(str(number).encode())
        stream.close_write()
        return int(stream.read())


with (
    wsmux.serve(stream_handler=square) as server,
    wsmux.connect(server.url) as connection,
    ThreadPoolExecutor(max_workers=16) as pool,
):
    answers = pool.map(lambda number: ask(connection, number), range(100))
    print(sum(answers))
    print("connections at the server:", len(server.connections))

# Output:
# 328350
# connections at the server: 1
