"""Join two pure machines by a lossless wire, and build messages without the code under test."""

from __future__ import annotations

import struct
from collections import deque
from typing import Any, NamedTuple

import pytest

from wsmux.config import Config
from wsmux.exceptions import RemoteProtocolError
from wsmux.protocols.abuse_limits import AbuseLimits
from wsmux.protocols.base import Buffer, MuxProtocol, Role
from wsmux.protocols.events import Event, StreamOpened
from wsmux.protocols.framing import Framing, Opcode
from wsmux.protocols.native import JS_WS, WSMUX_V1, Dialect, NativeProtocol

from .inside import state_of

DATA, ACK, ERROR, CLOSE, GO_AWAY = range(5)
READ, WRITE = b"\x00", b"\x01"

BOTH_ROLES = pytest.mark.parametrize("role", list(Role))
BOTH_DIALECTS = pytest.mark.parametrize(
    "dialect", [pytest.param(dialect, id=dialect.name) for dialect in (WSMUX_V1, JS_WS)]
)
EITHER_OPENER = pytest.mark.parametrize("local", [True, False], ids=["opened-here", "opened-there"])


def other(role: Role) -> Role:
    return Role.SERVER if role is Role.CLIENT else Role.CLIENT


def id_of(opener: Role, index: int = 0) -> int:
    """Return the id of the stream that ``opener`` opens as its ``index``-th, counted from 0."""
    return 2 * index + (opener is Role.SERVER)


def uint32(value: int) -> bytes:
    return struct.pack(">I", value)


def message(stream_id: int, kind: int, body: bytes = b"", dialect: Dialect = WSMUX_V1) -> bytes:
    """Return a message on an id below 64, byte by byte."""
    assert stream_id < 64
    return bytes((stream_id,)) + kind.to_bytes(dialect.type_width, "big") + body


def native(role: Role, dialect: Dialect = WSMUX_V1, **limits: Any) -> NativeProtocol:
    return NativeProtocol(role, Config(**limits), dialect)


def control(machine: MuxProtocol) -> list[bytes]:
    return [head + bytes(body) for head, body in machine.control_to_send()]


def data(machine: MuxProtocol) -> list[bytes]:
    return [head + bytes(body) for head, body in machine.data_to_send()]


def outbox(machine: MuxProtocol) -> list[bytes]:
    """Return everything a machine has to send, in the order a socket gets it."""
    return control(machine) + data(machine)


class Opened(NamedTuple):
    """A machine with one stream that both ends have taken; nothing is left to send or report."""

    machine: NativeProtocol
    stream_id: int


def opened(
    role: Role, *, local: bool, credit: int = 1000, dialect: Dialect = WSMUX_V1, **limits: Any
) -> Opened:
    """Return a machine with a stream opened by it (``local``) or by its peer, with ``credit``."""
    machine = native(role, dialect, **limits)
    if local:
        machine.open_stream()
    stream_id = id_of(role if local else other(role))
    machine.receive_data(message(stream_id, ACK, uint32(credit), dialect))
    if not local:
        machine.accept(stream_id, machine.config.receive_window)
    machine.events()
    outbox(machine)
    return Opened(machine, stream_id)


def snapshot(machine: NativeProtocol) -> Any:
    """Return all that a machine remembers, to be compared with a later snapshot."""
    return state_of(machine, "_handlers", "_returned", "floods")


def lift_budgets(machine: MuxProtocol) -> None:
    """Have a machine bear any flood, to see what it leaves behind."""
    much = 10**9
    machine.floods = AbuseLimits(Config(max_empty_frames=much, max_pings=much, max_resets=much))
    machine.floods.streams = much


class Pair:
    """Carry messages between a client and a server machine, losing none and keeping boundaries.

    Streams that the peer opens are accepted with ``window`` as their owner does it: right after
    the ``receive_data`` that reported them.
    """

    def __init__(self, client: MuxProtocol, server: MuxProtocol, window: int | None = None) -> None:
        self.machines: dict[Role, MuxProtocol] = {Role.CLIENT: client, Role.SERVER: server}
        self.window = window
        self._control: dict[Role, deque[bytes]] = {role: deque() for role in Role}
        self._data: dict[Role, deque[bytes]] = {role: deque() for role in Role}
        self._events: dict[Role, list[Event]] = {role: [] for role in Role}

    def __getitem__(self, role: Role) -> MuxProtocol:
        return self.machines[role]

    def events(self, role: Role) -> list[Event]:
        """Return what one end has reported since the last call."""
        self._collect(role)
        events, self._events[role] = self._events[role], []
        return events

    def step(self, sender: Role) -> bool:
        """Carry one message, control before data; tell whether there was one."""
        self._control[sender].extend(control(self[sender]))
        self._data[sender].extend(data(self[sender]))
        sending = self._control[sender] or self._data[sender]
        if not sending:
            return False
        self[other(sender)].receive_data(sending.popleft())
        self._collect(other(sender))
        return True

    def pump(self, *, single: bool = False) -> tuple[list[Event], list[Event]]:
        """Carry until nothing is left; return the events of the client and of the server.

        All that one end has to send goes before the other's turn, or one message a turn with
        ``single``.
        """
        moving = True
        while moving:
            moving = False
            for sender in Role:
                while self.step(sender):
                    moving = True
                    if single:
                        break
        return self.events(Role.CLIENT), self.events(Role.SERVER)

    def _collect(self, role: Role) -> None:
        events = self[role].events()
        self._events[role] += events
        for event in events:
            if isinstance(event, StreamOpened):
                window = self[role].config.receive_window if self.window is None else self.window
                self[role].accept(event.stream_id, window)


def native_pair(dialect: Dialect = WSMUX_V1, **limits: Any) -> Pair:
    return Pair(native(Role.CLIENT, dialect, **limits), native(Role.SERVER, dialect, **limits))


def feed(framing: Framing, wire: Buffer, chunk: int | None = None) -> list[tuple[Opcode, bytes]]:
    """Receive ``wire`` as the owner of a socket does, at most ``chunk`` bytes at a time.

    Stops, as the owner does, once the framing has failed.
    """
    frames: list[tuple[Opcode, bytes]] = []
    position = 0
    while position < len(wire) and framing.failure is None:
        free = framing.get_buffer()
        count = min(len(free), len(wire) - position, chunk or len(wire))
        assert count > 0
        free[:count] = wire[position : position + count]
        position += count
        frames += [(kind, bytes(payload)) for kind, payload in framing.received(count)]
    return frames


LONGEST_REASON = 123  # bytes of a close frame's reason: the sentence is sent in it


def assert_ends_connection(
    machine: NativeProtocol, wire: bytes, error: type[RemoteProtocolError], sentence: str
) -> None:
    """Check the class, the code and the sentence, and that nothing else happened."""
    before = snapshot(machine)
    with pytest.raises(error) as caught:
        machine.receive_data(wire)
    assert type(caught.value) is error
    assert str(caught.value) == sentence
    assert caught.value.code == 1002
    assert len(sentence.encode()) <= LONGEST_REASON
    assert snapshot(machine) == before
    assert (machine.events(), outbox(machine)) == ([], [])
