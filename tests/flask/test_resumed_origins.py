"""A session goes on where it began and as the user who began it, and nowhere else."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from flask import Flask

import wsmux
from wsmux.flask import Mux
from wsmux.protocols.resumption import Hello, Refusal, Welcome, parse_answer
from wsmux.testing import FaultProxy

from ..helpers.raw_peer import BINARY, RawPeer, raw_client
from ..helpers.raw_sessions import ID
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for
from ..helpers.werkzeug_server import serving

SUBPROTOCOL = "wsmux.resume.v1+wsmux"


def by_header(request: wsmux.Request) -> str:
    return request.headers["x-user"]


@contextmanager
def routes(resume: wsmux.Resume) -> Iterator[int]:
    app = Flask("app")
    mux = Mux(app, authorize=by_header, resume=resume)
    for name in ("one", "two"):
        mux.stream_route(f"/{name}", endpoint=name)(wsmux.Stream.close)
    with serving(app) as port:
        try:
            yield port
        finally:
            mux.shutdown(0)


@contextmanager
def served(resume: wsmux.Resume) -> Iterator[int]:
    with wsmux.serve(wsmux.Connection.wait_closed, authorize=by_header, resume=resume) as server:
        try:
            yield server.port
        finally:
            server.shutdown(0)


Kind = Callable[[wsmux.Resume], AbstractContextManager[int]]
KINDS: dict[str, Kind] = {"Mux": routes, "serve": served}


@contextmanager
def greeted(
    port: int, hello: Hello, key: bytes | None = None, path: str = "/one", user: str = "ann"
) -> Iterator[tuple[RawPeer, Welcome | Refusal]]:
    """Say HELLO; yield the answer."""
    with raw_client(port, 0, SUBPROTOCOL, path, {"X-User": user}) as peer:
        peer.send_frame(BINARY, hello.encode(key))
        yield peer, parse_answer(peer.recv_message())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("path", "user"), [("/two", "ann"), ("/one", "bob")])
def test_who_returns_elsewhere_or_as_somebody_else_is_refused(
    kind: str, path: str, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        KINDS[kind](wsmux.Resume()) as port,
        caplog.at_level(logging.INFO, "wsmux.audit"),
        greeted(port, Hello(ID)) as (_, begun),
    ):
        assert isinstance(begun, Welcome)
        wait_for(lambda: any(each.startswith("accepted ") for each in caplog.messages))
        hello = Hello(ID, begun.epoch, 1, True)
        with greeted(port, hello, begun.key, path, user) as (_, answer):
            assert isinstance(answer, Refusal)
            assert answer.reason == "the session began on another path, or as another user"
        wait_for(lambda: any(f"refused path={path} " in each for each in caplog.messages))
        (line,) = (each for each in caplog.messages if each.startswith("refused "))
        assert f"user={user} " in line
        # Nothing has changed for who began it.
        with greeted(port, hello, begun.key) as (_, welcome):
            assert isinstance(welcome, Welcome)


@pytest.mark.parametrize(("path", "user"), [("/two", "ann"), ("/one", "bob")])
def test_another_worker_tells_where_the_client_has_returned(path: str, user: str) -> None:
    with tempfile.TemporaryDirectory(prefix="wsmux-") as name:  # a short path, for its sockets
        check_another_worker(wsmux.Resume(workers=Path(name, "workers")), path, user)


def check_another_worker(resume: wsmux.Resume, path: str, user: str) -> None:
    with served(resume) as owner, served(resume) as other, greeted(owner, Hello(ID)) as (_, begun):
        assert isinstance(begun, Welcome)
        hello = Hello(ID, begun.epoch, 1, True)

        def welcomed() -> bool:
            with greeted(other, hello, begun.key) as (_, answer):
                return isinstance(answer, Welcome)

        with greeted(other, hello, begun.key, path, user) as (_, answer):
            assert isinstance(answer, Refusal)
            assert "on another path, or as another user" in answer.reason
        assert welcomed()


def test_a_client_whose_user_has_changed_loses_its_connection() -> None:
    users = iter(["ann", "bob"])
    with (
        served(wsmux.Resume()) as port,
        FaultProxy(port) as proxy,
        wsmux.connect(
            proxy.url, resume=True, headers=lambda: {"X-User": next(users)}, timeout=WAIT
        ) as connection,
    ):
        proxy.reset()
        assert connection.wait_closed(WAIT)
        assert isinstance(connection.error, wsmux.ResumeLost)
        assert "as another user" in str(connection.error)
