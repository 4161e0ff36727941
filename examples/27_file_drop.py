"""Drop a file on somebody: its bytes go from one client to another, and are stored nowhere.

A slow receiver holds back the sender, and nobody else. With Redis it runs under several workers,
from this folder, and each client is a command::

    REDIS=redis://localhost gunicorn -w 4 -k gthread --threads 8 27_file_drop:app
    wsmux cat --no-stdin --listen 'ws://localhost:8000/drop?name=bob' > file
    (echo bob; cat picture) | wsmux cat 'ws://localhost:8000/drop?name=alice'
"""

import hashlib
import os
import threading

from flask import Flask, request
from werkzeug.serving import make_server

import wsmux
from wsmux.cluster import Cluster, ClusterError
from wsmux.flask import Mux

app = Flask(__name__)
mux = Mux(app)
cluster = Cluster(os.environ.get("REDIS"))


@mux.route("/drop", detach=True)  # where the server allows it, a person holds none of its threads
def drop(connection: wsmux.Connection) -> None:
    """Let a person be found; each stream of theirs is a line with a name, and then a file."""
    with cluster.member(connection, f"person:{request.args['name']}"):
        for stream in connection:
            try:
                name = stream.readline(100).decode().strip()
                cluster.relay(stream, cluster.open_stream(f"person:{name}"))
            except (ClusterError, ValueError):
                stream.reset()


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever).start()
    url = f"ws://127.0.0.1:{server.server_port}/drop?name="
    with wsmux.connect(f"{url}alice") as alice, wsmux.connect(f"{url}bob") as bob:
        while not cluster.who("person:bob"):
            pass  # his handler begins a moment after he has connected
        with alice.open_stream() as sent:
            sent.write(b"bob\n")
            got = bob.accept_stream()
            file = bytes(5_000_000)
            writing = threading.Thread(target=lambda: (sent.write(file), sent.close_write()))
            writing.start()
            with got:
                got.write(hashlib.sha256(got.read()).digest())
            writing.join()
            print(sent.read() == hashlib.sha256(file).digest())
    server.shutdown()

# Output:
# True
