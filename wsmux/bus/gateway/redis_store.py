"""Keep a gateway's messages in Redis, so that a crash loses none.

A message that a program pushed is moved, not popped: it stays in a list of taken messages until it
is done. A request leaves that list in the same transaction that stores its signed envelopes, which
stay until they are answered or expire. A message whose move was not confirmed is put back, since
only one gateway uses the lists. A gateway that starts restores taken messages and resends
envelopes without an answer byte for byte; receivers that remember signatures, as those of this
package do, do not run them twice. An answer is pushed to the program's list in the same step that
deletes its backlog record, so it is delivered once, even if several come.

A request of another twin is recorded in the same step that pushes it to its service, and with it,
later, the answer. So it runs once even if a relay delivers it again to the next gateway, and what
was answered is answered again. An upload that is complete is recorded in the same way. A gateway
answers a relay's ping when what came before it was dealt with, so a relay that keeps messages until
then keeps them while a gateway is killed. What another relay loses then stays unanswered: its
caller is told when it expires.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from ...config import KIB
from ...runtime.backoff import Backoff
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import OneShotEvent
from ...storage.redis_client import FAILURES, ResponseError, cause, explain, redis_client
from ..errors import FAILED, BadMessage, BusError
from ..wire.envelope import MAX_LIFE
from .backlog import Waiting, backlog_key, decode_backlog, encode_backlog
from .queue_names import reply_queue

__all__ = ["ASKED", "LOCAL", "REDIS", "REPLY", "RedisStore", "Tracked", "asked_key"]

# Where a gateway and the programs beside it look for Redis by default.
REDIS = "redis://localhost:6379"

# The lists to which programs push requests, and services responses.
LOCAL, REPLY = "msgbus.system.local", "msgbus.system.reply"

OUTBOX = "msgbus.system.outbox."

# What a program asked of a plugin, beside the envelope that the plugin sends for it.
PLAN = "msgbus.system.plan."

# The newest messages that a list keeps; as the reference gateway.
MAX_LIST = 10_000

# Seconds that one read waits for a message, and by which it may delay a close.
LOOK = 0.25

# Seconds after a failed read for which messages may turn up in the list of taken ones that nobody
# has in hand, and between two looks for them.
DOUBT, DOUBT_PAUSE = 6.0, 1.0

# Taken messages to look at: far more than can be in progress.
MAX_TAKEN = 1000

# Seconds that a request is kept after it expired, so that its caller can be told: for as long may a
# gateway be away.
GRACE = 60 * 60

# Requests of other twins that were passed to a service, until they expire: empty, or the answer.
ASKED = "msgbus.system.asked."

# Bytes of an answer that is kept there.
MAX_ANSWER = 64 * KIB

# Seconds between attempts while Redis is down, at first and at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0

# Seconds that unread answers are kept: programs choose the name of the list, and may choose a new
# one for each request.
ANSWER_LIFE = 24 * 60 * 60

# KEYS: backlog, outbox, plan, list. ARGV: message, maximum length and life of the list. Deleting
# the backlog record decides which of several answers is pushed.
ANSWER = """
if redis.call('DEL', KEYS[1]) == 0 then return 0 end
redis.call('DEL', KEYS[2], KEYS[3])
redis.call('LPUSH', KEYS[4], ARGV[1])
redis.call('LTRIM', KEYS[4], 0, ARGV[2] - 1)
redis.call('EXPIRE', KEYS[4], ARGV[3])
return 1
"""

# Seconds that a list of a command is kept after its last request: then all in it have expired.
# Their senders choose the command, so nobody may ever read the list.
LIST_LIFE = MAX_LIFE

# KEYS: the record that it was asked, list. ARGV: life, message, maximum length of the list, its
# life. Returns what is recorded if there is a record, and pushes nothing then.
PUSH_ONCE = """
local known = redis.call('GET', KEYS[1])
if known then return known end
redis.call('SET', KEYS[1], '', 'EX', ARGV[1])
redis.call('LPUSH', KEYS[2], ARGV[2])
redis.call('LTRIM', KEYS[2], 0, ARGV[3] - 1)
redis.call('EXPIRE', KEYS[2], ARGV[4])
return false
"""

# KEYS: the list of taken messages, and theirs. ARGV: the message.
PUT_BACK = """
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 0 end
return redis.call('RPUSH', KEYS[2], ARGV[1])
"""

_log = logger("wsmux.bus")

T = TypeVar("T")


def asked_key(uid: str, source: str) -> str:
    """Return the Redis key for a request of another twin; both texts are the other's choice."""
    return ASKED + sha256(f"{source} {uid}".encode()).hexdigest()


