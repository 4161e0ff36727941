"""What both ends of Bymux agree on: mirrored, refused where it cannot be, and its credit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.exceptions import FlowControlError, FrameError, StreamIdError
from wsmux.protocols.bymux_packets import CLOSE, MAX_NUMBER, WRITE
from wsmux.protocols.bymux_state import (
    INFINITE,
    BymuxState,
    HalfState,
    ReceiveHalf,
    Scope,
    SendHalf,
    StreamState,
)

HALVES = st.builds(
    HalfState, credit=st.integers(0, MAX_NUMBER), closed=st.booleans(), stopped=st.just(False)
)
STREAMS = st.builds(
    StreamState, stream_id=st.integers(0, MAX_NUMBER), outgoing=HALVES, incoming=HALVES
)
STATES = st.builds(
    BymuxState,
    streams=st.lists(STREAMS, max_size=4, unique_by=lambda stream: stream.stream_id).map(tuple),
    opening=HALVES,
    accepting=HALVES,
    starting_credit=st.integers(0, MAX_NUMBER),
    peer_starting_credit=st.integers(0, MAX_NUMBER),
)


@given(STATES)
def test_the_other_end_sees_the_same_from_its_side(state: BymuxState) -> None:
    other = state.mirrored()
    assert other.mirrored() == state
    assert (other.opening, other.accepting) == (state.accepting, state.opening)
    assert other.starting_credit == state.peer_starting_credit
    assert [s.outgoing for s in other.streams] == [s.incoming for s in state.streams]


@pytest.mark.parametrize("value", [-1, MAX_NUMBER + 1])
@pytest.mark.parametrize("name", ["starting_credit", "peer_starting_credit"])
def test_numbers_fit_64_bits(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be from 0 to 2\^64-1, not {value}"):
        BymuxState(**{name: value})


def test_a_stream_is_there_once_and_not_over() -> None:
    stream = StreamState(stream_id=4)
    with pytest.raises(ValueError, match="two streams of the initial state have the same id"):
        BymuxState(streams=(stream, stream))
    over = HalfState(closed=True, stopped=True)
    with pytest.raises(ValueError, match="stream 4 has ended before the start"):
        StreamState(stream_id=4, outgoing=over, incoming=over)
    assert StreamState(stream_id=4, outgoing=over).outgoing.over


def test_what_an_owner_is_told_of_a_stream_follows_from_its_halves() -> None:
    state = StreamState(
        stream_id=5, outgoing=HalfState(closed=True), incoming=HalfState(stopped=True)
    )
    seen = state.seen(parity=1)
    assert not seen.peer_opened
    assert state.seen(parity=0).peer_opened
    assert (seen.write_closed, seen.write_stopped) == (True, False)
    assert (seen.read_closed, seen.read_ended) == (True, False)


# Credit


def scope(credit: int = 0, wire_id: int | None = 4, **state: bool) -> Scope:
    half = HalfState(credit=credit, **state)
    return Scope(wire_id, wire_id, half, half)


def test_no_credit_for_a_stream_means_that_there_is_no_end_to_it() -> None:
    target = scope(10)
    target.outgoing.grant(0, target)
    assert target.outgoing.infinite
    target.outgoing.spend(10**9)
    assert target.outgoing.credit == INFINITE
    with pytest.raises(FlowControlError, match="for stream 4, whose credit is infinite"):
        target.outgoing.grant(1, target)
    target.outgoing.grant(0, target)


def test_openings_have_no_infinite_credit() -> None:
    target = scope(10, wire_id=None)
    target.outgoing.grant(0, target)
    assert target.outgoing.credit == 10
    assert not target.outgoing.infinite


def test_credit_beyond_64_bits_is_refused_and_not_added() -> None:
    target = scope(5)
    with pytest.raises(FlowControlError, match=r"lifts it above 2\^64-1"):
        target.outgoing.grant(MAX_NUMBER - 4, target)
    assert target.outgoing.credit == 5


@pytest.mark.parametrize("count", [-1, 11])
def test_no_more_is_spent_than_there_is(count: int) -> None:
    half = SendHalf(HalfState(credit=10), of_stream=True)
    with pytest.raises(ValueError, match=f"spending {count} of 10 credit"):
        half.spend(count)
    half.spend(10)
    assert half.credit == 0


def test_what_is_read_is_granted_again_when_it_is_as_much_as_the_peer_has() -> None:
    half = ReceiveHalf(HalfState(credit=10), of_stream=True)
    assert half.take(8)
    assert half.consume(1) == 0
    assert half.consume(1) == 2
    assert half.credit == 4
    assert half.consume(6) == 6
    assert (half.credit, half.unread, half.returned) == (10, 0, 0)
    with pytest.raises(ValueError, match="more consumed than received"):
        half.consume(1)


@given(st.lists(st.integers(1, 64), max_size=40))
def test_what_is_granted_at_a_time_stays_the_same(sizes: list[int]) -> None:
    half = ReceiveHalf(HalfState(credit=64), of_stream=True)
    for size in sizes:
        taken = min(size, half.credit)
        if taken:
            assert half.take(taken)
        half.consume(min(size, half.unread))
        assert half.credit + half.unread + half.returned == half.size == 64


@pytest.mark.parametrize("state", ["closed", "stopped"])
def test_nothing_is_taken_on_a_half_that_has_ended(state: str) -> None:
    half = ReceiveHalf(HalfState(credit=10, **{state: True}), of_stream=True)
    assert not half.take(1)
    assert half.unread == 0


@pytest.mark.parametrize("count", [0, 11])
def test_nothing_is_taken_without_bytes_or_beyond_the_credit(count: int) -> None:
    half = ReceiveHalf(HalfState(credit=10), of_stream=True)
    assert not half.take(count)
    assert (half.credit, half.unread) == (10, 0)


def test_a_window_is_topped_up_to_its_limit_and_never_cut() -> None:
    half = ReceiveHalf(HalfState(credit=10), of_stream=True)
    assert half.top_up(16) == 6
    assert half.top_up(16) == half.top_up(3) == 0
    assert (half.credit, half.size) == (16, 16)


# Illegal moves


def test_what_may_not_be_sent_any_more_is_named() -> None:
    with pytest.raises(StreamIdError, match="Write on stream 4 after the same side's Close"):
        scope().forbid(True, WRITE, "Close")
    with pytest.raises(FrameError, match="global Close after the same side's global Close"):
        scope(wire_id=None).forbid(True, CLOSE, "Close")
    scope().forbid(False, WRITE, "Close")


def test_a_scope_has_ended_when_all_four_packets_have_passed() -> None:
    both = scope(closed=True, stopped=True)
    assert both.ended
    assert both.mute
    assert both.peer_mute
    half = Scope(4, 4, HalfState(closed=True), HalfState(stopped=True))
    assert half.mute
    assert not half.peer_mute
    assert not half.ended
    assert scope(wire_id=None).label == "opening streams"
