"""Serve the browser client to the pages of a Flask application; offered by ``wsmux.flask``."""

from __future__ import annotations

from pathlib import Path

from .responses import Blueprint, Response, request

__all__ = ["script_blueprint"]

# Revalidated each time (304 if unchanged), so a page never runs another version than the server.
HEADERS = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}


def script_blueprint(*, path: str = "/wsmux.js", name: str = "wsmux_script") -> Blueprint:
    """Return a blueprint that serves ``wsmux.js``, by which pages open streams to a ``Mux`` route.

    ::

        app.register_blueprint(script_blueprint())

    A page imports it, ``import { Wsmux } from "/wsmux.js"``, and uses it like the browser's
    ``WebTransport``. It supports only the native wire and has no build step and no dependencies.
    Anyone with access to the site can load it. The route of the ``Mux`` accepts only pages of its
    own origin, unless ``origins`` lists others.

    Args:
        path: the URL path of the module; ``url_for("wsmux_script.module")`` returns it.
        name: the name of the blueprint.
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