class Tracked(NamedTuple):
    """Hold an envelope that waits for an answer.

    Attributes:
        waiting: its backlog record.
        signed: its signed bytes; empty if another gateway sent it.
        plan: what the plugin of the record needs to go on after a restart.
    """

    waiting: Waiting
    signed: bytes
    plan: bytes = b""


class _Doubt(NamedTuple):
    """Record that a read failed: when to look for its message next, and until when."""

    look: Deadline
    end: Deadline


class RedisStore:
    """Read and write the lists of one gateway. Any thread may use it.

    While Redis is down, methods block and retry until their deadline or ``stop``; a retried command
    may run twice.

    Args:
        url: as ``redis://localhost:6379``.

    Raises:
        ValueError: it is not a Redis URL.
    """

    def __init__(self, url: str) -> None:
        self._redis: Any = redis_client(url)
        self._answer = self._redis.register_script(ANSWER)
        self._put_back = self._redis.register_script(PUT_BACK)
        self._push_once = self._redis.register_script(PUSH_ONCE)
        self._lock = threading.Lock()
        self._in_hand: dict[str, Counter[bytes]] = {LOCAL: Counter(), REPLY: Counter()}
        self._doubts: dict[str, _Doubt] = {}
        self._closing = OneShotEvent()

    def take(self, queue: str) -> bytes | None:
        """Move the oldest message of a list to the taken ones, and return it.

        Blocks for up to a quarter of a second, and returns ``None`` if there was no message. One
        thread for each list may call it.

        A message whose reply is lost has been moved and is in nobody's hands. So after a failure,
        messages among the taken ones that this process does not have are put back.

        Raises:
            BusError: Redis is down; this method does not retry.
        """
        taken = f"{queue}.taken"
        try:
            self._restore(queue, taken)
            raw: bytes | None = self._redis.blmove(queue, taken, LOOK, src="RIGHT", dest="LEFT")
        except FAILURES as error:
            self._doubts[queue] = _Doubt(Deadline(0), Deadline(DOUBT))
            raise BusError(FAILED, explain(error)) from error
        if raw is not None:
            with self._lock:
                self._in_hand[queue][raw] += 1
        return raw

    def _restore(self, queue: str, taken: str) -> None:
        """Put back what a failed read moved; Redis may run that read only now."""
        doubt = self._doubts.get(queue)
        if doubt is None or not doubt.look.expired():
            return
        with self._lock:  # before the look: what is done meanwhile is still in hand here
            in_hand = self._in_hand[queue].copy()
        for raw in self._redis.lrange(taken, 0, MAX_TAKEN - 1):  # the newest first
            if in_hand[raw] > 0:
                in_hand[raw] -= 1
            else:
                self._put_back([taken, queue], [raw])
                _log.warning("a message of a program is taken again: its reading had failed")
        self._doubts[queue] = _Doubt(Deadline(DOUBT_PAUSE), doubt.end)
        if doubt.end.expired():
            del self._doubts[queue]

    def _let_go(self, queue: str, raw: bytes) -> None:
        with self._lock:
            self._in_hand[queue] -= Counter([raw])

    def put_back(self, deadline: Deadline) -> int:
        """Restore taken messages that are not done, oldest first; return their number."""

        def move() -> int:
            count = 0
            for queue in (LOCAL, REPLY):
                while self._redis.lmove(f"{queue}.taken", queue, src="LEFT", dest="RIGHT"):
                    count += 1
            return count

        return self._persist(move, deadline)

    def done(self, queue: str, raw: bytes, deadline: Deadline) -> None:
        """Remove a message from the taken ones."""
        self._persist(lambda: self._redis.lrem(f"{queue}.taken", -1, raw), deadline)
        self._let_go(queue, raw)

    def sending(
        self,
        raw: bytes,
        tracked: Sequence[Tracked],
        told: Sequence[tuple[str, bytes]],
        deadline: Deadline,
    ) -> None:
        """Replace a taken request by its envelopes, and push the errors of its other destinations.

        Args:
            raw: the request.
            tracked: the envelopes that are about to be sent.
            told: pairs of a list and a message to push to it.
            deadline: when to give up while Redis is down.
        """

        def replace() -> None:
            with self._redis.pipeline(transaction=True) as pipe:
                for each in tracked:
                    uid, life = each.waiting.uid, each.waiting.life + GRACE
                    pipe.set(backlog_key(uid), encode_backlog(each.waiting), ex=life)
                    pipe.set(OUTBOX + uid, each.signed, ex=life)
                    if each.plan:
                        pipe.set(PLAN + uid, each.plan, ex=life)
                for queue, message in told:
                    pipe.lpush(queue, message).ltrim(queue, 0, MAX_LIST - 1)
                    pipe.expire(queue, ANSWER_LIFE)
                pipe.lrem(f"{LOCAL}.taken", -1, raw)
                pipe.execute()

        self._persist(replace, deadline)
        self._let_go(LOCAL, raw)

    def tracked(self, uid: str, deadline: Deadline) -> Tracked | None:
        """Return an unanswered request, or ``None``."""
        keys = [backlog_key(uid), OUTBOX + uid, PLAN + uid]
        backlog, signed, plan = self._persist(lambda: self._redis.mget(keys), deadline)
        if backlog is None:
            return None
        return Tracked(decode_backlog(backlog), signed or b"", plan or b"")

    def answer(self, waiting: Waiting, message: bytes, deadline: Deadline) -> bool:
        """Push an answer to the list that waits for it; ``False`` if it was already answered.

        Raises:
            BusError: the list's name is not allowed; another gateway may have stored it.
        """
        try:
            queue = reply_queue(waiting.reply_to)
        except ValueError as error:
            raise BusError(FAILED, str(error)) from error
        uid = waiting.uid
        keys = [backlog_key(uid), OUTBOX + uid, PLAN + uid, queue]
        return bool(
            self._persist(lambda: self._answer(keys, [message, MAX_LIST, ANSWER_LIFE]), deadline)
        )

    def withdraw(self, queue: str, message: bytes, deadline: Deadline) -> bool:
        """Remove a message from a list; return whether it was still there."""
        return bool(self._persist(lambda: self._redis.lrem(queue, -1, message), deadline))

    def push_once(
        self, asked: str, life: int, queue: str, message: bytes, deadline: Deadline
    ) -> bytes | None:
        """Push a request of another twin to a list, unless that was done before.

        The list keeps the newest ``MAX_LIST``, for ``LIST_LIFE`` after the last one.

        Args:
            asked: the name of the request, from ``asked_key``.
            life: seconds until it expires, for which this is remembered, over restarts.
            queue: the list.
            message: the request as its service gets it.
            deadline: when to give up while Redis is down.

        Returns:
            ``None`` if it was pushed; else the signed answer, empty if it is not known.
        """
        keys, values = [asked, queue], (max(1, life), message, MAX_LIST, LIST_LIFE)
        known: bytes | None = self._persist(lambda: self._push_once(keys, values), deadline)
        return known

    def record(self, asked: str, life: int, deadline: Deadline) -> None:
        """Record a request of another twin as ``push_once`` does, without a list to push it to."""
        self._persist(lambda: self._redis.set(asked, b"", ex=max(1, life), nx=True), deadline)

    def is_recorded(self, asked: str, deadline: Deadline) -> bool:
        """Return whether a request of another twin was recorded, and has not expired."""
        return bool(self._persist(lambda: self._redis.exists(asked), deadline))

    def answered(self, asked: str, signed: bytes, deadline: Deadline) -> None:
        """Remember the answer to a request, unless it is long, until the request expires."""
        if len(signed) <= MAX_ANSWER:
            self._persist(lambda: self._redis.set(asked, signed, xx=True, keepttl=True), deadline)

    def unanswered(self, deadline: Deadline) -> Iterator[Tracked]:
        """Yield the envelopes, sent or about to be, that have no answer."""
        keys = self._persist(lambda: list(self._redis.scan_iter(f"{OUTBOX}*", 1000)), deadline)
        for key in keys:
            uid = key.decode(errors="replace").removeprefix(OUTBOX)
            try:
                found = self.tracked(uid, deadline)
            except BadMessage as error:
                _log.warning("the request %r is not sent again: %s", uid, error)
                continue
            if found is not None and found.signed:
                yield found

    def stop(self) -> None:
        """Stop retrying while Redis is down."""
        self._closing.set()

    def close(self) -> None:
        """Close the connections, after the last use."""
        self.stop()
        self._redis.close()

    def pause(self, seconds: float) -> bool:
        """Wait for so many seconds, or until ``stop``; return whether it was not stopped."""
        return not self._closing.wait(seconds)

    def _persist(self, action: Callable[[], T], deadline: Deadline) -> T:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=0.5)
        while True:
            try:
                return action()
            except ResponseError as error:
                raise BusError(FAILED, f"Redis refused: {cause(error)}") from error
            except FAILURES as error:
                _log.warning("%s; retrying", explain(error))
                left, delay = deadline.remaining(), backoff.next()
                if left == 0 or not self.pause(delay if left is None else min(left, delay)):
                    raise BusError(FAILED, explain(error)) from error
