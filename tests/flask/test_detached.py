"""Connections give the threads of their requests back to gunicorn, and are not forgotten by it all.

What gunicorn counts, logs and waits for is asked of a real one.
"""

from __future__ import annotations

import ast
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from flask import Flask, request

import wsmux
from wsmux import rpc
from wsmux.flask import Mux, upgrades
from wsmux.flask.detached_threads import DetachedThreads
from wsmux.rpc.errors import UNEXPECTED_DISCONNECT
from wsmux.testing import FaultProxy

from ..helpers.certificates import Certificates
from ..helpers.commands import PATIENCE
from ..helpers.detached_site import counts, fetched, log, site
from ..helpers.drained_server import THREADS, gunicorn
from ..helpers.every_server import Place
from ..helpers.waiting import wait_for, wait_for_value
from ..helpers.werkzeug_server import serving

# Descriptors that a process keeps for waits to come, by design; and those of a few threads.
KEPT, SOME = 64, 16


def held(url: str) -> tuple[int, int]:
    """Return how many connections there are, and how many gunicorn counts: the one that asks."""
    told = counts(url)
    return told["connections"], told["counted"]


def connect(url: str) -> wsmux.Connection:
    return wsmux.connect(url, timeout=PATIENCE)


def echo(connection: wsmux.Connection) -> None:
    with connection.open_stream(PATIENCE) as stream:
        stream.timeout = PATIENCE
        stream.write(b"hello")
        assert stream.read(5) == b"hello"


def check_many(most: int) -> None:
    with site(max_connections=most) as (_, url), ExitStack() as stack:
        echo_and_leave(url, 1)
        before = counts(url)
        with ThreadPoolExecutor(2 * THREADS) as pool:
            connections = list(pool.map(lambda _: stack.enter_context(connect(url)), range(most)))
        for connection in connections:
            echo(connection)
            assert fetched(url, "health") == b"well"
        wait_for_value(lambda: held(url), (most, 1))
        stack.close()
        wait_for_value(lambda: held(url), (0, 1))
        wait_for(lambda: counts(url)["threads"] <= before["threads"] + THREADS)
        wait_for(lambda: counts(url)["descriptors"] <= before["descriptors"] + KEPT)


def test_200_connections_on_8_threads_echo_and_leave_nothing() -> None:
    check_many(200)


@pytest.mark.long
def test_1_000_connections_on_8_threads_echo_and_leave_nothing() -> None:
    check_many(1000)


def check_comings_and_goings(rounds: int) -> None:
    with site() as (process, url):
        echo_and_leave(url, 50)  # what is kept for good is there
        before = counts(url)
        echo_and_leave(url, rounds)
        wait_for_value(lambda: held(url), (0, 1))
        wait_for(lambda: counts(url)["threads"] <= before["threads"] + THREADS)
        wait_for(lambda: counts(url)["descriptors"] <= before["descriptors"] + SOME)
        assert "Traceback" not in log(process)


def echo_and_leave(url: str, rounds: int) -> None:
    for number in range(rounds):
        with connect(url) as connection:
            if number % 2:
                echo(connection)
            if number % 5 == 0:
                connection.abort()


def test_100_comings_and_goings_leave_the_count_right() -> None:
    check_comings_and_goings(100)


@pytest.mark.long
@pytest.mark.hang_bound(1200)
def test_10_000_comings_and_goings_leave_the_count_right() -> None:
    check_comings_and_goings(10_000)


def test_clients_of_river_hold_no_thread() -> None:
    with site() as (_, url), ExitStack() as stack:
        for _ in range(2 * THREADS):
            client = stack.enter_context(rpc.connect(f"{url}river"))
            client.wait_connected(PATIENCE)
        wait_for_value(lambda: held(url)[1], 1)


def test_a_connection_handler_runs_in_the_context_of_its_request() -> None:
    with site() as (process, url):
        with connect(f"{url}room/blue") as connection, connection.accept_stream(PATIENCE) as stream:
            path, name, known, application, has_g = ast.literal_eval(stream.read().decode())
            assert (path, name) == ("/room/blue", "blue")
            assert known == "before the request"
            assert application == "tests.helpers.detached_app"
            assert not has_g
            wait_for_value(lambda: held(url)[1], 1)
        assert process.stderr is not None
        assert process.stderr.readline() == "left the room blue\n"


def test_a_block_around_a_connection_runs_in_the_context_of_its_request() -> None:
    with site() as (process, url):
        assert process.stderr is not None
        with connect(f"{url}?who=blue") as connection:
            echo(connection)
            assert process.stderr.readline() == "blue has come\n"
            wait_for_value(lambda: held(url)[1], 1)
        assert process.stderr.readline() == "blue has gone\n"


def test_a_route_that_does_not_detach_holds_the_thread() -> None:
    with site(detach=False) as (_, url), connect(url) as connection:
        with connect(f"{url}room/red") as other, other.accept_stream(PATIENCE) as stream:
            assert ast.literal_eval(stream.read().decode())[-1] is True
            wait_for_value(lambda: held(url), (2, 3))
        wait_for_value(lambda: held(url), (1, 2))
        echo(connection)


