"""Serve routes of a Flask application; under Werkzeug in this process.

Routes that carry streams do so in the four wires. That streams behave under every WSGI server as
elsewhere, ``test_stream.py`` shows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from flask import Flask, request

import wsmux
from wsmux.flask import Mux

from ..helpers import scripted
from ..helpers.carriers import SERVERS, WsgiServers
from ..helpers.connections import Spawn
from ..helpers.raw_peer import raw_client
from ..helpers.scripted import WAIT, call, pattern
from ..helpers.waiting import wait_for
from ..helpers.werkzeug_server import serving
from ..helpers.wires import NAMES

Run = Callable[[Flask], str]


@pytest.fixture
def run() -> Iterator[Run]:
    """Return ``run(app)``, which serves an application and returns its ``ws://`` address."""
    with ExitStack() as stack:

        def start(app: Flask) -> str:
            return f"ws://127.0.0.1:{stack.enter_context(serving(app))}"

        yield start


@pytest.mark.parametrize("protocol", NAMES)
def test_a_route_gets_the_connection_and_the_variables(run: Run, protocol: str) -> None:
    app = Flask("app")
    mux = Mux(app, protocols=[protocol])

    @mux.route("/rooms/<name>")
    def room(connection: wsmux.Connection, name: str) -> None:
        with connection.accept_stream(WAIT) as stream:
            stream.write(name.encode())

    with (
        wsmux.connect(f"{run(app)}/rooms/blue", protocol=protocol) as connection,
        connection.open_stream(WAIT) as stream,
    ):
        assert stream.read() == b"blue"


class Greeting:
    """An object that can be called, and has no name."""

    def __call__(self, stream: wsmux.Stream, name: str = "you") -> None:
        stream.write(name.encode())


NAMELESS = [Greeting(), partial(Greeting(), name="all")]


@pytest.mark.parametrize("handler", NAMELESS, ids=["object", "partial"])
def test_what_has_no_name_serves_a_route_that_has_one(run: Run, handler: Greeting) -> None:
    app = Flask("app")
    mux = Mux(app)
    mux.stream_route("/", endpoint="greeting")(handler)
    mux.route("/all", endpoint="all")(partial(wsmux.Connection.wait_closed))
    assert {"greeting", "all"} <= set(app.view_functions)
    with wsmux.connect(run(app)) as connection, connection.open_stream(WAIT) as stream:
        assert stream.read() in (b"you", b"all")


@pytest.mark.parametrize("handler", NAMELESS, ids=["object", "partial"])
def test_what_has_no_name_is_told_to_give_its_route_one(handler: Greeting) -> None:
    for mux in (Mux(Flask("app")), Mux()):
        for route in (mux.route, mux.stream_route):
            with pytest.raises(TypeError, match="has no name .* endpoint='echo'$"):
                route("/")(handler)


def test_what_is_no_function_serves_no_route() -> None:
    with pytest.raises(TypeError, match="^a route must be served by a function, not str$"):
        Mux().route("/")("echo")  # type: ignore[type-var]


@pytest.mark.parametrize("protocol", NAMES)
def test_a_stream_route_gets_each_stream(run: Run, protocol: str) -> None:
    app = Flask("app")
    Mux(app, protocols=[protocol]).stream_route("/")(scripted.handle)
    with wsmux.connect(run(app), protocol=protocol) as connection:
        for seed in range(3):
            assert call(connection, "source", 10, seed) == pattern(10, seed)


@pytest.mark.parametrize("protocol", NAMES)
def test_a_route_of_one_wire_takes_a_client_that_offers_none(run: Run, protocol: str) -> None:
    app = Flask("app")
    Mux(app, protocols=[protocol]).stream_route("/")(scripted.handle)
    with wsmux.connect(run(app), protocol=protocol, subprotocol=None) as connection:
        assert call(connection, "source", 10, 1) == pattern(10, 1)


@pytest.mark.parametrize(
    ("offered", "served"), [(None, ["wsmux", "yamux"]), ("other-name", ["yamux"])], ids=str
)
def test_a_route_guesses_no_wire(run: Run, offered: str | None, served: list[str]) -> None:
    app = Flask("app")
    Mux(app, protocols=served).stream_route("/")(scripted.handle)
    with pytest.raises(wsmux.HandshakeError, match="no common subprotocol") as error:
        wsmux.connect(run(app), protocol="yamux", subprotocol=offered)
    assert error.value.status == 400


