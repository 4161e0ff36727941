"""What a subscription gets of a topic whose log drops messages, and begins again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wsmux.cluster.errors import TopicGap
from wsmux.cluster.positions import (
    NEW,
    NOTHING,
    OLDEST,
    Batch,
    Follower,
    Position,
    TopicMessage,
    parse_position,
)

from ..helpers.examples import examples


def batch(last: tuple[int, int], *messages: tuple[int, int], oldest: Any = None) -> Batch:
    found = [(Position(*each), b"%d-%d" % each) for each in messages]
    first = Position(*oldest) if oldest else found[0][0] if found else Position(last[0], 1)
    return Batch(Position(*last), found, first)


def numbers(found: list[TopicMessage | TopicGap]) -> list[Any]:
    return [
        ("gap", each.count) if isinstance(each, TopicGap) else tuple(each.position)
        for each in found
    ]


@pytest.mark.parametrize(
    ("text", "position"), [("5-7", Position(5, 7)), ("new", NEW), ("oldest", OLDEST)]
)
def test_a_place_is_a_position_or_a_word(text: str, position: Position | str) -> None:
    assert parse_position(text) == position
    assert parse_position(position) == position
    assert str(position) == text


@pytest.mark.parametrize(
    "text",
    ["", "5", "5-", "-7", "5-7-9", "NEW", " 5-7", "5-7\n", "\u0665-7", None, 5, (5, 7)]
    + [Position(-1, 7), Position(5, -7), Position(10**16, 1), Position(5.0, 7)],  # type: ignore[arg-type]
)
def test_another_place_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="expected 'new', 'oldest' or a position"):
        parse_position(text)


def test_what_interrupts_a_batch_loses_nothing_of_it() -> None:
    def interrupted() -> Iterator[tuple[Position, bytes]]:
        yield Position(5, 2), b"x"
        raise KeyboardInterrupt

    follower = Follower("t", Position(5, 1))
    whole = batch((5, 3), (5, 2), (5, 3))
    cut: Any = whole._replace(messages=interrupted())
    with pytest.raises(KeyboardInterrupt):
        follower.got(cut)
    assert numbers(follower.got(whole)) == [(5, 2), (5, 3)]


def test_new_messages_are_those_behind_the_last() -> None:
    follower = Follower("t", NEW)
    assert follower.got(batch((5, 3), oldest=(5, 1))) == []
    assert follower.position == (5, 3)
    assert numbers(follower.got(batch((5, 4), (5, 4)))) == [(5, 4)]
    assert follower.position == (5, 4)


def test_all_messages_begin_with_the_oldest() -> None:
    follower = Follower("t", OLDEST)
    assert follower.got(batch((5, 9), oldest=(5, 7))) == []
    assert follower.position == (5, 6)
    assert numbers(follower.got(batch((5, 9), (5, 7), (5, 8), (5, 9)))) == [(5, 7), (5, 8), (5, 9)]


@pytest.mark.parametrize("start", [NEW, OLDEST])
def test_a_topic_that_is_begun_later_is_followed_from_its_first_message(start: str) -> None:
    follower = Follower("t", start)
    assert follower.got(Batch(NOTHING, (), NOTHING)) == []
    assert follower.got(Batch(NOTHING, (), NOTHING)) == []
    assert numbers(follower.got(batch((5, 2), (5, 1), (5, 2)))) == [(5, 1), (5, 2)]


def test_what_was_dropped_before_it_was_read_is_told() -> None:
    follower = Follower("t", Position(5, 3))
    assert numbers(follower.got(batch((5, 9), (5, 7), (5, 8)))) == [("gap", 3), (5, 7), (5, 8)]
    (gap,) = follower.got(batch((5, 12)))
    assert isinstance(gap, TopicGap)
    assert (gap.topic, gap.after, gap.before, gap.count) == ("t", "5-8", "5-13", 4)
    assert "4 messages of 't' after 5-8" in str(gap)


def test_another_epoch_may_lack_messages() -> None:
    follower = Follower("t", Position(5, 3))
    assert numbers(follower.got(batch((6, 1), (5, 4), (6, 1)))) == [(5, 4), ("gap", None), (6, 1)]
    assert numbers(follower.got(batch((7, 0)))) == [("gap", None)]
    assert follower.position == (7, 0)
    assert follower.got(batch((7, 0))) == []
    assert numbers(follower.got(batch((7, 1), (7, 1)))) == [(7, 1)]


def test_a_topic_that_is_forgotten_says_nothing_until_it_begins_again() -> None:
    follower = Follower("t", Position(5, 3))
    assert follower.got(Batch(NOTHING, (), NOTHING)) == []
    (gap, message) = follower.got(batch((8, 1), (8, 1)))
    assert isinstance(gap, TopicGap)
    assert gap.count is None
    assert "was begun again" in str(gap)
    assert isinstance(message, TopicMessage)


def test_a_message_comes_once_though_it_was_read_twice() -> None:
    follower = Follower("t", Position(5, 3))
    follower.got(batch((5, 5), (5, 4), (5, 5)))
    assert follower.got(batch((5, 5), (5, 4), (5, 5))) == []


class Following(RuleBasedStateMachine):
    """A log that drops, loses and begins again, beside what a follower says of it."""

    def __init__(self) -> None:
        super().__init__()
        self.follower = Follower("t", OLDEST)
        self.epoch, self.next = 1, 1
        self.kept: list[Position] = []
        self.published: list[Position] = []
        self.told: list[Any] = []
        self.read()

    @rule(count=st.integers(1, 5))
    def publish(self, count: int) -> None:
        for _ in range(count):
            self.kept.append(Position(self.epoch, self.next))
            self.published.append(self.kept[-1])
            self.next += 1

    @precondition(lambda self: self.kept)
    @rule(count=st.integers(1, 5))
    def drop(self, count: int) -> None:
        del self.kept[:count]

    # Before it has seen an epoch, a follower cannot tell that there was another one.
    @precondition(lambda self: self.next > 1 and self.follower.position != NOTHING)
    @rule()
    def begin_again(self) -> None:
        self.epoch, self.next = self.epoch + 1, 1

    @rule(most=st.integers(1, 4))
    def read(self, most: int = 4) -> None:
        last = Position(self.epoch, self.next - 1)
        if not self.published:
            self.told += self.follower.got(Batch(NOTHING, (), NOTHING))
            return
        after = self.follower.position
        found = [(each, b"") for each in self.kept if after is not None and each > after][:most]
        oldest = self.kept[0] if self.kept else last._replace(number=last.number + 1)
        self.told += self.follower.got(Batch(last, found, oldest))

    @invariant()
    def every_message_is_told_or_missed_aloud(self) -> None:
        reached = self.follower.position
        expected = [each for each in self.published if reached is not None and each <= reached]
        counted, unknown = 0, False
        for each in self.told:
            if isinstance(each, TopicGap):
                counted += each.count or 0
                unknown |= each.count is None
            else:
                counted += 1
        messages = [each.position for each in self.told if isinstance(each, TopicMessage)]
        assert messages == sorted(set(messages))
        assert set(messages) <= set(expected)
        assert counted == len(expected) or (unknown and counted <= len(expected))


Following.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30)
TestFollowing = Following.TestCase
