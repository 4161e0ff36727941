"""Compare a server's answers to an upgrade and to an ordinary request."""

from __future__ import annotations

import http.client
import re
from urllib.parse import urlsplit

from .network import OPAQUE, place_of, reach
from .plan import Plan
from .report import Failed, Report

__all__ = ["lost_upgrade"]

# Bytes of a page that are compared.
PAGE = 200

UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}

_MISSED = re.compile(r"\bupgrade\b", re.IGNORECASE)


def lost_upgrade(plan: Plan) -> str | None:
    """Return evidence that the upgrade did not reach the server, ``None`` if there is none."""
    asked = _get(plan, UPGRADE | {"Sec-WebSocket-Protocol": ", ".join(plan.offers)})
    if asked is None:
        return None
    if asked == _get(plan, {}):
        return "a plain GET is answered the same: the upgrade does not arrive"
    return "it misses the upgrade" if _MISSED.search(asked[1]) else None


def _get(plan: Plan, headers: dict[str, str]) -> tuple[int, str] | None:
    """Return status and body of the answer to a request, ``None`` without one."""
    place = place_of(plan.url)
    parts = urlsplit(plan.url)
    connection = http.client.HTTPConnection(place.host, place.port, timeout=plan.timeout)
    try:
        sock, _ = reach(Report("", ()), place, plan.timeout)
    except (Failed, OPAQUE):
        return None
    try:
        sock.settimeout(plan.timeout)
        if plan.ssl_context is not None:
            sock = plan.ssl_context.wrap_socket(sock, server_hostname=place.host)
        connection.sock = sock
        connection.putrequest("GET", parts._replace(scheme="", netloc="").geturl() or "/")
        for line in plan.headers or ():
            name, _, value = line.partition(":")
            connection.putheader(name.strip(), value.strip())
        for name, value in headers.items():
            if value:
                connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, response.read(PAGE).decode(errors="replace")
    except (http.client.HTTPException, OSError, ValueError):
        return None
    finally:
        connection.close()
        sock.close()
