"""Run a handler for each stream that the peer opens, in a bounded pool of reusable threads.

A worker waits in ``accept_stream`` itself. When the last waiting one gets a stream, it first makes
sure that another is waiting, unless the limit is reached; then further streams wait in the
connection's accept queue, and are refused after ``Config.open_timeout``. So streams are never
handed from thread to thread, and calls nested more deeply than there are workers end in a typed
refusal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..exceptions import ConnectionClosed, ForkedError, NoThreadError, WsmuxError
from ..mux.connection import Connection
from ..mux.stream import Stream
from ..runtime.logs import logger
from ..runtime.threads import daemon_thread, start_thread

__all__ = ["StreamHandler", "StreamWorkers"]

StreamHandler = Callable[[Stream], object]

# Seconds after which a waiting worker ends; one per connection stays.
IDLE = 10.0

_log = logger("wsmux")


class StreamWorkers:
    """Serve the incoming streams of one connection."""

    def __init__(self, connection: Connection, handler: StreamHandler, limit: int) -> None:
        self._connection = connection
        self._handler = handler
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting = 0
        self._count = 0

    def start(self) -> None:
        """Start the first worker and return."""
        self._spawn()

    def run(self) -> None:
        """Run as the first worker, until the connection has ended."""
        with self._lock:
            self._count += 1
            self._waiting += 1
        self._work(stays=True)

    def _spawn(self) -> None:
        with self._lock:
            if self._waiting or self._count >= self._limit:
                return
            self._count += 1
            self._waiting += 1
            name = f"{self._connection.name}-worker-{self._count}"
        try:
            start_thread(daemon_thread(target=self._work, name=name))
        except NoThreadError as error:
            _log.warning(
                "no thread can be started, so new streams wait for the running ones: %s", error
            )
            with self._lock:
                self._count -= 1
                self._waiting -= 1

    def _work(self, stays: bool = False) -> None:
        while True:
            try:
                stream = self._connection.accept_stream(timeout=IDLE)
            except TimeoutError:
                with self._lock:
                    if self._waiting > 1 and not stays:
                        self._waiting -= 1
                        self._count -= 1
                        return
                continue
            except (ConnectionClosed, ForkedError):
                with self._lock:
                    self._waiting -= 1
                    self._count -= 1
                return
            with self._lock:
                self._waiting -= 1
            self._spawn()
            try:
                self._handle(stream)
            except BaseException:  # such as SystemExit: this thread ends, and frees its place
                with self._lock:
                    self._count -= 1
                raise
            with self._lock:
                self._waiting += 1

    def _handle(self, stream: Stream) -> None:
        try:
            self._handler(stream)
        except WsmuxError as error:
            stream.reset(error)
            _log.info("the handler of stream %d ended: %s", stream.id, error)
        except Exception as error:
            if stream.reset(error):  # the application has a code for this error
                _log.info("the handler of stream %d ended with %r", stream.id, error)
            else:
                _log.exception("the handler of stream %d failed; the stream was reset", stream.id)
        else:
            stream.close()
