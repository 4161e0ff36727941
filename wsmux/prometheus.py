"""Export statistics of connections and River sessions to Prometheus.

::

    numbers = wsmux.prometheus.collector(server)  # or a Mux, connections, a server of wsmux.rpc

The values are read from ``connection.stats()`` and ``list_sessions()`` when Prometheus scrapes;
nothing runs in between. Connections are summed by role and wire, River sessions by role, since a
label per connection or session would create a new series for every client.

With ``cluster=``, numbers of a ``wsmux.cluster.Cluster`` are exported, too: those that Redis knows,
read in one bounded call. No other process is asked, since each is scraped itself, and a scrape
would wait for those that stand still. So each process exports the same ones: take their maximum.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from .runtime.hints import how_to_install
from .runtime.logs import logger

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry
except ImportError as error:  # pragma: no cover - the tests need it
    text = f"wsmux.prometheus needs prometheus-client: {how_to_install('metrics')}"
    raise ImportError(text) from error

from .diagnostics.status import Serving, Sources, Watched, connections_of, sessions_of
from .exceptions import WsmuxError
from .mux.connection import Connection
from .mux.stats import ConnectionStats

__all__ = ["ConnectionCollector", "collector"]

_log = logger("wsmux.cluster")

Labels: TypeAlias = tuple[str, str]

LABELS = ("role", "protocol")

COUNTERS = {
    "streams_opened": ("wsmux_streams_opened", "streams opened by this side"),
    "streams_accepted": ("wsmux_streams_accepted", "streams of the peer that were accepted"),
    "streams_refused": ("wsmux_streams_refused", "streams of the peer that were refused"),
    "bytes_received": ("wsmux_received_bytes", "bytes received, framing included"),
    "bytes_sent": ("wsmux_sent_bytes", "bytes sent, framing included"),
    "reconnects": ("wsmux_reconnects", "sockets that replaced a lost one of the same connection"),
}

GAUGES = {
    "streams": ("wsmux_streams", "streams currently open"),
    "unaccepted": ("wsmux_streams_unaccepted", "streams of the peer not yet accepted"),
    "waiting_readers": ("wsmux_waiting_readers", "threads waiting for bytes"),
    "waiting_writers": ("wsmux_waiting_writers", "threads waiting for credit"),
    "waiting_for_room": ("wsmux_waiting_for_room", "threads waiting for room in the send queue"),
    "unread_bytes": ("wsmux_unread_bytes", "bytes received and not yet read"),
    "queued_bytes": ("wsmux_queued_bytes", "bytes queued for the socket"),
    "unacknowledged_bytes": (
        "wsmux_unacknowledged_bytes",
        "bytes that resumable connections keep for their peers",
    ),
}

SESSION_GAUGES = {
    "calls": ("wsmux_river_calls", "calls currently open"),
    "handlers": ("wsmux_river_handlers", "handlers currently running"),
    "waiting_calls": ("wsmux_river_waiting_calls", "calls waiting for a worker"),
    "unacknowledged_messages": (
        "wsmux_river_unacknowledged_messages",
        "messages sent and not acknowledged by the peer",
    ),
    "unacknowledged_bytes": (
        "wsmux_river_unacknowledged_bytes",
        "bytes sent and not acknowledged by the peer",
    ),
    "unread_messages": ("wsmux_river_unread_messages", "messages received and not yet read"),
    "unread_bytes": ("wsmux_river_unread_bytes", "bytes of the messages not yet read"),
}


CLUSTER_GAUGES = {
    "nodes": ("wsmux_cluster_nodes", "processes of the cluster that have a lease"),
    "overdue": (
        "wsmux_cluster_nodes_overdue",
        "processes that have not renewed their lease for half of it",
    ),
    "lost": (
        "wsmux_cluster_nodes_lost",
        "processes whose lease has ended in the last ten minutes without their leaving",
    ),
    "members": (
        "wsmux_cluster_members",
        "connections that have joined, each counted with each of its names",
    ),
    "renewed_max": (
        "wsmux_cluster_lease_age_max_seconds",
        "longest time since a process has renewed its lease",
    ),
}


class HasCounts(Protocol):
    """A ``wsmux.cluster.Cluster``, which this module does not import."""

    def counts(self) -> Any:
        """Return its ``ClusterCounts``, with the attributes named in ``CLUSTER_GAUGES``."""


class ConnectionCollector(Collector):
    """Collect statistics of connections and sessions; made by ``collector``. Thread-safe."""

    def __init__(self, connections: Sources, cluster: HasCounts | None = None) -> None:
        if cluster is not None and not callable(getattr(cluster, "counts", None)):
            kind = type(cluster).__name__
            raise TypeError(f"cluster must be a wsmux.cluster.Cluster, not {kind}")
        self._cluster = cluster
        self._named = Watched(connections, sessions=True)  # raises now, not at the first scrape
        if isinstance(connections, Collection) and not isinstance(connections, Serving):
            # Connections added to it later count too.
            self._named = Watched(lambda: connections, sessions=True)
        self._lock = threading.Lock()
        self._known: dict[str, Connection] = {}
        self._past: dict[Labels, Counter[str]] = {}  # of ended connections
        self._ended: weakref.WeakSet[Connection] = weakref.WeakSet()  # included in _past

    def add(self, connection: Connection) -> None:
        """Include a connection from now on, and keep its totals once it has ended.

        Raises:
            TypeError: it is not a connection.
        """
        if not isinstance(connection, Connection):
            raise TypeError(f"expected a connection, not {connection!r}")
        with self._lock:
            self._known[connection.name] = connection

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples."""
        yield from self._families({}, {}, {}, {})
        yield from _session_families([])
        if self._cluster is not None:
            yield from _cluster_families(None)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics with their current values; called by the registry."""
        sources = self._named.sources()
        given = connections_of(sources)
        with self._lock:
            self._known |= {each.name: each for each in given if each not in self._ended}
            totals = {labels: Counter(past) for labels, past in self._past.items()}
            now: dict[Labels, Counter[str]] = {}
            live: Counter[Labels] = Counter()
            slowest: dict[Labels, float] = {}
            for name, connection in list(self._known.items()):
                ended, labels = connection.closed, (str(connection.role), connection.protocol)
                stats = connection.stats()
                totals.setdefault(labels, Counter()).update(_counted(stats))
                if ended:
                    self._past.setdefault(labels, Counter()).update(_counted(stats))
                    self._ended.add(connection)
                    del self._known[name]
                    continue
                live[labels] += 1
                fields = {field: getattr(stats, field) for field in GAUGES}
                now.setdefault(labels, Counter()).update(fields)
                slowest[labels] = max(slowest.get(labels, 0.0), stats.rtt or 0.0)
        yield from self._families(totals, now, live, slowest)
        yield from _session_families(sessions_of(sources))
        if self._cluster is not None:
            yield from _cluster_families(_counts(self._cluster))

    @staticmethod
    def _families(
        totals: dict[Labels, Counter[str]],
        now: dict[Labels, Counter[str]],
        live: dict[Labels, int],
        slowest: dict[Labels, float],
    ) -> Iterator[Metric]:
        shown = GaugeMetricFamily("wsmux_connections", "connections currently open", labels=LABELS)
        for labels, count in live.items():
            shown.add_metric(labels, count)
        yield shown
        trip = GaugeMetricFamily(
            "wsmux_rtt_max_seconds", "longest of the connections' last round trips", labels=LABELS
        )
        for labels, seconds in slowest.items():
            trip.add_metric(labels, seconds)
        yield trip
        for field, (name, text) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=LABELS)
            for labels, numbers in now.items():
                gauge.add_metric(labels, numbers[field])
            yield gauge
        for field, (name, text) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=LABELS)
            for labels, numbers in totals.items():
                counter.add_metric(labels, numbers[field])
            yield counter


def _session_families(sessions: Sequence[Any]) -> Iterator[Metric]:
    shown = GaugeMetricFamily(
        "wsmux_river_sessions",
        "River sessions, by the state of their connection",
        labels=("role", "state"),
    )
    for labels, count in Counter((each.role, each.state) for each in sessions).items():
        shown.add_metric(labels, count)
    yield shown
    for field, (name, text) in SESSION_GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=("role",))
        sums: Counter[str] = Counter()
        for each in sessions:
            sums[each.role] += getattr(each, field)
        for role, total in sums.items():
            gauge.add_metric((role,), total)
        yield gauge


def _counts(cluster: HasCounts) -> Any:
    """Return what is known of a cluster; ``None`` if Redis is away, or this process has left."""
    try:
        return cluster.counts()
    except (WsmuxError, ValueError) as error:
        _log.warning("this scrape has no numbers of the cluster: %s", error)
        return None


def _cluster_families(counts: Any) -> Iterator[Metric]:
    name = "wsmux_cluster_reachable"
    yield GaugeMetricFamily(name, "1 if Redis has answered this scrape", counts is not None)
    for field, (name, text) in CLUSTER_GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=())
        if counts is not None:
            gauge.add_metric((), getattr(counts, field))
        yield gauge


def _counted(stats: ConnectionStats) -> dict[str, int]:
    return {field: getattr(stats, field) for field in COUNTERS}


def collector(
    connections: Sources = (),
    registry: CollectorRegistry | None = None,
    *,
    cluster: HasCounts | None = None,
) -> ConnectionCollector:
    """Register a collector for connections and sessions, and return it.

    Args:
        connections: a connection, a ``Server`` or ``Mux`` (weakly held), a server, handler or
            client of ``wsmux.rpc`` (weakly held too), a collection of these, or a function that
            returns one. A collection is read anew at each scrape. More connections can be given to
            ``add``.
        registry: where to register; the process-wide registry by default.
        cluster: a ``wsmux.cluster.Cluster``, of which this process is a node from the first scrape
            on. Each scrape waits up to two seconds for its Redis.

    A connection seen once is kept until a scrape after its end, so that counters never decrease. A
    connection that begins and ends between two scrapes is missed, unless it was given to ``add``.

    Raises:
        TypeError: ``connections`` or ``cluster`` is none of these.
        ValueError: the registry already has a collector with these metrics.
    """
    made = ConnectionCollector(connections, cluster)
    (REGISTRY if registry is None else registry).register(made)
    return made
