"""An application whose connections hold no thread of gunicorn.

``gunicorn "tests.helpers.detached_app:app(detach=True)"``
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flask import Flask, current_app, g, request, session

import wsmux
from wsmux import rpc
from wsmux.flask import Mux

__all__ = ["app"]

# Descriptors that the process may have unless a test asks for fewer, if the system allows so many.
DESCRIPTORS = 8192


def app(
    *,
    detach: bool = True,
    descriptors: int = DESCRIPTORS,
    drain: float | None = None,
    workers: str | None = None,
    grace: float = 60.0,
    **options: Any,
) -> Flask:
    """Return the application: streams at ``/``, connections at ``/room``, River at ``/river``.

    Args:
        descriptors: how many the process may have.
        drain: seconds to drain for on SIGTERM, ``None`` for as many as there are unasked.
        workers: a directory over which sessions reach other workers; their processes are noted in
            its file ``seen``, a line for each WebSocket. ``None`` resumes no connections.
        grace: seconds that they are kept.
        options: of the ``Mux``.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = descriptors if hard == resource.RLIM_INFINITY else min(descriptors, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if workers is not None:
        options["resume"] = wsmux.Resume(workers=workers, grace=grace)
    made = Flask(__name__)
    made.secret_key = "a secret of this test"
    mux = Mux(made, **options)

    @mux.stream_route("/", detach=detach)
    def echo(stream: wsmux.Stream) -> None:
        while data := stream.read(65536):
            stream.write(data)

    @mux.around
    @contextmanager
    def around(connection: wsmux.Connection) -> Iterator[None]:
        """Say who has come and gone, if the request says so."""
        who = request.args.get("who")
        told = [] if who is None else [f"{who} has come\n", f"{who} has gone\n"]
        sys.stderr.write("".join(told[:1]))
        yield
        sys.stderr.write("".join(told[1:]))

    @made.before_request
    def remember() -> None:
        g.known = session["known"] = "before the request"
        if workers is not None and "Upgrade" in request.headers:
            with Path(workers, "seen").open("a") as file:
                file.write(f"{os.getpid()}\n")

    @mux.route("/room/<name>", detach=detach)
    def room(connection: wsmux.Connection, name: str) -> None:
        """Send the context in which this runs, then wait for the end, and record it."""
        with connection.open_stream() as stream:
            told = [request.path, name, session["known"], current_app.name, "known" in g]
            stream.write(repr(told).encode())
        connection.wait_closed()
        sys.stderr.write(f"left the room {name}\n")

    @mux.stream_route("/who", detach=detach)
    def who(stream: wsmux.Stream) -> None:
        """Send the id of the process that has the connection."""
        stream.write(str(os.getpid()).encode())

    kept = rpc.Service(
        "kept", state="the state", dispose=lambda state: sys.stderr.write(f"disposed of {state}\n")
    )

    @kept.subscription()
    def hang(ctx: rpc.Context, init: Any, responses: rpc.Writable[str]) -> None:
        responses.write("begun")
        ctx.ended.wait()

    river = rpc.flask(made, "/river", [kept], detach=detach)
    if drain is not None:
        mux.drain_on_sigterm(drain)
        river.drain_on_sigterm(drain)

    @made.get("/health")
    def health() -> str:
        return "well"

    @made.get("/counts")
    def counts() -> dict[str, int]:
        """Return what this process holds; this request is one of gunicorn's connections."""
        worker: Any = getattr(signal.getsignal(signal.SIGUSR1), "__self__", None)
        return {
            "pid": os.getpid(),
            "counted": getattr(worker, "nr_conns", 0),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "connections": len(mux.connections),
        }

    return made
