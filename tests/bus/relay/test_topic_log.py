"""The log of a topic: order, bounds, copies, and what its readers are told."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from wsmux.bus.relay.topic_log import OVERHEAD, Retention, TopicLog, retention_of
from wsmux.bus.wire.topics import MAX_ANSWER, NEW, OLDEST, START, Batch, Position, gap
from wsmux.config import MIB

from ...helpers.examples import examples

EPOCH = 7


def log(**bounds: float) -> TopicLog:
    return TopicLog(EPOCH, Retention(**bounds), remembered=4)  # type: ignore[arg-type]


def at(number: int) -> Position:
    return Position(EPOCH, number)


def filled(number_of: int, **bounds: float) -> TopicLog:
    made = TopicLog(EPOCH, Retention(**bounds))  # type: ignore[arg-type]
    for number in range(1, number_of + 1):
        assert made.append(number, b"%d" % number, 100, 0) == at(number)
    return made


def test_messages_are_numbered_and_read_in_order() -> None:
    made = filled(3)
    assert made.read(START, 10, 0) == Batch(EPOCH, 1, [b"1", b"2", b"3"])
    assert made.read(at(1), 1, 0) == Batch(EPOCH, 2, [b"2"])
    assert made.read(at(3), 10, 0) == Batch(EPOCH, 4, [])


def test_a_reader_begins_at_either_end() -> None:
    made = filled(5, messages=2)
    assert made.read(OLDEST, 1, 0) == Batch(EPOCH, 4, [b"4"])
    assert made.read(NEW, 1, 0) == Batch(EPOCH, 6, [])
    assert made.read(OLDEST, 0, 0) == Batch(EPOCH, 4, [])


def test_a_position_ahead_waits_for_its_turn() -> None:
    made = filled(2)
    assert made.read(at(3), 10, 0) == Batch(EPOCH, 4, [])
    made.append("a", b"3", 100, 0)
    made.append("b", b"4", 100, 0)
    assert made.read(at(3), 10, 0) == Batch(EPOCH, 4, [b"4"])


def test_a_copy_is_appended_once_even_after_the_first_was_dropped() -> None:
    made = log(messages=1)
    assert made.append("a", b"a", 100, 0) == at(1)
    assert made.append("a", b"a", 100, 1) == at(1)
    assert made.append("b", b"b", 100, 2) == at(2)
    assert made.append("a", b"a", 100, 99) == at(1)
    assert made.read(START, 10, 99) == Batch(EPOCH, 2, [b"b"])


def test_what_cannot_be_remembered_is_not_appended_until_others_expire() -> None:
    made = log()
    for number in range(4):
        made.append(number, b"x", 10 + number, 0)
    assert made.append("more", b"x", 100, 9) is None
    assert len(made) == 4
    assert made.append("more", b"x", 100, 10) == at(5)


def test_less_room_refuses_new_publications_but_not_copies() -> None:
    made = log()
    assert made.append("a", b"a", 100, 0, room=1) == at(1)
    assert made.append("b", b"b", 100, 0, room=1) is None
    assert made.append("a", b"a", 100, 0, room=1) == at(1)


def test_bytes_and_age_drop_the_oldest() -> None:
    made = log(size=2 * (OVERHEAD + 10), age=50)
    for number in range(3):
        made.append(number, b"x" * 10, 1000, number)
    assert made.read(OLDEST, 10, 2).first == 2
    assert made.size == 2 * (OVERHEAD + 10)
    assert made.read(OLDEST, 10, 51) == Batch(EPOCH, 3, [b"x" * 10])
    assert made.read(at(1), 10, 52) == Batch(EPOCH, 4, [])
    assert (len(made), made.size, made.remembered) == (0, 0, 3)


def test_an_answer_is_bounded_but_has_a_message() -> None:
    made = log()
    for number in range(3):
        made.append(number, bytes(MAX_ANSWER // 2 + 1), 100, 0)
    made.append("large", bytes(MAX_ANSWER + 1), 100, 0)
    assert len(made.read(START, 10, 0).envelopes) == 1
    assert len(made.read(at(3), 10, 0).envelopes) == 1


def test_a_log_is_idle_once_nothing_is_kept_or_remembered() -> None:
    made = log(age=5)
    assert made.is_idle()
    made.append("a", b"a", 10, 0)
    for now, idle in ((4, False), (9, False), (10, True)):
        made.trim(now)
        assert made.is_idle() is idle


def test_a_reader_of_another_log_starts_over_and_is_told() -> None:
    batch = filled(2).read(Position(3, 9), 10, 0)
    assert batch == Batch(EPOCH, 1, [b"1", b"2"])
    missing = gap("news", Position(3, 9), batch)
    assert missing is not None
    assert (missing.after, missing.before, missing.count) == (Position(3, 9), at(1), None)


def test_dropping_more_than_there_is_empties_it() -> None:
    made = filled(3)
    made.drop(5)
    assert (len(made), made.size) == (0, 0)
    assert made.read(START, 10, 0) == Batch(EPOCH, 4, [])


def test_a_retention_that_holds_no_message_is_refused() -> None:
    assert retention_of(None) == Retention()
    assert retention_of((5, 2 * MIB, 0.5)) == Retention(5, 2 * MIB, 0.5)
    for bounds in ((0, 2 * MIB, 1), (1, 2 * MIB - 1, 1), (1, 2 * MIB, 0), (1, 2 * MIB, math.inf)):
        with pytest.raises(ValueError, match="at least 1 message"):
            retention_of(bounds)


class LogModel(RuleBasedStateMachine):
    """Compare a log with a list of all that was ever published, and a reader of it."""

    @initialize(count=st.integers(1, 5), size=st.integers(300, 1500), age=st.integers(1, 20))
    def begin(self, count: int, size: int, age: int) -> None:
        self.retention = Retention(count, size, age)
        self.log = TopicLog(EPOCH, self.retention, remembered=8)
        self.all: list[tuple[bytes, int]] = []  # data and time
        self.first: dict[int, tuple[int, int]] = {}  # number and end, by key
        self.now = 0
        self.after = START
        self.read: set[int] = set()
        self.missed: set[int] = set()

    @rule(seconds=st.integers(0, 15))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(key=st.integers(0, 20), life=st.integers(1, 30), data=st.binary(max_size=400))
    def publish(self, key: int, life: int, data: bytes) -> None:
        alive = {key: each for key, each in self.first.items() if each[1] > self.now}
        position = self.log.append(key, data, self.now + life, self.now)
        if key in alive:
            assert position == at(alive[key][0])
        elif len(alive) >= 8:
            assert position is None
        else:
            self.all.append((data, self.now))
            assert position == at(len(self.all))
            self.first[key] = (len(self.all), self.now + life)

    @rule(credit=st.integers(0, 4))
    def reads(self, credit: int) -> None:
        batch = self.log.read(self.after, credit, self.now)
        missing = gap("news", self.after, batch)
        if missing is not None:
            assert missing.count is not None
            self.missed |= set(range(self.after.number + 1, batch.first))
            assert missing.count == batch.first - self.after.number - 1
        assert len(batch.envelopes) <= credit
        for number, data in enumerate(batch.envelopes, batch.first):
            assert data == self.all[number - 1][0]
            assert number not in self.read
            self.read.add(number)
        self.after = batch.end()

    @invariant()
    def keeps_the_newest_within_bounds(self) -> None:
        oldest = self.log.read(OLDEST, 0, self.now).first
        kept = self.all[oldest - 1 :]
        assert len(self.log) == len(kept) <= self.retention.messages
        assert self.log.size == sum(len(data) + OVERHEAD for data, _ in kept)
        assert self.log.size <= self.retention.size
        assert all(at > self.now - self.retention.age for _, at in kept)
        if oldest > 1:  # no more was dropped than a bound wanted
            data, when = self.all[oldest - 2]
            aged = when <= self.now - self.retention.age
            # A larger message that came since may have dropped it, and be gone itself.
            assert aged or self.dropped_by_bounds(oldest)

    def dropped_by_bounds(self, oldest: int) -> bool:
        """Return whether at some time the message before the oldest did not fit."""
        for end in range(oldest - 1, len(self.all) + 1):
            since = self.all[oldest - 2 : end]
            size = sum(len(data) + OVERHEAD for data, _ in since)
            if len(since) > self.retention.messages or size > self.retention.size:
                return True
        return False

    @invariant()
    def nothing_is_missed_in_silence(self) -> None:
        assert self.read | self.missed == set(range(1, self.after.number + 1))
        assert not self.read & self.missed


LogModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestLogModel = LogModel.TestCase
