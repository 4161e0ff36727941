"""Each machine tells how much its peer may still send, as the peer itself counts it."""

from __future__ import annotations

import pytest

from wsmux.config import Config
from wsmux.protocols.base import MuxProtocol, Role
from wsmux.protocols.bymux import BymuxProtocol
from wsmux.protocols.bymux_state import INFINITE, BymuxState, HalfState, StreamState
from wsmux.protocols.yamux import YamuxProtocol

from ..helpers.machine_pairs import BOTH_ROLES, Pair, native, other

# What may come unread, and what a machine of bymux speaks of at a time.
WINDOW, TURN = 256 * 1024, 64 * 1024


def joined(wire: str) -> Pair:
    made: list[MuxProtocol]
    if wire == "wsmux":
        made = [native(role) for role in Role]
    else:
        machine = {"yamux": YamuxProtocol, "bymux": BymuxProtocol}[wire]
        made = [machine(role, Config()) for role in Role]
    pair = Pair(*made)
    pair.pump()
    return pair


@BOTH_ROLES
@pytest.mark.parametrize("wire", ["wsmux", "yamux", "bymux"])
def test_it_is_what_the_peer_may_send(wire: str, role: Role) -> None:
    pair = joined(wire)
    writer, reader = pair[role], pair[other(role)]
    stream_id = writer.open_stream()
    pair.pump()
    writer.send_data(stream_id, b"x" * 1000)
    pair.pump()
    assert reader.peer_credit(stream_id) == WINDOW - 1000
    assert writer.credit(stream_id) == (WINDOW - 1000 if wire != "bymux" else TURN)
    sent = 1000
    while size := writer.send_data(stream_id, b"x" * WINDOW):
        sent += size
    pair.pump()
    assert sent == WINDOW
    assert reader.peer_credit(stream_id) == writer.credit(stream_id) == 0
    reader.consumed(stream_id, WINDOW)
    pair.pump()
    assert reader.peer_credit(stream_id) == WINDOW


@BOTH_ROLES
@pytest.mark.parametrize("wire", ["wsmux", "yamux", "bymux"])
def test_each_stream_earns_both_sides_what_a_peer_may_send_beside_data(
    wire: str, role: Role
) -> None:
    pair = joined(wire)
    before = [pair[each].floods.streams for each in Role]
    for _ in range(3):
        pair[role].open_stream()
    pair.pump()
    assert [pair[each].floods.streams - 3 for each in Role] == before


@pytest.mark.parametrize("wire", ["wsmux", "yamux", "bymux"])
def test_of_a_stream_that_is_not_there_it_is_not_known(wire: str) -> None:
    assert joined(wire)[Role.CLIENT].peer_credit(12345) is None


def test_a_stream_that_needs_no_credit_has_no_limit() -> None:
    endless = StreamState(stream_id=3, incoming=HalfState(credit=INFINITE))
    machine = BymuxProtocol(Role.CLIENT, Config(), BymuxState(streams=(endless,)))
    assert machine.peer_credit(3) is None
