"""Count what a relay does, under the names that the reference relay uses.

Its counters ``relay_message_rx`` and the like lack the ending ``_total``, which the library adds to
every counter, so here they are gauges that only rise. ``events_listener_*`` and
``rmb_cache_flushes_total`` are left out: this relay does not listen to events of a chain, which is
what flushes the cache. ``relay_message_refused_total`` and ``relay_topic_*`` are additions.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from ...runtime.hints import how_to_install
from ..federation.ranker import MAX_DOMAINS

try:
    from prometheus_client import (
        CONTENT_TYPE_LATEST,
        CollectorRegistry,
        Counter,
        Gauge,
        ProcessCollector,
        generate_latest,
    )
except ImportError as error:  # pragma: no cover - the tests need it
    raise ImportError(f"wsmux.bus needs prometheus-client: {how_to_install('bus')}") from error

__all__ = ["CONTENT_TYPE", "RelayMetrics", "Tally"]

CONTENT_TYPE = CONTENT_TYPE_LATEST

EVICTIONS = ("closed", "back_pressure_timeout", "cancelled")

# The reference relay has several workers; here each connection has a thread, and the label is kept
# for dashboards.
WORKER = "0"


class Tally:
    """Count the messages of one connection; each number is raised by one thread, or under one lock.

    Cheaper than the library's counters, which take 2 us each; a message needs four of them.
    """

    __slots__ = ("rx", "rx_bytes", "tx", "tx_bytes")

    def __init__(self) -> None:
        self.rx = self.rx_bytes = self.tx = self.tx_bytes = 0


_COUNTED = (
    ("relay_message_rx", "envelopes received", "rx"),
    ("relay_message_tx", "envelopes sent to connections", "tx"),
    ("relay_message_rx_bytes", "bytes of received envelopes", "rx_bytes"),
    ("relay_message_tx_bytes", "bytes of envelopes sent", "tx_bytes"),
)


class RelayMetrics:
    """Hold the metrics of one relay in a registry of its own. Any thread may use it."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._connections = Gauge(
            "relay_worker_connections", "open connections", ["worker"], registry=registry
        )
        self._lock = threading.Lock()
        self._tallies: set[Tally] = set()
        self._past = Tally()  # sums of ended connections
        for name, shown, field in _COUNTED:
            Gauge(name, shown, registry=registry).set_function(partial(self._sum, field))
        self._evictions = Counter(
            "relay_session_evictions", "ended connections", ["reason"], registry=registry
        )
        self._refused = Counter(
            "relay_message_refused", "envelopes not passed on", ["reason"], registry=registry
        )
        self._federated = Gauge(
            "federation_message_success", "envelopes relays accepted", ["relay"], registry=registry
        )
        self._not_federated = Gauge(
            "federation_message_error",
            "envelopes relays did not accept",
            ["relay"],
            registry=registry,
        )
        self._domains: OrderedDict[str, None] = OrderedDict()  # the one used last is the last
        self._published = Counter(
            "relay_topic_messages", "messages kept for topics, copies counted", registry=registry
        )
        self._gaps = Counter(
            "relay_topic_gaps", "reads of topics whose messages had been dropped", registry=registry
        )
        for reason in EVICTIONS:
            self._evictions.labels(reason)
        ProcessCollector(registry=registry)

    def text(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def watch_cache(self, misses: Callable[[], float], entries: Callable[[], float]) -> None:
        """Add the figures of a cache of twins, which are read at each scrape."""
        for name, shown, ask in (
            ("rmb_cache_misses_total", "look-ups in the directory", misses),
            ("rmb_cache_entries", "twins in the cache", entries),
        ):
            Gauge(name, shown, registry=self._registry).set_function(ask)

    def watch_readers(self, readers: Callable[[], float]) -> None:
        """Add the number of subscriptions that wait for messages, which is read at each scrape."""
        name, shown = "relay_topic_readers", "subscriptions that wait here for a message"
        Gauge(name, shown, registry=self._registry).set_function(readers)

    def published(self) -> None:
        """Count a message that is kept for a topic."""
        self._published.inc()

    def gap(self) -> None:
        """Count a reader that was told that messages are missing."""
        self._gaps.inc()

    def watch_names(
        self,
        workers: Callable[[], float],
        pending: Callable[[], float],
        redelivered: Callable[[], float],
    ) -> None:
        """Add the figures of names, which are read at each scrape."""
        for name, shown, ask in (
            ("relay_name_workers", "sessions that share in the calls of names, by name", workers),
            ("relay_name_pending", "requests to names that workers have", pending),
            ("relay_name_redelivered", "requests taken from workers that went", redelivered),
        ):
            Gauge(name, shown, registry=self._registry).set_function(ask)

    def refused(self, reason: str) -> None:
        """Count an envelope that was not passed on; ``reason`` is one of a fixed set."""
        self._refused.labels(reason).inc()

    def connected(self, tally: Tally) -> None:
        """Count a new connection, whose messages are counted in ``tally``."""
        self._connections.labels(WORKER).inc()
        with self._lock:
            self._tallies.add(tally)

    def ended(self, tally: Tally, reason: str) -> None:
        """Count the end of a connection, for one of ``EVICTIONS``."""
        self._connections.labels(WORKER).dec()
        self._evictions.labels(reason).inc()
        with self._lock:
            self._tallies.discard(tally)
            for field in Tally.__slots__:
                setattr(self._past, field, getattr(self._past, field) + getattr(tally, field))

    def _sum(self, field: str) -> float:
        with self._lock:
            return float(sum(getattr(each, field) for each in (self._past, *self._tallies)))

    def federated(self, domain: str, done: bool) -> None:
        """Count an envelope that another relay accepted, or did not.

        Any twin's record may name new domains. Beyond ``MAX_DOMAINS``, the figures of the one that
        was not tried for the longest time leave the metrics.
        """
        gauges = self._federated, self._not_federated
        with self._lock:
            self._domains[domain] = None
            self._domains.move_to_end(domain)
            if len(self._domains) > MAX_DOMAINS:
                oldest, _ = self._domains.popitem(last=False)
                for gauge in gauges:
                    gauge.labels(oldest)  # removing what is not there would be an error
                    gauge.remove(oldest)
            gauges[not done].labels(domain).inc()
