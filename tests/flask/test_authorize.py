"""Who may connect to a route: the application is asked in the context of the request."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, abort, redirect, request, session
from werkzeug.exceptions import Gone, HTTPException

import wsmux
from wsmux.flask import Mux, uploads

from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for
from ..helpers.werkzeug_server import serving


@contextmanager
def served(mux: Mux, app: Flask) -> Iterator[str]:
    with serving(app) as port:
        try:
            yield f"ws://127.0.0.1:{port}"
        finally:
            mux.shutdown(WAIT)


def say_who(stream: wsmux.Stream) -> None:
    stream.write(str(stream.connection.user).encode())


def say_to_all(connection: wsmux.Connection) -> None:
    for stream in connection:
        say_who(stream)
        stream.close()


def who(url: str, **options: Any) -> bytes:
    with wsmux.connect(url, timeout=WAIT, **options) as connection, connection.open_stream() as one:
        one.timeout = WAIT
        return one.readall()


def refused(url: str, **options: Any) -> wsmux.HandshakeError:
    with pytest.raises(wsmux.HandshakeError) as caught:
        wsmux.connect(url, timeout=WAIT, **options)
    return caught.value


def test_the_user_of_the_session_is_the_user_of_the_connection() -> None:
    app = Flask("app")
    app.secret_key = "a key of the tests"
    mux = Mux(app, authorize=lambda request: session.get("user"))
    mux.stream_route("/")(say_who)
    mux.route("/held", endpoint="held")(say_to_all)
    mux.route("/open", endpoint="open", authorize=lambda request: True)(say_to_all)

    @app.get("/login")
    def login() -> str:
        session["user"] = request.args["user"]
        return ""

    cookie = app.test_client().get("/login?user=ann").headers["Set-Cookie"].partition(";")[0]
    with served(mux, app) as url:
        for path in ("/", "/held"):
            assert who(url + path, headers={"Cookie": cookie}) == b"ann"
            error = refused(url + path)
            assert error.status == 403
            assert "not allowed" in str(error)
        assert who(url + "/open") == b"None"


def test_the_application_is_asked_about_the_request_of_the_client() -> None:
    app = Flask("app")
    mux = Mux()
    asked: list[wsmux.Request] = []

    def authorize(seen: wsmux.Request) -> bool:
        asked.append(seen)
        assert request.view_args == {"room": "blue"}
        return seen.headers["x-user"] == "ann"

    @mux.stream_route("/rooms/<room>", authorize=authorize)
    def handler(stream: wsmux.Stream, room: str) -> None:
        stream.write(room.encode())

    mux.init_app(app)
    with served(mux, app) as url:
        headers = {"X-User": "ann"}
        assert who(f"{url}/rooms/blue?q=1", headers=headers) == b"blue"
        # What another check refuses is no question for the application.
        assert refused(f"{url}/rooms/blue", headers=headers, origin="https://a.example").status
    assert [(each.path, each.query, each.client_address) for each in asked] == [
        ("/rooms/blue", "q=1", "127.0.0.1")
    ]


def test_what_the_application_raises_is_answered_as_in_any_view(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Flask("app")
    mux = Mux(app, max_connections=1)

    def authorize(request: wsmux.Request) -> bool:
        if request.query == "gone":
            abort(410)
        if request.query == "busy":
            raise wsmux.HandshakeError("come back at noon", 503)
        if request.query == "bug":
            raise ArithmeticError("a bug")
        return True

    mux.stream_route("/", authorize=authorize)(say_who)
    with served(mux, app) as url, caplog.at_level(logging.INFO, "wsmux.audit"):
        assert refused(f"{url}/?gone").status == 410
        error = refused(f"{url}/?busy")
        assert (error.status, "come back at noon" in str(error)) == (503, True)
        assert refused(f"{url}/?bug").status == 500
        assert who(url) == b"None", "those that were refused hold no place"
    assert "a bug" in caplog.text  # by Flask
    # Of those that come within a second, the first one is told.
    assert "refused path=/ peer=127.0.0.1 user=- status=410 why=Gone" in caplog.messages


@pytest.mark.parametrize("query", ["no", "gone", "login", "bug"])
def test_nothing_behind_a_refused_request_is_another_one(query: str) -> None:
    # A proxy that takes the WebSocket for accepted lets its client send whatever it likes.
    app = Flask("app")
    answers: dict[str, Exception] = {
        "gone": Gone(),
        "login": HTTPException(response=redirect("/login")),  # type: ignore[arg-type]
        "bug": ArithmeticError("a bug"),
    }

    def authorize(request: wsmux.Request) -> bool:
        if request.query in answers:
            raise answers[request.query]
        return False

    Mux(app, authorize=authorize).stream_route("/")(say_who)
    app.config["PROPAGATE_EXCEPTIONS"] = False
    ours, peer = socket.socketpair()
    with ours, peer:
        headers = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "c2l4dGVlbiBieXRlcyBpZA==",
        }
        environ = {"gunicorn.socket": ours}
        with app.test_client() as client:
            client.get(f"/?{query}", headers=headers, environ_overrides=environ).close()
        ours.setblocking(False)
        assert ours.recv(1) == b"", "gunicorn finds an end of file, and no request"


def test_a_connection_is_in_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    app = Flask("app")
    mux = Mux(app)
    mux.stream_route("/chat", authorize=lambda request: "ann\nrefused")(say_who)
    with served(mux, app) as url, caplog.at_level(logging.INFO, "wsmux.audit"):
        assert who(f"{url}/chat?token=secret") == b"ann\nrefused"
        wait_for(lambda: len(caplog.messages) == 2)
    came, left = caplog.messages
    start = r'path=/chat peer=127.0.0.1 user="ann\nrefused" connection='
    assert came.startswith(f"accepted {start}")
    assert left.startswith(f"closed {start}")
    assert " code=1000 " in left
    assert "streams=1 " in left
    assert "secret" not in caplog.text


def test_who_is_refused_behind_the_upgrade_is_in_the_audit_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Flask("app")
    limits = wsmux.UserLimits(connections=1)
    mux = Mux(
        app,
        authorize=lambda request: "ann",
        user_limits=limits,
        resume=True,
        protocols=["js-ws"],
    )
    mux.stream_route("/")(say_who)
    with (
        served(mux, app) as url,
        wsmux.connect(url, timeout=WAIT, resume=True, protocol="js-ws"),
        caplog.at_level(logging.INFO, "wsmux.audit"),
    ):
        assert "or as this user may have" in str(refused(url, resume=True, protocol="js-ws"))
        wait_for(lambda: any(each.startswith("refused ") for each in caplog.messages))
    (line,) = (each for each in caplog.messages if each.startswith("refused "))
    assert line.startswith('refused path=/ peer=127.0.0.1 user=ann status=- why="a client may not ')


def test_routes_of_uploads_ask_too(tmp_path: Path) -> None:
    app = Flask("app")
    mux = uploads(app, "/uploads", tmp_path, authorize=lambda request: False)
    with served(mux, app) as url:
        assert refused(f"{url}/uploads").status == 403


class Listed(dict[str, str]):
    """Those who may come in, by name; nobody at first, so that it is false."""

    def __call__(self, request: wsmux.Request) -> str | None:
        return self.get(request.query)


def test_a_function_that_is_false_is_asked_all_the_same() -> None:
    app = Flask("app")
    mux = Mux(app, authorize=lambda request: True)
    mux.stream_route("/", authorize=Listed())(say_who)
    with served(mux, app) as url:
        assert refused(f"{url}/?ann").status == 403


def test_what_is_no_function_is_refused_where_the_route_is_made() -> None:
    with pytest.raises(TypeError, match="authorize must be a function"):
        Mux(authorize="ann")  # type: ignore[arg-type]
    for route in (Mux().route, Mux().stream_route):
        with pytest.raises(TypeError, match="authorize must be a function"):
            route("/", authorize="ann")  # type: ignore[arg-type]
