"""Build Bymux packets without the code under test, and machines in a known state."""

from __future__ import annotations

from typing import Any, NamedTuple

from wsmux.config import Config
from wsmux.protocols.base import MuxProtocol, Role
from wsmux.protocols.bymux import BymuxProtocol
from wsmux.protocols.bymux_state import BymuxState
from wsmux.protocols.events import Event

from .inside import state_of
from .machine_pairs import Pair, id_of, other, outbox

CREDIT, WRITE, PING, PONG, CLOSE, STOP_READ = range(6)


def packet(kind: int, stream_id: int, number: int | None = None, body: bytes = b"") -> bytes:
    """Return a packet on a stream, with integers of one byte."""
    return bytes((kind << 5, stream_id)) + (b"" if number is None else bytes((number,))) + body


def write(stream_id: int, body: bytes) -> bytes:
    return packet(WRITE, stream_id, len(body), body)


def overall(kind: int, number: int | None = None) -> bytes:
    """Return a global packet, with integers of one byte."""
    return bytes((kind << 5 | 0x10,)) + (b"" if number is None else bytes((number,)))


def of(wire: str) -> bytes:
    return bytes.fromhex(wire)


def all_events(machine: MuxProtocol) -> list[Event]:
    """Return what happened, across the pauses behind each stream that the peer opened."""
    events: list[Event] = []
    while more := machine.events():
        events += more
    return events


def fresh(role: Role, state: BymuxState | None = None, **limits: Any) -> BymuxProtocol:
    """Return a machine as it is made, with its first grants still to send."""
    return BymuxProtocol(role, Config(**limits), state)


def quiet(
    role: Role, state: BymuxState | None = None, *, opens: int = 9, **limits: Any
) -> BymuxProtocol:
    """Return a machine that may open ``opens`` streams and has nothing to send or report."""
    machine = fresh(role, state, **limits)
    machine.receive_data(overall(CREDIT, opens))
    machine.events()
    outbox(machine)
    return machine


class Opened(NamedTuple):
    machine: BymuxProtocol
    stream_id: int


def opened(
    role: Role,
    *,
    local: bool,
    credit: int = 200,
    window: int = 100,
    state: BymuxState | None = None,
    **limits: Any,
) -> Opened:
    """Return a machine with a stream that both ends have taken, with credit both ways."""
    machine = quiet(role, state, **limits)
    stream_id = id_of(role if local else other(role))
    if local:
        assert machine.open_stream(window) == stream_id
    else:
        machine.receive_data(overall(WRITE, stream_id))
        machine.accept(stream_id, window)
    if credit:
        machine.receive_data(packet(CREDIT, stream_id, credit))
    all_events(machine)
    outbox(machine)
    return Opened(machine, stream_id)


def bymux_pair(**limits: Any) -> Pair:
    """Return two machines that have granted each other the first credit."""
    pair = Pair(fresh(Role.CLIENT, **limits), fresh(Role.SERVER, **limits))
    pair.pump()
    return pair


def snapshot(machine: BymuxProtocol) -> Any:
    """Return all that a machine remembers, to be compared with a later snapshot."""
    state = state_of(machine, "_handlers", "_reader", "_returned", "floods")
    assert list(state.pop("_active").values()) == list(state["_streams"].values())
    return state
