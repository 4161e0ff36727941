"""Keep the topics of a cluster in Redis, for all of its nodes.

A topic has two keys, which begin as those of ``directory``: ``topic:NAME``, a Redis stream whose
ids are *epoch*-*number*, with the data in field ``d``; and ``log:NAME``, a hash of the epoch, the
next number, the bytes, and the run of Redis in which the epoch began. ``bell`` is a short stream of
the names of topics that have a new message. One thread of a process waits for the bell, from its
first subscription on, and wakes the readers.

What others write under these keys is not believed: an entry that no append has made is above the
last number, or has another field. Nobody is given it, and the next append removes it.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from ..runtime.backoff import Backoff
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from ..runtime.parking import OneShotEvent
from ..runtime.threads import daemon_thread, start_thread
from ..storage.redis_client import FAILURES, explain
from .positions import Batch, Position, Retention
from .records import key_prefix
from .redis_calls import RedisCalls, understood
from .topics import READ_MESSAGES, READ_SIZE, Bell

if TYPE_CHECKING:
    import redis

__all__ = ["RedisTopics"]

# Names kept in the bell, and milliseconds for which one read waits for it: less than the reply
# timeout of a connection. Seconds until the bell is waited for again after a failure, at most.
RUNG, BLOCK, LONGEST_PAUSE = 1000, 1000, 2.0

# Seconds after which a reader looks again even if the bell was not heard, as after a failure.
LOOK = 2.0

_log = logger("wsmux.cluster")

# An epoch is of one run of Redis; ``INFO`` is the only command that names it.
_LOG = """
local function renewed(stream, log)
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local epoch = redis.call('HGET', log, 'epoch')
  if epoch and redis.call('HGET', log, 'run') == run then return epoch end
  -- Without its log, as after an eviction, nobody knows what the stream holds, nor whether its ids
  -- are smaller than those to come.
  if not epoch then redis.call('DEL', stream, log) end
  local t = redis.call('TIME')
  local new = math.max(t[1] * 1000 + math.floor(t[2] / 1000), tonumber(epoch or 0) + 1)
  epoch = string.format('%.0f', new)
  redis.call('HSET', log, 'epoch', epoch, 'run', run, 'next', 1)
  return epoch
end
local function ours(entry) return entry[2][1] == 'd' and #entry[2] == 2 end
"""

# KEYS: stream, log, bell. ARGV: topic, data, how many messages and bytes, milliseconds idle, how
# many names the bell keeps. Returns the epoch, the number, and how many entries of others were
# removed. A bell of another type is not heard; then readers look from time to time.
_APPEND = (
    _LOG
    + """
local epoch = renewed(KEYS[1], KEYS[2])
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('HSET', KEYS[2], 'bytes', 0) end
local number = redis.call('HINCRBY', KEYS[2], 'next', 1) - 1
local id, removed = epoch .. '-' .. number, 0
local added = redis.pcall('XADD', KEYS[1], id, 'd', ARGV[2])
if type(added) == 'table' and added.err then
  local last = epoch .. '-' .. number - 1
  for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '(' .. last, '+')) do
    removed = removed + redis.call('XDEL', KEYS[1], entry[1])
  end
  redis.call('XSETID', KEYS[1], last)
  redis.call('XADD', KEYS[1], id, 'd', ARGV[2])
