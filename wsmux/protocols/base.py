"""Define the interface of the pure multiplexing machines.

A machine takes messages and calls, and yields events and messages; it contains no sockets, threads
or clocks. The owner holds one lock around every call. After a call that raised
``RemoteProtocolError``, only the remaining output may be requested.

``AckBacklogProtocol`` adds a limit on streams opened here that the peer has not acknowledged.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from ..config import Config
from ..exceptions import LocalProtocolError
from .abuse_limits import AbuseLimits
from .events import Event, OpenPermitted

__all__ = [
    "CODE_UNKNOWN",
    "MAX_ID",
    "AckBacklogProtocol",
    "Buffer",
    "InitialStream",
    "Message",
    "MuxProtocol",
    "Role",
]

Buffer = bytes | bytearray | memoryview


class Role(StrEnum):
    """One of the two ends; it decides the parity of stream ids, and which end masks."""

    CLIENT = "client"
    SERVER = "server"


# Error code of a stream that ends without a reason from the application, on every wire.
CODE_UNKNOWN = 0

# Control messages sent as they are; more are joined, since each costs too much as a message.
FEW = 16

# Answers that nobody waits for and that are kept, at most, and how many of them may be to openings:
# a peer may limit those that are unanswered. Then they are sent as all others.
MAX_UNAWAITED = 16
MAX_EARLY_ANSWERS = 4

# Peers of yamux and bymux reuse ids: higher bits distinguish streams that shared one. Users see the
# low 64 bits.
MAX_ID = 2**64 - 1

# One message to send: a header and the payload that follows it, separate to avoid a copy.
Message = tuple[bytes, Buffer]


class InitialStream(NamedTuple):
    """Describe a stream that both ends know from the start."""

    stream_id: int
    peer_opened: bool
    write_closed: bool  # by this side
    write_stopped: bool  # by the peer
    read_closed: bool  # by this side
    read_ended: bool  # by the peer


class Granting(Protocol):
    """A stream of any machine, as far as credit is concerned."""

    @property
    def peer_credit(self) -> int | None:
        """The bytes that the peer may still send; ``None`` for no limit."""


class MuxProtocol(ABC):
    """The base class of the machines.

    Attributes:
        name: its name in ``connect(protocol=)``.
        subprotocol: offered in the handshake, or ``None``.
        first_application_code: lower error codes belong to the protocol.
        last_code: the largest error code that the wire can carry.
        refused_code: the code for a stream that nobody accepts.
        keeps_boundaries: each message of the framing is one message of the protocol; otherwise
            their bytes form a stream.
        min_window: unread bytes that the peer may send on any stream, whatever this side announces.
        pings: the wire has pings of its own.
        grows: windows grow by calls of ``grow``, which needs the path's round-trip time.
        initial: streams that exist before the first byte.
        empty_messages: the number of received frames that changed nothing and cost the peer
            nothing.
        now: the current time, set by the owner before it passes on input; used to measure round
            trips.
        received: the total of bytes received by the transport, set by the owner.
        floods: the limits of what the peer may send at little cost to itself.
        data_frames: quanta of data sent; each entitles the peer to grant credit.
        unawaited: how many of the messages to send are answers that the peer does not wait for.
            They go with whatever is sent next, so that neither side wakes up for them alone.
        unawaited_data: how many of these ``data_to_send`` returns, before all else.
    """

    name: str
    subprotocol: str | None
    first_application_code: int
    last_code: int = 2**62 - 1
    refused_code: int
    keeps_boundaries: bool = True
    min_window: int = 0
    pings: bool = False
    grows: bool = False
    initial: Sequence[InitialStream] = ()
    now: float = 0.0
    received: int = 0
    _streams: Mapping[int, Granting]

    def __init__(self, role: Role, config: Config) -> None:
        self.role = role
        self.config = config
        self.empty_messages = 0
        self.floods = AbuseLimits(config)
        self.data_frames = 0
        self.unawaited = self.unawaited_data = 0
        self._early_answers: list[tuple[int, int, int]] = []
        self._events: list[Event] = []
        self._control: list[Message] = []
        self._data: list[Message] = []

    def events(self) -> list[Event]:
        """Return what has happened since the last call, in order."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events

    def has_output(self) -> bool:
        """Return whether there is output to send now; called after every call, so it is cheap."""
        return bool(self._data or self._control) and (
            not self.unawaited or len(self._data) + len(self._control) > self.unawaited
        )

    def hurry(self) -> None:
        """Have everything sent now, even if nobody waits for it."""
        self.unawaited = 0

    def hurry_if_awaited(self) -> None:
        """Have everything sent now, if the peer may wait for any of it; called after each batch.

        That is, for the answer to a stream that it opened: if it sent nothing with the opening, or
        has used half of what it may send before the answer.
        """
        for stream_id, window, early in self._early_answers:
            left = self.peer_credit(stream_id)
            if left is not None and not window - early // 2 <= left < window:
                return self.hurry()

    def _postpone(self, *answered: tuple[int, int, int]) -> None:
        """Have the message that was appended last wait for another one.

        Args:
            answered: the stream that it answers, its window, and of that the bytes that the peer
                may have sent before the answer.
        """
        if not self.unawaited:
            self._early_answers.clear()
        self.unawaited += 1
        self._early_answers += answered
        if self.unawaited >= MAX_UNAWAITED or len(self._early_answers) >= MAX_EARLY_ANSWERS:
            self.hurry()

    def control_to_send(self) -> list[Message]:
        """Return the messages that may overtake data, in order.

        If the wire ignores boundaries, many are joined: a batch may cause thousands of answers.
        """
        if not self._control:
            return []
        messages, self._control, self.unawaited = self._control, [], 0
        if len(messages) > FEW and not self.keeps_boundaries:
            return [(b"", b"".join(itertools.chain.from_iterable(messages)))]
        return messages

    def data_to_send(self) -> list[Message]:
        """Return data, and the messages that must not overtake it, in order."""
        if not self._data:
            return []
        messages, self._data = self._data, []
        self.unawaited = self.unawaited_data = 0
        return messages

    def _note_empty(self) -> None:
        """Count a frame that changes nothing, and charge it to the peer."""
        self.floods.empty(self.now)
        self.empty_messages += 1

    def _note_late(self) -> None:
        """Charge the peer for a late frame, which may have crossed the end of its stream."""
        self.floods.late(self.now)

    def _note_update(self, useful: bool) -> None:
        """Charge the peer for granting credit, or for a grant that adds nothing."""
        if useful:
            self.floods.update(self.now, self.data_frames)
        else:
            self._note_empty()

    @abstractmethod
    def receive_data(self, data: Buffer) -> None:
        """Process one message, or any piece of the byte stream if boundaries are not kept.

        ``data`` is not kept: events carry copies.

        Raises:
            RemoteProtocolError: the peer broke a rule; the connection must end with its code.
        """

    @abstractmethod
    def open_stream(self, window: int | None = None) -> int:
        """Open a stream, announce ``window`` bytes (or the configured window), and return its id.

        Bytes may be sent as soon as there is credit.
        """

    def announced_window(self, size: int) -> int:
        """Return the window that the peer gets where one of ``size`` bytes is wanted."""
        return size

    @abstractmethod
    def may_open(self) -> bool:
        """Return whether a stream may be opened now; if not, ``OpenPermitted`` tells when."""

    @abstractmethod
    def accept(self, stream_id: int, window: int) -> None:
        """Accept a stream that the peer opened, and announce a window of ``window`` bytes.

        Bytes received before count towards it. Do not call ``consumed`` before this.
        """

    @abstractmethod
    def refuse(self, stream_id: int, code: int) -> None:
        """End both halves of a stream that the peer opened, without having processed it."""

    @abstractmethod
    def credit(self, stream_id: int) -> int:
        """Return how many bytes the stream may send now."""

    def peer_credit(self, stream_id: int) -> int | None:
        """Return how many bytes the peer may still send; ``None`` for no limit."""
        stream = self._streams.get(stream_id)
        return None if stream is None else stream.peer_credit

    @abstractmethod
    def send_data(self, stream_id: int, data: Buffer) -> int:
        """Send the start of ``data``, in one or more frames; return the number of bytes.

        Limited by the credit and ``Config.max_frame_size``: one quantum.
        """

    @abstractmethod
    def consumed(self, stream_id: int, count: int) -> None:
        """Account for ``count`` bytes read by the application, which may return credit."""

    @abstractmethod
    def close_write(self, stream_id: int, now: float) -> None:
        """End the writing half after everything sent so far."""

    @abstractmethod
    def close_read(self, stream_id: int) -> None:
        """Notify the peer that nothing more will be read, without an error."""

    @abstractmethod
    def reset_write(self, stream_id: int, code: int) -> None:
        """Abort the writing half: the peer discards bytes it has not read."""

    @abstractmethod
    def reset_read(self, stream_id: int, code: int) -> None:
        """Notify the peer that its bytes are refused from now on."""

    @abstractmethod
    def go_away(self, code: int) -> None:
        """Accept no more streams from the peer; open streams continue."""

    def close_notice(self, code: int) -> None:  # noqa: B027  (usually the close frame is enough)
        """Send, after everything else, that the connection ends with a close code.

        Does nothing if close frames do this.
        """

    def close_notice_came(self) -> bool:
        """Return whether the peer sent its notice, so that an end of file is a clean end."""
        return False

    @property
    def rtt(self) -> float | None:
        """The round-trip time in seconds as measured by the machine itself, if it does."""
        return None

    def may_ping(self) -> bool:
        """Return whether a ping may be sent now."""
        return self.pings

    def ping(self, value: int) -> None:
        """Send a ping; ``PongReceived`` returns its ``value``.

        Raises:
            LocalProtocolError: the wire has no ping, or none may be sent any more.
        """
        raise LocalProtocolError(f"{self.name} has no protocol-level ping")

    def ping_stream(self, stream_id: int, value: int) -> None:
        """Send a ping of one stream; ``PongReceived`` returns its ``value``.

        Raises:
            LocalProtocolError: the wire has no such ping, or the stream has ended here.
        """
        raise LocalProtocolError(f"{self.name} cannot ping single streams; use connection.ping()")

    def incomplete(self) -> int | None:
        """Return an identifier of the incomplete frame, ``None`` if there is none.

        There never is one if boundaries are kept.
        """
        return None

    def held(self) -> int:
        """Return the bytes buffered of an incomplete frame; called after each batch."""
        return 0

    def grow(self, now: float, rtt: float | None) -> int:
        """Widen the window whose credit ``consumed`` has just returned, if its reader keeps up.

        Args:
            now: the time.
            rtt: the shortest round-trip time seen on the path, in seconds, if known.

        Returns:
            The new size of the window; 0 if it is unchanged.
        """
        return 0

    def next_timer(self) -> float | None:
        """Return when to call ``handle_timer``, on the clock of ``now``."""
        return None

    def handle_timer(self, now: float) -> None:  # noqa: B027  (not every machine has timers)
        """Do everything due by ``now``."""

    def pending_closes(self) -> int:
        """Return how many streams are closed here but not yet on the wire."""
        return 0

    @abstractmethod
    def open_streams(self) -> int:
        """Return the number of streams in the table."""


class Answerable(Protocol):
    """A stream opened here; it is ``answered`` once the peer has sent anything on it."""

    answered: bool


class AckBacklogProtocol(MuxProtocol):
    """The base class of machines whose peer acknowledges each stream, instead of granting them."""

    def __init__(self, role: Role, config: Config) -> None:
        super().__init__(role, config)
        self._pending_opens = 0
        self._peer_refuses = False

    def may_open(self) -> bool:
        return self._pending_opens < self.config.max_pending_opens or self._peer_refuses

    def _opening(self) -> None:
        """Count a stream opened by this side."""
        self._pending_opens += 1
        self.floods.streams += 1

    def _answered(self, stream: Answerable) -> bool:
        """Record an acknowledgement, or that none is due; return whether it was the first."""
        if stream.answered:
            return False
        stream.answered = True
        self._pending_opens -= 1
        if self._pending_opens == self.config.max_pending_opens - 1:
            self._events.append(OpenPermitted())
        return True
