"""Serve and call commands of the bus from a Flask application; offered as ``wsmux.flask.Bus``.

Each process of the application has a client of its own, made when it is first needed: an
application is often imported in a process that serves nothing, such as the parent of gunicorn's
workers or of Werkzeug's reloader, and a client does not survive a fork.

Threads and locks: one lock is held while the client is made, which looks up the twin's own number,
and one guards the state. The second may be taken under the first, and neither by the threads of a
client. ``start`` runs one thread, which
ends when the client is made. No lock is held while a command runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import wraps
from typing import Any, TypedDict, TypeVar, Unpack

from ..flask.responses import Flask
from ..runtime import fork
from ..runtime.backoff import Backoff
from ..runtime.closing import Closing
from ..runtime.logs import logger
from ..runtime.parking import OneShotEvent
from ..runtime.threads import daemon_thread, start_thread
from .client import WORKERS, Client
from .errors import BusError
from .services import Function, check_command
from .twins.records import TwinDirectory
from .wire.address import Address
from .wire.keys import Identity

__all__ = ["Bus", "CallOptions", "ClientOptions"]

Command = TypeVar("Command", bound=Function)

# The names in ``app.config`` that stand for the arguments of ``Bus``.
SETTINGS = {
    "identity": "WSMUX_BUS_IDENTITY",
    "relays": "WSMUX_BUS_RELAYS",
    "twins": "WSMUX_BUS_TWINS",
}

# Seconds between attempts to make the client while the directory of twins does not answer.
RETRY, LONGEST_RETRY = 0.5, 15.0

_log = logger("wsmux.bus")


class ClientOptions(TypedDict, total=False):
    """The optional arguments of ``Client``, which describes them."""

    twin: int | None
    session: str | None
    gateway: bool
    name: str | None
    names: Mapping[str, int] | None
    e2e: bool
    ssl_context: Any


class CallOptions(TypedDict, total=False):
    """The optional arguments of ``Client.call``, which describes them."""

    timeout: float
    tags: str | None
    idempotent: bool


class Bus(Closing):
    """Add a client of the bus to a Flask application.

    ::

        app = Flask(__name__)
        bus = Bus(app, identity=identity, relays="wss://relay.example", twins="twins.json")

        @bus.service("billing.add")
        def add(numbers):
            return sum(numbers)

        @app.post("/orders")
        def orders():
            return {"rate": bus.call("7:tax", "rate", request.json["country"])}

    Every method may be called from any thread. Each process that uses the object has a client of
    its own, which is made by the first call, the first request of the application, or ``start``. A
    process that must serve commands before any request arrives calls ``start``: at the end of the
    application's module or, with gunicorn's ``--preload``, in the hook ``post_worker_init``, by
    ``worker.wsgi.extensions["wsmux_bus"].start()``.

    With several workers leave ``session`` out, so that each has a session of its own; with a fixed
    name, or with ``gateway``, each worker would replace the one before it.

    Args:
        app: the application; without it, call ``init_app`` later.
        identity, relays, twins: as in ``Client``. Those that are omitted are taken from
            ``app.config``: ``WSMUX_BUS_IDENTITY``, ``WSMUX_BUS_RELAYS`` and ``WSMUX_BUS_TWINS``.
        workers: maximum number of threads that run commands in each process.
        options: the further arguments of ``Client``; with ``name=``, the processes share in the
            calls of that name, each with up to ``workers`` at once.

    Raises:
        ValueError: an argument is missing.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        identity: Identity | None = None,
        relays: str | Sequence[str] | None = None,
        twins: TwinDirectory | str | Sequence[str] | None = None,
        workers: int = WORKERS,
        **options: Unpack[ClientOptions],
    ) -> None:
        self._given: dict[str, Any] = {"identity": identity, "relays": relays, "twins": twins}
        self._options = options
        self._workers = workers
        self._commands: dict[str, Function] = {}
        self._app: Flask | None = None
        self.forked()
        fork.register(self)
        if app is not None:
            self.init_app(app)

    def forked(self) -> None:
        """Start over: a forked child has no client yet."""
        self._making = threading.Lock()
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._starting = False
        self._closed = OneShotEvent()

    def init_app(self, app: Flask) -> None:
        """Take the settings of an application, and run commands in its context.

        Raises:
            ValueError: an argument is missing, or another application was given before.
        """
        if self._app is not None:
            raise ValueError("this Bus belongs to another application: make one for each")
        given = {
            name: app.config.get(setting) if self._given[name] is None else self._given[name]
            for name, setting in SETTINGS.items()
        }
        for name, value in given.items():
            if value is None:
                raise ValueError(f"Bus needs {name}=, or {SETTINGS[name]} in app.config")
        self._given = given
        self._app = app
        app.extensions["wsmux_bus"] = self
        app.before_request(self.start)

    def service(self, command: str) -> Callable[[Command], Command]:
        """Serve a command with the decorated function, which is returned unchanged.

        The function is called as by ``Client.serve``, and within a context of the application, so
        it may use ``current_app`` and whatever extensions keep for the time of a context.

        Raises:
            ValueError: the command is empty or already served.
            TypeError: the decorator was used without a command.
        """
        check_command(command)

        def decorate(function: Command) -> Command:
            with self._lock:
                if command in self._commands:
                    raise ValueError(f"{command!r} is already served")
                if self._client is not None:
                    self._client.serve({command: self._in_context(function)}, self._workers)
                self._commands[command] = function
            return function

        return decorate

    def start(self) -> None:
        """Connect, and serve the commands, in the background; returns at once.

        While the directory of twins does not answer, further attempts follow. What is wrong is
        logged, and raised by ``call``. Does nothing if it was called before.

        Raises:
            ValueError: ``init_app`` was not called.
        """
        if self._client is not None or self._starting:
            return
        self._check_app()
        with self._lock:
            if self._client is not None or self._starting or self._closed.is_set():
                return
            self._starting = True
            try:
                start_thread(daemon_thread(self._start, name="wsmux-bus-start"))
            except BaseException:
                self._starting = False
                raise

    @property
    def client(self) -> Client:
        """The client of this process; if there is none yet, it is made and serves the commands.

        Blocks while this twin is looked up, and does not wait for a relay.

        Raises:
            BusError, TwinsUnavailable, ValueError: as ``Client``.
            ValueError: ``init_app`` was not called, or the bus is closed.
        """
        return self._client or self._make()

    def call(
        self,
        to: int | str | Address,
        command: str,
        payload: Any = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Call a command and return its answer; see ``Client.call``."""
        return self.client.call(to, command, payload, **options)

    def submit(
        self,
        to: int | str | Address,
        command: str,
        payload: Any = None,
        **options: Unpack[CallOptions],
    ) -> Future[Any]:
        """Send a request and return the future of its answer; see ``Client.submit``."""
        return self.client.submit(to, command, payload, **options)

    def close(self, timeout: float | None = 5.0) -> None:
        """End the client of this process as ``Client.close`` does; may be called twice."""
        with self._lock:
            self._closed.set()
            client = self._client
        if client is not None:
            client.close(timeout)

    def _check_app(self) -> Flask:
        if self._app is None:
            raise ValueError("this Bus has no application yet: call init_app first")
        return self._app

    def _make(self) -> Client:
        self._check_app()
        with self._making:
            if self._client is not None:
                return self._client
            if self._closed.is_set():
                raise ValueError("this Bus is closed")
            client = Client(**self._given, **self._options)
            try:
                with self._lock:
                    if self._closed.is_set():
                        raise ValueError("this Bus is closed")
                    commands = {name: self._in_context(f) for name, f in self._commands.items()}
                    client.serve(commands, self._workers)
                    self._client = client
            except BaseException:
                client.close(0)
                raise
            return client

    def _start(self) -> None:
        backoff = Backoff(RETRY, LONGEST_RETRY, 0.5)
        try:
            while not self._closed.is_set():
                try:
                    self._make()
                    return
                except BusError as error:
                    _log.warning("the bus of %s is not started yet: %s", self._app, error)
                self._closed.wait(backoff.next())
        except Exception:
            if not self._closed.is_set():
                _log.exception("the bus of %s cannot be started", self._app)
        finally:
            self._starting = False

    def _in_context(self, function: Function) -> Function:
        app = self._check_app()

        @wraps(function)
        def run(*args: Any) -> Any:
            with app.app_context():
                return function(*args)

        return run
