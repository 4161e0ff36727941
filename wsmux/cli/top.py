"""Show the connections and River sessions of another process, updated periodically.

URL is that of the page served by ``wsmux.flask.debug_blueprint``, PID the id of a process of the
same user on this machine that has a ``wsmux.LiveSocket``. Below the connections are stalls and
their causes, and below those the sessions, if there are any. With ``--cluster``, all processes of a
``wsmux.cluster.Cluster`` are shown instead; see ``top_cluster``.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from ..runtime.hints import not_connected
from ..runtime.logs import printable
from .addresses import add_trust, address, trusting
from .cluster import add_cluster, cluster_of
from .redis_urls import PASSWORD_HELP
from .terminal import CommandError, Table, emit, seconds
from .tokens import VARIABLE, add_token_file, token
from .top_rows import COLUMNS, MAX_TEXT, connection_row, size_text

if TYPE_CHECKING:
    import http.client

EPILOG = "Example: WSMUX_TOKEN=... wsmux top https://example.org/debug/wsmux/"

# Seconds for an answer, by default; a cluster is shown anyway, without those that do not answer.
PATIENCE, CLUSTER_PATIENCE = 10.0, 2.0

# Maximum size of an answer: several times that of the page.
MAX_ANSWER = 32 * 1024 * 1024

# Notes below the table.
MAX_NOTES = 20

SESSION_COLUMNS = (
    "session of",
    "side",
    "state",
    "since",
    "ends in",
    "age",
    "reconnects",
    "calls",
    "handlers",
    "waiting",
    "unacknowledged",
    "unread",
)

# Characters of a path that are not escaped.
SAFE = "/%:@!$&'()*+,;=~"

# Move the cursor home and clear everything below.
REDRAW = "\x1b[H\x1b[J"


class Address(NamedTuple):
    """The address of the numbers."""

    secure: bool
    host: str
    port: int | None
    path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{'https' if self.secure else 'http'}://{host}{port}{self.path}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``wsmux top``."""
    parser.add_argument(
        "source",
        type=source,
        nargs="?",
        metavar="URL|PID",
        help="http:// or https:// address, or a process id",
    )
    parser.add_argument(
        "--cluster",
        metavar="REDIS",
        help=f"show all processes of the cluster of this Redis; {PASSWORD_HELP}",
    )
    add_cluster(parser)
    add_token_file(parser, "token to send, as Authorization: Bearer")
    parser.add_argument(
        "--interval", type=seconds, default=2.0, help="seconds between updates; 2 by default"
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        help=f"seconds for an answer; {PATIENCE:g} by default, {CLUSTER_PATIENCE:g} with --cluster",
    )
    parser.add_argument("--once", action="store_true", help="show the connections once")
    parser.add_argument("--json", action="store_true", help="print each update as a line of JSON")
    add_trust(parser)


def source(text: str) -> Address | int:
    """Parse the address of a page, or a process id."""
    return int(text) if text.isascii() and text.isdecimal() else page(text)


def page(text: str) -> Address:
    """Parse the address of a page, or of its data."""
    parts = urlsplit(address(text, "http", "https"))
    path = parts.path or "/"
    if not path.endswith(".json"):
        path = f"{path.rstrip('/')}/data.json"
    return Address(parts.scheme == "https", parts.hostname or "", parts.port, quote(path, SAFE))


def run(args: argparse.Namespace) -> int:
    """Fetch and print the connections periodically, until Ctrl-C."""
    if (args.source is None) == (args.cluster is None):
        raise CommandError("name what to show: wsmux top URL|PID, or wsmux top --cluster REDIS", 2)
    if args.timeout is None:
        args.timeout = PATIENCE if args.cluster is None else CLUSTER_PATIENCE
    if args.cluster is not None:
        return _show_cluster(args)
    headers = {"Accept": "application/json"}
    if known := token(args.token_file):
        headers["Authorization"] = f"Bearer {known}"

    def look() -> dict[str, Any]:
        return _ask(args, headers) if isinstance(args.source, Address) else _look(args)

    return _show(args, look, _shown)


