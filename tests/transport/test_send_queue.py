"""The send queue alone, over a socket that takes what the test lets it take."""

from __future__ import annotations

import errno
import select
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from types import FrameType, SimpleNamespace

import pytest

import wsmux
from wsmux.config import KIB
from wsmux.protocols.base import Buffer, Message, Role
from wsmux.protocols.framing import NoFraming, Opcode
from wsmux.protocols.resumable_framing import ResumableFraming
from wsmux.protocols.resumption import SESSION_SIZE, Session
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.parking import Parker, Waiter
from wsmux.transport.fair_queue import MIN_QUANTUM, QUICK, FlowState, Frame
from wsmux.transport.message_transport import FrameReader, PeerLimits
from wsmux.transport.send_queue import (
    BATCH_BYTES,
    BATCH_FRAMES,
    HEAD,
    MAX_PONGS,
    TURN,
    SendInterrupted,
    SendQueue,
)
from wsmux.transport.socket_io import PlainSocket, Socket, Wakeup

# One goes to the socket at a time; two fill the queue.
FRAME = BATCH_BYTES
CONFIG = wsmux.Config(max_frame_size=FRAME, max_send_queue=2 * FRAME, max_control_frames=3)


class Valve(PlainSocket):
    """Take ``room`` bytes, and keep them."""

    def __init__(self) -> None:
        self.room = 0
        self.taken = b""
        self.failure: BaseException | None = None
        self.on_the_way = 0
        self.closed = False
        self.limits: list[int] = []

    def unacknowledged(self) -> int:
        return self.on_the_way

    def close(self) -> None:
        self.closed = True

    def send(self, pieces: Sequence[Buffer]) -> int | None:
        if self.failure is not None:
            raise self.failure
        part = b"".join(pieces)[: self.room]
        self.room -= len(part)
        self.taken += part
        return len(part) or None

    def limit_unsent(self, count: int) -> None:
        self.limits.append(count)


class Words(NoFraming):
    """Write control frames as words."""

    def encode(self, message: Message, kind: Opcode = Opcode.BINARY) -> list[Buffer]:
        pieces = super().encode(message)
        return pieces if kind is Opcode.BINARY else [f"{kind.name} ".encode(), *pieces]

    def encode_control(self, kind: Opcode, payload: bytes) -> bytes:
        return f"{kind.name} {payload.decode()};".encode()


class Note(Parker):
    """Note that it has rung."""

    def __init__(self, number: int, rung: list[int]) -> None:
        self._number, self._rung = number, rung

    def unpark(self) -> None:
        self._rung.append(self._number)

    def park(self, deadline: Deadline) -> None:
        raise AssertionError("nobody sleeps here")


class Writer(Waiter):
    """Wait for room without a thread."""

    def __init__(self, number: int, rung: list[int]) -> None:
        super().__init__()
        self._parker = Note(number, rung)


class Stand:
    """Hold a queue whose socket takes nothing yet.

    Attributes:
        rung: the numbers of the writers that were woken, in order.
    """

    def __init__(self, io_thread: Wakeup) -> None:
        self.valve = Valve()
        self.io_thread = io_thread
        self.mutex = threading.Lock()
        self.queue = SendQueue(self.valve, Words(), CONFIG, self.mutex, io_thread)
        self.rung: list[int] = []

    def add(self, count: int, size: int = FRAME) -> None:
        """Queue frames of data."""
        with self.mutex:
            for _ in range(count):
                self.queue.add_data_locked([(bytes(size), b"")])

    def pong(self, payloads: list[bytes]) -> None:
        with self.mutex:
            for payload in payloads:
                self.queue.add_pong_locked(payload)

    def wait(self, count: int) -> None:
        """Add so many writers that wait for room."""
        with self.mutex:
            for number in range(count):
                self.queue.ask_room_locked(Writer(number, self.rung))

    def let_out(self, size: int) -> bytes:
        """Send while the socket takes so many bytes more; return what it took."""
        self.valve.room += size
        self.valve.taken = b""
        self.queue.flush(0, None, None)
        return self.valve.taken


