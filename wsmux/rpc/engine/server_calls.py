"""Implement the server side of calls: the handler's context, its responses, and the end of a call.

A call has two halves. The client ends the requests; the handler ends the responses, at the latest
by returning, which in other implementations ends nothing. The call is over when both have ended, or
when either side cancels. Then ``ctx.ended`` is set at once, and deferred actions run, last in first
out, in a thread that does not wait for handlers, since handlers may wait for the actions.

Beyond the specification, a client may say how long its caller still waits, see ``wire.envelope``.
The handler then runs within that deadline, as in a block of ``wsmux.deadline``. When the time is up
the call is cancelled as by its client, but with ``TimeoutError``, and the client is sent
DEADLINE_EXCEEDED. Whoever notices first ends the call: the timer, the run of a generator, or the
worker whose handler raised. An answer sent before that stands.

Requests that a handler has not read when it returns are dropped, and so are those that come later:
nobody is there to read them, and the client learns from the responses that they are not wanted.

A handler acts on its ``ServerCall``, which sends through ``Replies`` and the ``SessionRecord``;
nothing here calls a dispatcher or an engine. Methods that end in ``_locked`` change state, and
neither send, wait nor wake. ``server_engine`` describes threads and locks.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from typing import Any

from ...runtime import clock
from ...runtime.deadline import Deadline, within
from ...runtime.logs import logger, printable
from ...runtime.parking import Parker, wake
from ...runtime.thread_pool import ThreadPool
from ..abort import Abort
from ..errors import CANCEL, DEADLINE_EXCEEDED, INVALID_REQUEST, RiverError
from ..options import Options
from ..services import Procedure
from ..wire.codec import Codec
from ..wire.envelope import CANCELLED, CLOSE_PAYLOAD, CLOSED, error_result
from ..wire.message_size import Packer
from .call_spans import ServerSpan
from .call_streams import CallBase, Err, unread_locked
from .session_record import SessionRecord
from .signals import Pause, Signal
from .timers import Timer, Timers
from .worker_shares import Share

__all__ = ["OUT_OF_TIME", "TOO_OFTEN", "CallTable", "Context", "Replies", "ServerCall"]

# What ends a call whose caller said how long it waits.
OUT_OF_TIME = "the time of the caller is up"

# To a user who calls more often than ``UserLimits.streams_per_minute`` allows.
TOO_OFTEN = "this user has begun as many calls as a minute allows; try again later"

_log = logger("wsmux.rpc")
_calls_log = logging.getLogger("wsmux.rpc.calls")  # for handlers; not rate-limited


class CallTable:
    """Hold the calls of one session, and limit them; made and owned by ``CallDispatcher``.

    All methods need the server's mutex. A handler that continues after its call was cancelled
    counts as an open call. A refused or cancelled stream is remembered for a while, so that its
    client is notified only once.

    Attributes:
        record: the session of the calls.
        expiries: the timers of the calls whose callers wait only so long, of all sessions.
        share: the part of the server's workers in use; ``CallDispatcher`` changes it.
        held: the calls that do not ask for a worker yet, for lack of room for their answers, in
            the order in which they will. As a rule they are younger than those that wait in the
            share, but one that gets a worker while there is no room is held, too. It belongs to the
            dispatcher.
        told_held: whether it was logged, once, that calls are held.
    """

    def __init__(
        self, record: SessionRecord, options: Options, expiries: Timers[ServerCall]
    ) -> None:
        self.record = record
        self.expiries = expiries
        self.share: Share[Any] = Share()
        self.held: deque[Any] = deque()
        self.told_held = False
        self._options = options
        self._open: dict[str, ServerCall] = {}
        self._orphans = 0  # handlers of cancelled calls that run, or wait for a worker
        self._tombstones: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def unread_locked(self) -> tuple[int, int]:
        """Return how many messages of the open calls, and bytes, their handlers have not read."""
        return unread_locked(self._open.values())

    def get_locked(self, stream_id: str) -> ServerCall | None:
        """Return the open call of a stream."""
        return self._open.get(stream_id)

    def add_locked(self, call: ServerCall) -> bool:
        """Add a call; return false if there are too many."""
        if len(self._open) + self._orphans >= self._options.max_streams:
            return False
        self._open[call.stream_id] = call
        return True

    def complete_locked(self, call: ServerCall) -> bool:
        """Remove a call if both halves have ended; return whether that happened now."""
        over = call.completed_locked()
        if over:
            self._open.pop(call.stream_id, None)
        return over

    def drop_locked(
        self, call: ServerCall, error: RiverError | TimeoutError, wakes: list[Parker]
    ) -> None:
        """End and remove a cancelled call; its handler counts until it returns."""
        self._open.pop(call.stream_id, None)
        if not call.answered:
            call.orphan = True
            self._orphans += 1
        call.end_locked(error, wakes)

    def returned_locked(self, call: ServerCall) -> None:
        """Record that the handler of a call has returned, or will not run."""
        self._orphans -= call.orphan
        call.answered, call.orphan = True, False

    def bury_locked(self, stream_id: str) -> bool:
        """Remember a refused or cancelled stream; return false if it was already known."""
        known = stream_id in self._tombstones
        self._tombstones[stream_id] = None
        if len(self._tombstones) > self._options.tombstones:
            self._tombstones.popitem(last=False)
        return not known

    def end_locked(self, error: RiverError, wakes: list[Parker]) -> list[ServerCall]:
        """End and remove all calls; return them for ``finish``."""
        calls = list(self._open.values())
        self._open.clear()
        for call in calls:
            call.end_locked(error, wakes)
        return calls


class Replies:
    """Send the responses of a server's calls, and run their deferred actions once they are over.

    It owns the threads for deferred actions; their locks are taken without the server's mutex. The
    mutex guards changes to calls, to their table, and to the session record, where writers wait for
    acknowledgements. Data queued under the mutex is flushed after it was released.
    """

    def __init__(
        self, mutex: threading.Lock, codec: Codec, options: Options, *, name: str, workers: int
    ) -> None:
        self._mutex = mutex
        self._codec = codec
        self._packer = Packer(codec, options.max_size)
        self._close_packed = codec.pack(CLOSE_PAYLOAD)
        self._cleaners = ThreadPool(workers, f"{name}-cleanup")

    def forked(self, mutex: threading.Lock) -> None:
        """Use a forked child's mutex: the old one may be locked for ever."""
        self._mutex = mutex

    # Responses

    def send_response(self, call: ServerCall, value: Any, deadline: Deadline) -> None:
        """Send one response; block while the send buffer is full."""
        packed = self.pack_response(call, value)
        record = call.table.record
        with self._mutex:
            call.writer.check_locked()
            while call.session.full:
                if deadline.expired():
                    raise TimeoutError(
                        f"{call.name}: the send buffer is full (unacknowledged messages)"
                    )
                record.room.wait(self._mutex, deadline)
                call.writer.check_locked()
            channel = record.send_locked(call.stream_id, packed, 0)
        if channel is not None:
            channel.flush()

    def pack_response(self, call: ServerCall, value: Any) -> bytes:
        """Return the encoded response.

        Raises:
            ValueError: the schema forbids the value, or the procedure does not declare the error.
            EncodeError: the codec cannot encode it.
        """
        if isinstance(value, Err):
            if not call.procedure.declares(value.error):
                raise ValueError(f"an error that {call.name} does not declare: {value.error}")
            return call.procedure.pack_error(self._packer, value.error)
        if call.procedure.response.check(value) is not None:
            raise ValueError(f"a response of {call.name} that its schema forbids")
        return call.procedure.pack_response(self._packer, value)

    def offer(self, call: ServerCall, packed: bytes, parker: Parker) -> bool:
        """Send one response if there is room; if not, unpark the parker once there is.

        Raises:
            RiverError, ValueError: the responses have ended.
        """
        record = call.table.record
        with self._mutex:
            call.writer.check_locked()
            if call.session.full:
                record.waiting_runs.add(parker)
                return False
            channel = record.send_locked(call.stream_id, packed, 0)
        if channel is not None:
            channel.flush()
        return True

    def withdraw(self, call: ServerCall, parker: Parker) -> None:
        """Stop unparking a parker that waits for room."""
        with self._mutex:
            call.table.record.waiting_runs.discard(parker)

    def send_result(self, call: ServerCall, value: Any) -> None:
        """Send the only response of an rpc or upload.

        Raises:
            EncodeError: the codec cannot encode it, or it is too large; nothing was sent.
        """
        self._send_last(call, call.procedure.pack_response(self._packer, value))

    def send_error(self, call: ServerCall, error: RiverError) -> None:
        """Send a declared error as the last response.

        Raises:
            EncodeError: the codec cannot encode it, or it is too large; nothing was sent.
        """
        packed = call.procedure.pack_error(self._packer, error)
        if not call.procedure.kind.writes_responses:
            self._send_last(call, packed)
            return
        with self._mutex:
            if not call.writer.closed:
                call.table.record.send_locked(call.stream_id, packed, 0)
        self.close_responses(call)

    def close_responses(self, call: ServerCall, *, returned: bool = True) -> None:
        """Send the end of the responses, once; ``returned`` says that the handler has, too."""
        self._send_last(call, self._close_packed, returned=returned)

    def _send_last(self, call: ServerCall, packed: bytes, *, returned: bool = True) -> None:
        """Send the last response, unless they have ended.

        If the handler has ``returned``, nobody is left to read requests.
        """
        over, channel, table = False, None, call.table
        wakes: list[Parker] = []
        with self._mutex:
            if returned and not call.reader.ended:
                call.reader.stop_locked(wakes)
            if not table.record.ended and not call.writer.closed:
                channel = table.record.send_locked(call.stream_id, packed, CLOSED)
                call.writer.close_locked()
                call.answered = True
                over = table.complete_locked(call)
        if wakes:
            wake(wakes)
        if channel is not None:
            channel.flush()
        if over:
            self.finish([call])

    # Refusals and cancellations

    def refuse(
        self,
        table: CallTable,
        stream_id: str,
        text: str,
        extra: Any = None,
        code: str = INVALID_REQUEST,
    ) -> None:
        """Refuse a message that belongs to no call, once for each stream."""
        packed = self._codec.pack(error_result(RiverError(code, text, extra)))
        with self._mutex:
            if table.bury_locked(stream_id):
                table.record.send_locked(stream_id, packed, CANCELLED, provoked=True)

    def expire(self, call: ServerCall) -> None:
        """End a call whose caller's time is up: as ``cancel`` does, but here with a timeout."""
        self.cancel(call, RiverError(DEADLINE_EXCEEDED, OUT_OF_TIME), TimeoutError(OUT_OF_TIME))

    def cancel(self, call: ServerCall, error: RiverError, ends: TimeoutError | None = None) -> None:
        """Cancel a call at the client, and end it here with the same error, or another, once."""
        packed = self._packer.pack_error(error)
        wakes: list[Parker] = []
        table = call.table
        with self._mutex:
            if call.over or table.record.ended:
                return
            table.bury_locked(call.stream_id)
            channel = table.record.send_locked(call.stream_id, packed, CANCELLED, provoked=True)
            table.drop_locked(call, ends or error, wakes)
            table.record.room.notify(wakes)  # its own writers; a run is woken as it is parked
        wake(wakes)
        if channel is not None:
            channel.flush()
        self.finish([call])

    def cancelled(self, call: ServerCall, error: RiverError) -> None:
        """End a call cancelled by the client; an open writer still sends CLOSE, as upstream."""
        wakes: list[Parker] = []
        with self._mutex:
            if call.over:
                return
            if call.procedure.kind.writes_responses and not call.writer.closed:
                record = call.table.record
                record.send_locked(call.stream_id, self._close_packed, CLOSED, provoked=True)
            call.table.drop_locked(call, error, wakes)
            call.table.record.room.notify(wakes)
        wake(wakes)
        self.finish([call])

    # What else calls and sessions need

    def metadata(self, call: ServerCall) -> Any:
        """Return the validated metadata of the session, which may have been refreshed."""
        record = call.table.record
        with self._mutex:
            return call.first_metadata if record.ended else record.metadata

    def finish(self, calls: list[ServerCall]) -> None:
        """Run the deferred actions of calls that are over; handlers may wait for them."""
        for call in calls:
            if call.defers():
                self._cleaners.submit(call.clean_up)

    def close(self) -> None:
        """Stop each thread once it is idle; actions submitted later still run."""
        self._cleaners.close()

    def join(self, deadline: Deadline) -> None:
        """Wait, after ``close``, until all deferred actions have run."""
        self._cleaners.join(deadline)


