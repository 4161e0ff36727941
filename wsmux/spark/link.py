"""Hold the connections of one process to one server: a River client and a mux connection.

Each is made when first asked for, by one thread while the others wait. Everything may be called
from any thread.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..client import connect as connect_mux
from ..config import Config
from ..connection import Connection
from ..exceptions import HandshakeError, WsmuxError
from ..rpc import Client, Options
from ..rpc import connect as connect_rpc
from ..stream import Stream
from .errors import SparkError, hide, place, shown_url

if TYPE_CHECKING:
    from .recipe import Recipe

__all__ = ["Link"]

# Bytes of the line with which a stream begins, each way.
MAX_LINE = 64 * 1024

# HTTP's words for credentials that will not do; asking again is no use.
UNWELCOME = frozenset({401, 403})

NO_CONNECTION, TIMEOUT, UNAUTHORIZED = "NO_CONNECTION", "TIMEOUT", "UNAUTHORIZED"

T = TypeVar("T")


class Link:
    """Be what a process holds of a recipe.

    Attributes:
        recipe: what it was made of.
    """

    def __init__(self, recipe: Recipe, pause: Callable[[float], object] = time.sleep) -> None:
        self.recipe = recipe
        self._pause = pause
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._streams: Connection | None = None
        self._refused = False
        self._token = ""

    def __repr__(self) -> str:
        return f"<Link {shown_url(self.recipe.url)}>"

    def client(self) -> Client:
        """Return the River client; it connects with its first call, and again when that is lost.

        It is shared: do not close it.
        """
        with self._lock:
            if self._client is None or self._client.closed:
                self._client = self._new_client()
            return self._client

    def streams(self) -> Connection:
        """Return the connection for streams, made anew if the last one was lost.

        Raises:
            SparkError: UNAUTHORIZED or NO_CONNECTION.
        """
        return self._again("connecting", self._connected)

    def open_stream(self, name: str | None = None, /, **header: Any) -> Stream:
        """Open a stream, connecting for it if need be; faults that pass are met by retries.

        With a name, the stream begins with one line of JSON each way: ``{"stream": name}`` and
        what else is in ``header``; the server's ``{"ok": true}``, or a refusal, which is raised.

        Raises:
            SparkError: the server refused the stream, with its code; or it could not be opened.
        """
        return self.ask_stream(name, **header)[0]

    def ask_stream(
        self, name: str | None = None, /, **header: Any
    ) -> tuple[Stream, dict[str, Any]]:
        """Open a stream as ``open_stream`` does; return it with the server's first line."""
        if name is None and header:
            raise ValueError("a stream without a name has no header")
        line = b""
        if name is not None:
            line = json.dumps({"stream": name, **header}, separators=(",", ":")).encode() + b"\n"
        if len(line) > MAX_LINE:
            raise ValueError(f"the header of a stream takes at most {MAX_LINE} bytes")
        what = f"stream {name}" if name else "stream"
        return self._again(what, lambda: self._opened(what, line))

    def close(self) -> None:
        """Close what there is; asked again, the link connects anew."""
        with self._lock:
            client, self._client = self._client, None
            streams, self._streams = self._streams, None
        if client is not None:
            client.close()
        if streams is not None:
            streams.close(timeout=self.recipe.connect_timeout)

    def error(
        self, code: str, message: str, what: str, inflight: int | None = None, **more: Any
    ) -> SparkError:
        """Return an error of this link, in which no secret is to be read."""
        if inflight is not None:
            more["inflight"] = inflight
        message = hide(message, self._token).replace(self.recipe.url, shown_url(self.recipe.url))
        return SparkError(code, message, what, place(self.recipe.url, **more))

    def failure(self, error: Exception, what: str) -> SparkError:
        """Return what is raised for an error of a connection or a stream."""
        if isinstance(error, HandshakeError) and error.status in UNWELCOME:
            return self.error(UNAUTHORIZED, str(error), what)
        if isinstance(error, TimeoutError):
            return self.error(TIMEOUT, str(error), what)
        return self.error(NO_CONNECTION, str(error), what)

    def refused(self) -> bool:
        """Tell whether the last attempt of the client was refused for its credentials."""
        return self._refused

    # River

    def _new_client(self) -> Client:
        recipe = self.recipe
        # A call fails when its session has no connection within the grace, and that is to be the
        # time which the user has named; a part of it is for each attempt.
        part = max(recipe.connect_timeout / 2, 0.05)
        options = Options(
            session_disconnect_grace=recipe.connect_timeout,
            connection_timeout=part,
            handshake_timeout=part,
        )
        return connect_rpc(
            recipe.url,
            codec=recipe.codec,
            options=options,
            metadata=recipe.metadata,
            is_fatal=self._is_fatal,
            headers=self._river_headers,
            ssl_context=self._ssl_context(),
        )

    def _river_headers(self) -> dict[str, str]:
        self._refused = False  # another attempt begins
        return self._headers()

    def _is_fatal(self, error: Exception) -> bool:
        self._refused = isinstance(error, HandshakeError) and error.status in UNWELCOME
        return self._refused

    def _headers(self) -> dict[str, str]:
        recipe = self.recipe
        headers = dict(recipe.headers)
        if recipe.token is not None:
            self._token = _token(recipe.token)
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _ssl_context(self) -> ssl.SSLContext | None:
        ca = self.recipe.ssl_ca
        if ca is None:
            return None
        text = ca if "-----BEGIN" in ca else None
        return ssl.create_default_context(cadata=text, cafile=ca if text is None else None)

    # Streams

    def _connected(self) -> Connection:
        with self._lock:
            if self._streams is None or self._streams.closed:
                self._streams = None
                window = self.recipe.window
                self._streams = connect_mux(
                    self.recipe.url,
                    timeout=self.recipe.connect_timeout,
                    config=Config() if window is None else Config(receive_window=window),
                    headers=self._headers(),
                    ssl_context=self._ssl_context(),
                    accept_streams=False,
                )
            return self._streams

    def _opened(self, what: str, line: bytes) -> tuple[Stream, dict[str, Any]]:
        stream = self._connected().open_stream(timeout=self.recipe.connect_timeout)
        if not line:
            return stream, {}
        try:
            usual, stream.timeout = stream.timeout, self.recipe.connect_timeout
            stream.write(line)
            reply = _reply(stream)
            stream.timeout = usual
        except BaseException:
            stream.reset()
            raise
        if reply.get("ok") is True:
            return stream, reply
        stream.reset()
        code, message = str(reply.get("code", "REFUSED")), str(reply.get("message", "no reason"))
        raise self.error(code, message, what)

    def _again(self, what: str, action: Callable[[], T]) -> T:
        """Try something until it goes well, fails for good, or was tried often enough."""
        recipe = self.recipe
        for attempt in range(recipe.retries + 1):
            try:
                return action()
            except SparkError:
                raise
            except (WsmuxError, OSError) as error:
                failure = self.failure(error, what)
                if failure.code == UNAUTHORIZED or attempt == recipe.retries:
                    raise failure from None  # whose text may hold the query of the address
            self._pause(recipe.retry_backoff * 2**attempt)
        raise AssertionError("there is at least one attempt")


def _token(token: str | Callable[[], str]) -> str:
    if not callable(token):
        return token
    try:
        made = token()
    except Exception as error:  # its text may hold a secret
        raise HandshakeError(f"token= failed with {type(error).__name__}") from error
    if not isinstance(made, str) or not made.isprintable():
        raise HandshakeError("token= must return a string without line breaks")
    return made


def _reply(stream: Stream) -> dict[str, Any]:
    """Return the server's first line, without taking a byte of what follows."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = stream.read(1)
        if not byte:
            raise ConnectionError("the server ended the stream before its first line")
        line += byte
        if len(line) > MAX_LINE:
            raise ConnectionError(f"the server's first line is above {MAX_LINE} bytes")
    try:
        reply = json.loads(line)
    except ValueError as error:
        raise ConnectionError("the server's first line is no JSON") from error
    if not isinstance(reply, dict):
        raise ConnectionError("the server's first line is no object")
    return reply
