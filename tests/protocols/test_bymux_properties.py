"""However bytes are chopped, whatever they are, and however slow the wire: Bymux keeps its word."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsmux.exceptions import RemoteProtocolError
from wsmux.protocols.base import Role
from wsmux.protocols.bymux import BymuxProtocol
from wsmux.protocols.bymux_packets import encode_head
from wsmux.protocols.bymux_state import INFINITE, BymuxState, HalfState, StreamState
from wsmux.protocols.events import (
    DataReceived,
    Event,
    StreamOpened,
)

from ..helpers.bymux_wire import CREDIT, WRITE, fresh, packet
from ..helpers.machine_pairs import BOTH_ROLES, outbox
from ..helpers.models.bymux import BymuxModel, decoded

numbers = st.one_of(*(st.integers(0, 2**bits - 1) for bits in (2, 8, 16, 32, 64)))


# Encoding


@given(st.integers(0, 5), st.none() | numbers, numbers)
def test_heads_decode_to_what_was_encoded(kind: int, wire_id: int | None, number: int) -> None:
    counted = kind in (CREDIT, WRITE)
    wire = encode_head(kind, wire_id, number if counted else None)
    assert decoded(wire) == (kind, wire_id, number if counted else 0)


@given(numbers)
def test_integers_take_the_fewest_bytes(number: int) -> None:
    width = next(width for width in (1, 2, 4, 8) if number < 256**width)
    assert len(encode_head(CREDIT, None, number)) == 1 + width


# Whatever the peer sends

small = st.integers(0, 5)
widths = st.integers(0, 3)


@st.composite
def nearly_packets(draw: st.DrawFn) -> bytes:
    """Draw a packet on a small id, with integers of any width, mostly complete."""
    kind = draw(st.sampled_from([CREDIT, WRITE, WRITE, 2, 3, 4, 5, 6]))
    overall = draw(st.booleans())
    id_code, code = draw(widths), draw(widths)
    wire = bytes((kind << 5 | overall << 4 | id_code << 2 | code,))
    if not overall:
        wire += draw(small).to_bytes(1 << id_code, "big")
    if kind in (CREDIT, WRITE):
        number = draw(small)
        wire += number.to_bytes(1 << code, "big")
        if kind == WRITE and not overall:
            wire += bytes(number)
    return wire


inputs = st.lists(st.one_of(nearly_packets(), nearly_packets(), st.binary(max_size=12)))
states = st.builds(
    BymuxState,
    streams=st.sampled_from(
        [
            (),
            (StreamState(stream_id=0), StreamState(stream_id=1)),
            (StreamState(stream_id=3, incoming=HalfState(credit=INFINITE)),),
            (StreamState(stream_id=2, outgoing=HalfState(stopped=True)),),
        ]
    ),
    accepting=st.sampled_from([HalfState(), HalfState(closed=True)]),
    starting_credit=small,
    peer_starting_credit=small,
)


class Seen(NamedTuple):
    events: list[Event]
    failure: tuple[type[Exception], str, int] | None


def drain(machine: BymuxProtocol) -> list[Event]:
    """Do as an owner, who takes some streams, refuses others and reads everything."""
    events: list[Event] = []
    while more := machine.events():
        events += more
        for event in more:
            if isinstance(event, StreamOpened):
                if event.stream_id % 3:
                    machine.accept(event.stream_id, 20)
                else:
                    machine.refuse(event.stream_id, machine.refused_code)
    return events


def run(machine: BymuxProtocol, chunks: list[bytes]) -> Seen:
    events = drain(machine)
    for chunk in chunks:
        try:
            machine.receive_data(chunk)
        except RemoteProtocolError as error:
            return Seen(events + drain(machine), (type(error), str(error), error.code))
        events += drain(machine)
        outbox(machine)
    return Seen(events, None)


@BOTH_ROLES
@settings(max_examples=150)
@given(state=states, wires=inputs)
def test_any_bytes_give_events_or_a_protocol_error(
    role: Role, state: BymuxState, wires: list[bytes]
) -> None:
    machine = fresh(role, state, receive_window=20, max_streams=3)
    failure = run(machine, wires).failure
    assert failure is None or failure[2] in (1002, 1008, 1009)
    assert machine.open_streams() <= 3 + len(state.streams)


def chopped(wire: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(wire) + 1) for cut in cuts), len(wire)]
    return [wire[start:end] for start, end in zip(edges, edges[1:], strict=False)]


@BOTH_ROLES
@settings(max_examples=150)
@given(state=states, wires=inputs, cuts=st.lists(st.integers(0, 1000), max_size=8))
def test_any_chopping_gives_the_same_events(
    role: Role, state: BymuxState, wires: list[bytes], cuts: list[int]
) -> None:
    wire = b"".join(wires)
    limits = {"receive_window": 20, "max_streams": 3}
    at_once = run(fresh(role, state, **limits), [wire])
    in_parts = run(fresh(role, state, **limits), chopped(wire, cuts))
    one_by_one = run(fresh(role, state, **limits), chopped(wire, list(range(len(wire)))))
    assert joined(in_parts) == joined(at_once)
    assert joined(one_by_one) == joined(at_once)


def joined(seen: Seen) -> Seen:
    """Make one of bytes on a stream that were reported behind each other."""
    events: list[Event] = []
    for event in seen.events:
        last = events[-1] if events else None
        behind = isinstance(event, DataReceived) and isinstance(last, DataReceived)
        if behind and event.stream_id == last.stream_id:
            events[-1] = DataReceived(event.stream_id, last.data + event.data)
        else:
            events.append(event)
    return Seen(events, seen.failure)


@given(st.sampled_from([bytes, bytearray, memoryview]), st.integers(1, 4))
def test_any_buffer_type_gives_the_same_events(kind: type, chunk: int) -> None:
    wire = bytes((0x30, 1)) + packet(WRITE, 1, 3, b"abc")
    machine = fresh(Role.CLIENT, BymuxState(peer_starting_credit=3))
    chunks = [kind(wire[start : start + chunk]) for start in range(0, len(wire), chunk)]
    assert run(machine, chunks).events == [StreamOpened(1), DataReceived(1, b"abc")]


@pytest.mark.parametrize("chunk", [1, 100, 5000])
def test_incomplete_packet_is_kept_within_its_head_and_body(chunk: int) -> None:
    machine = fresh(Role.CLIENT, BymuxState(peer_starting_credit=9000))
    machine.receive_data(bytes((0x30, 1)))
    wire = bytes((0x21, 1)) + (9000).to_bytes(2, "big") + bytes(9000)
    for start in range(0, len(wire), chunk):
        machine.receive_data(wire[start : start + chunk])
        assert len(machine._reader._kept) < len(wire)
    assert not machine._reader._kept


# Two machines on a slow wire


TestBymuxModel = BymuxModel.TestCase
TestBymuxModel.settings = settings(max_examples=60, stateful_step_count=50)