class ServerCall(CallBase):
    """A call at the server. All that is not constant is guarded by the mutex.

    Attributes:
        table: the calls of its session, with the session record.
        session, stream_id, procedure: its session, its id on the wire, and the procedure called.
        deadline: when the caller stops waiting.
        expiry: the timer that then ends the call, until it is over.
        first_metadata: the metadata of the session when the call began.
        tracing: the client's trace context, if any.
        span: the span of the call, once its handler has started.
        answered: the handler has returned, or has sent its last response.
        orphan: the call was cancelled before it was answered.
        parked: the parker to unpark when the call is over, if its handler waits for that too.
    """

    def __init__(
        self,
        replies: Replies,
        mutex: threading.Lock,
        table: CallTable,
        stream_id: str,
        procedure: Procedure,
        deadline: Deadline,
    ) -> None:
        super().__init__(mutex)
        self._replies = replies
        self.table = table
        self.session = table.record.session
        self.stream_id = stream_id
        self.procedure = procedure
        self.deadline = deadline
        self.expiry: Timer[ServerCall] | None = None
        self.first_metadata: Any = None
        self.tracing: tuple[str, str] | None = None
        # Made on demand: few handlers ask for an event, which costs as much as the rest of a small
        # call.
        self._ended: Abort | None = None
        self._deferred: list[Callable[[], object]] = []
        self._cleaned = False  # deferred actions have run
        self.answered = False
        self.orphan = False
        self.parked: Parker | None = None
        self.span: ServerSpan | None = None

    @property
    def name(self) -> str:
        """Return the name of the procedure, for messages."""
        return f"{self.procedure.service}.{self.procedure.name}"

    @property
    def ended(self) -> Abort:
        """An event that is set when the call is over."""
        with self.mutex:
            if self._ended is None:
                self._ended = Abort()
                if self.over:
                    self._ended.mark()
            return self._ended

    def send(self, value: Any, deadline: Deadline) -> None:
        self._replies.send_response(self, value, deadline)

    def close_writing(self) -> None:
        self._replies.close_responses(self, returned=False)

    def cancel(self, error: RiverError) -> None:
        """Cancel the call."""
        if not self.in_child():
            self._replies.cancel(self, error)

    def check_open(self) -> None:
        """Raise the error that ended the responses."""
        with self.mutex:
            self.writer.check_locked()

    def live_metadata(self) -> Any:
        """Return the session's metadata."""
        return self._replies.metadata(self)

    def end_locked(self, error: RiverError | TimeoutError | None, wakes: list[Parker]) -> None:
        super().end_locked(error, wakes)
        self._over_locked()
        if self.parked is not None:
            wakes.append(self.parked)

    def completed_locked(self) -> bool:
        completed = super().completed_locked()
        if completed:
            self._over_locked()
        return completed

    def _over_locked(self) -> None:
        if self._ended is not None:
            self._ended.mark()
        if self.expiry is not None:
            self.table.expiries.cancel(self.expiry)
            self.expiry = None

    def defer(self, action: Callable[[], object]) -> None:
        """Run an action when the call is over; at once if all others have already run."""
        self.check_process()
        with self.mutex:
            late = self._cleaned
            if not late:
                self._deferred.append(action)
        if late:
            self._do(action)

    def defers(self) -> bool:
        """Return whether ``clean_up`` has anything to do, now that the call is over."""
        with self.mutex:
            if self._ended is not None and self._ended.mark():
                self._deferred.append(self._ended.set)  # cancels the calls made by the handler
            self._cleaned = not self._deferred
            return not self._cleaned

    def clean_up(self) -> None:
        """Run deferred actions, and those they defer; in a thread that may block."""
        while True:
            with self.mutex:
                if not self._deferred:
                    self._cleaned = True
                    return
                action = self._deferred.pop()
            self._do(action)

    def _do(self, action: Callable[[], object]) -> None:
        try:
            with within(Deadline(None, outlives=True)):  # a late one runs in the handler's thread
                action()
        except Exception:
            _log.exception("deferred cleanup of %s failed", self.name)


