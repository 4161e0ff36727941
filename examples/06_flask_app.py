"""Serve streams from a route of a Flask application, beside its ordinary pages."""

from __future__ import annotations

import hashlib
import threading
from urllib.request import urlopen

from flask import Flask
from werkzeug.serving import make_server

import wsmux
from wsmux.flask import Mux

app = Flask(__name__)
mux = Mux(app)


@app.get("/")
def page() -> str:
    return "an ordinary page"


@mux.stream_route("/digest")
def digest(stream: wsmux.Stream) -> None:
    sha256 = hashlib.sha256()
    while data := stream.read(65536):
        sha256.update(data)
    stream.write(sha256.hexdigest().encode())


server = make_server("127.0.0.1", 0, app, threaded=True)
thread = threading.Thread(target=server.serve_forever)
thread.start()
try:
    address = f"127.0.0.1:{server.server_port}"
    with urlopen(f"http://{address}/") as response:
        print(response.read().decode())
    with wsmux.connect(f"ws://{address}/digest") as connection:
        for word in (b"abc", b"wsmux"):
            with connection.open_stream() as stream:
                stream.write(word)
                stream.close_write()
                print(word.decode(), stream.read().decode()[:16])
finally:
    server.shutdown()
    thread.join()
    server.server_close()

# Output:
# an ordinary page
# abc ba7816bf8f01cfea
# wsmux 2cfc4096f17487f7
