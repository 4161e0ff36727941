"""Describe connections on the driver, and make them where a task runs.

A ``Recipe`` holds the arguments of ``connection`` and nothing else: it is picklable, and connects
only on use. In each process that uses it, one ``Link`` serves all tasks: Spark reuses its worker
processes, so a cluster has one socket per worker, not per task. River calls, by ``client()``, and
streams, by ``streams()`` and ``open_stream()``, have a socket each, opened on first use.

A forked child starts without links. Nothing is closed when a process ends: Spark kills its workers,
and the server sees the connection end. Before that, a link that opens a connection has those closed
which nobody uses, so that settings that differ from task to task leave no sockets behind.

A process that only plans, such as one in which Spark asks a data source for its schema, should keep
no connection: ``with recipe.once() as link`` closes what it opened.

The first thread that needs a connection opens it while the others wait. Everything may be called
from any thread.
"""

from __future__ import annotations

import os
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4
from weakref import WeakValueDictionary

from ..client import connect as connect_mux
from ..config import Config, Resume
from ..exceptions import HandshakeError, NoThreadError, WsmuxError
from ..handshake.headers import header_lines
from ..mux.connection import Connection
from ..mux.stream import Stream
from ..rpc import Client, Options, RiverError
from ..rpc import connect as connect_rpc
from ..runtime import clock, fork
from ..runtime.arguments import check_seconds
from ..runtime.backoff import Backoff
from ..runtime.deadline import Deadline
from ..runtime.hints import check_characters, wrong_url
from ..runtime.logs import logger
from ..runtime.threads import daemon_thread, start_thread
from .errors import SparkError, hide, place, shown_url
from .protocol import MAX_HEADER, encode_line, is_busy, parse_line, read_line
from .retries import Retries

__all__ = ["Link", "Recipe", "connection", "retry_waits"]

# Seconds between attempts to connect, at most, so that a server that comes back is soon found; and
# at least, where nobody wishes to wait.
LONGEST_WAIT, SHORTEST_WAIT = 2.0, 0.02

# Seconds for which a connection for streams that was cut is waited for, at most.
LONGEST_GRACE = 60.0

# The fraction (1/n) of ``connect_timeout`` that such a wait may take.
WAITS = 4

# Links without a call or a stream that stay open for the next tasks, and seconds for which they do.
MOST_UNUSED = 8
UNUSED_FOR = 60.0

# HTTP statuses for refused credentials; retrying is useless.
UNWELCOME = frozenset({401, 403})

NO_CONNECTION, TIMEOUT, UNAUTHORIZED = "NO_CONNECTION", "TIMEOUT", "UNAUTHORIZED"

T = TypeVar("T")

_log = logger("wsmux.spark")


