"""Show all processes of a cluster, for ``wsmux top --cluster``.

There is one line for each process, and below it one for each of the connections that they have told
of, the stalled ones first; then who did not answer, and what stands still. The command itself is a
process of the cluster for as long as it looks, and does not show itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ..runtime.logs import printable
from .terminal import Table
from .top_rows import COLUMNS, MAX_TEXT, connection_row, size_text

if TYPE_CHECKING:
    from ..cluster import Cluster

__all__ = ["look", "shown"]

PROCESS_COLUMNS = (
    "process",
    "node",
    "renewed",
    "connections",
    "streams",
    "sessions",
    "in/s",
    "out/s",
    "unread",
    "queued",
    "stalled",
    "names",
)

# Lines of connections, and of notes below them.
MAX_CONNECTIONS, MAX_NOTES = 100, 40

# Characters of the names of a process.
MAX_NAMES = 40

NOT_UNDERSTOOD = "it tells something that this does not understand"


def look(cluster: Cluster, timeout: float) -> dict[str, Any]:
    """Return the document of a cluster, without this process."""
    status = cluster.status(timeout=timeout)
    others = [each for each in status.nodes if each.node != cluster.node]
    return status._replace(nodes=others).document()


class _Shown(NamedTuple):
    """Hold the line of a process, those of its connections, and why it did not tell of any.

    Before the line of each connection is for how long it has stalled; ``notes`` tell of those.
    """

    row: list[str]
    connections: list[tuple[float, list[str]]]
    left_out: int
    notes: list[str]
    streams: int = 0
    why: str = ""


def shown(seen: dict[str, Any], before: dict[str, Any] | None) -> str:
    """Return the tables of a document of ``look``, with the rates since the one before."""
    past = {each["node"]: each["status"] for each in before["nodes"]} if before else {}
    nodes = [_node(each, past.get(each["node"])) for each in seen["nodes"]]
    connections = [line for each in nodes for line in each.connections]
    connections.sort(key=lambda line: -line[0])  # stable: by process else
    left_out = sum(each.left_out for each in nodes)
    streams, stalled = sum(each.streams for each in nodes), sum(line[0] > 0 for line in connections)
    title = (
        f"cluster {printable(seen['cluster'], MAX_TEXT)}: "
        f"{len(nodes) + seen['nodes_left_out']} processes, "
        f"{sum(bool(each.why) for each in nodes)} without an answer, "
        f"{len(connections) + left_out} connections, {streams} streams, "
        f"{stalled} stalled for {seen['stalled_after']:g} s or longer"
    )
    more = [f"{seen['nodes_left_out']} more processes"] if seen["nodes_left_out"] else []
    text = [str(Table(title, PROCESS_COLUMNS, [each.row for each in nodes], more))]
    if connections:
        rows = [line[1] for line in connections[:MAX_CONNECTIONS]]
        hidden = len(connections) - len(rows) + left_out
        further = [f"{hidden} more connections"] if hidden else []
        heading = "connections, those that have stalled the longest first"
        text += ["", str(Table(heading, ("node", *COLUMNS), rows, further))]
    notes = [each.why for each in nodes if each.why]
    notes += [note for each in nodes for note in each.notes]
    if notes:
        text += ["", *notes[:MAX_NOTES]]
    if len(notes) > MAX_NOTES:
        text.append(f"{len(notes) - MAX_NOTES} more")
    return "\n".join(text)


def _node(node: dict[str, Any], before: dict[str, Any] | None) -> _Shown:
    who = f"{printable(node['host'] or '?', MAX_TEXT)} {node['pid'] or '?'}"
    number = printable(node["node"], MAX_TEXT)[:8]
    names = printable(", ".join(node["names"]), MAX_NAMES)
    if len(node["names"]) < node["members"]:
        names = f"{names} of {node['members']}"
    known = [who, number, "-" if node["renewed"] is None else f"{node['renewed']:.1f} s"]
    status, why = node["status"], node["why"]
    if status is not None:
        try:
            return _answered(known, number, names, status, before)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
            why = NOT_UNDERSTOOD
    nothing = ["-"] * (len(PROCESS_COLUMNS) - len(known) - 1)
    why = printable(why, MAX_TEXT)
    return _Shown([*known, *nothing, names], [], 0, [], why=f"{who} ({number}): {why}")


def _answered(
    known: list[str],
    number: str,
    names: str,
    status: dict[str, Any],
    before: dict[str, Any] | None,
) -> _Shown:
    same = before is not None and before["process"] == status["process"]
    past = {each["name"]: each for each in before["connections"]} if before and same else {}
    elapsed = status["clock"] - before["clock"] if before is not None and same else 0.0
    sums = status["totals"]

    def rate(name: str) -> str:
        if before is None or elapsed <= 0:
            return "-"
        return size_text(max(0, sums[name] - before["totals"][name]) / elapsed)

    connections = [
        (
            float(each["stalled"] or 0.0),
            [number, *connection_row(each, past.get(each["name"]), elapsed)],
        )
        for each in status["connections"]
    ]
    left_out = int(status["connections_left_out"])
    row = [
        *known,
        str(len(connections) + left_out),
        str(int(sums["streams"])),
        str(len(status["sessions"]) + int(status["sessions_left_out"])),
        rate("bytes_received"),
        rate("bytes_sent"),
        size_text(sums["unread_bytes"]),
        size_text(sums["queued_bytes"]),
        str(sum(stalled > 0 for stalled, _ in connections)),
        names,
    ]
    notes = [f"{number} {note}" for note in _notes(status)]
    return _Shown(row, connections, left_out, notes, int(sums["streams"]))


def _notes(status: dict[str, Any]) -> Iterator[str]:
    for each in status["connections"]:
        for finding in each["findings"]:
            if finding["stalled"]:
                yield printable(f"{each['name']}: {finding['text']}", MAX_TEXT)
