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

    def add(self, one: Stream, other: Stream) -> None:
        """Relay everything between two streams, which nothing else may use from now on.

        Raises:
            NoThreadError: the thread could not be started.
        """
        with self._lock:
            if self._relay is None:
                relay = StreamRelay()
                self._thread = daemon_thread(target=relay.serve, name="wsmux-cluster-streams")
                start_thread(self._thread)
                self._relay = relay
        self._relay.add(one, other)

    def close(self) -> None:
        """Stop relaying; the connections are ended by others."""
        if self._relay is not None and self._thread is not None:
            self._relay.stop()
            self._thread.join()
            self._relay.close()
