"""Import Flask or explain how to install it; respond to refused and upgraded requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from ..runtime.hints import how_to_install

try:
    from flask import (
        Blueprint,
        Flask,
        Response,
        after_this_request,
        copy_current_request_context,
        request,
    )
    from werkzeug.exceptions import HTTPException
except ImportError as error:
    raise ImportError(f"wsmux.flask needs Flask: {how_to_install('flask')}") from error

from ..exceptions import HandshakeError
from ..handshake.http_request import refusal_headers
from ..handshake.websocket_server import end_at_server
from ..runtime.logs import logger

__all__ = [
    "Blueprint",
    "Ended",
    "Flask",
    "HTTPException",
    "Response",
    "after_this_request",
    "copy_current_request_context",
    "last",
    "refusal",
    "request",
]

_log = logger("wsmux")


def refusal(error: HandshakeError) -> Response:
    """Return the response that tells a client why it is refused, and log the refusal."""
    status = error.status or 400
    _log.info("%s refused %s: %s", request.path, request.remote_addr, error)
    headers = refusal_headers(status, error.retry_after)
    del headers["Connection"]
    return last(Response(f"{error}\n", status=status, headers=headers))


def last(response: Response) -> Response:
    """Let a response be the last one of its client's connection, and return it.

    A proxy may pass on whatever follows a request for a WebSocket, as if it had been accepted: the
    server must not take it for requests, which no rule of the proxy has seen.
    """
    if _takes_upgrades(request.environ):  # applications may not set it under other servers
        response.headers["Connection"] = "close"
    if "gunicorn.socket" in request.environ:  # gunicorn ignores that header of an application
        response.call_on_close(partial(end_at_server, request.environ))  # once it has been sent
    return response


def _takes_upgrades(environ: Mapping[str, Any]) -> bool:
    gevent = environ.get("SERVER_SOFTWARE", "").startswith("gevent")
    return gevent or "werkzeug.socket" in environ or "gunicorn.socket" in environ


class Ended(Response):
    """End a request whose connection has ended, or has left its server; see ``end_at_server``."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self._mode = mode

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        if self._mode == "gunicorn":
            raise StopIteration
        if self._mode == "werkzeug":
            raise ConnectionError
        return []
