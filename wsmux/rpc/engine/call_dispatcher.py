"""Handle the messages of a server's calls: open calls, feed them, run handlers.

Threads and locks are told in ``server_engine``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Parker, Waiter, wake
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
from ..session.session_info import SessionInfo, session_info
from ..wire.codec import EncodeError
from ..wire.envelope import (
    CANCELLED,
    CLOSED,
    INVALID_CANCEL,
    OPEN,
    Envelope,
    Oversize,
    is_close,
    read_cancel,
)
from .call_spans import server_span
from .generator_run import WAITS, GeneratorRun, Suspender, ThreadSuspender
from .server_calls import CallTable, Context, Replies, ServerCall
from .session_record import SessionRecord
from .timers import Timer, Timers
from .worker_shares import Share, WorkerShares

__all__ = ["CallDispatcher"]

# What a client is told of an error that no procedure declares.
FAILED = "the handler failed"

# Characters of a client's names in the sentences that refuse them.
MAX_SHOWN = 100

Work = TypeVar("Work")

_log = logger("wsmux.rpc")


class Start:
    """A handler to start, or to go on with, as soon as it has a worker.

    Attributes:
        call: whose handler it is.
        step: what the worker does; ``WAITS`` says that the handler waits without it.
        since: when it came, for one that is refused if it waits too long; else ``None``.
        timer: when it is refused, while it waits.
    """

    __slots__ = ("call", "since", "step", "timer")

    def __init__(self, call: ServerCall, step: Callable[[], Any], since: float | None) -> None:
        self.call = call
        self.step = step
        self.since = since
        self.timer: Timer[Start] | None = None


class CallDispatcher(Suspender):
    """Run the calls of all sessions of a server.

    It owns the services and what their handlers share, the threads that run handlers, and the
    table of calls of each session, with its share of those threads. The server's mutex guards the
    tables, the shares, and the times of generators that wait; the threads have locks of their own,
    taken without it; the rest never changes. ``ServerEngine`` calls it, and it calls ``Replies``;
    neither calls back.
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
        max_workers: int,
        expose_errors: bool,
        alarm: Waiter,
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
        self._workers = ThreadPool(max_workers, name)
        self._shares: WorkerShares[Start] = WorkerShares(workers, max_workers)
        self._patience: Timers[Start] = Timers()  # when what waits for a worker is refused
        self._timers: Timers[GeneratorRun] = Timers()  # when what is suspended goes on
        self._alarm = alarm  # of the thread that calls ``handle_timers``

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
        table = self._tables.pop(record)
        self._forget_timers_locked(
            self._shares.forget(table.share, lambda start: start.since is None)
        )
        calls = table.end_locked(error, wakes)
        record.notify_room_locked(wakes)
        return calls

    def describe_locked(self, record: SessionRecord) -> SessionInfo:
        """Return what there is to know of a session."""
        table, session = self._tables[record], record.session
        share = table.share
        return session_info(
            session,
            session.peer_id,
            calls=len(table),
            handlers=share.running,
            waiting_calls=len(share.waiting),
        )

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
                self._open(table, envelope, size, wakes)
            else:
                name = _shown(stream_id)
                text = f"no call is open on stream {name}, and the message opens none"
                self._replies.refuse(table, stream_id, text)
        except EncodeError as error:
            raise SessionFailure(str(error), FailureKind.SENDING) from error

    def _open(self, table: CallTable, envelope: Envelope, size: int, wakes: list[Parker]) -> None:
        stream_id = envelope.stream_id
        if isinstance(envelope.payload, Oversize):
            self._replies.refuse(table, stream_id, envelope.payload.text())
            return
        found = self._find(envelope)
        if isinstance(found, RiverError):
            self._replies.refuse(table, stream_id, found.message, code=found.code)
            return
        init, wrong = found.read_init(envelope.payload, bool(envelope.flags & CLOSED))
        if wrong is not None:
            text = _told("procedure init failed validation", wrong)
            self._replies.refuse(table, stream_id, text, wrong)
            return
        call = ServerCall(self._replies, self._mutex, table, stream_id, found)
        start = Start(call, self._handler(call, init), time.monotonic())
        if envelope.tracing is not None and envelope.tracing[0]:  # shipped clients always send it
            call.tracing = envelope.tracing
        has_worker = False
        with self._mutex:
            if table.record.ended:
                return  # meanwhile
            opened = table.add_locked(call)
            if opened:
                call.first_metadata = table.record.metadata
                if init is not None and not found.takes_init:
                    call.reader.push_locked(init, size, wakes)
                if envelope.flags & CLOSED:
                    call.reader.end_locked(wakes)
                has_worker = self._ask_locked(start, wakes)
        if has_worker:
            self._workers.add(lambda: self._work(start), wakes)
        elif opened:
            self._tell_waiting(call)
        else:
            text = f"more than {self._options.max_streams} calls are open"
            self._replies.refuse(table, stream_id, text)

    def _find(self, envelope: Envelope) -> Procedure | RiverError:
        """Return the procedure that a message opens, or what is wrong with it."""
        if envelope.service is None:
            return RiverError(INVALID_REQUEST, "missing service name in stream open message")
        if envelope.procedure is None:
            return RiverError(INVALID_REQUEST, "missing procedure name in stream open message")
        service = self._services.get(envelope.service)
        if service is None:
            text = f"couldn't find service {_shown(envelope.service)}"
            return RiverError(INVALID_REQUEST, text)
        procedure = service.procedures.get(envelope.procedure)
        if procedure is None:
            name = _shown(envelope.procedure)
            text = f"couldn't find a procedure {name} in {envelope.service}"
            return RiverError(service.missing_code, text)
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
        value, wrong = _read(call, request, payload)
        if wrong is not None:
            self._replies.cancel(call, wrong)
            return
        behind = False
        with self._mutex:
            if request:
                call.reader.push_locked(value, size, wakes)
                behind = call.reader.fell_behind(self._options)
            if flags & CLOSED:
                call.reader.end_locked(wakes)
            over = call.table.complete_locked(call)
        if behind:
            self._replies.cancel(call, RiverError(CANCEL, "reader fell behind"))
        elif over:
            self._replies.finish([call])

    # Handlers

    def _ask_locked(self, start: Start, wakes: list[Parker]) -> bool:
        """Return whether a handler has a worker; else it waits for one."""
        if self._shares.ask(start.call.table.share, start):
            return True
        if start.since is not None:
            due = start.since + self._options.worker_timeout
            start.timer = self._add_timer_locked(self._patience, due, start, wakes)
        return False

    def _tell_waiting(self, call: ServerCall) -> None:
        """Log that a call waits for a worker, once for each session."""
        share = call.table.share
        if share.told_waiting:
            return  # it stays so, and of a flood of calls most end here
        with self._mutex:
            told, share.told_waiting = share.told_waiting, True
            running, total = share.running, self._shares.running
        if not told:
            _log.info(
                "%d handlers of client %s run, of %d in all; its next calls wait for one to end",
                running,
                call.session.peer_id,
                total,
            )

    def _give_back_locked(self, share: Share[Start]) -> list[Start]:
        """Give a worker back; return what has got it, and is refused no more."""
        starts = self._shares.give_back(share)
        self._forget_timers_locked(starts)
        return starts

    def _forget_timers_locked(self, starts: list[Start]) -> None:
        """Refuse none of these any more."""
        for start in starts:
            if start.timer is not None:
                self._patience.cancel(start.timer)

    def _start(self, starts: list[Start]) -> None:
        """Start what has got a worker."""
        wakes: list[Parker] = []
        for start in starts:
            self._workers.add(partial(self._work, start), wakes)
        wake(wakes)

    def _work(self, start: Start) -> None:
        """Do a worker's part in a call."""
        call, waits = start.call, False
        try:
            waits = self._handle(call, start.step)
        finally:
            if not waits:
                with self._mutex:
                    call.table.returned_locked(call)
                    starts = self._give_back_locked(call.table.share)
                self._start(starts)

    def _handler(self, call: ServerCall, init: Any) -> Callable[[], Any]:
        """Return what runs the handler of a call; ``WAITS`` says that it goes on later."""

        def run() -> Any:
            if call.over:
                return None  # before a worker was free
            context = Context(call, self._states[call.procedure.service], self._context)
            if call.tracing is not None:
                call.span = server_span(
                    context.service, context.procedure, context.client_id, call.tracing
                )
            return _in_span(call, lambda: self._run(call, context, init))

        return run

    def _handle(self, call: ServerCall, step: Callable[[], Any]) -> bool:
        """Run a handler, and send what comes of it; tell whether it waits without a worker."""
        try:
            value = step()
        except RiverError as error:
            self._answer_error(call, error)
        except Exception as error:
            if call.over:
                _log.info("%s ended after its call: %r", call.name, error)
                return False
            _log.exception("the handler of %s failed", call.name)
            self._uncaught(call, str(error) or type(error).__name__)
        except BaseException:  # such as SystemExit, which is for the thread
            self._uncaught(call)
            raise
        else:
            if value is WAITS:
                return True
            if call.over:
                return False
            if call.procedure.kind.writes_responses:
                self._replies.close_responses(call)
            else:
                self._answer(call, value)
        return False

    def _run(self, call: ServerCall, context: Context, init: Any) -> Any:
        procedure = call.procedure
        arguments = [context, init] if procedure.takes_init else [context]
        if procedure.kind.takes_requests:
            arguments.append(call.reader)
        if procedure.kind.writes_responses and not procedure.generator:
            arguments.append(call.writer)

        if procedure.generator and not self._middleware:
            generator = procedure.handler(*arguments)
            return GeneratorRun(self, self._replies, call, generator).advance()

        def handle() -> Any:
            outcome = procedure.handler(*arguments)
            if not procedure.generator:
                return outcome
            suspender = ThreadSuspender(self._mutex)
            return GeneratorRun(suspender, self._replies, call, outcome).advance()

        step = handle
        for layer in reversed(self._middleware):
            step = _wrapped(layer, context, init, step)
        return step()

    # Generators that wait

    def suspend(self, run: GeneratorRun, due: float | None) -> bool:
        wakes: list[Parker] = []
        with self._mutex:
            if run.unparked or run.call.over:
                run.unparked = False
                return False
            run.suspended, run.call.parked = True, run
            if due is not None:
                run.timer = self._add_timer_locked(self._timers, due, run, wakes)
            starts = self._give_back_locked(run.call.table.share)
        wake(wakes)
        self._start(starts)
        return True

    def unpark(self, run: GeneratorRun) -> None:
        wakes: list[Parker] = []
        start = Start(run.call, lambda: _in_span(run.call, run.advance), None)
        with self._mutex:
            if not run.suspended:
                run.unparked = True
                return
            run.suspended, run.call.parked = False, None
            if run.timer is not None:
                self._timers.cancel(run.timer)
                run.timer = None
            has_worker = self._ask_locked(start, wakes)
        wake(wakes)
        if has_worker:
            self._start([start])
        else:
            self._tell_waiting(run.call)

    # Time

    def _add_timer_locked(
        self, timers: Timers[Work], due: float, work: Work, wakes: list[Parker]
    ) -> Timer[Work]:
        """Add a timer, and wake the thread that watches them if it is the nearest."""
        nearest = self.next_timer_locked()
        if nearest is None or due < nearest:
            self._alarm.notify_forced(wakes)
        return timers.add(due, work)

    def next_timer_locked(self) -> float | None:
        """Return when to call ``handle_timers``, in seconds, or ``None``."""
        times = (self._timers.next_due(), self._patience.next_due())
        return min((due for due in times if due is not None), default=None)

    def handle_timers(self, now: float) -> None:
        """Let generators go on whose time is up, and refuse calls that had no worker in time."""
        wakes: list[Parker] = []
        with self._mutex:
            wakes += self._timers.take_due(now)
            late = set(self._patience.take_due(now))
            for table in {start.call.table for start in late}:
                self._shares.forget(table.share, lambda start: start not in late)
        wake(wakes)
        for start in late:
            self._refuse_late(start.call)

    def _refuse_late(self, call: ServerCall) -> None:
        seconds = self._options.worker_timeout
        share = call.table.share
        with self._mutex:
            call.table.returned_locked(call)
            told, share.told_refused = share.told_refused, True
            running = share.running
        text = f"no worker was free in {seconds:g} s: {running} calls of this session run"
        if not told:
            _log.warning(
                "%s of client %s was refused, and so are others: %s. Raise workers= or max_workers="
                " of the server, or let handlers that wait be generators: see Context.wait",
                call.name,
                call.session.peer_id,
                text,
            )
        self._replies.cancel(call, RiverError(CANCEL, text))

    # Answers

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
        """End a call whose handler failed; the text is for clients that may know it."""
        told = text if self._expose_errors else FAILED
        by_result = call.procedure.fails_by_result
        send = self._replies.send_error if by_result else self._replies.cancel
        try:
            send(call, RiverError(UNCAUGHT_ERROR, told))
        except EncodeError:  # text of any length, with halves of pairs in it
            send(call, RiverError(UNCAUGHT_ERROR, FAILED))

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


