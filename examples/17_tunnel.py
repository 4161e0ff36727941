"""Reach a port of the server's network through a connection, and run a command there."""

from __future__ import annotations

import functools
import socket
import threading

import wsmux
from wsmux.tunnel import Forwarder, RemoteProcess, TunnelServer, parse_forward

backend = socket.create_server(("127.0.0.1", 0))
port = backend.getsockname()[1]


def answer() -> None:
    sock, _ = backend.accept()
    with sock:
        sock.sendall(b"you said " + sock.recv(100))


threading.Thread(target=answer).start()
tunnels = TunnelServer(connect=[f"127.0.0.1:{port}"], programs=["sort"])

with backend, wsmux.serve(stream_handler=tunnels.serve) as server:
    connect = functools.partial(wsmux.connect, server.url)
    with Forwarder(connect, local=[parse_forward(f"0:127.0.0.1:{port}")]) as forwarder:
        entrance = forwarder.local[0].listen
        with socket.create_connection((entrance.host, entrance.port)) as client:
            client.sendall(b"hello")
            print(client.recv(100).decode())

    with (
        wsmux.connect(server.url) as connection,
        RemoteProcess(connection, ["sort", "-r"]) as process,
    ):
        process.stdio.write(b"one\ntwo\nthree\n")
        process.stdio.close_write()
        print(process.stdio.read().decode(), end="")
        print("exit code", process.wait())

# Output:
# you said hello
# two
# three
# one
# exit code 0
