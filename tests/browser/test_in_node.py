"""Pair the browser's module, in Node, with the server's machine: neither ever complains.

Each message is handed over when the test says so, so that a page may be as late as it likes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from wsmux.config import SMALLEST_WINDOW
from wsmux.protocols import events as ev
from wsmux.protocols.base import Role
from wsmux.protocols.native import NativeProtocol

from ..helpers.browser.node_page import NodePage, node_page
from ..helpers.machine_pairs import (
    ACK,
    CLOSE,
    DATA,
    ERROR,
    READ,
    WRITE,
    message,
    native,
    outbox,
    uint32,
)

pytestmark = [pytest.mark.tools, pytest.mark.hang_bound(180.0)]

WINDOW = 256 * 1024
OPENING = uint32(WINDOW)
CODE = b"\x40\x45"

# Take the next stream of the server's, and read it to its end as text.
TAKE = "const { value: stream } = await mux.incomingBidirectionalStreams.getReader().read();"
TEXT = "return [stream.id, await new Response(stream.readable).text()];"


@pytest.fixture(scope="module")
def node() -> Iterator[NodePage]:
    with node_page() as page:
        yield page


@pytest.fixture
def page(node: NodePage) -> NodePage:
    node.connect()
    return node


def taken(page: NodePage, *messages: bytes) -> list[bytes]:
    """Hand over messages; return what the page has sent."""
    for each in messages:
        page.take(each)
    sent, page.sent[:] = list(page.sent), []
    return sent


# What comes before the page takes a stream


def test_what_came_early_is_read_when_the_page_takes_the_stream(page: NodePage) -> None:
    early = [message(1, ACK, OPENING), message(1, DATA, b"la"), message(1, DATA, b"te")]
    assert taken(page, *early) == []
    page.run(f"{TAKE} globalThis.stream = stream; globalThis.text = new Response(stream.readable);")
    assert taken(page) == [message(1, ACK, OPENING)]
    assert taken(page, message(1, CLOSE, READ)) == [message(1, CLOSE, WRITE)]
    assert page.run("return text.text()") == "late"


@pytest.mark.parametrize("window", [10, SMALLEST_WINDOW, 2 * SMALLEST_WINDOW])
def test_what_may_be_early_is_the_window_but_16_kib_at_most(page: NodePage, window: int) -> None:
    page.connect(receiveWindow=window)
    early = min(window, SMALLEST_WINDOW)
    assert taken(page, message(1, ACK, OPENING), message(1, DATA, bytes(early))) == []
    assert taken(page, message(1, DATA, b"x")) == [message(1, ERROR, WRITE + b"\x02")]


def test_early_bytes_are_part_of_the_window(page: NodePage) -> None:
    page.connect(receiveWindow=SMALLEST_WINDOW + 10)
    taken(page, message(1, ACK, OPENING), message(1, DATA, bytes(SMALLEST_WINDOW)))
    page.run(TAKE)
    assert taken(page) == [message(1, ACK, uint32(SMALLEST_WINDOW + 10))]
    assert taken(page, message(1, DATA, bytes(10))) == []
    assert taken(page, message(1, DATA, b"x")) == [message(1, ERROR, WRITE + b"\x02")]


@pytest.mark.parametrize(
    ("ends", "answers"),
    [
        ([(CLOSE, READ)], [(CLOSE, WRITE), (ACK, OPENING)]),
        ([(CLOSE, READ), (CLOSE, WRITE)], [(CLOSE, WRITE), (CLOSE, READ)]),
        ([(CLOSE, WRITE), (CLOSE, READ)], [(CLOSE, READ), (CLOSE, WRITE)]),
        ([(CLOSE, READ), (ERROR, WRITE + CODE)], [(CLOSE, WRITE), (ERROR, READ + CODE)]),
    ],
)
@pytest.mark.parametrize("said", [b"", b"all of it"])
def test_a_stream_that_came_whole_before_it_was_taken_can_be_read(
    page: NodePage,
    ends: list[tuple[int, bytes]],
    answers: list[tuple[int, bytes]],
    said: bytes,
) -> None:
    taken(page, message(1, ACK, OPENING), *([message(1, DATA, said)] if said else []))
    sent = taken(page, *(message(1, kind, body) for kind, body in ends))
    assert page.run(TAKE + TEXT) == [1, said.decode()]
    assert sent + taken(page) == [message(1, kind, body) for kind, body in answers]


def test_a_stream_that_came_whole_outlives_an_orderly_end(page: NodePage) -> None:
    taken(page, message(1, ACK, OPENING), message(1, DATA, b"whole"), message(1, CLOSE, READ))
    taken(page, message(3, ACK, OPENING), message(3, DATA, b"half"))
    page.run("socket.onclose({ code: 1000, reason: '', wasClean: true })")
    told = page.run(
        """
        const all = [];
        for await (const stream of mux.incomingBidirectionalStreams) {
          all.push(await new Response(stream.readable).text());
        }
        return all;
        """
    )
    assert told == ["whole"]


def test_a_stream_that_is_not_taken_in_time_is_refused_whole_or_not(page: NodePage) -> None:
    page.connect(openTimeout=100)
    taken(page, message(1, ACK, OPENING), message(1, DATA, b"early"))
    taken(page, message(3, ACK, OPENING), message(3, CLOSE, READ))
    taken(page, message(5, ACK, OPENING), message(5, CLOSE, READ), message(5, CLOSE, WRITE))
    page.run("elapse(99)")
    assert taken(page) == []
    page.run("elapse(1)")
    refused = [(1, READ), (1, WRITE), (3, READ)]
    assert taken(page) == [message(each, ERROR, half + b"\x03") for each, half in refused]
    assert taken(page, message(1, DATA, b"late"), message(7, ACK, OPENING)) == []
    assert page.run(TAKE + "return stream.id") == 7


def test_short_messages_that_wait_to_be_read_are_joined(page: NodePage) -> None:
    taken(page, message(1, ACK, OPENING))
    sizes = page.run(
        """
        for (let i = 0; i < 1200; i++) socket.onmessage({ data: Uint8Array.of(1, 0, i).buffer });
        socket.onmessage({ data: new Uint8Array([1, 0, ...Array(512).fill(0)]).buffer });
        const { value } = await mux.incomingBidirectionalStreams.getReader().read();
        const reader = value.readable.getReader(), sizes = [];
        for (let left = 1200 + 512, at = 0; left;) {
          const { value } = await reader.read();
          const exact = value.every((byte) => at >= 1200 || byte === (at++ & 255));
          if (!exact) throw new Error(`at ${at}`);
          sizes.push(value.length);
          left -= value.length;
        }
        return sizes;
        """
    )
    assert sizes == [512, 512, 176, 512]


def test_writers_of_many_streams_fill_the_browser_up_to_its_limit(page: NodePage) -> None:
    taken(page, message(1, ACK, OPENING))
    queued = page.run(
        """
        const send = socket.send.bind(socket);
        socket.send = (message) => { socket.bufferedAmount += message.length; send(message); };
        const streams = [];
        while (streams.length < 200) streams.push(await mux.createBidirectionalStream());
        for (const { writable } of streams) writable.getWriter().write(new Uint8Array(16384));
        await new Promise((done) => setImmediate(done));
        const first = socket.bufferedAmount;
        socket.bufferedAmount = 0;
        socket.onmessage({ data: Uint8Array.of(1, 0, 0).buffer });
        await new Promise((done) => setImmediate(done));
        return [first, socket.bufferedAmount];
        """
    )
    for each in queued:
        assert 2**20 <= each < 2**20 + 2**15


# A writer that waits, since the browser's queue is full.
WAITING = """
const writer = (await mux.createBidirectionalStream()).writable.getWriter();
socket.bufferedAmount = 2 ** 20;
globalThis.written = writer.write(encode("waited"));
await new Promise((done) => setImmediate(done));
"""


def test_a_writer_that_waits_for_room_looks_by_timers_that_make_no_chain() -> None:
    look = """
    const count = chains().length;
    elapse(4);
    while (chains().length < count) await new Promise((done) => setImmediate(done));
    return Math.max(...chains());
    """
    with node_page() as page:  # of its own: others leave timers behind
        page.connect()
        taken(page, message(1, ACK, OPENING))
        page.run(WAITING)
        assert [page.run(look) for _ in range(10)] == [1] * 10
        page.run("socket.bufferedAmount = 0; elapse(4); await written;")
        assert message(0, DATA, b"waited") in taken(page)


def test_a_writer_that_waits_for_room_looks_when_a_message_comes(page: NodePage) -> None:
    taken(page, message(1, ACK, OPENING))
    page.run(WAITING + "socket.bufferedAmount = 0;")
    taken(page)
    assert taken(page, message(1, DATA, b"x")) == [message(0, DATA, b"waited")]


@pytest.mark.parametrize("refuses", ["cancelled", "too many"])
def test_what_is_early_on_a_stream_that_is_refused_is_dropped(page: NodePage, refuses: str) -> None:
    if refuses == "cancelled":
        page.run("await mux.incomingBidirectionalStreams.cancel()")
    else:
        page.connect(maxUnaccepted=1)
        taken(page, message(1, ACK, OPENING))
    refused = [message(3, ERROR, READ + b"\x03"), message(3, ERROR, WRITE + b"\x03")]
    early = message(3, DATA, bytes(SMALLEST_WINDOW))
    assert taken(page, message(3, ACK, OPENING), early) == refused
    assert page.closed is None


def test_a_stream_that_the_page_cancels_drops_what_is_under_way(page: NodePage) -> None:
    taken(page, message(1, ACK, OPENING), message(1, DATA, b"early"))
    page.run(f"{TAKE} await stream.readable.cancel();")
    expected = [message(1, ACK, OPENING), message(1, CLOSE, WRITE)]
    assert taken(page, message(1, DATA, bytes(WINDOW - 5))) == expected
    assert page.closed is None


# What the page sends before it is answered

WRITTEN = """
    const stream = await mux.createBidirectionalStream(), writer = stream.writable.getWriter();
    writer.write(encode("0123456789")).catch(() => {});
