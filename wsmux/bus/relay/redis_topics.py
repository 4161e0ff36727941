"""Keep topics in Redis streams, which relays of one database share.

The keys of a topic begin with ``wsmux:topic:NAME``. That is the stream of its messages, whose ids
are *epoch*-*number*, with the envelope in field ``_`` and its time in field ``t``. ``:log`` has the
epoch, the next number and the bytes; ``:seen`` and ``:ends`` remember publications until their
envelopes expire. The hash ``wsmux:topics`` has the creator of each topic. A log is forgotten an
hour after its last message has reached its age.

Each topic is bounded, and so is their number, but unlike in memory nothing bounds the bytes and the
remembered publications of all together: ``maxmemory`` of Redis does.

Each step is one script, so relays need no lock, and a step may be repeated: a publication is
remembered in the same step that keeps it. Steps are repeated while Redis fails, until a deadline.

A Redis that failed may come back without its last messages, whose numbers it would give to others.
So each relay knows the last position that Redis has named of a topic. When the log has less, its
messages go on in another epoch, which tells readers that something is lost. A relay that was
restarted, too, knows nothing, and it is not told if others publish as many first.

Threads: one, the *listener*, waits for ``wsmux:topics:bell``, a short stream of the names of topics
that have a new message, and passes them on. So each relay waits with one connection for what all
relays publish, whoever wants it. When bells may have been lost, it says that any topic may have
changed.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import OneShotEvent
from ...runtime.threads import daemon_thread, start_thread
from ...storage.redis_client import FAILURES, explain
from ..wire.topics import MAX_ANSWER, START, Batch, Position, parse_position
from .queues import QueueUnavailable
from .redis_io import RetryPause
from .redis_sizes import FIELD
from .topic_log import OVERHEAD, REMEMBERED, Retention
from .topic_store import (
    ANYBODY,
    MAX_TOPICS,
    MAX_TOPICS_OF_TWIN,
    Changed,
    NewMessage,
    TopicFull,
    TopicStore,
    too_many_of_twin,
    too_many_publications,
    too_many_topics,
)

if TYPE_CHECKING:
    import redis

__all__ = ["RedisTopics"]

TOPIC, TOPICS, BELL = "wsmux:topic:", "wsmux:topics", "wsmux:topics:bell"

# Names kept in the bell, and read at once; with as many, some may have been lost. Milliseconds that
# one read waits: less than the reply timeout of a connection. Seconds that Redis keeps a bell.
RUNG, BLOCK, BELL_LIFE = 1000, 1000, 3600

# Seconds for which a publication is remembered longer, since the clocks of relays and Redis differ.
LEEWAY = 10

# Topics of which a relay knows the last position.
KNOWN = 1024

# Seconds for which a log is kept after its last message has reached its age.
IDLE = 3600

# ``trim`` drops what is beyond the bounds, oldest first, and returns the number of the oldest
# message. ``renew`` gives a log another epoch that lacks a message which was known to be in it.
_TRIM = f"""
local function trim(stream, log, count, size, age, now)
  while true do
    local oldest = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
    if not oldest then return tonumber(redis.call('HGET', log, 'next')) end
    local fields = oldest[2]
    if redis.call('XLEN', stream) <= count
      and tonumber(redis.call('HGET', log, 'bytes')) <= size
      and tonumber(fields[4]) > now - age then
      return tonumber(string.match(oldest[1], '-(.+)$'))
    end
    redis.call('XDEL', stream, oldest[1])
    redis.call('HINCRBY', log, 'bytes', -(#fields[2] + {OVERHEAD}))
  end
end
local function milliseconds()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
local function whole(number) return string.format('%.0f', number) end
local function renew(stream, log, epoch, number)
  if redis.call('HGET', log, 'epoch') ~= epoch
    or tonumber(number) < tonumber(redis.call('HGET', log, 'next')) then return end
  local new = whole(math.max(milliseconds(), epoch + 1))
  for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+')) do
    redis.call('XADD', stream, new .. string.match(entry[1], '-.+$'), unpack(entry[2]))
    redis.call('XDEL', stream, entry[1])
  end
  redis.call('HSET', log, 'epoch', new)
end
"""

# KEYS: stream, log, seen, ends, topics, bell. ARGV: topic, twin, key, envelope, its end, the
# retention (count, bytes, milliseconds), the bounds, the last position that is known
_APPEND = (
    _TRIM
    + f"""
renew(KEYS[1], KEYS[2], ARGV[12], ARGV[13])
local now = milliseconds()
local past = now / 1000 - {LEEWAY}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', past, 'LIMIT', 0, 1000)) do
  redis.call('HDEL', KEYS[3], key)
  redis.call('ZREM', KEYS[4], key)
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  if redis.call('HEXISTS', KEYS[5], ARGV[1]) == 0 then
    local names, mine = redis.call('HGETALL', KEYS[5]), 0
    local left = #names / 2
    for i = 1, #names, 2 do
      if redis.call('EXISTS', '{TOPIC}' .. names[i] .. ':log') == 0 then
        redis.call('HDEL', KEYS[5], names[i])
        left = left - 1
      elseif names[i + 1] == ARGV[2] then
        mine = mine + 1
      end
    end
    if ARGV[2] ~= '{ANYBODY}' then
      if left >= tonumber(ARGV[9]) then return 'all' end
      if mine >= tonumber(ARGV[10]) then return 'twin' end
    end
  end
  redis.call('HSET', KEYS[5], ARGV[1], ARGV[2])
  redis.call('DEL', KEYS[1], KEYS[3], KEYS[4])
  redis.call('HSET', KEYS[2], 'epoch', whole(now), 'next', 1, 'bytes', 0)
end
local known = redis.call('HGET', KEYS[3], ARGV[3])
if known then return known end
if redis.call('ZCARD', KEYS[4]) >= tonumber(ARGV[11]) then return 'seen' end
local number = redis.call('HINCRBY', KEYS[2], 'next', 1) - 1
local id = redis.call('HGET', KEYS[2], 'epoch') .. '-' .. whole(number)
redis.call('XADD', KEYS[1], id, '{FIELD.decode()}', ARGV[4], 't', whole(now))
redis.call('HINCRBY', KEYS[2], 'bytes', #ARGV[4] + {OVERHEAD})
trim(KEYS[1], KEYS[2], tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), now)
redis.call('HSET', KEYS[3], ARGV[3], id)
redis.call('ZADD', KEYS[4], ARGV[5], ARGV[3])
for i = 1, 4 do redis.call('PEXPIRE', KEYS[i], whole(ARGV[8] + {1000 * IDLE})) end
redis.call('XADD', KEYS[6], 'MAXLEN', {RUNG}, '*', '{FIELD.decode()}', ARGV[1])
redis.call('EXPIRE', KEYS[6], {BELL_LIFE})
return id
"""
)

# KEYS: stream, log. ARGV: the epoch and the number to read behind, 'new' and '' or 'oldest' and '';
# the credit; the retention; the last position that is known. Returns the epoch, the first number,
# the next one of the log and the envelopes.
_READ = (
    _TRIM
    + f"""
renew(KEYS[1], KEYS[2], ARGV[7], ARGV[8])
local epoch, last = unpack(redis.call('HMGET', KEYS[2], 'epoch', 'next'))
if not epoch then return {{'0', '1', '1'}} end
local oldest = trim(KEYS[1], KEYS[2], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]),
  milliseconds())
