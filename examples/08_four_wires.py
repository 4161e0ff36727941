"""Serve each client in the wire that it speaks, over a WebSocket or a plain socket."""

from __future__ import annotations

import wsmux


def shout(stream: wsmux.Stream) -> None:
    stream.write(stream.read().upper())


def ask(connection: wsmux.Connection) -> str:
    with connection, connection.open_stream() as stream:
        stream.write(connection.protocol.encode())
        stream.close_write()
        return stream.read().decode()


wires = ("wsmux", "yamux", "bymux", "js-ws")
with wsmux.serve(stream_handler=shout, protocols=wires) as server:
    for wire in wires:
        print(ask(wsmux.connect(server.url, protocol=wire)))
    best_first = ["bymux", "yamux"]  # the server takes the first of them that it serves
    print("chosen:", ask(wsmux.connect(server.url, protocol=best_first)))

# What Go, Rust and JavaScript programs with a Yamux library speak:
with wsmux.serve(stream_handler=shout, protocols=["yamux"], transport="tcp") as server:
    print("over", server.url.partition(":")[0], ask(wsmux.connect(server.url, protocol="yamux")))

# Output:
# WSMUX
# YAMUX
# BYMUX
# JS-WS
# chosen: BYMUX
# over tcp YAMUX
