"""Ask an application behind a stream with requests and with the standard library."""

from __future__ import annotations

import requests

import wsmux
from wsmux.adapters import MuxAdapter, http_connection
from wsmux.wsgi import StreamServer


def app(environ, start_response):
    """Answer with what was asked; any WSGI application will do."""
    body = environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} ".encode()
    yield f"{len(body)} bytes".encode()


def body():
    """Make a body piece by piece: it is sent as the other end reads it."""
    for _ in range(100):
        yield bytes(10_000)


with (
    wsmux.serve(stream_handler=StreamServer(app)) as server,
    wsmux.connect(server.url) as connection,
    requests.Session() as session,
):
    session.mount("mux://", MuxAdapter(connection))
    print(session.get("mux://any.host/hello", timeout=10).text)
    print(session.post("mux://any.host/upload", data=body(), timeout=10).text)

    client = http_connection(connection, timeout=10)
    client.request("PUT", "/plain", body=b"12345")
    print(client.getresponse().read().decode())
    client.close()

    print(connection.stats().streams_opened, "streams over one WebSocket")

# Output:
# GET /hello 0 bytes
# POST /upload 1000000 bytes
# PUT /plain 5 bytes
# 3 streams over one WebSocket
