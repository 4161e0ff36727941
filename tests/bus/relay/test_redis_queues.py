"""Queues of sessions in a real Redis: at least once, in order, shared with other relays."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import redis as library

from wsmux.bus.relay.queues import LIFE, MAX_QUEUED, QueueUnavailable
from wsmux.bus.relay.redis_queues import FULL, RedisQueues
from wsmux.bus.wire.address import Address
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.session_queues import (
    WAIT,
    Taker,
    encoded,
    left,
    nothing,
    numbers,
    put,
    take_all,
)
from ...helpers.waiting import wait_for

Make = Callable[[], RedisQueues]


def test_a_stream_has_the_shape_that_known_relays_read(
    make_queues: Make, client: library.Redis, address: Address
) -> None:
    put(make_queues(), address, "envelope")
    ((_, fields),) = client.xrange(f"stream:{address.twin}:session")
    assert fields == {b"_": b"envelope"}
    assert LIFE - 60 < int(client.ttl(address.stream_key())) <= LIFE


def test_the_gateway_of_a_twin_has_a_stream_without_session(
    make_queues: Make, client: library.Redis
) -> None:
    put(make_queues(), Address(7), "envelope")
    assert client.xlen("stream:7") == 1


def test_each_put_renews_the_life_of_a_stream(
    make_queues: Make, client: library.Redis, address: Address
) -> None:
    queues = make_queues()
    put(queues, address, "first")
    client.expire(address.stream_key(), 10)
    put(queues, address, "second")
    assert int(client.ttl(address.stream_key())) > LIFE - 60


def test_a_stream_drops_its_oldest_entries(
    make_queues: Make, client: library.Redis, address: Address
) -> None:
    queues = make_queues()
    put(queues, address, "first")
    with client.pipeline(transaction=False) as pipeline:
        for number in range(MAX_QUEUED + 200):
            pipeline.xadd(address.stream_key(), {"_": str(number)})
        pipeline.execute()
    put(queues, address, "last")
    entries = client.xrange(address.stream_key())
    assert MAX_QUEUED <= len(entries) <= MAX_QUEUED + 200  # Redis drops in whole blocks
    assert entries[-1][1] == {b"_": b"last"}


def test_a_connected_session_gets_what_is_put(make_queues: Make, address: Address) -> None:
    queues = make_queues()
    taker = Taker(queues, address)
    put(queues, address, *numbers(100))
    wait_for(lambda: taker.data() == encoded(numbers(100)))
    taker.close()


def test_the_backlog_comes_first_and_in_order(make_queues: Make, address: Address) -> None:
    queues = make_queues()
    put(queues, address, *numbers(300))
    taker = Taker(queues, address)
    put(queues, address, *numbers(320, 300))
    wait_for(lambda: taker.data() == encoded(numbers(320)))
    taker.close()


def test_what_is_acknowledged_is_deleted(
    make_queues: Make, client: library.Redis, address: Address
) -> None:
    queues = make_queues()
    taker = Taker(queues, address)
    put(queues, address, *numbers(200))
    wait_for(lambda: len(taker.taken) == 200)
    wait_for(lambda: left(client, address) == 0)
    taker.close()


def test_what_is_not_acknowledged_comes_again(
    make_queues: Make, client: library.Redis, address: Address
) -> None:
    queues = make_queues()
    put(queues, address, *numbers(10))
    first = queues.open(address, nothing)
    first.ack([entry.id for entry in take_all(first, 10)[:4]])
    first.close()
    wait_for(lambda: left(client, address) == 6)
    second = queues.open(address, nothing)
    assert [entry.data for entry in take_all(second, 6)] == encoded(numbers(10, 4))
    second.close()


def test_a_later_mailbox_takes_over(make_queues: Make, address: Address) -> None:
    queues = make_queues()
    put(queues, address, *numbers(3))
    first = queues.open(address, nothing)
    taken = take_all(first, 2)
    second = queues.open(address, nothing)
    assert first.take(10) == []
    assert not first.waiting()
    again = take_all(second, 3)
    assert again[:2] == taken[:2]
    first.ack([entry.id for entry in taken])
    first.close()  # which is no longer the session's
    put(queues, address, "more")
    assert take_all(second, 1)[0].data == b"more"
    second.close()


def test_a_late_acknowledgement_reaches_the_mailbox_that_took_over(
    make_queues: Make, address: Address
) -> None:
    queues = make_queues()
    put(queues, address, *numbers(3))
    first = queues.open(address, nothing)
    ids = [entry.id for entry in take_all(first, 3)]
    woken = threading.Event()
    second = queues.open(address, woken.set)
    assert woken.wait(WAIT)
    first.ack(ids[:2])
    assert [entry.data for entry in take_all(second, 1)] == [b"2"]
    second.close()


def test_the_queues_of_another_relay_are_shared(make_queues: Make, address: Address) -> None:
    here, there = make_queues(), make_queues()
    taker = Taker(here, address)
    put(there, address, *numbers(20))
    wait_for(lambda: taker.data() == encoded(numbers(20)))
    taker.close()


def test_what_was_put_is_waiting_until_it_is_taken(make_queues: Make, address: Address) -> None:
    queues = make_queues()
    mailbox = queues.open(address, nothing)
    wait_for(lambda: not mailbox.waiting())
    for text in numbers(50):
        put(queues, address, text)
        assert mailbox.waiting()
        take_all(mailbox, 1)
        assert not mailbox.waiting()
    mailbox.close()


def test_a_backlog_is_waiting_from_the_beginning(make_queues: Make, address: Address) -> None:
    queues = make_queues()
    put(queues, address, "before")
    mailbox = queues.open(address, nothing)
    assert mailbox.waiting()
    take_all(mailbox, 1)
    wait_for(lambda: not mailbox.waiting())
    mailbox.close()


def test_a_session_that_takes_nothing_fills_its_buffer_only(
    make_queues: Make, address: Address
) -> None:
    queues = make_queues()
    mailbox = queues.open(address, nothing)
    put(queues, address, *numbers(5 * FULL))
    wait_for(lambda: queues._mailboxes[address].full)
    assert len(queues._mailboxes[address]._buffer) < 2 * FULL
    other = Taker(queues, Address(address.twin, "other"))
    put(queues, Address(address.twin, "other"), "passes")
    wait_for(lambda: other.data() == [b"passes"])
    taken = take_all(mailbox, 5 * FULL)
    assert [entry.data for entry in taken] == encoded(numbers(5 * FULL))
    other.close()
    mailbox.close()


def test_an_entry_without_envelope_is_dropped(
    make_queues: Make, client: library.Redis, address: Address
) -> None:
    queues = make_queues()
    client.xadd(address.stream_key(), {"other": "field"})
    put(queues, address, "good")
    taker = Taker(queues, address)
    wait_for(lambda: taker.data() == [b"good"])
    wait_for(lambda: left(client, address) == 0)
    taker.close()


@pytest.mark.parametrize("session", ["", "a:b", "a b\r\n*", "é", "*", "x" * 1000])
def test_sessions_may_have_any_name(make_queues: Make, address: Address, session: str) -> None:
    queues = make_queues()
    address = Address(address.twin, session)
    taker = Taker(queues, address)
    put(queues, address, "here")
    wait_for(lambda: taker.data() == [b"here"])
    taker.close()


def test_any_bytes_are_kept(make_queues: Make, address: Address) -> None:
    queues = make_queues()
    taker = Taker(queues, address)
    bodies = [b"", bytes(range(256)), b"\r\n" * 1000, b"x" * 1_000_000]
    for body in bodies:
        queues.put(address, body, 2**40, Deadline(WAIT))
    wait_for(lambda: taker.data() == bodies)
    taker.close()


def test_many_sessions_get_all_of_theirs(make_queues: Make, address: Address) -> None:
    queues = make_queues()
    addresses = [Address(address.twin, str(number)) for number in range(100)]
    for address in addresses[:50]:
        put(queues, address, "0")
    mailboxes = [queues.open(address, nothing) for address in addresses]
    for address in addresses[50:]:
        put(queues, address, "0")
    for address in addresses:
        put(queues, address, *numbers(10, 1))
    for mailbox in mailboxes:
        assert [entry.data for entry in take_all(mailbox, 10)] == encoded(numbers(10))
    assert "readers=1" in repr(queues)
    for mailbox in mailboxes:
        mailbox.close()
    assert "sessions=0" in repr(queues)


def test_a_key_that_holds_something_else_cannot_be_used(
    make_queues: Make, client: library.Redis, address: Address
) -> None:
    client.set(address.stream_key(), "text")
    queues = make_queues()
    with pytest.raises(QueueUnavailable, match=r"^cannot queue for \S+: WRONGTYPE"):
        queues.put(address, b"data", 2**40, Deadline(None))
    assert queues.trouble() is None  # the others are well
