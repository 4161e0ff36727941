"""Keep messages for other relays in a Redis stream, which reference relays can share.

Stream, group and field are those of the reference relay. A relay renews its claim on the entries it
took every second; an entry whose claim was not renewed for ``CLAIM_IDLE`` seconds is taken over, so
the messages of a crashed relay are sent after its restart, or by another relay. Entries claimed by
reference relays, which do not renew, are left to them for ``CLAIM_FOREIGN`` seconds.

Reference relays acknowledge entries but never delete them; here entries are also deleted. The
stream is bounded: when it is full, what all relays have acknowledged is dropped, and if it still is
then, messages are refused. Nothing is dropped whose requester waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...config import MIB
from ...runtime.logs import logger
from ...runtime.parking import OneShotEvent
from ...storage.redis_client import FAILURES, ResponseError, explain
from ..relay.queues import QueueUnavailable
from ..relay.redis_io import RetryPause
from .queue import FederationQueue, QueuedMessage

if TYPE_CHECKING:
    import redis

__all__ = ["FIELD", "GROUP", "STREAM", "RedisFederationQueue"]

# As the reference relay.
STREAM = "relay.federation.stream"
GROUP = "federation"
FIELD = b"msg"

# Reference relays are called relay-0 and so on. One name serves all relays of this package: a
# claim, not a name, says which relay has an entry.
CONSUMER = "wsmux"

# Entries of the stream and bytes of its memory; beyond either, new ones are refused.
MAX_ENTRIES = 100_000
MAX_BYTES = 1024 * MIB

# Beside the stream: the bytes of what was added, which may be too many, since what is done is not
# subtracted; and a mark that the stream was full, for so many milliseconds, since finding out takes
# a look at all of it.
BYTES, FULL = "wsmux:federation:bytes", "wsmux:federation:full"
FULL_TIME = 1000

# KEYS: the stream, and the two. ARGV: the group, the bounds, the milliseconds, the envelope.
# Returns the id of the new entry, or nothing if the stream is full.
ADD = f"""
local stream, bytes, full = unpack(KEYS)
local group, most, most_bytes, pause, envelope = unpack(ARGV)
if redis.call('EXISTS', full) == 1 then return false end
local added = #envelope + 64
local size = tonumber(redis.call('GET', bytes) or math.huge)
local function is_full()
  return redis.call('XLEN', stream) >= tonumber(most) or size + added > tonumber(most_bytes)
end
if is_full() then
  local first, pending = nil, redis.pcall('XPENDING', stream, group)
  if not pending.err and pending[1] > 0 then
    first = pending[2]
  elseif not pending.err then
    for _, each in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
      local about = {{}}
      for i = 1, #each, 2 do about[each[i]] = each[i + 1] end
      if about.name == group then first = about['last-delivered-id'] end
    end
  end
  if first then redis.pcall('XTRIM', stream, 'MINID', first) end
  if size + added > tonumber(most_bytes) then  -- else a look at all of it
    size = redis.call('MEMORY', 'USAGE', stream, 'SAMPLES', 0) or 0
  end
  if is_full() then
    redis.call('SET', full, 1, 'PX', pause)
    return false
  end
end
redis.call('SET', bytes, string.format('%.0f', size + added))
return redis.call('XADD', stream, '*', '{FIELD.decode()}', envelope)
"""

# Milliseconds that one read waits for entries.
BLOCK = 500

# Seconds between renewals, and without a renewal before an entry may be taken over.
KEEP_EVERY = 1.0
CLAIM_IDLE = 3.0
CLAIM_FOREIGN = 60.0

# Entries examined for a takeover, or renewed by one command.
CLAIMS = 1000

# Seconds for which ``put`` retries.
PUT_TIME = 2.0

_log = logger("wsmux.bus")


class RedisFederationQueue(FederationQueue):
    """Keep messages in Redis until they are done, even if the relay crashes.

    Args:
        client: made by ``redis_client``; owned by the queue.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._add: Any = client.register_script(ADD)
        self._lock = threading.Lock()
        self._held: set[bytes] = set()
        self._undone: set[bytes] = set()  # done, but not yet deleted in Redis
        self._has_group = False
        self._looked = float("-inf")
        self._failing = False
        self._pause = RetryPause()
        self._closing = OneShotEvent()

    def put(self, data: bytes, domains: Sequence[str]) -> None:
        """Add an envelope to the stream; the relay that takes it looks up the destination's relays.

        Blocks for a round trip, or for up to ``PUT_TIME`` and one timeout of Redis if that fails.

        Raises:
            QueueUnavailable: Redis failed, or has as much as may wait.
        """
        until, pause = time.monotonic() + PUT_TIME, RetryPause()
        while not self._closing.is_set():
            try:
                bounds = MAX_ENTRIES, MAX_BYTES, FULL_TIME
                if self._add((STREAM, BYTES, FULL), (GROUP, *bounds, data)) is not None:
                    return
                raise QueueUnavailable(
                    f"{MAX_ENTRIES} messages or {MAX_BYTES} bytes wait for other relays, the limit "
                    "of this relay"
                )
            except FAILURES as error:
                seconds = pause.next()
                if time.monotonic() + seconds >= until:
                    raise QueueUnavailable(explain(error)) from error
                self._closing.wait(seconds)
        raise QueueUnavailable("the relay is shutting down")

    def take(self, limit: int) -> Sequence[QueuedMessage]:
        """Return unclaimed entries, waiting up to half a second; none while Redis fails."""
        try:
            entries = self._take(limit)
        except FAILURES as error:
            if isinstance(error, ResponseError) and "NOGROUP" in str(error):
                self._has_group = False  # Redis has lost its data
            self._failed(error)
            return ()
        if self._failing:
            self._failing = False
            _log.warning("the federation queue works again")
        self._pause.reset()
        return entries

    def done(self, ticket: str) -> None:
        """Delete an entry at once, or later if Redis fails."""
        ticket_id = ticket.encode()
        with self._lock:
            self._undone.add(ticket_id)
        try:
            self._delete([ticket_id])
        except FAILURES as error:
            _log.info("an entry will be deleted later: %s", explain(error))

    def close(self) -> None:
        """Make ``take`` return within half a second; unfinished messages stay in Redis."""
        self._closing.set()

    def release(self) -> None:
        """Close the connections to Redis."""
        self._client.close()

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            _log.warning("the federation queue is waiting for Redis: %s", explain(error))
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
        """Renew the claims on held entries, and retry failed deletions."""
        with self._lock:
            undone, held = list(self._undone), list(self._held - self._undone)
        if undone:
            self._delete(undone)
        for start in range(0, len(held), CLAIMS):
            part: Any = held[start : start + CLAIMS]
            self._client.xclaim(STREAM, GROUP, CONSUMER, 0, part, justid=True)

    def _claim(self, limit: int) -> list[Any]:
        """Take over entries whose relay has stopped renewing."""
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
                if fields is not None:  # None if the entry was dropped meanwhile
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
