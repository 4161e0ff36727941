"""Model two Bymux machines on a slow wire, which never lose a byte, a window or a stream."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from wsmux.protocols.base import Role
from wsmux.protocols.bymux import BymuxProtocol
from wsmux.protocols.bymux_packets import MAX_NUMBER, PacketReader
from wsmux.protocols.bymux_state import BymuxState
from wsmux.protocols.events import (
    DataReceived,
    StreamEnded,
    StreamFinished,
    StreamOpened,
    WriteStopped,
)

from ..bymux_wire import CREDIT, WRITE, fresh
from ..machine_pairs import other
from ..slow_wire import Half, SlowWire, Wire

roles = st.sampled_from(Role)

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
