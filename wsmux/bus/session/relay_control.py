"""Ask relays themselves, and keep requests standing at them.

``RelayControl.ask`` sends one request to a relay and waits for its answer. ``Standing`` keeps
requests that hold for one connection, such as to share in the calls of a name: it makes them at
every relay, and again on each new connection, as long as they are wanted.

Threads and locks: ``take`` runs in the threads of connections and never blocks. ``Standing`` has
one thread, started with the first request, which asks and waits. Each class has one condition, held
briefly; nothing is sent under it.
"""

from __future__ import annotations

import json
import math
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...runtime import clock
from ...runtime.backoff import Backoff
from ...runtime.deadline import LONGEST_WAIT, Deadline
from ...runtime.logs import logger
from ...runtime.parking import Condition
from ...runtime.threads import daemon_thread, start_thread
from ..errors import (
    FAILED,
    FROM_RELAY,
    TOO_MANY,
    UNAVAILABLE,
    UNKNOWN_COMMAND,
    BusError,
    CallTimeout,
    RelayRefused,
    relay_refused,
)
from ..relay import router
from ..wire.envelope import Kind, kind_of
from ..wire.messages import Envelope
from .identity_session import IdentitySession, life_until
from .relay_connection import RelayConnection
from .relay_pool import RelayPool

__all__ = ["MAX_ASKED", "Question", "RelayControl", "Standing", "StandingState"]

# Requests that wait for an answer of a relay at once; further ones are refused.
MAX_ASKED = 10_000

# Seconds for the answer to a standing request.
ASK_TIME = 10.0

# Seconds until a relay that refused a standing request is asked again, at first and at most.
RETRY, LONGEST_RETRY = 0.5, 10.0

_log = logger("wsmux.bus")


class Question(NamedTuple):
    """Hold a signed request to a relay; ``read`` returns the value of its answer's payload."""

    uid: str
    command: str
    signed: bytes
    read: Callable[[bytes], Any]


class _Asked(NamedTuple):
    future: Future[Any]
    connection: RelayConnection
    serial: int
    read: Callable[[bytes], Any]


