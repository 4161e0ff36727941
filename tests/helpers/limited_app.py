"""Limit users over all workers: ``gunicorn tests.helpers.limited_app:app``.

The environment has the URL of a Redis in ``REDIS``. The leases are so short that a test can wait
for their end.
"""

from __future__ import annotations

import os

from flask import Flask

import wsmux
from wsmux.endpoints import shared_limits
from wsmux.flask import Mux

__all__ = ["app"]

# Connections of a user, and of a worker: so few that several workers are needed.
CONNECTIONS = 6
TAKEN = 4

shared_limits.LEASE, shared_limits.RENEWAL = 3.0, 0.1
shared_limits.ASK_TIME = 60.0  # the machine may be busy

app = Flask(__name__)
mux = Mux(
    app,
    authorize=lambda request: request.query,
    user_limits=wsmux.UserLimits(connections=CONNECTIONS, redis=os.environ["REDIS"]),
    max_connections=TAKEN,
)


@mux.stream_route("/")
def tell(stream: wsmux.Stream) -> None:
    """Send the id of this process."""
    stream.write(b"%d" % os.getpid())


mux.drain_on_sigterm(1.0)