class Link:
    """Hold this process's connections for one recipe.

    Args:
        pause: sleeps.
        opened: called with the link behind each new client and connection.

    Attributes:
        recipe: the connection settings.
        used: when a client, a connection or a stream was last asked for, by ``clock.monotonic``.
    """

    def __init__(
        self,
        recipe: Recipe,
        pause: Callable[[float], object] = time.sleep,
        opened: Callable[[Link], object] | None = None,
    ) -> None:
        self.recipe = recipe
        self.used = clock.monotonic()
        self._pause = pause
        self._opened_one = opened
        self._users = 0
        self._counting = threading.Lock()  # of users; the other one is held while it connects
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._streams: Connection | None = None
        self._refused = False
        self._token = ""

    def __repr__(self) -> str:
        return f"<Link {shown_url(self.recipe.url)}>"

    def client(self) -> Client:
        """Return the River client, which connects with its first call and reconnects when lost.

        It is shared: do not close it, and ask for it again instead of keeping it: one without calls
        may be closed when other settings need a connection, but not within ``in_use``.
        """
        with self._lock:
            self.used = clock.monotonic()
            client = self._client
            if client is not None and not client.closed:
                return client
            client = self._client = self._new_client()
        self._tell_opened()
        return client

    def streams(self) -> Connection:
        """Return the connection for streams, opened again if it was lost; blocks while it connects.

        Raises:
            SparkError: UNAUTHORIZED; NO_CONNECTION or TIMEOUT, after retries of up to
                ``connect_timeout`` each.
        """
        return self._again("connecting", self._connected)

    def open_stream(self, name: str | None = None, /, **header: Any) -> Stream:
        """Open a stream, connecting first if needed, and retrying after transient errors.

        A server that is away is waited for as a call waits: ``connect_timeout`` seconds at each
        attempt, of which there are ``retries`` and one.

        With a name, the stream begins with one line of JSON each way: ``{"stream": name}`` merged
        with ``header``; then the server's ``{"ok": true}``, or a refusal, which is raised.

        Raises:
            SparkError: the server refused the stream, with its code; or it could not be opened.
        """
        return self.ask_stream(name, **header)[0]

    def ask_stream(
        self, name: str | None = None, /, **header: Any
    ) -> tuple[Stream, dict[str, Any]]:
        """Open a stream as ``open_stream`` does; return it with the server's first line."""
        if name is None and header:
            raise ValueError("a header needs the name of a stream")
        line = b""
        if name is not None:
            line = encode_line({"stream": name, **header})
        if len(line) > MAX_HEADER:
            raise ValueError(f"the header of a stream takes at most {MAX_HEADER} bytes")
        what = f"stream {name}" if name else "stream"
        return self._again(what, lambda: self._opened(what, line))

    def close(self) -> None:
        """Close open connections; later use connects again."""
        with self._lock:
            given_up = self._give_up()
        given_up()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the connections open within the block, whether it has calls or streams or not."""
        with self._counting:
            self._users += 1
        try:
            yield
        finally:
            self.used = clock.monotonic()
            with self._counting:
                self._users -= 1

    def is_unused(self) -> bool:
        """Return whether there is no block of ``in_use``, no call and no stream. Never blocks."""
        if not self._lock.acquire(blocking=False):
            return False  # a thread connects
        try:
            return self._has_no_use()
        finally:
            self._lock.release()

    def give_up_unused(self) -> Callable[[], None] | None:
        """Give up the connections unless they are in use, as ``is_unused``; never blocks.

        Returns:
            What closes them, and may block; whoever asks for one from now on gets another. ``None``
            if they are in use.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._give_up() if self._has_no_use() else None
        finally:
            self._lock.release()

    def _has_no_use(self) -> bool:
        session = None if self._client is None else self._client.session
        streams = 0 if self._streams is None else self._streams.stats().streams
        return not (self._users or streams or (session is not None and session.calls))

    def _give_up(self) -> Callable[[], None]:
        client, self._client = self._client, None
        streams, self._streams = self._streams, None

        def close() -> None:
            if client is not None:
                client.close()
            if streams is not None:
                streams.close(timeout=self.recipe.connect_timeout)

        return close

    def _tell_opened(self) -> None:
        if self._opened_one is not None:
            self._opened_one(self)

    def error(
        self, code: str, message: str, what: str, inflight: int | None = None, **more: Any
    ) -> SparkError:
        """Return an error of this link, with secrets removed from its text."""
        if inflight is not None:
            more["inflight"] = inflight
        message = hide(message, self._token).replace(self.recipe.url, shown_url(self.recipe.url))
        return SparkError(code, message, what, place(self.recipe.url, **more))

    def failure(self, error: Exception, what: str) -> SparkError:
        """Return the exception for an error of a connection or a stream."""
        if isinstance(error, RiverError):
            return self.error(error.code, error.message, what)
        if _is_unwelcome(error):
            return self.error(UNAUTHORIZED, str(error), what)
        if isinstance(error, TimeoutError):
            return self.error(TIMEOUT, str(error), what)
        return self.error(NO_CONNECTION, str(error), what)

    def refused(self) -> bool:
        """Return whether the client's last attempt was refused for its credentials."""
        return self._refused

    # River

    def _new_client(self) -> Client:
        recipe = self.recipe
        # A call fails when its session has no connection within the grace period, so that is the
        # user's timeout; each attempt gets half of it.
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
        self._refused = False  # a new attempt starts
        return self._headers()

    def _is_fatal(self, error: Exception) -> bool:
        self._refused = _is_unwelcome(error)
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
        """Return the connection, opened by as many attempts as fit ``connect_timeout``."""
        recipe = self.recipe
        deadline = Deadline(recipe.connect_timeout)
        waits = retry_waits(recipe)
        before: Exception | None = None
        while True:
            try:
                return self._connect(deadline)
            except (WsmuxError, OSError) as error:
                if before is not None and isinstance(error, TimeoutError):
                    raise before from None  # this one had what time was left, and says less
                before = error
                wait = waits.next()
                left = deadline.remaining()
                if _is_unwelcome(error) or (left is not None and left <= wait):
                    raise
            self._pause(wait)

    def _connect(self, deadline: Deadline) -> Connection:
        """Return the connection, opened by one attempt if there is none."""
        if not self._lock.acquire(timeout=deadline.park_seconds()):
            raise TimeoutError("another thread is still connecting")
        try:
            self.used = clock.monotonic()
            new = self._streams is None or self._streams.closed
            if self._streams is None or new:
                self._streams = None
                window = self.recipe.window
                left = deadline.remaining()
                first = [self._headers()]  # making a token takes none of the time to connect

                def headers() -> dict[str, str]:
                    return first.pop() if first else self._headers()

                self._streams = connect_mux(
                    self.recipe.url,
                    timeout=left,
                    config=Config() if window is None else Config(receive_window=window),
                    headers=headers,
                    ssl_context=self._ssl_context(),
                    accept_streams=False,
                    # It ends before a wait for the server's answer does, which is tried again.
                    resume=Resume(grace=min(LONGEST_GRACE, self.recipe.connect_timeout / 2)),
                )
            streams = self._streams
        finally:
            self._lock.release()
        if new:
            self._tell_opened()
        return streams

    def _opened(self, what: str, line: bytes) -> tuple[Stream, dict[str, Any]]:
        stream = self._connected().open_stream(timeout=self.recipe.connect_timeout)
        if not line:
            return stream, {}
        try:
            usual, stream.timeout = stream.timeout, self.recipe.connect_timeout
            stream.write(line)
            reply = _read_reply(stream)
            stream.timeout = usual
        except BaseException:
            stream.reset()
            raise
        if reply.get("ok") is True:
            return stream, reply
        stream.reset()
        code, message = str(reply.get("code", "REFUSED")), str(reply.get("message", "no reason"))
        refused = RiverError(code, message)
        raise refused if is_busy(refused) else self.failure(refused, what)

    def _again(self, what: str, action: Callable[[], T]) -> T:
        """Retry an action until it succeeds, fails permanently, or retries are used up."""
        retries = Retries(self.recipe.retries, self.recipe.retry_backoff, self._pause)
        return retries.call(
            action, lambda error: self.failure(error, what), lambda error: not _is_unwelcome(error)
        )


