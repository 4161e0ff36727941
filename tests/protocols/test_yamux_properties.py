"""Chopping changes nothing, any bytes end well, and two machines never lose a byte or a window.

The wire of the model loses nothing and delays everything at will: a frame leaves one end when
hypothesis says so, control before data, and its bytes reach the other end in pieces of any size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from wsmux.exceptions import LocalProtocolError, RemoteProtocolError
from wsmux.protocols.base import Role
from wsmux.protocols.events import (
    DataReceived,
    Event,
    GoAwayReceived,
    StreamAborted,
    StreamEnded,
    StreamFinished,
    StreamOpened,
    StreamRejected,
    WriteStopped,
)
from wsmux.protocols.yamux import PEER_DONE, WRITING, YamuxProtocol
from wsmux.protocols.yamux_frames import FrameReader, encode_head

from ..helpers.examples import examples
from ..helpers.long_models import LongRun
from ..helpers.machine_pairs import BOTH_ROLES, other, outbox
from ..helpers.slow_wire import Half, SlowWire, Wire
from ..helpers.yamux_wire import DATA, INITIAL, KIB, WINDOW, head, yamux

roles = st.sampled_from(Role)
uint32s = st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1))


@given(st.integers(0, 3), st.integers(0, 2**16 - 1), uint32s, uint32s)
def test_a_head_decodes_to_what_was_encoded(
    kind: int, flags: int, stream_id: int, length: int
) -> None:
    wire = encode_head(kind, flags, stream_id, length)
    found, end = FrameReader().head(memoryview(wire), 0)
    assert (found, end) == ((0, kind, flags, stream_id, length), 12)


# Whatever the peer sends

small_ids = st.integers(0, 6)
any_flags = st.one_of(st.integers(0, 15), st.integers(0, 2**16 - 1))


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Return a frame whose head says the truth about its body."""
    body = draw(st.binary(max_size=30))
    return head(DATA, draw(any_flags), draw(small_ids), len(body)) + body


@st.composite
def other_frames(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from([1, 1, 1, 2, 3, 3, 4]))
    ids = small_ids if kind == WINDOW else st.sampled_from([0, 0, 0, 1])
    return head(kind, draw(any_flags), draw(ids), draw(uint32s if kind < 3 else st.just(0)))


legal_openings = st.sampled_from([head(WINDOW, 1, 1, 0), head(WINDOW, 1, 2, 0)])
nearly = st.one_of(frames(), frames(), other_frames(), legal_openings)
wires = st.lists(nearly, max_size=25).map(b"".join)


class Outcome(NamedTuple):
    events: list[Event]
    error: str
    sent: bytes


def run(role: Role, chunks: list[bytes], *, answering: bool) -> Outcome:
    """Feed chunks to an owner that answers after each of them, or only at the end."""
    machine = yamux(role)
    machine.open_stream()
    machine.ping(7)
    events: list[Event] = []
    error = ""
    for chunk in chunks:
        try:
            machine.receive_data(chunk)
        except RemoteProtocolError as caught:
            error = f"{caught.code} {caught}"
        if answering or error:
            answer(machine, events)
        if error:
            break
    answer(machine, events)
    assert error[:4] in ("", "1002", "1011")
    return Outcome(events, error, b"".join(outbox(machine)))


def answer(machine: YamuxProtocol, events: list[Event]) -> None:
    while new := machine.events():
        events += new
        for event in new:
            if isinstance(event, StreamOpened):
                if event.stream_id % 3:
                    machine.accept(event.stream_id, INITIAL)
                else:
                    machine.refuse(event.stream_id, 0)
            elif isinstance(event, DataReceived):
                machine.consumed(event.stream_id, len(event.data))


def chop(wire: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)})
    return [wire[start:end] for start, end in zip(places, places[1:], strict=False)]


@settings(max_examples=examples(150))
@given(roles, wires, st.lists(st.integers(0, 2**20), max_size=30))
def test_any_chopping_gives_the_same_events(role: Role, wire: bytes, cuts: list[int]) -> None:
    whole = run(role, [wire], answering=False)
    assert run(role, chop(wire, cuts), answering=False) == whole


