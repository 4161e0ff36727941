"""Carry what two machines send when a model test says so, control before data."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from wsmux.protocols.base import MuxProtocol, Role

from .machine_pairs import control, data

__all__ = ["Half", "SlowWire", "Wire"]


class Half(NamedTuple):
    """Name one direction of a stream by the side that writes it."""

    stream_id: int
    writer: Role


@dataclass
class Wire:
    """Hold what one side has sent: the two lanes before the wire, and what is on it."""

    control: deque[bytes] = field(default_factory=deque)
    data: deque[bytes] = field(default_factory=deque)
    flying: deque[bytes] = field(default_factory=deque)
    arrived: int = 0  # bytes of the first flying message that were delivered

    def all(self) -> list[bytes]:
        return [*self.flying, *self.control, *self.data]


class SlowWire:
    """The part of a model that moves messages from the machines' outboxes to the wires."""

    machines: Mapping[Role, MuxProtocol]
    wires: dict[Role, Wire]

    def queue(self, role: Role) -> Wire:
        wire = self.wires[role]
        wire.control.extend(control(self.machines[role]))
        wire.data.extend(data(self.machines[role]))
        return wire

    def transmit(self, role: Role) -> bool:
        wire = self.queue(role)
        waiting = wire.control or wire.data
        if not waiting:
            return False
        wire.flying.append(waiting.popleft())
        return True
