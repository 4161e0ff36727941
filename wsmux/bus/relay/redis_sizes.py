"""Bound the bytes of all streams of sessions in Redis together.

The sender of an envelope names the session, so it decides how many streams there are. Each addition
counts what it adds, in the same step. That may be too much, since what is delivered is not
subtracted before its stream is empty, nor what other programs remove. So beyond the bound, Redis is
asked how large the largest streams really are, and what other programs add counts from then on,
too. Only if all is still too much, the largest one loses its older half; of several whose sizes are
within an eighth, the one that was not added to for the longest time.

Keys: ``SIZES`` sorts the streams by their bytes, ``ENDS`` by when they were last added to, and
``TOTAL`` has the bytes of all. They end by themselves with the last stream.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...config import KIB, MIB
from .queues import LIFE, MAX_QUEUED

__all__ = ["FIELD", "MAX_BYTES", "add", "delete"]

# The field of a stream's entries that holds the envelope.
FIELD = b"_"

# Bytes of all streams of sessions.
MAX_BYTES = 1024 * MIB

SIZES, ENDS, TOTAL = "wsmux:streams:sizes", "wsmux:streams:ends", "wsmux:streams:total"

# Bytes that an entry is counted for beside its envelope, bytes of memory for a byte of that, and
# bytes of a stream beside its entries and its key, which is there three times. An empty stream has
# room for 4 KiB.
ENTRY, EACH, STREAM = 64, 1.25, 6 * KIB

# Streams that have ended, streams whose size is asked for, and steps to make room, in one script:
# so many that room grows by more than one addition takes.
ENDED, ASKED, STEPS = 16, 16, 8

# Ids in one command of a script, which Lua bounds.
MANY = 1000

# KEYS: a stream, and the three.
_COMMON = """
local stream, sizes, ends, total = unpack(KEYS)
local function whole(number) return string.format('%.0f', number) end
local function write(key, size)
  local before = tonumber(redis.call('ZSCORE', sizes, key) or 0)
  if size > 0 then
    redis.call('ZADD', sizes, whole(size), key)
  else
    redis.call('ZREM', sizes, key)
    redis.call('ZREM', ends, key)
  end
  if size ~= before then redis.call('INCRBY', total, whole(size - before)) end
end
"""

# ARGV: the last entry known, or nothing; the bound; the envelopes. Returns the number of unknown
# entries, 1 at most, and the ids of the new ones.
ADD = f"""{_COMMON}
local function measure(key)
  local used = redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 0)
  write(key, used and used + {KIB} + 2 * #key or 0)
end
local function halve(key)
  local count = redis.pcall('XLEN', key)
  if type(count) ~= 'number' then return write(key, 0) end
  if count < 2 then
    redis.call('DEL', key)
  else
    redis.call('XTRIM', key, 'MAXLEN', math.floor(count / 2))
  end
  measure(key)
end
local function largest()
  local top, found, oldest = redis.call('ZREVRANGE', sizes, 0, {ASKED} - 1, 'WITHSCORES'), nil, nil
  for i = 1, #top, 2 do
    if top[i + 1] * 8 < top[2] * 7 then break end
    local added = tonumber(redis.call('ZSCORE', ends, top[i]) or 0)
    if not oldest or added < oldest then found, oldest = top[i], added end
  end
  return found
end
local told, grown = {{0}}, 0
if ARGV[1] ~= '' then
  told[1] = #redis.call('XRANGE', stream, '(' .. ARGV[1], '+', 'COUNT', 1)
end
for i = 3, #ARGV do
  local bound, field = {MAX_QUEUED}, '{FIELD.decode()}'
  told[i - 1] = redis.call('XADD', stream, 'MAXLEN', '~', bound, '*', field, ARGV[i])
  grown = grown + #ARGV[i] * {EACH} + {ENTRY}
end
redis.call('EXPIRE', stream, {LIFE})
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local over = string.format('%.6f', now - {LIFE})
for _, key in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', over, 'LIMIT', 0, {ENDED})) do
  write(key, 0)
end
local before = redis.call('ZSCORE', sizes, stream) or {STREAM} + 3 * #stream
write(stream, before + grown)
redis.call('ZADD', ends, string.format('%.6f', now), stream)
local function is_over() return tonumber(redis.call('GET', total)) > tonumber(ARGV[2]) end
if is_over() then
  for _, key in ipairs(redis.call('ZREVRANGE', sizes, 0, {ASKED} - 1)) do measure(key) end
end
for _ = 1, {STEPS} do
  local key = is_over() and largest()
  if not key then break end
  halve(key)
end
for _, key in ipairs({{sizes, ends, total}}) do redis.call('EXPIRE', key, {LIFE}) end
return told
"""

# ARGV: ids of entries.
DELETE = f"""{_COMMON}
for i = 1, #ARGV, {MANY} do
  redis.call('XDEL', stream, unpack(ARGV, i, math.min(i + {MANY} - 1, #ARGV)))
end
if redis.call('XLEN', stream) == 0 then write(stream, 0) end
return #ARGV
"""


def add(key: str, after: bytes, max_bytes: int, envelopes: Collection[bytes]) -> tuple[Any, ...]:
    """Return the command that adds envelopes to a stream; see ``run_together``.

    Its result is a list: 1 if there are others behind the entry ``after``, and 0 if there are none
    or it is empty; then the ids of the new entries.
    """
    return "EVAL", ADD, 4, key, SIZES, ENDS, TOTAL, after, max_bytes, *envelopes


def delete(key: bytes, ids: Collection[bytes]) -> tuple[Any, ...]:
    """Return the command that deletes entries of a stream."""
    return "EVAL", DELETE, 4, key, SIZES, ENDS, TOTAL, *ids
