"""Forward envelopes to the relays of other domains.

Threads and locks. ``submit`` is called by the threads of connections; it puts the envelope into the
queue and never waits for another relay. One feeder thread takes envelopes from the queue while
there is room and schedules them. A clock thread passes each due job to a pool of at most
``WORKERS`` threads, which make one attempt at a time: a POST or the look-up of a twin. No thread
sleeps while it holds a message: a failed job returns to the schedule with the time of its next
attempt. One lock guards the schedule, the ranker and the counts; no I/O happens under it. A job
belongs either to the schedule or to the pool.

A message is done when a relay has answered 202, or when its requester was sent an error; until then
the queue keeps it. Delivery is therefore at least once: a relay that accepted a message but did not
answer in time gets it again.

What waits for relays that are down has half of the room at most; see ``room``. Beyond its part the
requester gets an error, and the message is done.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus

from ...runtime import fork
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Condition
from ...runtime.thread_pool import ThreadPool
from ...runtime.threads import daemon_thread
from ..errors import BadMessage, BusError, TwinsUnavailable
from ..relay.queues import LIFE
from ..relay.router import EXPIRED, NO_RELAYS, UNKNOWN_TWIN
from ..twins.records import TwinDirectory
from ..wire.address import Address, address_of
from ..wire.envelope import Kind, kind_of, parse, relay_error, time_left
from ..wire.messages import Envelope
from .http_post import Answer
from .queue import FederationQueue, QueuedMessage
from .ranker import Ranker
from .room import Room
from .schedule import LOOK_UP, Job, Schedule

__all__ = ["WORKERS", "Federation"]

# Attempts in progress at once, each in a thread.
WORKERS = 64

# Bound of the schedule, in messages and bytes; the rest stays in the queue.
MAX_HELD = 10_000
MAX_HELD_BYTES = 64 * 1024 * 1024

# Entries taken from the queue at once; at most 256 MiB, if each has the maximum size.
BATCH = 16

# Seconds between the feeder's visits to the queue while there is no room.
HOUSEKEEPING = 1.0

# Seconds for one look-up of a twin.
LOOK_UP_TIME = 12.0

# Temporary refusals; any other status from 400 to 499 is permanent. The reference relay treats all
# of them as permanent.
PASSING = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_EARLY,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)

# Seconds for which messages are given up in the thread whose attempt shows that a relay is down.
SHED_TIME = 1.0

# Start of the error that requesters get where too much waits for a relay.
CROWDED = "too many messages wait for relays that do not answer"

# Start of the error that requesters get, word for word that of the reference relay.
REJECTED = "remote relay rejected permanently"

_log = logger("wsmux.bus")


def _ignore(domain: str, success: bool) -> None:
    """Discard the count."""


class Federation:
    """Deliver envelopes to other relays until ``close``.

    Args:
        twins: the directory in which the relays of a twin are looked up.
        ranker: orders the relays; owned by the federation.
        post: offers an envelope to a domain; see ``Poster``.
        queue: keeps messages until they are done; owned by the federation.
        deliver_error: delivers an error envelope to an address of this relay; may raise only
            ``BusError``.
        count: called after each attempt with the domain and whether it accepted the message.
        clock: returns Unix seconds.
        workers: the maximum number of attempts at once.
    """

    def __init__(
        self,
        twins: TwinDirectory,
        ranker: Ranker,
        post: Callable[[str, bytes], Answer],
        queue: FederationQueue,
        deliver_error: Callable[[Address, Envelope], object],
        *,
        count: Callable[[str, bool], object] = _ignore,
        clock: Callable[[], float] = time.time,
        workers: int = WORKERS,
    ) -> None:
        self._twins = twins
        self._ranker = ranker
        self._post = post
        self._queue = queue
        self._deliver_error = deliver_error
        self._counted = count
        self._clock = clock
        self._lock = threading.Lock()
        self._changed = Condition(self._lock)  # for the clock
        self._freed = Condition(self._lock)  # for the feeder
        self._schedule = Schedule()
        self._held = Room(MAX_HELD, MAX_HELD_BYTES)
        self._closed = False
        self._is_copy = False  # of a forked child
        name = "wsmux-federation"
        self._workers = ThreadPool(workers, name)
        self._threads = [
            daemon_thread(target=self._feed, name=name),
            daemon_thread(target=self._keep_time, name=f"{name}-clock"),
        ]
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:  # no second thread could be started
            self._end()
            raise
        fork.register(self)

    def __repr__(self) -> str:
        return f"<Federation held={self._held.count} workers={self._workers.threads}>"

    def forked(self) -> None:
        """Disable the copy in a forked child; see ``runtime.fork``."""
        self._is_copy = True

    @property
    def held(self) -> int:
        """The number of messages that were taken from the queue and are not done."""
        return self._held.count

    def submit(self, envelope: Envelope, data: bytes, domains: Sequence[str]) -> None:
        """Send an envelope to one of a twin's relays; may be called from any thread.

        Blocks only for the queue: not at all in memory, for a round trip with Redis. If it cannot
        be queued, the requester gets an error. In a forked child this does nothing.

        Args:
            envelope: the parsed ``data``.
            data: the bytes, which are sent unchanged.
            domains: the relays of the destination.
        """
        if self._is_copy:
            return
        try:
            self._queue.put(data, domains)
        except BusError as failure:
            self._tell(envelope, failure.message)

    def close(self, timeout: float | None = None) -> None:
        """Stop, and wait at most ``timeout`` seconds for attempts in progress.

        Messages that are not done are lost if the queue is in memory, and stay in Redis otherwise.
        """
        if self._is_copy:
            return
        deadline = Deadline(timeout)
        self._end()
        for thread in self._threads:
            thread.join(deadline.remaining())
        self._workers.close()
        self._workers.join(deadline)
        self._queue.release()
        if self._held.count:
            _log.warning("the federation ended with %d messages undelivered", self._held.count)

    def _end(self) -> None:
        self._queue.close()
        with self._lock:
            self._closed = True
            self._changed.notify()
            self._freed.notify()

    # Feeder thread

    def _feed(self) -> None:
        while (room := self._room()) is not None:
            try:
                entries = self._queue.take(room)
            except Exception:
                _log.exception("the federation queue failed")
                with self._lock:
                    self._freed.wait(HOUSEKEEPING)
                continue
            for entry in entries:
                self._hold(entry)

    def _room(self) -> int | None:
        """Return how many entries may be taken, 0 after ``HOUSEKEEPING``, ``None`` when closed."""
        with self._lock:
            if not self._closed and self._held.is_full():
                self._freed.wait(HOUSEKEEPING)
            if self._closed:
                return None
            return 0 if self._held.is_full() else min(BATCH, self._held.left())

    def _hold(self, entry: QueuedMessage) -> None:
        try:
            life = time_left(parse(entry.data), int(self._clock()))
        except BadMessage as error:  # other programs may write to the stream
            _log.warning("dropped from the federation queue: %s", error)
            self._queue.done(entry.ticket)
            return
        now = time.monotonic()
        job = Job(entry.ticket, entry.data, now + min(life, LIFE))
        with self._lock:
            self._held.add((), len(job.data))
            if not entry.domains:
                self._add_locked(job, now)
                return
        self._route(job, entry.domains)

    def _route(self, job: Job, domains: Sequence[str]) -> None:
        """Start a round over the relays of a message, unless too much waits for them."""
        size, now = len(job.data), time.monotonic()
        with self._lock:
            job.routed(self._order(domains))
            before, job.domains = job.domains, tuple(dict.fromkeys(domains))
            self._held.add(job.domains, size)
            self._held.remove(before, size)  # then, so that its relays do not count as new ones
            crowded = self._crowded_out_locked(job, now)
            if not crowded:
                self._add_locked(job, now)
        if crowded:
            self._give_up_crowded(job, crowded)

    def _crowded_out_locked(self, job: Job, now: float) -> tuple[str, ...]:
        """Return the relays of a message if it is beyond their part, where it counts no more then.

        So of all threads that look at once, only as many give up a message as there are too many.
        """
        if not self._held.is_crowded(job.domains, now):
            return ()
        size = len(job.data)
        self._held.add((), size)
        self._held.remove(job.domains, size)
        crowded, job.domains = job.domains, ()
        return crowded

    def _add_locked(self, job: Job, due: float) -> None:
        self._schedule.add(job, due)
        self._changed.notify()

    # Clock thread

    def _keep_time(self) -> None:
        while (taken := self._take()) is not None:
            self._workers.submit(partial(self._work, *taken))

    def _take(self) -> tuple[Job, str] | None:
        """Wait for the next due job and return it with its lane; ``None`` when closed."""
        with self._lock:
            while not self._closed:
                now = time.monotonic()
                taken = self._schedule.take(now)
                if taken is not None:
                    return taken
                due = self._schedule.next_due()
                self._changed.wait(None if due is None else due - now)
            return None

    # Worker threads

    def _work(self, job: Job, lane: str) -> None:
        if self._closed:
            return
        try:
            self._attempt(job, lane)
        except Exception:
            _log.exception("dropped a message for another relay")
            self._finish(job)
        finally:
            with self._lock:
                self._schedule.release(lane, time.monotonic())
                self._changed.notify()

    def _attempt(self, job: Job, lane: str) -> None:
        if time.monotonic() >= job.expires_at:
            self._give_up(job, EXPIRED)
        elif lane == LOOK_UP:
            self._look_up(job)
        else:
            self._offer(job, lane)

    def _look_up(self, job: Job) -> None:
        number = parse(job.data).destination.twin
        try:
            twin = self._twins.get(number, Deadline(LOOK_UP_TIME))
        except TwinsUnavailable as error:
            self._failed(job, error.message)
            return
        if twin is None:
            self._give_up(job, UNKNOWN_TWIN)
        elif not twin.relays:
            self._give_up(job, NO_RELAYS)
        else:
            self._route(job, twin.relays)

    def _offer(self, job: Job, domain: str) -> None:
        try:
            answer = self._post(domain, job.data)
        except OSError as error:
            self._downvoted(job, domain, str(error) or type(error).__name__)
            return
        except ValueError as error:  # not a domain name
            self._refused(job, domain, str(error))
            return
        if answer.status == HTTPStatus.ACCEPTED:
            self._counted(domain, True)
            with self._lock:
                self._held.answered(domain)
            self._finish(job)
        elif 400 <= answer.status < 500 and answer.status not in PASSING:
            self._refused(job, domain, answer.text)
        else:
            self._downvoted(job, domain, f"status {answer.status}, {answer.text}")

    def _downvoted(self, job: Job, domain: str, reason: str) -> None:
        self._counted(domain, False)
        now = time.monotonic()
        with self._lock:
            self._ranker.downvote(domain, now)
            self._held.failed(domain, now)
        self._failed(job, f"{domain}: {reason}")
        self._shed(domain, now)

    def _shed(self, domain: str, now: float) -> None:
        """Give up what waits for an attempt at a relay that is down, beyond its part."""
        until = now + SHED_TIME
        while not self._closed and time.monotonic() < until:
            with self._lock:
                job = self._schedule.newest(domain)
                crowded = () if job is None else self._crowded_out_locked(job, now)
                if job is None or not crowded:
                    return
                self._schedule.drop_newest(domain)
            self._give_up_crowded(job, crowded)

    def _failed(self, job: Job, reason: str) -> None:
        _log.info("a message for another relay is delayed: %s", reason)
        now = time.monotonic()
        with self._lock:
            crowded = self._crowded_out_locked(job, now)
            if not crowded:
                wait = job.failed(reason, self._order, random.random())
                self._add_locked(job, now + wait)
        if crowded:
            job.reason = reason
            self._give_up_crowded(job, crowded)

    def _refused(self, job: Job, domain: str, reason: str) -> None:
        """Try the next relay; a refusal is not a failure, so the rank stays as it is."""
        self._counted(domain, False)
        _log.info("%s refused a message: %s", domain, reason)
        with self._lock:
            self._held.answered(domain)
            goes_on = job.refused(reason)
            if goes_on:
                self._add_locked(job, time.monotonic())
        if not goes_on:
            self._give_up(job, f"{REJECTED}: {reason}")

    def _order(self, domains: Iterable[str]) -> list[str]:
        return self._ranker.order(domains, time.monotonic())

    def _give_up_crowded(self, job: Job, domains: Iterable[str]) -> None:
        self._give_up(job, f"{CROWDED}: {', '.join(domains)}")

    def _give_up(self, job: Job, text: str) -> None:
        _log.info("gave up a message: %s; last attempt: %s", text, job.reason or "none")
        self._tell(parse(job.data), text)
        self._finish(job)

    def _tell(self, envelope: Envelope, text: str) -> None:
        """Send the error to the source of a request; other kinds of message are not answered."""
        source = address_of(envelope.source)
        if kind_of(envelope) is not Kind.REQUEST or source is None:
            return
        try:
            self._deliver_error(source, relay_error(envelope, text, int(self._clock())))
        except BusError as failure:
            _log.warning("the error %r could not be sent to a requester: %s", text, failure)

    def _finish(self, job: Job) -> None:
        self._queue.done(job.ticket)
        with self._lock:
            self._held.remove(job.domains, len(job.data))
            self._freed.notify()