@pytest.mark.parametrize("early", [False, True], ids=["with-app", "init_app"])
def test_a_stream_route_gets_the_variables_of_its_own_request(run: Run, early: bool) -> None:
    app = Flask("app")
    mux = Mux() if early else Mux(app)

    @mux.stream_route("/rooms/<name>/<int:seat>", defaults={"kind": "plain"})
    def seat(stream: wsmux.Stream, name: str, seat: int, kind: str) -> None:
        stream.write(f"{name} {seat + 1} {kind}".encode())

    if early:
        mux.init_app(app)
    url = run(app)
    with (
        wsmux.connect(f"{url}/rooms/blue/1") as blue,
        wsmux.connect(f"{url}/rooms/red/7") as red,
    ):
        for connection, said in ((blue, b"blue 2 plain"), (red, b"red 8 plain")) * 2:
            with connection.open_stream(WAIT) as stream:
                assert stream.read() == said


def test_one_route_speaks_four_wires_at_once(run: Run, spawn: Spawn) -> None:
    """The client of js-ws offers no subprotocol, and the route lists it last."""
    app = Flask("app")
    served: list[str] = []
    mux = Mux(app, protocols=["wsmux", "yamux", "bymux", "js-ws"])
    everybody = threading.Barrier(len(NAMES))

    @mux.route("/")
    def route(connection: wsmux.Connection) -> None:
        served.append(connection.protocol)
        everybody.wait(WAIT)
        for stream in connection:
            scripted.handle(stream)
            stream.close()

    address = run(app)

    def client(protocol: str) -> str:
        with wsmux.connect(address, protocol=protocol) as connection:
            assert call(connection, "source", 300_000, 7) == pattern(300_000, 7)
            return connection.protocol

    clients = [spawn(client, protocol) for protocol in NAMES]
    assert [future.result(WAIT) for future in clients] == list(NAMES)
    assert sorted(served) == sorted(NAMES)


def say_late(connection: wsmux.Connection) -> None:
    with connection.accept_stream(WAIT) as stream:
        stream.write(b"late")


def test_routes_may_be_declared_before_there_is_an_application(run: Run) -> None:
    mux = Mux()
    mux.stream_route("/early")(scripted.handle)
    app = Flask("app")
    mux.init_app(app)
    mux.route("/late")(say_late)
    address = run(app)
    with wsmux.connect(f"{address}/early") as connection:
        assert call(connection, "source", 10, 1) == pattern(10, 1)
    with wsmux.connect(f"{address}/late") as connection, connection.open_stream() as stream:
        assert stream.read(4) == b"late"


def test_options_are_those_of_serve(run: Run) -> None:
    app = Flask("app")
    mux = Mux(app, config=wsmux.Config(max_streams=1), protocols=["js-ws", "wsmux"])
    mux.stream_route("/")(scripted.handle)
    with wsmux.connect(run(app), protocol="js-ws") as connection:
        assert connection.protocol == "js-ws"
        assert call(connection, "source", 10, 1) == pattern(10, 1)


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"origin": "http://elsewhere.example"}, 403),
        ({"protocol": "yamux"}, 400),
        ({"url": "/nowhere"}, 404),
    ],
    ids=["origin", "subprotocol", "path"],
)
def test_what_is_not_served_is_refused(run: Run, options: dict[str, Any], status: int) -> None:
    app = Flask("app")
    Mux(app).stream_route("/")(scripted.handle)
    url = run(app) + options.pop("url", "/")
    with pytest.raises(wsmux.HandshakeError) as error:
        wsmux.connect(url, **options)
    assert error.value.status == status


def test_a_plain_request_is_told_to_upgrade() -> None:
    app = Flask("app")
    Mux(app).stream_route("/")(scripted.handle)
    response = app.test_client().get("/", headers={"Connection": "Upgrade", "Upgrade": "other"})
    assert response.status_code in (400, 426)


def test_ordinary_routes_live_beside(run: Run) -> None:
    app = Flask("app")
    Mux(app).stream_route("/ws")(scripted.handle)
    app.get("/page")(lambda: "page")
    assert app.test_client().get("/page").text == "page"


@pytest.mark.parametrize(
    "options", [{"protocols": ["http"]}, {"start_on": "never"}, {"workers": 0}], ids=str
)
def test_bad_options_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Mux(**options)


