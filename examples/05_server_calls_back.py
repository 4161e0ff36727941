"""Let the server open streams to a client that cannot be reached from outside."""

from __future__ import annotations

import wsmux


def ask_back(stream: wsmux.Stream) -> None:
    with stream.connection.open_stream() as question:
        question.write(b"what is your name?")
        question.close_write()
        name = question.read()
    stream.write(b"hello " + name)


def answer(stream: wsmux.Stream) -> None:
    print("the server asks:", stream.read().decode())
    stream.write(b"client")


with (
    wsmux.serve(stream_handler=ask_back) as server,
    wsmux.connect(server.url, stream_handler=answer) as connection,
    connection.open_stream() as stream,
):
    print("the server says:", stream.read().decode())

# Output:
# the server asks: what is your name?
# the server says: hello client
