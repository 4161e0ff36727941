"""Hold the scripts of topics in Redis; each is one step, whole or not at all.

The keys of a topic begin with ``KEYS[1]``, which is ``wsmux:data:NAMESPACE:TOPIC``, and go on so:

=============  ==================================================================================
``:topic``     hash: schema, partitions, version, time of the last commit, ``home``, and for each
               partition ``e:N``, ``l:N``, ``b:N``: its earliest and latest offset and its bytes
``:rows:N``    stream of a partition. The id of an entry is the offset behind its rows; its fields
               are offset, version, time, bytes, groups, and ``d``, the data, or ``f``, its part
``:part:F``    list of a part's data, in chunks of a bounded size
``:txns``      sorted set of the open transactions, by when they were last written to
``:keys``      the same in the order of queries and batches
``:open:KEY``  hash of the parts of a transaction: what each is, empty until it is finished
``:queries``   hash of the last batch of each query and what it made: by this a batch counts once
``:once``      sorted set of the transactions without a query among these, by time
``:readers``   hash of the offsets that each query that reads has released
=============  ==================================================================================

A script refuses before it writes. Redis, which is out of memory or may not write, refuses the first
write of a script only, so none ends halfway; what drops things begins with a write that it never
refuses for memory. Each may be run again when its answer was lost.
"""

from __future__ import annotations

__all__ = [
    "ABORT",
    "ADD",
    "COMMIT",
    "CREATE",
    "DROP",
    "EXPIRE",
    "KEEP",
    "LOOK",
    "OFFSET_AT",
    "OPEN",
    "RELEASE",
    "TOUCH",
]

# ``done`` returns what a batch made if it, or a later one of its query, was committed. Batches are
# compared as text of 19 digits: Lua's numbers are exact up to 2**53 only.
_COMMON = """
local function at(name) return KEYS[1] .. ':' .. name end
local function time(given)
  if given ~= '' then return given end
  local t = redis.call('TIME')
  return t[1] .. '.' .. string.format('%06d', t[2])
end
local function whole(number) return string.format('%.0f', number) end
local function done(query, batch)
  local told = redis.call('HGET', at('queries'), query)
  if not told then return false end
  local last, version, rows, bytes = string.match(told, '^(%d*) (%d+) (%d+) (%d+)$')
  if batch > last then return false end
  if batch == last then return {version, rows, bytes} end
  return {redis.call('HGET', at('topic'), 'version'), '0', '0'}
end
local function is_open(key) return redis.call('ZSCORE', at('txns'), key) end
local function touch(key, given) redis.call('ZADD', at('txns'), time(given), key) end
local function forget(key, but)
  for _, file in ipairs(redis.call('HKEYS', at('open:' .. key))) do
    if not (but and but[file]) then redis.call('UNLINK', at('part:' .. file)) end
  end
  redis.call('UNLINK', at('open:' .. key))
  redis.call('ZREM', at('txns'), key)
  redis.call('ZREM', at('keys'), key)
end
local function ring(topic)
  -- Who waits looks now and then by himself, so this may fail.
  redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', 1000, '*', 't', topic)
end
"""


def _script(text: str) -> str:
    return _COMMON + text


# KEYS: topic, names. ARGV: name, schema, partitions, home. Returns the schema and the partitions of
# the one that is there.
CREATE = _script("""
local there = redis.call('HMGET', at('topic'), 'schema', 'partitions')
if there[1] then return there end
redis.call('HSET', at('topic'), 'schema', ARGV[2], 'partitions', ARGV[3], 'version', 0, 'time', 0,
  'home', ARGV[4])
redis.call('SADD', KEYS[2], ARGV[1])
return {}
""")

# ARGV: key, query, batch. Returns the schema, what the batch made, and when it was written to.
LOOK = _script("""
local schema = redis.call('HGET', at('topic'), 'schema')
if not schema then return {} end
return {schema, done(ARGV[2], ARGV[3]), is_open(ARGV[1])}
""")

# ARGV: key, query, batch, time. Returns 0 without a topic, 2 for a batch that is done.
OPEN = _script("""
if redis.call('EXISTS', at('topic')) == 0 then return 0 end
if done(ARGV[2], ARGV[3]) then return 2 end
touch(ARGV[1], ARGV[4])
redis.call('ZADD', at('keys'), 0, ARGV[1])
return 1
""")

# ARGV: key, time. Returns 0 if the transaction is over, as the next two do.
TOUCH = _script("""
if not is_open(ARGV[1]) then return 0 end
touch(ARGV[1], ARGV[2])
return 1
""")

# ARGV: key, time, file, the number of chunks before, chunk.
ADD = _script("""
local part = at('part:' .. ARGV[3])
local held, before = redis.call('LLEN', part), tonumber(ARGV[4])
if not is_open(ARGV[1]) or held < before then return 0 end
redis.call('HSETNX', at('open:' .. ARGV[1]), ARGV[3], '')
if held == before then redis.call('RPUSH', part, ARGV[5]) end
touch(ARGV[1], ARGV[2])
return 1
""")

