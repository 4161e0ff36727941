"""The WSGI applications that the tests ask, and the two ends between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.validate import validator

import requests

import wsmux
from wsmux.adapters import MuxAdapter
from wsmux.wsgi import serve

from .timeouts import WAIT

__all__ = ["WAIT", "Gate", "app", "asking", "published", "talking"]

Environ = dict[str, Any]
Start = Callable[..., Any]


class Gate:
    """Hold what the application for ``/slow`` waits for, and what it was seen to do."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.running = threading.Event()
        self.closed = threading.Event()


def app(environ: Environ, start: Start) -> Iterable[bytes]:
    """Do what the path says."""
    return PATHS[environ["PATH_INFO"]](environ, start)


def _tell(environ: Environ, start: Start) -> Iterable[bytes]:
    names = ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "SERVER_NAME", "SERVER_PORT")
    told = {name: environ[name] for name in names}
    told |= {name: value for name, value in environ.items() if name.startswith("HTTP_")}
    start("200 OK", [("Content-Type", "text/plain"), ("Set-Cookie", "a=b")])
    return ["\n".join(f"{name}={told[name]}" for name in sorted(told)).encode("latin-1")]


def _echo(environ: Environ, start: Start) -> Iterable[bytes]:
    start("200 OK", [("Content-Type", "application/octet-stream")])
    source = environ["wsgi.input"]
    return iter(lambda: source.read(50_000), b"")


def _count(environ: Environ, start: Start) -> Iterable[bytes]:
    source, count = environ["wsgi.input"], 0
    while piece := source.read(50_000):
        count += len(piece)
    body = str(count).encode()
    start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


def _refuse(environ: Environ, start: Start) -> Iterable[bytes]:
    start("413 Content Too Large", [("Content-Type", "text/plain"), ("Content-Length", "8")])
    return [b"too much"]


def _empty(environ: Environ, start: Start) -> Iterable[bytes]:
    start("204 No Content", [])
    return []


def _fail(environ: Environ, start: Start) -> Iterable[bytes]:
    raise LookupError("on purpose")


def _fail_late(environ: Environ, start: Start) -> Iterable[bytes]:
    start("200 OK", [("Content-Type", "text/plain")])
    yield b"half an answer"
    raise LookupError("on purpose, later")


def _short(environ: Environ, start: Start) -> Iterable[bytes]:
    start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "100")])
    return [b"fewer"]


PATHS: dict[str, Callable[[Environ, Start], Iterable[bytes]]] = {
    "/": _tell,
    "/a b/ü".encode().decode("latin-1"): _tell,
    "/count": _count,
    "/echo": _echo,
    "/empty": _empty,
    "/fail": _fail,
    "/fail-late": _fail_late,
    "/refuse": _refuse,
    "/short": _short,
}


def slow(gate: Gate) -> Callable[[Environ, Start], Iterable[bytes]]:
    """Return an application that answers when the gate opens, for ever after."""

    class Pieces:
        def __iter__(self) -> Iterator[bytes]:
            gate.running.set()
            gate.open.wait(WAIT)
            while True:
                yield bytes(50_000)

        def close(self) -> None:
            gate.closed.set()

    def run(environ: Environ, start: Start) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "application/octet-stream")])
        return Pieces()

    return run


@contextmanager
def published(application: Any, protocol: str = "wsmux", **options: Any) -> Iterator[Any]:
    """Yield a connection whose other end serves an application."""
    client, server = wsmux.pair(protocol=protocol)
    with client, server:
        serve(server, application, **options)
        yield client


@contextmanager
def asking(application: Any = app, **options: Any) -> Iterator[requests.Session]:
    """Yield a session of requests that asks it, over ``mux://``; what it does is validated."""
    checked = validator(application) if application is app else application
    with published(checked, **options) as client, requests.Session() as session:
        session.mount("mux://", MuxAdapter(client))
        yield session


@contextmanager
def talking(handler: Callable[[wsmux.Stream], object]) -> Iterator[wsmux.Connection]:
    """Yield a connection whose other end answers streams by hand."""
    ours, theirs = wsmux.pair()
    with ours, theirs:
        threading.Thread(target=_each, args=(theirs, handler), daemon=True).start()
        yield ours


def _each(connection: wsmux.Connection, handler: Callable[[wsmux.Stream], object]) -> None:
    try:
        for stream in connection:
            stream.timeout = WAIT
            handler(stream)
    except wsmux.ConnectionClosed:
        return  # as the test wants it