# The worker's end


def told(connection: wsmux.Connection) -> int | None:
    """Return the code with which the server has closed a connection."""
    assert connection.wait_closed(PATIENCE)
    return connection.close_code


@pytest.mark.parametrize(
    ("drain", "number"),
    [
        pytest.param(0.5, signal.SIGTERM, id="drained, stopped"),
        pytest.param(0.5, signal.SIGHUP, id="drained, reloaded"),
        pytest.param(0.5, signal.SIGINT, id="drained, stopped at once", marks=pytest.mark.wide),
        pytest.param(None, signal.SIGTERM, id="unasked, stopped"),
        pytest.param(None, signal.SIGHUP, id="unasked, reloaded", marks=pytest.mark.wide),
        pytest.param(None, signal.SIGINT, id="unasked, stopped at once"),
    ],
)
def test_a_stop_and_a_reload_close_with_1001(drain: float | None, number: signal.Signals) -> None:
    with (
        site(drain=drain) as (process, url),
        connect(url) as idle,
        connect(f"{url}room/green") as room,
    ):
        with room.accept_stream(PATIENCE) as stream:
            assert stream.read()
        before = counts(url)["pid"]
        process.send_signal(number)
        assert told(idle) == 1001
        assert told(room) == 1001
        if number == signal.SIGHUP:
            wait_for(lambda: counts(url)["pid"] != before)
            echo_and_leave(url, 1)
            process.terminate()
        _, errors = process.communicate(timeout=PATIENCE)
        assert "left the room green\n" in errors  # its handler was waited for
        assert "Traceback" not in errors, errors


@pytest.mark.parametrize("drain", [4.0, None], ids=["drained", "unasked"])
def test_a_stream_may_end_after_a_stop(drain: float | None) -> None:
    with (
        site(drain=drain) as (process, url),
        connect(url) as connection,
        connection.open_stream(PATIENCE) as stream,
    ):
        stream.write(b"before")
        assert stream.read(6) == b"before"
        process.terminate()
        wait_for(lambda: refuses(connection))
        stream.write(b"to the end")
        stream.close_write()
        assert stream.read() == b"to the end"
        stream.close()
        assert told(connection) == 1001
        process.wait(PATIENCE)


def refuses(connection: wsmux.Connection) -> bool:
    try:
        connection.open_stream(PATIENCE).reset()
    except wsmux.StreamRefused:
        return True
    return False


def test_max_requests_counts_connections_and_closes_them_with_1001() -> None:
    with site("--max-requests", "4") as (process, url):
        before = counts(url)["pid"]  # behind a health check
        with connect(url) as connection:
            fetched(url, "health")
            assert told(connection) == 1001
            wait_for(lambda: counts(url)["pid"] != before)
            echo_and_leave(url, 1)
        assert "Traceback" not in log(process)


def test_the_access_log_has_requests_and_no_connections(tmp_path: Path) -> None:
    file = tmp_path / "access"
    with site("--access-logfile", str(file)) as (process, url):
        echo_and_leave(url, 3)
        with pytest.raises(wsmux.HandshakeError):
            wsmux.connect(f"{url}nowhere", timeout=PATIENCE)
        log(process)
    lines = [line.split('"')[1] for line in file.read_text().splitlines()]
    assert lines == ["GET /health HTTP/1.1", "GET /nowhere HTTP/1.1"]


def test_a_preloaded_application_is_shut_down_in_each_worker() -> None:
    with site("--preload") as (process, url), connect(url) as connection:
        echo(connection)
        wait_for_value(lambda: held(url), (1, 1))
        process.terminate()
        assert told(connection) == 1001
        process.wait(PATIENCE)


def test_sessions_of_river_end_and_states_are_disposed_of_unasked() -> None:
    with site() as (process, url), rpc.connect(f"{url}river") as client:
        call = client.subscribe("kept", "hang", None)
        assert call.read(PATIENCE) == "begun"
        process.terminate()
        with pytest.raises(rpc.RiverError) as caught:
            call.read(PATIENCE)
        assert caught.value.code == UNEXPECTED_DISCONNECT
        assert "disposed of the state\n" in process.communicate(timeout=PATIENCE)[1]


def test_a_thread_that_is_held_keeps_nobody_from_being_told() -> None:
    """gunicorn waits for it until it kills the worker, which exits only behind it."""
    with (
        site() as (process, url),
        rpc.connect(f"{url}river") as client,
        connect(url) as connection,
        socket.create_connection(("127.0.0.1", int(url.split(":")[-1].strip("/")))) as half,
    ):
        client.wait_connected(PATIENCE)
        half.sendall(b"GET /health HTTP/1.1\r\n")
        wait_for_value(lambda: held(url), (1, 2))
        process.terminate()
        assert told(connection) == 1001
        assert "disposed of the state\n" in process.communicate(timeout=PATIENCE)[1]


