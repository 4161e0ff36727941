"""A server's side of calls: what a handler is given, what it sends, and when a call is over.

A call has two halves. The client ends the requests; the handler ends the responses, at the latest
by returning, which in shipped servers ends nothing. The call is over when both have ended, or when
either side cancels. Then ``ctx.ended`` is set at once, and what was deferred runs, last in first
out, in a thread that waits for no handler: handlers wait for it.

What a handler does goes to its ``ServerCall``, from there to ``Replies``, and out through the
``SessionRecord``; nothing here calls a dispatcher or an engine. Methods that end in ``_locked``
change state, and send, wait and wake nobody. Threads and locks are told in ``server_engine``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from typing import Any

from ...runtime.deadline import Deadline
from ...runtime.logs import logger, printable
from ...runtime.parking import Parker, wake
from ...runtime.thread_pool import ThreadPool
from ..abort import Abort
from ..errors import CANCEL, INVALID_REQUEST, RiverError
from ..options import Options
from ..services import Procedure
from ..wire.codec import Codec
from ..wire.envelope import CANCELLED, CLOSE_PAYLOAD, CLOSED, error_result
from ..wire.message_size import Packer
from .call_spans import ServerSpan
from .call_streams import CallBase, Err
from .session_record import SessionRecord
from .signals import Pause, Signal
from .worker_shares import Share

__all__ = ["CallTable", "Context", "Replies", "ServerCall"]

_log = logger("wsmux.rpc")
_calls_log = logging.getLogger("wsmux.rpc.calls")  # for handlers, whose words are not limited


class CallTable:
    """Hold the calls of one session, and bound them; ``CallDispatcher`` makes and owns it.

    The server's mutex guards it, and is held for every method. A handler that goes on after its
    call was cancelled counts like an open call. A stream that was refused or cancelled is
    remembered for a while, so that its client is told once.

    Attributes:
        record: the session that they belong to.
        share: the part of the server's workers that they hold; ``CallDispatcher`` changes it.
    """

    def __init__(self, record: SessionRecord, options: Options) -> None:
        self.record = record
        self.share: Share[Any] = Share()
        self._options = options
        self._open: dict[str, ServerCall] = {}
        self._orphans = 0  # handlers that run, or wait for a worker, though their call is cancelled
        self._tombstones: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get_locked(self, stream_id: str) -> ServerCall | None:
        """Return the open call of a stream."""
        return self._open.get(stream_id)

    def add_locked(self, call: ServerCall) -> bool:
        """Add a call; false if there are too many."""
        if len(self._open) + self._orphans >= self._options.max_streams:
            return False
        self._open[call.stream_id] = call
        return True

    def complete_locked(self, call: ServerCall) -> bool:
        """Remove a call when both its halves have ended; tell whether that is now."""
        over = call.completed_locked()
        if over:
            self._open.pop(call.stream_id, None)
        return over

    def drop_locked(self, call: ServerCall, error: RiverError, wakes: list[Parker]) -> None:
        """End and remove a cancelled call; its handler counts until it returns."""
        self._open.pop(call.stream_id, None)
        if not call.answered:
            call.orphan = True
            self._orphans += 1
        call.end_locked(error, wakes)

    def returned_locked(self, call: ServerCall) -> None:
        """Note that the handler of a call has returned, or will not be run."""
        self._orphans -= call.orphan
        call.answered, call.orphan = True, False

    def bury_locked(self, stream_id: str) -> bool:
        """Remember a stream that was refused or cancelled; false if it was known already."""
        known = stream_id in self._tombstones
        self._tombstones[stream_id] = None
        if len(self._tombstones) > self._options.tombstones:
            self._tombstones.popitem(last=False)
        return not known

    def end_locked(self, error: RiverError, wakes: list[Parker]) -> list[ServerCall]:
        """End and remove all calls; return them, to be finished."""
        calls = list(self._open.values())
        self._open.clear()
        for call in calls:
            call.end_locked(error, wakes)
        return calls


class Replies:
    """Send what the calls of a server answer, and run what they deferred once they are over.

    It owns the threads that run what was deferred, which have locks of their own, taken without the
    server's mutex. That one guards what it changes of calls, of their table, and of the session's
    record, where writers wait for acknowledgements. What was queued under the mutex is flushed
    after it was released.
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
        """Take a forked child's mutex: the old one may be held for ever."""
        self._mutex = mutex

    # Responses

    def send_response(self, call: ServerCall, value: Any, deadline: Deadline) -> None:
        """Send one response, waiting while too much is not acknowledged."""
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
        """Return one response as it is sent.

        Raises:
            ValueError: the schema forbids it, or the procedure does not declare the error.
            EncodeError: the codec cannot carry it.
        """
        if isinstance(value, Err):
            if not call.procedure.declares(value.error):
                raise ValueError(f"an error that {call.name} does not declare: {value.error}")
            return call.procedure.pack_error(self._packer, value.error)
        if call.procedure.response.check(value) is not None:
            raise ValueError(f"a response of {call.name} that its schema forbids")
        return call.procedure.pack_response(self._packer, value)

    def offer(self, call: ServerCall, packed: bytes, parker: Parker) -> bool:
        """Send one response if there is room; else unpark the parker when there is.

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
        """Leave a parker alone that waited for room."""
        with self._mutex:
            call.table.record.waiting_runs.discard(parker)

    def send_result(self, call: ServerCall, value: Any) -> None:
        """Send the one response of an rpc or upload.

        Raises:
            EncodeError: the codec cannot carry it, or it is too large; nothing was sent.
        """
        self._send_last(call, call.procedure.pack_response(self._packer, value))

    def send_error(self, call: ServerCall, error: RiverError) -> None:
        """Send a declared error as the last response.

        Raises:
            EncodeError: the codec cannot carry it, or it is too large; nothing was sent.
        """
        packed = call.procedure.pack_error(self._packer, error)
        if not call.procedure.kind.writes_responses:
            self._send_last(call, packed)
            return
        with self._mutex:
            if not call.writer.closed:
                call.table.record.send_locked(call.stream_id, packed, 0)
        self.close_responses(call)

    def close_responses(self, call: ServerCall) -> None:
        """Send the end of the responses, once."""
        self._send_last(call, self._close_packed)

    def _send_last(self, call: ServerCall, packed: bytes) -> None:
        """Send what ends the responses, if nothing has; what of requests follows is not wanted."""
        over, channel, table = False, None, call.table
        with self._mutex:
            if not table.record.ended and not call.writer.closed:
                channel = table.record.send_locked(call.stream_id, packed, CLOSED)
                call.writer.close_locked()
                call.answered = True
                over = table.complete_locked(call)
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
        """Answer a message that belongs to no call, once for each stream."""
        packed = self._codec.pack(error_result(RiverError(code, text, extra)))
        with self._mutex:
            if table.bury_locked(stream_id):
                table.record.send_locked(stream_id, packed, CANCELLED)

    def cancel(self, call: ServerCall, error: RiverError) -> None:
        """Cancel a call at the client, and end it here with the same error; once."""
        packed = self._packer.pack_error(error)
        wakes: list[Parker] = []
        table = call.table
        with self._mutex:
            if call.over or table.record.ended:
                return
            table.bury_locked(call.stream_id)
            channel = table.record.send_locked(call.stream_id, packed, CANCELLED)
            table.drop_locked(call, error, wakes)
            table.record.room.notify(wakes)  # its own writers; a run is woken as it is parked
        wake(wakes)
        if channel is not None:
            channel.flush()
        self.finish([call])

    def cancelled(self, call: ServerCall, error: RiverError) -> None:
        """End a call because the client has; a writer's CLOSE still goes out, as shipped."""
        wakes: list[Parker] = []
        with self._mutex:
            if call.over:
                return
            if call.procedure.kind.writes_responses and not call.writer.closed:
                call.table.record.send_locked(call.stream_id, self._close_packed, CLOSED)
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
        """Run what calls that are over deferred; handlers may wait for it."""
        for call in calls:
            if call.defers():
                self._cleaners.submit(call.clean_up)

    def close(self) -> None:
        """End each thread once it has nothing to do; what is submitted later is still run."""
        self._cleaners.close()

    def join(self, deadline: Deadline) -> None:
        """Wait, once they are closed, for what was deferred to have run."""
        self._cleaners.join(deadline)


