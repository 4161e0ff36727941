"""Run the steps of HTTP and of the wire: upgrade, subprotocol, first ping."""

from __future__ import annotations

from ..exceptions import ConnectionClosed, HandshakeError, StreamRefused, WsmuxError
from ..handshake.websocket_server import WANTED_VERSION
from ..mux.connection import Connection
from ..protocols.registry import subprotocols
from .answers import lost_upgrade
from .plan import Plan
from .report import Failed, Report
from .wires import WIRES, Answer, Found, ask, find

__all__ = ["shake_hands", "speak"]

AUTHORIZE = "send what it wants to see: a token by --token-file, or other headers by --header"
# As in the documentation for Flask.
NGINX = (
    "nginx: proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; "
    'proxy_set_header Connection "upgrade";'
)
NO_UPGRADE = (
    f"have what stands in front pass the headers Upgrade and Connection on ({NGINX}), "
    "or check that this path is a WebSocket route"
)
OLD_VERSION = (
    "have what stands in front speak HTTP/1.1 to the server (nginx: proxy_http_version 1.1;)"
)

SWITCHES = "the server switches to WebSocket"

# Remedies for statuses other than 101.
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
    429: "the server limits how much one address may connect: wait, or close some; where a proxy "
    "stands in front, name it in the server's Config.trusted_proxies",
    502: "start what stands behind the proxy",
    503: "wait, or raise the server's max_connections",
    504: "see why what stands behind the proxy does not answer",
}


def shake_hands(report: Report, plan: Plan) -> Connection:
    """Upgrade to the planned wire."""
    try:
        connection = plan.connect()
    except TimeoutError as error:
        fact = f"no answer to the upgrade in {plan.timeout:g} s: a black hole"
        fix = "see whether the server hangs, and what the proxies on the way do with upgrades"
        raise Failed("upgrade", fact, fix) from error
    except HandshakeError as error:
        raise _refused(report, plan, error) from error
    except OSError as error:
        fix = "see the server's log; what listens there may speak no HTTP"
        raise Failed("upgrade", f"the connection broke off: {error}", fix) from error
    report.ok("upgrade", "none: a plain socket" if plan.plain else SWITCHES)
    if plan.plain or not plan.offers:
        report.ok("subprotocol", f"none: {plan.protocol}, by agreement")
    else:
        report.ok("subprotocol", f"both name {plan.offers[0]}")
    return connection


def _refused(report: Report, plan: Plan, error: HandshakeError) -> Failed:
    """Explain a refused handshake."""
    fact, fix = str(error), FIXES.get(error.status or 0, "")
    if error.status in (None, 101, 400) and "subprotocol" in str(error):
        named = [(name, subprotocols((name,))) for name in WIRES]
        found = find(plan, [each for each in named if each[1] not in ([], plan.offers)])
        if found.name is None:
            found = find(plan, [(name, []) for name in WIRES])
        wrong = _wrong_wire(plan, "subprotocol", found)
        if wrong is not None:
            report.ok("upgrade", SWITCHES)
            return wrong
        fix = "check that a wsmux server is there; if it calls the wire otherwise: --subprotocol"
    elif error.status == 400 and f"{WANTED_VERSION}, not HTTP/1.0" in fact:
        fact, fix = f"{fact} (the request arrives as HTTP/1.0)", OLD_VERSION
    elif error.status == 400 and (how := lost_upgrade(plan)) is not None:
        fact, fix = f"{fact} ({how})", NO_UPGRADE
    if not fix and error.status is not None and 300 <= error.status < 400:
        fix = "use the address it redirects to"
    return Failed("upgrade", fact, fix or "check that a wsmux server is there")


def _wrong_wire(plan: Plan, step: str, found: Found) -> Failed | None:
    """Explain a wrong wire, if the peer was found to use another one, or none."""
    if found.name is not None:
        fix, option = f"use protocol={found.name!r}", f"--protocol {found.name}"
        if not (found.offers or plan.plain or found.name == "js-ws"):
            fix, option = f"{fix}, subprotocol=None", f"{option} --subprotocol none"
        fact = f"the server does not speak {plan.protocol} here, but {found.name}"
        if found.name == plan.protocol:
            fact = f"the server speaks {found.name}, but names no subprotocol"
            if found.offers:
                fact = (
                    f"the server calls {found.name} {found.offers[0]!r}, not {plan.subprotocol!r}"
                )
                fix, option = "leave out subprotocol=", "--subprotocol"
        return Failed(step, fact, f"{fix} ({option})")
    if not {Answer.ECHOES, Answer.ALIVE} & set(found.answers):
        return None
    carrier = "plain socket" if plan.plain else "plain WebSocket"
    fact = f"a {carrier} answers, and speaks none of {', '.join(WIRES)}"
    if Answer.ECHOES in found.answers:
        fact = f"{fact}: it sends back what it gets"
    return Failed(step, fact, "check the address and the path: no wsmux server is there")


def _misunderstood(plan: Plan) -> Failed | None:
    """Explain a wrong wire, if a test request in it is not answered."""
    answer = ask(plan, plan.protocol, plan.offers)
    if answer in (Answer.SPEAKS, Answer.UNREACHED):
        return None
    rest = [name for name in WIRES if name != plan.protocol]
    if answer is not Answer.ECHOES:
        found = find(plan, [(n, subprotocols((n,)) if plan.offers else []) for n in rest])
        if found.name is not None:
            return _wrong_wire(plan, "wire", found)
    return _wrong_wire(plan, "wire", Found(None, [], [answer]))


def speak(report: Report, plan: Plan, connection: Connection) -> None:
    """Send a ping, and open a stream."""
    try:
        took = connection.ping(plan.timeout)
    except TimeoutError as error:
        place = "behind the connection" if plan.plain else "behind the upgrade"
        fact = f"no pong in {plan.timeout:g} s: a black hole {place}"
        fix = f"see what stands in between: it may keep back what comes {place}"
        raise (_misunderstood(plan) or Failed("wire", fact, fix)) from error
    except ConnectionClosed as error:
        fact = f"the server ended the connection: {error}"
        fix = "see the server's log for why it closes; it may turn this client away"
        raise (_misunderstood(plan) or Failed("wire", fact, fix)) from error
    wrong = _misunderstood(plan)
    if wrong is not None:
        raise wrong
    try:
        with connection.open_stream(plan.timeout) as stream:
            stream.timeout = plan.timeout
            stream.close_write()
            connection.ping(plan.timeout)  # its answer about the stream has arrived before the pong
    except StreamRefused as error:
        fix = "use accept_stream here: this server opens streams, and takes none"
        report.warn("wire", f"the server takes no streams: {error}", fix)
        return
    except (TimeoutError, WsmuxError) as error:
        fix = "see the server's log for what it has against streams"
        raise Failed("wire", f"a stream could not be opened: {error}", fix) from error
    report.ok("wire", f"a ping took {took * 1000:.1f} ms, and a stream was opened")
