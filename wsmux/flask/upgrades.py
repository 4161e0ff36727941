"""Turn the requests of a route into connections: count, shake hands, serve, end the request."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, NamedTuple

from ..config import Config
from ..endpoints import audit
from ..endpoints.acceptor import DRAIN
from ..endpoints.shutdown_signals import Shutdown, shut_down_at_exit, shut_down_on_signals
from ..endpoints.user_limits import UserPlace, Users
from ..exceptions import HandshakeError, NoThreadError
from ..handshake.access import Authorize, authorized
from ..handshake.admission import Admission
from ..handshake.request import Request
from ..handshake.websocket_server import (
    accept,
    asks_to_return,
    end_at_server,
    leave_server,
    request_of,
)
from ..protocols.registry import is_resumable
from ..runtime import fork
from ..runtime.logs import logger
from .detached_threads import DetachedThreads
from .request_threads import (
    ConnectionLimit,
    closes_alone,
    gets_threads_back,
    longest_stop,
    tell_why_held,
    why_held,
)
from .responses import (
    Ended,
    HTTPException,
    Response,
    after_this_request,
    last,
    refusal,
    request,
)

__all__ = ["Upgraded", "Upgrades"]

_log = logger("wsmux")


class Upgraded(NamedTuple):
    """A request that has become a WebSocket.

    Attributes:
        socket: whoever serves it closes it.
        wire: the one to speak, ``None`` for no subprotocol.
        request: what the client asked for.
        returns: the client may only return to a connection that is counted already.
        passes: another process may take the socket: the server does nothing with it but close it.
        place: that of the connection among those of its user, if these are counted.
    """

    socket: socket.socket
    wire: Any
    request: Request
    returns: bool
    passes: bool
    place: UserPlace | None


class Upgrades:
    """Answer the requests of a route, or of several that share their limits.

    Args:
        config: ``max_connections_per_address`` and ``trusted_proxies``.
        name: what these routes are called in the log.
        max_connections: see ``ConnectionLimit``.
    """

    def __init__(self, config: Config, name: str, max_connections: int | None) -> None:
        self._limit = ConnectionLimit(name, max_connections)
        self._admission = Admission(config, name, max_connections)
        self._threads = DetachedThreads()
        self.forked()
        fork.register(self)

    def forked(self) -> None:
        """Begin again: a forked child has nothing to shut down when it exits."""
        self._ends_at_exit = False

    def begin(self, shutdown: Shutdown) -> None:
        """Begin to serve routes whose connections may leave their threads.

        Logs, as far as the server is known, what they cost it. A worker of gunicorn that gets
        threads back calls ``shutdown`` when it is told to stop: it does not wait for what it does
        not know of, but for threads that others hold, and exits only behind these, if it is not
        killed before.
        """
        tell_why_held(why_held())
        self._limit.tell()
        if gets_threads_back():
            with suppress(ValueError):  # an application that is made in another thread
                shut_down_on_signals(shutdown, _at_stop(longest_stop()), unasked=True)

    def detaches(self) -> bool:
        """Return whether the connection of this request may leave its thread; log if not, once."""
        reason = why_held(request.environ)
        tell_why_held(reason)
        return reason is None

    def answer(
        self,
        check: Callable[[dict[str, Any]], str | None],
        serve: Callable[[Upgraded], object],
        shutdown: Shutdown | None = None,
        sessions: int = 0,
        passes: bool = False,
        authorize: Authorize | None = None,
        users: Users | None = None,
    ) -> Response:
        """Answer the request of this thread.

        The thread is held until the connection has ended, unless there is a ``shutdown``: then the
        connection is served in a thread of its own.

        Args:
            check: given the environ, returns the wire to speak, ``None`` for no subprotocol, or
                raises the ``HandshakeError`` that refuses.
            serve: serves the connection until it has ended.
            shutdown: ends the connections of these routes when the process exits.
            sessions: how many connections clients may return to, each with another socket.
            passes: sockets of clients that return may go to another process.
            authorize: asked who the client is, behind all other checks; what it raises passes, for
                Flask to answer as it does elsewhere.
            users: counts the connections of those who have a name.
        """
        environ = request.environ
        asked = request_of(environ)
        detached = shutdown is not None
        place: UserPlace | None = None
        with ExitStack() as held:
            try:
                wire = check(environ)
                resumes = wire is not None and is_resumable(wire)
                returning = asks_to_return(environ)
                may_return = returning and (passes or bool(sessions))
                spare = sessions if detached and returning else 0
                guest = self._admission.admit(environ, spare)
                asked = request_of(environ)  # behind a trusted proxy, with the client's address
                held.callback(self._admission.leave, guest)
                full = held.enter_context(self._limit.held(detached, spare))
                asked = authorized(authorize, asked)
                if users is not None and asked.user is not None:
                    place = users.enter(asked.user, may_return)
                    held.callback(place.leave)
                accepted = accept(environ, wire)
            except HandshakeError as error:
                audit.refused(asked, "", error.status or 400, str(error))
                return refusal(error)
            except Exception as error:  # of the application: as a rule by ``abort``
                status = error.code if isinstance(error, HTTPException) else 500
                audit.refused(asked, "", status, type(error).__name__)
                after_this_request(last)
                raise
            returns = full or guest.returns or (place is not None and place.returns)
            passes = passes and resumes
            left = (detached or passes) and _leaves(environ)
            upgraded = Upgraded(accepted.socket, wire, asked, returns, passes and left, place)
            serving = partial(_serve, held.pop_all(), serve, upgraded)
        if shutdown is None or not left or not self._detached(serving, shutdown):
            try:
                serving()
            finally:
                if not left:
                    end_at_server(environ)
        return Ended(accepted.mode)

    def _detached(self, serving: Callable[[], object], shutdown: Shutdown) -> bool:
        """Serve in a thread of ours; return false if there is none."""
        if not self._ends_at_exit:  # the server does not wait for what it does not know of
            self._ends_at_exit = True
            longest = longest_stop()
            shut_down_at_exit(shutdown, _at_stop(longest), longest, self._threads.join)
        try:
            port = request.environ.get("REMOTE_PORT") or "unix"
            self._threads.start(serving, f"wsmux-route-{port}")
        except NoThreadError as error:
            _log.warning("a connection of %s holds its request's thread: %s", request.path, error)
            return False
        return True


def _at_stop(longest: float | None) -> float:
    """Return the seconds that streams have to end, unless the application has said how many."""
    return DRAIN if longest is None else longest


def _leaves(environ: dict[str, Any]) -> bool:
    """Have the server end a request without a word to the client, whose connection goes on.

    Returns false if it cannot.
    """
    reason = why_held(environ)
    if reason is not None:
        return closes_alone(environ, reason)
    try:
        leave_server(environ)
    except OSError as error:
        _log.warning(
            "a connection of %s cannot leave its server, and holds its request's thread: %s",
            request.path,
            error,
        )
        return False
    return True


def _serve(held: ExitStack, serve: Callable[[Upgraded], object], upgraded: Upgraded) -> None:
    with held:
        serve(upgraded)
