"""The states of a subscription: credit, resuming, gaps, and moves that are illegal."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wsmux.bus.errors import BusError
from wsmux.bus.relay.topic_log import Retention, TopicLog
from wsmux.bus.session.subscription_state import Entry, SubscriptionState
from wsmux.bus.wire.topics import START, Batch, Position, TopicGap

from ...helpers.examples import examples

EPOCH = 7


def at(number: int) -> Position:
    return Position(EPOCH, number)


def batch(first: int, count: int, epoch: int = EPOCH) -> Batch:
    return Batch(epoch, first, [b"%d" % number for number in range(first, first + count)])


def state(credit: int = 4, after: Position = START) -> SubscriptionState:
    return SubscriptionState("news", after, credit)


def taken(made: SubscriptionState) -> list[Entry | TopicGap]:
    found = []
    while (head := made.head()) is not None:
        found.append(head)
        made.take()
    return found


def test_it_asks_behind_what_it_got_for_what_it_has_room_for() -> None:
    made = state()
    assert made.wants()
    assert made.ask() == (START, 4)
    assert not made.wants()
    made.got(batch(1, 3))
    assert not made.wants()
    made.take()
    assert made.position == at(1)
    assert made.wants()
    assert made.ask() == (at(3), 2)
    made.got(batch(4, 2))
    assert [each.position.number for each in taken(made) if isinstance(each, Entry)] == [2, 3, 4, 5]
    assert made.position == at(5)


def test_it_asks_again_after_a_failure() -> None:
    made = state(after=at(2))
    assert made.ask() == (at(2), 4)
    made.failed()
    assert made.ask() == (at(2), 4)


def test_a_credit_of_one_lets_one_wait() -> None:
    made = state(credit=1)
    made.ask()
    made.got(batch(1, 1))
    assert not made.wants()
    with pytest.raises(RuntimeError, match="no room"):
        made.ask()
    made.take()
    assert made.wants()


def test_a_gap_comes_in_its_place_and_once() -> None:
    made = state(after=at(2))
    made.ask()
    made.got(batch(6, 1))
    gap, entry = taken(made)
    assert isinstance(gap, TopicGap)
    assert (gap.after, gap.before, gap.count) == (at(2), at(6), 3)
    assert entry == Entry(at(6), b"6")


def test_a_gap_alone_moves_the_position_behind_it() -> None:
    made = state(after=at(2))
    made.ask()
    made.got(batch(6, 0))
    assert len(taken(made)) == 1
    assert made.position == at(5)
    assert made.ask() == (at(5), 4)


def test_another_log_is_a_gap_of_unknown_length() -> None:
    made = state(after=at(2))
    made.ask()
    made.got(batch(1, 1, epoch=9))
    gap, entry = taken(made)
    assert isinstance(gap, TopicGap)
    assert (gap.count, gap.before) == (None, Position(9, 1))
    assert "begun again" in str(gap)
    assert entry == Entry(Position(9, 1), b"1")


def test_from_the_start_the_first_log_is_no_gap() -> None:
    made = state()
    made.ask()
    made.got(batch(1, 1))
    assert taken(made) == [Entry(at(1), b"1")]


@pytest.mark.parametrize("given", [batch(3, 5), batch(1, 1), batch(2, 1)])
def test_what_was_not_asked_for_is_refused_and_changes_nothing(given: Batch) -> None:
    made = state(after=at(2))
    made.ask()
    with pytest.raises(BusError, match="they are refused"):
        made.got(given)
    assert made.head() is None
    assert made.ask() == (at(2), 4)


def test_moves_out_of_turn_are_illegal() -> None:
    made = state()
    with pytest.raises(RuntimeError, match="no read is under way"):
        made.got(batch(1, 1))
    made.ask()
    with pytest.raises(RuntimeError, match="a read is under way"):
        made.ask()


class SubscriptionModel(RuleBasedStateMachine):
    """Let a program read a log that drops, over a way that loses reads and answers."""

    @initialize(credit=st.integers(1, 5), keep=st.integers(1, 8))
    def begin(self, credit: int, keep: int) -> None:
        self.credit = credit
        self.log = TopicLog(EPOCH, Retention(messages=keep))
        self.state = state(credit)
        self.published = 0
        self.asked: tuple[Position, int] | None = None
        self.read: list[int] = []
        self.missed: list[int] = []
        self.waiting = 0

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        for _ in range(count):
            self.published += 1
            self.log.append(self.published, b"%d" % self.published, 10, 0)

    @precondition(lambda self: self.state.wants())
    @rule()
    def ask(self) -> None:
        self.asked = self.state.ask()
        assert 0 < self.asked[1] <= self.credit - self.waiting

    @precondition(lambda self: self.state.asking)
    @rule(room=st.integers(0, 5))
    def answer(self, room: int) -> None:
        assert self.asked is not None
        after, credit = self.asked
        given = self.log.read(after, min(credit, room), 0)
        self.waiting += len(given.envelopes)
        self.state.got(given)

    @precondition(lambda self: self.state.asking)
    @rule()
    def lose(self) -> None:
        self.state.failed()

    @precondition(lambda self: self.state.head() is not None)
    @rule()
    def take(self) -> None:
        head = self.state.head()
        assert head is not None
        self.state.take()
        if isinstance(head, TopicGap):
            assert head.count == head.before.number - head.after.number - 1
            self.missed += range(head.after.number + 1, head.before.number)
        else:
            assert head.data == b"%d" % head.position.number
            self.read.append(head.position.number)
            self.waiting -= 1

    @invariant()
    def each_message_is_read_or_missed_once_in_order(self) -> None:
        assert self.read == sorted(self.read)
        assert sorted(self.read + self.missed) == list(range(1, self.state.position.number + 1))

    @invariant()
    def no_more_waits_than_the_credit(self) -> None:
        assert 0 <= self.waiting <= self.credit


SubscriptionModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestSubscriptionModel = SubscriptionModel.TestCase