class Context:
    """The context of a call, passed to its handler before the init.

    Attributes:
        state: the state of the service.
        context: the ``context`` option of the server, the same for all handlers.
        client_id, session_id, stream_id: the caller, its session, and the id of the call on the
            wire.
        service, procedure: the names of the procedure called.
        user: the name that ``authorize=`` of the route gave the caller, if any.
    """

    def __init__(self, call: ServerCall, state: Any, context: Any) -> None:
        self._call = call
        self.state = state
        self.context = context
        self.client_id: str = call.session.peer_id
        self.session_id: str = call.session.id
        self.stream_id: str = call.stream_id
        self.service: str = call.procedure.service
        self.procedure: str = call.procedure.name
        self.user: str | None = call.table.record.caller.user

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger, ``wsmux.rpc.calls``, whose records identify the call.

        The records have the attributes ``client_id``, ``stream_id``, ``service`` and ``procedure``,
        for formatters and filters. The session id is a secret, and is not included.
        """
        names = ("client_id", "stream_id", "service", "procedure")
        return logging.LoggerAdapter(
            _calls_log, {name: printable(getattr(self, name)) for name in names}
        )

    @property
    def ended(self) -> Abort:
        """An event that is set when the call is over, for any reason.

        Pass it as ``abort=`` to calls that the handler makes, so that they end with this call.
        """
        return self._call.ended

    @property
    def deadline(self) -> Deadline:
        """When the caller stops waiting; ``remaining()`` is ``None`` if it did not say.

        The handler runs within it, as in a ``wsmux.deadline`` block: so do the calls that it makes.
        When the time is up the call is cancelled; reads and writes raise ``TimeoutError``, once.
        Deferred actions have no such limit, nor have other threads.
        """
        return self._call.deadline

    @property
    def metadata(self) -> Any:
        """The validated metadata of the client, refreshed during the session.

        Once the session is over, the metadata at the start of the call.
        """
        return self._call.live_metadata()

    def wait(
        self, signal: Signal | None = None, timeout: float | None = None
    ) -> Generator[Any, Any, bool]:
        """Wait within a generator for a signal, or for ``timeout`` seconds, without a thread.

        Write ``changed = yield from ctx.wait(signal)``; it is false on timeout. The first wait for
        a signal counts all its earlier changes, so check the value again afterwards, as with a
        condition. If the call ends, the generator ends here, as by ``close()``. With middleware
        around the handler, waiting occupies a thread. Only handlers that are generators can wait::

            @service.subscription()
            def count(ctx, init):
                while True:
                    yield counter.value
                    yield from ctx.wait(counter.changed)

        Raises:
            TypeError: ``signal`` is not a ``Signal``.
            TimeoutError: a surrounding ``wsmux.deadline`` block has expired, or the time of the
                caller is up.
        """
        if signal is not None and not isinstance(signal, Signal):
            kind = type(signal).__name__
            raise TypeError(f"signal must be a wsmux.rpc.Signal or None, not {kind}")
        due = None if timeout is None else clock.monotonic() + timeout
        woken: bool = yield Pause(signal, due)
        return woken

    def cancel(self, message: str = "cancelled by the server") -> None:
        """End the call on both sides: reads and writes raise CANCEL. Later calls do nothing."""
        self._call.cancel(RiverError(CANCEL, message))

    def defer(self, action: Callable[[], object]) -> None:
        """Run an action when the call is over, in reverse order; at once if it is over.

        Errors of an action are logged and do not stop the others.
        """
        self._call.defer(action)