local first = oldest
if ARGV[1] == 'new' then
  first = tonumber(last)
elseif ARGV[1] == epoch then
  first = math.max(oldest, ARGV[2] + 1)
end
local found, size, credit = {{epoch, whole(first), last}}, 0, tonumber(ARGV[3])
local next = epoch .. '-' .. whole(first)
while credit > 0 do
  local entries = redis.call('XRANGE', KEYS[1], next, '+', 'COUNT', math.min(credit, 16))
  for _, entry in ipairs(entries) do
    size = size + #entry[2][2]
    if #found > 3 and size > {MAX_ANSWER} then return found end
    found[#found + 1] = entry[2][2]
    next = '(' .. entry[1]
  end
  if #entries < 16 then break end
  credit = credit - 16
end
return found
"""
)

_log = logger("wsmux.bus")


class RedisTopics(TopicStore):
    """Keep topics in Redis; see the module.

    Args:
        client: made by ``redis_client``; owned by the store.
        retention: what each topic keeps; the same at all relays of the database.
        max_topics, max_of_twin: topics in all, beyond which only those of ``ANYBODY`` are created,
            and those that one twin has created.
        remembered: publications of one topic that are remembered.
    """

    def __init__(
        self,
        client: redis.Redis,
        retention: Retention | None = None,
        *,
        max_topics: int = MAX_TOPICS,
        max_of_twin: int = MAX_TOPICS_OF_TWIN,
        remembered: int = REMEMBERED,
    ) -> None:
        self._client = client
        bounds = retention or Retention()
        self._retention = (bounds.messages, bounds.size, int(1000 * bounds.age))
        self._max_topics, self._max_of_twin = max_topics, max_of_twin
        self._remembered = remembered
        self._append: Any = client.register_script(_APPEND)
        self._read: Any = client.register_script(_READ)
        self._changed: Changed = _nobody
        self._lock = threading.Lock()  # guards what is known, the longest unused first
        self._known: dict[str, Position] = {}
        self._closing = OneShotEvent()
        self._listener: threading.Thread | None = None

    def watch(self, changed: Changed) -> None:
        """Call this when there may be more to read; starts the listener."""
        self._changed = changed
        thread = daemon_thread(self._listen, name="wsmux-redis-topics")
        start_thread(thread)
        self._listener = thread

    def append(self, message: NewMessage, deadline: Deadline) -> Position:
        stream, log = _keys(message.topic)
        keys = [stream, log, f"{stream}:seen", f"{stream}:ends", TOPICS, BELL]
        bounds = (*self._retention, self._max_topics, self._max_of_twin, self._remembered)
        arguments = [*message, *bounds, *self._last(message.topic)]
        said = self._run(self._append, keys, arguments, deadline).decode()
        match said:
            case "all":
                raise TopicFull(too_many_topics(message.topic, self._max_topics))
            case "twin":
                text = too_many_of_twin(message.topic, message.twin, self._max_of_twin)
                raise TopicFull(text)
            case "seen":
                raise TopicFull(too_many_publications(message.topic, self._remembered))
        position = parse_position(said)
        self._learn(message.topic, position)
        return position

    def read(self, topic: str, after: Position | str, credit: int, deadline: Deadline) -> Batch:
        place = after if isinstance(after, Position) else (after, "")
        arguments = [*place, credit, *self._retention, *self._last(topic)]
        epoch, first, end, *found = self._run(self._read, _keys(topic), arguments, deadline)
        self._learn(topic, Position(int(epoch), int(end) - 1))
        return Batch(int(epoch), int(first), found)

    def close(self, deadline: Deadline) -> None:
        self._closing.set()
        if self._listener is not None:
            self._listener.join(deadline.remaining())
        self._client.close()

    def _last(self, topic: str) -> Position:
        """Return the last position that Redis has named."""
        with self._lock:
            return self._known.get(topic, START)

    def _learn(self, topic: str, position: Position) -> None:
        if position == START:
            return  # there is no log
        with self._lock:
            self._known[topic] = max(position, self._known.pop(topic, START))
            if len(self._known) > KNOWN:
                del self._known[next(iter(self._known))]

    def _run(self, script: Any, keys: list[str], arguments: list[Any], deadline: Deadline) -> Any:
        """Run a script, repeating it while Redis fails."""
        pause = RetryPause()
        while True:
            try:
                return script(keys, arguments)
            except FAILURES as error:
                seconds, left = pause.next(), deadline.remaining()
                if (left is not None and left <= seconds) or self._closing.is_set():
                    raise QueueUnavailable(explain(error)) from error
                self._closing.wait(seconds)

    # The listener

    def _listen(self) -> None:
        pause, heard, lost = RetryPause(), b"0-0", False
        while not self._closing.is_set():
            try:
                reply: Any = self._client.xread({BELL: heard}, RUNG, BLOCK)
            except FAILURES as error:
                _log.warning("topics of other relays are waiting for Redis: %s", explain(error))
                lost = True
                self._closing.wait(pause.next())
                continue
            pause.reset()
            rung = reply[0][1] if reply else []
            names = {fields.get(FIELD, b"").decode(errors="replace") for _, fields in rung}
            if rung:
                heard = rung[-1][0]
            self._tell(None if lost or len(rung) >= RUNG else names)
            lost = False

    def _tell(self, names: Collection[str] | None) -> None:
        if names or names is None:
            try:
                self._changed(names)
            except Exception:
                _log.exception("readers of topics could not be woken")


def _keys(topic: str) -> list[str]:
    stream = TOPIC + topic
    return [stream, f"{stream}:log"]


def _nobody(topics: Collection[str] | None) -> None:
    """Wake nobody."""