class RelayControl:
    """Ask relays themselves. Any thread may use it.

    Args:
        endpoint: signs the requests.
        relay_pool: the connections to relays.
    """

    def __init__(self, endpoint: IdentitySession, relay_pool: RelayPool) -> None:
        self._endpoint = endpoint
        self._relay_pool = relay_pool
        self._lock = threading.Lock()
        self._asked: dict[str, _Asked] = {}
        self._closed = False

    def ask(
        self,
        command: str,
        payload: Mapping[str, Any],
        deadline: Deadline,
        relay: RelayConnection | None = None,
    ) -> Any:
        """Ask a relay, and return what it answers; blocks until the deadline.

        Args:
            command: begins with ``relay.``.
            payload: values that JSON can represent.
            deadline: bounds the wait for a connection, for room in it, and for the answer.
            relay: the connection to ask over; otherwise the one over which messages are sent, or
                the next that is connected.

        Raises:
            RelayRefused: the relay refused; code 501 if it does not know the command.
            CallTimeout: no relay was connected, or none answered in time. The relay may have done
                it, unless ``retry_safe`` is true.
            BusError: code 503; the connection ended before the answer came.
            ValueError: the client is closed.
        """
        data = json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
        question = self.question(command, data, deadline)
        return self.wait(question, deadline, relay or self._relay_pool.connected(deadline))

    def question(
        self,
        command: str,
        data: bytes,
        deadline: Deadline,
        *,
        uid: str | None = None,
        read: Callable[[bytes], Any] = json.loads,
    ) -> Question:
        """Return a signed request; it may be sent more than once, as long as it lives.

        Args:
            command: begins with ``relay.``.
            data: the payload.
            deadline: when it expires.
            uid: a new UUID; made here if omitted.
            read: returns the value of an answer's payload, or raises ``ValueError``; called in the
                thread of a connection.
        """
        uid = uid or str(uuid.uuid4())
        signed = self._endpoint.request_to_relay(uid, command, data, life_of(deadline))
        return Question(uid, command, signed, read)

    def wait(self, question: Question, deadline: Deadline, connection: RelayConnection) -> Any:
        """Send a request, and return the answer; see ``ask``."""
        try:
            return self.send(question, deadline, connection).result(deadline.remaining())
        except TimeoutError as error:
            if isinstance(error, CallTimeout):
                raise
            text = f"{connection.url} did not answer {question.command!r} in time"
            raise CallTimeout(text) from None
        finally:
            self.withdraw(question)

    def send(
        self, question: Question, deadline: Deadline, connection: RelayConnection
    ) -> Future[Any]:
        """Send a request that is not under way, and return the future of its answer.

        Blocks for room in the connection only. The future ends with the connection, but has no
        timeout: ``withdraw`` the request then.

        Raises:
            CallTimeout: the connection had no room in time, or has ended; nothing was sent.
            BusError: code 429; too many requests wait.
            ValueError: the client is closed.
        """
        future = Future[Any]()
        with self._lock:
            if self._closed:
                raise ValueError("this bus client is closed")
            if len(self._asked) >= MAX_ASKED:
                text = f"{MAX_ASKED} requests wait for the answers of relays"
                raise BusError(TOO_MANY, text, retry_safe=True)
            self._asked[question.uid] = _Asked(future, connection, connection.serial, question.read)
        sent = False
        try:
            sent = connection.send(question.signed, deadline)
        finally:
            if not sent:
                self.withdraw(question)
        if not sent:
            text = f"{connection.url} did not take {question.command!r}"
            raise CallTimeout(text, retry_safe=True)
        return future

    def withdraw(self, question: Question, error: Exception | None = None) -> None:
        """Wait no more for an answer; ends its future with ``error``, if that is given."""
        with self._lock:
            asked = self._asked.pop(question.uid, None)
        if asked is not None and error is not None:
            asked.future.set_exception(error)

    def close(self) -> None:
        """End what waits for an answer; may be called twice."""
        with self._lock:
            self._closed = True
        self._end(lambda _connection, _serial: True, "the client was closed")

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    # Threads of the connections

    def take(self, envelope: Envelope) -> bool:
        """Take the answer of a relay; ``False`` if it answers nothing that was asked here.

        Only the relay that was asked knows the uid.
        """
        kind = kind_of(envelope)
        if envelope.source.twin or kind not in (Kind.RESPONSE, Kind.ERROR):
            return False
        with self._lock:
            asked = self._asked.pop(envelope.uid, None)
        if asked is None:
            return False
        future = asked.future
        if kind is Kind.ERROR:
            code, text = envelope.error.code, envelope.error.message
            if code == FROM_RELAY and text not in (router.LIMITED, router.EXPIRED):
                # All that a relay without these can say.
                code, text = UNKNOWN_COMMAND, f"this relay knows no requests to itself: {text}"
            future.set_exception(relay_refused(code, text))
            return True
        try:
            future.set_result(asked.read(envelope.plain))
        except (ValueError, RecursionError) as error:
            text = f"a relay's answer cannot be read: {error}"
            future.set_exception(RelayRefused(FAILED, text))
        return True

    def lost(self) -> None:
        """End what was asked over connections that have ended; never blocks."""
        self._end(lambda connection, serial: connection.serial != serial, "the connection ended")

    def _end(self, ended: Callable[[RelayConnection, int], bool], why: str) -> None:
        with self._lock:
            over = [
                self._asked.pop(uid)
                for uid, asked in list(self._asked.items())
                if ended(asked.connection, asked.serial)
            ]
        for asked in over:
            text = f"{asked.connection.url} gave no answer: {why}"
            asked.future.set_exception(BusError(UNAVAILABLE, text))


@dataclass(slots=True)
class StandingState:
    """Describe a standing request at one relay.

    Attributes:
        serial: the connection on which the relay has accepted it; 0 for none.
        sent: the connection on which the relay may have done it, even without an answer; 0 for
            none.
        reason: why it was not accepted; empty if it was, or was not made yet.
        answer: what the relay answered.
    """

    serial: int = 0
    sent: int = 0
    reason: str = ""
    answer: Any = None
    error: BusError | None = None
    due: float = -math.inf
    pause: Backoff = field(default_factory=lambda: Backoff(RETRY, LONGEST_RETRY, 0.5))


