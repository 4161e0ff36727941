"""Ask a Flask application for the browser's module."""

from __future__ import annotations

import pytest
from flask import Flask, url_for

from wsmux.flask import script_blueprint


@pytest.fixture
def app() -> Flask:
    """Return an application that serves the module."""
    made = Flask("app")
    made.register_blueprint(script_blueprint())
    return made


def test_the_module_is_served_as_javascript(app: Flask) -> None:
    answer = app.test_client().get("/wsmux.js")
    assert (answer.status_code, answer.mimetype) == (200, "text/javascript")
    assert b"export class Wsmux " in answer.data
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_it_is_sent_again_only_when_it_is_another(app: Flask) -> None:
    client = app.test_client()
    first = client.get("/wsmux.js")
    assert first.headers["Cache-Control"] == "no-cache"
    again = client.get("/wsmux.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")


def test_it_may_be_anywhere() -> None:
    app = Flask("app")
    app.register_blueprint(script_blueprint(path="/js/mux.js"), url_prefix="/static-of-ours")
    with app.test_request_context():
        assert url_for("wsmux_script.module") == "/static-of-ours/js/mux.js"
    assert app.test_client().get("/static-of-ours/js/mux.js").status_code == 200
