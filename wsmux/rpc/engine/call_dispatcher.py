"""Handle the messages of a server's calls: open calls, pass requests on, run handlers.

``server_engine`` describes the threads and locks.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from ...runtime import clock
from ...runtime.deadline import Deadline, deadline_in, within
from ...runtime.logs import logger
from ...runtime.parking import Parker, Waiter, wake
from ...runtime.thread_pool import ThreadPool
from ..errors import (
    CANCEL,
    DEADLINE_EXCEEDED,
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
from .server_calls import OUT_OF_TIME, TOO_OFTEN, CallTable, Context, Replies, ServerCall
from .session_record import SessionRecord
from .timers import Timer, Timers
from .worker_shares import WorkerShares

__all__ = ["CallDispatcher"]

# The text for clients of an error that the procedure does not declare.
FAILED = "the handler failed"

# Characters of a client's names that error messages repeat.
MAX_SHOWN = 100

Work = TypeVar("Work")

_log = logger("wsmux.rpc")


class Start:
    """A handler that starts, or continues, as soon as it has a worker.

    Attributes:
        call: the call of the handler.
        step: runs in the worker; returns ``WAITS`` if the handler waits without it.
        since: when it arrived, if it is refused after waiting too long; otherwise ``None``.
        timer: refuses it, while it waits.
    """

    __slots__ = ("call", "since", "step", "timer")

    def __init__(self, call: ServerCall, step: Callable[[], Any], since: float | None) -> None:
        self.call = call
        self.step = step
        self.since = since
        self.timer: Timer[Start] | None = None


class CallDispatcher(Suspender):
    """Run the calls of all sessions of a server.

    It owns the services with their states, the threads that run handlers, and for each session the
    table of its calls and its share of the threads. The server's mutex guards the tables, shares
    and timers. The threads have locks of their own, taken without the mutex; the rest never
    changes. ``ServerEngine`` calls it, and it calls ``Replies``; neither calls back.
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
        self._each = workers
        self._shares: WorkerShares[Start] = WorkerShares(workers, max_workers)
        self._patience: Timers[Start] = Timers()  # refuse what waits for a worker
        self._timers: Timers[GeneratorRun] = Timers()  # unpark suspended runs
        self._expiries: Timers[ServerCall] = Timers()  # end calls whose callers stop waiting
        self._alarm = alarm  # wakes the thread that calls ``handle_timers``
        self._alarm_due = math.inf  # when that thread wakes by itself
        self._disposed = False  # of the states, or it is under way

    def forked(self, mutex: threading.Lock) -> None:
        """Take a new mutex in a forked child, where the old one may never be released.

        The states are the parent's to dispose of.
        """
        self._mutex = mutex
        self._disposed = True
        self._replies.forked(mutex)

    # Sessions

    def begin_session_locked(self, record: SessionRecord) -> None:
        """Start to accept calls of a session."""
        self._tables[record] = CallTable(record, self._options, self._expiries)

    def end_session_locked(
        self, record: SessionRecord, error: RiverError, wakes: list[Parker]
    ) -> list[ServerCall]:
        """End the calls of a session that is over; return them for ``Replies.finish``."""
        table = self._tables.pop(record)
        table.held.clear()
        self._forget_timers_locked(
            self._shares.forget(table.share, lambda start: start.since is None)
        )
        calls = table.end_locked(error, wakes)
        record.notify_room_locked(wakes)
        return calls

    def describe(self, record: SessionRecord) -> SessionInfo | None:
        """Return a snapshot of a session; ``None`` if it has ended."""
        with self._mutex:
            table = self._tables.get(record)
            if table is None:
                return None
            return session_info(
                record.session,
                "waiting_for_reconnect",
                clock.monotonic(),
                calls=len(table),
                unread=table.unread_locked(),
                handlers=table.share.running,
                waiting_calls=len(table.share.waiting) + len(table.held),
            )

    # Messages

    def dispatch(
        self, record: SessionRecord, envelope: Envelope, size: int, wakes: list[Parker]
    ) -> None:
        """Handle a message of a session, in order (specification, "On the server").

        Raises:
            SessionFailure: the answer cannot be sent.
        """
        stream_id, flags = envelope.stream_id, envelope.flags
        with self._mutex:
            table = self._tables.get(record)
            call = None if table is None else table.get_locked(stream_id)
        if table is None:
            return  # the session has ended
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
        admits = table.record.caller.admits_call
        if admits is not None and not admits():
            self._replies.refuse(table, stream_id, TOO_OFTEN, code=CANCEL)
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
        if envelope.timeout == 0:
            self._replies.refuse(table, stream_id, OUT_OF_TIME, code=DEADLINE_EXCEEDED)
            return
        seconds = None if envelope.timeout is None else envelope.timeout / 1000
        deadline = deadline_in(seconds, outlives=True)
        call = ServerCall(self._replies, self._mutex, table, stream_id, found, deadline)
        start = Start(call, self._handler(call, init), clock.monotonic())
        if envelope.tracing is not None and envelope.tracing[0]:  # others send it even if empty
            call.tracing = envelope.tracing
        has_worker = held = False
        with self._mutex:
            if table.record.ended:
                return
            opened = table.add_locked(call)
            if opened:
                call.first_metadata = table.record.metadata
                if init is not None and not found.takes_init:
                    call.reader.push_locked(init, size, wakes)
                if envelope.flags & CLOSED:
                    call.reader.end_locked(wakes)
                if deadline.at is not None:
                    call.expiry = self._add_timer_locked(self._expiries, deadline.at, call, wakes)
                lacks_room = call.session.bytes_full and not table.share.waiting
                held = bool(table.held) or lacks_room
                if held:
                    table.held.append(start)
                else:
                    has_worker = self._ask_locked(start, wakes)
        if has_worker:
            self._workers.add(lambda: self._work(start), wakes)
        elif held:
            self._tell_held(table)
        elif opened:
            self._tell_waiting(call)
        else:
            text = f"more than {self._options.max_streams} calls are open"
            self._replies.refuse(table, stream_id, text)

    def _find(self, envelope: Envelope) -> Procedure | RiverError:
        """Return the procedure that a message calls, or the error to refuse it with."""
        if envelope.service is None:
            return RiverError(INVALID_REQUEST, "missing service name in stream open message")
        if envelope.procedure is None:
            return RiverError(INVALID_REQUEST, "missing procedure name in stream open message")
        service = self._services.get(envelope.service)
        if service is None:
            text = f"couldn't find service {_shown(envelope.service)}"
            return RiverError(INVALID_REQUEST, text)
        procedure = service.procedures.get(envelope.procedure)
        procedure = procedure or service.asides.get(envelope.procedure)
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
        behind: str | None = None
        with self._mutex:
            if request:
                call.reader.push_locked(value, size, wakes)
                behind = call.reader.fell_behind(self._options)
            if flags & CLOSED:
                call.reader.end_locked(wakes)
            over = call.table.complete_locked(call)
        if behind is not None:
            self._replies.cancel(call, RiverError(CANCEL, behind))
        elif over:
            self._replies.finish([call])

    # Handlers

    def _ask_locked(self, start: Start, wakes: list[Parker]) -> bool:
        """Take a worker for a handler; if none is free, let it wait and return ``False``."""
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
            return  # it never changes back, and a flood of calls must not take the mutex for it
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

    def _tell_held(self, table: CallTable) -> None:
        """Log that calls are held, once for each session."""
        if table.told_held:
            return
        session = table.record.session
        with self._mutex:
            told, table.told_held = table.told_held, True
            unacknowledged = session.buffered_bytes
        if not told:
            _log.info(
                "client %s has not acknowledged %d bytes; its next calls wait until it does",
                session.peer_id,
                unacknowledged,
            )

    def _give_back_locked(self, table: CallTable, wakes: list[Parker]) -> list[Start]:
        """Return a worker; the result is the handlers that start instead.

        A call whose session has no room for answers is held, and another one gets its worker.
        """
        coming = self._shares.give_back(table.share)
        if not coming and not table.held:
            return coming
        starts: list[Start] = []
        held: list[Start] = []
        while coming:
            self._forget_timers_locked(coming)
            others: list[Start] = []
            for start in coming:
                if start.since is not None and start.call.session.bytes_full:
                    held.append(start)
                    others += self._shares.give_back(start.call.table.share)
                else:
                    starts.append(start)
            coming = others
        for start in reversed(held):
            start.call.table.held.appendleft(start)
        return starts + self._release_locked(table, wakes)

    def release_locked(self, record: SessionRecord, wakes: list[Parker]) -> list[Start]:
        """Let calls of a session go on that were held, if there is room; then ``start`` those."""
        table = self._tables.get(record)
        return self._release_locked(table, wakes) if table is not None and table.held else []

    def _release_locked(self, table: CallTable, wakes: list[Parker]) -> list[Start]:
        """Let held calls ask for a worker, not more than may run; the rest when one returns."""
        starts: list[Start] = []
        share = table.share
        while (
            table.held
            and share.running + len(share.waiting) < self._each
            and not table.record.session.bytes_full
        ):
            start: Start = table.held.popleft()
            start.since = clock.monotonic()
            if self._ask_locked(start, wakes):
                starts.append(start)
        return starts

    def _forget_timers_locked(self, starts: list[Start]) -> None:
        """Cancel the timers that would refuse these."""
        for start in starts:
            if start.timer is not None:
                self._patience.cancel(start.timer)

    def start(self, starts: list[Start]) -> None:
        """Start handlers that have a worker; call it without the mutex."""
        if not starts:
            return
        wakes: list[Parker] = []
        for start in starts:
            self._workers.add(partial(self._work, start), wakes)
        wake(wakes)

    def _work(self, start: Start) -> None:
        """Run a handler in a worker, and return the worker."""
        call, waits = start.call, False
        wakes: list[Parker] = []
        try:
            waits = self._handle(call, start.step)
        finally:
            if not waits:
                with self._mutex:
                    call.table.returned_locked(call)
                    starts = self._give_back_locked(call.table, wakes)
                    held = bool(call.table.held)
                if wakes:
                    wake(wakes)
                self.start(starts)
                if held:
                    self._tell_held(call.table)

    def _handler(self, call: ServerCall, init: Any) -> Callable[[], Any]:
        """Return a function that runs the handler of a call; it may return ``WAITS``."""

        def run() -> Any:
            if call.over:
                return None  # it ended before a worker was free
            context = Context(call, self._states[call.procedure.service], self._context)
            if call.tracing is not None:
                call.span = server_span(
                    context.service, context.procedure, context.client_id, call.tracing
                )
            return _in_span(call, lambda: self._run(call, context, init))

        def run_within() -> Any:
            with within(call.deadline):
                return run()

        return run if call.deadline.at is None else run_within

    def _handle(self, call: ServerCall, step: Callable[[], Any]) -> bool:
        """Run a handler, and send its result; return whether it waits without a worker."""
        try:
            value = step()
        except RiverError as error:
            self._answer_error(call, error)
        except Exception as error:
            if call.over:
                _log.info("%s ended after its call: %r", call.name, error)
                return False
            if isinstance(error, TimeoutError) and call.deadline.expired():
                self._replies.expire(call)  # as its timer is about to do
                return False
            _log.exception("the handler of %s failed", call.name)
            self._uncaught(call, str(error) or type(error).__name__)
        except BaseException:  # such as SystemExit, which ends the thread
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
            starts = self._give_back_locked(run.call.table, wakes)
        wake(wakes)
        self.start(starts)
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
            self.start([start])
        else:
            self._tell_waiting(run.call)

    # Time

    def _add_timer_locked(
        self, timers: Timers[Work], due: float, work: Work, wakes: list[Parker]
    ) -> Timer[Work]:
        """Add a timer, and wake the thread that watches them if it would wake too late.

        It is not woken when a timer is cancelled, as most are, and then wakes once for nothing.
        """
        if due < self._alarm_due:
            self._alarm_due = due
            self._alarm.notify_forced(wakes)
        return timers.add(due, work)

    def next_timer_locked(self) -> float | None:
        """Return when the caller must call ``handle_timers``, in seconds, or ``None``."""
        times = (each.next_due() for each in (self._timers, self._patience, self._expiries))
        next_due = min((due for due in times if due is not None), default=None)
        self._alarm_due = math.inf if next_due is None else next_due
        return next_due

    def handle_timers(self, now: float) -> None:
        """Unpark generators whose time is up, and end calls that are out of time.

        Those are calls that had no worker in time, and calls whose callers stop waiting.
        """
        with self._mutex:
            expired = self._expiries.take_due(now)
            runs = self._timers.take_due(now)
            late = set(self._patience.take_due(now))
            for table in {start.call.table for start in late}:
                self._shares.forget(table.share, lambda start: start not in late)
        due: list[tuple[ServerCall, Callable[[], None]]] = [(run.call, run.unpark) for run in runs]
        due += [(call, partial(self._replies.expire, call)) for call in expired]
        due += [(start.call, partial(self._refuse_late, start.call)) for start in late]
        for call, action in due:
            try:
                action()
            except Exception:  # the others must still run
                _log.exception("a timer of %s failed", call.name)

    def _refuse_late(self, call: ServerCall) -> None:
        seconds = self._options.worker_timeout
        share = call.table.share
        wakes: list[Parker] = []
        with self._mutex:
            call.table.returned_locked(call)
            told, share.told_refused = share.told_refused, True
            running = share.running
            starts = self._release_locked(call.table, wakes)
        wake(wakes)
        self.start(starts)
        text = f"no worker was free in {seconds:g} s: {running} calls of this session run"
        try:
            if not told:
                _log.warning(
                    "%s of client %s was refused, and so are others: %s. Raise workers= or "
                    "max_workers= of the server, or let handlers that wait be generators: see "
                    "Context.wait",
                    call.name,
                    call.session.peer_id,
                    text,
                )
        finally:
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
        """End a call whose handler failed; the text is sent if ``expose_errors`` allows it."""
        told = text if self._expose_errors else FAILED
        by_result = call.procedure.fails_by_result
        send = self._replies.send_error if by_result else self._replies.cancel
        try:
            send(call, RiverError(UNCAUGHT_ERROR, told))
        except EncodeError:  # the text may be too long, or hold lone surrogates
            send(call, RiverError(UNCAUGHT_ERROR, FAILED))

    # The end

    def close(self, deadline: Deadline) -> None:
        """Wait for handlers and deferred functions, then dispose of the services' states.

        Exceptions of ``dispose`` are raised after all states were disposed of. Of several calls,
        the one whose wait is over first disposes of them, and further ones return at once.
        """
        if self._disposed:
            return
        self._workers.close()
        self._replies.close()
        self._workers.join(deadline)
        self._replies.join(deadline)
        with self._mutex:
            if self._disposed:
                return
            self._disposed = True
        failures: list[Exception] = []
        for name, service in self._services.items():
            try:
                service.dispose_state(self._states[name])
            except Exception as error:  # the others must be disposed of, too
                failures.append(error)
        if len(failures) > 1:
            raise ExceptionGroup("states could not be disposed of", failures)
        if failures:
            raise failures[0]


def _read(call: ServerCall, request: bool, payload: Any) -> tuple[Any, RiverError | None]:
    """Return the request in a message of an open call, or the error to cancel the call with."""
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
    """Return an error message with the first validation error in ``extra``."""
    first = extra["firstValidationErrors"][0]
    place = f"{_shown(first['path'])} " if first["path"] else ""
    return f"{text}: {place}{first['message']}"


def _in_span(call: ServerCall, step: Callable[[], Any]) -> Any:
    """Run or continue a handler within the span of its call, if there is one."""
    span = call.span
    if span is None:
        return step()
    with span.current():
        value = step()
    if value is not WAITS:
        span.end()
    return value


def _shown(name: str) -> str:
    """Return a name that a client sent, shortened for an error message."""
    return name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}..."


def _wrapped(
    layer: Callable[..., Any], context: Context, init: Any, step: Callable[[], Any]
) -> Callable[[], Any]:
    return lambda: layer(context, init, step)
