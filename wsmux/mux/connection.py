"""Offer one multiplexed connection. How it works is told in ``multiplexer``."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Literal, Self

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


class Connection:
    """Carry many streams over one WebSocket or socket; made by ``connect`` and ``serve``.

    Every method may be called from any thread. Leaving a ``with`` block closes the connection.

    Attributes:
        config: the limits.
        request: what the client asked for, on a server; ``None`` elsewhere.
        initial_streams: those that live from the start, by a ``BymuxState``; mostly none.
    """

    def __init__(
        self,
        channel: MessageTransport,
        protocol: MuxProtocol,
        *,
        accept_streams: bool = True,
        start_on: StartOn = "open",
        code_to_reason: CodeToReason | None = None,
        reason_to_code: ReasonToCode | None = None,
        request: Request | None = None,
    ) -> None:
        self.config: Config = channel.config
        self.request = request
        self._ping_rate = PingRateLimiter(channel)
        self._engine = Multiplexer(
            channel,
            protocol,
            ErrorCodeMap(
                protocol.first_application_code, protocol.last_code, code_to_reason, reason_to_code
            ),
            accept_streams=accept_streams,
            start_on_data=start_on == "data",
        )
        self.initial_streams = tuple(
            Stream(self, self._engine, entry) for entry in self._engine.initial
        )

    def __repr__(self) -> str:
        error = self._engine.channel.error
        state = "open" if error is None else f"ended: {error}"
        return f"<Connection {self.name} {self.protocol} {state} streams={self._streams()}>"

    def _streams(self) -> int:
        return len(self._engine.table.entries)

    @property
    def name(self) -> str:
        """A name for logs, unique in the process."""
        return self._engine.channel.name

    @property
    def role(self) -> Role:
        """Which side of the connection this is."""
        return self._engine.channel.role

    @property
    def protocol(self) -> str:
        """The wire spoken: ``"wsmux"``, ``"js-ws"``, ``"yamux"`` or ``"bymux"``."""
        return self._engine.protocol.name

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, for whatever cause."""
        return self._engine.channel.error is not None

    @property
    def error(self) -> WsmuxError | None:
        """What ended the connection, ``None`` while it lives; to be looked at, not raised."""
        return self._engine.channel.error

    @property
    def close_code(self) -> int | None:
        """The code that the connection ended with, ``None`` while it lives.

        The first cause counts, whichever side it came from: 1000 for a peer that has finished, or
        ``close()`` here; 1001 for a server that stops or a client that leaves; else what the side
        that closed gave. 1006 stands for an end without a closing message, such as ``abort()``, a
        lost network and the copy in a forked child; what happened then, ``close_reason`` says.
        ``yamux`` and ``bymux`` over a plain socket have no codes: a peer's clean end is 1000 there.
        """
        error = self._engine.channel.error
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
        error = self._engine.channel.error
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
        engine, table = self._engine, self._engine.table
        changing = False
        entry: StreamRecord | None = None
        try:
            with engine.mutex:
                while True:
                    engine.check_locked()
                    if table.peer_refuses_from is not None:
                        raise StreamRefused(
                            table.peer_refuses_from, 0, "the peer takes no further streams"
                        )
                    if engine.protocol.may_open():
                        break
                    if deadline.expired():
                        raise TimeoutError(f"{self.name} got no room for a new stream in time")
                    table.openers.wait(engine.mutex, deadline)
                changing = True
                entry = table.open(time.monotonic())
                engine.queue_locked()
                changing = False
            engine.flush()
            return Stream(self, engine, entry)
        except BaseException as error:
            engine.interrupted(error, changing)
            if entry is not None:
                engine.abandon(entry)  # nobody knows of it
            raise

    def accept_stream(self, timeout: float | None = None) -> Stream:
        """Wait for a stream that the peer opens, and return it.

        With ``start_on="data"`` a stream counts only once it has bytes or has ended.

        Raises:
            TimeoutError: none came in ``timeout`` seconds.
            ConnectionClosed: the connection has ended; ``ConnectionClosedOK`` at a clean close.
        """
        deadline = Deadline(timeout)
        engine, table = self._engine, self._engine.table
        changing = False
        entry: StreamRecord | None = None
        try:
            with engine.mutex:
                engine.check_forked_locked()
                while not table.offered:
                    engine.check_locked()
                    if deadline.expired():
                        raise TimeoutError(f"no stream was opened on {self.name} in time")
                    table.acceptors.wait(engine.mutex, deadline)
                changing = True
                entry = table.take_offered()
                changing = False
            return Stream(self, engine, entry)
        except BaseException as error:
            engine.interrupted(error, changing)
            if entry is not None:
                engine.abandon(entry)  # nobody knows of it
            raise

    def __iter__(self) -> Iterator[Stream]:
        """Accept streams until the connection closes cleanly; any other end raises.

        Clean are 1000 and 1001, which end the loop alike: afterwards ``close_code`` tells a peer
        that has finished (1000) from one that goes away (1001), as a server that is restarted does,
        and to which a client may connect anew.
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
        in five seconds wait for their turn, since a peer of this library would end the connection.

        Raises:
            TimeoutError: no turn or no pong in time; the connection goes on.
            LocalProtocolError: ``bymux`` over a plain socket, where both sides are going away.
            ConnectionClosed: the connection has ended.
        """
        engine, deadline = self._engine, Deadline(timeout)
        self._ping_rate.wait(deadline)
        if engine.protocol.pings:
            try:
                return engine.ping(deadline)
            except LocalProtocolError:
                if not engine.channel.pings:
                    raise
        return engine.channel.ping(deadline)

    def go_away(self, code: int = 0) -> None:
        """Take no further streams from the peer; running ones go on. Never blocks.

        The peer's ``open_stream`` raises ``StreamRefused`` from then on, and streams this side has
        not seen are refused there, so that it knows what is safe to retry. ``js-ws`` has no word
        for it: there, each further stream is refused when it comes. On ``yamux`` many peers end
        the connection when they hear it; on ``bymux`` this side opens none either.
        """
        engine = self._engine

        def refuse(_: list[Parker]) -> None:
            engine.check_locked()
            engine.table.accept_streams = False
            engine.protocol.go_away(code)
            engine.queue_locked()

        engine.change(refuse)

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
        with self._engine.mutex:
            while self._engine.protocol.pending_closes() and self._engine.channel.error is None:
                if deadline.expired():
                    break
                self._engine.quiet.wait(self._engine.mutex, deadline)
        self._engine.close(code, reason, deadline)
        self._engine.wake_everybody()
        if threading.current_thread() is not self._engine.thread:
            self._engine.thread.join(deadline.remaining())

    def begin_close(self, *, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Start what ``close`` does and return at once; ``close`` then waits for the rest."""
        self._engine.close(code, reason, None)
        self._engine.wake_everybody()

    def wait_drained(self, timeout: float | None = None) -> bool:
        """Wait until no stream is open, or the connection has ended; tell whether that came."""
        deadline = Deadline(timeout)
        with self._engine.mutex:
            while self._engine.table.entries and self._engine.channel.error is None:
                if deadline.expired():
                    return False
                self._engine.quiet.wait(self._engine.mutex, deadline)
        return True

    def abort(self) -> None:
        """Cut the connection at once, without a closing handshake; queued bytes are lost."""
        self._engine.channel.abort()
        self._engine.wake_everybody()

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until the connection has ended and its socket is closed; tell whether it has."""
        return self._engine.channel.wait_finished(Deadline(timeout).remaining())

    def dump_recording(self) -> str:
        """Return what the flight recorder has kept; see ``Recording``. Never blocks.

        The text is JSON, a line for each frame. It may be asked for when the connection has ended.

        Raises:
            LocalProtocolError: ``Config.recording`` asks for none.
        """
        return recording_of(self._engine.channel)

    def stats(self) -> ConnectionStats:
        """Return a snapshot, taken at one moment."""
        with self._engine.mutex:
            table = self._engine.table
            entries = table.entries.values()
            measured = self._engine.protocol.rtt
            return ConnectionStats(
                streams=len(entries),
                unaccepted=table.unaccepted,
                streams_opened=table.opened,
                streams_accepted=table.accepted,
                streams_refused=table.refused,
                waiting_readers=sum(entry.reader.occupied() for entry in entries),
                waiting_writers=sum(entry.writer.occupied() for entry in entries),
                waiting_for_room=self._engine.queue.waiting_locked(),
                unread_bytes=table.unread,
                queued_bytes=self._engine.queue.queued_bytes_locked(),
                bytes_received=self._engine.channel.frame_reader.bytes_received,
                bytes_sent=self._engine.queue.bytes_sent,
                rtt=self._engine.channel.keep_alive.rtt if measured is None else measured,
            )

    def stream_stats(self, most: int | None = None) -> list[StreamStats]:
        """Return a snapshot of the open streams, taken at one moment.

        Args:
            most: how many; those where threads wait come first, then those with most unread bytes.
                All by default.
        """
        return look(self._engine, thread_names(), most).streams

    def explain(self) -> list[Finding]:
        """Return who waits for what, and since when; ``print(*connection.explain(), sep="\\n")``.

        What holds up the whole connection comes first, then what stands still, then who waits for
        what may come, each by its length. Empty when nobody waits. Never blocks, however stuck the
        connection is, and raises nothing when it has ended. What the peer's threads do is known
        only by what they keep from moving here.
        """
        return findings(look(self._engine, thread_names(), idle=False))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