@pytest.fixture
def io_thread() -> Iterator[Wakeup]:
    made = Wakeup()
    yield made
    made.close()


@pytest.fixture
def stand(io_thread: Wakeup) -> Iterator[Stand]:
    made = Stand(io_thread)
    yield made
    made.queue.finish()


def numbered(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


# Pongs


@pytest.mark.parametrize("more", [0, 1, 500])
def test_of_too_many_pongs_the_oldest_go(stand: Stand, more: int) -> None:
    stand.add(1)
    assert stand.let_out(0) == b""
    payloads = numbered(MAX_PONGS + more)
    stand.pong(payloads)
    kept = b"".join(b"PONG %s;" % payload for payload in payloads[more:])
    assert stand.let_out(FRAME + 64 * KIB) == bytes(FRAME) + kept


def test_thirty_two_pongs_are_kept() -> None:
    assert MAX_PONGS == 32


# Room


def test_writers_go_on_when_frames_leave_the_queue(stand: Stand) -> None:
    """Who sends wakes them: a turn for the first byte of room, and one for each frame of it."""
    stand.add(4)
    stand.wait(6)
    stand.let_out(FRAME)  # a second frame is with the socket, and two fill the queue
    assert stand.rung == []
    stand.let_out(FRAME)
    assert stand.rung == [0, 1]
    stand.let_out(FRAME)
    assert stand.rung == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("left", "woken"), [(0, [0]), (1, [0]), (2, [])])
def test_a_writer_goes_on_while_the_queue_has_a_byte_of_room(
    stand: Stand, left: int, woken: list[int]
) -> None:
    """What is left in the queue falls short of its limit by two bytes, by one, or by none."""
    stand.add(2)
    stand.add(1, FRAME - 2 + left)
    stand.wait(2)
    stand.let_out(0)
    assert stand.rung == woken


@pytest.mark.parametrize(("size", "room"), [(2 * FRAME - 1, True), (2 * FRAME, False)])
def test_the_queue_has_room_up_to_its_limit(stand: Stand, size: int, room: bool) -> None:
    stand.add(1, size)
    with stand.mutex:
        assert stand.queue.has_room_locked(waited=False) is room


def test_who_has_not_waited_goes_behind_who_has(stand: Stand) -> None:
    stand.wait(1)
    with stand.mutex:
        assert not stand.queue.has_room_locked(waited=False)
        assert stand.queue.has_room_locked(waited=True)


def test_a_writer_waits_in_one_place_of_the_line_alone(stand: Stand) -> None:
    writer = Writer(0, stand.rung)
    with stand.mutex:
        stand.queue.ask_room_locked(writer)
        stand.queue.ask_room_locked(writer)
        assert stand.queue.waiting_locked() == 1


def test_everybody_is_roused_once(stand: Stand) -> None:
    stand.wait(3)
    wakes: list[Parker] = []
    with stand.mutex:
        stand.queue.notify_forced_locked(wakes)
        assert (stand.queue.waiting_locked(), len(wakes)) == (0, 3)


@pytest.mark.parametrize(
    ("queued", "waiting", "waited", "turn"),
    [
        (0, 0, False, FRAME),
        (2 * FRAME - 1, 0, False, FRAME),
        (2 * FRAME, 0, False, 0),
        (2 * FRAME, 1, True, 0),
        (0, 1, False, 0),
        (0, 1, True, FRAME),
    ],
)
def test_a_turn_needs_room_and_nobody_who_came_before(
    stand: Stand, queued: int, waiting: int, waited: bool, turn: int
) -> None:
    if queued:
        stand.add(1, queued)
    stand.wait(waiting)
    with stand.mutex:
        assert stand.queue.quantum_locked(FlowState(), FRAME, waited) == turn


