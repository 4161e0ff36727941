"""Serve River from a route of a Flask application; see ``wsmux.flask`` for the WSGI servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from ..config import Config
from ..exceptions import HandshakeError
from ..flask.responses import Flask, Response, refusal
from ..flask.upgrades import Upgraded, Upgrades
from ..handshake.origin import allowed_origins
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
    max_connections: int | None = None,
    config: Config | None = None,
    detach: bool = True,
    **options: Unpack[Serving],
) -> RpcHandler:
    """Serve procedures at a path of an application.

    River has no subprotocol, so the path cannot be shared with other protocols. Call
    ``drain_on_sigterm()`` or ``shutdown()`` of the returned handler to end the sessions before the
    process exits.

    Args:
        app: the application.
        path: the path of the route, without variables.
        services: the services to offer.
        endpoint: the Flask endpoint name; ``river`` and the path by default.
        origins: as in ``wsmux.serve``.
        max_connections: maximum of simultaneous connections; further clients get 503, and retry.
            The default is that of ``wsmux.flask.Mux``.
        config: ``max_connections_per_address`` and ``trusted_proxies``; its other settings apply to
            streams only.
        detach: give the thread of a client's request back to the server, where it allows that; see
            ``wsmux.flask``. Elsewhere, and with false, each client holds one.
        options: see ``Serving``. With ``serve_schema``, a GET of the path returns the schema.

    Raises:
        ValueError: an option is invalid, or two services have the same name.
        TypeError: ``services`` is not a collection of services.
    """
    pages = allowed_origins(origins)  # validate before anything is started
    upgrades = Upgrades(config or Config(), f"the route {path}", max_connections)
    if detach:
        upgrades.tell()
    made = handler(services, **options)
    name = endpoint or f"river {path}".replace(".", "_")

    def check(environ: dict[str, Any]) -> None:
        check_river_upgrade(environ, pages)
        made.check()

    def serve(upgraded: Upgraded) -> None:
        made.serve_socket(upgraded.socket, websocket=True)

    def river() -> Response:
        detaches = detach and upgrades.detaches()
        return upgrades.answer(check, serve, made.shutdown if detaches else None)

    def schema() -> Response:
        if made.schema_json is None:
            return refusal(HandshakeError("this address serves WebSockets only", 426))
        return Response(made.schema_json, mimetype="application/json")

    app.add_url_rule(path, name, river, websocket=True)
    app.add_url_rule(path, f"{name} schema", schema, methods=["GET"])
    return made
