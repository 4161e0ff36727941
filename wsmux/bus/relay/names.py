"""Hand the requests to names to the workers that have joined.

The requests to a name wait in a queue, where the twins that call it take turns (see ``queues``). A
relay at which workers of the name have joined opens its mailbox, takes as many entries as the
workers have room for, and hands them on in turn (see ``name_dispatch``). An entry leaves the queue
when an answer with its uid passes this relay, from any session of the owner, or when it expires.
Until then it is handed to the next worker when the connection of the one that has it ends. What no
worker here has room for goes back into the queue, for workers at other relays: at once if all that
are left are leaving, or within two seconds.

Threads and locks. What is to be handed is sent by the thread that made it possible: that which
queued a request, or that of a connection whose worker answered, left or has room again. One thread,
started with the first worker, ends what has expired, and names whose grace is over. It also answers
what has expired in a queue if another one finds that while it queues something, since an answer may
be queued, too. One lock guards all state; under it only the locks of queues are taken, and nothing
is sent, nor Redis asked. Before it, another one is taken to open a mailbox, which ends an earlier
one of the same name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...config import MIB
from ...exceptions import NoThreadError
from ...runtime import clock
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Condition
from ...runtime.threads import daemon_thread, start_thread
from ..errors import NAME_TAKEN, NOBODY_JOINED, UNAVAILABLE, WORKERS_GONE, BadMessage, BusError
from ..wire.address import Address, address_of
from ..wire.envelope import Kind, kind_of, parse
from ..wire.messages import Envelope
from ..wire.names import EXPECTED, NAME, Presence, check_name, name_of, shared_address
from .control import Asked, Control, Refusal
from .metrics import RelayMetrics
from .name_dispatch import Dispatcher, Entry
from .name_store import MemoryNames, NameStore, taken
from .queues import LIFE, DurableQueues, SessionQueues, SharedMailbox
from .sessions import Session

__all__ = ["AT_ONCE", "MAX_AT_ONCE", "Names", "nobody"]

# Entries that a worker has at once, unless it says otherwise, and at most.
AT_ONCE, MAX_AT_ONCE = 16, 1024

# Bytes that the requests of a name take here for each of its workers; a single one may be larger.
WORKER_BYTES = MIB

# Entries taken from a queue at once.
TAKEN = 64

# Seconds for Redis to say what waits for a name that is over, and for a round of answering it.
DRAIN_TIME = 1.0

# Seconds between two looks at what has expired.
TICK = 1.0

_log = logger("wsmux.bus")


@dataclass(slots=True, eq=False)
class _Name:
    """Hold a name with workers at this relay.

    Attributes:
        name, address: the name, and the address of its queue.
        dispatcher: shares what was taken among the workers.
        mailbox: gives what waits in the queue; ``None`` until it is open.
        refusing: whether that is answered now, since all workers are leaving.
    """

    name: str
    address: Address
    dispatcher: Dispatcher = field(default_factory=Dispatcher)
    mailbox: SharedMailbox | None = None
    refusing: bool = False


class Names:
    """Share the requests to names among their workers; see the module.

    Args:
        queues: where requests wait.
        store: keeps the claims; in memory by default.
        pins: the owners of names that no other twin may claim.
        metrics: shows what is here.
        expired: called with a request that expired before a worker had it.
        failed: called with a request that nobody will take any more, a code and a text.
        now: returns Unix seconds.

    Raises:
        ValueError: a pinned name is none.
    """

    def __init__(
        self,
        queues: SessionQueues,
        store: NameStore | None = None,
        *,
        pins: Mapping[str, int] | None = None,
        metrics: RelayMetrics | None = None,
        expired: Callable[[Envelope], object] = lambda _: None,
        failed: Callable[[Envelope, int, str], object] = lambda *_: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._queues = queues
        self._store = store or MemoryNames()
        self._pins = {check_name(name): owner for name, owner in (pins or {}).items()}
        self._tell_expired, self._tell_failed = expired, failed
        self._now = now
        self._opens = threading.Lock()  # taken before the other one
        self._lock = threading.Lock()
        self._some = Condition(self._lock)
        self._names: dict[Address, _Name] = {}  # by the address of their queue
        # By session: what it has joined, and what it has left with requests to answer; ``True`` if
        # it is among the workers in the store.
        self._joined: dict[Session, dict[Address, bool]] = {}
        self._ending: dict[Address, float] = {}  # without workers here, until when
        self._late: dict[_Name, list[Envelope]] = {}  # has expired, and is not answered yet
        self._redelivered = 0
        self._thread: threading.Thread | None = None
        self._more = threading.Event()  # there is more to drain, or this was closed
        self._closed = False
        if metrics is not None:
            metrics.watch_names(
                lambda: self._sum(lambda each: len(each.dispatcher.workers())),
                lambda: self._sum(lambda each: len(each.dispatcher)),
                lambda: self._redelivered,
            )

    def commands(self, control: Control) -> None:
        """Answer the commands of names."""
        control.add("relay.join", self._join)
        control.add("relay.leave", self._leave)
        control.add("relay.who", self._who)
        control.on_leave(self._left)

    def forked(self) -> None:
        """Empty the copy in a forked child."""
        self._opens, self._lock = threading.Lock(), threading.Lock()
        self._some = Condition(self._lock)
        self._names.clear()
        self._joined.clear()
        self._late.clear()
        self._closed = True

    def close(self, deadline: Deadline) -> None:
        """Hand nothing any more; what is queued stays there."""
        with self._lock:
            self._closed = True
            self._more.set()
            self._some.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(deadline.remaining())
        self._store.close()

    # Called by the relay, in the threads of connections

    def takes(self, address: Address, *, at_once: bool = False) -> bool:
        """Return whether requests to a shared address are queued; may block for Redis.

        Args:
            address: the address of a name.
            at_once: not if there is no worker now.

        Raises:
            QueueUnavailable: the claims could not be asked.
        """
        name = name_of(address)
        if name is None:
            return False
        with self._lock:
            known = self._names.get(address)
            here = known is not None and bool(known.dispatcher.workers())
        if here:
            return True
        found = self._store.glance(name)
        return (
            found is not None
            and found.owner == address.twin
            and (bool(found.workers) or not at_once)
        )

    def answered(self, session: Session, envelope: Envelope) -> None:
        """Note that an answer of a session was passed on."""
        shared = self._joined.get(session)
        requester = address_of(envelope.destination)
        if not shared or requester is None:
            return
        for address in list(shared):
            known = self._names.get(address)
            if known is None:
                continue
            with self._lock:
                entry = known.dispatcher.settle((requester, envelope.uid), session)
                if entry is not None and known.mailbox is not None:
                    known.mailbox.ack([entry.id])
                self._settled_locked(known)
            if entry is not None:
                self._pump(known)

    def ready(self, session: Session) -> None:
        """Hand more to a session whose connection may have room again."""
        for address in list(self._joined.get(session, ())):
            known = self._names.get(address)
            if known is not None:
                with self._lock:
                    awaited = known.dispatcher.ready(session)
                if awaited:
                    self._pump(known)

    # Requests of twins to the relay

    def _join(self, asked: Asked) -> dict[str, Any]:
        name = _name(asked)
        bound = asked.fields.number("at_once", 1, MAX_AT_ONCE, AT_ONCE)
        session = asked.session
        owner, own = session.address
        pinned = self._pins.get(name)
        if pinned is not None and pinned != owner:
            raise Refusal(NAME_TAKEN, taken(name, pinned))
        self._start()  # before the claim: only this thread ends it if the connection ends at once
        presence = self._store.join(name, owner, own, session.serial)
        address = shared_address(owner, name)
        with self._lock:
            known = self._names.get(address)
            if known is None:
                known = self._names[address] = _Name(name, address)
            known.dispatcher.join(session, bound)
            self._joined[session] = {**self._joined_locked(session), address: True}
            self._ending.pop(address, None)
            self._some.notify_all()
        self._open(known)
        self._pump(known)
        return shown(presence)

    def _leave(self, asked: Asked) -> None:
        name = _name(asked)
        session = asked.session
        address = shared_address(session.address.twin, name)
        if address not in self._joined.get(session, ()):
            return
        with self._lock:  # first, since the store may fail
            known = self._names.get(address)
            if known is not None:
                known.dispatcher.leave(session)
                self._settled_locked(known)
        if known is not None:
            self._pump(known)  # what was read for this one is given back
        self._store.leave(name, *session.address, session.serial)
        with self._lock:
            self._joined[session][address] = False
            self._joined[session] = self._joined_locked(session)

    def _joined_locked(self, session: Session) -> dict[Address, bool]:
        """Return what a session has joined, without what it has left for good."""
        return {
            address: stored
            for address, stored in self._joined.get(session, {}).items()
            if stored
            or ((known := self._names.get(address)) is not None and known.dispatcher.has(session))
        }

    def _who(self, asked: Asked) -> dict[str, Any]:
        name = _name(asked)
        presence = self._store.look(name)
        if presence is None:
            raise Refusal(NOBODY_JOINED, nobody(name))
        return shown(presence)

    def _left(self, session: Session) -> None:
        """Give what a session had to others, after its connection has ended."""
        for address, stored in self._joined.get(session, {}).items():
            with self._lock:
                known = self._names.get(address)
                if known is not None:
                    self._redelivered += known.dispatcher.gone(session)
                    self._settled_locked(known)
            name = name_of(address)
            if stored and name is not None:
                self._leave_store(name, session)
            if known is not None:
                self._pump(known)
        with self._lock:
            self._joined.pop(session, None)

    def _leave_store(self, name: str, session: Session) -> None:
        try:
            self._store.leave(name, *session.address, session.serial)
        except BusError as error:
            _log.warning("%s stays among the workers of %r: %s", session.address, name, error)

    # Handing

    def _open(self, known: _Name) -> None:
        """Open the mailbox of a name, unless it is open; it may lose its last worker meanwhile.

        If this fails, the next one that joins tries again, for all that have joined.
        """
        if known.mailbox is not None:
            return
        with self._opens:
            if known.mailbox is not None:
                return
            mailbox = self._queues.open_shared(known.address, lambda: self._woken(known))
            with self._lock:
                current = self._names.get(known.address) is known
                if current:
                    known.mailbox = mailbox
            if not current:
                mailbox.close()

    def _woken(self, known: _Name) -> None:
        """Hand what has come, in the thread that brought it; it may hold the order of a session."""
        if known.refusing:
            self._more.set()
        self._pump(known, answers=False)

    def _pump(self, known: _Name, *, answers: bool = True) -> None:
        """Hand what can be handed, and answer what has expired, or leave both to the thread."""
        while True:
            expired: list[Envelope] = []
            with self._lock:
                if self._closed:
                    return
                if answers or known not in self._late:
                    self._take_locked(known, expired)
                if expired and not answers:
                    self._late[known], expired = expired, []
                    self._some.notify_all()
                handing = known.dispatcher.hand()
            for envelope in expired:
                self._tell_expired(envelope)
            if handing is None:
                if expired:
                    continue
                return
            session = handing.worker
            assert isinstance(session, Session)
            if not session.send_unstored(handing.entry.data):
                with self._lock:
                    known.dispatcher.refused(handing)
                    self._settled_locked(known)

    def _take_locked(self, known: _Name, expired: list[Envelope]) -> None:
        """Take from the queue what workers have room for."""
        mailbox, dispatcher = known.mailbox, known.dispatcher
        if mailbox is None or known.refusing:
            return
        done: list[str] = []
        now = self._now()
        wanted = 0
        while wanted := dispatcher.wants():
            if dispatcher.bytes >= WORKER_BYTES * len(dispatcher.workers()):
                wanted = 0
            taken = mailbox.take(min(wanted, TAKEN)) if wanted else []
            if not taken:
                break
            for each in taken:
                try:
                    envelope = parse(each.data)
                except BadMessage as error:
                    _log.warning("an entry for the name %r is dropped: %s", known.name, error)
                    done.append(each.id)
                    continue
                source = address_of(envelope.source)
                ends = min(envelope.timestamp + envelope.expiration, now + LIFE)
                if source is None or kind_of(envelope) is not Kind.REQUEST:
                    _log.info("what is no request to the name %r is dropped", known.name)
                    done.append(each.id)
                elif ends <= now:
                    expired.append(envelope)
                    done.append(each.id)
                elif not dispatcher.add(Entry(each.id, (source, envelope.uid), each.data, ends)):
                    _log.debug("a copy of a request to %r is dropped", known.name)
                    done.append(each.id)
        if not wanted:
            mailbox.take(0)  # so that another relay may have what comes now
        if done:
            mailbox.ack(done)

    def _settled_locked(self, known: _Name) -> None:
        """Give up the queue of a name that has no worker here any more, or none that stays."""
        dispatcher = known.dispatcher
        if dispatcher.workers() or self._names.get(known.address) is not known:
            return
        self._give_back_locked(known)
        if known.address not in self._ending:
            self._ending[known.address] = self._now() + self._store.grace
            self._some.notify_all()
        if dispatcher.any_worker():
            return
        del self._names[known.address]
        mailbox, known.mailbox = known.mailbox, None
        if mailbox is not None:
            mailbox.close()

    def _give_back_locked(self, known: _Name) -> None:
        """Give back what waits here without a worker that has room."""
        back = known.dispatcher.withdraw()
        if back and known.mailbox is not None:
            known.mailbox.give_back([each.id for each in back])

    def _sum(self, count: Callable[[_Name], int]) -> float:
        with self._lock:
            total = sum(map(count, self._names.values()))
        return float(total)

    # The thread

    def _start(self) -> None:
        """Start the thread, unless it runs; if the system has none, the next one that joins does.

        Raises:
            Refusal: there is none.
        """
        with self._lock:
            if self._thread is not None or self._closed:
                return
            try:
                thread = daemon_thread(self._run, name="wsmux-relay-names")
                start_thread(thread)
            except NoThreadError as error:
                text = f"the relay cannot look after names: {error}"
                raise Refusal(UNAVAILABLE, text) from error
            self._thread = thread

    def _run(self) -> None:
        due: float | None = None  # when to look again
        while True:
            with self._lock:
                while True:
                    if due is None and (self._names or self._ending):
                        due = clock.monotonic() + TICK
                    left = None if due is None else due - clock.monotonic()
                    if self._closed or self._late or (left is not None and left <= 0):
                        break
                    self._some.wait(left)
                if self._closed:
                    return
                late, self._late = self._late, {}
                names = list(self._names.values())
            try:
                for known, expired in late.items():
                    for envelope in expired:
                        self._tell_expired(envelope)
                    self._pump(known)
                if due is None or clock.monotonic() < due:
                    continue
                due = None
                for known in names:
                    self._look_after(known)
                self._store.keep()
                self._end_names()
            except BusError as error:
                _log.warning("the claims of names are not renewed: %s", error)
            except Exception:
                _log.exception("the names of this relay were not looked after")

    def _look_after(self, known: _Name) -> None:
        """Remove what has expired, of which some was never handed, and give back what waits."""
        with self._lock:
            over = known.dispatcher.expire(self._now())
            if over and known.mailbox is not None:
                known.mailbox.ack(each.id for each in over)
            self._give_back_locked(known)
            self._settled_locked(known)
        for entry in over:
            if not entry.handed:
                self._tell_expired(parse(entry.data))
        if over:
            self._pump(known)

    def _end_names(self) -> None:
        """Answer what waits for names whose grace is over.

        With Redis, for one name in each round of the thread, so that nothing else waits for long.
        """
        now = self._now()
        with self._lock:
            over = [address for address, until in self._ending.items() if until <= now]
        for address in over:
            self._store.keep()  # many looks may take longer than a claim holds
            found = self._look(address)
            if found is not None and not found.workers:
                continue  # its grace ends a moment later there
            done = found is not None or self._refuse_waiting(address)
            if done:
                with self._lock:
                    self._ending.pop(address, None)
            if found is None and isinstance(self._queues, DurableQueues):
                return  # the next one has its turn in the next round

    def _look(self, address: Address) -> Presence | None:
        """Return who answers a name, if it is still, or again, the name of this twin."""
        name = name_of(address)
        found = None if name is None else self._store.look(name)
        return found if found is not None and found.owner == address.twin else None

    def _refuse_waiting(self, address: Address) -> bool:
        """Answer what waits in the queue of a name whose claim is over, for ``DRAIN_TIME`` at most.

        Return whether nothing waits any more, or the name was claimed again. What a store that
        stalls does not say is not that nothing waits.
        """
        with self._opens:
            with self._lock:
                known = self._names.get(address)
                if known is not None and (known.dispatcher.workers() or known.mailbox is None):
                    return True  # it was claimed again, or is given up with the last that leaves
                if known is not None:
                    known.refusing = True
            if known is None or known.mailbox is None:
                mailbox = self._queues.open_shared(address, self._more.set)
            else:
                mailbox = known.mailbox  # those that leave have what they answer from it
        try:
            nothing_left = self._refuse_from(mailbox, address)
            # If the last that was leaving has gone meanwhile, the mailbox was closed.
            return nothing_left and (known is None or known.mailbox is mailbox)
        finally:
            if known is None:
                mailbox.close()
            else:
                with self._lock:
                    known.refusing = False
                self._pump(known)

    def _refuse_from(self, mailbox: SharedMailbox, address: Address) -> bool:
        gone = f"the workers of the name {name_of(address)!r} have gone, and none has come again"
        deadline = Deadline(DRAIN_TIME)
        durable = isinstance(self._queues, DurableQueues)
        any_taken = False
        while not (self._closed or deadline.expired()):
            self._more.clear()
            taken = mailbox.take(TAKEN)
            if taken:
                any_taken = True
                # A request is queued only after a claim was seen, which is seen here, too.
                if self._look(address) is not None:
                    mailbox.give_back([each.id for each in taken])
                    return True
                mailbox.ack([each.id for each in taken])
                for each in taken:
                    self._tell_failed(parse(each.data), WORKERS_GONE, gone)
            elif not durable or self._closed:
                break
            else:
                self._more.wait(deadline.remaining())
        return not (any_taken or mailbox.waiting())


def nobody(name: str) -> str:
    """Return the text of the error for a name that nobody has joined."""
    return f"nobody has joined the name {name!r}: start a worker, or check the name"


def shown(presence: Presence) -> dict[str, Any]:
    """Return a presence as the relay answers it."""
    workers = [{"session": each.session, "since": each.since} for each in presence.workers]
    return {"owner": presence.owner, "since": presence.since, "workers": workers}


def _name(asked: Asked) -> str:
    return asked.fields.text("name", NAME, EXPECTED)
