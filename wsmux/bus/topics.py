"""Publish to the topics of relays, and subscribe to them.

::

    position = client.publish("orders", {"id": 1})
    with client.subscribe("orders", start="oldest") as orders:
        for message in orders:
            print(message.source, message.payload)

A subscription pulls; see ``relay.topics`` for the relay's side, ``session.subscription_state`` for
its states, and ``wire.topics`` for what is checked. It has no thread: the thread that reads also
asks the relay for more. Its own lock is held by the thread that reads, also while that waits; what
else may be called meanwhile does not need it.
"""

from __future__ import annotations

import secrets
import threading
import uuid
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, Self

from ..exceptions import ForkedError
from ..runtime.backoff import Backoff
from ..runtime.closing import Closing
from ..runtime.deadline import LONGEST_WAIT, Deadline
from ..runtime.logs import logger
from ..runtime.parking import OneShotEvent
from .errors import UNAVAILABLE, BusError, CallTimeout, TwinsUnavailable
from .services import decode
from .session.identity_session import IdentitySession, clock
from .session.relay_connection import RelayConnection
from .session.relay_control import Question, RelayControl
from .session.relay_pool import RelayPool
from .session.subscription_state import Entry, SubscriptionState
from .twins.records import Twin
from .wire.address import Address
from .wire.envelope import parse
from .wire.topics import (
    MAX_CREDIT,
    NEW,
    OLDEST,
    PUBLISH,
    READ,
    STOP,
    Batch,
    MessageRefused,
    Position,
    Publication,
    TopicGap,
    check_topic,
    parse_position,
    publish_answer,
    publish_body,
    read_answer,
    read_body,
    verified_publication,
)

__all__ = ["CREDIT", "Subscription", "TopicClient", "TopicMessage"]

# Messages that wait in a subscription, or are asked for.
CREDIT = 100

# Seconds for which a read waits at a relay, and those after which it is given up.
READ_WAIT, READ_LIFE = 20.0, 30.0

# Seconds until a publication that was not answered is sent again, at first and at most.
RETRY, LONGEST_RETRY = 0.1, 2.0

# Seconds to look up a publisher.
FIND_TIME = 20.0

# Seconds after which a thread that waits for a connection sees that the subscription was closed.
LOOK = 0.5

_log = logger("wsmux.bus")


class TopicMessage(NamedTuple):
    """Hold a message of a topic, whose publisher's signature was checked.

    Attributes:
        topic: the topic.
        position: its place in the topic; ``str`` makes a text of it, for ``subscribe``.
        source: the publisher.
        time: when it was published, in Unix seconds by the publisher's clock.
        schema: the media type of the data.
        data: the data.
    """

    topic: str
    position: Position
    source: Address
    time: int
    schema: str
    data: bytes

    @property
    def payload(self) -> Any:
        """The value of data that are JSON.

        Raises:
            BusError: code 500; they are not.
        """
        return decode(self.data, self.schema)


