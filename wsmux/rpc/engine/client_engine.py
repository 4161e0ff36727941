"""Run a client: one thread connects, reads and handles timers, for any number of calls.

Threads and locks:

- One mutex guards the connector, its session, the table of calls and both halves of each call.
  Under it nothing is sent, no connection is made and no callback runs. A transport's own mutex may
  be taken under it, for its send queue, never the other way round.
- The I/O thread does what the connector orders: it iterates over the transport's batches, and
  waits. It never blocks in a send. The thread of a call sends its own message as far as the socket
  accepts it; the I/O thread sends the rest.
- Connections are made, metadata is made, and the user's callbacks run in a thread of their own
  each, so that none of them can block the I/O thread, which ends sessions in time. There is one
  thread at most that makes a connection, and one that makes metadata.
- The I/O thread starts with the first call, or eagerly, and ends with ``close``, when it has sent
  what was queued. A thread that still makes a connection then closes it.
"""

from __future__ import annotations

import math
import os
import random
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from ...exceptions import ForkedError, LocalProtocolError, NoThreadError, WsmuxError
from ...protocols.base import Message as SendMessage
from ...protocols.framing import Opcode, Received
from ...runtime import clock, fork
from ...runtime.deadline import Deadline, deadline_in
from ...runtime.logs import logger
from ...runtime.parking import Parker, Waiter, WaitQueue, wake
from ...runtime.threads import daemon_thread, register, start_thread
from ...transport.message_transport import MessageTransport
from ..abort import ABORTED
from ..errors import CANCEL, DEADLINE_EXCEEDED, UNEXPECTED_DISCONNECT, RiverError
from ..options import Options
from ..session.connector import (
    Connector,
    ConnectorEvent,
    ConnectorState,
    Dial,
    EnvelopeReceived,
    Failure,
    Hangup,
    HelloWanted,
    MetadataWanted,
    SessionClosed,
    SessionCreated,
    StatusChanged,
)
from ..session.session import Session
from ..session.session_info import SessionInfo, session_info
from ..wire.codec import Codec, EncodeError
from ..wire.envelope import (
    CANCELLED,
    CLOSE_PAYLOAD,
    CLOSED,
    OPEN,
    Envelope,
    NotAResult,
    Oversize,
    error_result,
    is_close,
    read_cancel,
)
from ..wire.ids import new_id
from ..wire.message_size import Packer
from .call_spans import ClientSpan, client_span, has_current_span
from .call_streams import unread_locked
from .client_calls import Call, Calls, Opened, PendingCall
from .dial import Dialler, Gone, cut_by_size, hang_up
from .event_callbacks import EventCallbacks

__all__ = ["ClientEngine", "ClientLoop"]

_log = logger("wsmux.rpc")

# Looking it up in the class for each call and message costs too much.
_HANDSHAKING = ConnectorState.HANDSHAKING

_Batches = Generator[list[Received]]


class _Failed(NamedTuple):
    """Tell why an attempt to connect has failed, and whether all others are in vain."""

    text: str
    fatal: bool


