"""A chat whose people are found by name, whichever worker they are connected to.

With Redis it runs under several workers, from this folder, and each client is a command::

    REDIS=redis://localhost gunicorn -w 4 -k gthread --threads 8 26_chat:app
    wsmux cat --no-stdin --listen 'ws://localhost:8000/chat?name=bob'
    echo 'bob: hello' | wsmux cat 'ws://localhost:8000/chat?name=alice'
"""

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


@mux.route("/chat", detach=True)  # where the server allows it, a person holds none of its threads
def chat(connection: wsmux.Connection) -> None:
    """Let a person be found; each stream of theirs is a line ``whom: text``."""
    me = request.args["name"]
    with cluster.member(connection, f"person:{me}"):
        for stream in connection:
            with stream:
                try:
                    whom, _, text = stream.read().decode().partition(": ")
                    cluster.open_stream(f"person:{whom}", header=f"{me}: {text}".encode()).close()
                    stream.write(b"sent")
                except (ClusterError, ValueError) as error:  # the latter for what is no name
                    stream.write(str(error).encode())


def say(connection: wsmux.Connection, line: str) -> str:
    with connection.open_stream(data=line.encode()) as stream:
        stream.close_write()
        return stream.read().decode()


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever).start()
    url = f"ws://127.0.0.1:{server.server_port}/chat?name="
    with wsmux.connect(f"{url}alice") as alice, wsmux.connect(f"{url}bob") as bob:
        print(say(bob, "carol: are you there?"))
        print(say(alice, "bob: hello"))
        print(bob.accept_stream().read().decode())
    server.shutdown()

# Output:
# nobody has joined as 'person:carol'
# sent
# alice: hello
