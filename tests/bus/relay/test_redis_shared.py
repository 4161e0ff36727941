"""Queues of names in Redis: each entry is with one relay, and with another once that is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis as library

from wsmux.bus.relay import redis_shared
from wsmux.bus.relay.queues import Mailbox
from wsmux.bus.relay.redis_queues import RedisQueues
from wsmux.bus.wire.address import Address
from wsmux.runtime import clock
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.redis_server import RedisServer
from ...helpers.bus.session_queues import WAIT, encoded, left, nothing, numbers, put, take_all
from ...helpers.waiting import wait_for

Make = Callable[[], RedisQueues]

GROUP = "workers"


@pytest.fixture
def name(address: Address) -> Address:
    return Address(address.twin, "@billing")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_shared, "LEASE", 0.5)
    monkeypatch.setattr(redis_shared, "RENEWAL", 0.1)
    monkeypatch.setattr(redis_shared, "LOOK", 0.1)


def pending(client: library.Redis, name: Address) -> int:
    return int(client.xpending(name.stream_key(), GROUP)["pending"])


def data(mailbox: Mailbox, count: int) -> list[bytes]:
    return [each.data for each in take_all(mailbox, count)]


def ack_all(mailbox: Mailbox, count: int) -> list[bytes]:
    taken = take_all(mailbox, count)
    mailbox.ack([each.id for each in taken])
    return [each.data for each in taken]


def test_what_was_put_before_and_after_is_read_in_order(
    make_queues: Make, name: Address, client: library.Redis
) -> None:
    queues = make_queues()
    put(queues, name, *numbers(5))
    mailbox = queues.open_shared(name, nothing)
    assert data(mailbox, 5) == encoded(numbers(5))
    put(queues, name, *numbers(10, 5))
    taken = take_all(mailbox, 5)
    assert [each.data for each in taken] == encoded(numbers(10, 5))
    mailbox.ack([each.id for each in taken])
    wait_for(lambda: (left(client, name), pending(client, name)) == (5, 5), WAIT)


def test_no_more_is_read_than_is_wanted(
    make_queues: Make, name: Address, client: library.Redis
) -> None:
    queues = make_queues()
    put(queues, name, *numbers(10))
    mailbox = queues.open_shared(name, nothing)
    assert data(mailbox, 3) == encoded(numbers(3))
    assert not mailbox.waiting()
    assert pending(client, name) == 3


def test_a_mailbox_is_woken_by_what_comes(make_queues: Make, name: Address) -> None:
    queues, woken = make_queues(), threading.Event()
    mailbox = queues.open_shared(name, woken.set)
    assert mailbox.take(1) == []
    put(queues, name, "hello")
    assert woken.wait(WAIT)
    assert mailbox.waiting()
    assert data(mailbox, 1) == [b"hello"]


def test_relays_share_what_is_put_at_any_of_them(make_queues: Make, name: Address) -> None:
    first, second, third = make_queues(), make_queues(), make_queues()
    mailboxes = [each.open_shared(name, nothing) for each in (first, second)]
    put(third, name, *numbers(20))
    taken = [data(each, 10) for each in mailboxes]
    assert sorted(taken[0] + taken[1]) == sorted(encoded(numbers(20)))


def test_a_bell_tells_of_what_another_relay_has_put(
    make_queues: Make, name: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_shared, "LOOK", 1000.0)
    one, other = make_queues(), make_queues()
    mailbox = one.open_shared(name, nothing)
    put(one, name, "0")
    assert ack_all(mailbox, 1) == [b"0"]
    for number in range(1, 20):
        put(other, name, str(number))
        assert ack_all(mailbox, 1) == [str(number).encode()]


def test_what_a_closed_mailbox_had_goes_to_another_relay_at_once(
    make_queues: Make, name: Address
) -> None:
    one, other = make_queues(), make_queues()
    put(one, name, *numbers(5))
    mailbox = one.open_shared(name, nothing)
    taken = take_all(mailbox, 3)
    mailbox.ack([taken[0].id])
    second = other.open_shared(name, nothing)
    mailbox.close()
    mailbox.close()
    assert mailbox.take(5) == []
    assert sorted(data(second, 4)) == encoded(["1", "2", "3", "4"])


def test_what_is_not_wanted_any_more_goes_to_another_relay_at_once(
    make_queues: Make, name: Address
) -> None:
    one, other, enough = make_queues(), make_queues(), threading.Event()

    def refuse() -> None:  # as the relay does: some may still be on their way from Redis
        if enough.is_set():
            assert mailbox.take(0) == []

    mailbox = one.open_shared(name, refuse)
    assert mailbox.take(3) == []
    put(one, name, *numbers(3))
    wait_for(mailbox.waiting, WAIT)
    enough.set()
    assert mailbox.take(0) == []
    assert sorted(data(other.open_shared(name, nothing), 3)) == encoded(numbers(3))


def test_what_a_relay_that_was_closed_had_goes_to_another_one(
    make_queues: Make, name: Address
) -> None:
    one, other = make_queues(), make_queues()
    put(one, name, "0")
    assert data(one.open_shared(name, nothing), 1) == [b"0"]
    one.close(Deadline(WAIT))
    assert data(other.open_shared(name, nothing), 1) == [b"0"]


def test_a_later_mailbox_of_the_same_relay_has_what_the_earlier_one_had(
    make_queues: Make, name: Address
) -> None:
    queues = make_queues()
    put(queues, name, *numbers(2))
    first = queues.open_shared(name, nothing)
    assert data(first, 2) == encoded(numbers(2))
    assert data(queues.open_shared(name, nothing), 2) == encoded(numbers(2))
    assert first.take(1) == []


def abandon(client: library.Redis, name: Address, count: int) -> None:
    """Read entries as a relay that is killed then."""
    client.xgroup_create(name.stream_key(), GROUP, "0")
    assert client.xreadgroup(GROUP, "killed", {name.stream_key(): ">"}, count)


@pytest.mark.usefixtures("short")
def test_what_a_killed_relay_had_is_claimed(
    make_queues: Make, name: Address, client: library.Redis
) -> None:
    queues = make_queues()
    put(queues, name, *numbers(3))
    abandon(client, name, 2)
    mailbox = queues.open_shared(name, nothing)
    assert sorted(ack_all(mailbox, 3)) == encoded(numbers(3))
    wait_for(lambda: (left(client, name), pending(client, name)) == (0, 0), WAIT)


@pytest.mark.usefixtures("short")
def test_what_a_relay_renews_is_not_claimed(
    make_queues: Make, name: Address, client: library.Redis
) -> None:
    one, other = make_queues(), make_queues()
    put(one, name, *numbers(3))
    mine = one.open_shared(name, nothing)
    taken = take_all(mine, 3)
    theirs = other.open_shared(name, nothing)
    idle = threading.Event()
    for _ in range(15):  # three leases
        assert theirs.take(3) == []
        idle.wait(0.1)
    mine.ack([each.id for each in taken])
    wait_for(lambda: (left(client, name), pending(client, name)) == (0, 0), WAIT)


def test_what_another_relay_has_claimed_meanwhile_is_not_given_back(
    make_queues: Make, name: Address, client: library.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a relay that stood still for longer than its entries were its own."""
    monkeypatch.setattr(redis_shared, "RENEWAL", 1e6)
    stalled = make_queues()
    put(stalled, name, "0")
    (taken,) = take_all(stalled.open_shared(name, nothing), 1)
    client.xclaim(name.stream_key(), GROUP, "other", 0, [taken.id])
    monkeypatch.setattr(clock, "monotonic", lambda: time.monotonic() + 2 * redis_shared.LEASE)
    stalled.close(Deadline(WAIT))
    (found,) = client.xpending_range(name.stream_key(), GROUP, "-", "+", 1)
    assert found["consumer"] == b"other"


