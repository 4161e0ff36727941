"""Keep the queue of a name in Redis, in rounds of one entry of each twin; see ``queues``.

Keys. Those of a name begin with ``wsmux:calls:{TWIN:@NAME}``. Of these, ``:data`` has the envelopes
by their ids, and ``:info`` whose each is, its size, when it expires, its round, and the relay that
has taken it. ``:waiting`` sorts the entries that no relay has by their rounds, ``:ends`` the same
ones by when they expire, and ``:taken`` the others by when they are free again unless their relay
renews them. ``:shares`` has the number, the bytes and the last round of each twin, the bytes of
all, the round that is being served, and the last id. All are removed with the last entry, and end
by themselves ``LIFE`` after they were last used.

Ids are microseconds, so an id of an earlier queue of the same name is none of a later one. Each
step is one script, so relays need no lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...config import MIB
from ..wire.address import Address
from .queues import LIFE, NameBounds, Put

__all__ = [
    "BELL",
    "FREED",
    "NAME",
    "RINGER",
    "acknowledge",
    "add",
    "give_back",
    "is_rounds",
    "renew",
    "rounds_key",
    "take",
]

PREFIX = "wsmux:calls:"
PARTS = ("data", "info", "waiting", "ends", "taken", "shares")

# The stream that tells all relays of what they may take, its length, and its fields: the key of the
# name, the relay that has added something, or that something was given back.
BELL = "wsmux:bell:names"
RUNG = 1000
NAME, RINGER, FREED = b"_", b"by", b"freed"

# Bytes beyond which one step takes no further entry.
MANY_BYTES = 4 * MIB

# Entries of relays that have gone, freed in one step.
MANY = 100

# ``read`` returns nothing of an entry that is gone. ``room`` returns whose bound is reached, if one
# is. ``take`` returns ids and envelopes, those that this script has added as their positions.
_COMMON = f"""
local data, info, waiting, ends, taken, shares = unpack(KEYS, 1, {len(PARTS)})
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local mine = {{}}
local function whole(number) return string.format('%.0f', number) end
local function total(field) return tonumber(redis.call('HGET', shares, field) or 0) end
local function read(id)
  local found = redis.call('HGET', info, id)
  if found then return string.match(found, '^(%S+) (%S+) (%S+) (%S+) (%S*)$') end
end
local function write(id, source, size, over, round, relay)
  redis.call('HSET', info, id, table.concat({{source, size, over, round, relay}}, ' '))
end
local function share(source)
  local found = redis.call('HGET', shares, source)
  if not found then return 0, 0, 0 end
  local count, size, round = string.match(found, '^(%S+) (%S+) (%S+)$')
  return tonumber(count), tonumber(size), tonumber(round)
end
local function write_share(source, count, size, round)
  redis.call('HSET', shares, source, whole(count) .. ' ' .. whole(size) .. ' ' .. whole(round))
end
local function forget(id)
  local source, size = read(id)
  redis.call('HDEL', data, id)
  redis.call('HDEL', info, id)
  redis.call('ZREM', waiting, id)
  redis.call('ZREM', ends, id)
  redis.call('ZREM', taken, id)
  if not source then return end
  local count, held, round = share(source)
  if count > 1 then
    write_share(source, count - 1, held - size, round)
  else
    redis.call('HDEL', shares, source)
  end
  redis.call('HINCRBY', shares, 'size', '-' .. size)
end
local function free(id)
  local source, size, over, round = read(id)
  if not source then return forget(id) end
  redis.call('ZREM', taken, id)
  redis.call('ZADD', waiting, round, id)
  redis.call('ZADD', ends, over, id)
  write(id, source, size, over, round, '')
