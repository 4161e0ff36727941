"""A site that runs in four workers: a feed, notes to users by name, and a health check."""

from __future__ import annotations

import os
import time

import flask
from itsdangerous import BadSignature, URLSafeTimedSerializer
from werkzeug.middleware.proxy_fix import ProxyFix

import wsmux
from wsmux.cluster import Cluster, NotConnected, Unreachable
from wsmux.flask import Mux

env = os.environ
app = flask.Flask(__name__)
app.wsgi_app = ProxyFix(app.wsgi_app, x_proto=1)  # TLS ends at nginx; origins are https
tokens = URLSafeTimedSerializer(env["SECRET_KEY"])
# Alone on its host, a site needs no address of its own: workers reach each other by Unix sockets.
cluster = Cluster(env["REDIS"], listen=env.get("CLUSTER_LISTEN"), key=env.get("CLUSTER_KEY"))


def user_of(request: wsmux.Request) -> str | None:
    """Return who has the token; of others, nobody connects."""
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    try:
        return str(tokens.loads(token, max_age=3600))
    except BadSignature:
        return None


mux = Mux(
    app,
    authorize=user_of,
    user_limits=wsmux.UserLimits(connections=5, redis=env["REDIS"]),  # over all workers
    resume=wsmux.Resume(workers=env["SESSIONS"]),  # whichever worker a client comes back to
    config=wsmux.Config(trusted_proxies=env["PROXIES"].split(",")),  # count clients, not nginx
)
mux.around(lambda connection: cluster.member(connection, f"user:{connection.user}"))
mux.drain_on_sigterm(20)  # below 0.8 of gunicorn's graceful_timeout and timeout


@mux.stream_route("/feed")
def feed(stream: wsmux.Stream) -> None:
    """Send a line a second; end when the worker stops, so that a reload waits for nobody."""
    number = 0
    while not mux.stopping:
        stream.write(f"{number} {os.getpid()}\n".encode())
        number += 1
        time.sleep(1)


@app.post("/notify/<user>")  # for programs of the site: nginx does not pass it on
def notify(user: str) -> tuple[str, int]:
    try:
        with cluster.open_stream(f"user:{user}") as stream:
            stream.write(flask.request.get_data())
    except NotConnected as error:
        return str(error), 404
    except Unreachable as error:  # such as while Redis is away
        return str(error), 503
    return "", 204


@app.get("/health")
def health() -> str:
    """Say that this worker answers, and nothing of Redis: without it, connections go on."""
    return "well"
