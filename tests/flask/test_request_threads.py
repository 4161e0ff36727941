"""Connections leave a WSGI server some of its threads; the rest are refused at once, with 503."""

from __future__ import annotations

import logging
import re
import resource
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection

import pytest
from flask import Flask, request

import wsmux
from wsmux import rpc
from wsmux.flask import Mux, upgrades
from wsmux.flask import request_threads as module
from wsmux.flask.request_threads import (
    ConnectionLimit,
    closes_alone,
    longest_closing,
    longest_stop,
    most_connections,
    request_threads,
    tell_why_held,
    why_held,
)
from wsmux.runtime import descriptors

from ..helpers.commands import PATIENCE
from ..helpers.drained_server import THREADS, drained
from ..helpers.raw_peer import WAIT
from ..helpers.rpc.procedures import Gate, offered
from ..helpers.waiting import wait_for
from ..helpers.werkzeug_server import serving

# What a client sends that asks for a WebSocket.
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}

# Of 8 threads one is kept.
MOST = 7


def test_no_server_but_gunicorn_is_known_by_its_threads() -> None:
    assert request_threads() is None
    assert most_connections() is None


@pytest.mark.parametrize(
    ("threads", "most"), [(1, 1), (2, 1), (8, 7), (15, 14), (16, 14), (100, 88)]
)
def test_one_thread_in_eight_is_kept(
    monkeypatch: pytest.MonkeyPatch, threads: int, most: int
) -> None:
    monkeypatch.setattr(module, "request_threads", lambda: threads)
    assert most_connections() == most


class Worker:
    """A worker of gunicorn, as far as anybody asks."""

    __module__ = "gunicorn.workers.base"

    def __init__(self, **attributes: object) -> None:
        vars(self).update(attributes)

    def handle(self, number: int, frame: object) -> None:
        """Handle a signal."""


class Settings:
    threads = 8
    timeout = 30
    graceful_timeout = 20
    is_ssl = False