class TopicClient:
    """Publish and subscribe for one client. Any thread may use it.

    Args:
        control: asks relays.
        relay_pool: the connections to relays.
        endpoint: looks up publishers, and signs.

    Attributes:
        in_child: whether this is the copy in a forked child, which is of no use.
    """

    def __init__(
        self,
        control: RelayControl,
        relay_pool: RelayPool,
        endpoint: IdentitySession,
    ) -> None:
        self.control = control
        self.relay_pool = relay_pool
        self.endpoint = endpoint
        self._lock = threading.Lock()
        self.in_child = False
        self._under_way = 0
        self._closing = OneShotEvent()

    def is_awaited(self) -> bool:
        """Return whether there are publications or subscriptions, which wait for relays."""
        return self._under_way > 0

    def count(self, change: int) -> None:
        """Add to the number of what is under way."""
        with self._lock:
            self._under_way += change

    def close(self) -> None:
        """Send nothing again; what waits for relays ends with these."""
        self._closing.set()

    def publish(self, topic: str, data: bytes, schema: str, timeout: float) -> Position:
        """Publish; see ``Client.publish``."""
        deadline, uid = Deadline(timeout), str(uuid.uuid4())
        content = Publication(self.endpoint.address, uid, clock(), schema, data)
        body = publish_body(topic, content, self.endpoint.identity.sign)
        position: Position = self._ask(
            self.control.question(PUBLISH, body, deadline, uid=uid, read=publish_answer), deadline
        )
        return position

    def subscribe(
        self, topic: str, start: Position | str, credit: int, timeout: float
    ) -> Subscription:
        """Subscribe; see ``Client.subscribe``."""
        if not 1 <= credit <= MAX_CREDIT:
            raise ValueError(f"expected a credit from 1 to {MAX_CREDIT} messages, got {credit}")
        after, deadline = _place(start), Deadline(timeout)
        reader = secrets.token_hex(8)
        body = read_body(check_topic(topic), reader, after, 0, 0.0)
        batch: Batch = self._ask(
            self.control.question(READ, body, deadline, read=read_answer), deadline
        )
        begin = after if isinstance(after, Position) else batch.end()
        return Subscription(topic, reader, SubscriptionState(topic, begin, credit), self)

    def _ask(self, question: Question, deadline: Deadline) -> Any:
        """Ask a relay, again when it or its connection fails: it does the same thing once."""
        pause, sent = Backoff(RETRY, LONGEST_RETRY, 0.5), False
        self.count(1)
        try:
            while True:
                try:
                    connection = self.relay_pool.connected(deadline)
                    return self.control.wait(question, deadline, connection)
                except CallTimeout as error:
                    if sent and error.retry_safe and deadline.expired():
                        raise CallTimeout(error.message) from error  # an earlier one was sent
                    if not error.retry_safe or deadline.expired():
                        raise
                except BusError as error:
                    if error.code != UNAVAILABLE:
                        raise
                    sent = True
                    _log.info("%s is sent again: %s", question.command, error)
                self._closing.wait(min(pause.next(), deadline.park_seconds()))
        finally:
            self.count(-1)