end
local function take(relay, want, lease)
  local found, size, served = {{}}, 0, total('served')
  while #found < 2 * want and size < {MANY_BYTES} do
    local id = redis.call('ZPOPMIN', waiting)[1]
    if not id then break end
    local source, length, over, round = read(id)
    local envelope = mine[id] or redis.call('HGET', data, id)
    if source and envelope then
      redis.call('ZREM', ends, id)
      redis.call('ZADD', taken, whole((now + lease) * 1000), id)
      write(id, source, length, over, round, relay)
      found[#found + 1] = id
      found[#found + 1] = envelope
      size = size + length
      served = math.max(served, round)
    else
      forget(id)
    end
  end
  if #found > 0 then redis.call('HSET', shares, 'served', whole(served)) end
  return found
end
local function leave()
  for i = 1, {len(PARTS)} do
    if redis.call('HLEN', info) == 0 then
      redis.call('DEL', KEYS[i])
    else
      redis.call('EXPIRE', KEYS[i], {LIFE})
    end
  end
end
local function ring(field, value)
  redis.call('XADD', KEYS[{len(PARTS) + 1}], 'MAXLEN', '~', {RUNG}, '*',
    '{NAME.decode()}', string.match(shares, '^(.*):'), field, value)
  redis.call('EXPIRE', KEYS[{len(PARTS) + 1}], {LIFE})
end
"""

# KEYS: those of the name, and the bell. ARGV: the relay that adds, how many it takes and for how
# many seconds; the bounds; twin, end and envelope of each. Returns for each whose bound is reached,
# then what is left, and what was taken.
_ADD = (
    _COMMON
    + f"""
local function room(source, size)
  local count, held = share(source)
  if count >= tonumber(ARGV[4]) or (count > 0 and held + size > tonumber(ARGV[5])) then
    return 'twin'
  end
  count, held = redis.call('HLEN', info), total('size')
  if count >= tonumber(ARGV[6]) or (count > 0 and held + size > tonumber(ARGV[7])) then
    return 'all'
  end
  return ''
end
local told, served = {{}}, total('served')
local last = math.max(total('last'), now * 1000000 - 1)
for i = 8, #ARGV, 3 do
  local source, over, size = ARGV[i], math.min(ARGV[i + 1], now + {LIFE}), #ARGV[i + 2]
  local why = room(source, size)
  if why ~= '' then
    local past = redis.call('ZRANGEBYSCORE', ends, '-inf', now)
    for _, id in ipairs(past) do forget(id) end
    if #past > 0 then why = room(source, size) end
  end
  if why == '' then
    last = math.floor(last + 1)
    local id, count, held, round = whole(last), share(source)
    round = math.max(round, served) + 1
    redis.call('HSET', data, id, ARGV[i + 2])
    write(id, source, whole(size), whole(over), whole(round), '')
    write_share(source, count + 1, held + size, round)
    redis.call('HINCRBY', shares, 'size', size)
    redis.call('ZADD', waiting, round, id)
    redis.call('ZADD', ends, whole(over), id)
    mine[id] = #told + 1
  end
  told[#told + 1] = why
end
redis.call('HSET', shares, 'last', whole(last))
local found = take(ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]))
local left = redis.call('ZCARD', waiting)
if left > 0 then ring('{RINGER.decode()}', ARGV[1]) end
leave()
return {{told, left, found}}
"""
)

# KEYS: those of the name. ARGV: the relay, how many, for how many seconds. Returns what is left,
# what was taken, and how many entries relays had taken before.
_TAKE = (
    _COMMON
    + f"""
for _, id in ipairs(redis.call('ZRANGEBYSCORE', taken, '-inf', now * 1000, 'LIMIT', 0, {MANY})) do
  free(id)
end
local had = redis.call('ZCARD', taken)
local found = take(ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]))
local left = redis.call('ZCARD', waiting)
leave()
return {{left, found, had}}
"""
)

# KEYS: those of the name. ARGV: the relay, for how many seconds, ids. Returns nothing.
_RENEW = (
    _COMMON
    + """
for i = 3, #ARGV do
  local _, _, _, _, relay = read(ARGV[i])
  if relay == ARGV[1] then redis.call('ZADD', taken, whole((now + ARGV[2]) * 1000), ARGV[i]) end
end
leave()
"""
)

# KEYS: those of the name, and the bell. ARGV: the relay, ids. Returns nothing.
_GIVE_BACK = (
    _COMMON
    + f"""
for i = 2, #ARGV do
  local _, _, _, _, relay = read(ARGV[i])
  if relay == ARGV[1] then free(ARGV[i]) end
end
if redis.call('ZCARD', waiting) > 0 then ring('{FREED.decode()}', '') end
leave()
"""
)

# KEYS: those of the name. ARGV: ids. Returns nothing.
_ACKNOWLEDGE = (
    _COMMON
    + """
for _, id in ipairs(ARGV) do forget(id) end
leave()
"""
)

# What ``run_together`` takes.
Command = tuple[Any, ...]


def rounds_key(address: Address) -> bytes:
    """Return what the keys of a name begin with."""
    return f"{PREFIX}{{{address}}}".encode()


def is_rounds(key: bytes) -> bool:
    """Return whether this is what the keys of a name begin with."""
    return key.startswith(PREFIX.encode())


def add(
    key: bytes, relay: str, want: int, lease: float, bounds: NameBounds, puts: Sequence[Put]
) -> Command:
    """Return the command that adds puts, and takes what the relay wants."""
    every = [part for put in puts for part in (put.source, put.expires_at, put.data)]
    return "EVAL", _ADD, len(PARTS) + 1, *_keys(key), BELL, relay, want, lease, *bounds, *every


def take(key: bytes, relay: str, want: int, lease: float) -> Command:
    """Return the command that takes what is next, and was lost with other relays."""
    return "EVAL", _TAKE, len(PARTS), *_keys(key), relay, want, lease


def renew(key: bytes, relay: str, lease: float, ids: Iterable[bytes]) -> Command:
    """Return the command that keeps what a relay has taken, unless another one has it."""
    return "EVAL", _RENEW, len(PARTS), *_keys(key), relay, lease, *ids


def give_back(key: bytes, relay: str, ids: Iterable[bytes]) -> Command:
    """Return the command that frees what a relay has taken, unless another one has it."""
    return "EVAL", _GIVE_BACK, len(PARTS) + 1, *_keys(key), BELL, relay, *ids


def acknowledge(key: bytes, ids: Iterable[bytes]) -> Command:
    """Return the command that removes entries, whoever has them."""
    return "EVAL", _ACKNOWLEDGE, len(PARTS), *_keys(key), *ids


def _keys(key: bytes) -> list[bytes]:
    return [key + b":" + part.encode() for part in PARTS]