def retry_waits(recipe: Recipe) -> Backoff:
    """Return the waits between attempts to reach a server that is away.

    They are those before repetitions, but shorter, so that several fit ``connect_timeout``.
    """
    first = max(recipe.retry_backoff, SHORTEST_WAIT)
    return Backoff(first, max(first, min(LONGEST_WAIT, recipe.connect_timeout / WAITS)), least=0.5)


def _is_unwelcome(error: Exception) -> bool:
    """Return whether the server refuses the credentials, whoever asks again."""
    return isinstance(error, HandshakeError) and error.status in UNWELCOME


def _token(token: str | Callable[[], str]) -> str:
    if not callable(token):
        return token
    try:
        made = token()
    except Exception as error:  # its text may contain a secret
        raise HandshakeError(f"token= failed with {type(error).__name__}") from error
    if not isinstance(made, str) or not made.isprintable():
        raise HandshakeError("token= must return a string without line breaks")
    return made


def _read_reply(stream: Stream) -> dict[str, Any]:
    """Return the first line of a server.

    Raises:
        ConnectionError: there is none, or it is no object of JSON.
    """
    try:
        return parse_line(read_line(stream.readinto))
    except RiverError as error:
        raise ConnectionError(f"the server's answer cannot be used: {error.message}") from error


