"""Serve a signed directory of twins over HTTP.

- ``GET /twins/ID`` and ``GET /twins?account=0x...`` return an entry, or 404;
- ``POST /twins`` takes an entry that its account signed. The first one of an account claims the
  next free number, a later one must have a higher serial. The answer is the entry with its number.

Anything else is 404 "page not found". Entries can be read by anybody, and what is signed binds no
registrar: another one may register a copy. The number of a twin is the word of the registrar.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sqlite3
import ssl
import threading
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from ...config import Config
from ...endpoints.acceptor import DRAIN, REFUSAL, Acceptor, listen
from ...exceptions import HandshakeError
from ...handshake.http_request import respond
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ..relay.rate_limiter import FixedWindow
from .entries import Entry, entry_record, is_signed, parse_entry
from .entry_store import EntryStore, StaleEntry, StoreFull

__all__ = ["RegistrarServer", "serve_registrar"]

# Bytes of an entry that is posted: 16 relays with names of 255 characters, and the rest.
MAX_BODY = 8 * 1024

# Connections at once, each with a thread for one request.
MAX_CONNECTIONS = 256

# Posts of one client address, and of one account, in a minute.
POSTS_PER_ADDRESS, POSTS_PER_ACCOUNT = 60, 10

JSON = {"Content-Type": "application/json"}

_log = logger("wsmux.bus")


class RegistrarServer(Acceptor):
    """Serve a directory until ``shutdown``; made and started by ``serve_registrar``."""

    def __init__(
        self,
        store: EntryStore,
        listener: socket.socket,
        *,
        ssl_context: ssl.SSLContext | None = None,
        max_connections: int = MAX_CONNECTIONS,
        config: Config | None = None,
    ) -> None:
        self._store = store
        self._limits = threading.Lock()
        self._addresses = FixedWindow(POSTS_PER_ADDRESS, POSTS_PER_ADDRESS * MAX_BODY)
        self._accounts = FixedWindow(POSTS_PER_ACCOUNT, POSTS_PER_ACCOUNT * MAX_BODY)
        super().__init__(
            listener,
            config or Config(),
            scheme="http" if ssl_context is None else "https",
            http=True,
            ssl_context=ssl_context,
            max_connections=max_connections,
        )

    def shutdown(self, timeout: float | None = DRAIN) -> None:
        """Stop accepting, and wait at most ``timeout`` seconds for requests in progress."""
        self._shut_down_once(timeout)

    def _end(self, deadline: Deadline) -> None:
        self._join_threads(deadline)
        self._store.close()

    def _serve(self, sock: socket.socket, address: Any) -> None:
        deadline = Deadline(self._config.handshake_timeout)
        try:
            sock = self._secure(sock, deadline)
            environ = self._request(sock, address, deadline, ("GET", "POST"))
            status, entry = self._answer(sock, environ, deadline)
            body = json.dumps(entry_record(entry)).encode() + b"\n"
            respond(sock, status, body, JSON, REFUSAL)
            sock.close()
        except (HandshakeError, OSError) as error:
            self._refused(sock, address, error)
        except sqlite3.Error as error:
            _log.error("the database of %s failed: %s", self.url, error)
            self._refused(sock, address, HandshakeError("the directory cannot be read now", 503))

    def _answer(
        self, sock: socket.socket, environ: dict[str, Any], deadline: Deadline
    ) -> tuple[HTTPStatus, Entry]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if method == "POST" and path == "/twins":
            self._check_rate(self._addresses, str(environ.get("REMOTE_ADDR")).encode())
            with self._body(sock, environ, deadline, MAX_BODY) as body:
                return self._put(bytes(body))
        if method == "GET" and path == "/twins":
            return HTTPStatus.OK, self._found(self._find(environ["QUERY_STRING"]))
        number = path.removeprefix("/twins/")
        if method == "GET" and number != path and number.isdecimal() and len(number) <= 10:
            return HTTPStatus.OK, self._found(self._store.get(int(number)))
        raise HandshakeError("page not found", HTTPStatus.NOT_FOUND)

    def _find(self, query: str) -> Entry | None:
        (text,) = parse_qs(query).get("account", [""])[:1]
        try:
            account = bytes.fromhex(text.removeprefix("0x"))
        except ValueError as error:
            raise HandshakeError("an account is 0x and hexadecimal", 400) from error
        return self._store.find(account)

    def _found(self, entry: Entry | None) -> Entry:
        if entry is None:
            raise HandshakeError("there is no such twin", HTTPStatus.NOT_FOUND)
        return entry

    def _put(self, body: bytes) -> tuple[HTTPStatus, Entry]:
        """Check and store an entry; return it with its number."""
        try:
            entry = parse_entry(json.loads(body))
            signed = is_signed(entry)
        except (ValueError, RecursionError) as error:
            raise HandshakeError(f"this is not an entry: {error}", 400) from error
        except ImportError as error:
            raise HandshakeError(str(error), HTTPStatus.SERVICE_UNAVAILABLE) from error
        if not signed:
            raise HandshakeError("the signature is not of the account of the entry", 401)
        self._check_rate(self._accounts, entry.twin.account)
        known = self._store.find(entry.twin.account) is not None
        try:
            number = self._store.put(entry)
        except StaleEntry as error:
            raise HandshakeError(str(error), HTTPStatus.CONFLICT) from error
        except StoreFull as error:
            raise HandshakeError(str(error), HTTPStatus.INSUFFICIENT_STORAGE) from error
        status = HTTPStatus.OK if known else HTTPStatus.CREATED
        return status, entry._replace(twin=entry.twin._replace(id=number))

    def _check_rate(self, limiter: FixedWindow, source: bytes) -> None:
        key = int.from_bytes(hashlib.sha256(source).digest()[:8], "big")
        with self._limits:
            allowed = limiter.allows(key, 1, time.time())
        if not allowed:
            raise HandshakeError("too many entries in a minute: try again later", 429)


def serve_registrar(
    database: Path | str,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    ssl_context: ssl.SSLContext | None = None,
    max_connections: int = MAX_CONNECTIONS,
    config: Config | None = None,
) -> RegistrarServer:
    """Serve a signed directory in background threads; return the running server.

    Args:
        database: the file of the SQLite database, made if it does not exist.
        host, port: where to listen; port 0 takes a free one, available as ``server.port``.
        ssl_context: the TLS settings; without it, the server speaks ``http://``.
        max_connections: connections at once, each with a thread.
        config: the limits of requests and of connections per address.

    Raises:
        OSError: the address cannot be listened on.
        sqlite3.Error: the database cannot be used.
    """
    store = EntryStore(database)
    try:
        listener = listen(host, port)
    except BaseException:
        store.close()
        raise
    options: dict[str, Any] = {"ssl_context": ssl_context, "config": config}
    return RegistrarServer(store, listener, max_connections=max_connections, **options)