# ARGV: key, time, file, the number of chunks, what the part is.
KEEP = _script("""
local held = redis.call('LLEN', at('part:' .. ARGV[3]))
if not is_open(ARGV[1]) or held ~= tonumber(ARGV[4]) then return 0 end
redis.call('HSET', at('open:' .. ARGV[1]), ARGV[3], ARGV[5])
touch(ARGV[1], ARGV[2])
return 1
""")

# KEYS: topic, bell. ARGV: name, key, query, batch, time, bytes of a part and of all parts that are
# moved into the stream, then file and receipt of each part. Returns a word, and what it is about.
COMMIT = _script("""
local version = redis.call('HGET', at('topic'), 'version')
if not version then return {'gone'} end
local key, query, batch = ARGV[2], ARGV[3], ARGV[4]
local made = done(query, batch)
if made then return {'done', unpack(made)} end
if not is_open(key) then return {'gone'} end
local parts = {}
for place = 8, #ARGV, 2 do
  local told = redis.call('HGET', at('open:' .. key), ARGV[place])
  local pattern = '^((%d+) %d+ (%d+) (%d+) %d+)|(%d+) (%d+)|(.*)$'
  local receipt, partition, rows, bytes, chunks, size, groups = string.match(told or '', pattern)
  if receipt ~= ARGV[place + 1] then return {'wrong', ARGV[place], receipt or ''} end
  table.insert(parts, {file = ARGV[place], partition = partition, rows = tonumber(rows),
    bytes = tonumber(bytes), chunks = chunks, size = tonumber(size), groups = groups})
end
local partitions = tonumber(redis.call('HGET', at('topic'), 'partitions'))
local before = tonumber(redis.call('HGET', at('topic'), 'time'))
-- Never before the last one, so that what came at a time can be found by halves.
local came = string.format('%.6f', math.max(tonumber(time(ARGV[5])), before))
version = whole(version + 1)
local rows, bytes, moved, named = 0, 0, 0, {}
for _, part in ipairs(parts) do
  if part.rows > 0 then
    local n = whole(math.fmod(tonumber(part.partition), partitions))
    local start = redis.call('HGET', at('topic'), 'l:' .. n) or '0'
    local behind = whole(start + part.rows)
    local field, data = 'f', part.file
    if part.chunks == '1' and part.size <= tonumber(ARGV[6])
        and moved + part.size <= tonumber(ARGV[7]) then
      field, data = 'd', redis.call('LINDEX', at('part:' .. part.file), 0)
      moved = moved + part.size
    else
      named[part.file] = true
    end
    redis.call('XADD', at('rows:' .. n), behind .. '-0', 's', start, 'v', version, 't', came,
      'b', whole(part.bytes), 'g', part.groups, field, data)
    redis.call('HSET', at('topic'), 'l:' .. n, behind)
    redis.call('HINCRBY', at('topic'), 'b:' .. n, whole(part.bytes))
    rows, bytes = rows + part.rows, bytes + part.bytes
  end
end
redis.call('HSET', at('topic'), 'version', version, 'time', came)
local told = table.concat({batch, version, whole(rows), whole(bytes)}, ' ')
redis.call('HSET', at('queries'), query, told)
if batch == '' then redis.call('ZADD', at('once'), came, query) end
-- And the earlier batches of the query: they are done now, whatever they were.
for _, each in ipairs(redis.call('ZRANGEBYLEX', at('keys'), '[' .. query, '[' .. key)) do
  forget(each, named)
end
ring(ARGV[1])
return {'done', version, whole(rows), whole(bytes)}
""")

# ARGV: key, query, batch. Returns whether it was committed.
ABORT = _script("""
if done(ARGV[2], ARGV[3]) then return 1 end
forget(ARGV[1])
return 0
""")

# ARGV: partition, milliseconds. Returns the first offset that came then or later, if one did.
OFFSET_AT = _script("""
local rows, least = at('rows:' .. ARGV[1]), tonumber(ARGV[2])
local function came(entry) return math.floor(tonumber(entry[2][6]) * 1000 + 0.5) end
local last = redis.call('XREVRANGE', rows, '+', '-', 'COUNT', 1)[1]
if not last or came(last) < least then return false end
local low = tonumber(redis.call('HGET', at('topic'), 'e:' .. ARGV[1]) or 0)
local high = tonumber(string.match(last[1], '^%d+'))
while low < high do
  local middle = math.floor((low + high) / 2)
  local entry = redis.call('XRANGE', rows, whole(middle + 1) .. '-0', '+', 'COUNT', 1)[1]
  if came(entry) >= least then
    high = tonumber(entry[2][2])
  else
    low = tonumber(string.match(entry[1], '^%d+'))
  end
end
return whole(low)
""")