@pytest.mark.usefixtures("short")
def test_what_was_not_renewed_in_time_is_renewed_unless_another_relay_has_it(
    make_queues: Make, name: Address, client: library.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_shared, "LEASE", 0.1)
    monkeypatch.setattr(redis_shared, "RENEWAL", 0.3)
    queues = make_queues()
    put(queues, name, "0")
    assert data(queues.open_shared(name, nothing), 1) == [b"0"]

    def idle() -> int:
        (found,) = client.xpending_range(name.stream_key(), GROUP, "-", "+", 1)
        return int(found["time_since_delivered"])

    wait_for(lambda: idle() > 100, WAIT)
    wait_for(lambda: idle() < 100, WAIT)


@pytest.mark.usefixtures("short")
def test_a_stream_that_was_dropped_is_made_again(
    make_queues: Make, name: Address, client: library.Redis
) -> None:
    queues = make_queues()
    mailbox = queues.open_shared(name, nothing)
    put(queues, name, "0")
    assert data(mailbox, 1) == [b"0"]
    client.delete(name.stream_key())
    put(queues, name, "1")
    assert data(mailbox, 1) == [b"1"]


@pytest.mark.usefixtures("short")
def test_what_was_trimmed_is_forgotten(
    make_queues: Make, name: Address, client: library.Redis
) -> None:
    queues = make_queues()
    put(queues, name, *numbers(2))
    abandon(client, name, 2)
    client.xtrim(name.stream_key(), maxlen=1, approximate=False)
    mailbox = queues.open_shared(name, nothing)
    assert ack_all(mailbox, 1) == [b"1"]
    wait_for(lambda: pending(client, name) == 0, WAIT)


@pytest.mark.usefixtures("short")
def test_a_key_of_another_type_harms_no_other_name(
    make_queues: Make, name: Address, client: library.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    queues, other = make_queues(), Address(name.twin, "@other")
    client.set(name.stream_key(), "text")
    bad, good = queues.open_shared(name, nothing), queues.open_shared(other, nothing)
    assert bad.take(1) == []
    put(queues, other, "0")
    assert data(good, 1) == [b"0"]
    wait_for(lambda: "is not a stream" in caplog.text, WAIT)


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), durable=True) as made:
        yield made


@pytest.mark.usefixtures("short")
def test_reading_goes_on_when_redis_comes_back(own_server: RedisServer, name: Address) -> None:
    queues = RedisQueues(own_server.client())
    try:
        mailbox = queues.open_shared(name, nothing)
        put(queues, name, "0")
        assert ack_all(mailbox, 1) == [b"0"]
        own_server.kill()
        wait_for(lambda: queues.trouble() is not None, WAIT)
        own_server.start()
        put(queues, name, "1")
        assert ack_all(mailbox, 1) == [b"1"]
    finally:
        queues.close(Deadline(WAIT))
