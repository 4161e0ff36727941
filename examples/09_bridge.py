"""Let a WebSocket client reach a Yamux server on a plain socket."""

from __future__ import annotations

import wsmux


def count(stream: wsmux.Stream) -> None:
    total = 0
    while data := stream.read(65536):
        total += len(data)
    stream.write(f"{total} bytes".encode())


with wsmux.serve(stream_handler=count, protocols=["yamux"], transport="tcp") as backend:

    def pass_on(client: wsmux.Connection) -> None:
        with wsmux.connect(backend.url, protocol="yamux") as onward:
            wsmux.bridge(client, onward)  # until one of the two has ended

    with (
        wsmux.serve(pass_on) as front,
        wsmux.connect(front.url) as connection,
        connection.open_stream() as stream,
    ):
        stream.write(bytes(1_000_000))
        stream.close_write()
        print(stream.read().decode())

# Output:
# 1000000 bytes
