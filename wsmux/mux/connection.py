"""Provide the public ``Connection``; ``multiplexer`` describes how it works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, overload

from ..config import KIB, Config
from ..exceptions import (
    CloseCode,
    ConnectionClosed,
    ConnectionClosedOK,
    LocalProtocolError,
    StreamRefused,
    WsmuxError,
)
from ..handshake.request import Request
from ..protocols.base import MuxProtocol, Role
from ..protocols.framing import check_close
from ..recording.attach import recording_of
from ..runtime import clock
from ..runtime.closing import Closing
from ..runtime.deadline import Deadline, call_within
from ..runtime.parking import Parker
from ..transport.message_transport import MessageTransport
from ..transport.resumable_transport import ResumableTransport
from .error_codes import CodeToReason, ErrorCodeMap, ReasonToCode
from .explain import findings, look, thread_names
from .multiplexer import Multiplexer
from .ping import PingRateLimiter
from .stats import ConnectionStats, Finding, StreamStats
from .stream import Stream
from .stream_record import StreamRecord

if TYPE_CHECKING:
    from ..durable.interfaces import Journal
    from ..durable.sender import DurableStream

__all__ = ["Connection", "StartOn"]

StartOn = Literal["open", "data"]

# First bytes that are queued together with the opening of their stream, if the peer takes as many;
# others are written to it once it is open. No less than a quantum on a slow path.
MAX_FIRST = 16 * KIB

# RFC 6455 section 7.4.1: the code of a connection that ended without a close frame.


class Connection(Closing):
    """Carry many streams over one WebSocket or socket; made by ``connect`` and ``serve``.

    Every method may be called from any thread. Leaving a ``with`` block closes the connection.

    Attributes:
        config: the limits.
        request: the client's request, on a server; ``None`` elsewhere.
        initial_streams: streams that exist from the start, from a ``BymuxState``; usually none.
    """

    def __init__(
        self,
        transport: MessageTransport,
        protocol: MuxProtocol,
        *,
        accept_streams: bool = True,
        start_on: StartOn = "open",
        code_to_reason: CodeToReason | None = None,
        reason_to_code: ReasonToCode | None = None,
        request: Request | None = None,
        admit_stream: Callable[[], bool] | None = None,
    ) -> None:
        self.config: Config = transport.config
        self.request = request
        self._ping_rate = PingRateLimiter(transport)
        self._multiplexer = Multiplexer(
            transport,
            protocol,
            ErrorCodeMap(
                protocol.first_application_code, protocol.last_code, code_to_reason, reason_to_code
            ),
            accept_streams=accept_streams,
            start_on_data=start_on == "data",
            admit_stream=admit_stream,
        )
        self.initial_streams: tuple[Stream, ...] = tuple(
            Stream(self, self._multiplexer, record) for record in self._multiplexer.initial
        )

    def __repr__(self) -> str:
        error = self._multiplexer.transport.error
        state = "open" if error is None else f"ended: {error}"
        return f"<Connection {self.name} {self.protocol} {state} streams={self._streams()}>"

    def _streams(self) -> int:
        return len(self._multiplexer.table.records)

    @property
    def name(self) -> str:
        """A name for logs, unique in the process."""
        return self._multiplexer.transport.name

    @property
    def user(self) -> str | None:
        """The name that ``authorize=`` gave the client, on a server; else ``None``.

        A resumed connection keeps the name that its first request had.
        """
        return None if self.request is None else self.request.user

    @property
    def role(self) -> Role:
        """Which side of the connection this is."""
        return self._multiplexer.transport.role

    @property
    def protocol(self) -> str:
        """The wire: ``"wsmux"``, ``"js-ws"``, ``"yamux"`` or ``"bymux"``."""
        return self._multiplexer.protocol.name

    @property
    def resumable(self) -> bool:
        """Whether the connection outlives its socket; see ``Resume``."""
        return isinstance(self._multiplexer.transport, ResumableTransport)

    def reconnect_now(self) -> None:
        """Give up the socket of a resumable connection, and connect again at once. Never blocks.

        For a client that learns of another network before the old socket has failed, or does not
        want to wait for the next attempt. Otherwise it does nothing.
        """
        transport = self._multiplexer.transport
        if isinstance(transport, ResumableTransport):
            transport.replace_carrier()

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, for whatever reason."""
        return self._multiplexer.transport.error is not None

    @property
    def error(self) -> WsmuxError | None:
        """The error that ended the connection, ``None`` while open; to inspect, not to raise."""
        return self._multiplexer.transport.error

    @property
    def close_code(self) -> int | None:
        """The code with which the connection ended, ``None`` while it is open.

        The first cause counts, from either side: 1000 if the peer finished or ``close()`` was
        called here; 1001 if a server is shutting down or a client is leaving; otherwise the code of
        the side that closed. 1006 means that there was no close frame: after ``abort()``, a lost
        network, or in a forked child; ``close_reason`` says which. ``yamux`` and ``bymux`` over a
        plain socket have no codes: there a clean end by the peer is 1000.
        """
        error = self._multiplexer.transport.error
        if error is None:
            return None
        if isinstance(error, ConnectionClosed):
            return error.code
        return int(CloseCode.ABNORMAL_CLOSURE)

    @property
    def close_reason(self) -> str | None:
        """The reason given with ``close_code``, often empty; ``None`` while the connection is open.

        It is the peer's text if the peer closed, and this library's if the connection was lost.
        """
        error = self._multiplexer.transport.error
        if error is None:
            return None
        return error.reason if isinstance(error, ConnectionClosed) else str(error)

    # Opening and accepting

    @overload
    def open_stream(
        self, timeout: float | None = None, *, data: bytes | bytearray | memoryview = b""
    ) -> Stream: ...

    @overload
    def open_stream(
        self,
        timeout: float | None = None,
        *,
        durable: str,
        epoch: bytes | None = None,
        size: int | None = None,
        journal: Journal | None = None,
    ) -> DurableStream: ...

    def open_stream(
        self,
        timeout: float | None = None,
        *,
        data: bytes | bytearray | memoryview = b"",
        durable: str | None = None,
        epoch: bytes | None = None,
        size: int | None = None,
        journal: Journal | None = None,
    ) -> Stream | DurableStream:
        """Open a stream and return it without waiting for the peer to acknowledge it.

        Blocks only while ``Config.max_pending_opens`` opened streams are unacknowledged, and while
        ``data`` is more than the peer takes unread. With its first bytes as ``data`` a stream is
        opened and written to in one send, where the wire lets bytes go ahead of the peer's answer:
        ``yamux``, and ``wsmux`` once the peer has answered an opening.

        With ``durable`` it is a ``wsmux.durable.DurableStream``, which goes on after either process
        was killed. This blocks until the receiver, a ``DurableHandler``, has answered.

        Args:
            timeout: seconds.
            data: what is written first; a ``DurableStream`` is written to when it is open.
            durable: the name under which the receiver keeps what it has committed.
            epoch: 16 bytes that stand for the data sent under the name, such as a hash of what
                tells a changed file; by default the name always stands for the same data.
            size: how many bytes that will be in all, for the receiver to know, if this is known.
            journal: keeps what is written until it is committed, for data that cannot be read
                again; it has an epoch of its own.

        Raises:
            DurableRefused: the receiver does not take the stream.
            DurableLost: the journal does not have what the receiver needs next.
            ValueError: a name, an epoch or a size that cannot be.
            TimeoutError: they remained unacknowledged for ``timeout`` seconds; a ``WriteTimeout``
                if ``data`` was not sent by then, after which the stream is reset.
            StreamRefused: the peer is going away.
            LocalProtocolError: this side is going away, on ``bymux``.
            StreamsExhausted: all stream ids are used up; open another connection.
            ConnectionClosed: the connection has ended.
        """
        if durable is not None:
            if data:
                raise ValueError("data is for streams that are not durable: write it afterwards")
            from ..durable.sender import open_durable

            return open_durable(self, durable, epoch, size, journal, timeout)
        if epoch is not None or size is not None or journal is not None:
            raise ValueError("epoch, size and journal are for durable streams: give durable=NAME")
        deadline = Deadline(timeout)
        multiplexer, table = self._multiplexer, self._multiplexer.table
        changing = False
        record: StreamRecord | None = None
        sent, together = 0, False
        if type(data) is not bytes and len(data) and memoryview(data).nbytes <= MAX_FIRST:
            data = bytes(data)  # the caller may change it
        try:
            with multiplexer.mutex:
                while True:
                    multiplexer.check_locked()
                    if table.peer_refuses_from is not None:
                        raise StreamRefused(
                            table.peer_refuses_from, 0, "the peer takes no further streams"
                        )
                    if multiplexer.protocol.may_open():
                        break
                    if deadline.expired():
                        raise TimeoutError(
                            f"timed out opening a stream on {self.name}: the peer has not answered "
                            "the opens before it"
                        )
                    table.openers.wait(multiplexer.mutex, deadline)
                changing = True
                record = table.open(clock.monotonic())
                if data:
                    together = multiplexer.credit_locked(record) > 0
                    if type(data) is bytes and together and len(data) <= MAX_FIRST:
                        sent, _ = multiplexer.send_locked(record, memoryview(data), waited=False)
                        together = sent < len(data)
                multiplexer.queue_locked()
                changing = False
            if not together:
                multiplexer.flush()
            stream = Stream(self, multiplexer, record)
            if sent < len(data):
                call_within(deadline, stream.write, memoryview(data)[sent:])
            return stream
        except BaseException as error:
            multiplexer.interrupted(error, changing)
            if record is not None:
                multiplexer.abandon(record)  # the caller never gets it
            raise

    def accept_stream(self, timeout: float | None = None) -> Stream:
        """Wait for a stream opened by the peer, and return it.

        With ``start_on="data"`` a stream is returned only once it has received bytes or ended.

        Raises:
            TimeoutError: no stream arrived in ``timeout`` seconds.
            ConnectionClosed: the connection has ended; ``ConnectionClosedOK`` after a clean close.
        """
        deadline = Deadline(timeout)
        multiplexer, table = self._multiplexer, self._multiplexer.table
        changing = False
        record: StreamRecord | None = None
        try:
            with multiplexer.mutex:
                multiplexer.check_forked_locked()
                while not table.offered:
                    multiplexer.check_locked()
                    if deadline.expired():
                        raise TimeoutError(f"the peer opened no stream on {self.name} in time")
                    table.acceptors.wait(multiplexer.mutex, deadline)
                changing = True
                record = table.take_offered()
                changing = False
            return Stream(self, multiplexer, record)
        except BaseException as error:
            multiplexer.interrupted(error, changing)
            if record is not None:
                multiplexer.abandon(record)  # the caller never gets it
            raise

    def __iter__(self) -> Iterator[Stream]:
        """Accept streams until the connection closes cleanly; any other end raises.

        Codes 1000 and 1001 are both clean and end the loop. Afterwards ``close_code`` distinguishes
        a peer that has finished (1000) from one that is going away (1001), such as a restarting
        server, to which a client may reconnect.
        """
        while True:
            try:
                yield self.accept_stream()
            except ConnectionClosedOK:
                return

    # The connection as a whole

    def ping(self, timeout: float | None = None) -> float:
        """Return the round-trip time of a ping, in seconds. Blocks until the pong arrives.

        Sends a ping of the wire if it has one (``yamux``, ``bymux``), otherwise a WebSocket ping.
        On a connection that carries little else, pings beyond three quarters of
        ``Config.max_pings`` in five seconds are delayed, since a peer using this library would end
        the connection.

        Raises:
            TimeoutError: too many pings are delayed, or no pong arrived in time; the connection
                continues.
            LocalProtocolError: ``bymux`` over a plain socket, when both sides are going away.
            ConnectionClosed: the connection has ended.
        """
        multiplexer, deadline = self._multiplexer, Deadline(timeout)
        self._ping_rate.wait(deadline)
        if multiplexer.protocol.pings:
            try:
                return multiplexer.ping(deadline)
            except LocalProtocolError:
                if not multiplexer.transport.pings:
                    raise
        return multiplexer.transport.ping(deadline)

    def go_away(self, code: int = 0) -> None:
        """Accept no more streams from the peer; open streams continue. Never blocks.

        From then on the peer's ``open_stream`` raises ``StreamRefused``, and streams that this side
        has not yet seen are refused there, so that the peer can tell what is safe to retry.
        ``js-ws`` cannot announce this: there each further stream is refused when it arrives. On
        ``yamux`` many peers end the connection in response; on ``bymux`` this side cannot open
        streams any more either.
        """
        multiplexer = self._multiplexer

        def refuse(_: list[Parker]) -> None:
            multiplexer.check_locked()
            multiplexer.table.accept_streams = False
            multiplexer.protocol.go_away(code)
            multiplexer.queue_locked()

        multiplexer.change(refuse)

    def close(
        self,
        timeout: float | None = None,
        *,
        code: int = CloseCode.NORMAL_CLOSURE,
        reason: str = "",
    ) -> None:
        """Send everything written, then perform the closing handshake of the WebSocket.

        Blocks for at most ``timeout`` seconds (by default ``Config.close_timeout``) until the peer
        answers; then the socket is closed. Blocked and later calls on the connection and its
        streams raise ``ConnectionClosedOK``, or ``ConnectionClosedError`` with another code.
        Idempotent.

        Args:
            timeout: seconds.
            code: 1000 to 1003, 1007 to 1014, or one of the application's from 3000 to 4999; 1005
                stands for none. ``close_code`` of a lost connection is none that can be sent.
            reason: what is beyond 123 bytes of UTF-8 is cut off.

        Raises:
            ValueError: the code must not be sent, or the reason is not Unicode text; nothing was
                done.
        """
        if self._multiplexer.in_io_thread():  # by a finalizer: it would wait for itself
            self.begin_close(code=code, reason=reason)
            return
        check_close(code, reason)
        deadline = Deadline(self.config.close_timeout if timeout is None else timeout)
        with self._multiplexer.mutex:
            while (
                self._multiplexer.protocol.pending_closes()
                and self._multiplexer.transport.error is None
            ):
                if deadline.expired():
                    break
                self._multiplexer.quiet.wait(self._multiplexer.mutex, deadline)
        self._multiplexer.close(code, reason, deadline)
        self._multiplexer.wake_everybody()
        self._multiplexer.wait_ended(deadline)

    def begin_close(self, *, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Start what ``close`` does without blocking; a later ``close`` waits for its end.

        Raises:
            ValueError: as ``close`` does.
        """
        check_close(code, reason)
        self._multiplexer.close(code, reason, None)
        self._multiplexer.wake_everybody()

    def wait_drained(self, timeout: float | None = None) -> bool:
        """Wait until no stream is open, or the connection ends; return false if time runs out."""
        deadline = Deadline(timeout)
        with self._multiplexer.mutex:
            while self._multiplexer.table.records and self._multiplexer.transport.error is None:
                if deadline.expired():
                    return False
                self._multiplexer.quiet.wait(self._multiplexer.mutex, deadline)
        return True

    def abort(self) -> None:
        """Close the socket at once, without a closing handshake; queued bytes are lost."""
        self._multiplexer.transport.abort()
        self._multiplexer.wake_everybody()

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until the connection has ended and its socket is closed; return whether it has."""
        return self._multiplexer.transport.wait_finished(Deadline(timeout).remaining())

    def dump_recording(self) -> str:
        """Return the recording of the flight recorder; see ``Recording``. Never blocks.

        The text is JSON, one line per frame. Works after the connection has ended, too.

        Raises:
            LocalProtocolError: ``Config.recording`` is not set.
        """
        return recording_of(self._multiplexer.transport)

    def stats(self) -> ConnectionStats:
        """Return an atomic snapshot of the connection."""
        with self._multiplexer.mutex:
            table = self._multiplexer.table
            outage = self._multiplexer.transport.outage_locked(clock.monotonic())
            records = table.records.values()
            measured = self._multiplexer.protocol.rtt
            return ConnectionStats(
                streams=len(records),
                unaccepted=table.unaccepted,
                streams_opened=table.opened,
                streams_accepted=table.accepted,
                streams_refused=table.refused,
                waiting_readers=sum(record.reader.occupied() for record in records),
                waiting_writers=sum(record.writer.occupied() for record in records),
                waiting_for_room=self._multiplexer.queue.waiting_locked(),
                unread_bytes=table.unread,
                queued_bytes=self._multiplexer.queue.queued_bytes_locked(),
                bytes_received=self._multiplexer.transport.frame_reader.bytes_received,
                bytes_sent=self._multiplexer.queue.bytes_sent,
                rtt=self._multiplexer.transport.keep_alive.rtt if measured is None else measured,
                reconnects=self._multiplexer.transport.reconnects,
                detached=None if outage is None else outage.seconds,
                unacknowledged_bytes=self._multiplexer.transport.unacknowledged(),
            )

    def stream_stats(self, most: int | None = None) -> list[StreamStats]:
        """Return an atomic snapshot of the open streams.

        Args:
            most: the maximum number of streams; those with waiting threads come first, then those
                with the most unread bytes. All by default.
        """
        return look(self._multiplexer, thread_names(), most).streams

    def explain(self) -> list[Finding]:
        """Return which threads wait, for what, and since when.

        Print it with ``print(*connection.explain(), sep="\\n")``. First come causes that block the
        whole connection, then stalled streams, then threads waiting for something that has yet to
        happen, each sorted by duration. Empty if no thread waits. Never blocks, even if the
        connection is stuck, and raises nothing if it has ended. The state of the peer's threads is
        inferred from their effects on this side.
        """
        return findings(look(self._multiplexer, thread_names(), idle=False))
