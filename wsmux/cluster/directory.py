"""Keep in Redis who is where: the nodes of a cluster with their leases, and their members.

The keys begin with ``wsmux:cluster:NAMESPACE:``; see ``records.key_prefix``.

- ``node:ID``, the record of a node, with its lease as time to live;
- ``nodes``, a sorted set of the ids of all nodes, by the end of their leases;
- ``of:ID``, the set of a node's members, each ``ID NAME`` (the id has no space);
- ``name:NAME``, a hash of the members of a name: ``NODE ID`` to when it joined;
- ``names``, a sorted set of all names, for those that begin alike;
- ``seen``, a sorted set of the records of nodes, by the end of their leases. One that leaves takes
  its own out, so those whose time is over are of nodes that have died, or stand still;
- ``clock``, the time of the last renewal. A clock that stands before it was put back, and with it
  all leases are: otherwise nodes that were killed would be found until it is that late again.

Each step is one script, so it happens as a whole, and may be repeated. A member is valid as long as
its node has a lease. Those of a node without one are removed by whoever sweeps first; a node that
comes back after its lease had ended, or whose Redis has forgotten it, is told so, and adds its
members again. The scripts use keys that they find in others, so Redis Cluster, which spreads keys
over several servers, is not supported.

Others may have keys that begin so, too. One of another type, where one of ours should be, is an
error that says so if nothing can be told without it; what cannot be understood is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..runtime.logs import logger
from .members import MAX_MEMBERS
from .records import (
    MAX_NAME,
    Known,
    Listed,
    Node,
    NodeProcess,
    Presence,
    check_name,
    key_prefix,
    parse_node,
    parse_process,
    signed_node,
)
from .redis_calls import RedisCalls, understood

__all__ = ["Directory", "Found"]

# Members that one script handles, so that it blocks Redis for a moment only.
STEP = 500

# Seconds for which a node is remembered that was killed or stands still, and how many are told of.
REMEMBERED, MAX_LOST = 600, 100

# Steps in which a node removes its members when it leaves: enough for as many as it may have.
STEPS = MAX_MEMBERS // STEP + 1

# KEYS: node, nodes, seen, clock. ARGV: record, milliseconds of the lease, id, milliseconds for
# which a node whose lease has ended is remembered, the prefix of the keys of nodes. Returns whether
# it had a lease.
_ANNOUNCE = """
local known = redis.call('EXISTS', KEYS[1])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local before = redis.pcall('GET', KEYS[4])
before = type(before) == 'string' and string.match(before, '^%d+$') or now
local back = tonumber(before) - now
redis.pcall('SET', KEYS[4], string.format('%.0f', now), 'PX', ARGV[2] + ARGV[4])
if back > 1000 and back < 1e13 then
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], now, '+inf')) do
    local key = ARGV[5] .. id
    local left = redis.call('PTTL', key)
    if left > 0 then redis.call('PEXPIRE', key, math.max(1, left - back)) end
    redis.call('ZINCRBY', KEYS[2], -back, id)
  end
  for _, record in ipairs(redis.pcall('ZRANGE', KEYS[3], 0, -1)) do
    redis.call('ZINCRBY', KEYS[3], -back, record)
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[3])
redis.pcall('ZADD', KEYS[3], now + ARGV[2], ARGV[1])
redis.pcall('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - ARGV[4])
redis.pcall('PEXPIRE', KEYS[3], ARGV[2] + ARGV[4])
return known
"""

# KEYS: node, nodes, seen. ARGV: id, record.
_WITHDRAW = """
redis.call('DEL', KEYS[1])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
redis.pcall('ZREM', KEYS[3], ARGV[2])
"""

# KEYS: node, of, names. ARGV: the prefix of the keys of names, node, and a member, name and since
# for each. Returns nothing without a lease, else the first error of a key of another type, or ''.
_JOIN = """
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local failed = ''
for at = 3, #ARGV, 3 do
  local member, name = ARGV[at], ARGV[at + 1]
  for _, done in ipairs({
    redis.pcall('HSET', ARGV[1] .. name, ARGV[2] .. ' ' .. member, ARGV[at + 2]),
    redis.pcall('ZADD', KEYS[3], 0, name),
    redis.pcall('SADD', KEYS[2], member .. ' ' .. name),
  }) do
    if failed == '' and type(done) == 'table' and done.err then failed = done.err end
  end
end
return failed
"""

# KEYS: of, names. ARGV: the prefix of the keys of names, node, and a member and name for each.
_LEAVE = """
for at = 3, #ARGV, 2 do
  local member, name = ARGV[at], ARGV[at + 1]
  redis.pcall('HDEL', ARGV[1] .. name, ARGV[2] .. ' ' .. member)
  if redis.call('EXISTS', ARGV[1] .. name) == 0 then redis.pcall('ZREM', KEYS[2], name) end
  redis.pcall('SREM', KEYS[1], member .. ' ' .. name)
end
"""

# KEYS: of. ARGV: where to go on, how many members. Returns where to go on next, '0' at the end, and
# the member and name of each; there may be more than were asked for.
_SAID = """
local told = redis.pcall('SSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
return told.err and {'0', {}} or told
"""

# KEYS: the name. ARGV: the prefix of the keys of nodes. Returns member, since, record for each; of
# what is no member, or whose record is none, an empty record.
_FIND = """
local found, records = {}, {}
local held = redis.call('HGETALL', KEYS[1])
for at = 1, #held, 2 do
  local node = string.match(held[at], '^(%x+) ')
  if node and records[node] == nil then records[node] = redis.pcall('GET', ARGV[1] .. node) end
  local record = node == nil or records[node]
  if record then
    table.insert(found, held[at])
    table.insert(found, held[at + 1])
    table.insert(found, type(record) == 'string' and record or '')
  end
end
return found
"""

# KEYS: names. ARGV: the prefixes of the keys of nodes and of names, where the names begin, where
# they end, how many names. Returns the last name if there may be more, and the name, member and
# since of each found; also of what is no member.
_WHO = """
local found, alive = {}, {}
local names = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[3], ARGV[4], 'LIMIT', 0, ARGV[5])
for _, name in ipairs(names) do
  local held = redis.call('HGETALL', ARGV[2] .. name)
  for at = 1, #held, 2 do
    local node = string.match(held[at], '^(%x+) ')
    if node and alive[node] == nil then
      local size = redis.pcall('STRLEN', ARGV[1] .. node)
      alive[node] = type(size) == 'number' and size > 0
    end
    if node == nil or alive[node] then
      table.insert(found, name)
      table.insert(found, held[at])
      table.insert(found, held[at + 1])
    end
  end
end
return {names[tonumber(ARGV[5])] or '', found}
"""

# KEYS: nodes, seen. ARGV: the prefixes of the keys of nodes and of their members, how many nodes,
# how many names of each, how many nodes that were lost, and for how many milliseconds they are.
# Returns how many nodes have a lease; of those whose lease ends first, id, record, milliseconds
# that are left, how many members it has, and some of these; and of those whose lease has ended,
# record and milliseconds since then. A step of SSCAN may yield more than it was asked for.
_NODES = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local told = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf', 'LIMIT', 0, ARGV[3])) do
  local record = redis.pcall('GET', ARGV[1] .. id)
  if type(record) == 'string' then
    local of, some = ARGV[2] .. id, {}
    local count = redis.pcall('SCARD', of)
    if type(count) ~= 'number' then count = 0 end
    if count > 0 and tonumber(ARGV[4]) > 0 then
      for at, item in ipairs(redis.call('SSCAN', of, 0, 'COUNT', ARGV[4])[2]) do
        if at <= tonumber(ARGV[4]) then some[at] = item end
      end
    end
    table.insert(told, {id, record, redis.call('PTTL', ARGV[1] .. id), count, some})
  end
end
local lost = {}
local seen = redis.pcall('ZREVRANGEBYSCORE', KEYS[2], '(' .. now, now - ARGV[6], 'WITHSCORES',
  'LIMIT', 0, ARGV[5])
for at = 1, #seen, 2 do table.insert(lost, {seen[at], now - seen[at + 1]}) end
return {redis.call('ZCOUNT', KEYS[1], now, '+inf'), told, lost}
"""

# KEYS: nodes, names. ARGV: the prefixes of the keys of nodes, of their members and of names, how
# many members. Returns how many members were removed, and how many nodes without a lease are left.
_SWEEP = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local removed, left = 0, 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 100)) do
  if redis.call('EXISTS', ARGV[1] .. id) == 0 then
    local of = ARGV[2] .. id
    if redis.call('TYPE', of).ok ~= 'set' then redis.call('DEL', of) end
    local items = redis.call('SPOP', of, ARGV[4] - removed)
    for _, item in ipairs(items) do
      local member, name = string.match(item, '^(%d+) (.*)$')
      if name then
        local key = ARGV[3] .. name
        redis.pcall('HDEL', key, id .. ' ' .. member)
        if redis.call('EXISTS', key) == 0 then redis.pcall('ZREM', KEYS[2], name) end
      end
    end
    removed = removed + #items
    if redis.call('EXISTS', of) == 0 then redis.call('ZREM', KEYS[1], id) else left = left + 1 end
    if removed >= tonumber(ARGV[4]) then return {removed, left} end
  end