"""


def test_a_page_that_has_heard_of_no_window_waits(page: NodePage) -> None:
    page.run(WRITTEN)
    assert taken(page) == [message(0, ACK, OPENING)]
    assert taken(page, message(0, ACK, uint32(4))) == [message(0, DATA, b"0123")]


@pytest.mark.parametrize("windows", [(4, 9), (9, 4), (0, 9), (9, 0)])
def test_a_page_sends_as_much_as_the_smallest_window(
    page: NodePage, windows: tuple[int, int]
) -> None:
    for stream_id, window in zip((1, 3), windows, strict=True):
        taken(page, message(stream_id, ACK, uint32(window)))
    page.run(WRITTEN)
    early = b"0123456789"[: min(windows)]
    assert taken(page) == [message(0, ACK, OPENING), *([message(0, DATA, early)] if early else [])]
    rest = b"0123456789"[min(windows) : 9]
    assert taken(page, message(0, ACK, uint32(9))) == [message(0, DATA, rest)]


# Anything


SIZES = st.sampled_from([1, 5, 24, 5000, SMALLEST_WINDOW, 20_000])
MAX_OPENS = 20  # a side: ids stay below 64, one byte on the wire

PRELUDE = """
globalThis.held = new Map();
globalThis.keep = (stream) => {
  const reader = stream.readable.getReader(), writer = stream.writable.getWriter();
  for (const half of [reader, writer]) half.closed.catch(() => {});
  held.set(stream.id, { reader, writer, got: [], done: false, over: false });
};
globalThis.incoming = mux.incomingBidirectionalStreams.getReader();
incoming.closed.catch(() => {});
globalThis.open = () => mux.createBidirectionalStream().then(keep, () => {});
globalThis.take = () => incoming.read().then(({ value }) => { if (value) keep(value); }, () => {});
globalThis.write = (id, size) => {
  const entry = held.get(id);
  if (!entry || entry.over) return;  // Node fails in itself, of a write behind a close
  entry.writer.write(Uint8Array.from({ length: size }, (_, at) => at)).catch(() => {});
};
globalThis.finish = (id, half, how) => {
  const entry = held.get(id);
  if (!entry) return;
  entry.over ||= half === "writer";
  entry[half][how]().catch(() => {});
};
globalThis.read = async (id) => {
  const entry = held.get(id);
  const { value, done } = await entry.reader.read().catch(() => ({}));
  entry.done ||= done === true;
  if (value) entry.got.push(...value);
};
"""


class PagePairing(RuleBasedStateMachine):
    page: NodePage
    streams = Bundle("streams")

    @initialize(target=streams, ours=SIZES, theirs=SIZES, acquainted=st.booleans())
    def start(self, ours: int, theirs: int, acquainted: bool) -> object:
        self.page.connect(receiveWindow=theirs, openTimeout=2**31 - 1)
        self.page.run(PRELUDE)
        self.server: NativeProtocol = native(Role.SERVER, receive_window=ours)
        self.flying: deque[bytes] = deque()  # to the page
        self.heard: deque[bytes] = deque()  # from it
        self.opened = dict.fromkeys(Role, 0)
        self.written: dict[int, bytearray] = {}  # by the server
        self.came: dict[int, bytearray] = {}  # to the server
        self.unread: dict[int, int] = {}
        self.closed: set[int] = set()  # whose writing half the server has ended cleanly
        self.torn: set[int] = set()
        self.left: deque[int] = deque()  # streams of the page's that the server has not answered
        if not acquainted:
            return multiple()
        first = [self.page_opens(1), self.server_opens(1)]
        self.page_takes()
        self.settle("taken")
        return multiple(*first)

    def ask(self, script: str) -> None:
        self.page.run(script)
        self.heard.extend(taken(self.page))

    # What the page does; it does not wait for any of it

    @rule(target=streams, size=SIZES)
    def page_opens(self, size: int) -> object:
        if self.opened[Role.CLIENT] == MAX_OPENS:
            return multiple()
        self.opened[Role.CLIENT] += 1
        self.ask("open()")
        stream_id = 2 * self.opened[Role.CLIENT] - 2
        self.page_writes(stream_id, size)
        return stream_id

    @rule()
    def page_takes(self) -> None:
        self.ask("take()")

    @rule(stream_id=streams)
    def page_reads(self, stream_id: int) -> None:
        self.ask(f"if (held.has({stream_id})) read({stream_id})")

    @rule(stream_id=streams, size=SIZES)
    def page_writes(self, stream_id: int, size: int) -> None:
        self.ask(f"write({stream_id}, {size})")

    @rule(stream_id=streams, end=st.sampled_from(["writer close", "writer abort", "reader cancel"]))
    def page_ends(self, stream_id: int, end: str) -> None:
        half, how = end.split()
        if half == "reader":
            self.torn.add(stream_id)
        self.ask(f"finish({stream_id}, '{half}', '{how}')")

    # What the server does

    @rule(target=streams, size=SIZES)
    def server_opens(self, size: int) -> object:
        if self.opened[Role.SERVER] == MAX_OPENS:
            return multiple()
        self.opened[Role.SERVER] += 1
        stream_id = self.server.open_stream()
        self.written[stream_id] = bytearray()
        self.server_writes(stream_id, size)
        return stream_id

    @rule(stream_id=streams, size=SIZES)
    def server_writes(self, stream_id: int, size: int) -> None:
        if stream_id in self.written and self.server.credit(stream_id):
            start = len(self.written[stream_id])
            data = bytes(at % 251 for at in range(start, start + size))
            self.written[stream_id] += data[: self.server.send_data(stream_id, data)]

    @rule(stream_id=streams, size=SIZES)
    def server_reads(self, stream_id: int, size: int) -> None:
        if stream_id not in self.left and (count := min(size, self.unread.get(stream_id, 0))):
            self.unread[stream_id] -= count
            self.server.consumed(stream_id, count)

    @rule(stream_id=streams, end=st.sampled_from(["close", "close_write", "reset", "stop"]))
    def server_ends(self, stream_id: int, end: str) -> None:
        if stream_id not in self.written:
            return
        if end in ("close", "close_write"):
            if stream_id not in self.torn:
                self.closed.add(stream_id)
            self.server.close_write(stream_id, 0.0)
        if end in ("close", "stop"):
            self.server.close_read(stream_id)
        if end == "reset":
            if stream_id not in self.closed:
                self.torn.add(stream_id)
            self.server.reset_write(stream_id, 64)
            self.server.reset_read(stream_id, 64)
        self.collect()

    @precondition(lambda self: self.left)
    @rule(refusing=st.booleans())
    def server_answers(self, refusing: bool) -> None:
        stream_id = self.left.popleft()
        if refusing:
            self.torn.add(stream_id)
            self.server.refuse(stream_id, 3)
        else:
            self.written[stream_id] = bytearray()
            self.server.accept(stream_id, self.server.config.receive_window)
        self.collect()

    @rule(chance=st.integers(0, 9))
    def server_goes_away(self, chance: int) -> None:
        if chance == 0:
            self.server.go_away(0)

    def collect(self) -> None:
        for event in self.server.events():
            if isinstance(event, ev.StreamOpened):
                self.left.append(event.stream_id)
                self.came[event.stream_id] = bytearray()
            elif isinstance(event, ev.DataReceived):
                self.came.setdefault(event.stream_id, bytearray()).extend(event.data)
                self.unread[event.stream_id] = self.unread.get(event.stream_id, 0) + len(event.data)
            elif isinstance(event, ev.StreamAborted):
                assert not event.local, event.detail
            elif isinstance(event, ev.WriteStopped | ev.StreamRejected):
                assert event.code != 2, "the page says that it was sent too much"
                self.torn.add(event.stream_id)

    # What the wires do

    @rule(count=st.integers(1, 6))
    def page_hears(self, count: int) -> None:
        self.flying.extend(outbox(self.server))
        for _ in range(min(count, len(self.flying))):
            self.heard.extend(taken(self.page, self.flying.popleft()))

    @rule(count=st.integers(1, 6))
    def server_hears(self, count: int) -> None:
        for _ in range(min(count, len(self.heard))):
            self.server.receive_data(self.heard.popleft())
            self.collect()

    @rule(answer=st.sampled_from(["taken", "refused", "left"]))
    def settle(self, answer: str) -> None:
        moving = True
        while moving:
            self.page_hears(len(self.flying))
            self.server_hears(len(self.heard))
            while self.left and answer != "left":
                self.server_answers(answer == "refused")
            self.flying.extend(outbox(self.server))
            moving = bool(self.flying or self.heard)

    # What always holds

    @invariant()
    def the_page_does_not_complain(self) -> None:
        assert self.page.closed is None

    def teardown(self) -> None:
        """Have the page take and read what is there: a prefix of what was written, or all of it."""
        if not hasattr(self, "server"):
            return
        for _ in range(MAX_OPENS):
            self.ask("take()")
        self.settle("taken")
        for _ in range(40):  # reads: a stream has no more chunks
            self.ask("held.forEach((_, id) => { read(id) })")
            self.settle("taken")
        self.the_page_does_not_complain()
        told = self.page.run("return Array.from(held, ([id, { got, done }]) => [id, got, done])")
        for stream_id, got, done in told:
            written = self.written.get(stream_id, b"")
            assert bytes(written).startswith(bytes(got))
            assert not done or stream_id in self.torn or bytes(got) == written
        for came in self.came.values():
            assert set(came) <= set(range(256))
        ended = {stream_id for stream_id, _, done in told if done}
        assert self.closed - self.torn - ended <= {0}


def test_no_legal_sequence_makes_either_side_complain(node: NodePage) -> None:
    pairing = type("Pairing", (PagePairing,), {"page": node})
    run_state_machine_as_test(
        pairing,
        settings=settings(
            max_examples=40,
            stateful_step_count=50,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
