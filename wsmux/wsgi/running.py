"""Run a WSGI application for one request that arrived on a stream (PEP 3333)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

import h11

from ..endpoints.http11 import BodyReader, Exchange
from ..exceptions import WsmuxError
from ..runtime.logs import VERBATIM, logger

__all__ = ["Environ", "Run", "WsgiApp", "make_environ"]

Environ: TypeAlias = dict[str, Any]
Write: TypeAlias = Callable[[bytes], object]
WsgiApp: TypeAlias = Callable[[Environ, Callable[..., Write]], Iterable[bytes]]
ExcInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None
)

_log = logger("wsmux.wsgi")

DEFAULT_PORTS = {"http": "80", "https": "443"}


def make_environ(request: h11.Request, exchange: Exchange, scheme: str) -> Environ:
    """Return the environ of a request.

    Headers with an underscore are dropped: they would be mistaken for those with a hyphen. If the
    body is chunked, a Content-Length is dropped (RFC 9112 section 6.3).
    """
    target = request.target.decode("latin-1")
    if target.startswith(("http://", "https://")):  # RFC 9112 section 3.2.2
        target = "/" + target.partition("://")[2].partition("/")[2]
    path, _, query = target.partition("?")
    environ: Environ = {
        "REQUEST_METHOD": request.method.decode("latin-1"),
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query,
        "RAW_URI": target,
        "SERVER_PROTOCOL": f"HTTP/{request.http_version.decode()}",
        "SERVER_SOFTWARE": "wsmux",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scheme,
        "wsgi.input": io.BufferedReader(_Input(exchange)),
        "wsgi.input_terminated": True,
        "wsgi.errors": _ErrorLog(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "wsmux.stream": exchange.stream,
    }
    for raw_name, raw_value in request.headers:
        if b"_" in raw_name:
            continue
        name = raw_name.decode("latin-1").upper().replace("-", "_")
        value = raw_value.decode("latin-1")
        if name not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            name = f"HTTP_{name}"
        if name in environ:
            value = environ[name] + ("; " if name == "HTTP_COOKIE" else ",") + value
        environ[name] = value
    if "HTTP_TRANSFER_ENCODING" in environ:
        environ.pop("CONTENT_LENGTH", None)
    host, _, port = environ.get("HTTP_HOST", "").rpartition(":")
    if not port.isdigit():
        host, port = environ.get("HTTP_HOST", ""), DEFAULT_PORTS[scheme]
    return environ | {"SERVER_NAME": host or "localhost", "SERVER_PORT": port}


class Run:
    """Run an application for one request, and send its answer."""

    def __init__(self, exchange: Exchange, request: h11.Request) -> None:
        self._exchange = exchange
        self._bodiless = request.method == b"HEAD"
        self._head: h11.Response | None = None
        self.head_sent = False

    def __call__(self, app: WsgiApp, environ: Environ) -> None:
        """Run the application to the end.

        Raises:
            WsmuxError, TimeoutError: the stream failed.
            Exception: the application failed, or its answer is not valid HTTP.
        """
        result = app(environ, self._start)
        try:
            for piece in result:
                self._write(piece)
            self._send_head()
            self._exchange.send(h11.EndOfMessage())
        finally:
            close = getattr(result, "close", None)
            if close is not None:
                close()

    def _start(
        self, status: str, headers: list[tuple[str, str]], exc_info: ExcInfo = None
    ) -> Write:
        """Implement the ``start_response`` of the application."""
        if exc_info is not None and exc_info[1] is not None:
            if self.head_sent:
                try:
                    raise exc_info[1].with_traceback(exc_info[2])
                finally:
                    exc_info = None  # PEP 3333: the frame must not hold the traceback
        elif self._head is not None:
            raise RuntimeError("start_response was called twice without exc_info")
        number, _, reason = status.partition(" ")
        self._head = h11.Response(
            status_code=int(number),
            reason=reason.encode("latin-1"),
            headers=[(name.encode("latin-1"), text.encode("latin-1")) for name, text in headers],
        )
        return self._write

    def _write(self, piece: bytes) -> None:
        if not isinstance(piece, bytes):
            raise TypeError(f"the application answered {type(piece).__name__}, not bytes")
        if not piece:
            return
        self._send_head()
        if not self._bodiless:
            self._exchange.send(h11.Data(data=piece))

    def _send_head(self) -> None:
        if self.head_sent:
            return
        if self._head is None:
            raise RuntimeError("the application returned without calling start_response")
        self._exchange.send(self._head)
        self.head_sent = True
        self._bodiless = self._bodiless or self._head.status_code in (204, 304)

    def answer(self, status: int, text: str) -> None:
        """Send an error instead of the application's answer, if that has not begun."""
        if self.head_sent:
            return
        self.head_sent = True
        self._exchange.send_text(status, b"" if self._bodiless else f"{text}\n".encode())


class _Input(BodyReader):
    """The body of the request; it ends with end of file."""

    def _next(self) -> bytes:
        if self._exchange.received_all():
            return b""
        try:
            return self._exchange.receive_body()
        except h11.RemoteProtocolError as error:
            raise ConnectionError(f"the request broke off: {error}") from error
        except WsmuxError as error:
            if isinstance(error, OSError):
                raise
            raise ConnectionError(f"the request broke off: {error}") from error


class _ErrorLog(io.TextIOBase):
    """``wsgi.errors``: whatever an application writes is logged, one record per write."""

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        if text.strip():
            _log.error("%s", text.rstrip(), extra=VERBATIM)
        return len(text)
