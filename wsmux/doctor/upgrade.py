"""Make the steps of HTTP and of the wire: upgrade, subprotocol, first ping."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any

from ..client import connect
from ..config import Config
from ..connection import Connection
from ..exceptions import ConnectionClosed, HandshakeError, StreamRefused, WsmuxError
from .report import Failed, Report

__all__ = ["Plan", "shake_hands", "speak"]

WIRES = ("wsmux", "yamux", "bymux", "js-ws")

AUTHORIZE = "send what it wants to see, such as --header 'Authorization: Bearer TOKEN'"
NO_UPGRADE = (
    "have what stands in front pass the headers Upgrade and Connection on (nginx: "
    "proxy_set_header Upgrade $http_upgrade), or check that this path is a WebSocket route"
)

# What to do about a status that is not 101.
FIXES = {
    200: NO_UPGRADE,
    204: NO_UPGRADE,
    400: "see what the server says; a proxy may have changed the request",
    401: AUTHORIZE,
    403: f"{AUTHORIZE}; or have the server allow the origin",
    404: "check the path: the server knows none of this name",
    405: "check the path: what is there takes no GET",
    407: "give the proxy its credentials: http://USER:PASSWORD@HOST:PORT",
    426: NO_UPGRADE,
    429: "the server limits how often one may connect: wait",
    502: "start what stands behind the proxy",
    503: "wait, or raise the server's max_connections",
    504: "see why what stands behind the proxy does not answer",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Say what to examine, and how.

    Attributes:
        url: ``ws://``, ``wss://`` or ``tcp://``.
        protocol: the wire.
        headers: of the request.
        ssl_context: how to do TLS, if at all.
        timeout: seconds for each step that waits for an answer.
        idle: seconds of silence to try.
        echo: whether the server sends back what a stream carries, so that it may be given load.
    """

    url: str
    protocol: str = "wsmux"
    headers: list[str] | None = None
    ssl_context: ssl.SSLContext | None = None
    timeout: float = 5.0
    idle: float = 2.0
    echo: bool = False
    config: Config = field(default_factory=lambda: Config(ping_interval=None, close_timeout=0.5))

    def connect(self, protocol: str | None = None, timeout: float | None = None) -> Connection:
        """Return a connection that keeps silent where it has nothing to say."""
        options: dict[str, Any] = {}
        if not self.url.startswith("tcp:"):
            options["headers"] = self.headers
        return connect(
            self.url,
            protocol=protocol or self.protocol,
            timeout=timeout or self.timeout,
            config=self.config,
            ssl_context=self.ssl_context,
            **options,
        )


def shake_hands(report: Report, plan: Plan) -> Connection:
    """Upgrade, in the wire that is planned."""
    try:
        connection = plan.connect()
    except TimeoutError as error:
        fact = f"no answer to the upgrade in {plan.timeout:g} s: a black hole"
        fix = "see whether the server hangs, and what the proxies on the way do with upgrades"
        raise Failed("upgrade", fact, fix) from error
    except HandshakeError as error:
        other = _other_wire(plan) if _may_be_the_wire(error) else None
        if other is not None:
            report.ok("upgrade", "the server switches to WebSocket")
            fact = f"the server does not speak {plan.protocol} here, but {other}"
            raise Failed("subprotocol", fact, f"use protocol={other!r} (--protocol {other})") from (
                error
            )
        fact, fix = str(error), FIXES.get(error.status or 0, "")
        if not fix and error.status is not None and 300 <= error.status < 400:
            fix = "use the address it redirects to"
        raise Failed("upgrade", fact, fix or "check that a wsmux server is there") from error
    except OSError as error:
        fix = "see the server's log; what listens there may speak no HTTP"
        raise Failed("upgrade", f"the connection broke off: {error}", fix) from error
    if plan.url.startswith("tcp:"):
        report.ok("upgrade", "none: a plain socket")
        report.ok("subprotocol", f"none: {plan.protocol}, by agreement")
    else:
        report.ok("upgrade", "the server switches to WebSocket")
        report.ok("subprotocol", f"both speak {connection.protocol}")
    return connection


def _may_be_the_wire(error: HandshakeError) -> bool:
    return error.status in (None, 101, 400) and "subprotocol" in str(error)


def _other_wire(plan: Plan) -> str | None:
    """Return a wire that the server does speak."""
    for name in WIRES:
        if name == plan.protocol:
            continue
        try:
            with plan.connect(name):
                return name
        except (HandshakeError, OSError):
            continue
    return None


def speak(report: Report, plan: Plan, connection: Connection) -> None:
    """Ping, and open a stream."""
    try:
        took = connection.ping(plan.timeout)
    except TimeoutError as error:
        fact = f"no pong in {plan.timeout:g} s: a black hole behind the upgrade"
        fix = "see what stands in between: it may keep back what comes behind the upgrade"
        raise Failed("wire", fact, fix) from error
    except ConnectionClosed as error:
        fix = "see the server's log for why it closes; it may turn this client away"
        raise Failed("wire", f"the server ended the connection: {error}", fix) from error
    try:
        with connection.open_stream(plan.timeout) as stream:
            stream.timeout = plan.timeout
            stream.close_write()
            connection.ping(plan.timeout)  # what it says of the stream has come before the pong
    except StreamRefused as error:
        fix = "use accept_stream here: this server opens streams, and takes none"
        report.warn("wire", f"the server takes no streams: {error}", fix)
        return
    except (TimeoutError, WsmuxError) as error:
        fix = "see the server's log for what it has against streams"
        raise Failed("wire", f"a stream could not be opened: {error}", fix) from error
    report.ok("wire", f"a ping took {took * 1000:.1f} ms, and a stream was opened")
