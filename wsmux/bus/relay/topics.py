"""Keep what twins publish to topics, and give it to who reads them.

Subscribers pull: a *read* asks for what comes after a position, and for how many messages there is
room (its credit). So the relay sends no more than a subscriber can take, and knows nothing of a
subscription between two reads: a reader that was cut off asks again, here or at another relay of
the same Redis, and goes on behind the last message that it got.

A read is

- *waiting*, while there is nothing to tell: it is in the table, under its session and reader;
- *answered*, when it has left the table, which the thread that removes it alone does: with
  messages, with a later position if what it asked for was dropped, or with nothing when its time
  is over;
- *gone* without an answer, if its session ends, a later read of its reader comes, or ``STOP`` does.

If the connection has no room for messages, the read waits on: they stay in the log, and no queue of
the session has to keep them.

It is put into the table before the log is read. So a message is seen by that read of the log, or
its publication sees the waiting read.

Threads and locks: publications and reads run in the thread of the connection that asks, and block
for the store. One thread, started with the first read that waits, answers those that a new message
or the end of their time concerns. The condition guards the table and is held briefly; the store is
not asked, and nothing is sent, under it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

from ...exceptions import NoThreadError
from ...runtime import clock, fork
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Condition
from ...runtime.threads import daemon_thread, start_thread
from ..errors import BAD_INPUT, TOO_MANY, UNAVAILABLE, BusError, TwinsUnavailable
from ..twins.records import Twin
from ..wire.envelope import accepted_until, relay_error, relay_response
from ..wire.messages import Envelope
from ..wire.names import EXPECTED, NAME
from ..wire.topics import (
    MAX_CREDIT,
    MAX_PUBLISH,
    MAX_WAIT,
    NEW,
    OLDEST,
    PLACE,
    PUBLISH,
    READ,
    READER,
    STOP,
    Batch,
    Position,
    check_topic,
    gap,
    parse_position,
    read_answer_body,
    verified_publication,
)
from .control import LATER, Asked, Control, Refusal
from .metrics import RelayMetrics
from .queues import QueueUnavailable
from .sessions import PUT_TIME, Session
from .topic_store import ANYBODY, NewMessage, TopicFull, TopicStore

__all__ = ["FORBIDDEN", "MAX_READERS", "Topics", "publishers_of"]

# The code for a twin that may not publish to a topic.
FORBIDDEN = 403

# Reads of one connection that wait at once.
MAX_READERS = 64

# Seconds between two looks for reads whose time is over, and those that one read of a log may take
# in the thread that serves all.
LOOK, READ_TIME = 0.5, 1.0

# Batches that are held for readers at the same place; most wait at the end of their topic.
MAX_SHARED = 16

_log = logger("wsmux.bus")


class _Read(NamedTuple):
    session: Session
    asked: Envelope  # its uid alone: what else it has need not wait
    topic: str
    reader: str
    after: Position | str
    credit: int
    due: float  # by the monotonic clock
    at_once: bool  # to be answered whatever there is

    def is_told_by(self, batch: Batch) -> bool:
        """Return whether a batch is worth an answer."""
        after = self.after
        if self.at_once or batch.envelopes or not isinstance(after, Position):
            return True
        return batch.epoch > 0 and (batch.epoch, batch.first) != (after.epoch, after.number + 1)


# What was read of each topic behind a position, with a credit.
_Batches = dict[tuple[str, Position | str, int], Batch]


class Sending(Protocol):
    """Describe what sends the answers of a relay."""

    def __call__(self, session: Session, made: Envelope, *, keep: bool = True) -> bool:
        """Send an answer; see ``Relay.send_answer``."""


class Topics:
    """Serve the topics of a relay; see the module.

    Args:
        store: where they are kept; owned by this.
        find: looks up a twin.
        send: sends the answer of the relay to a session; see ``Relay.send_answer``.
        metrics: counts messages, readers and gaps.
        publishers: the twins that may publish to some topics; anybody may to others.
    """

    def __init__(
        self,
        store: TopicStore,
        find: Callable[[int], Twin | None],
        send: Sending,
        metrics: RelayMetrics,
        publishers: Mapping[str, Collection[int]],
    ) -> None:
        self._store = store
        self._find = find
        self._send = send
        self._metrics = metrics
        self._publishers = publishers_of(publishers)
        self._condition = Condition()
        self._reads: defaultdict[Session, dict[str, _Read]] = defaultdict(dict)
        self._by_topic: defaultdict[str, dict[int, _Read]] = defaultdict(dict)  # by id()
        self._dirty: set[str] = set()
        self._unread: set[str] = set()  # topics whose logs could not be read
        self._thread: threading.Thread | None = None
        self._closed = False
        metrics.watch_readers(self._count)
        store.watch(self.changed)
        fork.register(self)

    def forked(self) -> None:
        """Disable the copy in a forked child; see ``runtime.fork``."""
        self._condition = Condition()
        self._closed = True
        self._reads.clear()
        self._by_topic.clear()

    def serve(self, control: Control) -> None:
        """Answer the commands of topics."""
        control.add(PUBLISH, self._publish, MAX_PUBLISH)
        control.add(READ, self._read)
        control.add(STOP, self._stop)
        control.on_leave(self._left)

    def close(self, deadline: Deadline) -> None:
        """Answer no more reads, and close the store."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(deadline.remaining())
        self._store.close(deadline)

    # Threads of the connections

    def _publish(self, asked: Asked) -> dict[str, str]:
        envelope, now = asked.envelope, int(time.time())
        twin = asked.session.address.twin
        try:
            topic, _ = verified_publication(envelope, self._find)
            end = accepted_until(envelope, now)
        except TwinsUnavailable:
            raise
        except BusError as error:
            raise Refusal(BAD_INPUT, error.message) from error
        allowed = self._publishers.get(topic)
        if allowed is not None and twin not in allowed:
            text = f"twin {twin} may not publish to {topic!r}: have the relay allow it with --topic"
            raise Refusal(FORBIDDEN, text)
        data = envelope.SerializeToString()
        creator = twin if allowed is None else ANYBODY
        message = NewMessage(topic, creator, f"{twin}:{envelope.uid}", data, end)
        try:
            position = self._store.append(message, Deadline(PUT_TIME))
        except TopicFull as error:
            raise Refusal(TOO_MANY, error.message) from error
        self._metrics.published()
        return {"position": str(position)}

    def _read(self, asked: Asked) -> Any:
        fields = asked.fields
        after = fields.text("after", PLACE, "a position as a message gave it")
        wait = fields.number("wait", 0, MAX_WAIT) / 1000
        credit = fields.number("credit", 0, MAX_CREDIT)
        at_once = not (wait and credit) or after in (NEW, OLDEST)
        made = _Read(
            asked.session,
            Envelope(uid=asked.envelope.uid),
            fields.text("topic", NAME, f"the name of a topic, {EXPECTED}"),
            fields.text("reader", READER, "the name of a reader"),
            after if after in (NEW, OLDEST) else parse_position(after),
            credit,
            math.inf if at_once else clock.monotonic() + wait,
            at_once,
        )
        self._add(made)
        if credit and not made.session.link.has_room():
            self._look_again(made)
            return LATER
        try:
            batch = self._store.read(made.topic, made.after, made.credit, Deadline(PUT_TIME))
        except QueueUnavailable:
            if at_once:
                self._remove(made)
                raise
            self._look_again(made)
        except BaseException:
            self._remove(made)
            raise
        else:
            if made.is_told_by(batch):
                self._answer(made, batch)
        return LATER

    def _stop(self, asked: Asked) -> None:
        reader = asked.fields.text("reader", READER, "the name of a reader")
        with self._condition:
            made = self._reads.get(asked.session, {}).get(reader)
            if made is not None:
                self._remove_locked(made)

    def _left(self, session: Session) -> None:
        with self._condition:
            for made in list(self._reads.get(session, {}).values()):
                self._remove_locked(made)

    def _add(self, made: _Read) -> None:
        with self._condition:
            if not self._reads:
                self._condition.notify_all()  # the thread keeps no time without any
            mine = self._reads[made.session]
            before = mine.get(made.reader)
            if before is not None:
                self._remove_locked(before)
            elif len(mine) >= MAX_READERS:
                text = f"{MAX_READERS} subscriptions of this connection wait for messages"
                raise Refusal(TOO_MANY, f"{text}: close some, or use another client")
            self._reads[made.session][made.reader] = made
            self._by_topic[made.topic][id(made)] = made
            thread = None
            if self._thread is None and not self._closed:
                self._thread = thread = daemon_thread(self._run, name="wsmux-topics")
        if thread is None:
            return
        try:
            start_thread(thread)
        except NoThreadError as error:
            with self._condition:
                self._thread = None
                self._remove_locked(made)
            raise Refusal(UNAVAILABLE, f"the relay cannot wait for messages: {error}") from error

    def _remove(self, made: _Read) -> bool:
        with self._condition:
            return self._remove_locked(made)

    def _remove_locked(self, made: _Read) -> bool:
        """Take a read out of the table; ``False`` if it is not there any more."""
        mine = self._reads.get(made.session)
        if mine is None or mine.get(made.reader) is not made:
            return False
        del mine[made.reader], self._by_topic[made.topic][id(made)]
        if not mine:
            del self._reads[made.session]
        if not self._by_topic[made.topic]:
            del self._by_topic[made.topic]
        return True

    def _answer(self, made: _Read, batch: Batch) -> None:
        """Answer a read once, if there is room; otherwise it waits on."""
        if not self._remove(made):
            return
        data, now = read_answer_body(batch), int(time.time())
        answer = relay_response(made.asked, made.session.address, data, now)
        if not self._send(made.session, answer, keep=not batch.envelopes):
            self._put_back(made)
            return
        after = made.after if made.credit else None  # without credit it only asks where it is
        if isinstance(after, Position) and gap(made.topic, after, batch) is not None:
            self._metrics.gap()

    def _put_back(self, made: _Read) -> None:
        """Let a read wait for room, unless its session has ended or its reader has asked again."""
        with self._condition:
            mine = self._reads[made.session]
            # The session leaves the table after its link has got an error, in its own thread.
            if made.session.link.error is None and made.reader not in mine:
                mine[made.reader] = self._by_topic[made.topic][id(made)] = made
                self._unread.add(made.topic)
            elif not mine:
                del self._reads[made.session]

    def _count(self) -> int:
        with self._condition:
            return sum(len(each) for each in self._by_topic.values())

    # Called by the store

    def changed(self, topics: Collection[str] | None) -> None:
        """Note that topics may have changed; ``None`` for any of them."""
        with self._condition:
            known = self._by_topic.keys()
            self._dirty.update(known if topics is None else known & set(topics))
            if self._dirty:
                self._condition.notify_all()

    # The thread

    def _run(self) -> None:
        look = Deadline(LOOK)
        while True:
            with self._condition:
                while not (self._closed or self._dirty or (self._reads and look.expired())):
                    self._condition.wait(look.remaining() if self._reads else None)
                if self._closed:
                    return
                over: list[_Read] = []
                dirty, self._dirty = self._dirty, set()
                if look.expired():
                    look, now = Deadline(LOOK), clock.monotonic()
                    dirty |= self._unread
                    self._unread.clear()
                    for mine in self._by_topic.values():
                        over += [each for each in mine.values() if each.due <= now]
                changed = [each for name in dirty for each in self._by_topic.get(name, {}).values()]
            batches: _Batches = {}
            for made in changed:
                self._try(made, batches)
            for made in over:
                self._try(made, None)

    def _try(self, made: _Read, batches: _Batches | None) -> None:
        """Answer a read if there is something to tell, or without ``batches`` end it."""
        try:
            if batches is None:
                self._end(made)
            elif not made.session.link.has_room():
                self._look_again(made)
            else:
                self._tell(made, batches)
        except QueueUnavailable as error:
            _log.warning("a read of %s waits longer: %s", made.topic, error.message)
            self._look_again(made)
        except Exception:
            _log.exception("a read of %s failed", made.topic)
            self._refuse(made)

    def _tell(self, made: _Read, batches: _Batches) -> None:
        """Answer a read if there is something to tell; readers at one place share a batch."""
        place = made.topic, made.after, made.credit
        batch = batches.get(place)
        if batch is None:
            if len(batches) >= MAX_SHARED:
                batches.clear()
            batch = batches[place] = self._store.read(*place, Deadline(READ_TIME))
        if made.is_told_by(batch):
            self._answer(made, batch)

    def _look_again(self, made: _Read) -> None:
        """Read the log of a read that waits again, after a while."""
        with self._condition:
            self._unread.add(made.topic)

    def _end(self, made: _Read) -> None:
        """Answer a read whose time is over: there is nothing new."""
        after = made.after
        assert isinstance(after, Position)  # the others are answered at once
        self._answer(made, Batch(after.epoch, after.number + 1, ()))

    def _refuse(self, made: _Read) -> None:
        if self._remove(made):
            text, now = "the relay failed to read the topic; its log says why", int(time.time())
            error = relay_error(made.asked, text, now, code=UNAVAILABLE, to=made.session.address)
            self._send(made.session, error)


def publishers_of(topics: Mapping[str, Collection[int]]) -> dict[str, frozenset[int]]:
    """Return which twins may publish to which topics.

    Raises:
        ValueError: the name of a topic is invalid, or nobody may publish to it.
    """
    made = {check_topic(name): frozenset(twins) for name, twins in topics.items()}
    for name, twins in made.items():
        if not twins:
            raise ValueError(
                f"nobody may publish to the topic {name!r}: name twins, or leave it out"
            )
    return made
