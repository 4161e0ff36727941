"""Serve River from a route of a Flask application; see ``wsmux.flask`` for the WSGI servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from ..config import Config, UserLimits
from ..endpoints.user_limits import Users
from ..exceptions import HandshakeError
from ..flask.responses import Flask, Response, refusal
from ..flask.upgrades import Upgraded, Upgrades
from ..handshake.access import Authorize, check_authorize
from ..handshake.origin import allowed_origins
from .engine.session_record import Caller
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
    authorize: Authorize | None = None,
    user_limits: UserLimits | None = None,
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
        authorize: says who may connect, and as whom, as that of ``wsmux.flask.Mux``. The name is
            ``ctx.user`` of each call, and only the same user can resume or replace a session.
        user_limits: what each user may do on this route; a call counts as a stream, and one too
            many is refused with CANCEL. It needs ``authorize``.
        detach: give the thread of a client's request back to the server, where it allows that; see
            ``wsmux.flask``. Elsewhere, and with false, each client holds one.
        options: see ``Serving``. With ``serve_schema``, a GET of the path returns the schema.

    Raises:
        ValueError: an option is invalid, or two services have the same name.
        TypeError: ``services`` is not a collection of services, or ``authorize`` no function.
    """
    check_authorize(authorize)
    if user_limits is not None and authorize is None:
        raise ValueError(
            f"the route {path} with user_limits= needs authorize=, which names the user"
        )
    users = None if user_limits is None else Users(user_limits)
    pages = allowed_origins(origins)  # validate before anything is started
    upgrades = Upgrades(config or Config(), f"the route {path}", max_connections)
    made = handler(services, **options)
    if detach:
        upgrades.begin(made.shutdown)
    if users is not None:
        made.at_shutdown(users.close)
    name = endpoint or f"river {path}".replace(".", "_")

    def check(environ: dict[str, Any]) -> None:
        check_river_upgrade(environ, pages)
        made.check()

    def serve(upgraded: Upgraded) -> None:
        place = upgraded.place
        caller = Caller(upgraded.request.user, None if place is None else place.take_stream)
        made.serve_socket(upgraded.socket, websocket=True, caller=caller)

    def river() -> Response:
        detaches = detach and upgrades.detaches()
        shutdown = made.shutdown if detaches else None
        return upgrades.answer(check, serve, shutdown, authorize=authorize, users=users)

    def schema() -> Response:
        if made.schema_json is None:
            return refusal(HandshakeError("this address serves WebSockets only", 426))
        return Response(made.schema_json, mimetype="application/json")

    app.add_url_rule(path, name, river, websocket=True)
    app.add_url_rule(path, f"{name} schema", schema, methods=["GET"])
    return made