class ClientLoop:
    """Do what the connector of a client orders, until it is closed."""

    def __init__(self, engine: ClientEngine) -> None:
        self._engine = engine
        self._connector = engine.connector
        # Guarded by the mutex: what metadata are wanted for, and whether a thread makes some.
        self._wanted: HelloWanted | MetadataWanted | None = None
        self._making = False

    def run(self) -> None:
        """Run the I/O thread."""
        engine = self._engine
        try:
            while self._work():
                pass
        except BaseException:  # even SystemExit from a function of the application must be logged
            _log.exception(
                "the I/O thread of %s failed; its calls have ended", self._connector.own_id
            )
            wakes: list[Parker] = []
            with engine.mutex:
                engine.channel = None
                self._connector.close()
                engine.settle_locked(wakes)
            wake(wakes)

    def _work(self) -> bool:
        """Do what was ordered, or wait; return ``False`` when the client is closed."""
        engine, wakes = self._engine, list[Parker]()
        with engine.mutex:
            self._handle_timer_locked(wakes)
            orders, engine.orders = engine.orders, []
            if not orders and engine.stopping:
                return False
        wake(wakes)
        for order in orders:
            self._perform(order)
        if not orders:
            with engine.mutex:
                if not engine.orders and not engine.stopping:
                    self._rest_locked()
        return True

    def _handle_timer_locked(self, wakes: list[Parker]) -> None:
        now = clock.monotonic()
        due = self._connector.next_timer()
        if due is not None and now >= due:
            self._connector.handle_timer(now)
        self._engine.settle_locked(wakes)

    def _rest_locked(self) -> None:
        """Wait for an order or a timer, including one that is set meanwhile."""
        engine = self._engine
        due = self._connector.next_timer()
        left = None if due is None else max(0.0, due - clock.monotonic())
        engine.alarm = math.inf if due is None else due
        engine.idle.wait(engine.mutex, Deadline(left))

    def _perform(self, order: ConnectorEvent) -> None:
        match order:
            case Dial(attempt):
                self._connect(attempt)
            case MetadataWanted() | HelloWanted():
                self._make_metadata(order)
            case Hangup():
                return  # that connection has been left already
            case _:
                raise AssertionError(f"unknown order: {order}")

    def _connect(self, attempt: int) -> None:
        """Make a connection, and serve it until it has ended."""
        engine = self._engine
        channel = self._dial(attempt)
        if channel is None:
            return
        if isinstance(channel, _Failed):
            text, fatal = channel
            self._with_connector(
                lambda: self._connector.dial_failed(attempt, clock.monotonic(), text, fatal=fatal)
            )
            return
        batches = channel.batches()
        wakes: list[Parker] = []
        with engine.mutex:
            engine.channel = channel
            self._connector.dialled(attempt, clock.monotonic())
            engine.settle_locked(wakes)
        engine.after(wakes)
        if not self._leaves(attempt):
            self._converse(channel, batches, attempt)
        with engine.mutex:
            engine.channel = None
            over = self._note_size_locked(channel, attempt)
            self._connector.lost(attempt, clock.monotonic())
            engine.settle_locked(wakes)
        wake(wakes)
        if over:
            own, text = self._connector.own_id, self._connector.given_up
            _log.error("the session of client %r has ended: %s", own, text)
        if engine.stopping:
            hang_up(channel, engine.sends_for)
            for _ in batches:  # sends the rest, and waits for the server's part
                pass
        else:
            engine.closing = _retire(channel, batches)

    def _dial(self, attempt: int) -> MessageTransport | _Failed | None:
        """Let another thread make a connection, and handle timers meanwhile.

        Resolving a name, or a function of the application, can take any time. If the client is
        closed meanwhile, this returns ``None``, and that thread closes the connection.
        """
        engine, connector = self._engine, self._connector
        made: list[MessageTransport | _Failed] = []

        def run() -> None:
            result: MessageTransport | _Failed
            wakes: list[Parker] = []
            try:
                result = engine.dial(Deadline(engine.options.connection_timeout))
            except BaseException as error:  # even SystemExit ends nothing but this attempt
                result = self._failed(attempt, error)
            with engine.mutex:
                wanted = connector.state is not ConnectorState.CLOSED
                if wanted:
                    made.append(result)
                    engine.idle.notify_forced(wakes)
            wake(wakes)
            if not wanted and not isinstance(result, _Failed):
                hang_up(result)
                result.discard()

        name = f"wsmux-rpc-{self._connector.own_id}-connecting"
        try:
            start_thread(daemon_thread(target=run, name=name))
        except NoThreadError as error:
            return self._failed(attempt, error)
        while True:
            wakes: list[Parker] = []
            with engine.mutex:
                self._handle_timer_locked(wakes)
            wake(wakes)
            with engine.mutex:
                if made:
                    return made.pop()
                if connector.state is ConnectorState.CLOSED:
                    return None
                self._rest_locked()

    def _failed(self, attempt: int, error: BaseException) -> _Failed:
        """Log why an attempt has failed, and ask the application whether others are in vain."""
        own, is_fatal = self._connector.own_id, self._engine.is_fatal
        if isinstance(error, OSError | WsmuxError):
            text = str(error)
            _log.info("%s: attempt %d: %s", own, attempt, text)
        else:
            text = f"{type(error).__name__}: {error}"
            _log.error("%s: attempt %d has failed", own, attempt, exc_info=error)
        fatal = isinstance(error, Gone)
        if not fatal and is_fatal is not None and isinstance(error, Exception):
            try:
                fatal = is_fatal(error)
            except BaseException:  # as above
                _log.exception("%s: is_fatal has failed; the next attempt follows", own)
        return _Failed(text, fatal)

    def _note_size_locked(self, channel: MessageTransport, attempt: int) -> bool:
        """Record that a message was too large, if the connection ended for that.

        Returns whether the session has ended, too.
        """
        cut = cut_by_size(channel)
        if cut is None:
            return False
        reason, ours = cut
        return self._connector.cut_by_size(attempt, reason, ours=ours, now=clock.monotonic())

    def _converse(self, channel: MessageTransport, batches: _Batches, attempt: int) -> None:
        engine = self._engine

        def handle(messages: list[Received]) -> None:
            wakes: list[Parker] = []
            try:
                with engine.mutex:
                    due = self._feed_locked(attempt, messages, channel.now, wakes)
                    channel.set_owner_timer(due)
            finally:
                wake(wakes)

        def lead(messages: list[Received]) -> None:
            try:
                handle(messages)
            except BaseException:
                # What was counted as received may not have been delivered, and is not sent again.
                engine.end_session("a read was interrupted in the middle of receiving")
                raise
            if engine.orders:
                channel.wake()

        channel.handle = lead
        try:
            for messages in batches:
                handle(messages)
                if channel.error is not None or (engine.orders and self._leaves(attempt)):
                    return
        except BaseException:
            batches.close()  # or a thread that leads would wait for the round that failed
            raise
        finally:
            channel.handle = None

    def _feed_locked(
        self, attempt: int, messages: list[Received], now: float, wakes: list[Parker]
    ) -> float | None:
        """Handle messages and due timers; return the time of the next timer."""
        engine, connector = self._engine, self._connector
        for kind, data in messages:
            # River has no text messages: one is treated as a message that cannot be decoded.
            connector.receive(attempt, data if kind is Opcode.BINARY else b"", now)
            engine.apply_locked(wakes, len(data))
        due = connector.next_timer()
        if due is not None and now >= due:
            connector.handle_timer(now)
            due = connector.next_timer()
        engine.settle_locked(wakes)
        return due

    def _leaves(self, attempt: int) -> bool:
        """Do what was ordered; return whether to leave the connection of this attempt.

        An order to connect is kept until this connection has been left.
        """
        engine = self._engine
        while True:
            with engine.mutex:
                if not engine.orders or isinstance(engine.orders[0], Dial):
                    return bool(engine.orders)
                order = engine.orders.pop(0)
            if isinstance(order, Hangup):
                if order.attempt == attempt:
                    return True
            else:
                self._perform(order)

    def _make_metadata(self, wanted: HelloWanted | MetadataWanted) -> None:
        """Let the application make metadata in a thread that may block, then use it.

        If that outlasts the attempt, what it makes is for the one that wants metadata by then.
        """
        make, connector = self._engine.metadata, self._connector
        with self._engine.mutex:
            self._wanted = wanted
            if self._making:
                return
            self._making = make is not None
        if make is None:
            self._use_metadata(None)
            return

        def run() -> None:
            try:
                value = make()
            except BaseException as error:  # even SystemExit from a function of the application
                _log.exception("no metadata for a handshake")
                self._use_metadata(None, failure=str(error))
            else:
                self._use_metadata(value)

        def delay(reason: str) -> None:
            self._wanted, self._making = None, False
            connector.metadata_delayed(wanted, reason, clock.monotonic())

        try:
            start_thread(daemon_thread(target=run, name="wsmux-rpc-metadata"))
        except NoThreadError as error:
            text = str(error)
            _log.warning("%s: no metadata for a handshake: %s", connector.own_id, text)
            self._with_connector(lambda: delay(text))

    def _use_metadata(self, value: Any, failure: str | None = None) -> None:
        """Use metadata that were made, or note why they could not be."""
        connector = self._connector

        def use() -> None:
            now = clock.monotonic()
            wanted, self._wanted, self._making = self._wanted, None, False
            if isinstance(wanted, MetadataWanted):
                if failure is None:
                    connector.refresh(wanted.session, value)
            elif wanted is not None and failure is None:
                connector.hello(wanted.attempt, value, now)
            elif wanted is not None and failure is not None:
                connector.hello_failed(wanted.attempt, failure, now)

        self._with_connector(use)

    def _with_connector(self, action: Callable[[], None]) -> None:
        engine, wakes = self._engine, list[Parker]()
        with engine.mutex:
            if self._connector.state is not ConnectorState.CLOSED:
                action()
                engine.settle_locked(wakes)
        engine.after(wakes)


