"""Run the demonstration's application under a WSGI server in a separate process.

The socket listens before the process starts and is passed to it, so that a client may connect at
once: it waits in the backlog until the server is up.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from .children import end, undisturbed
from .terminal import CommandError, missing

__all__ = ["SERVERS", "running", "serve_gevent", "serve_werkzeug"]

APP = "wsmux.cli.demo_app:app"

# Seconds for the server's first answer, and for its end when asked.
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
    with ExitStack() as stack:
        with socket.create_server(("127.0.0.1", 0), backlog=512) as listener, undisturbed():
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            process = subprocess.Popen(
                [sys.executable, *_command(name, listener.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                pass_fds=[listener.fileno()],
                process_group=0,  # this process gets Ctrl-C, and then ends the server
            )
            stack.callback(_stop, process)
        _await(process, name, address)
        yield address
        if process.poll() is not None:
            raise CommandError(f"{name} ended by itself with status {process.returncode}")


def _await(process: subprocess.Popen[bytes], name: str, address: str) -> None:
    """Wait until the server answers, so that its start is not measured."""
    client = http.client.HTTPConnection(address, timeout=PATIENCE)
    try:
        client.request("GET", "/")
        client.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        status = process.poll()
        ended = "" if status is None else f"; it ended with status {status}"
        raise CommandError(f"{name} does not answer: {error}{ended}") from error
    finally:
        client.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    end(process, PATIENCE)


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
    """Serve in this process until SIGTERM."""
    import logging

    from werkzeug.serving import make_server

    from .demo_app import app

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    make_server("127.0.0.1", 0, app, threaded=True, fd=fd).serve_forever()


def serve_gevent(fd: int) -> None:
    """Serve in this process until SIGTERM; gevent's patches must have been applied."""
    import gevent
    from gevent.pywsgi import WSGIServer

    from .demo_app import app

    server = WSGIServer(socket.socket(fileno=os.dup(fd)), app, log=None)
    gevent.signal_handler(signal.SIGTERM, server.stop)
    server.serve_forever()
