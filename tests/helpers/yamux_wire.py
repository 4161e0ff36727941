"""Build Yamux frames and machines without the code under test."""

from __future__ import annotations

import struct
from typing import Any

from wsmux.config import Config
from wsmux.protocols.base import Role
from wsmux.protocols.yamux import YamuxProtocol

from .inside import state_of
from .machine_pairs import Pair, other, outbox

DATA, WINDOW, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8

KIB = 1024
MIB = 1024 * KIB
INITIAL = 256 * KIB

BROKEN = bytes.fromhex("00 03 0000 00000000 00000001")  # GO_AWAY, protocol error


def head(kind: int, flags: int, stream_id: int, length: int, version: int = 0) -> bytes:
    return struct.pack(">BBHII", version, kind, flags, stream_id, length)


def data_frame(stream_id: int, body: bytes = b"", flags: int = 0) -> bytes:
    return head(DATA, flags, stream_id, len(body)) + body


def window(stream_id: int, delta: int = 0, flags: int = 0) -> bytes:
    return head(WINDOW, flags, stream_id, delta)


def yid(opener: Role, index: int = 0) -> int:
    """Return the id of the stream that ``opener`` opens as its ``index``-th, counted from 0."""
    return 2 * index + (1 if opener is Role.CLIENT else 2)


def yamux(role: Role, **limits: Any) -> YamuxProtocol:
    return YamuxProtocol(role, Config(**limits))


def opened(role: Role, *, local: bool, **limits: Any) -> tuple[YamuxProtocol, int]:
    """Return a machine with a stream that both ends have taken, and its id; all is quiet."""
    machine = yamux(role, **limits)
    if local:
        stream_id = machine.open_stream()
        machine.receive_data(window(stream_id, 0, ACK))
    else:
        stream_id = yid(other(role))
        machine.receive_data(window(stream_id, 0, SYN))
        machine.accept(stream_id, machine.config.receive_window)
    machine.events()
    outbox(machine)
    return machine, stream_id


def yamux_pair(**limits: Any) -> Pair:
    return Pair(yamux(Role.CLIENT, **limits), yamux(Role.SERVER, **limits))


def snapshot(machine: YamuxProtocol) -> Any:
    """Return all that a machine remembers, to be compared with a later snapshot."""
    return state_of(machine, "floods", "_heads")  # the frames that came, taken or not
