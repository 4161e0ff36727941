"""Run a server's sessions and calls, whatever their connections run over.

Threads and locks:

- One mutex guards the sessions, the tables of calls and both halves of each. No user code runs and
  nothing is sent under it. A channel's own mutex may be taken under it, never the other way round.
- Each connection has a thread, its I/O thread, that calls ``serve``: it greets, receives, checks
  what arrives against the schemas, and keeps the session's times.
- A session's messages are handled in order: whoever handles them holds the session's ``order``, so
  that a connection which replaces another waits for what that one has in hand.
- Handlers run in a bounded set of workers, what they defer in another, since handlers may wait for
  that. One thread more watches sessions without a connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from ...protocols.framing import Opcode as FrameKind
from ...runtime import fork
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Parker, Waiter, wake
from ...runtime.threads import daemon_thread, start_thread
from ...transport.message_transport import MessageTransport
from ..errors import UNEXPECTED_DISCONNECT, FailureKind, GapError, RiverError, SessionFailure
from ..options import Options
from ..services import Service, service_table
from ..session.metadata_refresh import RefreshLapse
from ..session.metadata_validation import InvalidMetadata, MetadataValidation, Parsed
from ..session.session import Session
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
from .call_dispatcher import Live, Router
from .dial import hang_up
from .event_callbacks import EventCallbacks
from .server_calls import ServerCall

__all__ = ["ServerEngine"]

# Messages of one read after which workers are woken, if there are more of them to handle.
TOGETHER = 64

_log = logger("wsmux.rpc")


class ServerEngine(Router):
    """What a River server is made of. See ``rpc.serve`` for the arguments."""

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
        expose_errors: bool,
    ) -> None:
        super().__init__(
            service_table(services),
            codec,
            options,
            name=f"wsmux-rpc-{server_id}",
            context=context,
            middleware=middleware,
            workers=workers,
            expose_errors=expose_errors,
        )
        self.sessions = Sessions(server_id, codec=codec, options=options, new_id=new_id)
        self.callbacks = callbacks
        self._validation = validation
        self._ask_packed = codec.pack(rehandshake_request_payload())
        self._watch = Waiter()
        self._channels: set[MessageTransport] = set()
        self._closed = False
        name = f"wsmux-rpc-{server_id}-graces"
        start_thread(daemon_thread(target=self._watch_graces, name=name))
        fork.register(self)

    def forked(self) -> None:
        """See ``runtime.fork``."""
        self.mutex = threading.Lock()
        self._closed = True

    # Any thread

    def session_count(self) -> int:
        """Return how many sessions there are."""
        with self.mutex:
            return len(self.sessions)

    def request_handshake(self, client_id: str) -> bool:
        """Ask a client for new metadata; false if it is not connected."""
        with self.mutex:
            session = self.sessions.get(client_id)
            live = None if session is None else self._live.get(session)
            channel = None if live is None else live.channel
            if live is None or channel is None or not live.session.attached:
                return False
            self._ask_locked(live, time.monotonic())
        channel.flush()
        channel.wake()  # there is a time to keep
        return True

    # A connection's thread

    def serve(self, channel: MessageTransport) -> None:
        """Serve one connection until it has ended; the thread becomes its I/O thread."""
        with self.mutex:
            closed = self._closed
            self._channels.add(channel)
        if closed:
            hang_up(channel)
        batches = channel.batches()
        live: Live | None = None
        attachment = 0
        wakes: list[Parker] = []
        started = time.monotonic()
        channel.set_owner_timer(started + self.options.handshake_timeout)
        try:
            for messages in batches:
                for count, (kind, data) in enumerate(messages):
                    if channel.error is not None:
                        break
                    frame = bytes(data) if kind is FrameKind.BINARY else b""
                    if live is None:
                        live, attachment = self._greet(channel, frame)
                    else:
                        self._receive(live, attachment, channel, frame, wakes)
                    if count % TOGETHER == TOGETHER - 1:
                        wake(wakes)
                wake(wakes)
                if live is not None:
                    self._keep_time(live, attachment, channel)
                elif channel.now >= started + self.options.handshake_timeout:
                    hang_up(channel)
        except Exception:
            _log.exception("the thread of %s failed; the connection ends", channel.name)
        finally:
            wake(wakes)
            batches.close()
            with self.mutex:
                self._channels.discard(channel)
            if live is not None:
                self._lost(live, attachment)

    def _greet(self, channel: MessageTransport, frame: bytes) -> tuple[Live | None, int]:
        with self.mutex:
            first = self.sessions.first_frame(frame)
        if isinstance(first, Refused):
            self._refuse(channel, first)
            return None, 0
        with self.mutex:
            old = self.sessions.get(first.client_id)
            before = None if old is None else self._live[old].metadata
        parsed = self._validation.check(first.request.metadata, before, first.client_id)
        if isinstance(parsed, InvalidMetadata):
            self._refuse(channel, self.sessions.refuse(first.client_id, *parsed))
            return None, 0
        return self._decide(channel, first, parsed)

    def _decide(
        self, channel: MessageTransport, hello: Hello, parsed: Parsed
    ) -> tuple[Live | None, int]:
        wakes: list[Parker] = []
        over: list[ServerCall] = []
        others: list[MessageTransport] = []
        with self.mutex:
            if self._closed:
                return None, 0  # its channel is being closed, too
            decided = self.sessions.decide(hello, time.monotonic(), parsed.owner)
            if isinstance(decided, Accepted):
                live = self._accept_locked(channel, decided, parsed, others, over, wakes)
                attachment = live.session.attachments  # another may come once this is let go
        wake(wakes)
        if isinstance(decided, Refused):
            if decided.asked is not None:
                self._flush(decided.asked)
            self._refuse(channel, decided)
            return None, 0
        self._finish(over)
        for other in others:
            hang_up(other)
        channel.flush()
        return live, attachment

    def _accept_locked(
        self,
        channel: MessageTransport,
        accepted: Accepted,
        parsed: Parsed,
        others: list[MessageTransport],
        over: list[ServerCall],
        wakes: list[Parker],
    ) -> Live:
        session = accepted.session
        if accepted.replaced is not None:
            old = self._live.get(accepted.replaced)
            if old is not None and old.channel is not None:
                others.append(old.channel)
            over += self._end_session_locked(accepted.replaced, "the client began anew", wakes)
        live = self._live.get(session)
        if live is None:
            live = self._live[session] = Live(session, self.options)
            self.callbacks.add("session_status", "created", session.id)
        elif live.channel is not None:
            others.append(live.channel)
        live.channel, live.metadata = channel, parsed.metadata
        live.refresh.validated(parsed.expires)
        with channel.mutex:
            channel.queue.add_data_locked([(accepted.response, b"")])
        self._queue_locked(live)
        self._room.notify(wakes)  # the handshake has acknowledged messages, too
        channel.set_owner_timer(live.next_timer())
        return live

    def _refuse(self, channel: MessageTransport, refused: Refused) -> None:
        self.callbacks.add("protocol_error", "handshake_failed", refused.reason, str(refused.code))
        if refused.response is not None:
            with channel.mutex:
                channel.queue.add_data_locked([(refused.response, b"")])
        hang_up(channel)

    def _receive(
        self,
        live: Live,
        attachment: int,
        channel: MessageTransport,
        frame: bytes,
        wakes: list[Parker],
    ) -> None:
        """Handle one message; the caller wakes ``wakes`` behind the last of many."""
        session = live.session
        with live.order:
            over: list[ServerCall] = []
            leaves = False
            with self.mutex:
                if session.attachments != attachment or not session.attached:
                    return  # what a replaced connection still brings
                try:
                    envelope = session.receive(frame, channel.now)
                except GapError as error:
                    self.callbacks.add("protocol_error", "message_ordering_violated", str(error))
                    envelope, leaves = None, True
                except SessionFailure as error:
                    over = self._fail_locked(session, error, wakes)
                    envelope, leaves = None, True
                self._queue_locked(live)
                if not session.full:
                    self._room.notify(wakes)
            self._finish(over)
            if leaves:
                hang_up(channel)
            elif envelope is not None:  # something for somebody above the session
                try:
                    if envelope.stream_id == REHANDSHAKE_STREAM:
                        self._renew(live, attachment, channel, envelope)
                    else:
                        self._dispatch(live, envelope, len(frame), wakes)
                except SessionFailure as failure:
                    self._destroy(live, attachment, channel, failure)

    def _keep_time(self, live: Live, attachment: int, channel: MessageTransport) -> None:
        session, now = live.session, channel.now
        leaves = False
        wakes: list[Parker] = []
        over: list[ServerCall] = []
        with self.mutex:
            if session.attachments != attachment or not session.attached:
                return
            due = live.next_timer()
            if due is not None and now >= due:
                try:
                    leaves = session.handle_timer(now) is not None
                    lapse = live.refresh.handle_timer(now)
                    if lapse is RefreshLapse.OVERDUE:
                        text = "the client sent no new metadata in time"
                        raise SessionFailure(text, FailureKind.HANDSHAKE)
                    if lapse is RefreshLapse.ASK:
                        self._ask_locked(live, now)
                except SessionFailure as error:
                    over, leaves = self._fail_locked(session, error, wakes), True
                self._queue_locked(live)
            channel.set_owner_timer(live.next_timer())
        wake(wakes)
        self._finish(over)
        if leaves:
            hang_up(channel)

    def _renew(
        self, live: Live, attachment: int, channel: MessageTransport, envelope: Envelope
    ) -> None:
        """Take new metadata, asked for or not, and have them checked in a thread that may block."""
        try:
            metadata = parse_rehandshake_response(envelope.payload)
            with self.mutex:
                if live.renewing:
                    raise MalformedHandshake("new metadata came before the last were checked")
                live.renewing = True
        except MalformedHandshake as error:
            raise SessionFailure(str(error), FailureKind.HANDSHAKE) from error

        def run() -> None:
            session = live.session
            checked = self._validation.check(metadata, live.metadata, session.peer_id, session)
            if isinstance(checked, InvalidMetadata):
                failure = SessionFailure(checked.reason, FailureKind.HANDSHAKE)
                self._destroy(live, attachment, channel, failure)
            else:
                self._renewed(live, attachment, channel, checked)

        name = f"{channel.name}-metadata"
        daemon_thread(target=run, name=name).start()

    def _renewed(
        self, live: Live, attachment: int, channel: MessageTransport, parsed: Parsed
    ) -> None:
        with self.mutex:
            live.renewing = False
            if live.session.attachments == attachment and live.session.attached:
                live.metadata = parsed.metadata
                live.refresh.validated(parsed.expires)
        channel.wake()  # there is a time to keep

    def _destroy(
        self, live: Live, attachment: int, channel: MessageTransport, failure: SessionFailure
    ) -> None:
        """Destroy a session over what a connection brought, unless a newer one came."""
        wakes: list[Parker] = []
        over: list[ServerCall] = []
        with self.mutex:
            live.renewing = False
            if live.session.attachments == attachment:
                over = self._fail_locked(live.session, failure, wakes)
        wake(wakes)
        self._finish(over)
        hang_up(channel)

    def _lost(self, live: Live, attachment: int) -> None:
        wakes: list[Parker] = []
        over: list[ServerCall] = []
        with self.mutex:
            if live.session.attachments == attachment:
                live.channel = None
                live.refresh.stop()
            if self.sessions.lost(live.session, attachment, time.monotonic()):
                over = self._end_session_locked(live.session, "the connection was lost", wakes)
            self._watch.notify_forced(wakes)
        wake(wakes)
        self._finish(over)

    # With the mutex held

    def _ask_locked(self, live: Live, now: float) -> None:
        """Ask for new metadata."""
        live.session.send(self._ask_packed, stream_id=REHANDSHAKE_STREAM, flags=0)
        live.refresh.asked(now)
        self._queue_locked(live)

    def _end_session_locked(
        self, session: Session, reason: str, wakes: list[Parker]
    ) -> list[ServerCall]:
        """End the calls of a session that is over; return them, to be finished."""
        live = self._live.pop(session, None)
        if live is None:
            return []
        self.callbacks.add("session_status", "closed", session.id)
        error = RiverError(UNEXPECTED_DISCONNECT, reason)
        calls = list(live.calls.values())
        live.calls.clear()
        for call in calls:
            call.end_locked(error, wakes)
        self._room.notify(wakes)
        return calls

    def _fail_locked(
        self, session: Session, error: SessionFailure, wakes: list[Parker]
    ) -> list[ServerCall]:
        """Destroy a session; return its calls, to be finished."""
        self.callbacks.add("protocol_error", str(error.kind), str(error))
        over = self._end_session_locked(session, str(error), wakes)
        self.sessions.end(session)
        return over

    # The end

    def _watch_graces(self) -> None:
        """Destroy sessions that nobody has come back for; in a thread of its own."""
        while True:
            wakes: list[Parker] = []
            with self.mutex:
                if self._closed:
                    return
                now = time.monotonic()
                over = self._end_overdue_locked(now, wakes)
                due = self.sessions.next_timer()
                if not over and not wakes:
                    left = None if due is None else max(0.0, due - now)
                    self._watch.wait(self.mutex, Deadline(left))
            wake(wakes)
            self._finish(over)

    def _end_overdue_locked(self, now: float, wakes: list[Parker]) -> list[ServerCall]:
        """End the sessions whose grace is over, and keep none of them; return their calls."""
        over: list[ServerCall] = []
        for session in self.sessions.handle_timer(now):
            over += self._end_session_locked(session, "no connection within the grace", wakes)
        return over

    def close(self, deadline: Deadline) -> None:
        """End every session and its calls, and give up the services' states.

        Handlers, and what they deferred, have until the deadline to end before that. What giving
        one up raises is raised when all of it is done.
        """
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
        self._finish(over)
        self._workers.close()
        self._cleaners.close()
        self.callbacks.close()
        self._workers.join(deadline)
        self._cleaners.join(deadline)
        self._dispose_states()

    def _dispose_states(self) -> None:
        failures: list[Exception] = []
        for name, service in self.services.items():
            try:
                service.dispose_state(self.states[name])
            except Exception as error:  # the others are to be disposed of too
                failures.append(error)
        if len(failures) > 1:
            raise ExceptionGroup("states could not be disposed of", failures)
        if failures:
            raise failures[0]
