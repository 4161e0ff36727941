"""Publish a Flask application from a client: nobody can connect to it, everybody can reach it."""

from __future__ import annotations

import threading
import time

import requests
from flask import Flask
from werkzeug.serving import WSGIRequestHandler, make_server

import wsmux
from wsmux.flask import Mux
from wsmux.wsgi import Published, serve


class Quiet(WSGIRequestHandler):
    """Leave the log of requests out of the output."""

    def log(self, type, message, *args):
        """Log nothing."""


# The server, which everybody can reach.
public = Flask("public")
laptop = Published(Mux(public), "/laptop", token="secret")
public.wsgi_app = laptop.wrap(public.wsgi_app)
server = make_server("127.0.0.1", 0, public, threaded=True, request_handler=Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"127.0.0.1:{server.server_port}"

# The laptop, which can connect outwards only.
private = Flask("private")
private.route("/hello/<name>")(lambda name: f"hello {name}, from behind NAT")

print(requests.get(f"http://{address}/laptop/hello/world", timeout=10).status_code)
headers = {"Authorization": "Bearer secret"}
with (
    wsmux.connect(f"ws://{address}/laptop", headers=headers) as connection,
    serve(connection, private),
):
    while not laptop.publishers:
        time.sleep(0.01)
    print(requests.get(f"http://{address}/laptop/hello/world", timeout=10).text)
server.shutdown()

# Output:
# 502
# hello world, from behind NAT
