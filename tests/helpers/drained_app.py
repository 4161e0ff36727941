"""Be an application that drains on SIGTERM: ``gunicorn tests.helpers.drained_app:app``."""

from __future__ import annotations

import os

from flask import Flask

import wsmux
from wsmux.flask import Mux

__all__ = ["app"]

# Seconds that what is running may take to end.
DRAIN = 2.0

app = Flask(__name__)
mux = Mux(app)
mux.drain_on_sigterm(DRAIN)


@mux.stream_route("/")
def echo(stream: wsmux.Stream) -> None:
    """Tell this process, then echo."""
    stream.write(b"%d\n" % os.getpid())
    while data := stream.read(65536):
        stream.write(data)


if __name__ == "__main__":
    import sys

    from werkzeug.serving import make_server

    make_server("127.0.0.1", 0, app, threaded=True, fd=int(sys.argv[1])).serve_forever()
