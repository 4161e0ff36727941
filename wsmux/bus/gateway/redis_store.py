"""Keep a gateway's messages in Redis, so that a crash loses none.

What programs push is moved, not popped: to a list of what was taken, where it stays until it is
done. A request leaves that list in one transaction with the envelopes made of it, signed and as
they travel, which stay until they are answered or expire. A gateway that starts puts back what was
taken and sends again, byte for byte, what has no answer; receivers that remember signatures, as
those here, run none of it twice. An answer reaches the program in one step with the end of its
backlog, so it is given once, whatever comes twice.

What a relay has handed over and was not put into Redis when the gateway died is lost, as RMB has no
receipts: a request of others goes unanswered until it expires. An answer that was lost so comes
again, where the other side remembers it, when the request is sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from ...runtime.backoff import Backoff
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ..errors import FAILED, BadMessage, BusError
from ..relay.redis_client import FAILURES, ResponseError, cause, explain, redis_client
from .backlog import Waiting, backlog_key, decode_backlog, encode_backlog
from .queue_names import reply_queue

__all__ = ["LOCAL", "REPLY", "RedisStore", "Tracked"]

# Where programs push requests, and services their answers.
LOCAL, REPLY = "msgbus.system.local", "msgbus.system.reply"

OUTBOX = "msgbus.system.outbox."

# Messages that a list keeps, the newest; as the original gateway.
MAX_LIST = 10_000

# Seconds that a look into an empty list takes, which is how long a close may wait for it.
LOOK = 0.25

# Seconds for which a request is kept beyond its life, so that its end can be told.
GRACE = 60

# Seconds between attempts while Redis is gone.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0

# Seconds for which answers that nobody fetches stay: their list has the name that a program chose,
# and each program may choose a new one for each request.
ANSWER_LIFE = 24 * 60 * 60

# KEYS: backlog, outbox, list. ARGV: message, length and life of the list. Only whom ends the
# backlog tells.
ANSWER = """
if redis.call('DEL', KEYS[1]) == 0 then return 0 end
redis.call('DEL', KEYS[2])
redis.call('LPUSH', KEYS[3], ARGV[1])
redis.call('LTRIM', KEYS[3], 0, ARGV[2] - 1)
redis.call('EXPIRE', KEYS[3], ARGV[3])
return 1
"""

_log = logger("wsmux.bus")

T = TypeVar("T")


class Tracked(NamedTuple):
    """An envelope that waits for an answer: for whom, and as it travels."""

    waiting: Waiting
    signed: bytes


class RedisStore:
    """Work with the lists of one gateway. Any thread may use it.

    A method waits while Redis is gone, and tries again until its deadline or the close; what it did
    then is done at least once.

    Args:
        url: as ``redis://localhost:6379``.

    Raises:
        ValueError: it is no such URL.
    """

    def __init__(self, url: str) -> None:
        self._redis: Any = redis_client(url)
        self._answer = self._redis.register_script(ANSWER)
        self._closing = threading.Event()

    def take(self, queue: str) -> bytes | None:
        """Move the oldest message of a list to what was taken, and return it.

        Waits for one for a quarter of a second, and returns ``None`` if none came.

        Raises:
            BusError: Redis is gone; this does not wait for it.
        """
        taken = f"{queue}.taken"
        try:
            raw: bytes | None = self._redis.blmove(queue, taken, LOOK, src="RIGHT", dest="LEFT")
        except FAILURES as error:
            raise BusError(FAILED, explain(error)) from error
        return raw

    def put_back(self, deadline: Deadline) -> int:
        """Put back what was taken and not done before, the oldest first; return how many."""

        def move() -> int:
            count = 0
            for queue in (LOCAL, REPLY):
                while self._redis.lmove(f"{queue}.taken", queue, src="LEFT", dest="RIGHT"):
                    count += 1
            return count

        return self._persist(move, deadline)

    def done(self, queue: str, raw: bytes, deadline: Deadline) -> None:
        """Forget a message that was taken."""
        self._persist(lambda: self._redis.lrem(f"{queue}.taken", -1, raw), deadline)

    def sending(
        self,
        raw: bytes,
        tracked: Sequence[Tracked],
        told: Sequence[tuple[str, bytes]],
        deadline: Deadline,
    ) -> None:
        """Replace a request that was taken by its envelopes, and tell what failed of it.

        Args:
            raw: the request.
            tracked: what is to be sent now.
            told: lists, and what is pushed to each.
            deadline: when to give up while Redis is gone.
        """

        def replace() -> None:
            with self._redis.pipeline(transaction=True) as pipe:
                for each in tracked:
                    uid, life = each.waiting.uid, each.waiting.life + GRACE
                    pipe.set(backlog_key(uid), encode_backlog(each.waiting), ex=life)
                    pipe.set(OUTBOX + uid, each.signed, ex=life)
                for queue, message in told:
                    pipe.lpush(queue, message).ltrim(queue, 0, MAX_LIST - 1)
                    pipe.expire(queue, ANSWER_LIFE)
                pipe.lrem(f"{LOCAL}.taken", -1, raw)
                pipe.execute()

        self._persist(replace, deadline)

    def tracked(self, uid: str, deadline: Deadline) -> Tracked | None:
        """Return a request without an answer; ``signed`` is empty if another gateway sent it."""
        backlog, signed = self._persist(
            lambda: self._redis.mget(backlog_key(uid), OUTBOX + uid), deadline
        )
        return None if backlog is None else Tracked(decode_backlog(backlog), signed or b"")

    def answer(self, waiting: Waiting, message: bytes, deadline: Deadline) -> bool:
        """Push an answer to the list that waits for it; false if it was answered before.

        Raises:
            BusError: no list may have that name; another gateway may have written it down.
        """
        try:
            queue = reply_queue(waiting.reply_to)
        except ValueError as error:
            raise BusError(FAILED, str(error)) from error
        keys = [backlog_key(waiting.uid), OUTBOX + waiting.uid, queue]
        return bool(
            self._persist(lambda: self._answer(keys, [message, MAX_LIST, ANSWER_LIFE]), deadline)
        )

    def push(self, queue: str, message: bytes, deadline: Deadline) -> None:
        """Push a message to a list, and drop what makes it too long."""

        def push() -> None:
            with self._redis.pipeline(transaction=True) as pipe:
                pipe.lpush(queue, message).ltrim(queue, 0, MAX_LIST - 1).execute()

        self._persist(push, deadline)

    def unanswered(self, deadline: Deadline) -> Iterator[Tracked]:
        """Yield what was sent, or was to be, and has no answer."""
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
        """Wait no longer for a Redis that is gone."""
        self._closing.set()

    def close(self) -> None:
        """Let go of the connections, once nobody uses them."""
        self.stop()
        self._redis.close()

    def pause(self, seconds: float) -> bool:
        """Wait, unless it is stopped; tell whether it is not."""
        return not self._closing.wait(seconds)

    def _persist(self, action: Callable[[], T], deadline: Deadline) -> T:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=0.5)
        while True:
            try:
                return action()
            except ResponseError as error:
                raise BusError(FAILED, f"Redis refused: {cause(error)}") from error
            except FAILURES as error:
                _log.warning("%s; it is tried again", explain(error))
                left, delay = deadline.remaining(), backoff.next()
                if left == 0 or not self.pause(delay if left is None else min(left, delay)):
                    raise BusError(FAILED, explain(error)) from error
