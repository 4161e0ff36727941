"""Handle the messages of a server's calls: open calls, feed them, run handlers.

Threads and locks are told in ``server_engine``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Parker
from ...runtime.thread_pool import ThreadPool
from ..errors import (
    CANCEL,
    INVALID_REQUEST,
    UNCAUGHT_ERROR,
    FailureKind,
    RiverError,
    SessionFailure,
)
from ..options import Options
from ..services import Procedure, Service
from ..wire.codec import EncodeError
from ..wire.envelope import (
    CANCELLED,
    CLOSED,
    INVALID_CANCEL,
    OPEN,
    Envelope,
    is_close,
    read_cancel,
)
from .server_calls import CallTable, Context, Replies, ServerCall
from .session_record import SessionRecord

__all__ = ["CallDispatcher"]

# What a client is told of an error that no procedure declares.
FAILED = "the handler failed"

# Characters of a client's names in the sentences that refuse them.
MAX_SHOWN = 100

_log = logger("wsmux.rpc")


class CallDispatcher:
    """Run the calls of all sessions of a server.

    It owns the services and what their handlers share, the threads that run handlers, and the
    table of calls of each session. The server's mutex guards the tables; the threads have locks of
    their own, taken without it; the rest never changes. ``ServerEngine`` calls it, and it calls
    ``Replies``; neither calls back.
    """

    def __init__(
        self,
        services: Mapping[str, Service],
        replies: Replies,
        mutex: threading.Lock,
        options: Options,
        *,
        name: str,
        context: Any,
        middleware: tuple[Callable[..., Any], ...],
        workers: int,
        expose_errors: bool,
    ) -> None:
        self._services = services
        self._replies = replies
        self._mutex = mutex
        self._options = options
        self._context = context
        self._states = {name: each.make_state(context) for name, each in services.items()}
        self._middleware = middleware
        self._expose_errors = expose_errors
        self._tables: dict[SessionRecord, CallTable] = {}
        self._workers = ThreadPool(workers, name)

    def forked(self, mutex: threading.Lock) -> None:
        """Take a forked child's mutex: the old one may be held for ever."""
        self._mutex = mutex
        self._replies.forked(mutex)

    # Sessions

    def begin_session_locked(self, record: SessionRecord) -> None:
        """Take calls of a session."""
        self._tables[record] = CallTable(record, self._options)

    def end_session_locked(
        self, record: SessionRecord, error: RiverError, wakes: list[Parker]
    ) -> list[ServerCall]:
        """End the calls of a session that is over; return them, to be finished."""
        calls = self._tables.pop(record).end_locked(error, wakes)
        self._replies.notify_room_locked(wakes)
        return calls

    # Messages

    def dispatch(
        self, record: SessionRecord, envelope: Envelope, size: int, wakes: list[Parker]
    ) -> None:
        """Handle one message of a session, in order; see the text, "On the server".

        Raises:
            SessionFailure: it cannot be answered.
        """
        stream_id, flags = envelope.stream_id, envelope.flags
        with self._mutex:
            table = self._tables.get(record)
            call = None if table is None else table.get_locked(stream_id)
        if table is None:
            return  # the session has ended meanwhile
        try:
            if call is not None:
                self._continue(call, envelope, size, wakes)
            elif flags & OPEN and not flags & CANCELLED:
                self._open(table, envelope, wakes)
            else:
                name = _shown(stream_id)
                text = f"no call is open on stream {name}, and the message opens none"
                self._replies.refuse(table, stream_id, text)
        except EncodeError as error:
            raise SessionFailure(str(error), FailureKind.SENDING) from error

    def _open(self, table: CallTable, envelope: Envelope, wakes: list[Parker]) -> None:
        stream_id = envelope.stream_id
        found = self._find(envelope)
        if isinstance(found, str):
            self._replies.refuse(table, stream_id, found)
            return
        if found.init.check(envelope.payload) is not None:
            self._replies.refuse(table, stream_id, "procedure init failed validation")
            return
        call = ServerCall(self._replies, self._mutex, table, stream_id, found)
        with self._mutex:
            if table.record.ended:
                return  # meanwhile
            opened = table.add_locked(call)
            if opened:
                call.first_metadata = table.record.metadata
                if envelope.flags & CLOSED:
                    call.reader.end_locked(wakes)
        if opened:
            self._workers.add(lambda: self._work(call, envelope.payload), wakes)
        else:
            text = f"more than {self._options.max_streams} calls are open"
            self._replies.refuse(table, stream_id, text)

    def _find(self, envelope: Envelope) -> Procedure | str:
        """Return the procedure that a message opens, or what is wrong with it."""
        if envelope.service is None:
            return "missing service name in stream open message"
        if envelope.procedure is None:
            return "missing procedure name in stream open message"
        service = self._services.get(envelope.service)
        if service is None:
            return f"couldn't find service {_shown(envelope.service)}"
        procedure = service.procedures.get(envelope.procedure)
        if procedure is None:
            name = _shown(envelope.procedure)
            return f"couldn't find a procedure {name} in {envelope.service}"
        return procedure

    def _continue(
        self, call: ServerCall, envelope: Envelope, size: int, wakes: list[Parker]
    ) -> None:
        flags, payload = envelope.flags, envelope.payload
        if flags & CANCELLED:
            error = read_cancel(payload)
            if error.message == INVALID_CANCEL:
                error = RiverError(CANCEL, "stream cancelled, client sent invalid payload")
            self._replies.cancelled(call, error)
            return
        request = not is_close(payload)
        wrong = _wrong(call, request, payload)
        if wrong is not None:
            self._replies.cancel(call, wrong)
            return
        behind = False
        with self._mutex:
            if request:
                call.reader.push_locked(payload, size, wakes)
                behind = call.reader.fell_behind(self._options)
            if flags & CLOSED:
                call.reader.end_locked(wakes)
            over = call.table.complete_locked(call)
        if behind:
            self._replies.cancel(call, RiverError(CANCEL, "reader fell behind"))
        elif over:
            self._replies.finish([call])

    # Handlers

    def _work(self, call: ServerCall, init: Any) -> None:
        """Do a worker's part in a call: nothing, if it was over before a worker was free."""
        try:
            if not call.over:
                self._handle(call, init)
        finally:
            if not call.answered:
                with self._mutex:
                    call.table.returned_locked(call)

    def _handle(self, call: ServerCall, init: Any) -> None:
        """Run a handler, and send what comes of it."""
        context = Context(call, self._states[call.procedure.service], self._context)
        try:
            value = self._run(call, context, init)
        except RiverError as error:
            self._answer_error(call, error)
        except Exception as error:
            if call.over:
                _log.info("%s ended after its call: %r", call.name, error)
                return
            _log.exception("the handler of %s failed", call.name)
            self._uncaught(call, repr(error))
        except BaseException:  # such as SystemExit, which is for the thread
            self._uncaught(call)
            raise
        else:
            if call.procedure.kind.writes_responses:
                self._replies.close_responses(call)
            else:
                self._answer(call, value)

    def _run(self, call: ServerCall, context: Context, init: Any) -> Any:
        procedure = call.procedure
        arguments = [context, init]
        if procedure.kind.takes_requests:
            arguments.append(call.reader)
        if procedure.kind.writes_responses and not procedure.generator:
            arguments.append(call.writer)

        def handle() -> Any:
            outcome = procedure.handler(*arguments)
            if procedure.generator:
                for response in outcome:
                    call.writer.write(response)
                return None
            return outcome

        step = handle
        for layer in reversed(self._middleware):
            step = _wrapped(layer, context, init, step)
        return step()

    def _answer(self, call: ServerCall, value: Any) -> None:
        """Send the one response of an rpc or upload."""
        wrong = call.procedure.response.check(value)
        if wrong is not None:
            _log.error("the response of %s does not match its schema: %s", call.name, wrong)
            self._uncaught(call)
            return
        try:
            self._replies.send_result(call, value)
        except EncodeError as error:
            _log.error("the response of %s cannot be encoded: %r", call.name, error)
            self._uncaught(call)

    def _answer_error(self, call: ServerCall, error: RiverError) -> None:
        """Send a declared error as a result, any other as an uncaught one."""
        if call.over:
            return
        if not call.procedure.declares(error):
            _log.error("%s raised an undeclared error: %r", call.name, error)
            self._uncaught(call, str(error))
            return
        try:
            self._replies.send_error(call, error)
        except EncodeError as wrong:
            _log.error("an error raised by %s cannot be encoded: %r", call.name, wrong)
            self._uncaught(call)

    def _uncaught(self, call: ServerCall, text: str = FAILED) -> None:
        """Cancel a call whose handler failed; the text is for clients that may know it."""
        told = text if self._expose_errors else FAILED
        try:
            self._replies.cancel(call, RiverError(UNCAUGHT_ERROR, told))
        except EncodeError:  # text of any length, with halves of pairs in it
            self._replies.cancel(call, RiverError(UNCAUGHT_ERROR, FAILED))

    # The end

    def close(self, deadline: Deadline) -> None:
        """Wait for handlers, and what they deferred, and give up the services' states.

        What giving one up raises is raised when all of it is done.
        """
        self._workers.close()
        self._replies.close()
        self._workers.join(deadline)
        self._replies.join(deadline)
        failures: list[Exception] = []
        for name, service in self._services.items():
            try:
                service.dispose_state(self._states[name])
            except Exception as error:  # the others are to be disposed of too
                failures.append(error)
        if len(failures) > 1:
            raise ExceptionGroup("states could not be disposed of", failures)
        if failures:
            raise failures[0]


def _wrong(call: ServerCall, request: bool, payload: Any) -> RiverError | None:
    """Return what is wrong with a message of an open call."""
    procedure = call.procedure
    if call.reader.ended:
        return RiverError(INVALID_REQUEST, "received a message after the end of requests")
    if not request:
        return None
    if procedure.request is None:
        text = f"{call.name} is of kind {procedure.kind}, which takes no requests"
        return RiverError(INVALID_REQUEST, text)
    extra = procedure.request.check(payload)
    if extra is None:
        return None
    return RiverError(INVALID_REQUEST, "message in request failed validation", extra)


def _shown(name: str) -> str:
    """Return a name that a client has sent, short enough to be sent back."""
    return name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}..."


def _wrapped(
    layer: Callable[..., Any], context: Context, init: Any, step: Callable[[], Any]
) -> Callable[[], Any]:
    return lambda: layer(context, init, step)