@pytest.mark.parametrize("waiting", [0, 1])
@pytest.mark.parametrize(("size", "turn"), [(QUICK - HEAD, FRAME), (QUICK - HEAD + 1, 0)])
def test_a_short_message_has_its_turn_at_once(
    stand: Stand, waiting: int, size: int, turn: int
) -> None:
    """With its head it may have as many bytes as go before the line."""
    stand.add(2)
    stand.wait(waiting)
    with stand.mutex:
        assert stand.queue.quantum_locked(FlowState(), size, False) == turn


class Asleep(Waiter):
    """Look at the queue while the wait lasts, and leave with an error, if there is one."""

    def __init__(self, stand: Stand, error: type[BaseException] | None) -> None:
        super().__init__()
        self._stand, self._error = stand, error
        self.seen: list[object] = []

    def wait(self, mutex: threading.Lock, deadline: Deadline, park: object = None) -> None:
        queue = self._stand.queue
        self.seen = [mutex, deadline, queue.waiters_locked(), queue.has_waiting_writers()]
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_who_waits_for_room_is_in_the_line_as_long_as_that(
    stand: Stand, error: type[BaseException] | None
) -> None:
    waiter, deadline = Asleep(stand, error), Deadline(None)
    with stand.mutex, pytest.raises(error) if error else nullcontext():
        stand.queue.wait_room_locked(waiter, deadline)
    assert waiter.seen == [stand.mutex, deadline, {waiter}, True]
    with stand.mutex:
        assert (stand.queue.waiting_locked(), stand.queue.has_waiting_writers()) == (0, False)


# Answers that the peer caused


@pytest.mark.parametrize(("count", "fine"), [(3, True), (4, False)])
def test_so_many_provoked_answers_may_wait(stand: Stand, count: int, fine: bool) -> None:
    with stand.mutex:
        answer: Message = (b"answer", b"")
        assert stand.queue.add_control_locked([answer] * count, solicited=True) is fine


@pytest.mark.parametrize(("size", "fine"), [(0, True), (1, False)])
def test_so_many_bytes_of_provoked_answers_may_wait(stand: Stand, size: int, fine: bool) -> None:
    with stand.mutex:
        answer: Message = (bytes(CONFIG.max_control_bytes), bytes(size))
        assert stand.queue.add_control_locked([answer], solicited=True) is fine


