"""The server that everybody can reach, or the laptop: ``python -m tests.helpers.behind_nat``.

``front ADDRESS`` prints its port; ``laptop URL`` prints a line once it publishes.
"""

from __future__ import annotations

import sys
import threading

from flask import Flask
from werkzeug.serving import make_server

import wsmux
from wsmux.flask import Mux
from wsmux.wsgi import Published, serve

TOKEN = "secret"


def tell(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def front(address: str) -> None:
    app = Flask("front")
    laptop = Published(Mux(app), "/laptop", token=TOKEN)
    app.wsgi_app = laptop.wrap(app.wsgi_app)  # type: ignore[method-assign]
    server = make_server(address, 0, app, threaded=True)
    tell(server.server_port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()  # until the test has ended


def laptop(url: str) -> None:
    app = Flask("laptop")
    app.route("/hello/<name>")(lambda name: f"hello {name}")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with wsmux.connect(url, headers=headers) as connection, serve(connection, app):
        connection.ping(10)
        tell("publishing")
        sys.stdin.read()


if __name__ == "__main__":
    {"front": front, "laptop": laptop}[sys.argv[1]](sys.argv[2])