def _retire(channel: MessageTransport, batches: _Batches) -> threading.Thread | None:
    """Close a connection that is left; return the thread that waits for the peer's Close."""
    if channel.cut:
        batches.close()
        channel.discard()  # in case the batches were never started
        return None
    hang_up(channel)

    def drain() -> None:
        for _ in batches:
            pass

    try:
        thread = daemon_thread(target=drain, name=f"{channel.name}-closing")
        start_thread(thread)
    except NoThreadError as error:
        _log.info("%s is cut without waiting for the server: %s", channel.name, str(error))
        batches.close()
        channel.discard()  # as above
        return None
    return thread


OpenedT = TypeVar("OpenedT", bound=Opened)


class ClientEngine(Calls):
    """Hold the state of a client and its calls. See ``rpc.connect`` for the arguments.

    Attributes:
        mutex: see the module.
        connector: the pure state machine.
        channel: the current connection, or ``None``.
        orders: the connector's orders for the I/O thread.
        idle: where that thread waits while there is no connection.
        alarm: when it wakes by itself.
        stopping: whether it ends once no orders are left.
        sends_for: how long it sends what is queued then.
        closing: the thread that waits for the end of the last connection that was left before.
        dial, metadata, options, is_fatal: see ``rpc.connect``.
    """

    def __init__(
        self,
        dial: Dialler,
        codec: Codec,
        options: Options,
        callbacks: EventCallbacks,
        *,
        client_id: str,
        server_id: str,
        metadata: Callable[[], Any] | None,
        connect_on_call: bool,
        is_fatal: Callable[[Exception], bool] | None,
    ) -> None:
        self.codec = codec
        self.options = options
        self.mutex = threading.Lock()
        calls: dict[str, Opened] = {}
        self._calls = calls
        self.connector = Connector(
            client_id,
            server_id,
            codec=codec,
            options=options,
            new_id=new_id,
            random=random.random,
            pending=lambda: bool(calls),  # without a reference to the engine, a cycle
        )
        self.dial = dial
        self._callbacks = callbacks
        self.metadata = metadata
        self._connect_on_call = connect_on_call
        self.is_fatal = is_fatal
        self.closing: threading.Thread | None = None
        self.sends_for = deadline_in(None, outlives=True)
        self._packer = Packer(codec, options.max_size)
        self._close_packed = codec.pack(CLOSE_PAYLOAD)
        self._spans_over: list[ClientSpan] = []  # ended with the next threads that are woken
        self._room = WaitQueue()  # writers waiting for acknowledgements
        self.idle = Waiter()
        self.alarm = math.inf
        self._changed = WaitQueue()  # threads waiting for a connection, or the end of one
        self.channel: MessageTransport | None = None
        self.orders: list[ConnectorEvent] = []  # for the I/O thread
        self._thread: threading.Thread | None = None
        self.stopping = False
        self._pid = os.getpid()
        fork.register(self)
        register(self)

    # Any thread

    def check_process(self) -> None:
        """Raise ``ForkedError`` in a forked child."""
        if self._pid != os.getpid():
            raise ForkedError("this client belongs to the parent process")

    def wait_locked(self, place: WaitQueue, deadline: Deadline) -> None:
        channel = self.channel
        if channel is None:
            place.wait(self.mutex, deadline)
        else:
            channel.wait_locked(place, self.mutex, deadline)

    def connect(self, deadline: Deadline | None) -> None:
        """Start to connect; with a deadline, wait for the connection.

        Raises:
            NoThreadError: the system has no thread left; the next call tries again.
            TimeoutError: there was no connection in time; attempts continue.
            RiverError: no connection can be made, and attempts have ended.
        """
        wakes: list[Parker] = []
        self._start_io()
        with self.mutex:
            self.check_process()
            self.connector.connect(clock.monotonic())
            self.settle_locked(wakes)
        self.after(wakes)
        if deadline is None:
            return
        with self.mutex:
            self.connector.awaited += 1
            try:
                self._wait_connected_locked(deadline)
            finally:
                self.connector.awaited -= 1

    def _start_io(self) -> None:
        """Start the I/O thread with the first call, before anything relies on it."""
        if self._thread is not None:
            return
        with self.mutex:
            self.check_process()
            if self._thread is not None or self.stopping:
                return
            name = f"wsmux-rpc-{self.connector.own_id}"
            try:
                self._thread = daemon_thread(target=ClientLoop(self).run, name=name)
                start_thread(self._thread)
            except NoThreadError:
                self._thread = None
                raise

    def _wait_connected_locked(self, deadline: Deadline) -> None:
        connector = self.connector
        while connector.state is not ConnectorState.CONNECTED:
            if connector.state is ConnectorState.CLOSED:
                raise LocalProtocolError("the client is closed")
            if connector.state is ConnectorState.NO_CONNECTION:
                raise RiverError(UNEXPECTED_DISCONNECT, connector.given_up)
            if deadline.expired():
                text = connector.with_trouble("no connection in time; attempts continue")
                raise TimeoutError(text)
            self._changed.wait(self.mutex, deadline)

    def describe_session(self) -> SessionInfo | None:
        """Return a snapshot of the current session, if there is one."""
        with self.mutex:
            session = self.connector.session
            if session is None or self._pid != os.getpid():
                return None
            return session_info(
                session,
                self.connector.state.name.lower(),
                clock.monotonic(),
                calls=len(self._calls),
                unread=unread_locked(self._calls.values()),
            )

    def end_session(self, reason: str) -> None:
        """End the session and the connection; the next call starts new ones."""
        wakes: list[Parker] = []
        with self.mutex:
            self.check_process()
            self.connector.hard_disconnect(clock.monotonic(), reason)
            self.settle_locked(wakes)
        self.after(wakes)

    def open(self, call: Call, service: str, procedure: str, init: Any, flags: int) -> None:
        """Send the first message of a call.

        Raises:
            EncodeError: the codec cannot encode ``init``, or it is too large.
            NoThreadError: the system has no thread left; the next call tries again.
        """
        if flags & CLOSED:
            with self.mutex:
                call.writer.close_locked()
        failed = self._open_all([(call, self._packer.pack(init))], service, procedure, flags)
        for _, error in failed:
            raise error

    def start(
        self, calls: Iterable[tuple[PendingCall, Any]], service: str, procedure: str
    ) -> list[EncodeError]:
        """Send rpcs together; return the errors of those that were not sent.

        Raises:
            NoThreadError: as above.
        """
        pack = self._packer.pack
        packed: list[tuple[PendingCall, bytes]] = []
        failed: list[tuple[PendingCall, EncodeError]] = []
        for call, init in calls:
            try:
                packed.append((call, pack(init)))
                call.sent = len(packed[-1][1])
            except EncodeError as error:
                failed.append((call, error))
        failed += self._open_all(packed, service, procedure, CLOSED)
        if failed:
            wakes: list[Parker] = []
            with self.mutex:
                for call, reason in failed:
                    call.end_locked(reason, wakes)
            wake(wakes)
        return [reason for _, reason in failed]

    def _open_all(
        self, calls: Sequence[tuple[OpenedT, bytes]], service: str, procedure: str, flags: int
    ) -> list[tuple[OpenedT, EncodeError]]:
        """Send the first messages of calls with the same ``abort``; return those not sent."""
        failed: list[tuple[OpenedT, EncodeError]] = []
        wakes: list[Parker] = []
        abort = calls[0][0].abort if calls else None
        if calls:
            self._start_io()
        if has_current_span():
            for call, _ in calls:
                call.span = client_span(service, procedure)
        with self.mutex:
            self.check_process()
            ended: RiverError | None = None
            if self.connector.state is ConnectorState.CLOSED:
                ended = RiverError(UNEXPECTED_DISCONNECT, "the client is closed")
            elif abort is not None and abort.is_set():
                ended = RiverError(CANCEL, ABORTED)
            if ended is not None:
                for call, _ in calls:
                    self._forget_locked(call, ended)
                    call.end_locked(ended, wakes)
            elif calls:
                now = clock.monotonic()
                session = self.connector.need_session(now)
                for call, packed in calls:
                    call.session, call.stream_id = session, new_id()
                    try:
                        self._send_locked(call, packed, OPEN | flags, service, procedure, now)
                    except EncodeError as error:
                        failed.append((call, error))
                        self._forget_locked(call, error)
                    else:
                        self._calls[call.stream_id] = call
                        if abort is not None:
                            abort.add(call)
                if self._connect_on_call and len(failed) < len(calls):
                    self.connector.connect(now)
            self.settle_locked(wakes)
        self.after(wakes)
        if abort is not None and abort.is_set():
            abort.set()  # it may have been set before these calls were added to it
        return failed

    def send_request(self, call: Call, value: Any, deadline: Deadline) -> None:
        packed = self._packer.pack(value)
        wakes: list[Parker] = []
        with self.mutex:
            self.check_process()
            call.writer.check_locked()
            while call.session is not None and call.session.full:
                if deadline.expired():
                    raise TimeoutError(
                        f"{call.name}: the send buffer is full (unacknowledged messages)"
                    )
                self._room.wait(self.mutex, deadline)
                call.writer.check_locked()
            self._send_locked(call, packed, 0)
            self.settle_locked(wakes)
        self.after(wakes)

    def send_close(self, call: Call) -> None:
        wakes: list[Parker] = []
        with self.mutex:
            self.check_process()
            if call.writer.close_locked() and not call.over:
                self._send_locked(call, self._close_packed, CLOSED)
            if call.completed_locked():
                self._forget_locked(call)
            self._room.notify(wakes)  # waiting writers must see it
            self.settle_locked(wakes)
        self.after(wakes)

    def cancel(self, call: Opened, error: RiverError, outcome: Exception | None = None) -> bool:
        self.check_process()
        packed = self._packer.pack_error(error)
        wakes: list[Parker] = []
        with self.mutex:
            if call.over:
                return False
            self._send_locked(call, packed, CANCELLED)
            self._forget_locked(call, outcome)  # a wanted cancellation is no error of its span
            call.end_locked(outcome or error, wakes)
            self._room.notify(wakes)
            self.settle_locked(wakes)
        self.after(wakes)
        return True

    def close(self, timeout: float | None) -> None:
        """End every call and the connection; wait ``timeout`` seconds for messages to be sent.

        An attempt to connect is left to its thread, which closes what it makes.
        """
        wakes: list[Parker] = []
        deadline = Deadline(timeout)
        with self.mutex:
            if self._pid != os.getpid() or self.stopping:
                return
            self.stopping, self.sends_for = True, deadline
            self.connector.close()  # may be the second time, if the I/O thread failed
            self.settle_locked(wakes)
            thread = self._thread
        try:
            self.after(wakes)
            if thread is not None and thread is not threading.current_thread():
                thread.join(deadline.remaining())
                if self.closing is not None:
                    self.closing.join(deadline.remaining())
        finally:
            self._callbacks.close()

    def leave(self) -> None:
        """Close without waiting for the server; see ``runtime.threads``."""
        self.close(0.0)

    # With the mutex held

    def _send_locked(
        self,
        call: Opened,
        packed: bytes,
        flags: int,
        service: str | None = None,
        procedure: str | None = None,
        now: float = 0.0,
        *,
        provoked: bool = False,
    ) -> None:
        assert call.session is not None
        call.session.send(
            packed,
            stream_id=call.stream_id,
            flags=flags,
            service=service,
            procedure=procedure,
            tracing=None if call.span is None or service is None else call.span.tracing,
            due=call.deadline.at if flags & OPEN else None,
            now=now,
            provoked=provoked,
        )

    def settle_locked(self, wakes: list[Parker]) -> None:
        """Apply the events of the connector, and queue its messages."""
        self.apply_locked(wakes)
        channel = self.channel
        if channel is not None and self.connector.has_output():
            messages: list[SendMessage] = [(d, b"") for d in self.connector.data_to_send()]
            with channel.mutex:
                channel.queue.add_data_locked(messages)
        # A call may begin a session, and so its grace; once connected, timers only come later.
        waits = channel is None or self.connector.state is _HANDSHAKING
        due = self.connector.next_timer() if waits else None
        known = self.alarm if channel is None else channel.owner_timer
        new = due is not None and (known is None or due < known)
        if self.orders or self.stopping or new:
            self._rouse_io_locked(wakes)
        session = self.connector.session
        if session is None or not session.full:
            self._room.notify(wakes)
        if self._spans_over:
            wakes += self._spans_over
            self._spans_over.clear()

    def apply_locked(self, wakes: list[Parker], size: int = 0) -> None:
        """Apply the events of the connector; ``size`` is that of the received message."""
        for event in self.connector.events():
            if type(event) is EnvelopeReceived:
                self._received_locked(event.envelope, size, wakes)
            else:
                self._note_locked(event, wakes)

    def _note_locked(self, event: ConnectorEvent, wakes: list[Parker]) -> None:
        match event:
            case SessionCreated(session):
                self._callbacks.add("session_status", "created", session.id)
            case SessionClosed(session, reason):
                self._callbacks.add("session_status", "closed", session.id)
                self._end_calls_locked(session, reason, wakes)
            case StatusChanged(state):
                self._callbacks.add("connection_status", state.name.lower())
                self._changed.notify(wakes)
            case Failure(kind, text, code):
                self._callbacks.add("protocol_error", str(kind), text, code)
            case _:
                if isinstance(event, Dial):  # whoever connects has left whatever was before
                    self.orders = [o for o in self.orders if not isinstance(o, Dial | Hangup)]
                self.orders.append(event)

    def _end_calls_locked(self, session: Session, reason: str, wakes: list[Parker]) -> None:
        error = RiverError(UNEXPECTED_DISCONNECT, reason)
        for call in [call for call in self._calls.values() if call.session is session]:
            self._forget_locked(call, error)
            call.end_locked(error, wakes)
        self._room.notify(wakes)

    def _forget_locked(self, call: Opened, error: Exception | None = None) -> None:
        self._calls.pop(call.stream_id, None)
        if call.abort is not None:
            call.abort.discard(call)
        span = call.span
        if span is not None:
            if error is not None:
                span.failed(error)
            span.over()
            self._spans_over.append(span)

    def _received_locked(self, envelope: Envelope, size: int, wakes: list[Parker]) -> None:
        call = self._calls.get(envelope.stream_id)
        if call is None:
            return  # the call has ended here; the specification says to drop it
        flags, payload = envelope.flags, envelope.payload
        if flags & CANCELLED:
            error = read_cancel(payload)
            late = error.code == DEADLINE_EXCEEDED and call.deadline.at is not None
            cancelled = call.too_late() if late else error
            self._forget_locked(call, cancelled)
            call.end_locked(cancelled, wakes)
            self._room.notify(wakes)
            return
        if isinstance(payload, Oversize):
            self._give_up_locked(call, payload.text(), wakes)
            return
        if not is_close(payload):
            try:
                item = call.read_payload(payload)
                if call.span is not None and isinstance(item, RiverError):
                    call.span.failed(item)
                call.take_locked(item, size, wakes)
            except NotAResult as error:
                _log.warning("%s: a message was dropped: %s", call.name, str(error))
            behind = call.fell_behind(self.options)
            if behind is not None:
                self._give_up_locked(call, behind, wakes)
                return
        if flags & CLOSED and call.no_more_locked(wakes):
            self._forget_locked(call)

    def _give_up_locked(self, call: Opened, reason: str, wakes: list[Parker]) -> None:
        """Cancel a call at the server for what it sent, and end it here with the same error."""
        error = RiverError(CANCEL, reason)
        self._send_locked(call, self.codec.pack(error_result(error)), CANCELLED, provoked=True)
        self._forget_locked(call, error)
        call.end_locked(error, wakes)
        self._room.notify(wakes)

    def _rouse_io_locked(self, wakes: list[Parker]) -> None:
        """Make the I/O thread check its orders and timers."""
        self.idle.notify_forced(wakes)
        if self.channel is not None:
            self.channel.wake()

    def after(self, wakes: list[Parker]) -> None:
        """Wake threads after a change, and send what it queued; call it without the mutex."""
        wake(wakes)
        channel = self.channel
        if channel is not None:
            channel.flush()

    def forked(self) -> None:
        """See ``runtime.fork``."""
        self.mutex = threading.Lock()
