"""The ledger counts what is sent and accepted, and keeps what may have to be repeated."""

from __future__ import annotations

import pytest

from wsmux.rpc.errors import SessionFailure
from wsmux.rpc.session.session import SendBuffer, Verdict


def send(ledger: SendBuffer, count: int = 1) -> list[bytes]:
    return [ledger.send(lambda seq, ack: f"{seq}/{ack}".encode()) for _ in range(count)]


def test_numbers_start_at_zero_and_rise_by_one() -> None:
    assert send(SendBuffer(), 3) == [b"0/0", b"1/0", b"2/0"]


def test_a_message_carries_what_was_accepted_when_it_was_sent() -> None:
    ledger = SendBuffer()
    ledger.accept(0, 0, 1)
    assert send(ledger) == [b"0/1"]


def test_what_was_provoked_is_counted_apart_until_it_is_acknowledged() -> None:
    ledger = SendBuffer()
    for provoked in (True, False, True):
        ledger.send(lambda seq, ack: b"x" * (seq + 1), provoked=provoked)
    counts = []
    for acknowledged in range(4):
        ledger.acknowledged(acknowledged)
        counts.append((ledger.provoked_messages, ledger.provoked_bytes))
    assert counts == [(2, 4), (1, 3), (1, 3), (0, 0)]
    ledger.send(lambda seq, ack: b"x", provoked=True)
    ledger.clear()
    assert (ledger.provoked_messages, ledger.provoked_bytes) == (0, 0)


def test_a_failed_encode_changes_nothing() -> None:
    ledger = SendBuffer()
    ledger.accept(0, 0, 5)

    def fail(seq: int, ack: int) -> bytes:
        raise MemoryError

    with pytest.raises(MemoryError):
        ledger.send(fail)
    assert (ledger.seq, ledger.buffered_messages, ledger.owed_messages) == (0, 0, 1)
    assert send(ledger) == [b"0/1"]


def test_what_is_repeated_are_the_same_bytes() -> None:
    ledger = SendBuffer()
    sent = send(ledger, 2)
    ledger.accept(0, 0, 1)
    assert [a is b for a, b in zip(sent, ledger.buffered(), strict=True)] == [True, True]


def test_the_wanted_number_is_accepted() -> None:
    ledger = SendBuffer()
    assert [ledger.accept(n, 0, 1) for n in range(3)] == [Verdict.ACCEPTED] * 3
    assert ledger.ack == 3


def test_a_lower_number_is_a_duplicate_and_changes_nothing() -> None:
    ledger = SendBuffer()
    send(ledger)
    ledger.accept(0, 0, 1)
    assert ledger.accept(0, 1, 1) is Verdict.DUPLICATE
    assert (ledger.ack, ledger.buffered_messages, ledger.owed_messages) == (1, 1, 1)


def test_a_higher_number_is_a_gap_and_changes_nothing() -> None:
    ledger = SendBuffer()
    send(ledger)
    assert ledger.accept(1, 1, 1) is Verdict.GAP
    assert (ledger.ack, ledger.buffered_messages, ledger.owed_messages) == (0, 1, 0)


def test_an_ack_trims_what_lies_below_it() -> None:
    ledger = SendBuffer()
    send(ledger, 3)
    ledger.accept(0, 2, 1)
    assert ledger.buffered() == [b"2/0"]
    assert (ledger.buffered_messages, ledger.buffered_bytes, ledger.oldest) == (1, 3, 2)


def test_an_ack_that_goes_backwards_is_no_error() -> None:
    ledger = SendBuffer()
    send(ledger, 3)
    ledger.accept(0, 2, 1)
    assert ledger.accept(1, 0, 1) is Verdict.ACCEPTED
    assert ledger.oldest == 2


@pytest.mark.parametrize("seq", [0, 1])
def test_an_ack_from_the_future_is_refused_and_changes_nothing(seq: int) -> None:
    ledger = SendBuffer()
    send(ledger, 2)
    with pytest.raises(SessionFailure, match="acknowledged 3 messages"):
        ledger.accept(seq, 3, 1)
    assert (ledger.ack, ledger.buffered_messages) == (0, 2)


def test_without_a_buffer_the_oldest_is_the_next() -> None:
    ledger = SendBuffer()
    send(ledger, 2)
    ledger.acknowledged(2)
    assert ledger.oldest == ledger.seq == 2


def test_what_is_owed_grows_with_each_message_and_ends_with_a_send() -> None:
    ledger = SendBuffer()
    ledger.accept(0, 0, 10)
    ledger.accept(1, 0, 20)
    assert (ledger.owed_messages, ledger.owed_bytes) == (2, 30)
    send(ledger)
    assert (ledger.owed_messages, ledger.owed_bytes) == (0, 0)


def test_a_message_that_asks_for_nothing_is_not_owed() -> None:
    ledger = SendBuffer()
    ledger.accept(0, 0, 10, owed=False)
    assert (ledger.ack, ledger.owed_messages, ledger.owed_bytes) == (1, 0, 0)


def test_clearing_keeps_the_counters() -> None:
    ledger = SendBuffer()
    send(ledger, 2)
    ledger.clear()
    assert (ledger.seq, ledger.buffered_messages, ledger.buffered_bytes) == (2, 0, 0)