Token = str | Callable[[], str]


@dataclass(frozen=True, slots=True, repr=False, eq=False, kw_only=True)
class Recipe:
    """Hold connection settings; made by ``connection``, whose arguments are the attributes.

    Equal arguments make equal recipes, functions of modules included. Pickling changes the identity
    of other functions, so a recipe with such a one equals only its own copies.
    """

    url: str
    token: Token | None = None
    metadata: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    codec: Literal["msgpack", "json"] = "msgpack"
    connect_timeout: float = 10.0
    call_timeout: float = 60.0
    retries: int = 3
    retry_backoff: float = 0.2
    window: int | None = None
    ssl_ca: str | None = None
    made: str = ""
    """Distinguishes recipes with functions: their names, or a random id."""

    def _key(self) -> tuple[Any, ...]:
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(None if callable(value) else repr(value) for value in values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"<Recipe {shown_url(self.url)}>"

    def client(self) -> Client:
        """Return this process's River client; see ``Link.client``."""
        return self.link().client()

    def streams(self) -> Connection:
        """Return this process's connection for streams; see ``Link.streams``."""
        return self.link().streams()

    def open_stream(self, name: str | None = None, /, **header: Any) -> Stream:
        """Open a stream; see ``Link.open_stream``."""
        return self.link().open_stream(name, **header)

    def link(self) -> Link:
        """Return this process's link for the recipe."""
        return _links.of(self)

    @contextmanager
    def once(self) -> Iterator[Link]:
        """Return a separate link, closed at the end of the block."""
        link = Link(self)
        try:
            yield link
        finally:
            link.close()


def connection(
    url: str,
    *,
    # identity
    token: Token | None = None,
    metadata: Any = None,
    headers: Mapping[str, str] | None = None,
    # protocol
    codec: Literal["msgpack", "json"] = "msgpack",
    window: int | None = None,
    ssl_ca: str | None = None,
    # timeouts and retries
    connect_timeout: float = 10.0,
    call_timeout: float = 60.0,
    retries: int = 3,
    retry_backoff: float = 0.2,
) -> Recipe:
    """Return connection settings for a server; this only checks the arguments.

    Args:
        url: ``ws://`` or ``wss://``. Errors show it without its query; do not put secrets into it.
        token: sent as ``Authorization: Bearer`` on every connection. May be a function that returns
            it, called where and when a connection is made, so that it can be renewed and no secret
            is shipped with the job. It never appears in a repr or an error. Settings with the same
            function of a module share connections. With one of ``__main__``, a method or a lambda,
            only copies of the same settings do: make them once, on the driver.
        metadata: the metadata of River's handshake, or a function that returns it. Tasks share
            connections, so it cannot depend on the task.
        headers: further headers of the HTTP upgrades.
        codec: the codec of River calls, ``"msgpack"`` or ``"json"``, as the server's.
        window: receive window of each stream in bytes, 256 KiB by default.
        ssl_ca: for ``wss://``, the certificates to trust instead of the system's: a file on the
            workers, or PEM text.
        connect_timeout: seconds that a call or a stream waits for a connection, at each of its
            attempts: with ``retries=3``, a server may be away for four times as long.
        call_timeout: seconds per call, unless it has its own timeout.
        retries: repetitions after a transient error: a lost connection, a refused stream, a
            timeout, or BUSY of the data server.
        retry_backoff: seconds before the first repetition, doubled for each further one up to 30 s,
            and between attempts to connect a stream, there up to 2 s. Up to half of it is left out
            at random, so that the tasks of a job do not retry all at once.

    Raises:
        ValueError: an argument is invalid.

    >>> connection("wss://example.org/data", token="secret")
    <Recipe wss://example.org/data>
    """
    parts = urlsplit(url)
    check_characters(url, shown_url(url))
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ValueError(wrong_url(shown_url(url), "ws", "wss"))
    if parts.username is not None or parts.password is not None:
        raise ValueError("errors would show the user or password in the URL: use token=")
    if codec not in ("msgpack", "json"):
        raise ValueError(f"codec must be 'msgpack' or 'json', not {codec!r}")
    pairs = tuple((headers or {}).items())
    if token is not None and any(name.lower() == "authorization" for name, _ in pairs):
        raise ValueError("token= and an Authorization header exclude each other")
    lines = [text for pair in pairs for text in pair] + ([token] if isinstance(token, str) else [])
    if not all(isinstance(text, str) and text.isprintable() for text in lines):
        raise ValueError("headers and token= must be strings without line breaks")
    header_lines(headers)  # raises for other invalid headers
    check_seconds(connect_timeout=connect_timeout, call_timeout=call_timeout)
    if retries < 0 or retry_backoff < 0:
        raise ValueError("retries and retry_backoff must not be negative")
    return Recipe(
        url=url,
        token=token,
        metadata=metadata,
        headers=pairs,
        codec=codec,
        connect_timeout=connect_timeout,
        call_timeout=call_timeout,
        retries=retries,
        retry_backoff=retry_backoff,
        window=window,
        ssl_ca=ssl_ca,
        made=" ".join(
            f"{what}={_name_of(given)}"
            for what, given in (("token", token), ("metadata", metadata))
            if callable(given)
        ),
    )


def _name_of(function: Callable[..., object]) -> str:
    """Return the name of a function that stands for it in each process, or else a random one.

    Spark ships what stands in ``__main__`` by value: of the same name there may be others.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module in sys.modules and module != "__main__" and isinstance(name, str):
        found: Any = sys.modules[module]
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is function:
            return f"{module}.{name}"
    return uuid4().hex


class _Links:
    """Hold the links of this process, and close what is not needed any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forget()
        fork.register(self)

    def of(self, recipe: Recipe) -> Link:
        """Return the link of a recipe."""
        key = os.getpid(), recipe
        with self._lock:
            link = self._known.get(key)
            if link is None:
                link = self._known[key] = Link(recipe, opened=self._opened)
            return link

    def _opened(self, link: Link) -> None:
        """Hold a link that has opened a connection, and close those that are left unused."""
        now = clock.monotonic()
        closing = []
        with self._lock:
            self._held[os.getpid(), link.recipe] = link
            others = (pair for pair in self._held.items() if pair[1] is not link)
            unused = [pair for pair in others if pair[1].is_unused()]
            unused.sort(key=lambda pair: pair[1].used, reverse=True)
            for place, (key, each) in enumerate(unused):
                if place >= MOST_UNUSED or now - each.used > UNUSED_FOR:
                    close = each.give_up_unused()
                    if close is not None:
                        del self._held[key]
                        closing.append(close)
        if closing:
            try:  # which may take its time, and nobody need wait for it
                start_thread(daemon_thread(_close, args=(closing,), name="wsmux-links-closing"))
            except NoThreadError:
                _close(closing)

    def forked(self) -> None:
        """Drop the links in a forked child; see ``runtime.fork``."""
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        # Those with connections; and all, of which somebody may have kept one without.
        self._held: dict[tuple[int, Recipe], Link] = {}
        self._known: WeakValueDictionary[tuple[int, Recipe], Link] = WeakValueDictionary()


def _close(closing: Iterable[Callable[[], None]]) -> None:
    for close in closing:
        try:
            close()
        except (WsmuxError, OSError) as error:
            _log.debug("a connection that nobody used could not be closed: %s", error)


_links = _Links()
