"""Read from and write to Redis in the background, for the queues of sessions.

See ``redis_queues`` for the threads and the lock that all of them share.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from ...runtime.backoff import Backoff
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.threads import daemon_thread
from .redis_client import FAILURES, ResponseError, cause, is_wrong_type

if TYPE_CHECKING:
    import redis

__all__ = ["BELL", "FIELD", "Id", "Reader", "RetryPause", "Writer", "parse_id"]

# The field of a stream's entries that holds the envelope.
FIELD = b"_"

# Keys of the streams that ring readers, and the seconds after which Redis drops a forgotten one.
BELL = "wsmux:bell:"
BELL_LIFE = 60

# Milliseconds of one wait for streams; less than a connection waits for an answer.
BLOCK = 1000

# Entries of one stream that are read at once, and streams of one read that does not wait.
COUNT, HURRIED = 16, 32

# Entries and seconds that deletions are collected for. As the known relay.
BATCH, BATCH_TIME = 128, 0.01

# What a key may be so that a stream can be read there, and seconds between two looks at one that is
# something else.
READABLE = (b"stream", b"none")
LOOK_PAUSE = 2.0

# Seconds of the first pause after a failure, and of the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0

# The two parts of an entry's id, which order entries.
Id = tuple[int, int]

Report = Callable[[Exception | None], None]

_log = logger("wsmux.bus")


def parse_id(data: bytes) -> Id:
    """Return the numbers of an id, ``milliseconds-sequence`` or the first of them alone.

    Raises:
        ValueError: it is none.
    """
    time, dash, sequence = data.partition(b"-")
    if not time.isdigit() or (dash and not sequence.isdigit()):
        raise ValueError(f"an id is of the form milliseconds-sequence, not {data[:80]!r}")
    return int(time), int(sequence or b"0")


class RetryPause(Backoff):
    """Wait after Redis has failed."""

    def __init__(self) -> None:
        super().__init__(FIRST_PAUSE, LONGEST_PAUSE, least=0.5)


class Fillable(Protocol):
    """A mailbox, as readers know it."""

    key: bytes
    wake: Callable[[], None]
    last_read: Id
    last_put: Id
    full: bool

    def fill_locked(self, entries: Iterable[tuple[Id, bytes]]) -> None:
        """Take what was read, in order."""


class Writer:
    """Delete entries and ring readers, in one thread that starts with the first of them."""

    def __init__(self, client: redis.Redis, lock: threading.Lock, report: Report) -> None:
        self._client = client
        self._lock = lock
        self._report = report
        self._some = threading.Condition(lock)
        self._deleting: dict[bytes, set[bytes]] = {}  # until Redis has done so
        self._bells: set[str] = set()
        self._closed = False
        self._stop = threading.Event()
        self._thread = daemon_thread(target=self._run, name="wsmux-redis-writer")
        self._thread.start()

    def delete_locked(self, key: bytes, ids: Collection[bytes]) -> None:
        """Delete entries of a stream soon."""
        if ids:
            first = not self._deleting
            self._deleting.setdefault(key, set()).update(ids)
            if first or self._is_batch_locked():
                self._some.notify()

    def deleting_locked(self, key: bytes) -> Collection[bytes]:
        """Return the entries of a stream that may still be there, and are done with."""
        return self._deleting.get(key, ())

    def ring_locked(self, bell: str) -> None:
        """Wake a reader."""
        self._bells.add(bell)
        self._some.notify()

    def close(self, deadline: Deadline) -> None:
        """Do what is left, if Redis lets it, and end."""
        with self._lock:
            self._closed = True
            self._some.notify()
        self._stop.set()
        self._thread.join(deadline.remaining())

    def _is_batch_locked(self) -> bool:
        return sum(map(len, self._deleting.values())) >= BATCH

    def _run(self) -> None:
        pause = RetryPause()
        while (work := self._work()) is not None:
            deleted, bells = work
            try:
                self._write(deleted, bells)
            except FAILURES as error:
                self._report(error)
                with self._lock:
                    self._bells |= bells
                if self._stop.is_set():
                    _log.warning("Redis keeps entries that were delivered: it failed at the end")
                    return
                self._stop.wait(pause.next())
                continue
            self._report(None)
            pause.reset()
            self._done(deleted)

    def _work(self) -> tuple[dict[bytes, set[bytes]], set[str]] | None:
        """Return what is to be deleted and rung; ``None`` at the end."""
        with self._lock:
            while not (self._deleting or self._bells or self._closed):
                self._some.wait()
            if not (self._bells or self._closed or self._is_batch_locked()):
                self._some.wait(BATCH_TIME)
            if not (self._deleting or self._bells):
                return None
            bells, self._bells = self._bells, set()  # one that is rung meanwhile is rung again
            return {key: set(ids) for key, ids in self._deleting.items()}, bells

    def _write(self, deleted: dict[bytes, set[bytes]], bells: set[str]) -> None:
        pipeline: Any = self._client.pipeline(transaction=False)
        for bell in bells:
            pipeline.xadd(bell, {FIELD: b""}, maxlen=1, approximate=False)
            pipeline.expire(bell, BELL_LIFE)
        for key, ids in deleted.items():
            pipeline.xdel(key, *ids)
        for result in pipeline.execute(raise_on_error=False):
            if isinstance(result, Exception):
                if not is_wrong_type(result):
                    raise result
                _log.warning("Redis refused permanently: %s", cause(result))

    def _done(self, deleted: dict[bytes, set[bytes]]) -> None:
        with self._lock:
            for key, ids in deleted.items():
                self._deleting[key] -= ids
                if not self._deleting[key]:
                    del self._deleting[key]


class Reader:
    """Fill mailboxes from their streams, in one thread."""

    def __init__(
        self,
        client: redis.Redis,
        lock: threading.Lock,
        writer: Writer,
        report: Report,
        number: int,
    ) -> None:
        self._client = client
        self._lock = lock
        self._writer = writer
        self._report = report
        self._mailboxes: dict[bytes, Fillable] = {}
        self._behind: dict[bytes, Fillable] = {}  # those to read without waiting
        self._aside: dict[bytes, Fillable] = {}  # those whose keys are no streams
        self._look = Deadline(LOOK_PAUSE)
        self._bell = BELL + uuid.uuid4().hex
        self._rung = b"0-0"  # the last ring that was heard
        self._waits = False
        self._stop = threading.Event()
        self._thread = daemon_thread(target=self._run, name=f"wsmux-redis-reader-{number}")
        self._thread.start()

    def __len__(self) -> int:
        return len(self._mailboxes)

    def add_locked(self, mailbox: Fillable) -> None:
        """Fill a mailbox from now on."""
        self._mailboxes[mailbox.key] = mailbox
        self.hurry_locked(mailbox)

    def hurry_locked(self, mailbox: Fillable) -> None:
        """Read a mailbox's stream at once."""
        self._behind[mailbox.key] = mailbox
        self._ring_locked()

    def is_behind_locked(self, mailbox: Fillable) -> bool:
        """Return whether there may be entries that were there when it was added, or left behind."""
        return self._behind.get(mailbox.key) is mailbox

    def remove_locked(self, mailbox: Fillable) -> None:
        """Fill a mailbox no more."""
        if self._mailboxes.get(mailbox.key) is mailbox:
            del self._mailboxes[mailbox.key]
            self._behind.pop(mailbox.key, None)
            self._aside.pop(mailbox.key, None)

    def close_locked(self) -> None:
        """End; see ``join``."""
        self._stop.set()
        self._ring_locked()

    def join(self, deadline: Deadline) -> None:
        """Wait until the thread has ended."""
        self._thread.join(deadline.remaining())

    def _ring_locked(self) -> None:
        if self._waits:
            self._writer.ring_locked(self._bell)

    # The thread

    def _run(self) -> None:
        pause = RetryPause()
        while not self._stop.is_set():
            try:
                self._look_again()
                self._read()
            except FAILURES as error:
                self._report(error)
                self._stop.wait(pause.next())
            except Exception:
                _log.exception("a reader of queues failed; it goes on")
                self._stop.wait(pause.next())
            else:
                self._report(None)
                pause.reset()

    def _read(self) -> None:
        """Read once, waiting if no mailbox is behind, and fill the mailboxes."""
        with self._lock:
            chosen = dict(itertools.islice(self._behind.items(), HURRIED))
            self._waits = not chosen and not self._stop.is_set()
            if self._waits:
                chosen = {
                    key: each
                    for key, each in self._mailboxes.items()
                    if not (each.full or key in self._aside)
                }
            puts = {key: each.last_put for key, each in chosen.items()}
            streams: dict[Any, Any] = {
                key: "{}-{}".format(*each.last_read) for key, each in chosen.items()
            }
            if self._waits:
                streams[self._bell] = self._rung
        if not streams:
            return
        try:
            reply: Any = self._client.xread(streams, COUNT, BLOCK if self._waits else None)
        except ResponseError as error:
            if not (is_wrong_type(error) and self._set_aside(chosen)):
                raise
            return
        found = {bytes(key): entries for key, entries in reply}
        wakes: list[Callable[[], None]] = []
        with self._lock:
            self._waits = False
            rings = found.get(self._bell.encode())
            if rings:
                self._rung = rings[-1][0]
            for key, mailbox in chosen.items():
                if self._mailboxes.get(key) is mailbox:
                    entries = found.get(key, [])
                    self._fill_locked(mailbox, entries, puts[key])
                    if entries:
                        wakes.append(mailbox.wake)
        for wake in wakes:
            wake()

    def _set_aside(self, chosen: dict[bytes, Fillable]) -> bool:
        """Read keys that are no streams no more; tell whether there are any."""
        bad = [key for key, kind in self._kinds(chosen).items() if kind not in READABLE]
        with self._lock:
            for key in bad:
                if self._mailboxes.get(key) is chosen[key]:
                    self._behind.pop(key, None)
                    self._aside[key] = chosen[key]
        for key in bad:
            _log.warning(
                "%r is not a stream, so its session receives nothing from it: delete it", key
            )
        return bool(bad)

    def _look_again(self) -> None:
        """Read keys again that have become streams, or are gone."""
        if not self._look.expired():
            return
        self._look = Deadline(LOOK_PAUSE)
        with self._lock:
            aside = dict(self._aside)
        good = [key for key, kind in self._kinds(aside).items() if kind in READABLE]
        with self._lock:
            for key in good:
                if self._aside.get(key) is aside[key]:
                    self._behind[key] = self._aside.pop(key)

    def _kinds(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        pipeline: Any = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.type(key)
        return dict(zip(keys, pipeline.execute() if keys else (), strict=True))

    def _fill_locked(self, mailbox: Fillable, entries: list[Any], put: Id) -> None:
        """Hand over what was read from a stream; ``put`` was there when the read began."""
        done = self._writer.deleting_locked(mailbox.key)
        good: list[tuple[Id, bytes]] = []
        for entry, fields in entries:
            data = fields.get(FIELD)
            if entry not in done and data is not None:
                good.append((parse_id(entry), data))
            elif data is None:
                _log.warning("dropped entry %r of %r: it has no envelope", entry, mailbox.key)
                self._writer.delete_locked(mailbox.key, [entry])
        mailbox.fill_locked(good)
        self._behind.pop(mailbox.key, None)
        if entries:
            mailbox.last_read = max(mailbox.last_read, parse_id(entries[-1][0]))
        if len(entries) < COUNT:  # the end of the stream, of which entries may have been dropped
            mailbox.last_read = max(mailbox.last_read, put)
        elif not mailbox.full:
            self._behind[mailbox.key] = mailbox