def by_stream(events: list[Event]) -> dict[int | None, list[Event]]:
    found: dict[int | None, list[Event]] = {}
    for event in events:
        found.setdefault(getattr(event, "stream_id", None), []).append(event)
    return found


@settings(max_examples=examples(100))
@given(roles, st.lists(frames(), max_size=20).map(b"".join))
def test_streams_taken_between_single_bytes_see_the_same(role: Role, wire: bytes) -> None:
    opening = head(WINDOW, 1, 2 if role is Role.CLIENT else 1, 0)
    whole = run(role, [opening, wire], answering=True)
    if whole.error:  # an id that is free again once its end was seen may be opened again
        return
    single = run(role, [opening, *chop(wire, list(range(len(wire))))], answering=True)
    assert by_stream(single.events) == by_stream(whole.events)


@BOTH_ROLES
@settings(max_examples=examples(150))
@given(chunks=st.lists(st.one_of(nearly, nearly, st.binary(max_size=20)), max_size=25))
def test_any_bytes_give_events_or_a_protocol_error(role: Role, chunks: list[bytes]) -> None:
    run(role, chunks, answering=True)


@settings(max_examples=examples(50))
@given(roles, wires, st.sampled_from([bytearray, memoryview]))
def test_any_buffer_type_gives_the_same_events(role: Role, wire: bytes, kind: Any) -> None:
    expected = run(role, [wire], answering=False)
    assert run(role, [kind(wire)], answering=False) == expected


# Two machines

