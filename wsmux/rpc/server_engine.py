"""Run a server's sessions and calls, whatever their connections run over.

Threads and locks:

- One mutex guards the sessions, the tables of calls and both halves of each. No user code runs and
  nothing is sent under it. A channel's own mutex may be taken under it, never the other way round.
- Each connection has a thread, its I/O thread, that calls ``serve``: it greets, receives, checks
  what arrives against the schemas, and keeps the session's times.
- A session's messages are handled in order: whoever handles them holds the session's ``order``, so
  that a connection which replaces another waits for what that one has in hand.
- Handlers run in a bounded set of workers. One thread more watches sessions without a connection.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from .. import forks
from ..bell import Bell
from ..channel import Channel
from ..deadline import Deadline
from ..protocols.carrier import Kind as FrameKind
from ..waiter import Waiter, wake
from .carriers import hang_up
from .codec import Codec
from .errors import UNEXPECTED_DISCONNECT, RiverError
from .failures import GapError, SessionFailure
from .handshake import RefusalCode
from .ids import new_id
from .notices import Notices
from .options import Options
from .schema import Schema
from .server_calls import ServerCall
from .server_router import Live, Router
from .services import Service, service_table
from .session import Lapse, Session
from .sessions import Accepted, Hello, Refused, Sessions

__all__ = ["Rejection", "ServerEngine"]

_log = logging.getLogger("wsmux.rpc")


class Rejection(Exception):
    """Be raised by a function that validates metadata, to refuse the client.

    Args:
        reason: a sentence, which the client is told.
        unsupported: the client is too old, or otherwise not one to come again.
    """

    def __init__(self, reason: str = "", unsupported: bool = False) -> None:
        super().__init__(reason or "rejected by the server")
        self.unsupported = unsupported


class ServerEngine(Router):
    """Be what a River server is made of. See ``rpc.serve`` for the arguments."""

    def __init__(
        self,
        services: Iterable[Service],
        codec: Codec,
        options: Options,
        notices: Notices,
        *,
        server_id: str,
        context: Any,
        handshake_schema: Schema | None,
        validate: Callable[[Any, Any, str], Any] | None,
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
        self.notices = notices
        self._handshake_schema = handshake_schema
        self._validate = validate
        self._watch = Waiter()
        self._closed = False
        threading.Thread(
            target=self._watch_graces, name=f"wsmux-rpc-{server_id}-graces", daemon=True
        ).start()
        forks.register(self)

    def forked(self) -> None:
        """See ``forks``."""
        self.mutex = threading.Lock()
        self._closed = True

    # A connection's thread

    def serve(self, channel: Channel) -> None:
        """Serve one connection until it has ended; the thread becomes its I/O thread."""
        live: Live | None = None
        attachment = 0
        started = time.monotonic()
        channel.set_owner_timer(started + self.options.handshake_timeout)
        for messages in channel.batches():
            for kind, data in messages:
                if channel.error is not None:
                    break
                frame = bytes(data) if kind is FrameKind.BINARY else b""
                if live is None:
                    live = self._greet(channel, frame)
                    attachment = 0 if live is None else live.session.attachments
                else:
                    self._receive(live, attachment, channel, frame)
            if live is not None:
                self._keep_time(live, attachment, channel)
            elif channel.now >= started + self.options.handshake_timeout:
                hang_up(channel)
        if live is not None:
            self._lost(live, attachment)

    def _greet(self, channel: Channel, frame: bytes) -> Live | None:
        with self.mutex:
            first = self.sessions.first_frame(frame)
        if isinstance(first, Hello):
            checked = self._check_metadata(first)
            if isinstance(checked, Refused):
                first = checked
            else:
                return self._decide(channel, first, checked[0])
        self._refuse(channel, first)
        return None

    def _check_metadata(self, hello: Hello) -> tuple[Any] | Refused:
        """Return the parsed metadata in a tuple, or the refusal."""
        client, metadata = hello.client_id, hello.request.metadata
        refuse = self.sessions.refuse
        if self._handshake_schema is not None:
            wrong = self._handshake_schema.check(metadata)
            if wrong is not None:
                code = RefusalCode.MALFORMED_HANDSHAKE_META
                return refuse(client, code, "received malformed handshake metadata")
        if self._validate is None:
            return (metadata,)
        with self.mutex:
            old = self.sessions.get(client)
            before = self._live[old].metadata if old in self._live and old is not None else None
        try:
            return (self._validate(metadata, before, client),)
        except Rejection as error:
            code = (
                RefusalCode.REJECTED_UNSUPPORTED_CLIENT
                if error.unsupported
                else RefusalCode.REJECTED_BY_CUSTOM_HANDLER
            )
            return refuse(client, code, str(error))
        except Exception:
            _log.exception("the validation of a handshake failed")
            code = RefusalCode.REJECTED_BY_CUSTOM_HANDLER
            return refuse(client, code, "the validation of the handshake failed")

    def _decide(self, channel: Channel, hello: Hello, metadata: Any) -> Live | None:
        wakes: list[Bell] = []
        over: list[ServerCall] = []
        others: list[Channel] = []
        with self.mutex:
            decided = self.sessions.decide(hello, time.monotonic())
            if isinstance(decided, Accepted):
                live = self._accept_locked(channel, decided, metadata, others, over, wakes)
        wake(wakes)
        if isinstance(decided, Refused):
            if decided.asked is not None:
                self._flush(decided.asked)
            self._refuse(channel, decided)
            return None
        self._finish(over)
        for other in others:
            hang_up(other)
        channel.flush()
        return live

    def _accept_locked(
        self,
        channel: Channel,
        accepted: Accepted,
        metadata: Any,
        others: list[Channel],
        over: list[ServerCall],
        wakes: list[Bell],
    ) -> Live:
        session = accepted.session
        if accepted.replaced is not None:
            old = self._live.get(accepted.replaced)
            if old is not None and old.channel is not None:
                others.append(old.channel)
            over += self._end_session_locked(accepted.replaced, "the client began anew", wakes)
        live = self._live.get(session)
        if live is None:
            live = self._live[session] = Live(session)
            self.notices.add("session_status", "created", session.id)
        elif live.channel is not None:
            others.append(live.channel)
        live.channel, live.metadata = channel, metadata
        with channel.mutex:
            channel.queue.add_data_locked([(accepted.response, b"")])
        self._queue_locked(live)
        channel.set_owner_timer(session.next_timer())
        return live

    def _refuse(self, channel: Channel, refused: Refused) -> None:
        self.notices.add("protocol_error", "handshake_failed", refused.reason, str(refused.code))
        if refused.response is not None:
            with channel.mutex:
                channel.queue.add_data_locked([(refused.response, b"")])
        hang_up(channel)

    def _receive(self, live: Live, attachment: int, channel: Channel, frame: bytes) -> None:
        session = live.session
        with live.order:
            wakes: list[Bell] = []
            with self.mutex:
                if session.attachments != attachment or not session.attached:
                    return  # what a replaced connection still brings
                try:
                    envelope = session.receive(frame, channel.now)
                except GapError as error:
                    self.notices.add("protocol_error", "message_ordering_violated", str(error))
                    envelope, leaves = None, True
                except SessionFailure as error:
                    self.notices.add("protocol_error", str(error.kind), str(error))
                    self._finish(self._fail_locked(session, error, wakes))
                    envelope, leaves = None, True
                else:
                    leaves = False
                self._queue_locked(live)
                if not session.full:
                    self._room.collect(wakes)
            wake(wakes)
            if leaves:
                hang_up(channel)
            elif envelope is not None:
                self._dispatch(live, envelope, len(frame))
        channel.flush()

    def _keep_time(self, live: Live, attachment: int, channel: Channel) -> None:
        session, lapse = live.session, None
        wakes: list[Bell] = []
        over: list[ServerCall] = []
        with self.mutex:
            if session.attachments != attachment or not session.attached:
                return
            due = session.next_timer()
            if due is not None and channel.now >= due:
                try:
                    lapse = session.handle_timer(channel.now)
                except SessionFailure as error:
                    over = self._fail_locked(session, error, wakes)
                    lapse = Lapse.SILENCE
                self._queue_locked(live)
            channel.set_owner_timer(session.next_timer())
        wake(wakes)
        self._finish(over)
        if lapse is not None:
            hang_up(channel)
        channel.flush()

    def _lost(self, live: Live, attachment: int) -> None:
        wakes: list[Bell] = []
        over: list[ServerCall] = []
        with self.mutex:
            if live.session.attachments == attachment:
                live.channel = None
            if self.sessions.lost(live.session, attachment, time.monotonic()):
                over = self._end_session_locked(live.session, "the connection was lost", wakes)
            self._watch.rouse(wakes)
        wake(wakes)
        self._finish(over)

    # With the mutex held

    def _end_session_locked(
        self, session: Session, reason: str, wakes: list[Bell]
    ) -> list[ServerCall]:
        """End the calls of a session that is over; return them, to be finished."""
        live = self._live.pop(session, None)
        if live is None:
            return []
        self.notices.add("session_status", "closed", session.id)
        error = RiverError(UNEXPECTED_DISCONNECT, reason)
        calls = list(live.calls.values())
        live.calls.clear()
        for call in calls:
            call.end_locked(error, wakes)
        self._room.collect(wakes)
        return calls

    def _fail_locked(
        self, session: Session, error: SessionFailure, wakes: list[Bell]
    ) -> list[ServerCall]:
        """Destroy a session; return its calls, to be finished."""
        over = self._end_session_locked(session, str(error), wakes)
        self.sessions.end(session)
        return over

    # The end

    def _watch_graces(self) -> None:
        """Destroy sessions that nobody has come back for; in a thread of its own."""
        while True:
            wakes: list[Bell] = []
            over: list[ServerCall] = []
            with self.mutex:
                if self._closed:
                    return
                now = time.monotonic()
                for session in self.sessions.handle_timer(now):
                    text = "no connection within the grace"
                    over += self._end_session_locked(session, text, wakes)
                due = self.sessions.next_timer()
                if not over and not wakes:
                    left = None if due is None else max(0.0, due - now)
                    self._watch.wait(self.mutex, Deadline(left))
            wake(wakes)
            self._finish(over)

    def close(self) -> None:
        """End every session and its calls, and give up the services' states."""
        wakes: list[Bell] = []
        over: list[ServerCall] = []
        with self.mutex:
            if self._closed:
                return
            self._closed = True
            lives = self._live.values()
            channels = [live.channel for live in lives if live.channel is not None]
            for session in self.sessions.close():
                over += self._end_session_locked(session, "the server has closed", wakes)
            self._watch.rouse(wakes)
        wake(wakes)
        for channel in channels:
            hang_up(channel)
        self._finish(over)
        self._workers.close()
        for name, service in self.services.items():
            service.dispose_state(self.states[name])
        self.notices.close()
