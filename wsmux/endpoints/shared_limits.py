"""Count the connections and streams of users together with other processes, in a Redis.

There is one key for each user, ``wsmux:limits:NAMESPACE:HASH``, whose hash is that of the name: so
no name can be that of another key, and each is equally long. It is a sorted set of times, in
milliseconds of Redis's own clock, whose members are

- a connection: when its lease ends, which its process renews while it lives;
- ``connects`` and ``streams``: when the whole rate will be free again, as in ``user_limits``;
- ``clock``: the time of the last script. A clock that stands before it was put back, and with it
  all other times are: otherwise the user would be shut out until it is that late again.

What has passed is removed by the next script, and the key ends with its last time. So a user has at
most as many members as connections, and these three. What others have written there is removed,
too: a key of another type, and times that are further ahead than any of ours.

One thread of a process asks, for all that wait at once, in one round trip. A door waits half a
second for it at most. When Redis has failed or not answered by then, nobody asks for five seconds,
and each process counts for itself. Streams are not asked for, since nothing may wait where they
come in: the process counts them, reports them, and learns what all have used. What several
processes have let in meanwhile is counted, too, so that it is missing later.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..config import UserLimits
from ..exceptions import NoThreadError
from ..runtime import clock, fork
from ..runtime.logs import logger
from ..runtime.parking import Condition, OneShotEvent
from ..runtime.threads import daemon_thread, start_thread
from ..storage.redis_client import explain, redis_client, run_together

if TYPE_CHECKING:
    import redis

__all__ = ["Answer", "SharedCounts"]

# Seconds that a door waits for an answer.
ASK_TIME = 0.5

# Seconds for which nobody asks a Redis that has failed.
PAUSE = 5.0

# Seconds of the lease of a connection, and after which it is renewed.
LEASE = 15.0
RENEWAL = 5.0

# Seconds between two reports of streams.
REPORT = 0.05

VERDICTS = ("in", "returns", "full", "often")

# Scripts in one round trip, and questions that may wait for one.
STEP = 128
MAX_WAITING = 4096

# Seconds after which a thread with nothing to renew ends, and that the end may take.
IDLE = 10.0
CLOSING = 1.0

# Of both scripts: the time, and the set without what has passed, or is further ahead than the ten
# minutes that are remembered.
_BEGIN = """
local t = redis.call('TIME')
local now = t[1] * 1000 + t[2] / 1000
local key = KEYS[1]
if redis.call('TYPE', key).ok ~= 'zset' then redis.call('DEL', key) end
local back = tonumber(redis.call('ZSCORE', key, 'clock') or now) - now
if back > 1000 and back < 1e13 then
  for _, name in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    redis.call('ZINCRBY', key, -back, name)
  end
end
redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
redis.call('ZREMRANGEBYSCORE', key, now + 700000, '+inf')
redis.call('ZADD', key, now, 'clock')
local function due(name) return tonumber(redis.call('ZSCORE', key, name) or now) end
local function finish(...)
  local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  if last[2] then redis.call('PEXPIRE', key, math.ceil(last[2] - now) + 1) end
  return {...}
end
local function ms(time) return string.format('%.0f', math.ceil(time)) end
"""

# KEYS: the user. ARGV: a connection, milliseconds of its lease, the most connections and those of
# a minute (0 for any number), whether it may return. Returns what became of it, and milliseconds:
# 'in' and how far streams are ahead; 'often' and how long to wait; 'full'; 'returns'.
_ENTER = f"""{_BEGIN}
local id, lease = ARGV[1], tonumber(ARGV[2])
local most, rate = tonumber(ARGV[3]), tonumber(ARGV[4])
local connects = due('connects') + (rate > 0 and 60000 / rate or 0)
if rate > 0 and connects - now > 60000.001 then return {{'often', ms(connects - now - 60000)}} end
local full = false
if most > 0 then
  local others = redis.call('ZCARD', key) - 1
  for _, name in ipairs({{'connects', 'streams'}}) do
    if redis.call('ZSCORE', key, name) then others = others - 1 end
  end
  full = others >= most
  if full and ARGV[5] ~= '1' then return {{'full', '0'}} end
  if not full then redis.call('ZADD', key, now + lease, id) end
