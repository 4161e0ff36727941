"""Import Flask, or say what is missing, and answer requests that became WebSockets or did not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

try:
    from flask import Flask, Response, request
except ImportError as error:
    raise ImportError("wsmux.flask needs Flask: pip install 'wsmux-streams[flask]'") from error

from .exceptions import HandshakeError
from .transports.http_request import refusal_headers

__all__ = ["Ended", "Flask", "Response", "refusal", "request"]


def refusal(error: HandshakeError) -> Response:
    """Return what tells a client why it is refused."""
    status = error.status or 400
    return Response(f"{error}\n", status=status, headers=refusal_headers(status))


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
