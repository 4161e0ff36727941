"""Open a stream, send, half-close, read the answer to its end."""

from __future__ import annotations

import wsmux


def echo(stream: wsmux.Stream) -> None:
    while data := stream.read(65536):
        stream.write(data)


with (
    wsmux.serve(stream_handler=echo) as server,
    wsmux.connect(server.url) as connection,
    connection.open_stream() as stream,
):
    stream.write(b"hello, ")
    stream.write(b"streams")
    stream.close_write()
    print(stream.read().decode())

# Output:
# hello, streams