class ServerCall(CallBase):
    """One call. What is not constant is guarded by the mutex.

    Attributes:
        table: the calls of its session, with the record of that.
        session, stream_id, procedure: whose call it is, its name on the wire, and what is called.
        first_metadata: what the session's were when the call began.
        tracing: what the client has told of its span, if it has one.
        span: the call's own, once its handler has started.
        answered: its handler has returned, or has sent the last that it sends.
        orphan: it was cancelled while that was not so.
        parked: what to unpark when the call is over, if its handler waits for that too.
    """

    def __init__(
        self,
        replies: Replies,
        mutex: threading.Lock,
        table: CallTable,
        stream_id: str,
        procedure: Procedure,
    ) -> None:
        super().__init__(mutex)
        self._replies = replies
        self.table = table
        self.session = table.record.session
        self.stream_id = stream_id
        self.procedure = procedure
        self.first_metadata: Any = None
        self.tracing: tuple[str, str] | None = None
        # Few handlers ask for an event, which costs as much as the rest of a small call.
        self._ended: Abort | None = None
        self._deferred: list[Callable[[], object]] = []
        self._cleaned = False  # what was deferred has run
        self.answered = False
        self.orphan = False
        self.parked: Parker | None = None
        self.span: ServerSpan | None = None

    @property
    def name(self) -> str:
        """Name it in a sentence."""
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
        self._replies.close_responses(self)

    def cancel(self, error: RiverError) -> None:
        """Cancel the call."""
        if not self.in_child():
            self._replies.cancel(self, error)

    def check_open(self) -> None:
        """Raise what has ended the responses."""
        with self.mutex:
            self.writer.check_locked()

    def live_metadata(self) -> Any:
        """Return the session's metadata."""
        return self._replies.metadata(self)

    def end_locked(self, error: RiverError | None, wakes: list[Parker]) -> None:
        super().end_locked(error, wakes)
        if self._ended is not None:
            self._ended.mark()
        if self.parked is not None:
            wakes.append(self.parked)

    def completed_locked(self) -> bool:
        completed = super().completed_locked()
        if completed and self._ended is not None:
            self._ended.mark()
        return completed

    def defer(self, action: Callable[[], object]) -> None:
        """Run an action when the call is over; at once if all the others have run."""
        self.check_process()
        with self.mutex:
            late = self._cleaned
            if not late:
                self._deferred.append(action)
        if late:
            self._do(action)

    def defers(self) -> bool:
        """Return whether there is anything for ``clean_up``, now that the call is over."""
        with self.mutex:
            if self._ended is not None and self._ended.mark():
                self._deferred.append(self._ended.set)  # cancels what the handler has called
            self._cleaned = not self._deferred
            return not self._cleaned

    def clean_up(self) -> None:
        """Run what was deferred, and what that defers; in a thread that may block."""
        while True:
            with self.mutex:
                if not self._deferred:
                    self._cleaned = True
                    return
                action = self._deferred.pop()
            self._do(action)

    def _do(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception:
            _log.exception("deferred cleanup of %s failed", self.name)


class Context:
    """What a handler is told beside its init.

    Attributes:
        state: that of its service.
        context: what the server was given for all handlers.
        client_id, session_id, stream_id: the caller, and the call's name on the wire.
        service, procedure: what is called.
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

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger, ``wsmux.rpc.calls``, whose records say which call they are of.

        They have the attributes ``client_id``, ``stream_id``, ``service`` and ``procedure``, for
        formatters and filters. The session's id, which is a secret, is not among them.
        """
        names = ("client_id", "stream_id", "service", "procedure")
        return logging.LoggerAdapter(
            _calls_log, {name: printable(getattr(self, name)) for name in names}
        )

    @property
    def ended(self) -> Abort:
        """An event that is set when the call is over, whatever ended it.

        What the handler calls itself may be given it as ``abort=``, to end with this call.
        """
        return self._call.ended

    @property
    def metadata(self) -> Any:
        """What the validation of the client's handshake returned, refreshed while it lives.

        What it was when the call began, once the session is over.
        """
        return self._call.live_metadata()

    def wait(
        self, signal: Signal | None = None, timeout: float | None = None
    ) -> Generator[Any, Any, bool]:
        """Wait within a generator for a change, or for ``timeout`` seconds; no thread is kept.

        Write ``changed = yield from ctx.wait(signal)``: false when the time is up. The first wait
        for a signal looks at all its changes, so look again at what it tells of, as with a
        condition. The call's end ends the generator at this place, as ``close()`` of one does.
        With middleware around it a thread is kept. Handlers that are no generators cannot use it::

            @service.subscription()
            def count(ctx, init):
                while True:
                    yield counter.value
                    yield from ctx.wait(counter.changed)

        Raises:
            TypeError: ``signal`` is no ``Signal``.
            TimeoutError: the time of a ``wsmux.deadline`` block around it is up.
        """
        if signal is not None and not isinstance(signal, Signal):
            kind = type(signal).__name__
            raise TypeError(f"signal must be a wsmux.rpc.Signal or None, not {kind}")
        due = None if timeout is None else time.monotonic() + timeout
        woken: bool = yield Pause(signal, due)
        return woken

    def cancel(self, message: str = "cancelled by the server") -> None:
        """End the call for both sides: reads and writes raise CANCEL. Further calls do nothing."""
        self._call.cancel(RiverError(CANCEL, message))

    def defer(self, action: Callable[[], object]) -> None:
        """Run an action when the call is over, the last one first; at once if it is over.

        Errors of an action are logged and do not stop the others.
        """
        self._call.defer(action)
