"""Describe a connection on the driver, and make it where a task runs.

A ``Recipe`` holds the arguments of ``connection`` and nothing else: it pickles, and does nothing
until something is asked of it. The process that asks gets a ``Link``, which all its later tasks
use too: Spark reuses its worker processes, so that a cluster holds one socket for each of them,
not one for each task. Two conversations have a socket each, made when first used: River calls by
``client()``, streams by ``streams()`` and ``open_stream()``.

A forked child starts without links. Nothing is closed at the end of a process: Spark ends its
workers without asking them, and the server sees the end of the connection.

A process that only plans, such as those in which Spark asks a data source for its schema, should
hold nothing on: ``with recipe.once() as link`` closes what it has made.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import uuid4

from .. import forks
from ..connection import Connection
from ..headers import header_lines
from ..hints import check_characters, wrong_url
from ..rpc import Client
from ..stream import Stream
from .errors import shown_url
from .link import Link

__all__ = ["Recipe", "connection"]

Token = str | Callable[[], str]


@dataclass(frozen=True, slots=True, repr=False, eq=False, kw_only=True)
class Recipe:
    """Be what ``connection`` returns; see there for the arguments, which are the attributes.

    Equal arguments make equal recipes. A function among them is another one after each journey to
    a worker, so recipes with functions are equal to their own copies alone.
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
    """Tells recipes with functions apart."""

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
        """Return this process's River client. It is shared: do not close it."""
        return self.link().client()

    def streams(self) -> Connection:
        """Return this process's connection for streams, made anew if the last one was lost."""
        return self.link().streams()

    def open_stream(self, name: str | None = None, /, **header: Any) -> Stream:
        """Open a stream; see ``Link.open_stream``."""
        return self.link().open_stream(name, **header)

    def link(self) -> Link:
        """Return what this process holds of the recipe."""
        return _links.of(self)

    @contextmanager
    def once(self) -> Iterator[Link]:
        """Return a link of its own, which is closed at the end of the block."""
        link = Link(self)
        try:
            yield link
        finally:
            link.close()


def connection(
    url: str,
    *,
    # who asks
    token: Token | None = None,
    metadata: Any = None,
    headers: Mapping[str, str] | None = None,
    # how
    codec: Literal["msgpack", "json"] = "msgpack",
    window: int | None = None,
    ssl_ca: str | None = None,
    # time
    connect_timeout: float = 10.0,
    call_timeout: float = 60.0,
    retries: int = 3,
    retry_backoff: float = 0.2,
) -> Recipe:
    """Describe how to connect to a server; this does no more than check the arguments.

    Args:
        url: ``ws://`` or ``wss://``. It is told in errors, less its query; a secret is no part of
            it.
        token: sent as ``Authorization: Bearer``, on every connection. Or a function that returns
            it, called where and when a connection is made: so it can be renewed, and no secret
            travels with the job. It is shown in no repr and no error.
        metadata: what River's handshake carries, or a function that makes it. Connections are
            shared by tasks, so it cannot tell of the task.
        headers: further headers of both upgrades.
        codec: of River calls, ``"msgpack"`` or ``"json"``; the server's.
        window: bytes of each stream that the server may send unread, 256 KiB by default.
        ssl_ca: for ``wss://``, the certificates to trust instead of the system's: a file that the
            workers have, or the text of one (PEM).
        connect_timeout: seconds that a call or a stream waits for a connection.
        call_timeout: seconds of a call, unless it has its own.
        retries: how often something is tried again after a fault that may pass: a lost connection,
            a refused stream, a time that has run out.
        retry_backoff: seconds before the first repetition; doubled for each further one.

    Raises:
        ValueError: an argument is wrong.

    >>> connection("wss://example.org/data", token="secret")
    <Recipe wss://example.org/data>
    """
    parts = urlsplit(url)
    check_characters(url, shown_url(url))
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ValueError(wrong_url(shown_url(url), "ws", "wss"))
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address with a user or a password would be shown: use token=")
    if codec not in ("msgpack", "json"):
        raise ValueError(f"codec must be 'msgpack' or 'json', not {codec!r}")
    pairs = tuple((headers or {}).items())
    if token is not None and any(name.lower() == "authorization" for name, _ in pairs):
        raise ValueError("token= and an Authorization header exclude each other")
    lines = [text for pair in pairs for text in pair] + ([token] if isinstance(token, str) else [])
    if not all(isinstance(text, str) and text.isprintable() for text in lines):
        raise ValueError("headers and token= must be strings without line breaks")
    header_lines(headers)  # raises for what else no header can be
    for name, value in (("connect_timeout", connect_timeout), ("call_timeout", call_timeout)):
        if not value > 0:
            raise ValueError(f"{name} must be above 0, not {value!r}")
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
        made=uuid4().hex if callable(token) or callable(metadata) else "",
    )


class _Links:
    """Hold the links of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[int, Recipe], Link] = {}
        forks.register(self)

    def of(self, recipe: Recipe) -> Link:
        """Return the link of a recipe, made if there is none."""
        key = os.getpid(), recipe
        with self._lock:
            link = self._held.get(key)
            if link is None:
                link = self._held[key] = Link(recipe)
            return link

    def forked(self) -> None:
        """See ``forks``."""
        self._lock = threading.Lock()
        self._held = {}


_links = _Links()