@pytest.fixture
def handlers() -> Iterator[None]:
    """Put back what handles the signals that a worker handles."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGWINCH)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("worker", "threads"),
    [
        (Worker(tpool=None, worker_connections=1000, cfg=Settings), 8),
        (Worker(tpool=None, worker_connections=5, cfg=Settings), 5),
        (Worker(worker_connections=1000, cfg=Settings), 1000),
        (Worker(cfg=Settings), None),
    ],
    ids=["gthread", "fewer connections", "gevent", "sync"],
)
def test_a_worker_of_gunicorn_is_known_by_its_handlers(worker: Worker, threads: int | None) -> None:
    signal.signal(signal.SIGUSR1, lambda number, frame: None)  # the application's own
    signal.signal(signal.SIGWINCH, worker.handle)
    assert request_threads() == threads


def threaded(**attributes: object) -> Worker:
    """Return a worker that runs requests in threads."""
    kind = type("Threaded", (Worker,), {"__module__": "gunicorn.workers.gthread"})
    return kind(cfg=type("Changed", (Settings,), attributes))


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("worker", "environ", "why"),
    [
        (threaded(), {"gunicorn.socket": None}, None),
        (threaded(is_ssl=True), None, "own TLS is bound to the number of a descriptor"),
        (Worker(cfg=Settings), None, "not known to let a connection leave"),
        (None, None, None),
        (None, {"SERVER_SOFTWARE": "gevent/24.2"}, "gevent has no threads"),
        (None, {"werkzeug.socket": None}, "Werkzeug gives each request a thread"),
        (None, {"gunicorn.socket": None}, "not known to let a connection leave"),
        (None, {"SERVER_SOFTWARE": "waitress"}, ""),
    ],
)
def test_why_a_connection_holds_its_thread(
    worker: Worker | None, environ: dict[str, object] | None, why: str | None
) -> None:
    if worker is not None:
        signal.signal(signal.SIGUSR1, worker.handle)
    reason = why_held(environ)
    if why:
        assert reason is not None
        assert why in reason
    else:
        assert reason == why
    assert not closes_alone(environ or {}, reason)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("worker", "times"),
    [(threaded(), [16.0]), (threaded(is_ssl=True), []), (Worker(cfg=Settings), []), (None, [])],
    ids=["gthread", "TLS", "another", "none"],
)
def test_only_a_worker_that_gets_threads_back_drains_unasked(
    worker: Worker | None, times: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[float | None] = []

    def note(shutdown: object, timeout: float | None, *, unasked: bool) -> None:
        assert unasked
        begun.append(timeout)

    monkeypatch.setattr(upgrades, "shut_down_on_signals", note)
    if worker is not None:
        signal.signal(signal.SIGUSR1, worker.handle)
    mux = Mux(Flask("app"))
    mux.route("/holds")(wsmux.Connection.wait_closed)
    assert not begun
    mux.stream_route("/gives-back")(print)
    assert begun == times


def test_why_is_logged_once_in_each_process(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "wsmux"):
        for reason in (None, "", "the reason of this test", "the reason of this test"):
            tell_why_held(reason)
    assert [each.getMessage() for each in caplog.records] == ["the reason of this test"]


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("times", "longest", "closing"),
    [({}, 16.0, 2.0), ({"timeout": 10}, 8.0, 1.0), ({"timeout": 0}, 16.0, 2.0)],
    ids=["graceful", "timeout", "no timeout"],
)
def test_a_stop_ends_before_gunicorn_kills(
    times: dict[str, object], longest: float, closing: float
) -> None:
    assert longest_stop() is None
    assert longest_closing() is None
    signal.signal(signal.SIGUSR1, threaded(**times).handle)
    assert (longest_stop(), longest_closing()) == (longest, closing)
    signal.signal(signal.SIGUSR1, threaded(timeout=0, graceful_timeout=0).handle)
    assert longest_stop() is None


# The count


def test_a_limit_of_its_own_counts_its_own_connections() -> None:
    one, other = ConnectionLimit("one", 2), ConnectionLimit("other", 1)
    with one.held(), one.held(), other.held():
        with pytest.raises(wsmux.HandshakeError, match="2 connections are open") as caught:
            one.held().__enter__()
        assert caught.value.status == 503
    with one.held():
        pass


def test_the_default_counts_the_connections_of_all_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "request_threads", lambda: 3)
    one, other, own = (
        ConnectionLimit("1", None),
        ConnectionLimit("2", None),
        ConnectionLimit("3", 9),
    )
    with one.held(), own.held():
        with pytest.raises(wsmux.HandshakeError):
            other.held().__enter__()
        with own.held():
            pass
    with other.held(), other.held():
        pass


def test_a_full_route_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    limit = ConnectionLimit("the route /full", 1)
    with caplog.at_level(logging.WARNING, "wsmux"), limit.held():
        for _ in range(3):
            with pytest.raises(wsmux.HandshakeError):
                limit.held().__enter__()
    [record] = [record for record in caplog.records if "/full" in record.getMessage()]
    assert "refuses further connections with 503: 1 are open" in record.getMessage()


@pytest.fixture
def few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process seem to have 64 descriptors, for 12 connections."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 64))


@pytest.mark.usefixtures("few_descriptors")
def test_connections_that_hold_no_thread_leave_descriptors() -> None:
    assert descriptors.most_connections() == 12
    limit, held = ConnectionLimit("one", 100), ConnectionLimit("held", 1)
    with ExitStack() as stack:
        for _ in range(12):
            assert not stack.enter_context(limit.held(detached=True))
        with pytest.raises(wsmux.HandshakeError, match="12 connections are open") as caught:
            limit.held(detached=True).__enter__()
        assert caught.value.status == 503
        for _ in range(4):  # as many as a part of the descriptors
            assert stack.enter_context(limit.held(detached=True, spare=50))
        with pytest.raises(wsmux.HandshakeError, match="16 connections are open"):
            limit.held(detached=True, spare=50).__enter__()
        with held.held():  # holds a thread, and is not counted here
            pass
    with limit.held(detached=True):
        pass


def test_without_a_limit_of_descriptors_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert descriptors.most_connections() > 2**32


def test_by_default_there_are_as_many_without_threads_as_a_server_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 3)
    one, other = ConnectionLimit("1", None), ConnectionLimit("2", None)
    with one.held(detached=True), other.held(detached=True), one.held(detached=True):
        with pytest.raises(wsmux.HandshakeError, match="3 connections are open"):
            other.held(detached=True).__enter__()
        with other.held(), other.held(detached=True, spare=1) as returns:
            assert returns


def test_those_that_have_a_limit_of_their_own_leave_the_default_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 1)
    own, other = ConnectionLimit("own", 5), ConnectionLimit("other", None)
    with own.held(detached=True), own.held(detached=True), other.held(detached=True):
        with pytest.raises(wsmux.HandshakeError, match="1 connections are open"):
            other.held(detached=True).__enter__()
        with own.held(detached=True):
            pass
    with other.held(detached=True):
        pass


@pytest.mark.usefixtures("few_descriptors", "handlers")
def test_a_limit_beyond_the_descriptors_is_told_at_start(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "wsmux"):
        ConnectionLimit("elsewhere", 13).tell()
        signal.signal(signal.SIGUSR1, threaded().handle)
        for most in (None, 12, 13):
            ConnectionLimit("the route", most).tell()
    [record] = caplog.records
    assert "the route takes 12 connections instead of max_connections=13" in record.getMessage()


def test_a_forked_child_counts_from_nothing() -> None:
    limit = ConnectionLimit("parent", 1)
    with limit.held():
        limit.forked()
        with limit.held():
            pass


@pytest.mark.parametrize("most", [0, -1])
def test_a_limit_must_let_somebody_in(most: int) -> None:
    app = Flask("app")
    with pytest.raises(ValueError, match="max_connections must be at least 1"):
        Mux(app, max_connections=most)
    with pytest.raises(ValueError, match="max_connections must be at least 1"):
        rpc.flask(app, "/river", [], max_connections=most)


# Routes


def test_a_refusal_says_why_and_when_to_come_again() -> None:
    app = Flask("app")
    mux = Mux(app, max_connections=1)
    mux.route("/mux")(wsmux.Connection.wait_closed)
    with serving(app) as port, ExitStack() as stack:
        first = wsmux.connect(f"ws://127.0.0.1:{port}/mux", timeout=WAIT)
        stack.callback(mux.shutdown, WAIT)
        asking = HTTPConnection("127.0.0.1", port, timeout=WAIT)
        asking.request("GET", "/mux", headers=UPGRADE)
        answer = asking.getresponse()
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        assert answer.read() == (
            b"1 connections are open, as many as this server takes; try again later\n"
        )
        asking.close()
        first.close()
        wait_for(lambda: connects(f"ws://127.0.0.1:{port}/mux"))


def connects(url: str) -> bool:
    try:
        wsmux.connect(url, timeout=WAIT).close()
    except wsmux.HandshakeError as error:
        if error.status != 503:
            raise
        return False
    return True


def test_a_river_route_that_shuts_down_refuses_with_503() -> None:
    app = Flask("app")
    handler = rpc.flask(app, "/river", [offered(Gate())])
    handler.shutdown()
    with serving(app) as port, pytest.raises(wsmux.HandshakeError, match="shuts down") as caught:
        wsmux.connect(f"ws://127.0.0.1:{port}/river", subprotocol=None, timeout=WAIT)
    assert caught.value.status == 503


def test_a_river_route_made_before_a_fork_says_so_in_the_child() -> None:
    app = Flask("app")
    handler = rpc.flask(app, "/river", [offered(Gate())])
    handler.forked()
    with serving(app) as port, pytest.raises(wsmux.HandshakeError, match="each worker") as caught:
        wsmux.connect(f"ws://127.0.0.1:{port}/river", subprotocol=None, timeout=WAIT)
    assert caught.value.status == 500
    handler.shutdown()


@pytest.mark.parametrize("detach", [True, False])
def test_werkzeug_has_no_thread_to_take_back(
    detach: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = module._Process()
    monkeypatch.setattr(module, "_process", process)
    app = Flask("app")
    mux = Mux(app)

    @mux.route("/room", detach=detach)
    def room(connection: wsmux.Connection) -> None:
        with connection.accept_stream(WAIT) as stream:
            stream.write(f"{request.path} {threading.current_thread().name}".encode())
        connection.wait_closed(WAIT)

    with caplog.at_level(logging.INFO, "wsmux"), serving(app) as port:
        for _ in range(2):
            url = f"ws://127.0.0.1:{port}/room"
            with wsmux.connect(url) as connection, connection.open_stream() as stream:
                told = stream.read().decode()
                assert told.startswith("/room ")
                assert "process_request_thread" in told
        wait_for(lambda: not process.held)  # a later end would count for the real one
    assert caplog.text.count("Werkzeug gives each request a thread of its own") == detach


# gunicorn


def healthy(url: str) -> bool:
    """Return whether a health check is answered."""
    address = url.replace("ws", "http", 1) + "health"
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        return bool(answer.read() == b"well")


def test_a_full_gunicorn_refuses_river_clients_and_stays_healthy() -> None:
    failures: list[Exception] = []
    patient = rpc.Options(connection_timeout=PATIENCE)  # a busy machine is no refusal

    def note(error: Exception) -> bool:
        failures.append(error)
        return False

    with drained("gthread", held=True) as (process, url), ExitStack() as stack:
        clients = [
            stack.enter_context(rpc.connect(f"{url}river", is_fatal=note, options=patient))
            for _ in range(THREADS + 4)
        ]
        clients[0].wait_connected(PATIENCE)  # the server has started
        for client in clients:
            stack.enter_context(client.subscribe("drained", "hang", None))
        wait_for(lambda: len(connected(clients)) == MOST and len(failures) >= len(clients) - MOST)
        assert healthy(url)
        for error in failures:
            assert isinstance(error, wsmux.HandshakeError)
            assert error.status == 503
            assert "7 connections are open, as many as this server takes" in str(error)
        waiting = next(each for each in clients if each not in connected(clients))
        wait_for(lambda: re.search("answered 503 .* try again later", why_not_connected(waiting)))
        connected(clients)[0].close()  # another one takes its place
        wait_for(lambda: len(connected(clients)) == MOST)
        process.terminate()
        process.wait(PATIENCE)
        assert process.stderr is not None
        lines = [line for line in process.stderr if "refuses further connections" in line]
        assert [line.split(" refuses")[0] for line in lines] == ["the route /river"]


def why_not_connected(client: rpc.Client) -> str:
    with pytest.raises(TimeoutError) as caught:
        client.wait_connected(0.01)
    return str(caught.value)


def connected(clients: list[rpc.Client]) -> list[rpc.Client]:
    return [client for client in clients if repr(client).endswith(" connected>")]


def test_all_routes_of_a_gunicorn_worker_share_its_threads() -> None:
    with drained("gthread", held=True) as (_, url), ExitStack() as stack:
        client = stack.enter_context(rpc.connect(f"{url}river"))
        client.wait_connected(PATIENCE)
        for _ in range(MOST - 1):
            stack.enter_context(wsmux.connect(url, timeout=WAIT))
        with pytest.raises(wsmux.HandshakeError, match="7 connections are open") as caught:
            wsmux.connect(url, timeout=WAIT)
        assert caught.value.status == 503
        assert healthy(url)
        client.close()
        wait_for(lambda: connects(url))
