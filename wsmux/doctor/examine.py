"""Run the steps in order."""

from __future__ import annotations

from ..exceptions import WsmuxError
from .line import idle_cut, load, message_limit, nagle, round_trip
from .network import OPAQUE, look_up, place_of, reach, secure
from .plan import Plan
from .report import Failed, Report
from .upgrade import shake_hands, speak

__all__ = ["STEPS", "examine"]

STEPS = (
    "dns",
    "proxy",
    "tcp",
    "tls",
    "upgrade",
    "subprotocol",
    "wire",
    "rtt",
    "nagle",
    "message limit",
    "idle cut",
    "load",
)


def examine(plan: Plan) -> Report:
    """Run all steps, and return the results; blocks for some seconds, each step with a limit.

    Opens streams on the server: one that carries no data and, only if ``plan.echo`` permits, some
    that carry load.
    """
    report = Report(plan.url, STEPS)
    with report.stopping():
        tcp = _below(report, plan)
        with shake_hands(report, plan) as connection:
            speak(report, plan, connection)
            try:
                idle = round_trip(report, plan, connection, tcp)
                nagle(report, plan)
                message_limit(report, plan)
                idle_cut(report, plan)
                load(report, plan, connection, idle)
            except (WsmuxError, OSError) as error:
                fix = "try again; if it goes on so, see the server's log"
                raise Failed("rtt", f"the connection did not last: {error}", fix) from error
    return report


def _below(report: Report, plan: Plan) -> float | None:
    """Run the steps below HTTP; return the TCP round-trip time in seconds, if measured."""
    place = place_of(plan.url)
    look_up(report, place)
    try:
        sock, took = reach(report, place, plan.timeout)
    except OPAQUE:
        for name in ("tcp", "tls"):
            report.skip(name, "made by the proxy's client")
        return None
    with sock:
        secure(report, sock, place, plan.ssl_context, plan.timeout)
    return None if place.proxy is not None else took