def test_bytes_of_provoked_answers_add_up(stand: Stand) -> None:
    half: Message = (bytes(CONFIG.max_control_bytes // 2), b"")
    with stand.mutex:
        assert stand.queue.add_control_locked([half, half], solicited=True)
        assert not stand.queue.add_control_locked([(b"x", b"")], solicited=True)


def test_answers_that_went_out_do_not_count(stand: Stand) -> None:
    for _ in range(3):
        with stand.mutex:
            assert stand.queue.add_control_locked([(b"answer", b"")] * 3, solicited=True)
        assert stand.let_out(100) == 3 * b"answer"


def test_own_control_frames_do_not_count(stand: Stand) -> None:
    with stand.mutex:
        assert stand.queue.add_control_locked([(b"own", b"")] * 4)


# The order


def test_control_frames_go_first_and_pongs_behind_them(stand: Stand) -> None:
    stand.add(1, 1)
    stand.pong([b"x"])
    with stand.mutex:
        stand.queue.add_control_locked([(b"first;", b""), (b"second;", b"")])
        stand.queue.add_control_locked([(b"y", b"")], Opcode.PING)
    assert stand.let_out(100) == b"first;second;PING y;PONG x;\0"


def test_at_most_a_batch_of_frames_is_with_the_socket(stand: Stand) -> None:
    stand.add(BATCH_FRAMES + 1, 1)
    stand.let_out(0)
    with stand.mutex:
        assert stand.queue.queued_bytes_locked() == 1


def test_a_batch_ends_with_the_frame_that_fills_it(stand: Stand) -> None:
    stand.add(1, BATCH_BYTES - 1)
    stand.add(2, 2)
    stand.let_out(0)
    with stand.mutex:
        assert stand.queue.queued_bytes_locked() == 2


def test_a_batch_is_as_large_where_frames_are_small(stand: Stand) -> None:
    config = wsmux.Config(max_frame_size=1000)
    stand.queue = SendQueue(stand.valve, Words(), config, stand.mutex, stand.io_thread)
    stand.add(3, 1000)
    stand.let_out(0)
    with stand.mutex:
        assert stand.queue.queued_bytes_locked() == 0


@pytest.mark.parametrize("sizes", [(2, 1, 4, 1, 3, 1), (3, 3, 3, 3), (6, 3, 3), (11, 1)])
def test_a_frame_cut_by_the_socket_goes_on_where_it_was_cut(
    stand: Stand, sizes: tuple[int, ...]
) -> None:
    with stand.mutex:
        stand.queue.add_data_locked([(b"abc", b"def"), (b"ghi", b"jkl")])
    assert b"".join(stand.let_out(size) for size in sizes) == b"abcdefghijkl"
    assert stand.queue.bytes_sent == 12
    assert not stand.queue.has_output()


def test_what_a_stream_has_in_line_is_not_overtaken_by_itself(stand: Stand) -> None:
    flow = FlowState()
    with stand.mutex:
        stand.queue.ask_room_locked(Writer(0, []))
        first = stand.queue.add_data_locked([(b"bulk;", bytes(QUICK))], flow=flow)
        second = stand.queue.add_data_locked([(b"short;", b"")], flow=flow)
        other = stand.queue.add_data_locked([(b"quick;", b"")], flow=FlowState())
        assert stand.queue.queued_bytes_locked() == len(b"bulk;short;quick;") + QUICK
    assert (first, second, other) == (1, 2, 0)
    assert stand.let_out(FRAME) == b"quick;bulk;" + bytes(QUICK) + b"short;"


def test_each_kind_of_frame_is_encoded_as_such(stand: Stand) -> None:
    shown: list[Frame] = []
    stand.queue.tap = shown.extend
    frames = [
        (Opcode.BINARY, b"a"),
        (Opcode.TEXT, b"b"),
        (Opcode.CLOSE, b"c"),
        (Opcode.BINARY, b"d"),
    ]
    with stand.mutex:
        for kind, text in frames:
            stand.queue.add_data_locked([(text, b"")], kind)
    assert stand.let_out(100) == b"aTEXT bCLOSE c;d"
    assert [(kind, message[0]) for kind, message, _ in shown] == frames


def test_a_pong_is_shown_as_it_goes_out(stand: Stand) -> None:
    shown: list[Frame] = []
    stand.queue.tap = shown.extend
    stand.pong([b"x"])
    assert stand.let_out(100) == b"PONG x;"
    assert shown == [(Opcode.PONG, (b"x", b""), 0)]


def test_what_the_carrier_has_no_word_for_leaves_nothing_to_do(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Words, "encode_control", lambda *_: b"")
    stand.pong([b"x"])
    assert stand.queue.flush(0, None, None) is True
    assert stand.queue.wants_io is False
    assert not stand.queue.has_output()


# After the end


def test_a_new_queue_is_open_and_has_sent_nothing(stand: Stand) -> None:
    queue = stand.queue
    assert [queue.closed, queue.wants_io, queue.blocked] == [False] * 3
    assert (queue.bytes_sent, queue.sent) == (0, 0)
    assert queue.holder_waits_locked() is False


def test_what_comes_behind_a_close_has_the_ticket_of_the_last_frame(stand: Stand) -> None:
    stand.add(2)
    stand.queue.closed = True
    with stand.mutex:
        assert stand.queue.add_data_locked([(b"late", b"")]) == 2


def test_nothing_is_queued_behind_a_close(stand: Stand) -> None:
    stand.queue.closed = True
    stand.add(1)
    stand.pong([b"x"])
    with stand.mutex:
        assert stand.queue.add_control_locked([(b"late", b"")] * 4, solicited=True)
    assert not stand.queue.has_output()


def test_dropped_data_leaves_control_frames(stand: Stand) -> None:
    stand.add(1)
    with stand.mutex:
        stand.queue.add_control_locked([(b"close", b"")])
        stand.queue.drop_data_locked()
    assert stand.let_out(100) == b"close"


# What another thread does in the middle


def test_room_that_an_acknowledgement_makes_meanwhile_is_used(io_thread: Wakeup) -> None:
    """It comes between the look for room and its consequence."""

    class Acknowledged(Session):
        def room(self) -> int:
            room = super().room()
            if room <= 0 and queue.held_back:
                self.acknowledged_up_to(self.sent)
                queue.held_back = False  # as the I/O thread does, which sees that there is room
            return room

    session = Acknowledged(bytes(SESSION_SIZE), FRAME, 60.0)
    framing = ResumableFraming(Role.SERVER, 2 * FRAME, 1, session)
    valve, mutex = Valve(), threading.Lock()
    valve.room = 8 * FRAME
    queue = SendQueue(valve, framing, CONFIG, mutex, io_thread)
    with mutex:
        for _ in range(4):
            queue.add_data_locked([(bytes(FRAME), b"")])
    assert queue.flush(0, None, None)
    assert not queue.has_output()
    queue.finish()


def test_a_queue_that_fills_during_a_look_at_the_peer_is_timed(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who fills it has seen that the socket was full before, and so does not say it again."""
    framing = Words()
    limits = PeerLimits(CONFIG, framing, FrameReader(stand.valve, framing), stand.queue)
    stand.queue.blocked = True

    def has_output() -> bool:
        found = SendQueue.has_output(stand.queue)
        if not found:
            stand.add(1)
            stand.queue.flush(0, None, None)
        return found

    monkeypatch.setattr(stand.queue, "has_output", has_output)
    assert limits.look(0.0) is None
    assert (limits.sending, stand.queue.blocked) == (True, True)


# Tickets


def test_a_ticket_tells_when_its_frame_is_with_the_socket(stand: Stand) -> None:
    """What the socket was given in a batch counts when all of it was taken."""
    tickets = []
    for _ in range(2):
        with stand.mutex:
            tickets.append(stand.queue.add_data_locked([(bytes(FRAME), b"")]))
    assert tickets == [1, 2]
    seen = []
    for size in (0, FRAME - 1, 1, FRAME):
        stand.let_out(size)
        seen.append(stand.queue.sent)
    assert seen == [0, 0, 1, 2]


# Who sends


def test_what_does_not_go_out_is_left_to_the_io_thread(stand: Stand) -> None:
    stand.add(1)
    assert not stand.queue.flush(0, None, None)
    assert stand.queue.wants_io
    assert stand.queue.blocked
    assert select.select([stand.io_thread.fd], [], [], 0)[0]  # to time how long it takes
    stand.valve.room = FRAME
    assert stand.queue.flush(0, None, None)
    assert not stand.queue.wants_io


def test_who_finds_another_sending_leaves_it_to_that_one(stand: Stand) -> None:
    stand.add(1)
    stand.valve.room = FRAME
    with stand.queue._send_lock:
        assert stand.queue.flush(1, Deadline(None), None)
        assert stand.queue.has_output()
    stand.queue.flush(0, None, None)
    assert not stand.queue.has_output()


@pytest.mark.parametrize("ticket", [1, 2])
def test_a_sender_waits_for_its_own_frame_alone(stand: Stand, ticket: int) -> None:
    asked = []

    def given_up() -> bool:
        with stand.mutex:
            asked.append(stand.queue.holder_waits_locked())
        return True

    stand.add(2)
    stand.let_out(FRAME)
    assert not stand.queue.flush(ticket, Deadline(None), given_up)
    assert asked == ([] if ticket == 1 else [True])
    assert not stand.queue.holder_waits_locked()


def test_a_sender_out_of_time_does_not_wait(stand: Stand) -> None:
    stand.add(1)
    assert not stand.queue.flush(1, Deadline(0), None)


def test_a_sender_waits_until_the_socket_takes_more(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []

    def wait(sock: Socket, timeout: float | None, interrupt: int) -> None:
        assert sock is stand.valve
        with stand.mutex:
            assert stand.queue.holder_waits_locked()
            stand.queue.interrupt_locked()
        assert select.select([interrupt], [], [], 0)[0]
        waits.append(timeout)
        stand.valve.room = FRAME // 2

    monkeypatch.setattr("wsmux.transport.send_queue.wait_writable", wait)
    stand.add(1)
    assert stand.queue.flush(1, Deadline(60), lambda: False)
    assert [timeout is not None and 50 < timeout <= 60 for timeout in waits] == [True, True]
    assert stand.queue.holder_waits_locked() is False
    stand.add(1)
    stand.valve.failure = KeyboardInterrupt()
    with pytest.raises(SendInterrupted):  # since the wait is over
        stand.queue.flush(2, Deadline(60), None)


def test_an_interrupt_behind_a_wait_is_one_of_the_send(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*_: object) -> None:
        stand.valve.failure = KeyboardInterrupt()

    monkeypatch.setattr("wsmux.transport.send_queue.wait_writable", wait)
    stand.add(1)
    with pytest.raises(SendInterrupted):
        stand.queue.flush(1, Deadline(60), None)
    assert not stand.queue.has_output()


def test_an_interrupted_wait_leaves_the_frames_to_the_io_thread(stand: Stand) -> None:
    def interrupted() -> bool:
        raise KeyboardInterrupt

    stand.add(1)
    with pytest.raises(KeyboardInterrupt):
        stand.queue.flush(1, Deadline(None), interrupted)
    assert stand.queue.wants_io
    assert stand.let_out(FRAME) == bytes(FRAME)


@pytest.mark.parametrize("raises", [False, True], ids=["it returns", "it raises"])
def test_a_handler_of_a_signal_is_called_when_another_thread_can_send(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    """It ends the wait. What it does may need the send lock, and that somebody sends."""
    seen: list[object] = []

    def wait(sock: Socket, timeout: float | None, interrupt: int) -> None:
        stand.io_thread.clear()
        signal.raise_signal(signal.SIGUSR1)
        assert not seen
        assert select.select([interrupt], [], [], 0)[0]

    def handle(number: int, frame: FrameType | None) -> None:
        woken = bool(select.select([stand.io_thread.fd], [], [], 0)[0])
        seen.append((stand.queue._send_lock.locked(), stand.queue.wants_io, woken))
        stand.valve.room = FRAME
        if raises:
            raise KeyboardInterrupt

    monkeypatch.setattr("wsmux.transport.send_queue.wait_writable", wait)
    stand.add(1)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(KeyboardInterrupt) if raises else nullcontext():
            assert stand.queue.flush(1, Deadline(60), None)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [(False, True, True)]
    assert stand.valve.taken == (b"" if raises else bytes(FRAME))
    assert stand.queue.wants_io is raises


@pytest.mark.parametrize("raises", [False, True], ids=["it returns", "it raises"])
def test_a_failure_of_the_socket_is_told_though_a_signal_comes_with_it(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    """Part of the stream is lost, so the connection must end, even if the socket would go on."""
    failure = OSError(errno.ENOBUFS, "no buffers")

    def wait(*_: object) -> None:
        signal.raise_signal(signal.SIGUSR1)
        stand.valve.failure = failure

    def handle(number: int, frame: FrameType | None) -> None:
        if raises:
            raise KeyboardInterrupt

    monkeypatch.setattr("wsmux.transport.send_queue.wait_writable", wait)
    stand.add(1)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(OSError, match="interrupted" if raises else "no buffers") as caught:
            stand.queue.flush(1, Deadline(60), None)
    finally:
        signal.signal(signal.SIGUSR1, before)
    if raises:
        assert isinstance(caught.value, SendInterrupted)
        assert isinstance(caught.value.__cause__, KeyboardInterrupt)
    else:
        assert caught.value is failure


# Calls of the socket in which others queue one more frame each.
MANY = 10_000


class WideValve(Valve):
    """Take all, while others queue as fast as that."""

    def __init__(self, others: Callable[[], None]) -> None:
        super().__init__()
        self._others = others
        self.calls = 0

    def send(self, pieces: Sequence[Buffer]) -> int:
        self.calls += 1
        if self.calls < MANY:
            self._others()
        return sum(map(len, pieces))


class RefillingLock:
    """A lock upon whose release others queue one more frame."""

    def __init__(self, others: Callable[[], None]) -> None:
        self._others = others
        self._lock = threading.Lock()
        self.acquire = self._lock.acquire
        self.released = 0

    def release(self) -> None:
        self.released += 1
        if self.released < MANY:
            self._others()
        self._lock.release()


@pytest.mark.parametrize("before", [1, 5 * TURN, 5 * TURN + 1])
@pytest.mark.parametrize("timeout", [None, 0.0, 60.0], ids=["for others", "late", "in time"])
def test_a_sender_comes_back_though_others_queue_without_pause(
    stand: Stand, before: int, timeout: float | None
) -> None:
    """It sends its own frame, unless it is late, and a bounded number of others."""
    valve = WideValve(lambda: stand.add(1))
    stand.queue._socket = valve
    stand.add(before)
    ticket = 0
    if timeout is not None:
        with stand.mutex:
            ticket = stand.queue.add_data_locked([(bytes(FRAME), b"")])
    assert not stand.queue.flush(ticket, None if timeout is None else Deadline(timeout), None)
    assert stand.queue.wants_io
    if timeout:
        assert stand.queue.sent >= ticket
    assert valve.calls <= (ticket if timeout else 0) + TURN


def test_a_sender_comes_back_though_others_queue_whenever_it_leaves(stand: Stand) -> None:
    stand.valve.room = MANY * FRAME
    lock = RefillingLock(lambda: stand.add(1, 1))
    stand.queue._send_lock = lock  # type: ignore[assignment]
    stand.queue._try_lock = partial(lock.acquire, False)
    stand.add(1, 1)
    assert not stand.queue.flush(1, Deadline(60), None)
    assert stand.queue.wants_io
    assert lock.released == TURN + 1
    stand.queue._new_send_lock()


def test_a_sender_has_one_turn_though_it_leaves_in_the_middle_of_it(stand: Stand) -> None:
    valve = stand.queue._socket = WideValve(lambda: None)
    lock = RefillingLock(lambda: stand.add(TURN - 1))
    stand.queue._send_lock = lock  # type: ignore[assignment]
    stand.queue._try_lock = partial(lock.acquire, False)
    stand.add(1)
    assert not stand.queue.flush(1, Deadline(60), None)
    assert valve.calls == TURN
    stand.queue._new_send_lock()


def test_a_sender_out_of_turn_leaves_nothing_that_another_has_sent_before(stand: Stand) -> None:
    """That one does so between the look of the first at the queue and at the lock."""
    stand.valve.room = FRAME
    lock = RefillingLock(lambda: stand.add(1, 1))

    def acquire(blocking: bool) -> bool:
        if lock.released == TURN:
            lock.released = MANY  # nobody queues anything from here on
            assert stand.queue.flush(0, None, None)
        return lock.acquire(blocking)

    stand.queue._send_lock = lock  # type: ignore[assignment]
    stand.queue._try_lock = partial(acquire, False)
    stand.add(1, 1)
    assert stand.queue.flush(1, Deadline(60), None)
    assert lock.released == MANY + 2
    assert not stand.queue.has_output()
    assert not stand.queue.wants_io
    stand.queue._new_send_lock()


def test_a_slow_socket_is_given_small_turns(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr("wsmux.transport.send_queue.time", clock)
    stand.add(5, MIN_QUANTUM // 2)
    stand.let_out(0)
    assert stand.valve.limits == []
    clock.monotonic = lambda: 1.0
    stand.let_out(1)
    assert stand.valve.limits == [2 * MIN_QUANTUM]
    stand.let_out(5 * MIN_QUANTUM // 2 - 1)
    stand.add(3, MIN_QUANTUM // 2)
    stand.let_out(0)
    with stand.mutex:
        assert stand.queue.queued_bytes_locked() == MIN_QUANTUM // 2
        assert stand.queue.quantum_locked(FlowState(), FRAME, False) == MIN_QUANTUM


def test_a_socket_with_nothing_to_take_is_not_slow(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What passes between the end of one message and the next is nobody's fault."""
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr("wsmux.transport.send_queue.time", clock)
    for now in (0.0, 100.0):
        clock.monotonic = lambda now=now: now
        stand.add(1)
        stand.let_out(0)
        clock.monotonic = lambda now=now: now + 0.001
        assert len(stand.let_out(FRAME)) == FRAME
    assert stand.valve.limits == []
    with stand.mutex:
        assert stand.queue.quantum_locked(FlowState(), FRAME, False) == FRAME


def test_a_failed_send_voids_what_was_with_the_socket(stand: Stand) -> None:
    stand.add(1)
    stand.valve.failure = ConnectionResetError("gone")
    with pytest.raises(ConnectionResetError):
        stand.queue.flush(0, None, None)
    assert not stand.queue.has_output()
    stand.valve.failure = None
    stand.add(1, 1)
    assert stand.let_out(1) == b"\0"  # the send lock is free


def test_an_interrupted_send_is_the_end_and_says_so(stand: Stand) -> None:
    stand.add(1)
    stand.valve.failure = KeyboardInterrupt()
    with pytest.raises(
        SendInterrupted, match="^a send was interrupted in the middle, so"
    ) as caught:
        stand.queue.flush(0, None, None)
    assert isinstance(caught.value.__cause__, KeyboardInterrupt)
    assert not stand.queue.has_output()


def test_what_the_peer_has_taken_is_what_was_sent_and_acknowledged(stand: Stand) -> None:
    stand.add(1, 100)
    stand.let_out(100)
    stand.valve.on_the_way = 30
    assert stand.queue.taken_by_peer() == 70


# What there is


def has(stand: Stand, what: str) -> bool:
    """Queue one thing alone; return whether there is output."""
    with stand.mutex:
        if what == "line":
            stand.queue.add_data_locked([(b"x", b"")])
        elif what == "control":
            stand.queue.add_control_locked([(b"x", b"")])
        elif what == "pong":
            stand.queue.add_pong_locked(b"x")
        elif what == "quick":
            stand.queue.ask_room_locked(Writer(0, []))
            assert stand.queue.add_data_locked([(b"x", b"")], flow=FlowState()) == 0
    if what == "socket":
        stand.add(1)
        stand.let_out(1)
    return stand.queue.has_output()


@pytest.mark.parametrize("what", ["line", "quick", "control", "pong", "socket"])
def test_each_thing_alone_is_output_and_goes_out(stand: Stand, what: str) -> None:
    assert has(stand, what)
    stand.let_out(FRAME)
    assert not stand.queue.has_output()


def test_an_empty_queue_has_no_output(stand: Stand) -> None:
    assert not has(stand, "nothing")


@pytest.mark.parametrize("how", ["finish", "forked"])
def test_the_end_leaves_nothing_to_send(stand: Stand, how: str) -> None:
    for what in ("socket", "line", "quick", "control", "pong"):
        has(stand, what)
    if how == "finish":
        stand.queue.finish()
    else:
        stand.queue.forked(stand.mutex)
    assert stand.queue.closed
    assert not stand.queue.has_output()
    assert stand.queue.queued_bytes_locked() == 0
    assert stand.valve.closed is (how == "finish")
