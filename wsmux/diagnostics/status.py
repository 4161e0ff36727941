"""Describe the connections and sessions of a process in a JSON document, for pages and tables.

Its size is limited, whatever the process serves, and it says what is omitted. It contains no
headers, queries or transferred bytes, since those who may see the page need not be those who may
see the data; and no ids of sessions, with which a session could be taken over.

``Watched`` looks up what a caller names: a connection, a server or another object that has some of
them, or several of these. What has River sessions stands above this module: it is known by its
method ``list_sessions``.
"""

from __future__ import annotations

import heapq
import json
import os
import time
import weakref
from collections.abc import Callable, Iterable
from inspect import getattr_static
from typing import Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

from ..mux.connection import Connection
from ..mux.explain import findings, look, thread_names
from ..mux.stats import ConnectionStats, Finding, StreamStats
from ..runtime.logs import printable

__all__ = [
    "STALLED_AFTER",
    "VERSION",
    "Connections",
    "HasSessions",
    "Serving",
    "Shown",
    "Sources",
    "Watched",
    "connections_of",
    "document",
    "fitting_document",
    "sessions_of",
]

# Version of the document; readers refuse any other.
VERSION = 1

# Default number of seconds without progress after which something is shown as stalled.
STALLED_AFTER = 5.0

# Connections, and streams of each, that are shown: those with waiting threads, and the largest.
MAX_CONNECTIONS = 100
MAX_STREAMS = 50

# Sessions that are shown: those with waiting calls, and those that hold the most.
MAX_SESSIONS = 100

# The same of a document that has to fit, which shows half as many until it does.
FITTING = (20, 10, 20)

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

# What is summed of all sessions, and what is shown of each. Its id is not: whoever has that can
# take the session over.
SESSION_TOTALS = (
    "connected",
    "calls",
    "handlers",
    "waiting_calls",
    "unacknowledged_messages",
    "unacknowledged_bytes",
    "unread_messages",
    "unread_bytes",
)
SESSION_FIELDS = (
    "number",
    "role",
    "client_id",
    "server_id",
    "state",
    "age",
    "state_age",
    "ends_in",
    "connections",
    *SESSION_TOTALS,
)


def document(sources: Iterable[Shown], after: float) -> dict[str, Any]:
    """Return the document, ready for ``json.dumps``.

    Args:
        sources: what to show the open connections and the sessions of.
        after: seconds without progress after which something counts as stalled.
    """
    return _document(sources, after, MAX_CONNECTIONS, MAX_STREAMS, MAX_SESSIONS)


def fitting_document(sources: Iterable[Shown], after: float, size: int) -> bytes:
    """Return the document as JSON of at most ``size`` bytes, of which it needs two thousand."""
    sources = list(sources)
    connections, streams, sessions = FITTING
    while True:
        told = json.dumps(_document(sources, after, connections, streams, sessions)).encode()
        if len(told) <= size or not connections + sessions:
            return told
        # One stream at least, by which a connection is known to stall.
        connections, streams, sessions = connections // 2, max(1, streams // 2), sessions // 2


def _document(
    sources: Iterable[Shown], after: float, connections: int, streams: int, sessions: int
) -> dict[str, Any]:
    sources = list(sources)
    counted = [(each, each.stats()) for each in connections_of(sources) if not each.closed]
    everyone = sessions_of(sources)
    shown = heapq.nlargest(connections, counted, key=lambda pair: _interest(pair[1]))
    heaviest = heapq.nlargest(sessions, everyone, key=_burden)
    names = thread_names()
    return {
        "version": VERSION,
        "process": os.getpid(),
        "time": time.time(),
        "clock": time.monotonic(),
        "stalled_after": after,
        "totals": {name: sum(getattr(stats, name) for _, stats in counted) for name in TOTALS},
        "connections": [
            _connection(connection, stats, names, after, streams)
            for connection, stats in sorted(shown, key=lambda pair: _number(pair[0]))
        ],
        "connections_left_out": len(counted) - len(shown),
        "session_totals": {
            name: sum(getattr(session, name) for session in everyone) for name in SESSION_TOTALS
        },
        "sessions": [_session(each) for each in sorted(heaviest, key=_age)],
        "sessions_left_out": len(everyone) - len(heaviest),
    }


def _age(session: Any) -> int:
    number: int = session.number
    return number


def _burden(session: Any) -> tuple[int, int, int]:
    held = session.unacknowledged_bytes + session.unread_bytes
    return session.waiting_calls, held, session.calls


def _session(session: Any) -> dict[str, Any]:
    fields = ((name, getattr(session, name)) for name in SESSION_FIELDS)
    return {name: _fitting(value) for name, value in fields}


def _fitting(value: Any) -> Any:
    """Return a value of a session, short enough to be shown."""
    if isinstance(value, str):
        return printable(value, MAX_TEXT)
    return round(value, 3) if isinstance(value, float) else value


def _interest(stats: ConnectionStats) -> tuple[int, int, int]:
    waiting = stats.waiting_writers + stats.waiting_for_room
    return waiting, stats.unaccepted, stats.unread_bytes + stats.queued_bytes