@dataclass(slots=True, eq=False)
class _Wanted:
    key: str
    command: str
    payload: Mapping[str, Any]
    undo: str
    states: dict[str, StandingState] = field(default_factory=dict)  # by the URL of the relay
    undo_at: float = -math.inf  # when it may be undone
    pause: Backoff = field(default_factory=lambda: Backoff(RETRY, LONGEST_RETRY, 0.5))


class Standing:
    """Keep requests standing at every relay; see the module for the threads.

    Args:
        name: the name of the thread.
        control: asks the relays.
        relay_pool: the connections to relays.
    """

    def __init__(self, name: str, control: RelayControl, relay_pool: RelayPool) -> None:
        self._name = name
        self._control = control
        self._relay_pool = relay_pool
        self._condition = Condition()
        self._wanted: dict[str, _Wanted] = {}
        self._undone: list[_Wanted] = []  # to be undone, the oldest first
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, key: str, command: str, payload: Mapping[str, Any], undo: str) -> None:
        """Make a request at every relay from now on; returns at once.

        Args:
            key: names it; what was under the same key is replaced.
            command, payload: as for ``RelayControl.ask``. Making it twice must do no harm.
            undo: the command that takes it back, with the same payload; see ``remove``.

        Raises:
            ValueError: the client is closed.
        """
        with self._condition:
            self._check_open_locked()
            if self._thread is None:
                thread = daemon_thread(self._run, name=self._name)
                start_thread(thread)
                self._thread = thread
            self._wanted[key] = _Wanted(key, command, payload, undo)
            self._condition.notify_all()

    def wait(self, key: str, deadline: Deadline) -> Any:
        """Wait until a relay has accepted a request, and return what that answered.

        Raises:
            RelayRefused: each relay that is connected refused; it is asked again all the same.
            CallTimeout: no relay answered in time.
            ValueError: the client is closed, or the request is not wanted any more.
        """
        with self._condition:
            while True:
                self._check_open_locked()
                wanted = self._wanted.get(key)
                if wanted is None:
                    raise ValueError(f"{key!r} is not wanted any more")
                states, answered = wanted.states, True
                refusal: BusError | None = None
                for relay in self._relay_pool.connections():
                    state = states.get(relay.url)
                    serial = relay.serial
                    if state is not None and serial and state.serial == serial:
                        return state.answer
                    refused = state.error if state is not None else None
                    answered = answered and (not serial or isinstance(refused, RelayRefused))
                    refusal = refusal or refused
                if answered and isinstance(refusal, RelayRefused):
                    raise refusal
                if deadline.expired():
                    why = "; ".join(
                        f"{each.url}: {each.reason or each.state}"
                        for each in self._relay_pool.status()
                    )
                    text = f"no relay answered {wanted.command!r} in time ({refusal or why})"
                    raise CallTimeout(text, retry_safe=True)
                self._condition.wait(deadline.remaining())

    def states(self, key: str) -> dict[str, StandingState]:
        """Return the state of a request at each relay that was asked; none if it is not wanted."""
        with self._condition:
            wanted = self._wanted.get(key)
            return {} if wanted is None else dict(wanted.states)

    def remove(self, key: str) -> bool:
        """Make a request no more, and undo it; returns at once. ``False`` if it was not wanted."""
        with self._condition:
            wanted = self._wanted.pop(key, None)
            if wanted is None:
                return False
            self._undone.append(wanted)
            self._condition.notify_all()
            return True

    def wait_undone(self, deadline: Deadline) -> bool:
        """Wait until what was removed is undone; ``False`` if that takes longer."""
        with self._condition:
            while self._undone and not self._closed:
                if deadline.expired():
                    return False
                self._condition.wait(deadline.remaining())
            return True

    def wanted(self) -> list[str]:
        """Return the keys of the requests that are wanted."""
        with self._condition:
            return list(self._wanted)

    def changed(self) -> None:
        """Note that a connection was made or lost; never blocks."""
        with self._condition:
            self._condition.notify_all()

    def close(self, deadline: Deadline) -> None:
        """Stop, and wait for the thread at most until the deadline; may be called twice.

        The control is to be closed first, so that the thread does not wait for an answer.
        """
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(deadline.remaining())

    def _check_open_locked(self) -> None:
        if self._closed:
            raise ValueError("this bus client is closed")

    # The thread

    def _run(self) -> None:
        while True:
            with self._condition:
                undone = found = None
                while not (
                    self._closed
                    or (undone := self._next_undone_locked())
                    or (found := self._next_locked())
                ):
                    self._condition.wait(self._pause_locked())
                if self._closed:
                    return
            try:
                if undone is not None:
                    self._undo(undone)
                elif found is not None:
                    self._ask(*found)
            except Exception as error:
                if isinstance(error, ValueError) and self._control.closed:
                    return  # the client is closing
                _log.exception("a request to a relay failed; it is made again")

    def _next_locked(self) -> tuple[str, _Wanted, StandingState, RelayConnection, int] | None:
        """Return what is to be asked now."""
        now = clock.monotonic()
        for relay in self._relay_pool.connections():
            serial = relay.serial
            if not serial:
                continue
            for key, wanted in self._wanted.items():
                state = wanted.states.setdefault(relay.url, StandingState())
                if state.serial != serial and state.due <= now:
                    state.due = now + LONGEST_RETRY  # in case it fails in a way of its own
                    return key, wanted, state, relay, serial
        return None

    def _next_undone_locked(self) -> _Wanted | None:
        """Return what is to be undone now; forget what is wanted again since it could not be."""
        tried = [each for each in self._undone if each.undo_at > -math.inf]
        for each in tried:
            if each.key in self._wanted:
                self._undone.remove(each)
                self._condition.notify_all()
        now = clock.monotonic()
        return next((each for each in self._undone if each.undo_at <= now), None)

    def _pause_locked(self) -> float | None:
        """Return the seconds until a relay that refused is to be asked again."""
        due = min((each.undo_at for each in self._undone), default=math.inf)
        for relay in self._relay_pool.connections():
            for wanted in self._wanted.values() if relay.serial else ():
                state = wanted.states.get(relay.url)
                if state is not None and state.serial != relay.serial:
                    due = min(due, state.due)
        return None if due == math.inf else max(0.0, due - clock.monotonic())

    def _ask(
        self, key: str, wanted: _Wanted, state: StandingState, relay: RelayConnection, serial: int
    ) -> None:
        failure: BusError | None = None
        answer = None
        try:
            answer = self._control.ask(wanted.command, wanted.payload, Deadline(ASK_TIME), relay)
        except BusError as error:
            failure = error
            if str(error) != state.reason:
                _log.warning("%s: %s %s: %s", relay.url, wanted.command, key, error)
        with self._condition:
            state.error, state.reason = failure, "" if failure is None else str(failure)
            if failure is None or _may_be_done(failure):
                state.sent = serial
            if failure is None:
                state.serial, state.answer = serial, answer
                state.pause.reset()
                state.due = -math.inf  # on the next connection at once
            else:
                lost = relay.serial != serial
                state.due = clock.monotonic() + (0.0 if lost else state.pause.next())
            self._condition.notify_all()

    def _undo(self, undone: _Wanted) -> None:
        """Undo a request at the relays that may have done it; their connections may have ended.

        It is tried again at those that could not do it, unless it is wanted again by then.
        """
        failed = False
        try:
            for relay in self._relay_pool.connections():
                state = undone.states.get(relay.url)
                if state is None or not state.sent or state.sent != relay.serial:
                    continue
                try:
                    self._control.ask(undone.undo, undone.payload, Deadline(ASK_TIME), relay)
                    state.serial = state.sent = 0
                except BusError as error:
                    _log.warning("%s: %s %s: %s", relay.url, undone.undo, undone.key, error)
                    failed = failed or not _is_final(error)
        finally:
            with self._condition:
                if failed and undone.key not in self._wanted:
                    undone.undo_at = clock.monotonic() + undone.pause.next()
                else:
                    self._undone.remove(undone)
                self._condition.notify_all()


def _may_be_done(error: BusError) -> bool:
    """Return whether a relay may have done what it gave no answer to, or failed in."""
    return not (_is_final(error) if isinstance(error, RelayRefused) else error.retry_safe)


def _is_final(error: BusError) -> bool:
    """Return whether asking a relay again would not help."""
    return isinstance(error, RelayRefused) and error.code not in (UNAVAILABLE, FAILED)


def life_of(deadline: Deadline) -> int:
    """Return the expiration of a request that must be answered before a deadline."""
    left = deadline.remaining()
    return life_until(LONGEST_WAIT if left is None else max(left, 1.0))
