"""Serve the connections and sessions of a server, over any transport.

A server consists of four kinds of objects. Each calls those below it, and none above:

- ``ServerEngine`` owns the connections, the table of sessions, and a ``SessionRecord`` for each.
- ``CallDispatcher`` owns the services, a ``CallTable`` for each session, and the threads that run
  handlers.
- ``Replies`` owns the queue of writers that wait for room, and the threads that run deferred
  functions. A handler writes through its ``ServerCall`` to ``Replies``, which sends the message and
  records in the call what has ended.
- ``SessionRecord`` passes messages through the session's counters, and queues them on the
  connection.

Threads and locks:

- One mutex guards the sessions, their records, the tables of calls and both halves of each call.
  The engine makes it, and shares it with the dispatcher and the replies. Methods that end in
  ``_locked`` need it held; all others are called without it. Under it no user code runs and nothing
  is sent. A transport's own mutex may be taken under it, never the other way round; so may the lock
  of the event callbacks.
- Each connection has an I/O thread, which calls ``serve``: it performs the handshake, receives
  messages, validates them with the schemas, and handles the session's timers.
- The messages of a session are handled in order. The thread that handles one holds the ``order`` of
  the session's record, so a new connection waits for the message that the replaced one is handling.
  ``order`` is taken before the mutex, and held while the message is dispatched.
- Handlers run in a bounded pool of workers, and deferred functions in another, because handlers may
  wait for those. The pools' locks are taken without the mutex. A generator that waits holds no
  worker, see ``generator_run``. One more thread watches the timers of sessions without a
  connection, of generators, and of calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from ...exceptions import NoThreadError
from ...protocols.framing import Opcode
from ...runtime import clock, fork
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Parker, Waiter, wake
from ...runtime.threads import daemon_thread, register, start_thread
from ...transport.message_transport import MessageTransport
from ..errors import UNEXPECTED_DISCONNECT, FailureKind, GapError, RiverError, SessionFailure
from ..options import Options
from ..services import Service, service_table
from ..session.metadata_refresh import RefreshLapse
from ..session.metadata_validation import InvalidMetadata, MetadataValidation, Parsed
from ..session.session import Session
from ..session.session_info import SessionInfo
from ..session.session_registry import Accepted, Hello, Refused, Sessions
from ..wire.codec import Codec
from ..wire.envelope import Envelope
from ..wire.handshake import (
    REHANDSHAKE_STREAM,
    MalformedHandshake,
    parse_rehandshake_response,
    rehandshake_request_payload,
)
from ..wire.ids import new_id
from ..wire.message_size import most_read, most_taken
from .call_dispatcher import CallDispatcher
from .dial import cut_by_size, hang_up
from .event_callbacks import EventCallbacks
from .server_calls import Replies, ServerCall
from .session_record import NOBODY, Caller, Renewal, SessionRecord

__all__ = ["ServerEngine"]

# Messages that are handled before workers are woken, if one read brought more of them.
TOGETHER = 64

_log = logger("wsmux.rpc")


class ServerEngine:
    """Keep the connections and sessions of a server. See ``rpc.serve`` for the arguments.

    It owns, under its mutex, the connections, the table of sessions with a record for each, the
    waiter of the thread that watches timers, and whether the server is closed.

    Attributes:
        mutex: the server's mutex; see the module.
        codec: the codec of the clients.
        first_size: maximum size in bytes of a message before the connection has a session.
        sessions: the table of sessions, without their connections.
        dispatcher: runs the calls of all sessions.
        replies: sends their answers.
    """

    def __init__(
        self,
        services: Iterable[Service],
        codec: Codec,
        options: Options,
        callbacks: EventCallbacks,
        *,
        server_id: str,
        context: Any,
        validation: MetadataValidation,
        middleware: tuple[Callable[..., Any], ...],
        workers: int,
        max_workers: int,
        expose_errors: bool,
    ) -> None:
        name = f"wsmux-rpc-{server_id}"
        self.mutex = threading.Lock()
        self.codec = codec
        self._watch = Waiter()
        self.first_size = most_taken(options.max_size)
        self.replies = Replies(self.mutex, codec, options, name=name, workers=workers)
        self.dispatcher = CallDispatcher(
            service_table(services),
            self.replies,
            self.mutex,
            options,
            name=name,
            context=context,
            middleware=middleware,
            workers=workers,
            max_workers=max_workers,
            expose_errors=expose_errors,
            alarm=self._watch,
        )
        self.sessions = Sessions(server_id, codec=codec, options=options, new_id=new_id)
        self._options = options
        self._callbacks = callbacks
        self._validation = validation
        self._records: dict[Session, SessionRecord] = {}
        self._ask_packed = codec.pack(rehandshake_request_payload())
        self._channels: set[MessageTransport] = set()
        self._closed = False
        start_thread(daemon_thread(target=self._watch_times, name=f"{name}-times"))
        fork.register(self)
        register(self)

    def forked(self) -> None:
        """See ``runtime.fork``."""
        self.mutex = threading.Lock()
        self.dispatcher.forked(self.mutex)
        self._closed = True

    def leave(self) -> None:
        """Close without waiting for handlers, unless another call does; see ``runtime.threads``."""
        if not self._closed:
            self.close(Deadline(0.0))

    # Any thread

    @property
    def closed(self) -> bool:
        """Whether the server is closed, and serves no more connections."""
        return self._closed

    def session_count(self) -> int:
        """Return the number of sessions."""
        with self.mutex:
            return len(self.sessions)

    def list_sessions(self) -> list[SessionInfo]:
        """Return a snapshot of each session, oldest first.

        The mutex is released after each of them, so that messages need not wait for all.
        """
        with self.mutex:
            records = [] if self._closed else list(self._records.values())
        described = map(self.dispatcher.describe, records)
        return [info for info in described if info is not None]

    def end_session(self, client_id: str, reason: str) -> bool:
        """End the session of a client, and its connection; return ``False`` if it has none."""
        wakes: list[Parker] = []
        with self.mutex:
            session = self.sessions.get(client_id)
            if session is None:
                return False
            channel = self._records[session].channel
            over = self._end_session_locked(session, reason, wakes)
            self.sessions.end(session)
        wake(wakes)
        self.replies.finish(over)
        if channel is not None:
            hang_up(channel)
        return True

    def request_handshake(self, client_id: str) -> bool:
        """Ask a client for new metadata; return ``False`` if it is not connected."""
        with self.mutex:
            session = self.sessions.get(client_id)
            record = None if session is None else self._records.get(session)
            channel = None if record is None else record.channel
            if record is None or channel is None or not record.session.attached:
                return False
            self._ask_locked(record, clock.monotonic())
        channel.flush()
        channel.wake()  # it has a new timer
        return True

    # A connection's thread

    def serve(self, channel: MessageTransport, caller: Caller = NOBODY) -> None:
        """Serve one connection until it has ended; the thread becomes its I/O thread."""
        with self.mutex:
            closed = self._closed
            self._channels.add(channel)
        if closed:
            hang_up(channel)
        batches = channel.batches()
        record: SessionRecord | None = None
        attachment = 0
        wakes: list[Parker] = []
        started = clock.monotonic()
        channel.set_owner_timer(started + self._options.handshake_timeout)
        try:
            for messages in batches:
                for count, (kind, data) in enumerate(messages):
                    if channel.error is not None:
                        break
                    frame = bytes(data) if kind is Opcode.BINARY else b""
                    if record is None:
                        record, attachment = self._handshake(channel, frame, caller)
                    else:
                        self._receive(record, attachment, channel, frame, wakes)
                    if count % TOGETHER == TOGETHER - 1:
                        wake(wakes)
                wake(wakes)
                if record is not None:
                    self._keep_time(record, attachment, channel)
                    self._note_size(record, attachment, channel)
                elif channel.now >= started + self._options.handshake_timeout:
                    hang_up(channel)
        except Exception:
            _log.exception("the thread of %s failed; the connection ends", channel.name)
        finally:
            wake(wakes)
            batches.close()
            with self.mutex:
                self._channels.discard(channel)
            if record is not None:
                self._lost(record, attachment)

    def _handshake(
        self, channel: MessageTransport, frame: bytes, caller: Caller
    ) -> tuple[SessionRecord | None, int]:
        with self.mutex:
            first = self.sessions.first_frame(frame)
        if isinstance(first, Refused):
            self._refuse(channel, first)
            return None, 0
        with self.mutex:
            old = self.sessions.get(first.client_id)
            before = None if old is None else self._records[old].metadata
        parsed = self._validation.check(
            first.request.metadata, before, first.client_id, user=caller.user
        )
        if isinstance(parsed, InvalidMetadata):
            self._refuse(channel, self.sessions.refuse(first.client_id, *parsed))
            return None, 0
        return self._decide(channel, first, parsed, caller)

    def _decide(
        self, channel: MessageTransport, hello: Hello, parsed: Parsed, caller: Caller
    ) -> tuple[SessionRecord | None, int]:
        wakes: list[Parker] = []
        over: list[ServerCall] = []
        others: list[MessageTransport] = []
        asked: MessageTransport | None = None
        with self.mutex:
            if self._closed:
                return None, 0  # ``close`` ends this connection, too
            decided = self.sessions.decide(hello, clock.monotonic(), parsed.owner)
            if isinstance(decided, Accepted):
                record = self._accept_locked(channel, decided, parsed, others, over, wakes)
                record.caller = caller
                attachment = record.session.attachments  # before another connection can come
                starts = self.dispatcher.release_locked(record, wakes)
            elif decided.asked is not None:
                asked = self._records[decided.asked].queue_locked()
        wake(wakes)
        if isinstance(decided, Refused):
            if asked is not None:
                asked.flush()
            self._refuse(channel, decided)
            return None, 0
        self.replies.finish(over)
        self.dispatcher.start(starts)
        for other in others:
            hang_up(other)
        channel.flush()
        return record, attachment

    def _accept_locked(
        self,
        channel: MessageTransport,
        accepted: Accepted,
        parsed: Parsed,
        others: list[MessageTransport],
        over: list[ServerCall],
        wakes: list[Parker],
    ) -> SessionRecord:
        session = accepted.session
        if accepted.replaced is not None:
            old = self._records.get(accepted.replaced)
            if old is not None and old.channel is not None:
                others.append(old.channel)
            over += self._end_session_locked(
                accepted.replaced, "the client started a new session", wakes
            )
        record = self._records.get(session)
        if record is None:
            record = self._records[session] = SessionRecord(session, self._options)
            self.dispatcher.begin_session_locked(record)
            self._callbacks.add("session_status", "created", session.id)
        elif record.channel is not None:
            others.append(record.channel)
        record.channel, record.metadata = channel, parsed.metadata
        channel.limit_messages(most_read(self._options.max_size))  # a session handles larger ones
        record.refresh.stop()
        record.refresh.validated(parsed.expires)
        self._callbacks.add("session_transition", "connected", session.id)
        with channel.mutex:
            channel.queue.add_data_locked([(accepted.response, b"")])
        record.queue_locked()
        record.notify_room_locked(wakes)  # the handshake acknowledges messages, too
        channel.set_owner_timer(record.next_timer())
        return record

    def _refuse(self, channel: MessageTransport, refused: Refused) -> None:
        self._callbacks.add("protocol_error", "handshake_failed", refused.reason, str(refused.code))
        if refused.response is None:  # the client is not told the reason
            _log.info("%s: a handshake got no answer: %s", channel.name, refused.reason)
        else:
            # Without the reason, of which the id of a session may be a part.
            _log.info("%s: a handshake was refused with %s", channel.name, refused.code)
            with channel.mutex:
                channel.queue.add_data_locked([(refused.response, b"")])
        hang_up(channel)

    def _receive(
        self,
        record: SessionRecord,
        attachment: int,
        channel: MessageTransport,
        frame: bytes,
        wakes: list[Parker],
    ) -> None:
        """Handle one message; the caller wakes ``wakes`` after several."""
        session = record.session
        with record.order:
            over: list[ServerCall] = []
            broken: GapError | SessionFailure | None = None
            with self.mutex:
                if not record.current(attachment):
                    return  # it came over a connection that was replaced
                try:
                    envelope = session.receive(frame, channel.now)
                except GapError as error:
                    self._callbacks.add("protocol_error", "message_ordering_violated", str(error))
                    envelope, broken = None, error
                except SessionFailure as error:
                    over = self._fail_locked(session, error, wakes)
                    envelope, broken = None, error
                record.queue_locked()
                if not session.full:
                    record.notify_room_locked(wakes)
                starts = self.dispatcher.release_locked(record, wakes)
            self.dispatcher.start(starts)
            self.replies.finish(over)
            if broken is not None:
                hang_up(channel)
                _tell(session, broken)
            elif envelope is not None:  # a message for a call, or new metadata
                try:
                    if envelope.stream_id == REHANDSHAKE_STREAM:
                        self._renew(record, attachment, channel, envelope)
                    else:
                        self.dispatcher.dispatch(record, envelope, len(frame), wakes)
                except SessionFailure as failure:
                    self._destroy(record, attachment, channel, failure)
                    _tell(session, failure)

    def _keep_time(self, record: SessionRecord, attachment: int, channel: MessageTransport) -> None:
        session, now = record.session, channel.now
        leaves = False
        broken: SessionFailure | None = None
        wakes: list[Parker] = []
        over: list[ServerCall] = []
        with self.mutex:
            if not record.current(attachment):
                return
            due = record.next_timer()
            if due is not None and now >= due:
                try:
                    leaves = session.handle_timer(now) is not None
                    lapse = record.refresh.handle_timer(now)
                    if lapse is RefreshLapse.OVERDUE:
                        text = "the client sent no new metadata in time"
                        raise SessionFailure(text, FailureKind.HANDSHAKE)
                    if lapse is RefreshLapse.ASK:
                        self._ask_locked(record, now)
                except SessionFailure as error:
                    over, leaves = self._fail_locked(session, error, wakes), True
                    broken = error
                record.queue_locked()
                due = record.next_timer()
            channel.set_owner_timer(due)
        wake(wakes)
        self.replies.finish(over)
        if leaves:
            hang_up(channel)
        if broken is not None:
            _tell(session, broken)

    def _renew(
        self, record: SessionRecord, attachment: int, channel: MessageTransport, envelope: Envelope
    ) -> None:
        """Validate new metadata, requested or not, in a thread of their own, which may block.

        What arrives meanwhile is validated after that, the newest only: a client that is asked
        again answers again, and keeps no more than one thread busy.
        """
        try:
            metadata = parse_rehandshake_response(envelope.payload)
        except MalformedHandshake as error:
            raise SessionFailure(str(error), FailureKind.HANDSHAKE) from error
        arrived = Renewal(metadata, attachment, channel)
        with self.mutex:
            record.refresh.answered()
            if record.renewing:
                record.renewed_next = arrived
                return
            record.renewing = True

        def run() -> None:
            renewal: Renewal | None = arrived
            while renewal is not None:
                try:
                    self._validate(record, renewal)
                except BaseException:  # such as SystemExit, which ends the thread
                    with self.mutex:
                        # Nobody validates the next ones any more, maybe of a newer connection.
                        last = record.renewed_next or renewal
                        record.renewing, record.renewed_next = False, None
                    text = "the validation of new metadata has ended its thread"
                    failure = SessionFailure(text, FailureKind.HANDSHAKE)
                    self._destroy(record, last.attachment, last.channel, failure)
                    raise
                with self.mutex:
                    renewal, record.renewed_next = record.renewed_next, None
                    if record.ended:
                        renewal = None
                    record.renewing = renewal is not None

        try:
            start_thread(daemon_thread(target=run, name=f"{channel.name}-metadata"))
        except NoThreadError as error:
            _log.warning("%s validates new metadata itself: %s", channel.name, str(error))
            run()

    def _validate(self, record: SessionRecord, renewal: Renewal) -> None:
        """Validate new metadata, and use it, or end the session."""
        session, (metadata, attachment, channel) = record.session, renewal
        checked = self._validation.check(
            metadata, record.metadata, session.peer_id, session, record.caller.user
        )
        if isinstance(checked, InvalidMetadata):
            failure = SessionFailure(checked.reason, FailureKind.HANDSHAKE)
            self._destroy(record, attachment, channel, failure)
            _tell(session, failure)
            return
        with self.mutex:
            if record.current(attachment):
                record.metadata = checked.metadata
                record.refresh.validated(checked.expires)
        channel.wake()  # it has a new timer

    def _destroy(
        self,
        record: SessionRecord,
        attachment: int,
        channel: MessageTransport,
        failure: SessionFailure,
    ) -> None:
        """End a session for a failure on a connection, unless a newer connection replaced it."""
        wakes: list[Parker] = []
        over: list[ServerCall] = []
        with self.mutex:
            if record.session.attachments == attachment:
                over = self._fail_locked(record.session, failure, wakes)
        wake(wakes)
        self.replies.finish(over)
        hang_up(channel)

    def _note_size(self, record: SessionRecord, attachment: int, channel: MessageTransport) -> None:
        """Record that a message was too large, if the connection ended for that.

        The peer may send it again, so it is recorded before the peer is told.
        """
        cut, session = cut_by_size(channel), record.session
        if cut is None:
            return
        reason, ours = cut
        try:
            with self.mutex:
                if record.current(attachment) and session.cut_by_size(reason, ours=ours):
                    kind = FailureKind.SENDING if ours else FailureKind.INVALID_MESSAGE
                    self._callbacks.add("protocol_error", str(kind), reason)
        except SessionFailure as failure:
            with self.mutex:
                self.sessions.bar(session)
            _log.error("the session of client %r has ended: %s", session.peer_id, failure)
            self._destroy(record, attachment, channel, failure)

    def _lost(self, record: SessionRecord, attachment: int) -> None:
        wakes: list[Parker] = []
        over: list[ServerCall] = []
        with self.mutex:
            if record.session.attachments == attachment:
                record.channel = None
                record.refresh.stop()
                if not record.ended:
                    self._callbacks.add("session_transition", "disconnected", record.session.id)
            if self.sessions.lost(record.session, attachment, clock.monotonic()):
                over = self._end_session_locked(record.session, "the connection was lost", wakes)
            self._watch.notify_forced(wakes)
        wake(wakes)
        self.replies.finish(over)

    # With the mutex held

    def _ask_locked(self, record: SessionRecord, now: float) -> None:
        """Ask for new metadata, unless the client has yet to answer."""
        if record.refresh.ask(now):
            record.send_locked(REHANDSHAKE_STREAM, self._ask_packed, 0)

    def _end_session_locked(
        self, session: Session, reason: str, wakes: list[Parker]
    ) -> list[ServerCall]:
        """End the calls of a session that is over; return them for ``Replies.finish``."""
        record = self._records.pop(session, None)
        if record is None:
            return []
        self._callbacks.add("session_status", "closed", session.id)
        record.ended = True
        error = RiverError(UNEXPECTED_DISCONNECT, reason)
        return self.dispatcher.end_session_locked(record, error, wakes)

    def _fail_locked(
        self, session: Session, error: SessionFailure, wakes: list[Parker]
    ) -> list[ServerCall]:
        """End a failed session; return its calls for ``Replies.finish``."""
        self._callbacks.add("protocol_error", str(error.kind), str(error))
        over = self._end_session_locked(session, str(error), wakes)
        self.sessions.end(session)
        return over

    # The end

    def _watch_times(self) -> None:
        """End sessions whose client has not come back, and run timers; for a thread of its own.

        An exception, such as from an application's log filter, does not stop the other timers.
        """
        while not self._closed:
            try:
                self._handle_times()
            except Exception:
                _log.exception("a timer of server %s failed", self.sessions.own_id)

    def _handle_times(self) -> None:
        """Handle what is due, or wait until something is."""
        wakes: list[Parker] = []
        with self.mutex:
            if self._closed:
                return
            now = clock.monotonic()
            over = self._end_overdue_locked(now, wakes)
            timers = (self.sessions.next_timer(), self.dispatcher.next_timer_locked())
            due = min((each for each in timers if each is not None), default=None)
            if not over and not wakes and (due is None or due > now):
                left = None if due is None else due - now
                self._watch.wait(self.mutex, Deadline(left))
        wake(wakes)
        self.replies.finish(over)
        self.dispatcher.handle_timers(now)

    def _end_overdue_locked(self, now: float, wakes: list[Parker]) -> list[ServerCall]:
        """Remove the sessions whose grace period is over; return their calls, which have ended."""
        over: list[ServerCall] = []
        for session in self.sessions.handle_timer(now):
            over += self._end_session_locked(
                session, "no connection within the grace period", wakes
            )
        return over

    def close(self, deadline: Deadline) -> None:
        """End every session and its calls, then dispose of the services' states.

        Handlers and deferred functions have until the deadline to end before that, or until that of
        another call, if it is earlier. Exceptions of ``dispose`` are raised after all states were
        disposed of.
        """
        if not self._closed:
            self._close()
        self.dispatcher.close(deadline)

    def _close(self) -> None:
        wakes: list[Parker] = []
        over: list[ServerCall] = []
        with self.mutex:
            if self._closed:
                return
            self._closed = True
            channels = list(self._channels)
            for session in self.sessions.close():
                over += self._end_session_locked(session, "the server has closed", wakes)
            self._watch.notify_forced(wakes)
        wake(wakes)
        for channel in channels:
            hang_up(channel)
        self.replies.finish(over)
        self._callbacks.close()


def _tell(session: Session, broken: GapError | SessionFailure) -> None:
    """Log what has ended a connection, or its session with it; call it without the mutex."""
    what = "connection" if isinstance(broken, GapError) else "session"
    _log.info("the %s of client %r was ended: %s", what, session.peer_id, broken)
