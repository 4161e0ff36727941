"""Serve River from a route of a Flask application; see ``wsmux.flask`` for the WSGI servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from ..config import Config
from ..exceptions import HandshakeError
from ..flask.responses import Ended, Flask, Response, refusal, request
from ..handshake.admission import Admission
from ..handshake.origin import allowed_origins
from ..handshake.websocket_server import accept
from .server import RpcHandler, Serving, check_river_upgrade, handler
from .services import Service

__all__ = ["flask"]


def flask(
    app: Flask,
    path: str,
    services: Iterable[Service],
    *,
    endpoint: str | None = None,
    origins: Iterable[str] | None = None,
    config: Config | None = None,
    **options: Unpack[Serving],
) -> RpcHandler:
    """Serve procedures at a path of an application; each client keeps one request's thread.

    River offers no subprotocol, so the path is for it alone. Call ``shutdown()`` of what is
    returned to end the sessions before the process does.

    Args:
        app: the application.
        path: the path of the route, without variables.
        services: what is offered.
        endpoint: the name of the route for Flask, ``river`` and the path by default.
        origins: as in ``wsmux.serve``.
        config: ``max_connections_per_address`` and ``trusted_proxies``; what else it holds is for
            streams.
        options: see ``Serving``. With ``serve_schema`` a GET of the path gets the schema.
    """
    pages = allowed_origins(origins)  # before anything is started
    made = handler(services, **options)
    admission = Admission(config or Config(), f"the route {path}")
    name = endpoint or f"river {path}".replace(".", "_")

    def river() -> Response:
        environ = request.environ
        try:
            check_river_upgrade(environ, pages)
            guest = admission.admit(environ)
        except HandshakeError as error:
            return refusal(error)
        try:
            try:
                accepted = accept(environ, None)
            except HandshakeError as error:
                return refusal(error)
            made.serve_socket(accepted.socket, websocket=True)
            return Ended(accepted.mode)
        finally:
            admission.leave(guest)

    def schema() -> Response:
        if made.schema_json is None:
            return refusal(HandshakeError("this address serves WebSockets only", 426))
        return Response(made.schema_json, mimetype="application/json")

    app.add_url_rule(path, name, river, websocket=True)
    app.add_url_rule(path, f"{name} schema", schema, methods=["GET"])
    return made
