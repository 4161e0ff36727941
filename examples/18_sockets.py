"""A stream as a real socket: what needs a descriptor works, here ``select`` and ``subprocess``."""

from __future__ import annotations

import select
import socket
import subprocess
import sys

import wsmux

SHOUT = "import sys; print(sys.stdin.read().upper(), end='')"


def run(stream: wsmux.Stream) -> None:
    # The stream belongs to the socket from here on, and the child has the socket.
    with stream.as_socket() as sock:
        subprocess.run([sys.executable, "-c", SHOUT], stdin=sock, stdout=sock, check=True)


def serve(connection: wsmux.Connection) -> None:
    for stream in connection:
        run(stream)


with wsmux.serve(serve) as server, wsmux.connect(server.url) as connection:
    sock = connection.open_stream().as_socket()
    sock.sendall(b"carried through two sockets and a stream\n")
    sock.shutdown(socket.SHUT_WR)  # the end of the child's stdin
    ready, _, _ = select.select([sock], [], [], 10)
    print(len(ready), "socket is ready")
    print(sock.makefile().read(), end="")
    sock.close()

# Output:
# 1 socket is ready
# CARRIED THROUGH TWO SOCKETS AND A STREAM
