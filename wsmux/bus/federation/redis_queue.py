"""Keep what waits for other relays in a Redis stream, which known relays can share.

Stream, group and field are the known relay's. An entry that was taken belongs to its relay while
that keeps saying so, every second; one that nobody spoke of for ``CLAIM_IDLE`` seconds is taken
again, so a relay that crashed, or another one in its place, goes on with what it had. Entries of
known relays are left to them for ``CLAIM_FOREIGN`` seconds, since those do not speak of theirs.

Known relays acknowledge entries and never delete them; here both is done, and the stream is capped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...runtime.logs import logger
from ..relay.queues import QueueUnavailable
from ..relay.redis_client import FAILURES, ResponseError, explain
from ..relay.redis_io import RetryPause
from .queue import FederationQueue, QueuedMessage

if TYPE_CHECKING:
    import redis

__all__ = ["FIELD", "GROUP", "STREAM", "RedisFederationQueue"]

# As the known relay.
STREAM = "relay.federation.stream"
GROUP = "federation"
FIELD = b"msg"

# Known relays call theirs relay-0 and so on. One name does for all of this kind: an entry belongs
# to whoever keeps it, not to a name.
CONSUMER = "wsmux"

# Entries of the stream, about; beyond it the oldest are dropped.
MAX_ENTRIES = 100_000

# Milliseconds of one wait for entries.
BLOCK = 500

# Seconds between two looks after entries, and without a word after which one may be taken again.
KEEP_EVERY = 1.0
CLAIM_IDLE = 3.0
CLAIM_FOREIGN = 60.0

# Entries that are looked at for a claim, and kept by one command.
CLAIMS = 1000

# Seconds that ``put`` goes on trying.
PUT_TIME = 2.0

_log = logger("wsmux.bus")


class RedisFederationQueue(FederationQueue):
    """Keep messages in Redis until they are done, also over a crash of the relay.

    Args:
        client: made by ``redis_client``; it is the queue's then.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._held: set[bytes] = set()
        self._undone: set[bytes] = set()  # done, but Redis does not know yet
        self._has_group = False
        self._looked = float("-inf")
        self._failing = False
        self._pause = RetryPause()
        self._closing = threading.Event()

    def put(self, data: bytes, domains: Sequence[str]) -> None:
        """Add an envelope to the stream; whoever takes it looks its relays up.

        Blocks for a round trip, or ``PUT_TIME`` and a wait for Redis if that fails.

        Raises:
            QueueUnavailable: Redis failed.
        """
        until, pause = time.monotonic() + PUT_TIME, RetryPause()
        while not self._closing.is_set():
            try:
                self._client.xadd(STREAM, {FIELD: data}, maxlen=MAX_ENTRIES, approximate=True)
                return
            except FAILURES as error:
                seconds = pause.next()
                if time.monotonic() + seconds >= until:
                    raise QueueUnavailable(explain(error)) from error
                self._closing.wait(seconds)
        raise QueueUnavailable("the relay shuts down")

    def take(self, limit: int) -> Sequence[QueuedMessage]:
        """Return entries that nobody has, waiting for half a second; none while Redis fails."""
        try:
            entries = self._take(limit)
        except FAILURES as error:
            if isinstance(error, ResponseError) and "NOGROUP" in str(error):
                self._has_group = False  # Redis has lost its data
            self._failed(error)
            return ()
        if self._failing:
            self._failing = False
            _log.warning("the federation queue goes on")
        self._pause.reset()
        return entries

    def done(self, ticket: str) -> None:
        """Delete an entry, at once or when Redis can be asked again."""
        ticket_id = ticket.encode()
        with self._lock:
            self._undone.add(ticket_id)
        try:
            self._delete([ticket_id])
        except FAILURES as error:
            _log.info("an entry is deleted later: %s", explain(error))

    def close(self) -> None:
        """Keep what is not done in Redis; ``take`` returns within half a second."""
        self._closing.set()

    def release(self) -> None:
        """Close the connections."""
        self._client.close()

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            _log.warning("the federation queue has to wait: %s", explain(error))
        self._closing.wait(self._pause.next())

    def _take(self, limit: int) -> list[QueuedMessage]:
        if self._closing.is_set():
            return []
        self._ensure_group()
        now = time.monotonic()
        found: list[Any] = []
        if now >= self._looked + KEEP_EVERY:
            self._keep()
            found = self._claim(limit)
            self._looked = now
        if limit and not found:
            reply: Any = self._client.xreadgroup(
                GROUP, CONSUMER, {STREAM: ">"}, count=limit, block=BLOCK
            )
            found = reply[0][1] if reply else []
        return self._entries(found)

    def _ensure_group(self) -> None:
        if self._has_group:
            return
        try:
            self._client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._has_group = True

    def _keep(self) -> None:
        """Say that what is held is in hand, and delete what could not be deleted."""
        with self._lock:
            undone, held = list(self._undone), list(self._held - self._undone)
        if undone:
            self._delete(undone)
        for start in range(0, len(held), CLAIMS):
            part: Any = held[start : start + CLAIMS]
            self._client.xclaim(STREAM, GROUP, CONSUMER, 0, part, justid=True)

    def _claim(self, limit: int) -> list[Any]:
        """Take entries whose relay has ended."""
        if not limit:
            return []
        idle = int(CLAIM_IDLE * 1000)
        pending: Any = self._client.xpending_range(STREAM, GROUP, "-", "+", CLAIMS, idle=idle)
        with self._lock:
            ids = [each["message_id"] for each in pending if self._is_left_locked(each)]
        if not ids:
            return []
        claimed: Any = self._client.xclaim(STREAM, GROUP, CONSUMER, idle, ids[:limit])
        _log.info("took over %d messages from another relay", len(claimed))
        return list(claimed)

    def _is_left_locked(self, pending: dict[str, Any]) -> bool:
        foreign = pending["consumer"] != CONSUMER.encode()
        patient = foreign and pending["time_since_delivered"] < CLAIM_FOREIGN * 1000
        return not patient and pending["message_id"] not in self._held

    def _entries(self, found: list[Any]) -> list[QueuedMessage]:
        entries = []
        with self._lock:
            for entry, fields in found:
                if fields is not None:  # else it was dropped meanwhile
                    self._held.add(entry)
                    entries.append(QueuedMessage(entry.decode(), fields.get(FIELD, b"")))
        return entries

    def _delete(self, ids: list[bytes]) -> None:
        pipeline: Any = self._client.pipeline(transaction=True)
        pipeline.xack(STREAM, GROUP, *ids)
        pipeline.xdel(STREAM, *ids)
        pipeline.execute()
        with self._lock:
            self._undone.difference_update(ids)
            self._held.difference_update(ids)
