"""Keep the claims of names in Redis, for all relays that share it.

Keys. ``wsmux:name:NAME`` is a hash with the owner, when it claimed the name, and a field for each
worker, with when it joined and until when its relay vouches for it. ``wsmux:names`` and
``wsmux:names:TWIN`` are sorted sets of all names and of those of a twin, by when their claims end.
Each relay renews the claims of its workers every ``RENEWAL`` seconds. The hash ends by itself,
``GRACE`` seconds after the last worker has left, or its relay has renewed it for the last time. So
nothing is left of a relay that was killed. Times are those of Redis.
"""

from __future__ import annotations

import json
import threading
import uuid
from typing import TYPE_CHECKING, Any

from ...runtime import clock
from ...runtime.logs import logger
from ...storage.redis_client import FAILURES, explain
from ..errors import NAME_TAKEN, TOO_MANY
from ..wire.names import Presence, Worker
from .control import Refusal
from .name_store import GRACE, MAX_NAMES, MAX_NAMES_OF_TWIN, MAX_WORKERS, NameStore, taken
from .queues import QueueUnavailable

if TYPE_CHECKING:
    import redis

__all__ = ["RedisNames"]

PREFIX = "wsmux:name:"
ALL = "wsmux:names"

# Seconds between two renewals, and for which one holds.
RENEWAL, LEASE = 3.0, 10.0

# Seconds for which a claim is believed when a request to a name is routed, and how many of them.
GLANCE, MAX_GLANCES = 1.0, 10_000

# KEYS: the hash, the set of all names, that of the twin. ARGV: name, owner, field; seconds of the
# grace and of the lease; bounds of names, of the twin's names, of workers. Returns what was wrong,
# if anything, and the hash.
JOIN = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[2] then return {'taken', owner} end
if not owner then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
  if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[6]) then return {'names', ARGV[6]} end
  if redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[7]) then return {'own', ARGV[7]} end
  redis.call('HSET', KEYS[1], 'owner', ARGV[2], 'since', string.format('%.6f', now))
end
local known = redis.call('HGET', KEYS[1], ARGV[3])
local since = known and string.match(known, '^%S+') or string.format('%.6f', now)
if not known then
  local every = redis.call('HGETALL', KEYS[1])
  local count = 0
  for i = 1, #every, 2 do
    if string.sub(every[i], 1, 1) == '[' then
      if tonumber(string.match(every[i + 1], '%S+$')) <= now then
        redis.call('HDEL', KEYS[1], every[i])
      else
        count = count + 1
      end
    end
  end
  if count >= tonumber(ARGV[8]) then return {'workers', ARGV[8]} end
end
redis.call('HSET', KEYS[1], ARGV[3], since .. ' ' .. string.format('%.6f', now + ARGV[5]))
redis.call('PEXPIRE', KEYS[1], math.floor(ARGV[4] * 1000))
redis.call('ZADD', KEYS[2], now + ARGV[4], ARGV[1])
redis.call('ZADD', KEYS[3], now + ARGV[4], ARGV[1])
redis.call('EXPIRE', KEYS[2], 3600)
redis.call('EXPIRE', KEYS[3], 3600)
return {'', string.format('%.6f', now), redis.call('HGETALL', KEYS[1])}
"""

# KEYS: as above. ARGV: name, owner, field, seconds of the grace.
LEAVE = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[2] then return 0 end
if redis.call('HDEL', KEYS[1], ARGV[3]) == 0 then return 0 end
redis.call('PEXPIRE', KEYS[1], math.floor(ARGV[4] * 1000))
redis.call('ZADD', KEYS[2], now + ARGV[4], ARGV[1])
redis.call('ZADD', KEYS[3], now + ARGV[4], ARGV[1])
return 1
"""

# KEYS: the hash. Returns the time, and the hash.
LOOK = """
local time = redis.call('TIME')
return {string.format('%.6f', time[1] + time[2] / 1000000), redis.call('HGETALL', KEYS[1])}
"""

_log = logger("wsmux.bus")