def _number(connection: Connection) -> tuple[int, str]:
    """Return a key that sorts connections by age."""
    number = connection.name.rpartition("-")[2]
    return (int(number) if number.isdecimal() else 0), connection.name


def _connection(
    connection: Connection, stats: ConnectionStats, names: Any, after: float, streams: int
) -> dict[str, Any]:
    seen = look(connection._multiplexer, names, streams)
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


class HasSessions(Protocol):
    """An object with River sessions: of ``wsmux.rpc``, a server, its handler, or a client."""

    def list_sessions(self) -> Iterable[Any]:
        """Return a snapshot of each session, with the attributes named in ``SESSION_FIELDS``."""


Source: TypeAlias = Connection | Serving
Connections: TypeAlias = Source | Callable[[], Iterable[Source]] | Iterable[Source]
Shown: TypeAlias = Source | HasSessions
Sources: TypeAlias = Shown | Callable[[], Iterable[Shown]] | Iterable[Shown]


class Watched:
    """Look up the connections that an argument names, or other objects that are to be shown.

    Servers and clients are not kept alive by it. A collection is copied; a function is called each
    time, and its result is checked then.

    Args:
        named: what to look up.
        sessions: whether it may be something that has sessions, and no connections.

    Raises:
        TypeError: the argument is none of what ``Connections``, or ``Sources``, lists.
    """

    def __init__(self, named: Sources, *, sessions: bool = False) -> None:
        self._sessions = sessions
        self._weak: tuple[weakref.ref[Serving | HasSessions], ...] = ()
        self._ask: Callable[[], Iterable[Shown]] | None = None
        self._fixed: tuple[Connection, ...] = ()
        if isinstance(named, type):  # has the attributes of its instances
            raise self._unfit(named)
        if callable(named) and not _is_source(named):  # handlers of River can be called, too
            self._ask = named
            return
        sources = self._checked([named] if _is_source(named) else named)
        self._fixed = tuple(each for each in sources if isinstance(each, Connection))
        self._weak = tuple(
            weakref.ref(each) for each in sources if not isinstance(each, Connection)
        )

    def sources(self) -> list[Shown]:
        """Return what is named at this moment."""
        if self._ask is not None:
            return self._checked(self._ask())
        return [*self._fixed, *self._living_servers()]

    def living(self) -> list[Connection] | None:
        """Return the open connections; ``None`` if there will never be any again."""
        found = [connection for connection in self.all() if not connection.closed]
        return None if self._ends() and not found else found

    def all(self) -> list[Connection]:
        """Return all connections named at this moment, even ended ones."""
        return connections_of(self.sources())

    def _living_servers(self) -> list[Serving | HasSessions]:
        servers = [reference() for reference in self._weak]
        return [server for server in servers if server is not None]

    def _ends(self) -> bool:
        """Return whether no more connections will be named."""
        servers = filter(_serves, self._living_servers())
        return self._ask is None and all(server.stopping for server in servers)

    def _checked(self, found: object) -> list[Shown]:
        # Iterating over a connection yields streams.
        if not isinstance(found, Iterable) or isinstance(found, Connection):
            raise self._unfit(found)
        sources = list(found)
        for each in sources:
            fits = _is_source(each) if self._sessions else _has_connections(each)
            if isinstance(each, type) or not fits:
                raise TypeError(
                    f"expected a connection, a Server or a Mux{self._or()}, not {each!r}"
                )
        return sources

    def _unfit(self, named: object) -> TypeError:
        return TypeError(
            f"expected a connection, a Server or Mux{self._or()}, a collection of these, or a"
            f" function that returns one, not {named!r}"
        )

    def _or(self) -> str:
        return ", a server or client of wsmux.rpc" if self._sessions else ""


def connections_of(sources: Iterable[Shown]) -> list[Connection]:
    """Return the connections of all sources, without duplicates."""
    found: dict[Connection, None] = {}
    for each in sources:
        if isinstance(each, Connection):
            found[each] = None
        elif _serves(each):
            found.update(dict.fromkeys(each.connections))
    return list(found)


def sessions_of(sources: Iterable[Shown]) -> list[Any]:
    """Return snapshots of the sessions of all sources, without duplicates."""
    lists = (each.list_sessions() for each in sources if _has_sessions(each))
    return list({each.number: each for found in lists for each in found}.values())


def _is_source(named: object) -> TypeGuard[Shown]:
    return _has_connections(named) or _has_sessions(named)


def _has_connections(named: object) -> TypeGuard[Source]:
    return isinstance(named, Connection) or _serves(named)


def _serves(named: object) -> TypeGuard[Serving]:
    return _has(named, "connections") and _has(named, "stopping")


def _has_sessions(named: object) -> TypeGuard[HasSessions]:
    return _has(named, "list_sessions")


def _has(named: object, name: str) -> bool:
    """Return whether an object has an attribute, and does not just make up one of any name.

    Clients of River do, for services; and so does ``isinstance`` with a protocol before Python
    3.12.
    """
    return getattr_static(named, name, None) is not None
