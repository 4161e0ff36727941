"""Serve connections from routes of a Flask application.

Works under Werkzeug (threaded), gunicorn with gthread or gevent workers, and gevent's pywsgi with
monkey patching. After the upgrade wsmux owns the socket. Before WSGI could write to it, the
connection is closed and the socket shut down in both directions, and the response ends the request
in the way in which each server writes nothing: ``StopIteration`` for gunicorn, ``ConnectionError``
for Werkzeug, an empty body for gevent.

Under gunicorn with gthread or sync workers, that can be at once: its socket is replaced by one
whose peer has gone, the connection goes on in a thread of ours, and the thread of the request is
free for the next one. gunicorn knows nothing of the connection from then on, so what it does for
others is done here: there is a limit, and the connection is ended when the process exits. Under
gunicorn's own TLS, and under other servers, a connection holds the thread or greenlet of its
request, which the log says once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..config import Config, Resume, UserLimits
from ..durable.files import (
    EXPIRES,
    IDLE_TIMEOUT,
    MAX_SIZE,
    MAX_UPLOADS,
    MIN_FREE,
    FileOffsets,
    upload_handler,
)
from ..durable.receiver import MAX_STREAMS, DurableHandler
from ..endpoints.acceptor import DRAIN
from ..endpoints.audit import Visit, refused
from ..endpoints.connection_options import (
    DEFAULT_WORKERS,
    ConnectionHandler,
    ConnectionOptions,
    resume_options,
)
from ..endpoints.resumable_sessions import ResumableSessions
from ..endpoints.shutdown import ConnectionRegistry
from ..endpoints.shutdown_signals import shut_down_on_signals
from ..endpoints.stream_handlers import StreamHandler
from ..endpoints.user_limits import Users
from ..exceptions import CloseCode, HandshakeError, NoThreadError
from ..handshake.access import Authorize, check_authorize
from ..handshake.origin import allowed_origins
from ..handshake.websocket_server import asks_to_return, check_request
from ..mux.connection import Connection, StartOn
from ..mux.error_codes import CodeToReason, ReasonToCode
from ..protocols.bymux_state import BymuxState
from ..protocols.registry import served_protocols
from ..runtime.deadline import Deadline
from ..runtime.hints import field_hints
from ..runtime.lazy_imports import lazy_names
from ..runtime.logs import logger
from ..runtime.parking import OneShotEvent
from .browser_script import script_blueprint
from .debug_page import debug_blueprint
from .request_threads import longest_closing
from .responses import Flask, Response, copy_current_request_context
from .upgrades import Upgraded, Upgrades

if TYPE_CHECKING:
    from ..bus.flask_extension import Bus
    from ..durable.interfaces import Offsets

__all__ = ["Bus", "Mux", "debug_blueprint", "script_blueprint", "uploads"]

# The bus has requirements of its own, and stands above this package.
__getattr__ = lazy_names(__name__, {".bus.flask_extension": ("Bus",)})

_log = logger("wsmux")

Handler = TypeVar("Handler", bound=Callable[..., object])
Around = Callable[[Connection], AbstractContextManager[object]]


class Mux:
    """Add multiplexed WebSocket routes to a Flask application.

    ::

        app = Flask(__name__)
        mux = Mux(app)

        @mux.route("/files")
        def files(connection):
            for stream in connection:
                ...

    The handler runs in the thread of the request, unless the route says ``detach=True``; the
    connection is closed when it returns. The keyword arguments are as for ``wsmux.serve``, but
    for ``max_connections``, which holds for all routes of this object together. Without it, all
    routes of the process take 1,024 connections that hold no thread of the server, and so many that
    do that gunicorn keeps one in eight of its threads, and at least one, for other requests. Of
    those that hold none, there are at most so many as the process has descriptors for, 192 of
    1,024. Further ones get 503. Without ``app``, call ``init_app`` later.

    ``authorize`` says who may connect to routes that have none of their own. It is called in the
    context of the request, behind all other checks and before the WebSocket is accepted, so it may
    look at ``session`` and ``request`` beside the ``Request`` that it is given. It returns the name
    of the user, which is ``connection.user``; ``True`` for a client without a name; or ``False`` or
    ``None``: 403. What it raises, as by ``abort``, is answered as if the view had raised it.
    ``user_limits`` bounds what each user may do, over all routes; then each needs an ``authorize``.

    With ``resume``, a client must reach the same process; from another worker it gets
    ``ResumeLost``, unless ``Resume.workers`` names a directory that the workers share. Where
    connections hold threads, one that was resumed holds one more: that of the request over which it
    goes on. Elsewhere a full route lets its clients return.
    """

    @field_hints(Config, "config")
    def __init__(
        self,
        app: Flask | None = None,
        *,
        protocols: Iterable[str] = ("wsmux",),
        config: Config | None = None,
        origins: Iterable[str] | None = None,
        max_connections: int | None = None,
        authorize: Authorize | None = None,
        user_limits: UserLimits | None = None,
        accept_streams: bool = True,
        start_on: StartOn = "open",
        workers: int = DEFAULT_WORKERS,
        code_to_reason: CodeToReason | None = None,
        reason_to_code: ReasonToCode | None = None,
        bymux_state: BymuxState | None = None,
        resume: Resume | bool = False,
    ) -> None:
        check_authorize(authorize)
        self._authorize = authorize
        self._users = None if user_limits is None else Users(user_limits)
        self._protocols = served_protocols(protocols)
        self._origins = allowed_origins(origins)
        self._options: dict[str, Any] = {
            "config": config or Config(),
            "accept_streams": accept_streams,
            "start_on": start_on,
            "workers": workers,
            "code_to_reason": code_to_reason,
            "reason_to_code": reason_to_code,
            "bymux_state": bymux_state,
            "resume": resume_options(resume),
        }
        ConnectionOptions(**self._options)  # raises for a bad value
        self._upgrades = Upgrades(self._options["config"], "a route of Mux", max_connections)
        limits = self._options["resume"]
        self._sessions = None if limits is None else ResumableSessions(limits)
        close_timeout = self._options["config"].close_timeout
        self._served = ConnectionRegistry(close_timeout, self._sessions)
        self._app: Flask | None = None
        self._routes: list[tuple[str, Callable[..., Response], dict[str, Any]]] = []
        self._around: list[Around] = []
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Add the routes, including those defined later, to an application."""
        self._app = app
        for path, view, options in self._routes:
            app.add_url_rule(path, view_func=view, websocket=True, **options)
        self._routes.clear()

    @property
    def connections(self) -> list[Connection]:
        """The connections that this process is currently serving."""
        return self._served.connections

    @property
    def stopping(self) -> bool:
        """Whether ``shutdown`` has been called."""
        return self._served.stopping

    def shutdown(self, timeout: float | None = DRAIN) -> None:
        """Close every connection of this process, as ``Server.shutdown`` does, and refuse new ones.

        Blocks for at most ``timeout`` seconds while streams are open, and then for the closing
        handshakes. Later requests get 503. May be called from any thread.
        """
        self._served.shutdown(timeout)
        self._forget_users()

    def drain_on_sigterm(self, timeout: float | None = DRAIN) -> None:
        """Call ``shutdown`` on SIGTERM, with which servers stop and reload their processes.

        The previous handler runs at once, alongside the shutdown, such as gunicorn's graceful stop,
        which waits for running requests; if the previous action was to terminate the process, it
        follows the shutdown. SIGINT and SIGQUIT, with which a server stops quickly, leave streams
        one second. Make ``timeout`` shorter than gunicorn's ``--graceful-timeout`` by the second
        that closing takes; connections that hold no thread have 0.8 of that and of ``--timeout`` at
        most. Call it after the server has installed its own handler: in the application's module
        or, with ``--preload``, in the hook ``post_worker_init``.

        Raises:
            ValueError: not called in the main thread.
        """
        shut_down_on_signals(self._stop, timeout)

    def _stop(self, timeout: float | None) -> None:
        """Shut down with the process, which its server may kill if it takes long."""
        self._served.shutdown(timeout, longest_closing())
        self._forget_users()

    def _forget_users(self) -> None:
        if self._users is not None:
            self._users.close()

    def route(
        self,
        path: str,
        *,
        detach: bool = False,
        authorize: Authorize | None = None,
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        """Serve ``handler(connection, **variables)`` at a path; takes Flask's routing options.

        Args:
            authorize: says who may connect here, in the place of that of the ``Mux``.
            detach: run the handler in a thread of its own, where the server allows it, so that it
                holds none of the server's. ``request`` and ``session`` are then copies of those of
                the request, which has ended; ``g`` is empty. Elsewhere the handler runs in the
                thread of the request, as without it.
        """
        return self._decorator(path, options, streams=False, detach=detach, authorize=authorize)

    def stream_route(
        self,
        path: str,
        *,
        detach: bool = True,
        authorize: Authorize | None = None,
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        """Serve ``handler(stream, **variables)`` at a path, for each stream a client opens.

        Up to ``workers`` handlers run at once, each in its own thread. Takes Flask's routing
        options.

        Args:
            authorize: says who may connect here, in the place of that of the ``Mux``.
            detach: give the thread of the request back to the server, where it allows that; with
                false the connection holds it for as long as it lasts.
        """
        return self._decorator(path, options, streams=True, detach=detach, authorize=authorize)

    def around(self, function: Around) -> Around:
        """Enter ``function(connection)`` around the serving of each connection; a decorator.

        It returns a context manager, such as ``cluster.member(connection, name)``, which is left
        when the connection has ended. It is called for all routes, with the context of the request,
        as handlers are. If it raises, the connection is closed with 1011.
        """
        self._around.append(function)
        return function

    def durable_route(
        self,
        path: str,
        *,
        offsets: Offsets,
        max_streams: int = MAX_STREAMS,
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        """Serve ``handler(stream, **variables)`` at a path, for each durable stream of clients.

        The stream is a ``wsmux.durable.ReceivedStream``, and ``DurableHandler`` describes what
        happens. Takes Flask's routing options, and ``authorize`` as ``stream_route`` does.

        Args:
            path: of the route.
            offsets: keeps what is committed of each name, such as ``wsmux.FileOffsets``.
            max_streams: how many there may be at once.
        """

        def decorate(handler: Handler) -> Handler:
            serve = DurableHandler(handler, offsets=offsets, max_streams=max_streams)
            name = _name_of(handler, options.get("endpoint"))
            self.stream_route(path, **{**options, "endpoint": name})(serve)
            return handler

        return decorate

    def _decorator(
        self,
        path: str,
        options: dict[str, Any],
        *,
        streams: bool,
        detach: bool,
        authorize: Authorize | None,
    ) -> Callable[[Handler], Handler]:
        check_authorize(authorize)
        asked = self._authorize if authorize is None else authorize
        if self._users is not None and asked is None:
            raise ValueError(
                f"the route {path} of a Mux with user_limits= needs authorize=, which names the "
                "user: give it to the route or to the Mux"
            )

        def decorate(handler: Handler) -> Handler:
            name = _name_of(handler, options.get("endpoint"))
            if detach:
                self._upgrades.begin(self._stop)

            def view(**variables: Any) -> Response:
                serve = partial(handler, **variables)
                detaches = detach and self._upgrades.detaches()
                if streams:
                    return self._serve(None, serve, detaches, asked)
                return self._serve(serve, None, detaches, asked)

            view.__name__ = name
            if self._app is None:
                self._routes.append((path, view, options))
            else:
                self._app.add_url_rule(path, view_func=view, websocket=True, **options)
            return handler

        return decorate

    def _serve(
        self,
        handler: ConnectionHandler | None,
        stream_handler: StreamHandler | None,
        detaches: bool,
        authorize: Authorize | None,
    ) -> Response:
        def check(environ: dict[str, Any]) -> str:
            resumes = self._sessions is not None
            protocol = check_request(environ, self._protocols, self._origins, resumes)
            # A client that returns is told what it has lost.
            if not asks_to_return(environ):
                self._served.check()
            return protocol

        def serve(upgraded: Upgraded) -> None:
            place = upgraded.place
            options = ConnectionOptions(
                **self._options,
                stream_handler=stream_handler,
                admit_stream=None if place is None else place.take_stream,
            )
            deadline = Deadline(options.config.handshake_timeout)
            try:
                accepted = options.accepted(
                    upgraded.socket,
                    upgraded.wire,
                    upgraded.request,
                    self._sessions,
                    deadline,
                    nullcontext(),
                    upgraded.returns,
                    upgraded.passes,
                )
            except (HandshakeError, OSError, NoThreadError) as error:
                # From 3.12 on, a process that is exiting can begin none.
                path = upgraded.request.path
                if isinstance(error, HandshakeError):
                    refused(upgraded.request, "", error.status, str(error))
                _log.info("%s: the connection was not begun: %s", path, error)
                return
            if isinstance(accepted, OneShotEvent):
                if place is not None:
                    place.returned()
                if not detaches:
                    accepted.wait()  # the socket belongs to this request, too
                return
            visit = Visit(accepted, upgraded.request.remote_address)
            try:
                with self._served.serving(accepted):
                    run(accepted, options, handler)
            finally:
                visit.ended()

        run = self._run
        if detaches and (handler is not None or self._around):
            run = copy_current_request_context(run)  # it runs in another thread

        limits = self._options["resume"]
        return self._upgrades.answer(
            check,
            serve,
            self._stop if detaches else None,
            sessions=0 if self._sessions is None else len(self._sessions),
            passes=limits is not None and limits.workers is not None,
            authorize=authorize,
            users=self._users,
        )

    def _run(
        self,
        connection: Connection,
        options: ConnectionOptions,
        handler: ConnectionHandler | None,
    ) -> None:
        """Serve a connection within what is around it."""
        with ExitStack() as entered:
            try:
                for each in self._around:
                    entered.enter_context(each(connection))
            except Exception:
                _log.exception("what is around %s failed; it ends", connection.name)
                connection.close(code=CloseCode.INTERNAL_ERROR, reason="internal error")
                return
            options.serve(connection, handler)


def uploads(
    app_or_mux: Flask | Mux,
    path: str,
    folder: str | os.PathLike[str],
    *,
    finished: Callable[..., object] | None = None,
    max_size: int | None = MAX_SIZE,
    min_free: int = MIN_FREE,
    max_uploads: int = MAX_UPLOADS,
    expires: float | None = EXPIRES,
    idle_timeout: float = IDLE_TIMEOUT,
    replace: bool = False,
    **options: Any,
) -> Mux:
    """Receive files at a path, as ``wsmux upload`` sends them; return the ``Mux`` of the route.

    Uploads go on after either side was killed. A file has its name in the folder when it is whole.
    Who may upload is for the application to say, by ``authorize`` or in ``before_request``.

    Args:
        app_or_mux: an application, for which a ``Mux`` is made, or a ``Mux`` with its options.
        path: of the route.
        folder: for the files of this route alone; see ``wsmux.FileOffsets``.
        finished: called with the path of each finished file and the variables of the route, before
            the client learns that it is finished; again, if that was prevented. When it raises, the
            client is told that the server failed, and comes again.
        max_size: the most bytes of a file, 1 GiB by default, ``None`` for no limit.
        min_free: the bytes that the file system must have left, 256 MiB by default.
        max_uploads: how many there may be at once; clients wait for their turn.
        expires: seconds after which unfinished files are removed to which nothing was added, a
            week by default; ``None`` for never.
        idle_timeout: seconds without data after which a client is told to come again.
        replace: let a file replace an older one of its name.
        options: of Flask's routing, and ``authorize`` as ``Mux.stream_route`` takes it.
    """
    mux = app_or_mux if isinstance(app_or_mux, Mux) else Mux(app_or_mux)
    offsets = FileOffsets(
        folder, max_size=max_size, min_free=min_free, expires=expires, replace=replace
    )
    options.setdefault("endpoint", f"wsmux uploads {path}")
    handler = upload_handler(offsets, finished, idle_timeout)
    mux.durable_route(path, offsets=offsets, max_streams=max_uploads, **options)(handler)
    return mux


def _name_of(handler: Callable[..., object], endpoint: str | None) -> str:
    """Return the endpoint name of a handler for Flask."""
    if not callable(handler):
        kind = type(handler).__name__
        raise TypeError(f"a route must be served by a function, not {kind}")
    name = endpoint or getattr(handler, "__name__", None)
    if name is None:
        kind = type(handler).__name__
        raise TypeError(
            f"the handler, of type {kind}, has no name for Flask to call the route by: "
            "give the route one, such as endpoint='echo'"
        )
    return str(name)
