"""Run the demonstration's application under a WSGI server in a process of its own.

The socket listens before the process starts and is handed down, so that a client may connect at
once: it waits in the backlog until the server is up.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .terminal import CommandError, missing

__all__ = ["SERVERS", "running", "serve_gevent", "serve_werkzeug"]

APP = "wsmux.cli.demo_app:app"

# Seconds for the server to end when asked.
PATIENCE = 10.0

SERVERS = {
    "gunicorn": ("gunicorn", "gunicorn, a gthread worker"),
    "gunicorn-gevent": ("gunicorn and gevent", "gunicorn, a gevent worker"),
    "gevent": ("gevent", "gevent's pywsgi"),
    "werkzeug": ("werkzeug", "Werkzeug, threaded"),
}


@contextmanager
def running(name: str) -> Iterator[str]:
    """Run a server; yield the ``host:port`` it listens on.

    Raises:
        CommandError: it is not installed, or ended by itself.
    """
    for module in ("flask", *SERVERS[name][0].split(" and ")):
        if importlib.util.find_spec(module) is None:
            raise missing(module, "demo")
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        fd = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, *_command(name, fd)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            pass_fds=[fd],
            process_group=0,  # Ctrl-C is for this process, which then ends the server
        )
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield address
        if process.poll() is not None:
            raise CommandError(f"{name} ended by itself with status {process.returncode}")
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _command(name: str, fd: int) -> list[str]:
    if name == "werkzeug":
        return ["-c", f"import {__name__} as s; s.serve_werkzeug({fd})"]
    if name == "gevent":
        patch = "import gevent.monkey; gevent.monkey.patch_all()"
        return ["-c", f"{patch}; import {__name__} as s; s.serve_gevent({fd})"]
    worker = "gevent" if name == "gunicorn-gevent" else "gthread"
    settings = ["--config", "python:wsmux.cli.demo_gunicorn", "--worker-class", worker]
    return ["-m", "gunicorn", *settings, "--bind", f"fd://{fd}", APP]


def serve_werkzeug(fd: int) -> None:
    """Serve in this process, for good."""
    import logging

    from werkzeug.serving import make_server

    from .demo_app import app

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    make_server("127.0.0.1", 0, app, threaded=True, fd=fd).serve_forever()


def serve_gevent(fd: int) -> None:
    """Serve in this process, for good; gevent's patches must have been applied."""
    from gevent.pywsgi import WSGIServer

    from .demo_app import app

    WSGIServer(socket.socket(fileno=os.dup(fd)), app, log=None).serve_forever()