class Subscription(Closing):
    """Read the messages of a topic, in order, with each publisher's signature checked.

    Made by ``Client.subscribe``. Several threads may read; each message goes to one of them.
    Leaving a ``with`` block closes it. Iterating reads until it is closed.

    While connections come and go, reading goes on behind the last message that was got, so none is
    left out or comes twice. What the relay has dropped meanwhile raises ``TopicGap``, once, and the
    next read goes on behind the gap. A relay could leave out, reorder or repeat messages; it cannot
    make or change one, which raises ``MessageRefused``.
    """

    def __init__(
        self, topic: str, reader: str, state: SubscriptionState, client: TopicClient
    ) -> None:
        self.topic = topic
        self._reader = reader
        self._state = state
        self._client = client
        self._turn = threading.Lock()
        self._over = OneShotEvent()
        self._asked: _Asked | None = None
        self._pause = Backoff(RETRY, LONGEST_RETRY, 0.5)
        self._next_ask = Deadline(0)
        client.count(1)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"at {self.position}"
        return f"<Subscription {self.topic} {state}>"

    @property
    def position(self) -> Position:
        """The position of the last message that was read; ``subscribe`` goes on behind it."""
        return self._state.position

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._over.is_set()

    def read(self, timeout: float | None = None) -> TopicMessage:
        """Return the next message, waiting for it.

        Args:
            timeout: seconds; ``None`` waits without limit. A message that does not come in time
                comes with a later call.

        Raises:
            TopicGap: messages were dropped before they were read; see its attributes.
            MessageRefused: a message is not what its publisher signed; the next call goes on.
            CallTimeout: no message came in time.
            RelayRefused: the relay refused; code 429 if too many subscriptions wait for it.
            TwinsUnavailable: the publisher could not be looked up; the message stays.
            ForkedError: the client belongs to the parent process.
            ValueError: the subscription or the client is closed.
        """
        self._check_open()
        deadline = Deadline(timeout)
        if not self._turn.acquire(timeout=deadline.park_seconds()):
            raise self._nothing()
        try:
            while True:
                self._check_open()
                self._collect()
                head = self._state.head()
                if self._state.wants():
                    self._ask(deadline if head is None else Deadline(0))
                if head is not None:
                    return self._delivered(head, deadline)
                self._wait(deadline)
        finally:
            self._turn.release()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TopicMessage:
        try:
            return self.read()
        except ValueError:
            if self.closed:
                raise StopIteration from None
            raise

    def close(self) -> None:
        """Read no more; wakes threads that wait. Returns at once; may be called twice."""
        if self._over.is_set() or self._client.in_child:
            return
        self._over.set()
        self._client.count(-1)
        asked = self._asked
        if asked is not None:
            self._client.control.withdraw(asked.question, ValueError(_CLOSED))
            body = read_body(self.topic, self._reader, self.position, 0, 0.0)
            stop = self._client.control.question(STOP, body, Deadline(READ_LIFE))
            asked.connection.offer(stop.signed)  # without it the relay waits in vain for a while

    # The thread that reads, which has the turn

    def _ask(self, deadline: Deadline) -> None:
        """Ask a relay for more; without one that is connected, wait for it until the deadline."""
        if not self._next_ask.expired():
            self._over.wait(min(_left(self._next_ask), _left(deadline)))
            return
        connection = self._connection(deadline)
        if connection is None:
            return
        after, credit = self._state.ask()
        control, life = self._client.control, Deadline(READ_LIFE, outlives=True)
        body = read_body(self.topic, self._reader, after, credit, READ_WAIT)
        question = control.question(READ, body, life, read=read_answer)
        try:
            future = control.send(question, Deadline(min(LOOK, _left(deadline))), connection)
        except BaseException as error:
            self._state.failed()
            if not isinstance(error, CallTimeout):
                raise
            self._next_ask = Deadline(self._pause.next(), outlives=True)
        else:
            self._asked = _Asked(question, connection, future, life)

    def _connection(self, deadline: Deadline) -> RelayConnection | None:
        """Return a connection, or ``None`` after a while or at the deadline."""
        pool = self._client.relay_pool
        try:
            return pool.connected(Deadline(min(LOOK, _left(deadline))))
        except CallTimeout:
            return None

    def _wait(self, deadline: Deadline) -> None:
        """Wait until what was asked for is here, but not longer than a read may take."""
        asked = self._asked
        if asked is not None and not self._over.is_set():
            left = min(_left(deadline), _left(asked.life))
            _, missing = wait([asked.future], left)
            if missing and asked.life.expired():
                self._client.control.withdraw(asked.question)
                self._asked = None
                self._state.failed()
        if deadline.expired() and not (asked is not None and asked.future.done()):
            raise self._nothing()

    def _collect(self) -> None:
        """Take what was asked for, if it is here."""
        asked = self._asked
        if asked is None or not asked.future.done():
            return
        self._asked = None
        try:
            batch: Batch = asked.future.result()
        except BaseException as error:
            self._state.failed()
            if not isinstance(error, BusError) or error.code != UNAVAILABLE:
                raise
            _log.info("messages of %s are asked for again: %s", self.topic, error)
            self._next_ask = Deadline(self._pause.next(), outlives=True)
        else:
            self._pause.reset()
            self._state.got(batch)

    def _delivered(self, head: Entry | TopicGap, deadline: Deadline) -> TopicMessage:
        if isinstance(head, TopicGap):
            self._state.take()
            raise head

        def find(number: int) -> Twin:
            return self._client.endpoint.twin(number, Deadline(min(FIND_TIME, _left(deadline))))

        try:
            _, made = verified_publication(parse(head.data), find, self.topic)
        except TwinsUnavailable:
            raise
        except BusError as error:
            self._state.take()
            raise MessageRefused(self.topic, head.position, error) from error
        self._state.take()
        return TopicMessage(
            self.topic, head.position, made.source, made.time, made.schema, made.data
        )

    def _check_open(self) -> None:
        if self._client.in_child:
            raise ForkedError(f"the subscription to {self.topic} belongs to the parent process")
        if self._over.is_set():
            raise ValueError(_CLOSED)

    def _nothing(self) -> CallTimeout:
        return CallTimeout(f"no message of {self.topic!r} came in time", retry_safe=True)


class _Asked(NamedTuple):
    """Hold a read that is under way."""

    question: Question
    connection: RelayConnection
    future: Future[Any]
    life: Deadline


_CLOSED = "this subscription is closed"


def _left(deadline: Deadline) -> float:
    left = deadline.remaining()
    return LONGEST_WAIT if left is None else left


def _place(start: Position | str) -> Position | str:
    """Return where to begin.

    Raises:
        ValueError: it is no place in a topic.
    """
    if isinstance(start, Position) or start in (NEW, OLDEST):
        return start
    try:
        return parse_position(str(start))
    except ValueError as error:
        text = f"expected {NEW!r}, {OLDEST!r} or a position to start at, got {str(start)[:80]!r}"
        raise ValueError(text) from error