@pytest.mark.parametrize("protocol", NAMES)
@pytest.mark.parametrize("server", SERVERS)
def test_a_server_takes_the_next_connection_and_logs_no_traceback(
    wsgi_servers: WsgiServers, server: str, protocol: str
) -> None:
    url = wsgi_servers.url(server)

    def connect() -> wsmux.Connection:
        return wsmux.connect(url, protocol=protocol, timeout=WAIT)

    for code in (1000, 4000):
        with connect() as connection:
            last = connection.open_stream(WAIT)
            with suppress(wsmux.ConnectionClosed):
                last.write(scripted.command("close-connection", code))
            with pytest.raises(wsmux.ConnectionClosed):
                connection.accept_stream(WAIT)
    for _ in range(20):
        with connect() as connection:
            assert call(connection, "source", 10, 1) == pattern(10, 1)
    connect().abort()
    assert "Traceback" not in wsgi_servers.log(server)


def test_shutdown_ends_connections_with_1001_and_refuses_later_ones(run: Run) -> None:
    app = Flask("app")
    mux = Mux(app)
    mux.stream_route("/")(scripted.handle)
    url = run(app)
    with wsmux.connect(url) as connection:
        assert call(connection, "source", 10, 1) == pattern(10, 1)
        mux.shutdown(WAIT)
        assert connection.wait_closed(WAIT)
        assert isinstance(connection.error, wsmux.ConnectionClosed)
        assert connection.error.code == 1001
    with pytest.raises(wsmux.HandshakeError) as refused:
        wsmux.connect(url)
    assert refused.value.status == 503


def test_a_connection_that_comes_about_during_a_shutdown_is_closed(run: Run) -> None:
    app = Flask("app")
    mux = Mux(app)
    mux.stream_route("/")(scripted.handle)
    mux._served.check = mux.shutdown  # type: ignore[method-assign]
    with wsmux.connect(run(app)) as connection:
        assert connection.wait_closed(WAIT)
        assert isinstance(connection.error, wsmux.ConnectionClosed)
        assert connection.error.code == 1001


@pytest.mark.parametrize("streams", [False, True])
def test_a_block_around_each_connection_is_entered_and_left(run: Run, streams: bool) -> None:
    app = Flask("app")
    mux = Mux(app)
    seen: list[object] = []
    left = threading.Event()

    @mux.around
    @contextmanager
    def block(connection: wsmux.Connection) -> Iterator[None]:
        seen.append((request.args["name"], connection.closed))
        yield
        seen.append("left")
        left.set()

    @(mux.stream_route if streams else mux.route)("/")
    def serve(given: Any) -> None:
        with given if streams else given.accept_stream(WAIT) as stream:
            stream.write(str(seen).encode())

    with wsmux.connect(f"{run(app)}/?name=blue") as connection, connection.open_stream() as stream:
        assert stream.read() == b"[('blue', False)]"
    assert left.wait(WAIT)
    assert seen == [("blue", False), "left"]


def test_a_block_that_cannot_be_entered_ends_the_connection(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    app = Flask("app")
    mux = Mux(app)

    @mux.around
    def block(connection: wsmux.Connection) -> Any:
        raise LookupError("nobody has this name")

    @mux.stream_route("/")
    def serve(stream: wsmux.Stream) -> None:
        pytest.fail("it is served")

    with wsmux.connect(run(app)) as connection:
        with pytest.raises(wsmux.ConnectionClosed) as caught, connection.open_stream() as stream:
            stream.read()
        assert caught.value.code == 1011
    assert "nobody has this name" in caplog.text


def test_a_client_whose_connection_gets_no_thread_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = Flask("app")
    Mux(app).stream_route("/")(scripted.handle)
    url = run(app)

    def exiting(thread: threading.Thread) -> None:
        raise wsmux.NoThreadError(f"{thread.name} cannot be started: the interpreter exits")

    caplog.set_level("INFO", "wsmux")
    monkeypatch.setattr("wsmux.transport.shared_io.OWN", 64)  # one that shares needs no thread
    monkeypatch.setattr("wsmux.mux.multiplexer.start_thread", exiting)
    with raw_client(int(url.rpartition(":")[2])) as peer:
        assert peer.recv_close() == (1001, "no thread is left for the connection")
    wait_for(lambda: "the connection was not begun" in caplog.text)
    assert "Traceback" not in caplog.text
