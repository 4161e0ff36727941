"""Describe the connections of a process in a JSON document, for live pages and tables.

Its size is limited, whatever the process serves, and it says what is omitted. It contains no
headers, queries or transferred bytes, since those who may see the page need not be those who may
see the data.

``Watched`` looks up the connections that a caller names: one, several, or those of a server.
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

# Version of the document; readers refuse any other.
VERSION = 1

# Default number of seconds without progress after which something is shown as stalled.
STALLED_AFTER = 5.0

# Connections, and streams of each, that are shown: those with waiting threads, and the largest.
MAX_CONNECTIONS = 100
MAX_STREAMS = 50

# Findings per connection, and characters of a text chosen by the peer or the application.
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
    """Return the document, ready for ``json.dumps``.

    Args:
        connections: the connections to show.
        after: seconds without progress after which something counts as stalled.
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
    """Return a key that sorts connections by age."""
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
        "id": str(stream.id),  # JavaScript's numbers are exact only up to 2^53
        "reader": None if stream.reader is None else stream.reader._asdict(),
        "writer": None if stream.writer is None else stream.writer._asdict(),
        "stalled": _stalled([each for each in found if each.stream_id == stream.id], after),
    }


def _stalled(found: list[Finding], after: float) -> float | None:
    """Return for how many seconds something has stalled; ``None`` if less than ``after``."""
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
    """An object that serves connections: a ``Server`` or a ``wsmux.flask.Mux``."""

    @property
    def connections(self) -> Iterable[Connection]:
        """The connections currently being served."""

    @property
    def stopping(self) -> bool:
        """Whether no more connections are served."""


Source: TypeAlias = Connection | Serving
Connections: TypeAlias = Source | Callable[[], Iterable[Source]] | Iterable[Source]


class Watched:
    """Look up the connections that an argument names.

    Servers are not kept alive by it. A collection is copied; a function is called each time, and
    its result is checked then.

    Raises:
        TypeError: the argument is none of what ``Connections`` lists.
    """

    def __init__(self, named: Connections) -> None:
        self._servers: tuple[weakref.ref[Serving], ...] = ()
        self._ask: Callable[[], Iterable[Source]] | None = None
        self._fixed: tuple[Connection, ...] = ()
        if isinstance(named, type):  # has the attributes of its instances
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
        """Return the open connections; ``None`` if there will never be any again."""
        found = [connection for connection in self.all() if not connection.closed]
        return None if self._ends() and not found else found

    def all(self) -> list[Connection]:
        """Return all connections named at this moment, even ended ones."""
        if self._ask is not None:
            return _served(_checked(self._ask()))
        return _served([*self._fixed, *self._living_servers()])

    def _living_servers(self) -> list[Serving]:
        servers = [reference() for reference in self._servers]
        return [server for server in servers if server is not None]

    def _ends(self) -> bool:
        """Return whether no more connections will be named."""
        return self._ask is None and all(server.stopping for server in self._living_servers())


def _served(sources: Iterable[Source]) -> list[Connection]:
    """Return the connections of all sources, without duplicates."""
    found: dict[Connection, None] = {}
    for each in sources:
        found.update(dict.fromkeys([each] if isinstance(each, Connection) else each.connections))
    return list(found)


def _checked(found: Iterable[Source]) -> list[Source]:
    if not isinstance(found, Iterable) or isinstance(found, Connection):  # iterating yields streams
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
