"""Handle the messages of a server's sessions: open calls, feed them, run handlers, answer.

Threads and locks are told in ``server_engine``.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from ...protocols.base import Message
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Parker, WaitQueue, wake
from ...runtime.thread_pool import ThreadPool
from ...transport.message_transport import MessageTransport
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
from ..session.metadata_refresh import MetadataRefresh
from ..session.session import Session
from ..wire.codec import Codec, EncodeError
from ..wire.envelope import (
    CANCELLED,
    CLOSE_PAYLOAD,
    CLOSED,
    INVALID_CANCEL,
    OPEN,
    Envelope,
    error_result,
    is_close,
    read_cancel,
    result,
)
from .call_streams import Err
from .server_calls import Context, Replies, ServerCall

__all__ = ["Live", "Router"]

# What a client is told of an error that no procedure declares.
FAILED = "the handler failed"

# Characters of a client's names in the sentences that refuse them.
MAX_SHOWN = 100

_log = logger("wsmux.rpc")


class Live:
    """Hold what a server knows of a session beside its counters."""

    def __init__(self, session: Session, options: Options) -> None:
        self.session = session
        self.refresh = MetadataRefresh(options)
        self.renewing = False  # new metadata are being checked
        self.order = threading.Lock()
        self.channel: MessageTransport | None = None
        self.calls: dict[str, ServerCall] = {}
        self.orphans = 0  # handlers that run, or wait for a worker, though their call was cancelled
        self.tombstones: OrderedDict[str, None] = OrderedDict()
        self.metadata: Any = None

    def next_timer(self) -> float | None:
        """Return when there is something to do for a connected session."""
        timers = (self.session.next_timer(), self.refresh.next_timer())
        return min((due for due in timers if due is not None), default=None)


class Router(Replies):
    """The part of a server above its sessions.

    Attributes:
        mutex: guards everything; see ``server_engine``.
        services, states: what is offered, and what the handlers of each service share.
    """

    def __init__(
        self,
        services: Mapping[str, Service],
        codec: Codec,
        options: Options,
        *,
        name: str,
        context: Any,
        middleware: tuple[Callable[..., Any], ...],
        workers: int,
        expose_errors: bool,
    ) -> None:
        self.codec = codec
        self.options = options
        self.mutex = threading.Lock()
        self.services = services
        self.context = context
        self.states = {name: each.make_state(context) for name, each in services.items()}
        self._middleware = middleware
        self._expose_errors = expose_errors
        self._close_packed = codec.pack(CLOSE_PAYLOAD)
        self._live: dict[Session, Live] = {}
        self._workers = ThreadPool(workers, name)
        self._cleaners = ThreadPool(workers, f"{name}-cleanup")
        self._room = WaitQueue()  # writers waiting for acknowledgements

    # Messages

    def _dispatch(self, live: Live, envelope: Envelope, size: int, wakes: list[Parker]) -> None:
        """Handle one message of a session, in order; see the text, "On the server".

        Raises:
            SessionFailure: it cannot be answered.
        """
        stream_id, flags = envelope.stream_id, envelope.flags
        with self.mutex:
            call = live.calls.get(stream_id)
        try:
            if call is not None:
                self._continue(live, call, envelope, size, wakes)
            elif flags & OPEN and not flags & CANCELLED:
                self._open(live, envelope, wakes)
            else:
                name = _shown(stream_id)
                text = f"no call is open on stream {name}, and the message opens none"
                self._refuse_stream(live, stream_id, text)
        except EncodeError as error:
            raise SessionFailure(str(error), FailureKind.SENDING) from error

    def _open(self, live: Live, envelope: Envelope, wakes: list[Parker]) -> None:
        stream_id = envelope.stream_id
        found = self._find(envelope)
        if isinstance(found, str):
            self._refuse_stream(live, stream_id, found)
            return
        if found.init.check(envelope.payload) is not None:
            self._refuse_stream(live, stream_id, "procedure init failed validation")
            return
        call = ServerCall(self, self.mutex, live.session, stream_id, found)
        with self.mutex:
            if live.session not in self._live:
                return  # it has ended meanwhile
            full = len(live.calls) + live.orphans >= self.options.max_streams
            if not full:
                call.first_metadata = live.metadata
                live.calls[stream_id] = call
                if envelope.flags & CLOSED:
                    call.reader.end_locked(wakes)
        if full:
            text = f"more than {self.options.max_streams} calls are open"
            self._refuse_stream(live, stream_id, text)
        else:
            self._workers.add(lambda: self._work(live, call, envelope.payload), wakes)

    def _find(self, envelope: Envelope) -> Procedure | str:
        """Return the procedure that a message opens, or what is wrong with it."""
        if envelope.service is None:
            return "missing service name in stream open message"
        if envelope.procedure is None:
            return "missing procedure name in stream open message"
        service = self.services.get(envelope.service)
        if service is None:
            return f"couldn't find service {_shown(envelope.service)}"
        procedure = service.procedures.get(envelope.procedure)
        if procedure is None:
            name = _shown(envelope.procedure)
            return f"couldn't find a procedure {name} in {envelope.service}"
        return procedure

    def _refuse_stream(self, live: Live, stream_id: str, text: str) -> None:
        """Answer a message that belongs to no call, once for each stream."""
        packed = self.codec.pack(error_result(RiverError(INVALID_REQUEST, text)))
        with self.mutex:
            if stream_id in live.tombstones:
                return
            self._bury_locked(live, stream_id)
            self._send_locked(live, stream_id, packed, CANCELLED)

    def _bury_locked(self, live: Live, stream_id: str) -> None:
        """Remember a stream that was refused or cancelled, so that its client is told once."""
        live.tombstones[stream_id] = None
        if len(live.tombstones) > self.options.tombstones:
            live.tombstones.popitem(last=False)

    def _continue(
        self, live: Live, call: ServerCall, envelope: Envelope, size: int, wakes: list[Parker]
    ) -> None:
        flags, payload = envelope.flags, envelope.payload
        if flags & CANCELLED:
            self._cancelled(live, call, payload)
            return
        procedure = call.procedure
        wrong: RiverError | None = None
        request = not is_close(payload)
        if call.reader.ended:
            wrong = RiverError(INVALID_REQUEST, "received a message behind the end of requests")
        elif request and procedure.request is None:
            text = f"{call.name} is of kind {procedure.kind}, which takes no requests"
            wrong = RiverError(INVALID_REQUEST, text)
        elif request and procedure.request is not None:
            extra = procedure.request.check(payload)
            if extra is not None:
                wrong = RiverError(INVALID_REQUEST, "message in request failed validation", extra)
        if wrong is not None:
            self.cancel(call, wrong)
            return
        behind = False
        with self.mutex:
            if request:
                call.reader.push_locked(payload, size, wakes)
                behind = call.reader.fell_behind(self.options)
            if flags & CLOSED:
                call.reader.end_locked(wakes)
            over = self._over_locked(live, call)
        if behind:
            self.cancel(call, RiverError(CANCEL, "reader fell behind"))
        elif over:
            self._finish([call])

    def _cancelled(self, live: Live, call: ServerCall, payload: Any) -> None:
        """End a call because the client has; a writer's CLOSE still goes out, as shipped."""
        error = read_cancel(payload)
        if error.message == INVALID_CANCEL:
            error = RiverError(CANCEL, "stream cancelled, client sent invalid payload")
        wakes: list[Parker] = []
        with self.mutex:
            if call.over:
                return
            if call.procedure.kind.writes_responses and not call.writer.closed:
                self._send_locked(live, call.stream_id, self._close_packed, CLOSED)
            self._drop_locked(live, call, error, wakes)
        wake(wakes)
        self._finish([call])

    def _drop_locked(
        self, live: Live, call: ServerCall, error: RiverError, wakes: list[Parker]
    ) -> None:
        """Take a cancelled call off the table; its handler counts until it returns."""
        live.calls.pop(call.stream_id, None)
        if not call.answered:
            call.orphan = True
            live.orphans += 1
        call.end_locked(error, wakes)
        self._room.notify(wakes)

    def _over_locked(self, live: Live, call: ServerCall) -> bool:
        """Take a call off the table when both halves have ended; tell whether that is now."""
        over = call.completed_locked()
        if over:
            live.calls.pop(call.stream_id, None)
        return over

    # Handlers

    def _work(self, live: Live, call: ServerCall, init: Any) -> None:
        """Do a worker's part in a call: nothing, if it was over before a worker was free."""
        try:
            if not call.over:
                self._handle(call, init)
        finally:
            if not call.answered:
                with self.mutex:
                    live.orphans -= call.orphan
                    call.answered, call.orphan = True, False

    def _handle(self, call: ServerCall, init: Any) -> None:
        """Run a handler, and send what comes of it."""
        context = Context(call, self.states[call.procedure.service], self.context)
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
                self.close_responses(call)
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
            _log.error("%s returned what its schema forbids: %s", call.name, wrong)
            self._uncaught(call)
            return
        try:
            self._send_last(call, self.codec.pack(result(value)))
        except EncodeError as error:
            _log.error("%s returned what cannot be sent: %r", call.name, error)
            self._uncaught(call)

    def _uncaught(self, call: ServerCall, text: str = FAILED) -> None:
        """Cancel a call whose handler failed; the text is for clients that may know it."""
        told = text if self._expose_errors else FAILED
        try:
            self.cancel(call, RiverError(UNCAUGHT_ERROR, told))
        except EncodeError:  # text of any length, with halves of pairs in it
            self.cancel(call, RiverError(UNCAUGHT_ERROR, FAILED))

    def _answer_error(self, call: ServerCall, error: RiverError) -> None:
        """Send a declared error as a result, any other as an uncaught one."""
        if call.over:
            return
        if not call.procedure.declares(error):
            _log.error("%s raised an error that it does not declare: %r", call.name, error)
            self._uncaught(call, str(error))
            return
        try:
            packed = self.codec.pack(error_result(error))
            if not call.procedure.kind.writes_responses:
                self._send_last(call, packed)
                return
            with self.mutex:
                live = self._live.get(call.session)
                if live is not None and not call.writer.closed:
                    self._send_locked(live, call.stream_id, packed, 0)
            self.close_responses(call)
        except EncodeError as wrong:
            _log.error("%s raised an error that cannot be sent: %r", call.name, wrong)
            self._uncaught(call)

    def _send_last(self, call: ServerCall, packed: bytes) -> None:
        """Send what ends the responses, if nothing has; what of requests follows is not wanted."""
        over, channel = False, None
        with self.mutex:
            live = self._live.get(call.session)
            if live is not None and not call.writer.closed:
                self._send_locked(live, call.stream_id, packed, CLOSED)
                call.writer.close_locked()
                call.answered = True
                over = self._over_locked(live, call)
                channel = live.channel
        if channel is not None:
            channel.flush()
        if over:
            self._finish([call])

    # Replies

    def send_response(self, call: ServerCall, value: Any, deadline: Deadline) -> None:
        if isinstance(value, Err):
            if not call.procedure.declares(value.error):
                raise ValueError(f"an error that {call.name} does not declare: {value.error}")
            packed = self.codec.pack(error_result(value.error))
        elif call.procedure.response.check(value) is not None:
            raise ValueError(f"a response of {call.name} that its schema forbids")
        else:
            packed = self.codec.pack(result(value))
        with self.mutex:
            call.writer.check_locked()
            while call.session.full:
                if deadline.expired():
                    raise TimeoutError(f"{call.name}: too much is not acknowledged")
                self._room.wait(self.mutex, deadline)
                call.writer.check_locked()
            live = self._live.get(call.session)
            if live is not None:
                self._send_locked(live, call.stream_id, packed, 0)
        self._flush(call.session)

    def close_responses(self, call: ServerCall) -> None:
        self._send_last(call, self._close_packed)

    def cancel(self, call: ServerCall, error: RiverError) -> None:
        packed = self.codec.pack(error_result(error))
        wakes: list[Parker] = []
        with self.mutex:
            live = self._live.get(call.session)
            if call.over or live is None:
                return
            self._bury_locked(live, call.stream_id)
            self._send_locked(live, call.stream_id, packed, CANCELLED)
            self._drop_locked(live, call, error, wakes)
        wake(wakes)
        self._flush(call.session)
        self._finish([call])

    def metadata(self, call: ServerCall) -> Any:
        with self.mutex:
            live = self._live.get(call.session)
            return call.first_metadata if live is None else live.metadata

    # With the mutex held

    def _queue_locked(self, live: Live) -> None:
        channel = live.channel
        if channel is not None and live.session.has_output():
            messages: list[Message] = [(data, b"") for data in live.session.data_to_send()]
            with channel.mutex:
                channel.queue.add_data_locked(messages)

    def _send_locked(self, live: Live, stream_id: str, packed: bytes, flags: int) -> None:
        if live.session in self._live:
            live.session.send(packed, stream_id=stream_id, flags=flags)
            self._queue_locked(live)

    def _finish(self, calls: list[ServerCall]) -> None:
        """Run what calls that are over deferred; handlers may wait for it."""
        for call in calls:
            if call.defers():
                self._cleaners.submit(call.clean_up)

    def _flush(self, session: Session) -> None:
        with self.mutex:
            live = self._live.get(session)
            channel = None if live is None else live.channel
            if live is not None:
                self._queue_locked(live)
        if channel is not None:
            channel.flush()


def _shown(name: str) -> str:
    """Return a name that a client has sent, short enough to be sent back."""
    return name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}..."


def _wrapped(
    layer: Callable[..., Any], context: Context, init: Any, step: Callable[[], Any]
) -> Callable[[], Any]:
    return lambda: layer(context, init, step)
