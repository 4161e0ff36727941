"""Say what every pure multiplexing machine offers.

A machine is fed messages and calls, and yields events and messages; it knows no sockets, threads
or clocks. The owner holds one lock around every call. After a call that raises
``RemoteProtocolError`` the machine must only be asked for what it still has to send.

``AckBacklogProtocol`` adds a bound for the streams opened here that the peer has not answered yet.
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
    "AckBacklogProtocol",
    "Buffer",
    "InitialStream",
    "Message",
    "MuxProtocol",
    "Role",
]

Buffer = bytes | bytearray | memoryview


class Role(StrEnum):
    """Which of the two ends this is; it decides the parity of stream ids, and which end masks."""

    CLIENT = "client"
    SERVER = "server"


# Ends a stream without a reason that the application gave, on every wire.
CODE_UNKNOWN = 0

# Control messages that are sent as they are; of more, each as a message costs too much.
FEW = 16

# One message to send: a head and the payload that follows it, kept apart to spare a copy.
Message = tuple[bytes, Buffer]


class InitialStream(NamedTuple):
    """Say how a stream stands that both ends know from the start."""

    stream_id: int
    peer_opened: bool
    write_closed: bool  # by this side
    write_stopped: bool  # by the peer
    read_closed: bool  # by this side
    read_ended: bool  # by the peer


class Granting(Protocol):
    """A stream of any machine."""

    @property
    def peer_credit(self) -> int | None:
        """How many bytes the peer may still send; ``None`` where there is no limit."""


class MuxProtocol(ABC):
    """The base of the pure machines.

    Attributes:
        name: what ``connect(protocol=)`` calls it.
        subprotocol: what is offered in the handshake, or ``None``.
        first_application_code: error codes below it belong to the protocol.
        last_code: the largest error code that the wire can carry.
        refused_code: the code that a stream nobody takes is ended with.
        keeps_boundaries: each carrier message is one message of the protocol; else the carrier's
            bytes are a stream.
        min_window: unread bytes that the peer may send on any stream, whatever this side says.
        pings: the wire has a ping of its own.
        grows: a window would grow by ``grow``, which wants to know the path's round-trip time.
        initial: streams that are there before the first byte.
        empty_messages: what came that changed nothing and cost the peer nothing.
        now: the owner sets it to the time of what it passes on; round trips are measured by it.
        received: the owner sets it to the bytes that the carrier has brought in all.
        floods: what the peer may still do of what costs it little.
        data_frames: quanta of data sent, by which the peer earns the right to grant credit.
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
        self._events: list[Event] = []
        self._control: list[Message] = []
        self._data: list[Message] = []

    def events(self) -> list[Event]:
        """Return what happened since the last call, in order."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events

    def has_output(self) -> bool:
        """Return whether there is anything to send; asked after each call, so it costs little."""
        return bool(self._data or self._control)

    def control_to_send(self) -> list[Message]:
        """Return the messages that may overtake data, in order.

        Many become one where the wire does not care: thousands of answers to what came at once.
        """
        if not self._control:
            return []
        messages, self._control = self._control, []
        if len(messages) > FEW and not self.keeps_boundaries:
            return [(b"", b"".join(itertools.chain.from_iterable(messages)))]
        return messages

    def data_to_send(self) -> list[Message]:
        """Return data, and what must not overtake it, in order."""
        if not self._data:
            return []
        messages, self._data = self._data, []
        return messages

    def _note_empty(self) -> None:
        """Count what changes nothing, and charge the peer with it."""
        self.floods.empty(self.now)
        self.empty_messages += 1

    def _note_late(self) -> None:
        """Charge the peer with a frame for what has ended, which may have crossed the end."""
        self.floods.late(self.now)

    def _note_update(self, useful: bool) -> None:
        """Charge the peer with credit that it grants, or that adds nothing."""
        if useful:
            self.floods.update(self.now, self.data_frames)
        else:
            self._note_empty()

    @abstractmethod
    def receive_data(self, data: Buffer) -> None:
        """Take one message from the carrier, which keeps boundaries, or any bytes of a stream.

        ``data`` is not kept: what events carry is copied out of it.

        Raises:
            RemoteProtocolError: the peer broke a rule; the connection must end with its code.
        """

    @abstractmethod
    def open_stream(self, window: int | None = None) -> int:
        """Open a stream, announce ``window`` bytes of room or the configured ones, return its id.

        Bytes may be sent as soon as credit comes.
        """

    @abstractmethod
    def may_open(self) -> bool:
        """Return whether a stream may be opened now; if not, an event will say when."""

    @abstractmethod
    def accept(self, stream_id: int, window: int) -> None:
        """Take a stream that the peer opened and announce ``window`` bytes of room.

        Bytes that came before are part of them. Report nothing as ``consumed`` before this.
        """

    @abstractmethod
    def refuse(self, stream_id: int, code: int) -> None:
        """End both halves of a stream that the peer opened, without having handled it."""

    @abstractmethod
    def credit(self, stream_id: int) -> int:
        """Return how many bytes the stream may send now."""

    def peer_credit(self, stream_id: int) -> int | None:
        """Return how many bytes the peer may still send; ``None`` where there is no limit."""
        stream = self._streams.get(stream_id)
        return None if stream is None else stream.peer_credit

    @abstractmethod
    def send_data(self, stream_id: int, data: Buffer) -> int:
        """Send the start of ``data``, in one frame or several; return how many bytes.

        As many as there is credit for, and at most ``Config.max_frame_size``: one quantum.
        """

    @abstractmethod
    def consumed(self, stream_id: int, count: int) -> None:
        """Note that the application has read ``count`` bytes, which may return credit."""

    @abstractmethod
    def close_write(self, stream_id: int, now: float) -> None:
        """End the writing half after everything sent so far."""

    @abstractmethod
    def close_read(self, stream_id: int) -> None:
        """Signal to the peer that nothing further will be read, without an error."""

    @abstractmethod
    def reset_write(self, stream_id: int, code: int) -> None:
        """Abort the writing half: what the peer has not read of it is void."""

    @abstractmethod
    def reset_read(self, stream_id: int, code: int) -> None:
        """Signal to the peer that its bytes are refused from now on."""

    @abstractmethod
    def go_away(self, code: int) -> None:
        """Take no further streams from the peer; running ones go on."""

    def close_notice(self, code: int) -> None:  # noqa: B027  (most carriers say it)
        """Say, after everything sent, that the connection ends with a close code.

        Does nothing where the carrier says it.
        """

    def close_notice_came(self) -> bool:
        """Return whether the peer has, so that the end of the carrier's bytes is a clean one."""
        return False

    @property
    def rtt(self) -> float | None:
        """The round-trip time in seconds that the machine has measured for itself, if it does."""
        return None

    def may_ping(self) -> bool:
        """Return whether ``ping`` would ask now."""
        return self.pings

    def ping(self, value: int) -> None:
        """Ask the peer for a sign of life; ``PongReceived`` brings ``value`` back.

        Raises:
            LocalProtocolError: the wire has no ping, or none can be sent any more.
        """
        raise LocalProtocolError(f"{self.name} has no protocol-level ping")

    def ping_stream(self, stream_id: int, value: int) -> None:
        """Ask for a sign of life of one stream; ``PongReceived`` brings ``value`` back.

        Raises:
            LocalProtocolError: the wire has no such ping, or the stream has ended here.
        """
        raise LocalProtocolError(f"{self.name} cannot ping single streams; use connection.ping()")

    def incomplete(self) -> int | None:
        """Return what tells the frame that is incomplete from others, ``None`` if none is.

        Where the carrier keeps boundaries none ever is.
        """
        return None

    def held(self) -> int:
        """Return how many bytes are kept of a frame that is not whole; asked after each batch."""
        return 0

    def grow(self, now: float, rtt: float | None) -> int:
        """Widen the window whose credit ``consumed`` has just returned, if its reader keeps up.

        Args:
            now: the time.
            rtt: the least round-trip time of the path that was seen, in seconds, if one was.

        Returns:
            How large the window is now; 0 when it is as it was.
        """
        return 0

    def next_timer(self) -> float | None:
        """Return when ``handle_timer`` wants to be called, on the clock of ``now``."""
        return None

    def handle_timer(self, now: float) -> None:  # noqa: B027  (not every machine keeps time)
        """Do what was due by ``now``."""

    def pending_closes(self) -> int:
        """Return how many streams are closed here but not yet on the wire."""
        return 0

    @abstractmethod
    def open_streams(self) -> int:
        """Return how many streams are in the table."""


class Answerable(Protocol):
    """A stream opened here; the peer has ``answered`` once it has sent anything on it."""

    answered: bool


class AckBacklogProtocol(MuxProtocol):
    """The base of the machines whose peer answers each stream, rather than granting them."""

    def __init__(self, role: Role, config: Config) -> None:
        super().__init__(role, config)
        self._pending_opens = 0
        self._peer_refuses = False

    def may_open(self) -> bool:
        return self._pending_opens < self.config.max_pending_opens or self._peer_refuses

    def _opening(self) -> None:
        """Count a stream that this side opens."""
        self._pending_opens += 1
        self.floods.streams += 1

    def _answered(self, stream: Answerable) -> bool:
        """Note a sign of acceptance, or that none is owed; tell whether it was the first."""
        if stream.answered:
            return False
        stream.answered = True
        self._pending_opens -= 1
        if self._pending_opens == self.config.max_pending_opens - 1:
            self._events.append(OpenPermitted())
        return True