end
if rate > 0 then redis.call('ZADD', key, connects, 'connects') end
if full then return finish('returns', '0') end
return finish('in', ms(due('streams') - now))
"""

# KEYS: the user. ARGV: milliseconds of a lease, the streams of a minute (0 for any number), the
# streams since the last report, milliseconds by which the rate of connections is free earlier, how
# many connections have ended, these, and those that are open. Returns the milliseconds by which
# streams are ahead. Ten minutes are remembered at most.
_REPORT = f"""{_BEGIN}
local lease, rate, count = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
for at = 6, 5 + ARGV[5] do redis.call('ZREM', key, ARGV[at]) end
for at = 6 + ARGV[5], #ARGV do redis.call('ZADD', key, now + lease, ARGV[at]) end
if rate > 0 and count > 0 then
  local ahead = math.min(due('streams') - now + count * 60000 / rate, 600000)
  redis.call('ZADD', key, now + ahead, 'streams')
end
local connects = due('connects') - ARGV[4]
if ARGV[4] ~= '0' and connects > now then redis.call('ZADD', key, connects, 'connects') end
if ARGV[4] ~= '0' and connects <= now then redis.call('ZREM', key, 'connects') end
return finish(ms(due('streams') - now))
"""

_log = logger("wsmux")


class Answer(NamedTuple):
    """What Redis says of a connection.

    Attributes:
        verdict: ``"in"``, ``"returns"``, ``"full"`` or ``"often"``.
        seconds: to wait, or for how long the streams of the user are used up.
    """

    verdict: str
    seconds: float


class _Question:
    """A connection that waits at the door."""

    def __init__(self, user: str, connection: str, may_return: bool) -> None:
        self.user, self.connection, self.may_return = user, connection, may_return
        self.answered = OneShotEvent()
        self.answer: Answer | None = None
        self.given_up = False


class _Report(NamedTuple):
    """What is told of a user."""

    user: str
    streams: int
    returned: int
    ended: list[str]
    open: list[str]


class SharedCounts:
    """Share the counts of one ``Users`` with those of other processes.

    Args:
        limits: with the URL of a Redis.
        learn: called with a user and the seconds by which its streams are ahead.

    Raises:
        ImportError: the client of Redis is not installed.
        ValueError: the URL is not one of a Redis.
    """

    def __init__(self, limits: UserLimits, learn: Callable[[str, float], object]) -> None:
        assert limits.redis is not None
        self._limits = limits
        self._url = limits.redis
        self._learn = learn
        try:
            redis_client(self._url).close()  # it has not connected
        except ValueError as error:
            raise ValueError(f"UserLimits.redis: {error}") from None
        self.forked()
        fork.register(self)

    def forked(self) -> None:
        """Start over: a forked child has no connections, and no thread."""
        self._process = os.urandom(8).hex()
        self._numbers = itertools.count()
        self._changed = Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._closed = False
        self._questions: deque[_Question] = deque()
        self._open: dict[str, set[str]] = {}  # the connections of each user
        self._ended: dict[str, list[str]] = {}  # and those to be removed
        self._streams: dict[str, int] = {}  # of each user, not reported yet
        self._returned: dict[str, int] = {}  # connections that were none, as the client returned
        self._stale: set[str] = set()  # users whose connections are to be told
        self._renewal = self._reported = 0.0
        self._quiet_until = 0.0

    # What is counted

    def enter(self, user: str, may_return: bool) -> tuple[str, Answer | None]:
        """Ask for a connection; return its id, and ``None`` if Redis has not answered.

        Blocks for half a second at most. Unless the verdict is ``"full"`` or ``"often"``, the
        connection is counted until ``leave``.
        """
        connection = f"{self._process}{next(self._numbers):x}"
        question = _Question(user, connection, may_return)
        if self._ask(question) and not question.answered.wait(ASK_TIME):
            self._give_up(question)
        answer = question.answer
        if answer is None or answer.verdict == "in":
            with self._changed:
                if not self._closed:
                    self._open.setdefault(user, set()).add(connection)
                    if answer is None:
                        self._stale.add(user)
                    self._changed.notify_all()  # there is a lease to be renewed
            self._begin()
        return connection, answer

    def leave(self, user: str, connection: str) -> None:
        """Stop counting a connection. Never blocks."""
        with self._changed:
            known = self._open.get(user, set())
            if self._closed or connection not in known:
                return
            known.discard(connection)
            if not known:
                del self._open[user]
            self._ended.setdefault(user, []).append(connection)
            self._changed.notify_all()

    def took_stream(self, user: str) -> None:
        """Count a stream. Never blocks."""
        with self._changed:
            if self._closed:
                return
            if not self._streams:
                self._changed.notify_all()
            self._streams[user] = self._streams.get(user, 0) + 1

    def give_back(self, user: str) -> None:
        """Give back what a connection has taken of the rate of connections. Never blocks."""
        with self._changed:
            if self._closed:
                return
            self._returned[user] = self._returned.get(user, 0) + 1
            self._changed.notify_all()
        self._begin()  # it may have ended, as a client that may only return has no lease

    def close(self) -> None:
        """Remove what this process has counted. Blocks for a second at most; may be repeated."""
        with self._changed:
            self._closed = True
            for user, connections in self._open.items():
                self._ended.setdefault(user, []).extend(connections)
            self._open.clear()
            thread = self._thread
            self._changed.notify_all()
        # One that another thread is about to start cannot be waited for; it ends by itself.
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join(CLOSING)

    def _ask(self, question: _Question) -> bool:
        """Hand a question to the thread; return false if nobody is to be asked now."""
        with self._changed:
            if self._closed or clock.monotonic() < self._quiet_until:
                return False
            if len(self._questions) >= MAX_WAITING:
                return False
            self._questions.append(question)
            self._changed.notify_all()
        return self._begin()

    def _begin(self) -> bool:
        """Start the thread, unless there is one; return false if that is impossible."""
        if self._thread is not None or self._closed:
            return True
        try:
            thread = daemon_thread(self._work, name="wsmux-user-limits")
            with self._changed:
                if self._thread is not None or self._closed:
                    return True
                self._thread = thread
            start_thread(thread)
        except NoThreadError as error:
            with self._changed:
                self._thread = None
                self._questions.clear()
            self._failed(str(error))
            return False
        return True

    def _give_up(self, question: _Question) -> None:
        question.given_up = True
        self._be_quiet(f"Redis has not answered in {ASK_TIME:g} s")

    def _failed(self, why: str) -> None:
        """Forget what cannot be told, and ask nobody for a while."""
        with self._changed:
            self._ended.clear()  # their leases end
            self._streams.clear()
            self._returned.clear()
            self._stale.update(self._open)
        self._be_quiet(why)

    def _be_quiet(self, why: str) -> None:
        self._quiet_until = clock.monotonic() + PAUSE
        _log.warning("user limits are counted in this process alone for %g s: %s", PAUSE, why)

    # The thread

    def _work(self) -> None:
        with redis_client(self._url, connections=1) as client:
            while True:
                asked, told = self._next()
                if not asked and not told:
                    break
                try:
                    self._exchange(client, asked, told)
                except Exception as error:  # of any type, for a reply that no Redis gives
                    self._failed(explain(error))
                finally:
                    for question in asked:
                        question.answered.set()

    def _next(self) -> tuple[list[_Question], list[_Report]]:
        """Wait for something to ask or tell, and return it; nothing when the thread is to end."""
        idle_until = clock.monotonic() + IDLE
        with self._changed:
            while True:
                now = clock.monotonic()
                asked = self._take_questions()
                told = self._take_reports(now)
                if asked or told:
                    return asked, told
                busy = self._open or self._ended or self._streams or self._returned
                if self._closed or (now >= idle_until and not busy):
                    self._thread = None
                    return [], []
                self._changed.wait(max(0.001, self._due(idle_until) - now))

    def _due(self, idle_until: float) -> float:
        """Return when there may be something to tell, if nothing changes."""
        times = [self._quiet_until] if self._stale or self._ended or self._returned else []
        if self._streams:
            times.append(max(self._quiet_until, self._reported + REPORT))
        times.append(max(self._quiet_until, self._renewal) if self._open else idle_until)
        return min(times)

    def _take_questions(self) -> list[_Question]:
        asked: list[_Question] = []
        while self._questions and len(asked) < STEP:
            question = self._questions.popleft()
            if not question.given_up:
                asked.append(question)
        return asked

    def _take_reports(self, now: float) -> list[_Report]:
        if now < self._quiet_until and not self._closed:
            return []
        if now >= self._renewal:
            self._stale.update(self._open)
            self._renewal = now + RENEWAL
        users = set(self._stale) | set(self._ended) | set(self._returned)
        if now >= self._reported + REPORT or self._closed:
            users |= set(self._streams)
        told = []
        for user in itertools.islice(users, STEP):
            self._stale.discard(user)
            if user in self._streams:
                self._reported = now
            told.append(
                _Report(
                    user,
                    self._streams.pop(user, 0),
                    self._returned.pop(user, 0),
                    self._ended.pop(user, []),
                    sorted(self._open.get(user, ())),
                )
            )
        return told

    def _exchange(self, client: redis.Redis, asked: list[_Question], told: list[_Report]) -> None:
        """Run the scripts, and hand out what they return."""
        # Reports come first: who has left may come in again at once.
        commands = [self._report_command(each) for each in told]
        commands += [self._enter_command(each) for each in asked]
        results = run_together(client, commands)
        for result in results:
            if isinstance(result, Exception):
                raise result
        for report, (milliseconds,) in zip(told, results, strict=False):
            self._learn(report.user, int(_text(milliseconds)) / 1000)
        for question, result in zip(asked, results[len(told) :], strict=True):
            verdict, milliseconds = (_text(part) for part in result)
            if verdict not in VERDICTS:
                raise ValueError(f"the verdict {verdict!r} is none of {', '.join(VERDICTS)}")
            answer = Answer(verdict, int(milliseconds) / 1000)
            if verdict == "in":
                self._learn(question.user, answer.seconds)
            question.answer = answer
        if self._quiet_until:
            self._quiet_until = 0.0
            _log.info("user limits are shared with other processes again")

    def _enter_command(self, question: _Question) -> tuple[Any, ...]:
        return (
            "EVAL",
            _ENTER,
            1,
            self._key(question.user),
            question.connection,
            int(LEASE * 1000),
            self._limits.connections or 0,
            self._limits.connects_per_minute or 0,
            int(question.may_return),
        )

    def _report_command(self, report: _Report) -> tuple[Any, ...]:
        counted = self._limits.connections is not None
        rate = self._limits.connects_per_minute
        earlier = 0 if rate is None else report.returned * 60_000 / rate
        return (
            "EVAL",
            _REPORT,
            1,
            self._key(report.user),
            int(LEASE * 1000),
            self._limits.streams_per_minute or 0,
            report.streams,
            earlier,
            len(report.ended),
            *report.ended,
            *(report.open if counted else ()),
        )

    def _key(self, user: str) -> str:
        name = hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()
        return f"wsmux:limits:{self._limits.namespace}:{name}"


def _text(part: Any) -> str:
    return part.decode() if isinstance(part, bytes) else str(part)
