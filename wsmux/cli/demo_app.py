"""Serve the demonstration: the same work over one multiplexed WebSocket, and over one per file.

``/mux``: each stream starts with a line of JSON with name and size, then the bytes; the answer is
their SHA-256 on the same stream, and a report in JSON on a stream opened by the server.

``/single``: one WebSocket per file, by simple-websocket without wsmux, with the same first line and
the same answer; the text message ``end`` marks the end of the file.
"""

from __future__ import annotations

import hashlib
import json
import socket

import simple_websocket
from flask import Flask, Response, request

from ..flask import Mux
from ..flask.responses import Ended
from ..handshake.websocket_server import end_at_server
from ..mux.stream import Stream

__all__ = ["app"]

CHUNK = 64 * 1024

app = Flask(__name__)
mux = Mux(app)


@mux.stream_route("/mux")
def digest(stream: Stream) -> None:
    """Answer one file, on its stream and on a new one."""
    with stream.makefile("rb", CHUNK) as file:
        head = json.loads(file.readline())
        sha256, size = hashlib.sha256(), 0
        while chunk := file.read1(CHUNK):
            sha256.update(chunk)
            size += len(chunk)
        stream.write(sha256.digest())
    with stream.connection.open_stream() as back:
        report = {"name": head["name"], "size": size, "sha256": sha256.hexdigest()}
        back.write(json.dumps(report).encode())


@app.route("/single", websocket=True)
def single() -> Response:
    """Answer one file on its own WebSocket."""
    websocket = simple_websocket.Server.accept(request.environ)
    websocket.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        websocket.receive()
        sha256 = hashlib.sha256()
        while isinstance(chunk := websocket.receive(), bytes):
            sha256.update(chunk)
        websocket.send(sha256.digest())
        while True:
            websocket.receive()
    except simple_websocket.ConnectionClosed:
        pass  # the client has closed it
    websocket.thread.join()  # it closes the server's socket, whose number then goes to another
    end_at_server(request.environ)
    return Ended(websocket.mode)