class RedisNames(NameStore):
    """Keep the claims in Redis; see the module.

    Args:
        client: made by ``redis_client``; owned by this object.
        grace: seconds for which a name stays claimed without workers.
        max_names, max_names_of_twin, max_workers: the bounds.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        grace: float = GRACE,
        max_names: int = MAX_NAMES,
        max_names_of_twin: int = MAX_NAMES_OF_TWIN,
        max_workers: int = MAX_WORKERS,
    ) -> None:
        self.grace = grace
        self._client = client
        self._bounds = max_names, max_names_of_twin, max_workers
        self._relay = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._mine: dict[tuple[str, int, str], None] = {}  # name, owner and field of each worker
        self._glances: dict[str, tuple[Presence, float]] = {}
        self._next_renewal = 0.0

    def join(self, name: str, owner: int, session: str | None, connection: int = 0) -> Presence:
        field = self._field(session, connection)
        told = self._eval(JOIN, 3, *self._join_arguments(name, owner, field))
        self._refuse(name, told)
        with self._lock:
            self._mine[name, owner, field] = None
            self._glances.pop(name, None)
        found = _presence(name, told[1], told[2])
        assert found is not None  # it was made in the same step
        return found

    def leave(self, name: str, owner: int, session: str | None, connection: int = 0) -> None:
        field = self._field(session, connection)
        with self._lock:
            self._mine.pop((name, owner, field), None)
            self._glances.pop(name, None)
        self._eval(LEAVE, 3, *_keys(name, owner), name, owner, field, self.grace)

    def look(self, name: str) -> Presence | None:
        now, fields = self._eval(LOOK, 1, PREFIX + name)
        found = _presence(name, now, fields)
        with self._lock:
            if len(self._glances) >= MAX_GLANCES:
                self._glances.clear()
            if found is None:
                self._glances.pop(name, None)
            else:
                self._glances[name] = found, clock.monotonic() + GLANCE
        return found

    def glance(self, name: str) -> Presence | None:
        with self._lock:
            known = self._glances.get(name)
        if known is not None and clock.monotonic() < known[1]:
            return known[0]
        return self.look(name)

    def keep(self) -> None:
        now = clock.monotonic()
        with self._lock:
            if now < self._next_renewal:
                return
            self._next_renewal = now + RENEWAL
            mine = list(self._mine)
        if not mine:
            return
        pipeline: Any = self._client.pipeline(transaction=False)
        for name, owner, field in mine:
            pipeline.execute_command("EVAL", JOIN, 3, *self._join_arguments(name, owner, field))
        try:
            results = pipeline.execute()
        except FAILURES as error:
            raise QueueUnavailable(explain(error)) from error
        for (name, _, _), told in zip(mine, results, strict=True):
            try:
                self._refuse(name, told)
            except Refusal as refusal:  # Redis has lost the claim, and somebody was faster
                _log.warning("a worker of %r lost its claim: %s", name, refusal.text)

    def close(self) -> None:
        self._client.close()

    def _field(self, session: str | None, connection: int) -> str:
        return json.dumps([self._relay, session, connection])

    def _join_arguments(self, name: str, owner: int, field: str) -> tuple[str | float, ...]:
        return *_keys(name, owner), name, owner, field, self.grace, LEASE, *self._bounds

    def _eval(self, script: str, keys: int, *arguments: str | float) -> Any:
        client: Any = self._client
        try:
            return client.execute_command("EVAL", script, keys, *arguments)
        except FAILURES as error:
            raise QueueUnavailable(f"names are not known: {explain(error)}") from error

    def _refuse(self, name: str, told: list[Any]) -> None:
        what, bound = bytes(told[0]).decode(), bytes(told[1]).decode()
        match what:
            case "taken":
                raise Refusal(NAME_TAKEN, taken(name, int(bound)))
            case "names":
                raise Refusal(TOO_MANY, f"this relay keeps at most {bound} names")
            case "own":
                raise Refusal(TOO_MANY, f"this twin has {bound} names already")
            case "workers":
                raise Refusal(TOO_MANY, f"{name!r} has {bound} workers already")


def _keys(name: str, owner: int) -> tuple[str, str, str]:
    return PREFIX + name, ALL, f"{ALL}:{owner}"


def _presence(name: str, time: Any, flat: list[Any]) -> Presence | None:
    """Read a hash; workers whose relay has not vouched for them any more are left out."""
    now = float(bytes(time))
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    owner = fields.pop(b"owner", None)
    if owner is None:
        return None
    claimed = float(fields.pop(b"since"))
    workers: dict[str | None, float] = {}
    for field, value in fields.items():
        since, _, until = value.partition(b" ")
        if float(until) > now:
            session = json.loads(field)[1]
            workers[session] = min(float(since), workers.get(session, float(since)))
    joined = sorted(workers.items(), key=lambda each: each[1])
    return Presence(name, int(owner), claimed, tuple(Worker(*each) for each in joined))
