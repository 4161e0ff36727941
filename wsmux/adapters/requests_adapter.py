"""Use ``requests`` over streams of a connection: ``session.mount("mux://", MuxAdapter(c))``.

Each request has its own stream. The response's body is read from it piece by piece, so a caller
that does not read blocks the other end, and one that closes the response early resets the stream.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from http.client import HTTPMessage
from typing import Any, cast
from urllib.parse import urlsplit

import h11

from ..runtime.hints import how_to_install

try:
    import requests
    from requests.adapters import BaseAdapter, HTTPAdapter
    from urllib3 import HTTPHeaderDict, HTTPResponse, Timeout
    from urllib3.exceptions import ProtocolError as BrokenBody
except ImportError as error:  # pragma: no cover - the tests need it
    text = f"wsmux.adapters.MuxAdapter needs requests: {how_to_install('adapters')}"
    raise ImportError(text) from error

from ..endpoints.http11 import CHUNK, BodyReader, Exchange
from ..exceptions import WsmuxError
from ..mux.connection import Connection
from ..mux.stream import Stream

__all__ = ["MuxAdapter"]


class MuxAdapter(BaseAdapter):
    """Send the requests of a ``requests.Session`` over a connection's streams.

    ::

        session = requests.Session()
        session.mount("mux://", MuxAdapter(connection))
        session.get("mux://anything/path", timeout=5)

    The host of the URL is used only for the ``Host`` header. Any number of threads may use the
    adapter. ``timeout`` is as in requests, where it may also be a ``urllib3.Timeout``: seconds to
    open a stream, and for each wait while sending and receiving; ``verify``, ``cert`` and
    ``proxies`` do not apply. Failed requests are not retried.

    Args:
        connection: the connection, or a function that returns one, called for each request, so that
            the application can reconnect. The adapter does not close it.

    Raises the documented exceptions of requests: ``ConnectTimeout`` (no stream could be opened in
    time), ``ReadTimeout`` (the other end was silent, or accepted no more of the body),
    ``ConnectionError`` (the stream or the connection ended; the cause is ``wsmux``'s error),
    ``InvalidHeader``, ``InvalidURL``; and, while a body is read, ``ChunkedEncodingError`` and
    ``ConnectionError``.
    """

    def __init__(self, connection: Connection | Callable[[], Connection]) -> None:
        super().__init__()
        self._connection = connection

    def close(self) -> None:
        """Do nothing: the connection belongs to the caller."""

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """Send a request and return its response; the body is read later."""
        limits = _limits(timeout)
        head = _head(request)
        limits.start_connect()
        opened = self._open(request, _seconds(limits.connect_timeout))
        opened.timeout = _seconds(limits.read_timeout)
        exchange = Exchange(opened, h11.CLIENT)
        try:
            exchange.send(head)
            exchange.send_body(_pieces(request.body))
            answer = exchange.receive_response()
        except BaseException as error:
            exchange.end()
            if isinstance(error, TimeoutError) and exchange.failed:
                raise requests.ReadTimeout(str(error), request=request) from error
            broken = isinstance(error, Exception) and exchange.failed
            if broken or isinstance(error, h11.ProtocolError):
                raise requests.ConnectionError(str(error), request=request) from error
            raise
        return _response(self, request, answer, exchange)

    def _open(self, request: requests.PreparedRequest, timeout: float | None) -> Stream:
        try:
            carrier = self._connection
            connection = carrier if isinstance(carrier, Connection) else carrier()
            return connection.open_stream(timeout)
        except TimeoutError as error:
            raise requests.ConnectTimeout(str(error), request=request) from error
        except (WsmuxError, OSError) as error:
            raise requests.ConnectionError(str(error), request=request) from error


def _limits(timeout: Any) -> Timeout:
    """Return the limits that a caller gives in one of the forms of requests.

    Raises:
        ValueError: it is none of them, or not above 0.
    """
    if isinstance(timeout, Timeout):
        return timeout.clone()
    if isinstance(timeout, tuple) and len(timeout) != 2:
        raise ValueError(
            f"timeout= is one number of seconds, or two, to connect and to read, not {timeout}"
        )
    connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
    return Timeout(connect=connect, read=read)


def _seconds(limit: Any) -> float | None:
    """Return a limit of urllib3, which may be that of the socket module."""
    seconds: float | None = limit
    return socket.getdefaulttimeout() if limit is Timeout.DEFAULT_TIMEOUT else seconds


def _head(request: requests.PreparedRequest) -> h11.Request:
    """Return the head of the request.

    Raises:
        InvalidURL: it has no host.
        InvalidHeader: a header cannot be sent.
    """
    parts = urlsplit(request.url or "")
    if not parts.netloc:
        raise requests.exceptions.InvalidURL(f"no host in {request.url!r}", request=request)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {str(name): value for name, value in request.headers.items()}
    if not any(name.lower() == "host" for name in headers):
        headers = {"Host": parts.netloc.rpartition("@")[2], **headers}
    fields = [(name, value) for name, value in headers.items() if name.lower() != "connection"]
    try:
        return h11.Request(
            method=(request.method or "GET").upper(),
            target=_latin(target),
            headers=[(_latin(name), _latin(value)) for name, value in fields]
            + [(b"connection", b"close")],
        )
    except (h11.LocalProtocolError, UnicodeEncodeError) as error:
        raise requests.exceptions.InvalidHeader(str(error), request=request) from error


def _latin(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")


def _pieces(body: Any) -> Iterator[bytes]:
    """Yield the pieces of a body, in any of the forms that requests accepts."""
    if body is None:
        return
    if isinstance(body, str):
        body = body.encode()
    if isinstance(body, (bytes, bytearray, memoryview)):
        yield bytes(body)
    elif hasattr(body, "read"):
        while piece := body.read(CHUNK):
            yield piece.encode() if isinstance(piece, str) else piece
    else:
        for piece in body:
            yield piece.encode() if isinstance(piece, str) else piece


def _response(
    adapter: MuxAdapter,
    request: requests.PreparedRequest,
    answer: h11.Response,
    exchange: Exchange,
) -> requests.Response:
    headers, fields = HTTPHeaderDict(), HTTPMessage()
    for name, value in answer.headers:
        headers.add(name.decode("latin-1"), value.decode("latin-1"))
        fields.add_header(name.decode("latin-1"), value.decode("latin-1"))
    body = _Body(exchange, fields)
    raw = HTTPResponse(
        body=body,
        headers=headers,
        status=answer.status_code,
        version=11 if answer.http_version == b"1.1" else 10,
        reason=bytes(answer.reason).decode("latin-1"),
        preload_content=False,
        decode_content=False,
        original_response=cast(Any, body),
        request_method=request.method,
        request_url=request.url,
    )
    # Its handling of cookies, encodings and headers is the same for every transport.
    return HTTPAdapter.build_response(cast(HTTPAdapter, adapter), request, raw)


class _Body(BodyReader):
    """The body of a response, with the parts of http.client's that urllib3 and requests use."""

    def __init__(self, exchange: Exchange, fields: HTTPMessage) -> None:
        super().__init__(exchange)
        self.msg = fields  # where requests looks for cookies

    def _next(self) -> bytes:
        exchange = self._exchange
        if exchange.received_all():
            return b""
        try:
            piece = exchange.receive_body()
        except TimeoutError:
            raise  # urllib3 handles it
        except Exception as error:  # also an exception of the application, from code_to_reason
            self.close()
            raise BrokenBody(f"the response broke off: {error}") from error
        if not piece:
            exchange.end()
        return piece

    def read1(self, size: int = -1) -> bytes:
        """Return the available bytes, like a buffered file."""
        return self.read(size) or b""

    def isclosed(self) -> bool:
        """Return whether it is closed."""
        return self.closed

    def close(self) -> None:
        """End the exchange; if it is incomplete, its stream is reset.

        Finalizers call it, of this object and of urllib3's response over it.
        """
        if not self.closed:
            super().close()
            self._exchange.drop()
