"""Import Flask, or say what is missing, and answer requests that became WebSockets or did not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

try:
    from flask import Blueprint, Flask, Response, request
except ImportError as error:
    raise ImportError("wsmux.flask needs Flask: pip install 'wsmux-streams[flask]'") from error

from .exceptions import HandshakeError
from .transports.http_request import refusal_headers

__all__ = ["Blueprint", "Ended", "Flask", "Response", "refusal", "request"]


def refusal(error: HandshakeError) -> Response:
    """Return what tells a client why it is refused."""
    status = error.status or 400
    headers = refusal_headers(status)
    if not _takes_upgrades(request.environ):
        del headers["Connection"]  # which other servers do not let applications say
    return Response(f"{error}\n", status=status, headers=headers)


def _takes_upgrades(environ: Mapping[str, Any]) -> bool:
    gevent = environ.get("SERVER_SOFTWARE", "").startswith("gevent")
    return gevent or "werkzeug.socket" in environ or "gunicorn.socket" in environ


class Ended(Response):
    """End a request whose socket is shut down already."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self._mode = mode

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        if self._mode == "gunicorn":
            raise StopIteration
        if self._mode == "werkzeug":
            raise ConnectionError
        return []