def test_a_client_that_answers_nothing_keeps_nobody_from_being_told() -> None:
    """gunicorn waits six seconds, then it kills; a closing handshake may take ten."""
    with site() as (process, url), rpc.connect(f"{url}river") as client:
        place = Place(int(url.split(":")[-1].strip("/")))
        with place.peer():
            wait_for_value(lambda: held(url), (1, 1))
            client.wait_connected(PATIENCE)
            process.terminate()
            assert "disposed of the state\n" in process.communicate(timeout=PATIENCE)[1]


# Limits


def check_full(url: str, most: int) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(url)) for _ in range(most)]
        with pytest.raises(wsmux.HandshakeError, match=f"{most} connections are open") as caught:
            connect(url)
        assert caught.value.status == 503
        assert fetched(url, "health") == b"well"
        for connection in connections:
            echo(connection)
        connections[0].close()
        wait_for_value(lambda: counts(url)["connections"], most - 1)
        wait_for(lambda: connects(url))


def connects(url: str) -> bool:
    try:
        connect(url).close()
    except wsmux.HandshakeError as error:
        if error.status != 503:
            raise
        return False
    return True


def test_a_full_route_refuses_with_503() -> None:
    with site(max_connections=20) as (process, url):
        check_full(url, 20)
        assert "a route of Mux refuses further connections with 503: 20 are open" in log(process)


def test_connections_leave_descriptors_to_the_server() -> None:
    with site(max_connections=1000, descriptors=128) as (process, url):
        check_full(url, 24)
        assert "let it have more (ulimit -n)" in log(process)


@pytest.mark.parametrize("error", [wsmux.NoThreadError("none left"), OSError(24, "none left")])
def test_without_a_thread_of_ours_a_connection_holds_that_of_its_request(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object) -> None:
        raise error

    def leave(environ: object) -> None:
        if isinstance(error, OSError):
            refuse()

    monkeypatch.setattr(upgrades, "why_held", lambda environ=None: None)
    monkeypatch.setattr(upgrades, "leave_server", leave)
    monkeypatch.setattr(upgrades, "shut_down_at_exit", lambda *arguments: None)
    monkeypatch.setattr(DetachedThreads, "start", refuse)
    app = Flask("app")
    mux = Mux(app)
    mux.stream_route("/")(lambda stream: stream.write(stream.read(5)))
    mux.route("/room", detach=True)(say_where)
    with serving(app) as port:
        for path in ("", "room"):
            with connect(f"ws://127.0.0.1:{port}/{path}") as connection:
                echo(connection)
        wait_for(lambda: not mux.connections)
    assert f"holds its request's thread: {error}" in caplog.text


def say_where(connection: wsmux.Connection) -> None:
    assert request.path == "/room"
    with connection.accept_stream(PATIENCE) as stream:
        stream.write(stream.read(5))
    connection.wait_closed(PATIENCE)


# Resuming


def test_a_resumed_connection_holds_no_thread_and_a_full_route_takes_it_back() -> None:
    with (
        site("--threads", "1", resume=True, max_connections=1) as (_, url),
        FaultProxy(int(url.split(":")[-1].strip("/"))) as proxy,
        wsmux.connect(proxy.url, resume=True, timeout=PATIENCE) as connection,
    ):
        for count in range(1, 4):
            proxy.reset()
            wait_for(lambda count=count: connection.stats().reconnects == count)
            echo(connection)
            wait_for_value(lambda: held(url)[1], 1)
        for resume in (True, False):
            with pytest.raises(wsmux.WsmuxError, match="as this server takes"):
                wsmux.connect(url, resume=resume, timeout=PATIENCE)


# What cannot be done is said at start


def test_under_gunicorns_own_tls_a_connection_holds_its_thread(
    certificates: Certificates,
) -> None:
    options = ("--certfile", str(certificates.chain), "--keyfile", str(certificates.key))
    with gunicorn("tests.helpers.detached_app:app()", "gthread", *options) as (process, url):
        secure = url.replace("ws", "wss", 1)
        for _ in range(2):
            with wsmux.connect(
                secure, ssl_context=certificates.client, timeout=PATIENCE
            ) as connection:
                echo(connection)
        assert log(process).count("let a proxy end TLS") == 1


def test_the_sync_worker_takes_requests_beside_connections() -> None:
    with site(kind="sync") as (_, url), connect(url) as connection, connect(url) as other:
        assert fetched(url, "health") == b"well"
        echo(connection)
        echo(other)


@pytest.mark.long
def test_the_sync_worker_holds_connections_beyond_its_timeout() -> None:
    with site("--timeout", "2", kind="sync", drain=0.5) as (_, url), ExitStack() as stack:
        before = counts(url)["pid"]
        connections = [stack.enter_context(connect(url)) for _ in range(200)]
        over = time.monotonic() + 6  # real time: it is what the worker's timeout is about
        wait_for(lambda: time.monotonic() > over)
        for connection in connections:
            echo(connection)
        assert counts(url)["pid"] == before


def test_under_gevent_connections_work_as_before() -> None:
    with site(kind="gevent", drain=0.5) as (process, url), connect(url) as connection:
        echo(connection)
        process.terminate()
        assert told(connection) == 1001
        process.wait(PATIENCE)
