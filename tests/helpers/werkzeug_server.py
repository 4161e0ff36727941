"""Serve a Flask application by Werkzeug, in threads of this process."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import Flask
from werkzeug.serving import WSGIRequestHandler, make_server

from wsmux.diagnostics.status import Shown
from wsmux.flask import debug_blueprint

__all__ = ["TOKEN", "serving", "shown"]

TOKEN = "a-token-of-some-length"

# Seconds after which Werkzeug looks whether it is to shut down.
POLL = 0.01


class ImpatientHandler(WSGIRequestHandler):
    """Wait no longer for a request: a browser opens connections that it may never use."""

    timeout = 2.0  # seconds


@contextmanager
def serving(app: Flask, ssl_context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve while the block runs; give the port."""
    server = make_server(
        "127.0.0.1",
        0,
        app,
        threaded=True,
        ssl_context=ssl_context,
        request_handler=ImpatientHandler,
    )
    thread = threading.Thread(target=server.serve_forever, args=(POLL,), name="werkzeug")
    thread.start()
    try:
        yield server.port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def shown(
    *connections: Shown,
    stalled_after: float = 1e-9,
    ssl_context: ssl.SSLContext | None = None,
    cluster: Any = None,
) -> Iterator[str]:
    """Serve the page of these connections and of what has sessions; yield its address."""
    app = Flask("app")
    options = {"token": TOKEN, "stalled_after": stalled_after, "cluster": cluster}
    app.register_blueprint(debug_blueprint(connections, **options))
    with serving(app, ssl_context) as port:
        scheme = "http" if ssl_context is None else "https"
        yield f"{scheme}://127.0.0.1:{port}/debug/wsmux/"
