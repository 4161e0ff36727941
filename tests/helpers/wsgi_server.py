"""Serve ``scripted.handle``, River and an echo: ``python -m tests.helpers.wsgi_server``.

The listening socket is inherited, so a client may connect before anybody accepts.
"""

from __future__ import annotations

import os
import sys

if sys.argv[1:2] == ["gevent-pywsgi"]:
    from gevent import monkey

    monkey.patch_all()

import ctypes
import logging
import signal
import socket

from flask import Flask

import wsmux
from wsmux import rpc
from wsmux.flask import Mux
from wsmux.protocols import native

from . import scripted
from .message_echo import add_echo
from .rpc.procedures import Gate, offered
from .wires import NAMES

__all__ = ["app"]

# From linux/prctl.h; it outlives an exec.
PR_SET_PDEATHSIG = 1

app = Flask(__name__)
mux = Mux(app, protocols=NAMES)
mux.stream_route("/")(scripted.handle)
Mux(app, resume=True).route("/resumed")(wsmux.Connection.wait_closed)
Mux(app, authorize=lambda request: False).stream_route("/nobody", endpoint="nobody")(
    scripted.handle
)
rpc.flask(app, "/river", [offered(Gate())], serve_schema=True)
rpc.flask(app, "/silent", [offered(Gate())], codec="json")
add_echo(app)
asked: list[str] = []


@app.get("/asked/<name>")
def ask(name: str) -> list[str]:
    """Return what was asked for until now, this included."""
    asked.append(name)
    return asked


native.JS_WS_CLOSE_DELAY = 0.02  # as in ``js_ws``
logging.getLogger("wsmux").setLevel(logging.CRITICAL)  # the scripts fail on purpose
logging.getLogger("werkzeug").setLevel(logging.ERROR)


def _werkzeug(fd: int) -> None:
    from werkzeug.serving import make_server

    make_server("127.0.0.1", 0, app, threaded=True, fd=fd).serve_forever()


def _gunicorn(worker: str, fd: int) -> None:
    options = ["--bind", f"fd://{fd}", "--worker-class", worker, "--threads", "16"]
    quiet = ["--log-level", "warning", "--graceful-timeout", "1", "--no-control-socket"]
    app_name = "tests.helpers.wsgi_server:app"
    os.execv(sys.executable, [sys.executable, "-m", "gunicorn", *options, *quiet, app_name])


def _pywsgi(fd: int) -> None:
    from gevent.pywsgi import WSGIServer

    WSGIServer(socket.socket(fileno=fd), app, log=None).serve_forever()


def _end_with_the_parent(parent: int) -> None:
    """Have the kernel end this process with the test run, also with one that was killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the test run has ended")


def main() -> None:
    name, fd, parent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    _end_with_the_parent(parent)
    if name == "werkzeug":
        _werkzeug(fd)
    elif name == "gevent-pywsgi":
        _pywsgi(fd)
    else:
        _gunicorn(name.removeprefix("gunicorn-"), fd)


if __name__ == "__main__":
    main()
