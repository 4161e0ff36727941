"""Publish a WSGI application from the client's side of a connection, reachable from outside.

Where clients cannot connect to (behind NAT, on a laptop, in a Spark executor), ``serve`` answers
requests that arrive over an outgoing connection; ``Published`` is the other half, on a server that
is publicly reachable:

    with wsmux.connect("wss://example.org/laptop", headers=SECRET) as connection:
        with wsmux.wsgi.serve(connection, app) as publication:
            publication.wait()

    laptop = wsmux.wsgi.Published(mux, "/laptop", token="...")    # mux = wsmux.flask.Mux(app)
    app.wsgi_app = laptop.wrap(app.wsgi_app)

Each request has its own stream, which carries HTTP/1.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from .published import Published
    from .serving import Publication, StreamServer, serve

__all__ = ["Publication", "Published", "StreamServer", "serve"]

__getattr__ = lazy_names(
    __name__,
    {"published": ("Published",), "serving": ("Publication", "StreamServer", "serve")},
)