end
return {removed, left}
"""

_MEMBER = re.compile(rb"([0-9a-f]{32}) ([0-9]{1,20})")
_ITEM = re.compile(rb"([0-9]{1,20}) (.+)", re.DOTALL)

_log = logger("wsmux.cluster")


class Found(NamedTuple):
    """Hold a member of a name, and the node that has it."""

    presence: Presence
    node: Node


class Directory:
    """Say what this node has, and find what others have. Any thread may use it.

    Each call blocks for one round trip; see ``redis_calls`` for how long at most.

    Args:
        calls: to Redis; they belong to the caller.
        namespace: clusters of different namespaces do not know each other.
        key: the shared key.
        process: what is said of this node's process.
    """

    def __init__(
        self,
        calls: RedisCalls,
        namespace: str,
        key: bytes | None,
        process: NodeProcess | None = None,
    ) -> None:
        self._calls = calls
        self._key = key
        self._process = process
        prefix = key_prefix(namespace)
        self._node, self._of, self._name = f"{prefix}node:", f"{prefix}of:", f"{prefix}name:"
        self._nodes, self._names = f"{prefix}nodes", f"{prefix}names"
        self._seen, self._clock = f"{prefix}seen", f"{prefix}clock"

    def announce(self, node: Node, lease: float) -> bool:
        """Begin or renew a node's lease, of some seconds; return whether it had one.

        If not, its members are not known either, and are to be added again.

        Raises:
            Unreachable: Redis has failed.
        """
        record = signed_node(node, self._key, self._process)
        keys = f"{self._node}{node.id}", self._nodes, self._seen, self._clock
        told = record, int(lease * 1000), node.id, REMEMBERED * 1000, self._node
        return bool(self._calls.run(_ANNOUNCE, keys, told))

    def withdraw(self, node: Node) -> None:
        """End a node's lease at once, and remove its members.

        Raises:
            Unreachable: Redis has failed; the lease ends by itself.
        """
        keys = f"{self._node}{node.id}", self._nodes, self._seen
        record = signed_node(node, self._key, self._process)
        self._calls.run(_WITHDRAW, keys, (node.id, record))
        for _ in range(STEPS):
            if not self.sweep():
                return

    @understood()
    def join(self, node: str, presences: Sequence[Presence]) -> bool:
        """Add up to ``STEP`` members of a node; return false if it has no lease.

        Then it has to announce itself first.

        Raises:
            Unreachable: Redis has failed.
        """
        keys = f"{self._node}{node}", f"{self._of}{node}", self._names
        each = [text for name, _, id, since in presences for text in (id, name, repr(since))]
        failed = self._calls.run(_JOIN, keys, (self._name, node, *each))
        if failed:
            _log.warning("a name cannot be found by others: %s", _text(failed))
        return failed is not None

    def leave(self, node: str, presences: Sequence[Presence]) -> None:
        """Remove up to ``STEP`` members of a node.

        Raises:
            Unreachable: Redis has failed.
        """
        keys = f"{self._of}{node}", self._names
        each = [text for name, _, id, _ in presences for text in (id, name)]
        self._calls.run(_LEAVE, keys, (self._name, node, *each))

    @understood()
    def said(self, node: str, after: Any) -> tuple[Any, list[tuple[str, str]]]:
        """Return where to go on, and the names and ids of some members that Redis has of a node.

        Args:
            node: its id.
            after: where to go on; ``b"0"`` is the beginning, and the end.

        Raises:
            Unreachable: Redis has failed.
        """
        after, items = self._calls.run(_SAID, (f"{self._of}{node}",), (after, STEP))
        found = (_ITEM.fullmatch(each) for each in items)
        return after, [(_text(each[2]), _text(each[1])) for each in found if each]

    @understood()
    def find(self, name: str) -> list[Found]:
        """Return the members of a name whose nodes have a lease, the last that has joined first.

        Raises:
            Unreachable: Redis has failed.
        """
        told = self._calls.run(_FIND, (f"{self._name}{name}",), (self._node,))
        found = []
        for at in range(0, len(told), 3):
            member, since, record = told[at : at + 3]
            try:
                presence, node = _presence(name, member, since), parse_node(record, self._key)
                if presence.node != node.id:
                    raise ValueError(f"the record of node {presence.node[:8]} names another one")
                found.append(Found(presence, node))
            except ValueError as error:
                _log.warning("a node that has %s is left out: %s", name, error)
        return sorted(found, key=lambda each: each.presence.since, reverse=True)

    @understood()
    def who(self, prefix: str, longer: bool, most: int) -> list[Presence]:
        """Return up to ``most`` members whose names begin with a prefix, or are equal to it.

        Raises:
            Unreachable: Redis has failed.
        """
        begin = end = b"[" + prefix.encode()
        if longer:
            begin, end = (begin, begin + b"\xff") if prefix else (b"-", b"+")
        found: list[Presence] = []
        while len(found) < most:
            last, told = self._calls.run(
                _WHO, (self._names,), (self._node, self._name, begin, end, STEP)
            )
            for at in range(0, len(told), 3):
                try:
                    found.append(_presence(check_name(told[at].decode()), *told[at + 1 : at + 3]))
                except ValueError as error:
                    _log.warning("a name that Redis has is left out: %s", error)
            before, begin = begin, b"(" + last
            if not last or begin == before:  # the latter if what answers is no Redis
                break
        return found[:most]

    @understood()
    def nodes(self, most: int, names: int) -> Listed:
        """Return up to ``most`` nodes that have a lease, with some names of each, and lost ones.

        Those whose leases end first come first.

        Raises:
            Unreachable: Redis has failed.
        """
        bounds = most, names, MAX_LOST, REMEMBERED * 1000
        count, told, lost = self._calls.run(
            _NODES, (self._nodes, self._seen), (self._node, self._of, *bounds)
        )
        known = [self._known(*each) for each in told]
        return Listed(known, max(0, int(count) - len(known)), list(self._lost(lost)))

    def _lost(self, told: Sequence[tuple[bytes, int]]) -> Iterator[Known]:
        """Yield the nodes whose leases have ended without their leaving, as far as believed."""
        for record, ago in told:
            try:
                node, process = parse_node(record, self._key), parse_process(record, self._key)
            except ValueError as error:
                _log.debug("a node whose lease has ended is left out: %s", error)
                continue
            why = (
                f"its lease ended {ago / 1000:.0f} s ago: it was killed, stands still, or cannot "
                "reach Redis"
            )
            renewed = None if process is None else process.lease + ago / 1000
            yield Known(node.id, None, process, why, renewed, 0, [])

    def _known(self, id: bytes, record: bytes, left: int, members: int, some: list[bytes]) -> Known:
        node = process = renewed = None
        why = ""
        try:
            node = parse_node(record, self._key)
            process = parse_process(record, self._key)
        except ValueError as error:
            why = str(error)
        if process is not None:
            renewed = max(0.0, process.lease - left / 1000)
        items = (_text(each).partition(" ")[2] for each in some)
        shown = sorted(each[:MAX_NAME] for each in items)
        return Known(_text(id), node, process, why, renewed, int(members), shown)

    @understood()
    def sweep(self) -> bool:
        """Remove members of nodes without a lease; return whether there are more.

        Raises:
            Unreachable: Redis has failed.
        """
        prefixes = self._node, self._of, self._name
        removed, left = self._calls.run(_SWEEP, (self._nodes, self._names), (*prefixes, STEP))
        if removed:
            _log.info("%d names of nodes that have died were removed", removed)
        return bool(left)


def _text(told: bytes) -> str:
    return told.decode("utf-8", "replace")


def _presence(name: str, member: bytes, since: bytes) -> Presence:
    """Return what a member of Redis stands for.

    Raises:
        ValueError: it is none.
    """
    found, joined = _MEMBER.fullmatch(member), float(since)
    if found is None or not math.isfinite(joined):
        raise ValueError(f"{member[:80]!r}, which joined at {since[:80]!r}, is no member")
    return Presence(name, found[1].decode(), found[2].decode(), joined)