PATTERN = bytes(range(251)) * (2**20 // 251)


@dataclass
class Flow:
    """What the model knows of one direction."""

    written: bytearray = field(default_factory=bytearray)
    read: bytearray = field(default_factory=bytearray)
    unread: bytearray = field(default_factory=bytearray)
    ended: bool = False  # the reader was told of the clean end
    torn: bool = False  # reset, rejected or not read: bytes may be missing at the end
    writable: bool = True  # as far as the writer knows


class YamuxModel(SlowWire, RuleBasedStateMachine):
    streams = Bundle("streams")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.machines: dict[Role, YamuxProtocol] = {}
        self.wires = {role: Wire() for role in Role}
        self.flows: dict[Half, Flow] = {}
        self.finished: set[tuple[Role, int]] = set()
        self.heard: set[int] = set()  # streams that the peer of their opener knew

    @initialize(extra=st.tuples(st.integers(-5, 100_000), st.integers(-5, 100_000)))
    def start(self, extra: tuple[int, int]) -> None:
        for role, more in zip(Role, extra, strict=True):
            self.machines[role] = yamux(role, receive_window=INITIAL + more, max_pending_opens=9)

    # What the applications do

    @rule(target=streams, role=roles)
    def open(self, role: Role) -> object:
        machine = self.machines[role]
        if not machine.may_open():
            return multiple()
        if machine._peer_refuses:
            with pytest.raises(LocalProtocolError):
                machine.open_stream()
            return multiple()
        stream_id = machine.open_stream()
        self.flows[Half(stream_id, role)] = Flow()
        return stream_id

    @rule(pick=st.integers(0, 99), size=st.integers(0, 200 * KIB))
    def write(self, pick: int, size: int) -> None:
        if not self.flows:
            return
        stream_id, role = list(self.flows)[pick % len(self.flows)]
        flow, machine = self.flows[Half(stream_id, role)], self.machines[role]
        if not flow.writable:
            with pytest.raises(LocalProtocolError):
                machine.send_data(stream_id, b"x")
            return
        start = (len(flow.written) + stream_id) % 251
        chunk = memoryview(PATTERN)[start : start + size]
        while sent := machine.send_data(stream_id, chunk):
            assert sent <= 64 * KIB
            flow.written += chunk[:sent]
            chunk = chunk[sent:]
        assert not len(chunk) or not machine.credit(stream_id)

    @rule(limit=st.integers(1, 300 * KIB))
    def read(self, limit: int) -> None:
        """Read from every stream that has something to be read."""
        for (stream_id, writer), flow in self.flows.items():
            if chunk := flow.unread[:limit]:
                del flow.unread[:limit]
                flow.read += chunk
                self.machines[other(writer)].consumed(stream_id, len(chunk))

    @rule(rounds=st.integers(1, 3), pick=st.integers(0, 99))
    def bulk(self, rounds: int, pick: int) -> None:
        """Fill a window and read it, so fast that it may grow."""
        for _ in range(rounds):
            half = list(self.flows)[pick % len(self.flows)] if self.flows else None
            if half is not None and self.flows[half].writable:
                self.write(pick, 200 * KIB)
                self.settle(0)
                self.read(300 * KIB)

    @rule(stream_id=streams, role=roles, chance=st.integers(0, 2))
    def close_write(self, stream_id: int, role: Role, chance: int) -> None:
        if chance:
            return
        flow = self.flows.get(Half(stream_id, role))
        if flow is not None:
            flow.writable = False
        self.machines[role].close_write(stream_id, self.now)
        self.collect(role)

    @rule(stream_id=streams, role=roles, chance=st.integers(0, 2))
    def close_read(self, stream_id: int, role: Role, chance: int) -> None:
        if chance:
            return
        if stream_id in self.machines[role]._streams:
            self.stop_reading(stream_id, role)
        self.machines[role].close_read(stream_id)
        self.collect(role)

    @rule(stream_id=streams, role=roles, code=st.integers(0, 20), reading=st.booleans())
    def reset(self, stream_id: int, role: Role, code: int, reading: bool) -> None:
        machine = self.machines[role]
        if code > 5:  # most streams are to live on
            return
        (machine.reset_read if reading else machine.reset_write)(stream_id, code)
        self.collect(role)

    def stop_reading(self, stream_id: int, role: Role) -> None:
        # Not accepted there yet: the direction does not exist.
        flow = self.flows.setdefault(Half(stream_id, other(role)), Flow(writable=False))
        if not flow.ended:
            flow.torn = True
            flow.unread.clear()

    def tear(self, stream_id: int, role: Role) -> None:
        """Note that both halves are over for one end."""
        self.stop_reading(stream_id, role)
        flow = self.flows[Half(stream_id, role)]
        flow.torn |= flow.writable
        flow.writable = False

    @rule(role=roles, chance=st.integers(0, 99))
    def go_away(self, role: Role, chance: int) -> None:
        if chance == 7:
            self.machines[role].go_away(0)

    @rule(role=roles)
    def ping(self, role: Role) -> None:
        self.machines[role].ping(3)

    @rule(seconds=st.floats(0.0, 6.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for role in Role:
            self.machines[role].handle_timer(self.now)
            self.collect(role)

    # What the wire does

    @rule(role=roles, count=st.integers(1, 9))
    def send(self, role: Role, count: int) -> None:
        for _ in range(count):
            self.transmit(role)

    @rule(role=roles, chance=st.integers(0, 9), size=st.integers(1, 100 * KIB))
    def deliver(self, role: Role, chance: int, size: int) -> None:
        """Carry ``size`` bytes in one piece, frames or not."""
        self.carry(other(role), chance == 7, size)

    def carry(self, sender: Role, refusing: bool, size: int) -> None:
        role, wire = other(sender), self.wires[sender]
        chunk = b"".join(wire.flying)[wire.arrived : wire.arrived + size]
        wire.arrived += len(chunk)
        while wire.flying and wire.arrived >= len(wire.flying[0]):
            wire.arrived -= len(wire.flying.popleft())
        self.machines[role].receive_data(chunk)
        self.collect(role, refusing)

    @rule(chance=st.integers(0, 9))
    def settle(self, chance: int) -> None:
        """Carry everything, then compare what both ends believe."""
        moving = True
        while moving:
            moving = False
            for role in Role:
                while self.transmit(role):
                    moving = True
                if self.wires[role].flying:
                    self.carry(role, chance == 7, 2**30)
                    moving = True
        self.check_quiet()

    def collect(self, role: Role, refusing: bool = False) -> None:
        while events := self.machines[role].events():
            for event in events:
                self.reported(role, event, refusing)

    def reported(self, role: Role, event: Event, refusing: bool) -> None:
        if isinstance(event, StreamOpened):
            self.opened(role, event.stream_id, refusing)
        elif isinstance(event, DataReceived):
            flow = self.flows[Half(event.stream_id, other(role))]
            assert not flow.ended
            flow.unread += event.data
        elif isinstance(event, StreamEnded):
            flow = self.flows[Half(event.stream_id, other(role))]
            flow.ended = True
            assert flow.read + flow.unread == flow.written
        elif isinstance(event, StreamAborted | WriteStopped | StreamRejected):
            if not isinstance(event, WriteStopped):
                self.stop_reading(event.stream_id, role)
            if not isinstance(event, StreamAborted):
                flow = self.flows[Half(event.stream_id, role)]
                flow.torn, flow.writable = True, False
        elif isinstance(event, StreamFinished):
            assert (role, event.stream_id) not in self.finished
            self.finished.add((role, event.stream_id))
            self.tear(event.stream_id, role)
        elif isinstance(event, GoAwayReceived):
            assert event.code == 0

    def opened(self, role: Role, stream_id: int, refusing: bool) -> None:
        """Take or refuse a stream at once, as the owner must."""
        self.heard.add(stream_id)
        machine, half = self.machines[role], Half(stream_id, role)
        self.flows[half] = Flow(torn=half in self.flows)  # the opener may read no further
        if refusing:
            machine.refuse(stream_id, machine.refused_code)
        else:
            machine.accept(stream_id, machine.config.receive_window)

    # What always holds

    @invariant()
    def reader_sees_a_prefix_of_what_was_written(self) -> None:
        for flow in self.flows.values():
            assert flow.written.startswith(flow.read)

    @invariant()
    def no_byte_of_a_window_is_lost(self) -> None:
        for writer in self.machines:
            wire, answers = self.queue(writer).all(), self.queue(other(writer)).all()
            for stream_id, stream in self.machines[writer]._streams.items():
                far = self.machines[other(writer)]._streams.get(stream_id)
                if far is None or far.read in PEER_DONE:
                    continue
                flow = self.flows[Half(stream_id, writer)]
                parts = (
                    stream.credit.available,
                    sum(lengths(wire, stream_id, DATA)),
                    len(flow.unread),
                    far.window.consumed,
                    sum(lengths(answers, stream_id, WINDOW)),
                )
                assert sum(parts) == far.window.size, parts

    def check_quiet(self) -> None:
        client, server = (self.machines[role] for role in Role)
        assert client._streams.keys() == server._streams.keys()
        for near, far in ((client, server), (server, client)):
            for stream_id, stream in near._streams.items():
                peer = far._streams[stream_id]
                assert (stream.write is WRITING) is (peer.read not in PEER_DONE)
                if stream.write is WRITING:
                    assert stream.credit.available == peer.window.available
        for half, flow in self.flows.items():
            if not flow.torn and half.stream_id in self.heard:
                assert flow.read + flow.unread == flow.written
                assert flow.ended is not flow.writable, half

    def teardown(self) -> None:
        """End every stream and see that both ends forget it."""
        if not self.machines:
            return
        self.settle(0)
        for role in Role:
            for stream_id in list(self.machines[role]._streams):
                self.machines[role].refuse(stream_id, 99)
                self.collect(role)
        self.settle(0)
        assert [machine.open_streams() for machine in self.machines.values()] == [0, 0]
        assert [machine._growth.total for machine in self.machines.values()] == [0, 0]
        self.flows.clear()  # megabytes


def lengths(wires: list[bytes], stream_id: int, kind: int) -> list[int]:
    """Return the lengths of a stream's frames of one type, resets left out."""
    found = [
        wire for wire in wires if wire[1] == kind and wire[4:8] == stream_id.to_bytes(4, "big")
    ]
    return [int.from_bytes(wire[8:12], "big") for wire in found if not wire[3] & 8]


TestYamuxModel = YamuxModel.TestCase
TestYamuxModel.settings = settings(max_examples=examples(100), stateful_step_count=60)


class TestYamuxModelForLong(LongRun):
    model = YamuxModel
