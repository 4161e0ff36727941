"""Join streams of any connections of this process, in one thread for all of them."""

from __future__ import annotations

import threading

from ..endpoints.bridge import StreamRelay
from ..mux.stream import Stream
from ..runtime.threads import daemon_thread, start_thread

__all__ = ["Splicer"]


class Splicer:
    """Relay pairs of streams until each has ended; see ``endpoints.bridge`` for how.

    Flow control goes through: whoever does not read holds back the writer at the far end, and
    nobody else. Any thread may use it. The thread is started with the first pair.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._relay: StreamRelay | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, one: Stream, other: Stream) -> None:
        """Relay everything between two streams, which nothing else may use from now on.

        Raises:
            NoThreadError: the thread could not be started.
        """
        with self._lock:
            closed = self._closed
            if self._relay is None and not closed:
                relay = self._relay = StreamRelay()
                self._thread = daemon_thread(target=relay.serve, name="wsmux-cluster-streams")
                try:
                    start_thread(self._thread)
                except BaseException:
                    self._relay = None
                    relay.stop()  # it may have been started all the same
                    raise
            if self._relay is not None:
                self._relay.add(one, other)  # under the lock, so ``close`` finds it
        if closed:
            one.reset()
            other.reset()

    def close(self) -> None:
        """Stop relaying, and reset the streams that are left; the connections stay open."""
        with self._lock:
            self._closed = True
        relay, thread = self._relay, self._thread
        if relay is not None and thread is not None:
            relay.stop()
            thread.join()
            self._relay = None  # behind what may be interrupted and repeated
            relay.close()
