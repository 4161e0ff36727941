"""Credit is spent and granted in one place each, and never lost between two ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.exceptions import FlowControlError
from wsmux.protocols.flow_control import ReceiveWindow, SendCredit

MAX = 2**32 - 1


def granted(*counts: int) -> SendCredit:
    credit = SendCredit()
    for count in counts:
        credit.grant(count)
    return credit


def slots(thing: SendCredit | ReceiveWindow) -> dict[str, int]:
    return {name: getattr(thing, name) for name in type(thing).__slots__}


def test_credit_starts_at_zero() -> None:
    assert SendCredit().available == 0


def test_grants_add_up() -> None:
    assert granted(5, 7).available == 12


def test_spending_reduces_what_is_available() -> None:
    credit = granted(10)
    credit.spend(4)
    assert credit.available == 6


def test_all_credit_may_be_spent() -> None:
    credit = granted(10)
    credit.spend(10)
    assert credit.available == 0


@pytest.mark.parametrize("count", [11, -1])
def test_spending_other_than_what_is_available_changes_nothing(count: int) -> None:
    credit = granted(10)
    before = slots(credit)
    with pytest.raises(ValueError, match="of 10 bytes of credit"):
        credit.spend(count)
    assert slots(credit) == before


def test_credit_of_32_bits_is_taken() -> None:
    assert granted(MAX - 1, 1).available == MAX


def test_credit_above_32_bits_is_refused_and_changes_nothing() -> None:
    credit = granted(MAX)
    before = slots(credit)
    with pytest.raises(FlowControlError, match=r"above 2\^32-1$"):
        credit.grant(1)
    assert slots(credit) == before


def test_spent_credit_makes_room_for_grants() -> None:
    credit = granted(MAX)
    credit.spend(1)
    credit.grant(1)
    assert credit.available == MAX


def test_spent_bytes_wait_to_be_acknowledged() -> None:
    credit = granted(10)
    credit.spend(4)
    credit.grant(3)
    assert credit.unacknowledged == 1


def test_first_grant_acknowledges_nothing() -> None:
    credit = granted(10)
    credit.spend(4)
    assert credit.unacknowledged == 4


def test_what_waits_to_be_acknowledged_adds_up_from_nothing() -> None:
    credit = granted(10)
    seen = [credit.unacknowledged]
    for count in (4, 3, 0):
        credit.spend(count)
        seen.append(credit.unacknowledged)
    assert seen == [0, 4, 7, 7]


def test_first_grant_of_zero_still_answers_the_opening() -> None:
    credit = granted(0, 10)
    credit.spend(10)
    credit.grant(10)
    assert credit.unacknowledged == 0


def test_extra_grants_acknowledge_no_more_than_was_sent() -> None:
    credit = granted(10)
    credit.spend(4)
    credit.grant(100)
    assert credit.unacknowledged == 0


def test_window_takes_exactly_its_size() -> None:
    window = ReceiveWindow(10)
    assert (window.receive(10), window.available) == (True, 0)


def test_byte_beyond_the_window_is_noted_nowhere() -> None:
    window = ReceiveWindow(10)
    window.receive(4)
    assert (window.receive(7), window.available) == (False, 6)


def test_window_of_zero_takes_no_byte() -> None:
    assert not ReceiveWindow(0).receive(1)


def test_less_than_half_a_window_is_not_returned() -> None:
    window = ReceiveWindow(10)
    window.receive(10)
    assert (window.consume(4), window.available) == (0, 0)


def test_less_than_half_a_window_is_not_returned_when_nothing_is_unread() -> None:
    window = ReceiveWindow(10)
    window.receive(4)
    assert window.consume(4) == 0


def test_half_a_window_is_returned() -> None:
    window = ReceiveWindow(10)
    window.receive(10)
    window.consume(4)
    assert (window.consume(1), window.available, window.consumed) == (5, 5, 0)


def test_odd_window_is_returned_from_its_larger_half() -> None:
    window = ReceiveWindow(5)
    window.receive(5)
    assert [window.consume(2), window.consume(1)] == [0, 3]


def test_window_of_one_byte_is_returned_at_once() -> None:
    window = ReceiveWindow(1)
    window.receive(1)
    assert window.consume(1) == 1


def test_consuming_nothing_returns_nothing() -> None:
    assert ReceiveWindow(10).consume(0) == 0


def test_prompt_window_is_returned_once_nothing_is_unread() -> None:
    window = ReceiveWindow(10)
    window.receive(3)
    assert [window.consume(2, prompt=True), window.consume(1, prompt=True)] == [0, 3]


def test_prompt_window_returns_half_as_any_other() -> None:
    window = ReceiveWindow(10)
    window.receive(9)
    assert window.consume(5, prompt=True) == 5


def test_prompt_window_has_nothing_to_return_before_anything_came() -> None:
    assert ReceiveWindow(10).consume(0, prompt=True) == 0


def test_consuming_more_than_was_received_is_refused() -> None:
    window = ReceiveWindow(10)
    window.receive(3)
    with pytest.raises(ValueError, match="more bytes consumed than received"):
        window.consume(4)


def test_refused_consumption_changes_nothing() -> None:
    window = ReceiveWindow(10)
    window.receive(3)
    before = slots(window)
    with pytest.raises(ValueError, match="more bytes consumed than received"):
        window.consume(4)
    assert slots(window) == before


@given(st.integers(1, 40), st.lists(st.integers(1, 15), max_size=30))
def test_reader_of_everything_never_stalls_its_peer(size: int, reads: list[int]) -> None:
    credit, window = granted(size), ReceiveWindow(size)
    for read in reads:
        count = min(read, credit.available)
        credit.spend(count)
        assert window.receive(count)
        credit.grant(window.consume(count))
        assert credit.available > 0
        assert credit.available + window.consumed == size


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=30))
def test_credit_unread_and_unreturned_make_the_window(
    size: int, moves: list[tuple[int, int]]
) -> None:
    credit, window, unread = granted(size), ReceiveWindow(size), 0
    for sending, reading in moves:
        count = min(sending, credit.available)
        credit.spend(count)
        assert window.receive(count)
        unread += count
        read = min(reading, unread)
        unread -= read
        credit.grant(window.consume(read))
        assert credit.available == window.available
        assert credit.available + unread + window.consumed == size
