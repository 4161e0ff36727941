"""An application that drains on SIGTERM: ``gunicorn tests.helpers.drained_app:app``.

With ``WSMUX_TEST_HELD`` in the environment, connections hold the threads of their requests.
What becomes of River's calls and state is told on the standard error.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from flask import Flask

import wsmux
from wsmux import rpc
from wsmux.flask import Mux

from .drained_server import HELD

__all__ = ["app"]

# Seconds that what is running may take to end.
DRAIN = 2.0

# Seconds that giving up the state takes: more than a server needs to end without connections.
DISPOSING = 0.5

detach = HELD not in os.environ
app = Flask(__name__)
mux = Mux(app)
mux.drain_on_sigterm(DRAIN)
resumed = Mux(app, resume=True)
resumed_drained = Mux(app, resume=True)
resumed_drained.drain_on_sigterm(DRAIN)


@resumed.stream_route("/resumed", endpoint="resumed", detach=detach)
@resumed_drained.stream_route("/resumed-drained", endpoint="resumed-drained", detach=detach)
@mux.stream_route("/", detach=detach)
def echo(stream: wsmux.Stream) -> None:
    """Send the id of this process, then echo."""
    stream.write(b"%d\n" % os.getpid())
    while data := stream.read(65536):
        stream.write(data)


def _dispose(state: str) -> None:
    time.sleep(DISPOSING)
    sys.stderr.write(f"disposed of {state}\n")


service = rpc.Service("drained", state="the state", dispose=_dispose)


@service.rpc()
def pid(ctx: rpc.Context, init: Any) -> int:
    """Send the id of this process."""
    return os.getpid()


@service.subscription()
def hang(ctx: rpc.Context, init: Any, responses: rpc.Writable[int]) -> None:
    """Send the id of this process, then wait for the end of the call."""
    responses.write(os.getpid())
    ctx.ended.wait()
    sys.stderr.write("the call has ended\n")


rpc.flask(app, "/river", [service], detach=detach).drain_on_sigterm(DRAIN)


@app.get("/health")
def health() -> str:
    """Answer a health check."""
    return "well"


if __name__ == "__main__":
    from werkzeug.serving import make_server

    make_server("127.0.0.1", 0, app, threaded=True, fd=int(sys.argv[1])).serve_forever()
