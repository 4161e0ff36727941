"""Two native machines on a slow wire never lose a byte, a window or a stream.

The wire loses nothing and delays everything at will. A message leaves one end when hypothesis says
so, control before data, which is all the overtaking that the two lanes allow, and reaches the
other end in the order it left. Streams are answered at once, late or never, so that what was sent
early lies there for any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from wsmux.exceptions import LocalProtocolError
from wsmux.mux.receive_buffer import ByteQueue
from wsmux.protocols.base import Role
from wsmux.protocols.events import (
    DataReceived,
    StreamAborted,
    StreamEnded,
    StreamFinished,
    StreamOpened,
    StreamRejected,
    WriteStopped,
)
from wsmux.protocols.flow_control import ReceiveWindow
from wsmux.protocols.native import JS_WS, JS_WS_CLOSE_DELAY, WSMUX_V1, Dialect, NativeProtocol
from wsmux.protocols.stream_states import ReadState, WriteState

from ..helpers.examples import examples
from ..helpers.long_models import LongRun
from ..helpers.machine_pairs import ACK, DATA, native, other
from ..helpers.slow_wire import Half, SlowWire, Wire

roles = st.sampled_from(Role)
WINDOW = 24
FRAME = 7
MAX_OPENS = 20  # a side: ids stay below 64, one byte on the wire
answers = st.sampled_from(["taken", "refused", "left"])


@dataclass
class Flow:
    """What the model knows of one direction."""

    written: bytearray = field(default_factory=bytearray)
    read: bytearray = field(default_factory=bytearray)
    unread: ByteQueue = field(default_factory=ByteQueue)
    ended: bool = False  # the reader was told of the clean end
    torn: bool = False  # reset, stopped or rejected: bytes may be missing at the end
    writable: bool = True  # as far as the writer knows


class NativeModel(SlowWire, RuleBasedStateMachine):
    dialect: Dialect = WSMUX_V1
    streams = Bundle("streams")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.machines: dict[Role, NativeProtocol] = {}
        self.wires = {role: Wire() for role in Role}
        self.flows: dict[Half, Flow] = {}
        self.finished: set[tuple[Role, int]] = set()
        self.opens = dict.fromkeys(Role, 0)
        self.left: dict[Role, list[int]] = {role: [] for role in Role}  # neither taken nor refused

    @initialize(
        target=streams,
        windows=st.tuples(st.integers(1, WINDOW), st.integers(1, WINDOW)),
        most=st.integers(1, WINDOW),
        acquainted=st.booleans(),
    )
    def start(self, windows: tuple[int, int], most: int, acquainted: bool) -> object:
        self.most = most  # what may be early in any case; 16 KiB would never be reached
        for role, window in zip(Role, windows, strict=True):
            machine = native(role, self.dialect, receive_window=window, max_frame_size=FRAME)
            if not self.dialect.js_ws_quirks:
                machine._early.taken = min(window, most)
                machine._early._most = machine._early._smallest = most
            self.machines[role] = machine
        if not acquainted:
            return multiple()
        first = [self.open(role, False, 0) for role in Role]
        self.settle("taken")
        return multiple(*first)

    def window(self, role: Role, short: bool) -> int:
        """Return what an end announces, the least of it when it is short of memory."""
        window = self.machines[role].config.receive_window
        return min(window, self.most) if short else window

    # What the applications do

    @rule(target=streams, role=roles, short=st.booleans(), size=st.integers(0, WINDOW))
    def open(self, role: Role, short: bool, size: int) -> object:
        machine = self.machines[role]
        if self.opens[role] >= MAX_OPENS:
            return multiple()
        if machine._peer_refuses:
            with pytest.raises(LocalProtocolError):
                machine.open_stream()
            return multiple()
        self.opens[role] += 1
        stream_id = machine.open_stream(self.window(role, short))
        self.flows[Half(stream_id, role)] = Flow()
        self.write(stream_id, role, size)
        return stream_id

    @rule(stream_id=streams, role=roles, size=st.integers(0, 2 * WINDOW))
    def write(self, stream_id: int, role: Role, size: int) -> None:
        flow = self.flows.get(Half(stream_id, role))
        if flow is None or stream_id in self.left[role]:
            return
        start = len(flow.written)
        chunk = bytes((stream_id + offset) % 251 for offset in range(start, start + size))
        machine = self.machines[role]
        if not flow.writable:
            with pytest.raises(LocalProtocolError):
                machine.send_data(stream_id, chunk)
            return
        credit = machine.credit(stream_id)
        sent = machine.send_data(stream_id, chunk)
        assert sent == min(size, credit, FRAME)
        flow.written += chunk[:sent]

    @rule(stream_id=streams, role=roles, limit=st.integers(1, WINDOW))
    def read(self, stream_id: int, role: Role, limit: int) -> None:
        flow = self.flows.get(Half(stream_id, other(role)))
        if stream_id in self.left[role]:
            return  # nobody has it to read from
        if flow is not None and (chunk := flow.unread.take(limit)):
            flow.read += chunk
            self.machines[role].consumed(stream_id, len(chunk))

    @rule(stream_id=streams, role=roles)
    def close_write(self, stream_id: int, role: Role) -> None:
        if stream_id in self.left[role]:
            return
        self.end_write(stream_id, role, torn=False)
        self.machines[role].close_write(stream_id, self.now)
        self.collect(role)

    @rule(stream_id=streams, role=roles, code=st.integers(64, 100))
    def reset_write(self, stream_id: int, role: Role, code: int) -> None:
        if stream_id in self.left[role]:
            return
        self.end_write(stream_id, role, torn=True)
        self.machines[role].reset_write(stream_id, code)
        self.collect(role)

    @rule(stream_id=streams, role=roles)
    def close_read(self, stream_id: int, role: Role) -> None:
        if stream_id in self.left[role]:
            return
        self.end_read(stream_id, role)
        self.machines[role].close_read(stream_id)
        self.collect(role)

    @rule(stream_id=streams, role=roles, code=st.integers(64, 100))
    def reset_read(self, stream_id: int, role: Role, code: int) -> None:
        if stream_id in self.left[role]:
            return
        self.end_read(stream_id, role)
        self.machines[role].reset_read(stream_id, code)
        self.collect(role)

    def end_write(self, stream_id: int, role: Role, *, torn: bool) -> None:
        flow = self.flows.get(Half(stream_id, role))
        if flow is not None:
            flow.writable = False
            flow.torn |= torn

    def end_read(self, stream_id: int, role: Role) -> None:
        flow = self.flows.get(Half(stream_id, other(role)))
        if flow is None:  # not accepted there yet: its direction does not exist
            flow = self.flows[Half(stream_id, other(role))] = Flow(writable=False)
        if not flow.ended:
            flow.torn = True
            flow.unread.clear()

    @precondition(lambda self: any(self.left.values()))
    @rule(role=roles, answer=answers, short=st.booleans())
    def answer_late(self, role: Role, answer: str, short: bool) -> None:
        if self.left[role]:
            self.answer(role, self.left[role].pop(0), answer, short)

    @precondition(lambda self: not self.dialect.js_ws_quirks)
    @rule(role=roles, chance=st.integers(0, 9))
    def go_away(self, role: Role, chance: int) -> None:
        if chance == 0:
            self.machines[role].go_away(70)

    @precondition(lambda self: self.dialect.js_ws_quirks)
    @rule(seconds=st.floats(0.0, JS_WS_CLOSE_DELAY))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for role in Role:
            self.machines[role].handle_timer(self.now)
            self.collect(role)

    # What the wire does

    @rule(role=roles, count=st.integers(1, 4))
    def send(self, role: Role, count: int) -> None:
        for _ in range(count):
            self.transmit(role)

    @rule(role=roles, answer=answers, count=st.integers(1, 4))
    def deliver(self, role: Role, answer: str, count: int) -> None:
        for _ in range(count):
            self.arrive(role, answer)

    @rule(answer=answers)
    def settle(self, answer: str) -> None:
        """Carry everything, then compare what both ends believe."""
        moving = True
        while moving:
            moving = False
            for role in Role:
                while self.transmit(role):
                    moving = True
                while self.arrive(other(role), answer):
                    moving = True
        self.check_quiet()

    def arrive(self, role: Role, answer: str) -> bool:
        flying = self.wires[other(role)].flying
        if not flying:
            return False
        self.machines[role].receive_data(flying.popleft())
        self.collect(role, answer)
        return True

    def collect(self, role: Role, answer: str = "taken") -> None:
        machine = self.machines[role]
        for event in machine.events():
            if isinstance(event, StreamOpened):
                self.answer(role, event.stream_id, answer)
            elif isinstance(event, DataReceived):
                flow = self.flows[Half(event.stream_id, other(role))]
                assert not flow.ended
                flow.unread.append(event.data)
            elif isinstance(event, StreamEnded):
                flow = self.flows[Half(event.stream_id, other(role))]
                flow.ended = True
                assert flow.read + b"".join(drained(flow.unread)) == flow.written
            elif isinstance(event, StreamAborted):
                assert not event.local, "no honest peer sends beyond its credit"
                self.flows[Half(event.stream_id, other(role))].torn = True
            elif isinstance(event, WriteStopped):
                self.end_write(event.stream_id, role, torn=True)
            elif isinstance(event, StreamRejected):
                self.end_write(event.stream_id, role, torn=True)
                self.end_read(event.stream_id, role)
            elif isinstance(event, StreamFinished):
                assert (role, event.stream_id) not in self.finished
                self.finished.add((role, event.stream_id))
                self.end_write(event.stream_id, role, torn=False)

    def answer(self, role: Role, stream_id: int, answer: str, short: bool = False) -> None:
        """Take a stream, refuse it, or leave it for later, which a js-ws peer may not."""
        machine = self.machines[role]
        if answer == "left" and not self.dialect.js_ws_quirks:
            self.left[role].append(stream_id)
            return
        half = Half(stream_id, role)
        stopped = half in self.flows  # the opener reads no further, and it is not heard of here yet
        stream = machine._streams.get(stream_id)  # none, once both ends of it were heard of
        writable = stream is not None and stream.write is WriteState.OPEN
        refusing = answer == "refused"
        torn = stopped or not writable
        self.flows[half] = Flow(torn=torn, writable=writable and not refusing)
        if refusing:
            machine.refuse(stream_id, machine.refused_code)
            self.end_read(stream_id, role)
            self.collect(role)
        else:
            machine.accept(stream_id, self.window(role, short))

    # What always holds

    @invariant()
    def reader_sees_a_prefix_of_what_was_written(self) -> None:
        for flow in self.flows.values():
            assert flow.written.startswith(flow.read)

    @invariant()
    def credit_is_never_negative(self) -> None:
        for machine in self.machines.values():
            for stream in machine._streams.values():
                assert stream.credit.available >= 0
                assert stream.window.available >= 0

    @invariant()
    def no_byte_of_a_window_is_lost(self) -> None:
        for writer in self.machines:
            wire = self.queue(writer).all()
            answers = self.queue(other(writer)).all()
            for stream_id, stream in self.machines[writer]._streams.items():
                far = self.machines[other(writer)]._streams.get(stream_id)
                if far is None or far.read is not ReadState.OPEN:
                    continue
                flow = self.flows.get(Half(stream_id, writer))  # none while it is left here
                unread = 0 if flow is None else flow.unread.size
                flying = sum(len(body) for body in bodies(wire, stream_id, DATA, self.dialect))
                returning = sum(
                    int.from_bytes(body, "big")
                    for body in bodies(answers, stream_id, ACK, self.dialect)
                )
                parts = stream.credit.available, flying, unread, far.window.consumed, returning
                left = stream_id in self.left[other(writer)]
                window = 0 if left else far.window.size
                # What went before the answer is part of the window that the answer announces.
                assert sum(parts) == window + (stream.early or 0), parts

    def check_quiet(self) -> None:
        client, server = (self.machines[role] for role in Role)
        assert client._streams.keys() == server._streams.keys()
        for near, far in ((client, server), (server, client)):
            # A peer that goes away never ends what it did not hear of, and keeps what came early.
            assert all(
                near._ids.ignored(stream_id) or far._ids.ignored(stream_id)
                for stream_id in near._stopped
            )
            for stream_id, stream in near._streams.items():
                peer = far._streams[stream_id]
                writing = stream.write in (WriteState.OPEN, WriteState.CLOSING)
                assert writing is (peer.read is ReadState.OPEN)
                if writing and stream_id in self.left[far.role]:
                    assert stream.early is not None
                    spent = stream.early - stream.credit.available
                    assert spent == peer.window.size - peer.window.available
                elif writing:
                    assert_same_credit(stream.credit.available, peer.window)
        for (stream_id, writer), flow in self.flows.items():
            unheard = self.machines[other(writer)]._ids.ignored(stream_id)
            if not flow.torn and not unheard:
                assert flow.read + b"".join(drained(flow.unread)) == flow.written
                if not self.dialect.js_ws_quirks:
                    assert flow.ended is not flow.writable, (stream_id, writer)

    def teardown(self) -> None:
        """End every stream and see that both ends forget it."""
        if not self.machines:
            return
        self.settle("left")
        for role in Role:
            for stream_id in list(self.machines[role]._streams):
                self.end_read(stream_id, role)
                self.end_write(stream_id, role, torn=True)
                self.machines[role].refuse(stream_id, 99)
                self.collect(role)
        self.settle("taken")
        assert [machine.open_streams() for machine in self.machines.values()] == [0, 0]


def drained(queue: ByteQueue) -> list[bytes]:
    """Return what a queue holds and leave it as it was."""
    chunks = []
    while chunk := queue.take(2**30):
        chunks.append(chunk)
    for chunk in chunks:
        queue.append(chunk)
    return chunks


def bodies(wires: list[bytes], stream_id: int, kind: int, dialect: Dialect) -> list[bytes]:
    head = bytes((stream_id,)) + kind.to_bytes(dialect.type_width, "big")
    return [wire[len(head) :] for wire in wires if wire.startswith(head)]


def assert_same_credit(available: int, window: ReceiveWindow) -> None:
    assert available == window.available


class ShippedModel(NativeModel):
    dialect = JS_WS


TestNativeModel = NativeModel.TestCase
TestNativeModel.settings = settings(max_examples=examples(80), stateful_step_count=60)
TestShippedModel = ShippedModel.TestCase
TestShippedModel.settings = settings(max_examples=examples(40), stateful_step_count=60)


class TestNativeModelForLong(LongRun):
    model = NativeModel


class TestShippedModelForLong(LongRun):
    model = ShippedModel
