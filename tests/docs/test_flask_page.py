"""What the page about Flask says is so: its programs run, and its promises are kept."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler
from wsgiref.simple_server import make_server as make_plain_server

import pytest
from flask import Flask, abort, redirect, request, session
from werkzeug.middleware.proxy_fix import ProxyFix

import wsmux
from wsmux.flask import Mux

from ..helpers.doc_pages import asked
from ..helpers.scripted import WAIT
from ..helpers.werkzeug_server import serving

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "flask.md").read_text()
APPLICATION, TESTING = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@contextmanager
def answering(app: Flask, **options: Any) -> Iterator[int]:
    """Serve a connection at ``/``, which says what its stream asks of the session."""
    mux = Mux(app, **options)

    @mux.route("/")
    def who(connection: wsmux.Connection) -> None:
        for stream in connection:
            stream.write(session.get("name", request.args.get("name", "nobody")).encode())
            stream.close()

    with serving(app) as port:
        try:
            yield port
        finally:
            mux.shutdown(WAIT)


def test_its_programs_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WSMUX_TOKEN", "a token of the tests")
    monkeypatch.setattr(Mux, "drain_on_sigterm", lambda self: None)  # else of this whole process
    names: dict[str, Any] = {"__name__": "page"}
    exec(APPLICATION, names)
    exec(TESTING, names)
    names["server"].server_close()
    assert names["app"].test_client().get("/debug/wsmux/").status_code == 401


def test_the_view_runs_in_the_context_of_its_request() -> None:
    app = Flask(__name__)
    with answering(app) as port:
        assert asked(f"ws://127.0.0.1:{port}/?name=me") == b"me"


@pytest.mark.parametrize(("answer", "status"), [(401, 401), ("/login", 400)])
def test_what_a_hook_answers_is_the_answer_to_the_upgrade(answer: int | str, status: int) -> None:
    app = Flask(__name__)
    app.route("/login")(lambda: "who are you?")

    @app.before_request
    def login() -> Any:
        if request.headers.get("Authorization") == "Bearer me" or request.path == "/login":
            return None
        return abort(answer) if isinstance(answer, int) else redirect(answer)

    with answering(app) as port:
        url = f"ws://127.0.0.1:{port}/"
        with pytest.raises(wsmux.HandshakeError) as caught:
            wsmux.connect(url, timeout=WAIT)
        assert caught.value.status == status
        assert asked(url, headers={"Authorization": "Bearer me"}) == b"nobody"


def test_an_origin_behind_a_proxy_that_ends_tls() -> None:
    forwarded = {
        "Host": "inner:8000",
        "X-Forwarded-Host": "example.org",
        "X-Forwarded-Proto": "https",
    }
    app = Flask(__name__)
    with answering(app) as port:
        url = f"ws://127.0.0.1:{port}/"
        options: dict[str, Any] = {"origin": "https://example.org", "headers": forwarded}
        with pytest.raises(wsmux.HandshakeError) as caught:
            wsmux.connect(url, timeout=WAIT, **options)
        assert caught.value.status == 403
        app.wsgi_app = ProxyFix(app.wsgi_app, x_proto=1, x_host=1)  # type: ignore[method-assign]
        assert asked(url, **options) == b"nobody"


class Silent(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Print nothing."""


def test_a_server_that_gives_no_socket_says_so() -> None:
    app = Flask(__name__)
    Mux(app).route("/")(lambda connection: None)
    with make_plain_server("127.0.0.1", 0, app, handler_class=Silent) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(
            wsmux.HandshakeError, match="gives applications no access to the socket"
        ) as caught:
            wsmux.connect(f"ws://127.0.0.1:{server.server_port}/", timeout=WAIT)
        thread.join(WAIT)
    assert caught.value.status == 500
