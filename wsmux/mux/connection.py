"""Offer one multiplexed connection. How it works is told in ``multiplexer``."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Literal

from ..config import Config
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
from ..recording.attach import recording_of
from ..runtime.closing import Closing
from ..runtime.deadline import Deadline
from ..runtime.parking import Parker
from ..transport.message_transport import MessageTransport
from .error_codes import CodeToReason, ErrorCodeMap, ReasonToCode
from .explain import findings, look, thread_names
from .multiplexer import Multiplexer
from .ping import PingRateLimiter
from .stats import ConnectionStats, Finding, StreamStats
from .stream import Stream
from .stream_record import StreamRecord

__all__ = ["Connection", "StartOn"]

StartOn = Literal["open", "data"]

# RFC 6455 section 7.4.1: the code of an end that came without one.


class Connection(Closing):
    """Carry many streams over one WebSocket or socket; made by ``connect`` and ``serve``.

    Every method may be called from any thread. Leaving a ``with`` block closes the connection.

    Attributes:
        config: the limits.
        request: what the client asked for, on a server; ``None`` elsewhere.
        initial_streams: those that live from the start, by a ``BymuxState``; mostly none.
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
    def role(self) -> Role:
        """Which side of the connection this is."""
        return self._multiplexer.transport.role

    @property
    def protocol(self) -> str:
        """The wire spoken: ``"wsmux"``, ``"js-ws"``, ``"yamux"`` or ``"bymux"``."""
        return self._multiplexer.protocol.name

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, for whatever cause."""
        return self._multiplexer.transport.error is not None

    @property
    def error(self) -> WsmuxError | None:
        """What ended the connection, ``None`` while it lives; to be looked at, not raised."""
        return self._multiplexer.transport.error

    @property
    def close_code(self) -> int | None:
        """The code that the connection ended with, ``None`` while it lives.

        The first cause counts, whichever side it came from: 1000 for a peer that has finished, or
        ``close()`` here; 1001 for a server that stops or a client that leaves; else what the side
        that closed gave. 1006 stands for an end without a closing message, such as ``abort()``, a
        lost network and the copy in a forked child; what happened then, ``close_reason`` says.
        ``yamux`` and ``bymux`` over a plain socket have no codes: a peer's clean end is 1000 there.
        """
        error = self._multiplexer.transport.error
        if error is None:
            return None
        if isinstance(error, ConnectionClosed):
            return error.code
        return int(CloseCode.ABNORMAL_CLOSURE)

    @property
    def close_reason(self) -> str | None:
        """What was said with ``close_code``, often nothing; ``None`` while the connection lives.

        It is the peer's text where the peer closed, and this library's where a connection was lost.
        """
        error = self._multiplexer.transport.error
        if error is None:
            return None
        return error.reason if isinstance(error, ConnectionClosed) else str(error)

    # Opening and accepting

    def open_stream(self, timeout: float | None = None) -> Stream:
        """Open a stream and return it, before the peer has answered.

        Blocks only while ``Config.max_pending_opens`` opened streams are unanswered.

        Raises:
            TimeoutError: they stayed unanswered for ``timeout`` seconds.
            StreamRefused: the peer is going away.
            LocalProtocolError: this side is, on ``bymux``.
            StreamsExhausted: all ids are used up; open a further connection.
            ConnectionClosed: the connection has ended.
        """
        deadline = Deadline(timeout)
        multiplexer, table = self._multiplexer, self._multiplexer.table
        changing = False
        record: StreamRecord | None = None
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
                record = table.open(time.monotonic())
                multiplexer.queue_locked()
                changing = False
            multiplexer.flush()
            return Stream(self, multiplexer, record)
        except BaseException as error:
            multiplexer.interrupted(error, changing)
            if record is not None:
                multiplexer.abandon(record)  # nobody knows of it
            raise

    def accept_stream(self, timeout: float | None = None) -> Stream:
        """Wait for a stream that the peer opens, and return it.

        With ``start_on="data"`` a stream counts only once it has bytes or has ended.

        Raises:
            TimeoutError: none came in ``timeout`` seconds.
            ConnectionClosed: the connection has ended; ``ConnectionClosedOK`` at a clean close.
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
                multiplexer.abandon(record)  # nobody knows of it
            raise

    def __iter__(self) -> Iterator[Stream]:
        """Accept streams until the connection closes cleanly; any other end raises.

        Clean are 1000 and 1001, which end the loop alike: afterwards ``close_code`` tells a peer
        that has finished (1000) from one that goes away (1001), as a server that is restarted does,
        and to which a client may connect again.
        """
        while True:
            try:
                yield self.accept_stream()
            except ConnectionClosedOK:
                return

    # The connection as a whole

    def ping(self, timeout: float | None = None) -> float:
        """Return the seconds that a ping and its pong take.

        It is a ping of the wire where there is one (``yamux``, ``bymux``), else the WebSocket's.
        On a connection that carries little else, more than three quarters of ``Config.max_pings``
        in five seconds wait, since a peer of this library would end the connection.

        Raises:
            TimeoutError: too many pings wait, or no pong came in time; the connection goes on.
            LocalProtocolError: ``bymux`` over a plain socket, where both sides are going away.
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
        """Take no further streams from the peer; running ones go on. Never blocks.

        The peer's ``open_stream`` raises ``StreamRefused`` from then on, and streams this side has
        not seen are refused there, so that it knows what is safe to retry. ``js-ws`` has no word
        for it: there, each further stream is refused when it comes. On ``yamux`` many peers end
        the connection when they hear it; on ``bymux`` this side opens none either.
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
        """Send what was written, close the WebSocket and wait for the peer to do so.

        Blocks for at most ``timeout`` seconds, by default ``Config.close_timeout``; then the
        socket is cut. Blocked calls on the connection and its streams, and later ones, raise
        ``ConnectionClosedOK`` (with another code ``ConnectionClosedError``). Closing twice is fine.
        """
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
        if threading.current_thread() is not self._multiplexer.thread:
            self._multiplexer.thread.join(deadline.remaining())

    def begin_close(self, *, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Start what ``close`` does and return at once; ``close`` then waits for the rest."""
        self._multiplexer.close(code, reason, None)
        self._multiplexer.wake_everybody()

    def wait_drained(self, timeout: float | None = None) -> bool:
        """Wait until no stream is open, or the connection has ended; tell whether that came."""
        deadline = Deadline(timeout)
        with self._multiplexer.mutex:
            while self._multiplexer.table.records and self._multiplexer.transport.error is None:
                if deadline.expired():
                    return False
                self._multiplexer.quiet.wait(self._multiplexer.mutex, deadline)
        return True

    def abort(self) -> None:
        """Cut the connection at once, without a closing handshake; queued bytes are lost."""
        self._multiplexer.transport.abort()
        self._multiplexer.wake_everybody()

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until the connection has ended and its socket is closed; tell whether it has."""
        return self._multiplexer.transport.wait_finished(Deadline(timeout).remaining())

    def dump_recording(self) -> str:
        """Return what the flight recorder has kept; see ``Recording``. Never blocks.

        The text is JSON, a line for each frame. It may be asked for when the connection has ended.

        Raises:
            LocalProtocolError: ``Config.recording`` asks for none.
        """
        return recording_of(self._multiplexer.transport)

    def stats(self) -> ConnectionStats:
        """Return a snapshot, taken at one moment."""
        with self._multiplexer.mutex:
            table = self._multiplexer.table
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
            )

    def stream_stats(self, most: int | None = None) -> list[StreamStats]:
        """Return a snapshot of the open streams, taken at one moment.

        Args:
            most: how many; those where threads wait come first, then those with most unread bytes.
                All by default.
        """
        return look(self._multiplexer, thread_names(), most).streams

    def explain(self) -> list[Finding]:
        """Return who waits for what, and since when; ``print(*connection.explain(), sep="\\n")``.

        What holds up the whole connection comes first, then what stands still, then threads that
        wait for what may come, each by its length. Empty when nobody waits. Never blocks, however
        stuck the connection is, and raises nothing when it has ended. What the peer's threads do is
        known only by what they keep from moving here.
        """
        return findings(look(self._multiplexer, thread_names(), idle=False))