# ARGV: query, another one that it replaces or nothing, offsets. What was released stays so. Returns
# 0 without a topic.
RELEASE = _script("""
if redis.call('EXISTS', at('topic')) == 0 then return 0 end
local after = {}
for place = 3, #ARGV do after[place - 2] = ARGV[place] end
local place = 0
for offset in string.gmatch(redis.call('HGET', at('readers'), ARGV[1]) or '', '%d+') do
  place = place + 1
  if tonumber(offset) > tonumber(after[place] or 0) then after[place] = offset end
end
redis.call('HSET', at('readers'), ARGV[1], table.concat(after, ' '))
if ARGV[2] ~= '' then redis.call('HDEL', at('readers'), ARGV[2]) end
return 1
""")

# KEYS: topic, names. ARGV: name, time before which, how many at most, home. Gives a topic of an
# earlier version its home. Forgets the transactions that were last written to, or made without a
# query, before a time; returns how many, or -1 if there is no such topic any more.
EXPIRE = _script("""
if redis.call('EXISTS', at('topic')) == 0 then
  redis.call('SREM', KEYS[2], ARGV[1])
  return -1
end
local before = '(' .. ARGV[2]
local old = redis.call('ZRANGEBYSCORE', at('txns'), '-inf', before, 'LIMIT', 0, ARGV[3])
for _, key in ipairs(old) do forget(key) end
local once = redis.call('ZRANGEBYSCORE', at('once'), '-inf', before, 'LIMIT', 0, ARGV[3])
for _, query in ipairs(once) do
  redis.call('HDEL', at('queries'), query)
  redis.call('ZREM', at('once'), query)
end
redis.pcall('HSETNX', at('topic'), 'home', ARGV[4])  -- unless there is no memory
return #old + #once
""")

# KEYS: topic, bell. ARGV: name, time, how many at most, then the limits of ``Retention``, empty for
# none. Drops the oldest rows that it does not keep, and returns how many entries.
DROP = _script("""
local now, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local function above(limit, value) return limit ~= '' and value > tonumber(limit) end
local topic, flat = {}, redis.call('HGETALL', at('topic'))
for place = 1, #flat, 2 do topic[flat[place]] = flat[place + 1] end
if not topic.partitions then return 0 end
local partitions = tonumber(topic.partitions)
local floors, heads, rows, bytes = {}, {}, 0, 0
for _, offsets in ipairs(redis.call('HVALS', at('readers'))) do
  local n = 0
  for offset in string.gmatch(offsets, '%d+') do
    floors[n] = math.min(floors[n] or math.huge, tonumber(offset))
    n = n + 1
  end
end
local function look(n)
  local entry = redis.call('XRANGE', at('rows:' .. n), '-', '+', 'COUNT', 1)[1]
  heads[n] = entry and {id = entry[1], start = tonumber(entry[2][2]), version = entry[2][4],
    time = tonumber(entry[2][6]), bytes = tonumber(entry[2][8]),
    file = entry[2][11] == 'f' and entry[2][12],
    behind = tonumber(string.match(entry[1], '^%d+'))}
end
for n = 0, partitions - 1 do
  rows = rows + (topic['l:' .. n] or 0) - (topic['e:' .. n] or 0)
  bytes = bytes + (topic['b:' .. n] or 0)
  look(n)
end
local count = 0
-- To find the oldest costs a look at each partition: with many, fewer go at once.
most = math.max(1, math.min(most, math.floor(200000 / partitions)))
while count < most do
  local n, head
  for each, other in pairs(heads) do
    if not head or other.time < head.time or (other.time == head.time and each < n) then
      n, head = each, other
    end
  end
  if not head then break end
  local held, old = head.behind - head.start, now - head.time
  local newest = head.version == topic.version
  local hard = above(ARGV[9], old)
    or (not newest and (above(ARGV[7], rows) or above(ARGV[8], bytes)))
  local soft = above(ARGV[6], old) or (not newest
    and (above(ARGV[4], rows - held + 1) or above(ARGV[5], bytes - head.bytes + 1)))
  if not (hard or soft) then break end
  if hard or head.behind <= (floors[n] or math.huge) then
    rows, bytes, count = rows - held, bytes - head.bytes, count + 1
    redis.call('XDEL', at('rows:' .. n), head.id)
    redis.call('HSET', at('topic'), 'e:' .. n, whole(head.behind))
    redis.call('HINCRBY', at('topic'), 'b:' .. n, whole(0 - head.bytes))
    if head.file then redis.call('UNLINK', at('part:' .. head.file)) end
    look(n)
  else
    heads[n] = nil  -- a query has still to release it
  end
end
if count > 0 then ring(ARGV[1]) end
return count
""")
