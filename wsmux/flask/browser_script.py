"""Serve the browser's end to the pages of a Flask application. ``wsmux.flask`` offers it."""

from __future__ import annotations

from pathlib import Path

from .responses import Blueprint, Response, request

__all__ = ["script_blueprint"]

# Asked for each time, and answered with 304: a page never runs another version than the server.
HEADERS = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}


def script_blueprint(*, path: str = "/wsmux.js", name: str = "wsmux_script") -> Blueprint:
    """Return a blueprint with ``wsmux.js``, by which a page opens streams to a ``Mux`` route.

    ::

        app.register_blueprint(script_blueprint())

    A page imports it, ``import { Wsmux } from "/wsmux.js"``, and uses it as the browsers'
    ``WebTransport``. It speaks the native wire alone, needs no build step and nothing else, and is
    there for everybody with access to the page. The route of the ``Mux`` takes pages of its own
    origin only, unless ``origins`` lists others.

    Args:
        path: where the module is; ``url_for("wsmux_script.module")`` gives it.
        name: the blueprint's.
    """
    source = Path(__file__).with_name("wsmux.js").read_bytes()
    blueprint = Blueprint(name, __name__)

    @blueprint.get(path)
    def module() -> Response:
        response = Response(source, mimetype="text/javascript", headers=HEADERS)
        response.add_etag()
        response.make_conditional(request)
        return response

    return blueprint
