"""Share the queues of names among relays, as consumer groups of their Redis streams.

The stream of a name is that of a session, with a group whose consumers are the relays at which the
name has workers. An entry that a relay has read is *pending*: no other relay gets it, until it is
acknowledged and deleted. A relay renews what it has pending every ``RENEWAL`` seconds. What was not
renewed for ``LEASE``, as after the end of its relay, is claimed by any other; what a relay gives
back is claimed at once. So every entry is with one relay, or free, and leaves Redis only when it is
acknowledged, or with its stream, an hour after the last entry was added.

Relays tell each other of new entries by a stream of their own, the *bell*; what a known relay adds,
which rings none, is found within ``LOOK``.

Threads and locks: one thread, started with the first mailbox, reads what mailboxes want, claims,
renews and gives back. Another one waits for the bell. They share the lock of the queues; under it
there is no I/O. The writer of ``redis_io`` acknowledges and deletes.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...runtime import clock
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Condition, OneShotEvent
from ...runtime.threads import daemon_thread, start_thread
from ..wire.address import Address
from .queues import LIFE, Mailbox, QueuedEnvelope
from .redis_client import FAILURES, ResponseError, cause, is_wrong_type
from .redis_io import (
    COUNT,
    FEW,
    FIELD,
    GROUP,
    MANY_BYTES,
    RINGER,
    RUNG,
    SHARED_BELL,
    Report,
    RetryPause,
    Writer,
)

if TYPE_CHECKING:
    import redis

__all__ = ["SharedMailboxes"]

# Seconds after which what a relay has not renewed is claimed, and between two renewals.
LEASE, RENEWAL = 10.0, 3.0

# Seconds between looks for entries that no bell has told of, or that may be claimed.
LOOK = 1.0

# Milliseconds that the wait for the bell takes at most; less than the reply timeout.
BLOCK = 500

# Entries claimed or renewed by one command.
MANY = 100

# The field of the bell's entries that tells of entries that were given back.
FREED = b"freed"

# The idle time of what is given back, in milliseconds: above any lease.
FREE = 3_600_000

_log = logger("wsmux.bus")


class _SharedMailbox(Mailbox):
    """Buffer what this relay has read of one stream; uses the lock of the queues.

    Attributes:
        key: the key of the stream.
        wake: called when there is more to take.
        wanted: entries that would be taken at once.
        behind: whether the stream may have entries that no relay has.
        claims: whether there may be entries to claim.
        large: whether the last entries were large, so that fewer are read at once.
        cursor: where the next search for entries to claim begins.
        pending: the ids of what this relay has, and when each was read or renewed. What is older
            than ``LEASE``, as after a stall, another relay may have claimed.
    """

    def __init__(self, owner: SharedMailboxes, address: Address, wake: Callable[[], None]) -> None:
        self.address = address
        self.key = address.stream_key().encode()
        self.wake = wake
        self.wanted = 0
        self.behind = True
        self.claims = True
        self.large = False
        self.cursor = b"0-0"
        self.pending: dict[bytes, float] = {}
        self.closed = False
        self.buffer: deque[QueuedEnvelope] = deque()
        self._owner = owner

    def take(self, limit: int) -> list[QueuedEnvelope]:
        return self._owner.take(self, limit)

    def waiting(self) -> bool:
        return bool(self.buffer)

    def ack(self, ids: Iterable[str]) -> None:
        self._owner.ack(self, [each.encode() for each in ids])

    def close(self) -> None:
        self._owner.give_up(self)


@dataclass(slots=True)
class _Work:
    """Hold what the thread is to do in its next round."""

    read: list[tuple[_SharedMailbox, int]] = field(default_factory=list)
    claim: list[tuple[_SharedMailbox, int]] = field(default_factory=list)
    renew: list[tuple[_SharedMailbox, list[bytes], int]] = field(default_factory=list)
    free: list[tuple[bytes, dict[bytes, float]]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.read or self.claim or self.renew or self.free)


class SharedMailboxes:
    """Keep the mailboxes of names at one relay; see the module.

    Args:
        client: made by ``redis_client``.
        lock: the lock of the queues.
        writer: deletes what is acknowledged.
        report: told of failures and successes.

    Attributes:
        consumer: what this relay is called in the groups.
    """

    def __init__(
        self, client: redis.Redis, lock: threading.Lock, writer: Writer, report: Report
    ) -> None:
        self._client = client
        self._lock = lock
        self._some = Condition(lock)
        self._writer = writer
        self._report = report
        self.consumer: str = uuid.uuid4().hex
        self._mailboxes: dict[bytes, _SharedMailbox] = {}
        self._freed: deque[tuple[bytes, dict[bytes, float]]] = deque()
        self._next_look = self._next_renewal = 0.0
        self._threads: list[threading.Thread] = []
        self._stop = OneShotEvent()

    def open(self, address: Address, wake: Callable[[], None]) -> Mailbox:
        """Return a mailbox; an earlier one of the same name at this relay returns no more."""
        mailbox = _SharedMailbox(self, address, wake)
        with self._lock:
            before = self._mailboxes.get(mailbox.key)
            if before is not None:
                self._give_up_locked(before)
            if self._stop.is_set():
                mailbox.closed = True
                return mailbox
            self._mailboxes[mailbox.key] = mailbox
            for run in (self._run, self._listen)[len(self._threads) :]:
                thread = daemon_thread(target=run, name=f"wsmux-redis-names{run.__name__}")
                start_thread(thread)
                self._threads.append(thread)
            self._some.notify_all()
        return mailbox

    def added_locked(self, address: Address) -> None:
        """Note that this process has added to the stream of a name."""
        mailbox = self._mailboxes.get(address.stream_key().encode())
        if mailbox is not None:
            mailbox.behind = True
            self._some.notify_all()

    def close(self, deadline: Deadline) -> None:
        """Give back what was not acknowledged, and stop the threads."""
        with self._lock:
            for mailbox in list(self._mailboxes.values()):
                self._give_up_locked(mailbox)
            self._stop.set()
            self._some.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join(deadline.remaining())

    # Called by mailboxes

    def take(self, mailbox: _SharedMailbox, limit: int) -> list[QueuedEnvelope]:
        """Return buffered entries, and read more if those are too few."""
        with self._lock:
            buffer = mailbox.buffer
            taken = [buffer.popleft() for _ in range(min(limit, len(buffer)))]
            mailbox.wanted = limit - len(taken)
            if not limit and buffer:  # another relay may have what this one does not want any more
                entries = {each.id.encode(): 0.0 for each in buffer}
                buffer.clear()
                for each in entries:
                    entries[each] = mailbox.pending.pop(each)
                self._free_locked(mailbox, entries)
            if mailbox.wanted and mailbox.behind:
                self._some.notify_all()
        return taken

    def ack(self, mailbox: _SharedMailbox, ids: list[bytes]) -> None:
        """Acknowledge and delete entries."""
        with self._lock:
            for each in ids:
                mailbox.pending.pop(each, None)
            self._writer.delete_locked(mailbox.key, ids)

    def give_up(self, mailbox: _SharedMailbox) -> None:
        """Give back what was not acknowledged."""
        with self._lock:
            self._give_up_locked(mailbox)

    def _give_up_locked(self, mailbox: _SharedMailbox) -> None:
        if mailbox.closed:
            return
        mailbox.closed = True
        mailbox.buffer.clear()
        if self._mailboxes.get(mailbox.key) is mailbox:
            del self._mailboxes[mailbox.key]
        self._free_locked(mailbox, mailbox.pending)
        mailbox.pending = {}

    def _free_locked(self, mailbox: _SharedMailbox, entries: dict[bytes, float]) -> None:
        if entries:
            self._freed.append((mailbox.key, entries))
            self._some.notify_all()

    # The thread that reads

    def _run(self) -> None:
        pause = RetryPause()
        while (work := self._work()) is not None:
            wakes: list[Callable[[], None]] = []
            try:
                self._do(work, wakes)
            except FAILURES as error:
                self._report(error)
                with self._lock:
                    self._freed.extendleft(reversed(work.free))
                if self._stop.is_set():
                    _log.warning("requests to names stay with this relay: Redis failed at shutdown")
                    return
                self._stop.wait(pause.next())
            except Exception:
                _log.exception("the queues of names were not read; they are read again")
                self._stop.wait(pause.next())
            else:
                self._report(None)
                pause.reset()
            for wake in wakes:
                try:
                    wake()
                except Exception:  # the other names go on
                    _log.exception("requests to a name were not handed on")

    def _work(self) -> _Work | None:
        """Wait for something to do; ``None`` at the end."""
        with self._lock:
            while True:
                now = clock.monotonic()
                work = self._work_locked(now)
                if work:
                    return work
                if self._stop.is_set():
                    return None
                due = min(self._next_look, self._next_renewal)
                self._some.wait(max(0.0, due - now) if self._mailboxes else None)

    def _work_locked(self, now: float) -> _Work:
        work = _Work(free=list(self._freed))
        self._freed.clear()
        if now >= self._next_look:
            self._next_look = now + LOOK
            for mailbox in self._mailboxes.values():
                mailbox.behind = mailbox.claims = True
        if now >= self._next_renewal:
            self._next_renewal = now + RENEWAL
            for mailbox in self._mailboxes.values():
                work.renew += [
                    (mailbox, ids[start : start + MANY], idle)
                    for ids, idle in _by_idle(mailbox.pending, now)
                    for start in range(0, len(ids), MANY)
                ]
        for mailbox in self._mailboxes.values():
            wanted = min(mailbox.wanted, FEW if mailbox.large else COUNT)
            if wanted and mailbox.claims:
                mailbox.claims = False
                work.claim.append((mailbox, wanted))
            elif wanted and mailbox.behind:
                mailbox.behind = False
                work.read.append((mailbox, wanted))
        return work

    def _do(self, work: _Work, wakes: list[Callable[[], None]]) -> None:
        """Do it in one round trip, and tell whom to wake."""
        group, own = GROUP, self.consumer
        pipeline: Any = self._client.pipeline(transaction=False)
        now = clock.monotonic()
        for key, entries in work.free:
            for ids, idle in _by_idle(entries, now):
                pipeline.xclaim(key, group, own, idle, ids, idle=FREE, justid=True)
            pipeline.xadd(SHARED_BELL, {FIELD: key, FREED: b""}, maxlen=RUNG)
        freed = len(pipeline)
        for mailbox, ids, idle in work.renew:
            pipeline.xclaim(mailbox.key, group, own, idle, ids, justid=True)
        count = len(pipeline)
        for mailbox, wanted in work.claim:
            idle = int(LEASE * 1000)
            pipeline.xautoclaim(mailbox.key, group, own, idle, mailbox.cursor, wanted)
        for mailbox, wanted in work.read:
            pipeline.xreadgroup(group, own, {mailbox.key: ">"}, wanted)
        results = pipeline.execute(raise_on_error=False)
        work.free.clear()  # done
        groups: list[bytes] = []
        failures = [each for each in results[:count] if _failed(each)]
        with self._lock:
            for (mailbox, _, _), renewed in zip(work.renew, results[freed:count], strict=True):
                for each in [] if isinstance(renewed, Exception) else map(bytes, renewed):
                    if each in mailbox.pending:
                        mailbox.pending[each] = now
        every = [(*each, True) for each in work.claim] + [(*each, False) for each in work.read]
        for (mailbox, wanted, claimed), result in zip(every, results[count:], strict=True):
            if _no_group(result):
                groups.append(mailbox.key)
            elif is_wrong_type(result):
                _log.warning("%r is not a stream, so its name gets nothing: delete it", mailbox.key)
            elif isinstance(result, Exception):
                failures.append(result)
            elif self._fill(mailbox, result, wanted, now, claimed=claimed):
                wakes.append(mailbox.wake)
        if groups:
            self._make_groups(groups)
        if failures:
            raise failures[0]

    def _fill(
        self, mailbox: _SharedMailbox, result: Any, wanted: int, now: float, *, claimed: bool
    ) -> bool:
        """Put what was read, since ``now``, into a mailbox; return whether there is anything."""
        entries = result[1] if claimed else [each for stream in result for each in stream[1]]
        with self._lock:
            full = len(entries) >= wanted
            if claimed:
                mailbox.cursor = bytes(result[0])
                mailbox.behind = True  # what is new comes after what was claimed
                mailbox.claims = mailbox.claims or mailbox.cursor != b"0-0"
            else:
                mailbox.behind = mailbox.behind or full
            size = sum(len(fields[FIELD]) for _, fields in entries if fields and FIELD in fields)
            mailbox.large = size > MANY_BYTES
            good = [(bytes(entry), fields) for entry, fields in entries if fields]
            if mailbox.closed:
                self._free_locked(mailbox, {entry: now for entry, _ in good})
                return False
            fresh = [each for each in good if each[0] not in mailbox.pending]
            mailbox.pending.update({entry: now for entry, _ in good})
            for entry, fields in fresh:
                data = bytes(fields.get(FIELD, b""))
                mailbox.buffer.append(QueuedEnvelope(entry.decode(), data))
            mailbox.wanted = max(0, mailbox.wanted - len(fresh))
        return bool(fresh)

    def _make_groups(self, keys: list[bytes]) -> None:
        """Make the groups of streams that are new, or were dropped after an hour."""
        pipeline: Any = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.xgroup_create(key, GROUP, "0", mkstream=True)
            pipeline.expire(key, LIFE)
        for result in pipeline.execute(raise_on_error=False):
            if _failed(result) and not cause(result).startswith("BUSYGROUP"):
                raise result
        with self._lock:
            for key in keys:
                mailbox = self._mailboxes.get(key)
                if mailbox is not None:
                    mailbox.behind = True

    # The thread that listens

    def _listen(self) -> None:
        pause = RetryPause()
        last: Any = "$"
        while not self._stop.is_set():
            try:
                reply: Any = self._client.xread({SHARED_BELL: last}, MANY, BLOCK)
            except FAILURES as error:
                self._report(error)
                self._stop.wait(pause.next())
                continue
            self._report(None)
            pause.reset()
            rung = reply[0][1] if reply else []
            if rung:
                last = rung[-1][0]
                with self._lock:
                    for _, fields in rung:
                        self._rung_locked(fields)
                    self._some.notify_all()

    def _rung_locked(self, fields: dict[bytes, bytes]) -> None:
        mailbox = self._mailboxes.get(fields.get(FIELD, b""))
        if mailbox is None or fields.get(RINGER) == self.consumer.encode():
            return
        mailbox.behind = True
        mailbox.claims = mailbox.claims or FREED in fields


def _by_idle(entries: dict[bytes, float], now: float) -> list[tuple[list[bytes], int]]:
    """Return ids with the idle time, in milliseconds, that shows that no other relay has them."""
    lapsed = [each for each, renewed in entries.items() if now - renewed >= LEASE]
    held = [each for each in entries if each not in set(lapsed)] if lapsed else list(entries)
    return [(ids, idle) for ids, idle in ((held, 0), (lapsed, int(LEASE * 1000))) if ids]


def _failed(result: Any) -> bool:
    """Return whether a command failed, other than for a stream without a group or entries."""
    return isinstance(result, Exception) and not (_no_group(result) or is_wrong_type(result))


def _no_group(result: object) -> bool:
    return isinstance(result, ResponseError) and cause(result).startswith("NOGROUP")
