"""Run a handler for each stream that the peer opens, in a bounded pool of reusable threads.

A worker waits in ``accept_stream`` itself. When the last waiting one gets a stream, it first makes
sure that another is waiting, unless the limit is reached; then further streams wait in the
connection's accept queue, and are refused after ``Config.open_timeout``. So streams are never
handed from thread to thread, and calls nested more deeply than there are workers end in a typed
refusal.

As long as the connection lives, there is a worker: the start fails if the system has no thread left
for the first one, and one whose handler raised ``SystemExit`` stays if it can have no successor.
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
        """Start the first worker and return.

        Raises:
            NoThreadError: the system has no thread left.
        """
        self._spawn()

    def run(self) -> None:
        """Run as the first worker, until the connection has ended."""
        with self._lock:
            self._count += 1
            self._waiting += 1
        self._work(stays=True)

    def _spawn(self) -> None:
        """Start a worker, unless one waits or there are as many as allowed.

        Raises:
            NoThreadError: no thread can be started, and there is no worker at all.
        """
        with self._lock:
            if self._waiting or self._count >= self._limit:
                return
            self._count += 1
            self._waiting += 1
            name = f"{self._connection.name}-worker-{self._count}"
        try:
            start_thread(daemon_thread(target=self._work, name=name))
        except NoThreadError as error:
            with self._lock:
                self._count -= 1
                self._waiting -= 1
                alone = not self._count
            if alone:
                raise
            _log.warning(
                "no thread can be started, so new streams wait for the running ones: %s", error
            )

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
            except BaseException as error:  # such as SystemExit
                with self._lock:
                    self._count -= 1
                if stays or self._has_successor():
                    raise  # this thread ends, and has freed its place
                stream.reset(error)
                _log.warning(
                    "a handler of streams ended with %r, and no thread can be started: its worker "
                    "goes on",
                    error,
                )
                with self._lock:
                    self._count += 1
            with self._lock:
                self._waiting += 1

    def _has_successor(self) -> bool:
        """Return whether the streams to come have another worker, started now if need be."""
        try:
            self._spawn()
        except NoThreadError:
            return False
        return True

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
