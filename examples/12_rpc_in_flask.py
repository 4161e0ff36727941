"""Serve River from a route of a Flask application, to clients with a token only."""

from __future__ import annotations

import json
import threading
from typing import Any
from urllib.request import urlopen

from flask import Flask
from werkzeug.serving import make_server

from wsmux import rpc

USERS = {"t0ken": "Ada"}
greetings = rpc.Service("greetings")


@greetings.rpc(init={"type": "string"}, response={"type": "string"})
def greet(ctx: rpc.Context, init: str) -> str:
    return f"{init}, {ctx.metadata}"


def validate(metadata: Any, previous: Any, client_id: str) -> str:
    if metadata not in USERS:
        raise rpc.Rejection("unknown token")
    return USERS[metadata]


app = Flask(__name__)
handler = rpc.flask(app, "/river", [greetings], validate=validate, serve_schema=True)
server = make_server("127.0.0.1", 0, app, threaded=True)
thread = threading.Thread(target=server.serve_forever)
thread.start()
address = f"127.0.0.1:{server.server_port}/river"
try:
    with urlopen(f"http://{address}") as response:
        schema = json.load(response)
    print("offered:", ", ".join(schema["services"]["greetings"]["procedures"]))
    with rpc.connect(f"ws://{address}", metadata="t0ken", schema=schema) as client:
        print(client.greetings.greet("Hello", timeout=5))
    with rpc.connect(f"ws://{address}", metadata="guess", schema=schema) as client:
        try:
            client.greetings.greet("Hello", timeout=5)
        except rpc.RiverError as error:
            print(error.code, "-", error.message)
finally:
    handler.shutdown()
    server.shutdown()
    thread.join()
    server.server_close()

# Output:
# offered: greet
# Hello, Ada
# UNEXPECTED_DISCONNECT - handshake failed: unknown token
