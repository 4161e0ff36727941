"""Put what a live page or table shows of a process's connections into one JSON document.

It is bounded, whatever the process serves, and says what it leaves out. It tells no header, no
query and no byte of what is carried: who may see the page need not be who may see the data.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Collection
from typing import Any

from .connection import Connection
from .explaining import findings, look, thread_names
from .logs import printable
from .snapshots import ConnectionStats, Finding, StreamStats

__all__ = ["STALLED_AFTER", "VERSION", "document"]

# Of the document; a reader refuses another one.
VERSION = 1

# Seconds of standing still from which something is shown as stalled, by default.
STALLED_AFTER = 5.0

# Connections and streams of each that are shown: those where something waits, and the largest.
MAX_CONNECTIONS = 100
MAX_STREAMS = 50

# Sentences to a connection, and characters of a text that the peer or the application chose.
MAX_FINDINGS = 20
MAX_TEXT = 200

TOTALS = (
    "streams",
    "unaccepted",
    "waiting_readers",
    "waiting_writers",
    "waiting_for_room",
    "unread_bytes",
    "queued_bytes",
    "bytes_received",
    "bytes_sent",
)


def document(connections: Collection[Connection], after: float) -> dict[str, Any]:
    """Return what there is to show, ready for ``json.dumps``.

    Args:
        connections: those to show.
        after: seconds of standing still from which something counts as stalled.
    """
    counted = [(connection, connection.stats()) for connection in connections]
    shown = heapq.nlargest(MAX_CONNECTIONS, counted, key=lambda pair: _interest(pair[1]))
    names = thread_names()
    return {
        "version": VERSION,
        "process": os.getpid(),
        "time": time.time(),
        "clock": time.monotonic(),
        "stalled_after": after,
        "totals": {name: sum(getattr(stats, name) for _, stats in counted) for name in TOTALS},
        "connections": [
            _connection(connection, stats, names, after)
            for connection, stats in sorted(shown, key=lambda pair: _number(pair[0]))
        ],
        "connections_left_out": len(counted) - len(shown),
    }


def _interest(stats: ConnectionStats) -> tuple[int, int, int]:
    waiting = stats.waiting_writers + stats.waiting_for_room
    return waiting, stats.unaccepted, stats.unread_bytes + stats.queued_bytes


def _number(connection: Connection) -> tuple[int, str]:
    """Return what sorts connections by their age."""
    number = connection.name.rpartition("-")[2]
    return (int(number) if number.isdecimal() else 0), connection.name


def _connection(
    connection: Connection, stats: ConnectionStats, names: Any, after: float
) -> dict[str, Any]:
    seen = look(connection._engine, names, MAX_STREAMS)
    found = findings(seen)
    request = connection.request
    return {
        "name": connection.name,
        "role": str(connection.role),
        "protocol": connection.protocol,
        "path": None if request is None else printable(request.path, MAX_TEXT),
        "remote_address": None if request is None else printable(request.remote_address, MAX_TEXT),
        **stats._asdict(),
        "silent": round(seen.silent, 3),
        "stalled": _stalled(found, after),
        "findings": [_finding(each, after) for each in found[:MAX_FINDINGS]],
        "findings_left_out": max(0, len(found) - MAX_FINDINGS),
        "shown_streams": [_stream(stream, found, after) for stream in _in_order(seen.streams)],
        "streams_left_out": max(0, stats.streams - len(seen.streams)),
    }


def _in_order(streams: list[StreamStats]) -> list[StreamStats]:
    return sorted(streams, key=lambda stream: stream.id)


def _stream(stream: StreamStats, found: list[Finding], after: float) -> dict[str, Any]:
    return {
        **stream._asdict(),
        "id": str(stream.id),  # numbers of JavaScript are exact up to 2^53
        "reader": None if stream.reader is None else stream.reader._asdict(),
        "writer": None if stream.writer is None else stream.writer._asdict(),
        "stalled": _stalled([each for each in found if each.stream_id == stream.id], after),
    }


def _stalled(found: list[Finding], after: float) -> float | None:
    """Return for how many seconds something stands still; ``None`` if nothing does for long."""
    longest = max((each.seconds for each in found if each.cause.stalls), default=0.0)
    return round(longest, 3) if longest >= after else None


def _finding(finding: Finding, after: float) -> dict[str, Any]:
    return {
        "cause": str(finding.cause),
        "stream": None if finding.stream_id is None else str(finding.stream_id),
        "seconds": round(finding.seconds, 3),
        "stalled": finding.cause.stalls and finding.seconds >= after,
        "text": printable(finding.text, 2 * MAX_TEXT),
    }