end
local size = redis.call('HINCRBY', KEYS[2], 'bytes', #ARGV[2])
local count = redis.call('XLEN', KEYS[1])
while count > tonumber(ARGV[3]) or (size > tonumber(ARGV[4]) and count > 1) do
  local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  redis.call('XDEL', KEYS[1], oldest[1])
  size = redis.call('HINCRBY', KEYS[2], 'bytes', ours(oldest) and -#oldest[2][2] or 0)
  count = count - 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
redis.pcall('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], '*', 't', ARGV[1])
return {epoch, number, removed}
"""
)

# KEYS: stream, log. ARGV: the id after which to read, or '', how many messages and bytes,
# milliseconds idle. Returns the epoch and the number of the last message, the id of the oldest, and
# entries. The epoch of a topic begins with its first reader, and lasts as long as it has one: what
# Redis loses then is noticed even if it is the first message.
_READ = (
    _LOG
    + """
local epoch = renewed(KEYS[1], KEYS[2])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
local last = redis.call('HGET', KEYS[2], 'next') - 1
local to = epoch .. '-' .. last
-- Calls a function with our entries behind an id, until it returns false.
local function each(behind, call)
  local some
  repeat
    some = redis.call('XRANGE', KEYS[1], behind, to, 'COUNT', 16)
    for _, entry in ipairs(some) do
      if ours(entry) and not call(entry) then return end
      behind = '(' .. entry[1]
    end
  until #some == 0
end
local oldest, found, size = '', {}, 0
each('-', function(entry) oldest = entry[1] end)
if ARGV[1] ~= '' then
  each('(' .. ARGV[1], function(entry)
    size = size + #entry[2][2]
    if #found >= tonumber(ARGV[2]) or (#found > 0 and size > tonumber(ARGV[3])) then return end
    table.insert(found, {entry[1], entry[2][2]})
    return true
  end)
end
return {epoch, last, oldest, found}
"""
)


class RedisTopics:
    """Keep topics in Redis, for all nodes of a namespace.

    Args:
        client, calls: of a Redis, and to it; they belong to the caller.
        namespace, retention: those of the cluster.
    """

    def __init__(
        self, client: redis.Redis, calls: RedisCalls, namespace: str, retention: Retention
    ) -> None:
        self._client = client  # for the thread that waits for the bell
        self._calls = calls
        self._retention = retention
        prefix = key_prefix(namespace)
        self._topic, self._log, self._rung = f"{prefix}topic:", f"{prefix}log:", f"{prefix}bell"
        self._bell = Bell()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = OneShotEvent()
        self.closed = False

    @understood()
    def append(self, topic: str, data: bytes) -> Position:
        messages, size, idle = self._retention
        arguments = topic, data, messages, size, int(idle * 1000), RUNG
        keys = f"{self._topic}{topic}", f"{self._log}{topic}", self._rung
        epoch, number, removed = self._calls.run(_APPEND, keys, arguments)
        if removed:
            _log.warning("%d entries of others were removed from topic %r", removed, topic)
        return Position(int(epoch), int(number))

    @understood()
    def read(self, topic: str, after: Position | None) -> Batch:
        behind = "" if after is None else str(after)
        arguments = behind, READ_MESSAGES, READ_SIZE, int(self._retention.idle * 1000)
        keys = f"{self._topic}{topic}", f"{self._log}{topic}"
        epoch, number, oldest, found = self._calls.run(_READ, keys, arguments)
        last = Position(int(epoch), int(number))
        first = _position(oldest) if oldest else last._replace(number=last.number + 1)
        return Batch(last, [(_position(each), data) for each, data in found], first)

    def changes(self, topic: str) -> int:
        self._listen()
        return self._bell.changes(topic)

    def wait(self, topic: str, changes: int, deadline: Deadline) -> None:
        remaining = deadline.remaining()
        look = Deadline(LOOK if remaining is None else min(LOOK, remaining))
        self._bell.wait(topic, changes, look)

    def close(self) -> None:
        with self._lock:  # no thread is started from now on
            self.closed = True
        self._closed.set()
        self._bell.ring(None)
        if self._thread is not None:
            self._thread.join()

    def wake(self, topic: str) -> None:
        self._bell.ring(topic)

    # The thread that waits for the bell

    def _listen(self) -> None:
        with self._lock:
            if self._thread is None and not self.closed:
                self._thread = daemon_thread(target=self._hear, name="wsmux-cluster-topics")
                try:
                    start_thread(self._thread)
                except BaseException:
                    self._thread = None
                    raise

    def _hear(self) -> None:
        pause = Backoff(0.1, LONGEST_PAUSE)
        heard: Any = None
        failed = False
        while not self._closed.is_set():
            try:
                if heard is None:
                    newest: Any = self._client.xrevrange(self._rung, count=1)
                    heard = newest[0][0] if newest else b"0-0"
                    self._bell.ring(None)  # readers may have looked before this
                told: Any = self._client.xread({self._rung: heard}, count=RUNG, block=BLOCK)
            except FAILURES as error:
                level = logging.DEBUG if failed else logging.WARNING  # once for each outage
                _log.log(level, "topics are followed by looking alone: %s", explain(error))
                heard, failed = None, True
                self._closed.wait(pause.next())
                continue
            pause.reset()
            failed = False
            for _, rings in told:
                for _, fields in rings:
                    self._bell.ring(fields.get(b"t", b"").decode("utf-8", "replace"))
                heard = rings[-1][0]
                if len(rings) == RUNG:  # there may have been more than were kept
                    self._bell.ring(None)


def _position(text: bytes) -> Position:
    epoch, _, number = text.decode().partition("-")
    return Position(int(epoch), int(number))