def _read(call: ServerCall, request: bool, payload: Any) -> tuple[Any, RiverError | None]:
    """Return the request that a message of an open call is, and what is wrong with it."""
    procedure = call.procedure
    if isinstance(payload, Oversize):
        return None, RiverError(INVALID_REQUEST, payload.text())
    if call.reader.ended:
        text = "received a message after the end of requests"
        return None, RiverError(INVALID_REQUEST, text)
    if not request:
        return None, None
    if procedure.request is None:
        text = f"{call.name} is of kind {procedure.kind}, which takes no requests"
        return None, RiverError(INVALID_REQUEST, text)
    value, extra = procedure.read_request(payload)
    if extra is None:
        return value, None
    text = _told("message in request failed validation", extra)
    return None, RiverError(INVALID_REQUEST, text, extra)


def _told(text: str, extra: dict[str, Any]) -> str:
    """Return a sentence with the first of what a schema forbids, as the extra has it."""
    first = extra["firstValidationErrors"][0]
    place = f"{_shown(first['path'])} " if first["path"] else ""
    return f"{text}: {place}{first['message']}"


def _in_span(call: ServerCall, step: Callable[[], Any]) -> Any:
    """Run a handler, or go on with it, in the span of its call, if there is one."""
    span = call.span
    if span is None:
        return step()
    with span.current():
        value = step()
    if value is not WAITS:
        span.end()
    return value


def _shown(name: str) -> str:
    """Return a name that a client has sent, short enough to be sent back."""
    return name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}..."


def _wrapped(
    layer: Callable[..., Any], context: Context, init: Any, step: Callable[[], Any]
) -> Callable[[], Any]:
    return lambda: layer(context, init, step)