def _show_cluster(args: argparse.Namespace) -> int:
    from .top_cluster import look, shown

    try:
        cluster = cluster_of(args.cluster, args)
    except (ValueError, ImportError) as error:
        raise CommandError(str(error), 2) from error
    with cluster:
        return _show(args, lambda: look(cluster, args.timeout), shown)


def _show(
    args: argparse.Namespace,
    look: Callable[[], dict[str, Any]],
    shown: Callable[[dict[str, Any], dict[str, Any] | None], str],
) -> int:
    """Print what there is to see, once or until Ctrl-C; ``shown`` gets what was before, too."""
    redraws = sys.stdout.isatty() and not args.once and not args.json
    before: dict[str, Any] | None = None
    while True:
        seen = look()
        text = json.dumps(seen) if args.json else shown(seen, before)
        emit(REDRAW + text if redraws else text)
        if args.once:
            return 0
        before = seen
        time.sleep(args.interval)


def _ask(args: argparse.Namespace, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the document of a server. Redirects are not followed, since they would get the token.

    Raises:
        CommandError: the answer is invalid; with status 2 if the URL or the token is wrong.
    """
    import http.client

    where: Address = args.source
    asked = _connection(where, args)
    try:
        asked.request("GET", where.path, headers=dict(headers))
        answer = asked.getresponse()
        body = answer.read(MAX_ANSWER + 1)
    except http.client.HTTPException as error:
        text = printable(repr(error), MAX_TEXT)
        raise CommandError(f"{where.host} does not speak HTTP: {text}", status=2) from error
    except UnicodeError as error:
        raise CommandError(f"{where.host!a} is not a host name", status=2) from error
    except TimeoutError as error:
        raise CommandError(f"{where.host} did not answer in {args.timeout:g} s") from error
    except ssl.SSLError as error:
        raise CommandError(f"TLS with {where} failed: {error}") from error
    except OSError as error:
        raise not_connected(str(where), error) from error
    finally:
        asked.close()
    if answer.status != 200:
        raise CommandError(_refused(where, answer.status), status=2)
    return _checked(f"{where.host}{where.path}", body)


def _look(args: argparse.Namespace) -> dict[str, Any]:
    """Return the document of a process of this user.

    Raises:
        CommandError: it publishes nothing, with status 2; or does not answer in time.
    """
    from ..diagnostics.status_socket import socket_path

    pid: int = args.source
    body = bytearray()
    with socket.socket(socket.AF_UNIX) as looking:
        looking.settimeout(args.timeout)
        try:
            looking.connect(str(socket_path(pid, os.getuid())))
            while len(body) <= MAX_ANSWER and (chunk := looking.recv(65536)):
                body += chunk
        except TimeoutError as error:
            raise CommandError(f"process {pid} did not answer in {args.timeout:g} s") from error
        except BlockingIOError as error:
            raise CommandError(f"process {pid} has too many status clients") from error
        except OSError as error:
            text = (
                f"process {pid} publishes nothing: it needs a wsmux.LiveSocket, and the same user "
                f"and directory for temporary files ({error.strerror or error})"
            )
            raise CommandError(text, status=2) from error
    return _checked(f"process {pid}", bytes(body))


def _connection(where: Address, args: argparse.Namespace) -> http.client.HTTPConnection:
    import http.client

    if not where.secure:
        return http.client.HTTPConnection(where.host, where.port, timeout=args.timeout)
    return http.client.HTTPSConnection(
        where.host, where.port, timeout=args.timeout, context=trusting(args)
    )


def _refused(where: Address, status: int) -> str:
    why = {
        401: f"the token is wrong or missing: give it in {VARIABLE} or by --token-file",
        403: "the debug page allows nobody this way",
        404: "there is no debug page at this path",
    }
    further = "; redirections are not followed: name where it is" if 300 <= status < 400 else ""
    return f"{where.host}{where.path} answers {status}: {why.get(status, 'no page')}{further}"


def _checked(where: str, body: bytes) -> dict[str, Any]:
    from ..diagnostics.status import VERSION

    try:
        seen = json.loads(body) if len(body) <= MAX_ANSWER else None
    except (ValueError, RecursionError):
        seen = None
    if not isinstance(seen, dict) or "stalled_after" not in seen:
        raise CommandError(f"{where} is not a debug page of wsmux", status=2)
    if seen.get("version") != VERSION:
        told = printable(repr(seen.get("version")), MAX_TEXT)
        raise CommandError(f"the page is of version {told}, this is for {VERSION}", status=2)
    return seen


def _shown(seen: dict[str, Any], before: dict[str, Any] | None) -> str:
    """Return the table of connections, with notes below it, and that of sessions, if any.

    Raises:
        CommandError: the document is invalid.
    """
    try:
        text = str(_table(seen, before))
        if not seen.get("sessions"):  # none, or an earlier version, which does not know them
            return text
        return f"{text.rstrip()}\n\n{_session_table(seen)}"
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        text = f"the server tells something that this does not understand: {error!r}"
        raise CommandError(printable(text, MAX_TEXT)) from error


def _table(seen: dict[str, Any], before: dict[str, Any] | None) -> Table:
    same = before is not None and before["process"] == seen["process"]
    elapsed = seen["clock"] - before["clock"] if before is not None and same else 0.0
    past = {each["name"]: each for each in before["connections"]} if before and same else {}
    connections = seen["connections"]
    rows = [connection_row(each, past.get(each["name"]), elapsed) for each in connections]
    stalled = sum(each["stalled"] is not None for each in connections)
    total = len(connections) + seen["connections_left_out"]
    title = (
        f"process {int(seen['process'])}: {total} connections, {int(seen['totals']['streams'])} "
        f"streams, {stalled} stalled for {float(seen['stalled_after']):g} s or longer"
    )
    notes = [
        printable(f"{each['name']}: {finding['text']}", MAX_TEXT)
        for each in connections
        for finding in each["findings"]
        if finding["stalled"]
    ]
    left_out = [f"{len(notes) - MAX_NOTES} more"] if len(notes) > MAX_NOTES else []
    hidden = seen["connections_left_out"]
    further = [f"{int(hidden)} more connections"] if hidden else []
    return Table(title, COLUMNS, rows, [*further, "", *notes[:MAX_NOTES], *left_out])


def _session_table(seen: dict[str, Any]) -> Table:
    sessions, hidden, totals = seen["sessions"], seen["sessions_left_out"], seen["session_totals"]
    title = (
        f"{len(sessions) + int(hidden)} sessions, {int(totals['connected'])} connected, "
        f"{int(totals['calls'])} calls, {int(totals['handlers'])} handlers"
    )
    further = [f"{int(hidden)} more sessions"] if hidden else []
    return Table(title, SESSION_COLUMNS, map(_session_row, sessions), further)


def _session_row(now: dict[str, Any]) -> list[str]:
    def held(what: str) -> str:
        messages = int(now[f"{what}_messages"])
        return f"{messages} ({size_text(now[f'{what}_bytes'])})" if messages else "-"

    return [
        printable(str(now["client_id"]), MAX_TEXT),
        printable(str(now["role"]), MAX_TEXT),
        printable(str(now["state"]).replace("_", " "), MAX_TEXT),
        _time(now["state_age"]),
        "-" if now["ends_in"] is None else _time(now["ends_in"]),
        _time(now["age"]),
        str(max(0, int(now["connections"]) - 1)),
        *(str(int(now[name])) for name in ("calls", "handlers", "waiting_calls")),
        held("unacknowledged"),
        held("unread"),
    ]


def _time(passed: float) -> str:
    if passed < 100:
        return f"{passed:.1f} s"
    return f"{passed / 60:.0f} min" if passed < 6000 else f"{passed / 3600:.0f} h"
