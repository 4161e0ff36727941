"""However bytes are chopped, whatever they are, and however slow the wire: Bymux keeps its word."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from wsmux.exceptions import RemoteProtocolError
from wsmux.protocols.base import Role
from wsmux.protocols.bymux import BymuxProtocol
from wsmux.protocols.bymux_packets import MAX_NUMBER, PacketReader, encode_head
from wsmux.protocols.bymux_state import INFINITE, BymuxState, HalfState, StreamState
from wsmux.protocols.events import (
    DataReceived,
    Event,
    StreamEnded,
    StreamFinished,
    StreamOpened,
    WriteStopped,
)

from ..helpers.bymux_wire import CREDIT, WRITE, fresh, packet
from ..helpers.examples import examples
from ..helpers.long_models import LongRun
from ..helpers.machine_pairs import BOTH_ROLES, other, outbox
from ..helpers.slow_wire import Half, SlowWire, Wire

roles = st.sampled_from(Role)
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
@settings(max_examples=examples(150))
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
@settings(max_examples=examples(150))
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
        assert machine.held() < len(wire)
    assert not machine.held()


# Two machines on a slow wire

WINDOW = 24
FRAME = 7


@dataclass
class Known:
    """What the model knows of one direction."""

    written: bytearray = field(default_factory=bytearray)
    read: bytearray = field(default_factory=bytearray)
    unread: bytearray = field(default_factory=bytearray)
    ended: bool = False
    stopped: bool = False  # nobody reads any more
    writable: bool = True


class BymuxModel(SlowWire, RuleBasedStateMachine):
    """Carry packets when hypothesis says so: control before data, else in order, chopped."""

    streams = Bundle("streams")

    def __init__(self) -> None:
        super().__init__()
        self.machines: dict[Role, BymuxProtocol] = {}
        self.wires = {role: Wire() for role in Role}
        self.flows: dict[Half, Known] = {}
        self.granted: dict[Half, int] = {}
        self.finished: set[tuple[Role, int]] = set()

    @initialize(
        windows=st.tuples(st.integers(1, WINDOW), st.integers(1, WINDOW)),
        starting=st.tuples(st.integers(0, 9), st.integers(0, 9)),
        max_streams=st.integers(1, 4),
    )
    def start(self, windows: tuple[int, int], starting: tuple[int, int], max_streams: int) -> None:
        state = BymuxState(starting_credit=starting[0], peer_starting_credit=starting[1])
        for role, window in zip(Role, windows, strict=True):
            self.machines[role] = fresh(
                role,
                state if role is Role.CLIENT else state.mirrored(),
                receive_window=window,
                max_frame_size=FRAME,
                max_streams=max_streams,
            )

    @rule(target=streams, role=roles)
    def open(self, role: Role) -> object:
        machine = self.machines[role]
        if not machine.may_open() or machine._all.outgoing.closed:
            return multiple()
        stream_id = machine.open_stream()
        self.flows[Half(stream_id, role)] = Known()
        return stream_id

    @rule(stream_id=streams, role=roles, size=st.integers(0, 2 * WINDOW))
    def write(self, stream_id: int, role: Role, size: int) -> None:
        flow = self.flows.get(Half(stream_id, role))
        if flow is None or not flow.writable:
            return
        start = len(flow.written)
        chunk = bytes(offset % 251 for offset in range(start, start + size))
        credit = self.machines[role].credit(stream_id)
        sent = self.machines[role].send_data(stream_id, chunk)
        assert sent == min(size, credit)
        flow.written += chunk[:sent]

    @rule(stream_id=streams, role=roles, limit=st.integers(1, WINDOW))
    def read(self, stream_id: int, role: Role, limit: int) -> None:
        flow = self.flows.get(Half(stream_id, other(role)))
        if flow is not None and not flow.stopped and flow.unread:
            chunk = flow.unread[:limit]
            del flow.unread[:limit]
            flow.read += chunk
            self.machines[role].consumed(stream_id, len(chunk))

    @rule(stream_id=streams, role=roles)
    def close_write(self, stream_id: int, role: Role) -> None:
        flow = self.flows.get(Half(stream_id, role))
        if flow is not None:
            flow.writable = False
            self.machines[role].close_write(stream_id, 0.0)
            self.collect(role, False)

    @rule(stream_id=streams, role=roles)
    def close_read(self, stream_id: int, role: Role) -> None:
        flow = self.flows.get(Half(stream_id, other(role)))
        if flow is not None and stream_id in self.machines[role]._streams:
            flow.stopped = True
            self.machines[role].close_read(stream_id)
            self.collect(role, False)

    @rule(role=roles, value=st.integers(0, 9))
    def ping(self, role: Role, value: int) -> None:
        if not self.machines[role]._all.mute:
            self.machines[role].ping(value)

    @rule(stream_id=streams, role=roles)
    def ping_stream(self, stream_id: int, role: Role) -> None:
        stream = self.machines[role]._streams.get(stream_id)
        if stream is not None and not stream.mute:
            self.machines[role].ping_stream(stream_id, 1)

    @rule(role=roles, chance=st.integers(0, 9))
    def go_away(self, role: Role, chance: int) -> None:
        if chance == 0:
            self.machines[role].go_away(0)

    @rule(role=roles, count=st.integers(1, 4))
    def send(self, role: Role, count: int) -> None:
        for _ in range(count):
            self.transmit(role)

    @rule(role=roles, refusing=st.booleans(), count=st.integers(1, 4), chop=st.booleans())
    def deliver(self, role: Role, refusing: bool, count: int, chop: bool) -> None:
        flying = self.wires[other(role)].flying
        parts = [flying.popleft() for _ in range(min(count, len(flying)))]
        wire = b"".join(parts)
        for part in [wire[:1], wire[1:]] if chop else [wire]:
            self.machines[role].receive_data(part)
            self.collect(role, refusing)

    @rule()
    def settle(self) -> None:
        """Carry everything, then compare what both ends believe."""
        moving = True
        while moving:
            moving = False
            for role in Role:
                while self.transmit(role):
                    pass
                moving |= bool(self.wires[role].flying)
                self.deliver(other(role), False, 2**20, False)
        client, server = (self.machines[role] for role in Role)
        assert client._active.keys() == server._active.keys()
        for near, far in ((client, server), (server, client)):
            assert near._all.outgoing.credit == far._all.incoming.credit
            for stream_id, stream in near._streams.items():
                peer = far._streams[stream_id]
                assert stream.outgoing.credit == peer.incoming.credit
                assert stream.outgoing.closed is peer.incoming.closed
                assert stream.outgoing.stopped is peer.incoming.stopped
        for (stream_id, writer), flow in self.flows.items():
            taken = Half(stream_id, other(writer)) in self.flows  # not ended behind a going away
            if taken and not flow.stopped:
                assert flow.read + flow.unread == flow.written

    def collect(self, role: Role, refusing: bool) -> None:
        machine, peer = self.machines[role], other(role)
        while events := machine.events():
            for event in events:
                if isinstance(event, StreamOpened):
                    self.take(role, event.stream_id, refusing)
                elif isinstance(event, DataReceived):
                    flow = self.flows[Half(event.stream_id, peer)]
                    assert not flow.ended
                    flow.unread += event.data
                elif isinstance(event, StreamEnded):
                    # A stream that was ended behind a going away has no flow there.
                    flow = self.flows.get(Half(event.stream_id, peer), Known())
                    flow.ended = True
                    assert flow.read + flow.unread == flow.written
                elif isinstance(event, WriteStopped):
                    self.flows[Half(event.stream_id, role)].writable = False
                elif isinstance(event, StreamFinished):
                    assert (role, event.stream_id) not in self.finished
                    self.finished.add((role, event.stream_id))

    def take(self, role: Role, stream_id: int, refusing: bool) -> None:
        """Take or refuse a stream at once, as the owner must."""
        machine = self.machines[role]
        flow = self.flows[Half(stream_id, role)] = Known(writable=not refusing)
        if refusing:
            self.flows[Half(stream_id, other(role))].stopped = True
            machine.refuse(stream_id, machine.refused_code)
        else:
            machine.accept(stream_id, machine.config.receive_window)
            if stream_id not in machine._streams or machine._streams[stream_id].outgoing.closed:
                flow.writable = False  # its opener has stopped reading already

    # What always holds

    @invariant()
    def reader_sees_a_prefix_of_what_was_written(self) -> None:
        for flow in self.flows.values():
            assert flow.written.startswith(flow.read)

    @invariant()
    def credit_is_never_negative(self) -> None:
        for machine in self.machines.values():
            for scope in [machine._all, *machine._streams.values()]:
                assert 0 <= scope.outgoing.credit <= MAX_NUMBER
                assert 0 <= scope.incoming.credit <= MAX_NUMBER

    @invariant()
    def no_byte_of_the_credit_is_lost(self) -> None:
        for writer, machine in self.machines.items():
            sent = [decoded(wire) for wire in self.queue(writer).all()]
            answers = [decoded(wire) for wire in self.queue(other(writer)).all()]
            reader = self.machines[other(writer)]
            for stream_id, stream in machine._streams.items():
                far = reader._streams.get(stream_id)
                if far is None or far.incoming.stopped or stream.outgoing.closed:
                    continue
                flying = sum(n for kind, name, n in sent if (kind, name) == (WRITE, stream_id))
                granting = sum(
                    n for kind, name, n in answers if (kind, name) == (CREDIT, stream_id)
                )
                unread = len(self.flows[Half(stream_id, writer)].unread)
                unreturned = far.incoming.returned
                parts = stream.outgoing.credit, granting, flying, unread, unreturned
                starting = machine._starting.credit if stream_id % 2 == machine._parity else 0
                assert sum(parts) == max(reader.config.receive_window, starting), parts

    @invariant()
    def no_more_streams_are_in_use_than_allowed(self) -> None:
        for machine in self.machines.values():
            half = machine._all.incoming
            if not half.stopped:
                assert half.credit + half.unread + half.returned == machine.config.max_streams

    def teardown(self) -> None:
        """End every stream and see that both ends forget it."""
        if not self.machines:
            return
        self.settle()
        for role in Role:
            for stream_id in list(self.machines[role]._streams):
                self.flows[Half(stream_id, other(role))].stopped = True
                self.machines[role].refuse(stream_id, 0)
                self.collect(role, False)
        self.settle()
        assert [machine.open_streams() for machine in self.machines.values()] == [0, 0]


def decoded(wire: bytes) -> tuple[int, int | None, int]:
    """Return the kind, the id and the number of one whole packet."""
    packet, _ = PacketReader().packet(memoryview(wire), 0)
    assert packet is not None
    return packet.kind, packet.wire_id, packet.number


TestBymuxModel = BymuxModel.TestCase
TestBymuxModel.settings = settings(max_examples=examples(60), stateful_step_count=50)


class TestBymuxModelForLong(LongRun):
    model = BymuxModel
