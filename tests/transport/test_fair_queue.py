"""Short messages go before bulk; the order of a stream stays, and nobody starves."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.config import KIB
from wsmux.protocols.framing import Opcode
from wsmux.transport.fair_queue import QUICK, FairQueue, FlowState, Frame

TURN = 4 * QUICK


class Sender:
    """Queue frames of streams as the send queue does, and take them as it does.

    Attributes:
        waiting: streams that wait to come into the line.
        out: the stream, serial number and size of each frame taken, and whether it had overtaken.
    """

    def __init__(self) -> None:
        self.lanes = FairQueue(TURN)
        self.waiting = 0
        self.out: list[tuple[int, int, int, bool]] = []
        self._shares: defaultdict[int, FlowState] = defaultdict(FlowState)
        self._serial = count()
        self._overtaking: set[int] = set()

    def write(self, stream: int, size: int) -> bool:
        """Queue a frame; tell whether it overtakes."""
        share, serial = self._shares[stream], next(self._serial)
        frame: Frame = (Opcode.BINARY, (b"%d %d" % (stream, serial), b""), size)
        something = bool(self.lanes.old_flows or self.waiting)
        if something and self.lanes.may_overtake(share, size, self.waiting):
            self.lanes.overtake(frame, share)
            self._overtaking.add(serial)
            return True
        self.lanes.append_frame(frame, share)
        return False

    def take(self, size: int = 1, most: int = 32) -> int:
        frames: list[Frame] = []
        lined = self.lanes.take(frames, size, most)
        for _, (name, _), length in frames:
            stream, serial = map(int, name.split())
            self.out.append((stream, serial, length, serial in self._overtaking))
        return lined

    def streams_taken(self) -> list[int]:
        while self.lanes.size:
            self.take()
        return [stream for stream, *_ in self.out]


def in_line(*streams: int) -> Sender:
    """Return a sender with a whole turn of each stream in line."""
    sender = Sender()
    for stream in streams:
        sender.write(stream, TURN)
    return sender


def test_so_many_frames_are_taken_at_most() -> None:
    sender = in_line(1)
    for stream in range(2, 8):
        assert sender.write(stream, 10)
    assert [sender.take(TURN, 4), len(sender.out)] == [0, 4]
    assert [sender.take(TURN, 4), len(sender.out)] == [1, 7]


def test_a_turn_goes_ahead_anew_when_as_much_has_moved() -> None:
    sender = in_line(1, 2)
    for stream in range(3, 7):
        assert sender.write(stream, QUICK)
    assert not sender.write(7, 1)
    assert sender.take(5 * TURN, 5) == 1  # those that went ahead, and a turn of the line
    for stream in range(8, 12):
        assert sender.write(stream, QUICK)
    assert not sender.write(12, 1)


def test_a_quiet_stream_goes_before_bulk() -> None:
    sender = in_line(1, 2, 3)
    assert sender.write(9, 64)
    assert sender.streams_taken() == [9, 1, 2, 3]


def test_a_stream_does_not_overtake_itself() -> None:
    sender = in_line(1, 2)
    assert not sender.write(1, 64)
    assert sender.streams_taken() == [1, 2, 1]


def test_a_stream_is_quiet_again_when_its_last_frame_has_gone() -> None:
    sender = in_line(1, 2)
    sender.take()
    assert sender.write(1, 64)
    assert sender.streams_taken() == [1, 1, 2]


def test_a_long_message_does_not_overtake() -> None:
    sender = in_line(1)
    assert sender.write(8, QUICK)
    assert not sender.write(9, QUICK + 1)


def test_a_stream_overtakes_with_so_many_bytes_in_a_round() -> None:
    sender = in_line(1, 2)
    assert sender.write(9, QUICK - 64)
    assert sender.write(9, 64)
    assert not sender.write(9, 64)


def test_a_round_is_over_when_all_who_were_in_line_have_gone() -> None:
    sender = in_line(1, 2)
    sender.write(9, QUICK)
    sender.take(QUICK)
    sender.take()
    sender.write(1, TURN)
    assert not sender.lanes.may_overtake(sender._shares[9], 64, 0)
    sender.take()
    assert sender.write(9, 64)


def test_streams_that_wait_for_room_belong_to_the_round() -> None:
    sender = in_line(1)
    sender.waiting = 2
    sender.write(9, QUICK)
    for stream in (2, 3):
        assert not sender.lanes.may_overtake(sender._shares[9], 64, sender.waiting)
        sender.write(stream, TURN)
        sender.waiting -= 1
        sender.take(QUICK + 1)
    assert not sender.lanes.may_overtake(sender._shares[9], 64, 0)
    sender.take()
    sender.write(1, TURN)
    assert sender.write(9, 64)


def test_no_more_than_a_turn_overtakes_a_line_that_does_not_move() -> None:
    sender = in_line(1)
    overtook = [sender.write(stream, QUICK) for stream in range(10, 20)]
    assert overtook == [True] * (TURN // QUICK) + [False] * (10 - TURN // QUICK)


def test_frames_are_taken_up_to_a_size_and_a_number() -> None:
    sender = Sender()
    for _ in range(5):
        sender.write(1, 100)
    sender.write(9, 100)
    assert sender.take(10_000, most=2) == 1
    assert sender.take(101) == 2
    assert (len(sender.out), sender.lanes.size) == (4, 200)


def test_dropped_frames_are_gone_and_leave_nobody_behind() -> None:
    sender = in_line(1, 2)
    sender.write(9, 64)
    sender.lanes.clear()
    assert (sender.take(), sender.lanes.size) == (0, 0)
    sender.write(2, TURN)
    assert sender.write(1, 64)
    assert sender.streams_taken() == [1, 2]


@pytest.mark.parametrize("size", [64, 1000, QUICK])
def test_an_endless_row_of_new_streams_leaves_half_to_bulk(size: int) -> None:
    """Each time there are more of them than can be sent."""
    sender, new = in_line(1, 2), count(10)
    for _ in range(200):
        for _ in range(1 + 8 * KIB // size):
            sender.write(next(new), size)
        sender.take(4096)
        if not sender.out[-1][3]:  # a bulk stream writes on when its turn has gone
            sender.write(sender.out[-1][0], TURN)
    moved = [(size, overtook) for stream, _, size, overtook in sender.out]
    overtaking = sum(size for size, overtook in moved if overtook)
    behind = sum(size for size, overtook in moved if not overtook)
    assert overtaking <= behind + TURN


def test_streams_of_small_messages_have_what_those_of_large_ones_have() -> None:
    """Each keeps one turn queued: one stream in messages of 1,000 bytes, nine in whole turns."""
    sender, queued = Sender(), Counter[int]()
    for _ in range(500):
        for stream in range(10):
            while queued[stream] < TURN:
                size = 1000 if stream == 0 else TURN
                sender.write(stream, size)
                queued[stream] += size
        done = len(sender.out)
        sender.take(TURN)
        for stream, _, size, _ in sender.out[done:]:
            queued[stream] -= size
    had = Counter[int]()
    for stream, _, size, _ in sender.out:
        had[stream] += size
    rates = list(had.values())
    assert len(rates) == 10
    assert sum(rates) ** 2 / (10 * sum(rate**2 for rate in rates)) >= 0.95


writes = st.tuples(
    st.integers(0, 5), st.sampled_from((1, 64, 1000, QUICK // 2, QUICK, QUICK + 1, TURN))
)
takes = st.tuples(st.sampled_from((1, 4096, TURN)), st.integers(1, 32))
steps = st.lists(st.one_of(writes, takes.map(lambda take: ("take", *take))), max_size=60)


@given(steps, st.integers(0, 3))
def test_order_and_bounds_hold_whatever_is_written(steps: list[Any], waiting: int) -> None:
    sender, written = Sender(), 0
    sender.waiting = waiting
    log: list[int] = []  # bytes that overtook, and as less than 0 those that moved in line
    for step in steps:
        if step[0] == "take":
            done = len(sender.out)
            sender.take(*step[1:])
            log += [-size for _, _, size, overtook in sender.out[done:] if not overtook]
        else:
            written += step[1]
            if sender.write(*step):
                log.append(step[1])
    sender.streams_taken()
    assert sum(size for _, _, size, _ in sender.out) == written
    serials = defaultdict(list)
    for stream, serial, _, _ in sender.out:
        serials[stream].append(serial)
    assert all(each == sorted(each) for each in serials.values())
    lead = 0
    for change in log:  # over every stretch of time, whatever moved before it
        lead = max(0, lead + change)
        assert lead <= TURN
