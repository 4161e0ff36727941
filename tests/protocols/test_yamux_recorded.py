"""What published Yamux peers have said, byte for byte, means what it must.

``helpers/vectors`` has the bytes. Our side of each conversation is replayed by calls.
"""

from __future__ import annotations

import pytest

from wsmux.protocols.base import Role
from wsmux.protocols.events import (
    DataReceived,
    Event,
    GoAwayReceived,
    PongReceived,
    StreamAborted,
    StreamEnded,
    StreamFinished,
    StreamOpened,
    WriteStopped,
)
from wsmux.protocols.yamux import YamuxProtocol

from ..helpers.tables import each_case
from ..helpers.vectors.yamux_recorded import RECORDED
from ..helpers.yamux_wire import yamux

HELLO = bytes.fromhex("1234075ae4")  # what the peers were told to send


def replay(machine: YamuxProtocol, wire: bytes, step: int) -> list[Event]:
    """Feed a machine whose owner takes every stream and acts as ours did; return the events."""
    seen: list[Event] = []
    for start in range(0, len(wire), step):
        machine.receive_data(wire[start : start + step])
        while events := machine.events():
            seen += events
            for event in events:
                if isinstance(event, StreamOpened):
                    machine.accept(event.stream_id, machine.config.receive_window)
    return seen


def expected(talk: str, role: Role) -> list[Event]:
    theirs, ours = (1, 2) if role is Role.SERVER else (2, 1)
    return {
        "echo": [StreamOpened(theirs), DataReceived(theirs, HELLO), StreamEnded(theirs)],
        "opened here": [DataReceived(ours, b"hello"), StreamEnded(ours), StreamFinished(ours)],
        "reset": [
            StreamOpened(theirs),
            DataReceived(theirs, HELLO),
            StreamAborted(theirs, 0, False, ""),
            WriteStopped(theirs, 0),
            StreamFinished(theirs),
        ],
        "goodbye": [PongReceived(None, 1), GoAwayReceived(ours, 0)],
    }[talk]


@each_case
@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("step", [1, 12, 10_000])
def test_what_a_published_peer_said(name: str, step: int) -> None:
    peer, _, talk = name.partition(": ")
    role = Role.SERVER if peer.endswith("client") else Role.CLIENT
    machine = yamux(role)
    if talk == "opened here":
        stream_id = machine.open_stream()
        machine.send_data(stream_id, b"hello")
        machine.close_write(stream_id, 0.0)
    elif talk == "goodbye":
        machine.ping(1)
    machine.handle_timer(0.0)  # measures, if there is a stream
    assert replay(machine, bytes.fromhex(RECORDED[name]), step) == expected(talk, role)
    assert machine.open_streams() == (talk == "echo")  # which our side has not ended
