"""Send requests without an answer again when a relay's connection is lost.

The connection may have taken a request, or its answer, with it. Requests are sent byte for byte:
receivers that remember signatures, as those of this package do, run them once, and send the answer
again.

Threads and locks: one thread at a time, started by a loss, sends; it ends when all are sent. The
lock guards whether it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...exceptions import NoThreadError
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.threads import daemon_thread, start_thread
from ..errors import BusError
from .relay_pool import RelayPool

__all__ = ["Resender", "Unanswered"]

_log = logger("wsmux.bus")


class Unanswered(NamedTuple):
    """Hold a request without an answer: its envelope, when it expires, and the twin asked."""

    signed: bytes
    deadline: Deadline
    twin: int


class Resender:
    """Send requests again after a loss; see the module for the threads.

    Args:
        name: the name of the thread.
        relay_pool: the connections to relays.
        unanswered: returns the requests without an answer; called in the thread.
    """

    def __init__(
        self, name: str, relay_pool: RelayPool, unanswered: Callable[[], Iterable[Unanswered]]
    ) -> None:
        self._name = name
        self._relay_pool = relay_pool
        self._unanswered = unanswered
        self._lock = threading.Lock()
        self._running = self._again = False

    def lost(self) -> None:
        """Record that a connection was lost; never blocks."""
        with self._lock:
            self._again = True
            if self._running:
                return
            self._running = True
        try:
            start_thread(daemon_thread(target=self._run, name=self._name))
        except NoThreadError as error:
            _log.warning("requests are not sent again: %s", error)
            with self._lock:
                self._running = False

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._again:
                    self._running = False
                    return
                self._again = False
            try:
                for each in self._unanswered():
                    self._send(each)
            except BusError as error:
                _log.warning("requests are not sent again: %s", error)
            except ValueError:
                _log.debug("requests are not sent again: this side is closing")
            except Exception:
                _log.exception("requests are not sent again")

    def _send(self, each: Unanswered) -> None:
        try:
            self._relay_pool.send(each.signed, each.deadline, each.twin)
        except BusError as error:
            _log.info("a request is not sent again: %s", error)
