"""Describe the connections of a process in one JSON document, for live pages and tables.

It is bounded, whatever the process serves, and says what it leaves out. It tells no header, no
query and no byte of what is carried: who may see the page need not be who may see the data.

``connections_of`` finds the connections, where a caller names one, several, or who serves them.
"""

from __future__ import annotations

import heapq
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol, TypeAlias, runtime_checkable

from ..mux.connection import Connection
from ..mux.explain import findings, look, thread_names
from ..mux.stats import ConnectionStats, Finding, StreamStats
from ..runtime.logs import printable

__all__ = ["STALLED_AFTER", "VERSION", "Connections", "Serving", "Watched", "document"]

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
    seen = look(connection._multiplexer, names, MAX_STREAMS)
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


@runtime_checkable
class Serving(Protocol):
    """What serves connections: a ``Server``, a ``wsmux.flask.Mux``."""

    @property
    def connections(self) -> Iterable[Connection]:
        """Those that are served at this moment."""

    @property
    def stopping(self) -> bool:
        """Whether no further one is served."""


Source: TypeAlias = Connection | Serving
Connections: TypeAlias = Source | Callable[[], Iterable[Source]] | Iterable[Source]


class Watched:
    """Look up the connections that somebody named.

    Who serves them is not kept alive by it. A collection is copied; a function is asked each time,
    and what it returns is checked then.

    Raises:
        TypeError: it is nothing of what ``Connections`` lists.
    """

    def __init__(self, named: Connections) -> None:
        self._servers: tuple[weakref.ref[Serving], ...] = ()
        self._ask: Callable[[], Iterable[Source]] | None = None
        self._fixed: tuple[Connection, ...] = ()
        if isinstance(named, type):  # a class has what its instances have, but serves nothing
            raise _unfit(named)
        if callable(named) and not isinstance(named, Connection | Serving):
            self._ask = named
            return
        sources = _checked([named] if isinstance(named, Connection | Serving) else named)
        self._fixed = tuple(each for each in sources if isinstance(each, Connection))
        self._servers = tuple(
            weakref.ref(each) for each in sources if not isinstance(each, Connection)
        )

    def living(self) -> list[Connection] | None:
        """Return those that have not ended; ``None`` when there will never be one again."""
        found = [connection for connection in self.all() if not connection.closed]
        return None if self._ends() and not found else found

    def all(self) -> list[Connection]:
        """Return those that are named at this moment, whether they have ended or not."""
        if self._ask is not None:
            return _served(_checked(self._ask()))
        return _served([*self._fixed, *self._living_servers()])

    def _living_servers(self) -> list[Serving]:
        servers = [reference() for reference in self._servers]
        return [server for server in servers if server is not None]

    def _ends(self) -> bool:
        """Return whether no further one will be named."""
        return self._ask is None and all(server.stopping for server in self._living_servers())


def _served(sources: Iterable[Source]) -> list[Connection]:
    """Return the connections of all, each once."""
    found: dict[Connection, None] = {}
    for each in sources:
        found.update(dict.fromkeys([each] if isinstance(each, Connection) else each.connections))
    return list(found)


def _checked(found: Iterable[Source]) -> list[Source]:
    if not isinstance(found, Iterable) or isinstance(found, Connection):  # that yields streams
        raise _unfit(found)
    sources = list(found)
    for each in sources:
        if isinstance(each, type) or not isinstance(each, Connection | Serving):
            raise TypeError(f"expected a connection, a Server or a Mux, not {each!r}")
    return sources


def _unfit(named: object) -> TypeError:
    return TypeError(
        "expected a connection, a Server or Mux, a collection of these, or a function that"
        f" returns one, not {named!r}"
    )
