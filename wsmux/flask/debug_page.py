"""Show connections and sessions on a live page: of a process, or of all processes of a cluster.

It is offered by ``wsmux.flask``. Clusters stand above this module: one is known by its method
``status``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ..diagnostics.status import STALLED_AFTER, Sources, Watched, document
from ..exceptions import WsmuxError
from ..runtime.arguments import check_seconds
from .responses import Blueprint, Response, request

__all__ = ["debug_blueprint"]

# Characters of a token; shorter ones could be guessed.
SHORTEST_TOKEN = 16

# For the page and its data: private, and not to be stored.
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

# What the page looks for, to offer all processes.
PLAIN, OFFERING = b'<html lang="en">', b'<html lang="en" data-cluster>'

Authorize = Callable[[], object]


class ClusterDocument(Protocol):
    """What all processes of a cluster do: a ``wsmux.cluster.ClusterStatus``."""

    def document(self) -> dict[str, Any]:
        """Return all of it, ready for ``json.dumps``."""


class HasStatus(Protocol):
    """A ``wsmux.cluster.Cluster``."""

    def status(self, *, stalled_after: float) -> ClusterDocument:
        """Return what all processes do, for ``stalled_after`` as of ``debug_blueprint``."""


def debug_blueprint(
    connections: Sources,
    *,
    token: str | None = None,
    authorize: Authorize | None = None,
    cluster: HasStatus | None = None,
    stalled_after: float = STALLED_AFTER,
    url_prefix: str = "/debug/wsmux",
    name: str = "wsmux_debug",
) -> Blueprint:
    """Return a blueprint with a live page of connections, their streams, stalls, and sessions.

    ::

        app.register_blueprint(debug_blueprint(mux, token=os.environ["WSMUX_TOKEN"]))

    The page is at ``/debug/wsmux/``, its data as JSON at ``/debug/wsmux/data.json``, which
    ``wsmux top`` shows in a terminal. Each request briefly occupies a server thread, so keep one
    free. With several processes, each request shows the process that happens to answer; with
    ``cluster``, a button shows all of them, as does ``/debug/wsmux/#cluster``, with its data at
    ``/debug/wsmux/cluster.json``. Such a request takes up to two seconds while one stands still.

    Without ``token`` and ``authorize`` every request gets 403; with both, either is enough.

    Args:
        connections: a ``Mux`` or ``Server``, a connection, a server, handler or client of
            ``wsmux.rpc``, whose River sessions are shown, a collection of these, or a function that
            returns one and is called on each request. Servers and clients are weakly held.
        token: required by the browser as a password, with any user name, or as
            ``Authorization: Bearer``. Use it only over HTTPS.
        authorize: called on each request, such as ``lambda: current_user.is_admin``; a true result
            grants access.
        cluster: a ``wsmux.cluster.Cluster``, whose processes can be shown, too; each tells what its
            own ``Cluster(connections=...)`` names.
        stalled_after: seconds without progress after which something is shown as stalled.
        url_prefix: the URL path of the page.
        name: the name of the blueprint.

    Raises:
        ValueError: the token is shorter than 16 characters, or ``stalled_after`` is not above 0.
        TypeError: the token is not a string, ``authorize`` is not callable, or ``cluster`` is none.
    """
    if token is not None and not isinstance(token, str):
        raise TypeError(f"token must be a single string, not {type(token).__name__}")
    if authorize is not None and not callable(authorize):
        kind = type(authorize).__name__
        raise TypeError(
            "authorize must be a function that returns whether a request may see the page, "
            f"not {kind}"
        )
    if cluster is not None and not callable(getattr(cluster, "status", None)):
        kind = type(cluster).__name__
        raise TypeError(f"cluster must be a wsmux.cluster.Cluster, not {kind}")
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise ValueError(
            f"a token must have at least {SHORTEST_TOKEN} characters; secrets.token_urlsafe() "
            "makes one"
        )
    check_seconds(stalled_after=stalled_after)
    watched = Watched(connections, sessions=True)
    page = Path(__file__).with_name("live.html").read_bytes()
    policy = _policy(page)
    if cluster is not None:
        page = page.replace(PLAIN, OFFERING, 1)
    blueprint = Blueprint(name, __name__, url_prefix=url_prefix)

    @blueprint.before_request
    def guard() -> Response | None:
        return _refusal(token, authorize)

    @blueprint.get("/")
    def index() -> Response:
        headers = {**HEADERS, "Content-Security-Policy": policy}
        return Response(page, mimetype="text/html", headers=headers)

    @blueprint.get("/data.json")
    def data() -> Response:
        told = json.dumps(document(watched.sources(), stalled_after))
        return Response(told, mimetype="application/json", headers=HEADERS)

    if cluster is not None:
        blueprint.add_url_rule("/cluster.json", view_func=_cluster_view(cluster, stalled_after))
    return blueprint


def _cluster_view(cluster: HasStatus, stalled_after: float) -> Callable[[], Response]:
    def whole_cluster() -> Response:
        try:
            told = json.dumps(cluster.status(stalled_after=stalled_after).document())
        except WsmuxError as error:  # Redis is away
            return Response(f"{error}\n", status=503, mimetype="text/plain", headers=HEADERS)
        return Response(told, mimetype="application/json", headers=HEADERS)

    return whole_cluster


def _refusal(token: str | None, authorize: Authorize | None) -> Response | None:
    """Return the refusal of a request that may not see the page; ``None`` if it may."""
    if token is None and authorize is None:
        text = "debug_blueprint() was given neither token= nor authorize=, so it shows nothing\n"
        return Response(text, status=403, mimetype="text/plain", headers=HEADERS)
    if authorize is not None and authorize():
        return None
    if token is None:
        return Response("not allowed\n", status=403, mimetype="text/plain", headers=HEADERS)
    if hmac.compare_digest(_given().encode(), token.encode()):
        return None
    asking = {**HEADERS, "WWW-Authenticate": 'Basic realm="wsmux", charset="UTF-8"'}
    text = "a token is wanted, as password or as Authorization: Bearer\n"
    return Response(text, status=401, mimetype="text/plain", headers=asking)


def _given() -> str:
    """Return the token in the request, or ``""``."""
    given = request.authorization
    if given is None:
        return ""
    found = given.password if given.type == "basic" else given.token
    return found or ""


def _policy(page: bytes) -> str:
    """Return a policy that lets the page run its own script and nothing else."""
    hashes = {tag: _hash(page, tag) for tag in (b"script", b"style")}
    return (
        f"default-src 'none'; script-src {hashes[b'script']}; style-src {hashes[b'style']}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def _hash(page: bytes, tag: bytes) -> str:
    text = page.partition(b"<" + tag + b">")[2].partition(b"</" + tag + b">")[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
