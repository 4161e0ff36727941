"""Answer HTTP requests that arrive on streams with a WSGI application."""

from __future__ import annotations

import h11

from ..endpoints.http11 import Exchange
from ..endpoints.shutdown import end_connections
from ..endpoints.stream_handlers import StreamWorkers
from ..mux.connection import Connection
from ..mux.stream import Stream
from ..runtime.closing import Leaving
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from .running import Run, WsgiApp, make_environ

__all__ = ["Publication", "StreamServer", "serve"]

# Threads that answer requests; as gunicorn's documentation suggests for one or two processors.
WORKERS = 16

# Seconds of one wait for the other end while a request is read or answered.
TIMEOUT = 60.0

# Seconds that a stream may wait for another request: it occupies a worker, and a new stream costs
# nothing.
KEEP_ALIVE = 5.0

_log = logger("wsmux.wsgi")


class StreamServer:
    """A stream handler that serves a WSGI application over HTTP/1.1.

    Pass it to ``wsmux.connect(url, stream_handler=StreamServer(app))`` or to ``wsmux.serve``.

    Args:
        app: the application; it runs in as many threads at once as there are workers.
        timeout: seconds of one wait for the other end; then the stream is reset.
        scheme: the value of ``wsgi.url_scheme``.
    """

    def __init__(
        self, app: WsgiApp, *, timeout: float | None = TIMEOUT, scheme: str = "http"
    ) -> None:
        if scheme not in ("http", "https"):
            raise ValueError(f"scheme must be 'http' or 'https', not {scheme!r}")
        self._app = app
        self._timeout = timeout
        self._scheme = scheme

    def __call__(self, stream: Stream) -> None:
        """Answer the requests on a stream until the other end closes it or sends no more."""
        exchange = Exchange(stream, h11.SERVER)
        stream.timeout = self._timeout
        while (request := self._request(exchange)) is not None:
            stream.timeout = self._timeout
            if not self._answer(exchange, request) or not exchange.next_cycle():
                return
            stream.timeout = KEEP_ALIVE

    def _request(self, exchange: Exchange) -> h11.Request | None:
        """Return the next request; ``None`` if there is none, or none that can be answered."""
        try:
            event = exchange.receive()
        except h11.RemoteProtocolError as error:
            _log.info("refused on stream %d: %s", exchange.stream.id, error)
            _refuse(exchange, error.error_status_hint, str(error))
            return None
        except TimeoutError:
            if not exchange.idle:
                _refuse(exchange, 408, "the request did not arrive in time")
            return None
        return event if isinstance(event, h11.Request) else None

    def _answer(self, exchange: Exchange, request: h11.Request) -> bool:
        """Run the application; return false if the stream cannot be used any more."""
        run = Run(exchange, request)
        if request.method == b"CONNECT" or not request.target.startswith((b"/", b"http", b"*")):
            run.answer(501, "only requests for a path are answered")
            return False
        try:
            run(self._app, make_environ(request, exchange, self._scheme))
        except Exception as error:
            if exchange.failed:
                _log.info("the answer on stream %d broke off: %s", exchange.stream.id, error)
                exchange.stream.reset()
                return False
            path = request.target.decode("latin-1")
            _log.exception("the application failed for %r", path)
            if run.head_sent:
                exchange.stream.reset()  # a partial answer must not look complete
                return False
            run.answer(500, "the application failed")
        return True


def _refuse(exchange: Exchange, status: int, text: str) -> None:
    """Answer input that is not a valid request."""
    if exchange.connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    exchange.send_text(status, f"{text}\n".encode(), (b"connection", b"close"))


class Publication(Leaving):
    """An application published over a connection; returned by ``serve``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds until the connection has ended; return whether it has."""
        return self._connection.wait_closed(timeout)

    def shutdown(self, timeout: float | None = 10.0) -> None:
        """Accept no more requests, let running ones finish, and close the connection.

        Blocks for at most ``timeout`` seconds, plus ``Config.close_timeout`` for closing.
        """
        end_connections(
            [self._connection], Deadline(timeout), self._connection.config.close_timeout
        )

    def _leave(self, error: BaseException | None) -> None:
        self.shutdown()


def serve(
    connection: Connection,
    app: WsgiApp,
    *,
    workers: int = WORKERS,
    timeout: float | None = TIMEOUT,
    scheme: str = "http",
) -> Publication:
    """Answer HTTP requests on the streams that the other end opens; return at once.

    It ends with the connection, or by ``shutdown`` of the result.

    Args:
        connection: a connection without a stream handler, since its streams are accepted here.
        app: the WSGI application. It sees the headers that the other end sends; after
            ``Published``, wrap it in Werkzeug's
            ``ProxyFix(app, x_for=1, x_proto=1, x_host=1, x_prefix=1)`` to see the public address.
        workers: requests that run at once; further ones wait, and are refused after
            ``Config.open_timeout``.
        timeout: seconds of one wait for the other end; a stream that exceeds it is reset.
        scheme: the value of ``wsgi.url_scheme``.

    Raises:
        NoThreadError: the system has no thread left for the first request.

    Exceptions of the application are logged, and answered with 500 if nothing was sent yet;
    otherwise the stream is reset, so that a partial answer does not look complete.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    handler = StreamServer(app, timeout=timeout, scheme=scheme)
    StreamWorkers(connection, handler, workers).start()
    return Publication(connection)
