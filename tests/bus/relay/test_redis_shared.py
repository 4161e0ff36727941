"""Queues of names in Redis: each entry is with one relay, and with another once that is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis as library

from wsmux.bus.relay import redis_shared
from wsmux.bus.relay.queues import LIFE, Mailbox, NameBounds, QueueFull
from wsmux.bus.relay.redis_queues import RedisQueues
from wsmux.bus.relay.redis_rounds import BELL, rounds_key, take
from wsmux.bus.wire.address import Address
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.session_queues import WAIT, encoded, nothing, numbers, put, take_all
from ...helpers.redis_server import RedisServer
from ...helpers.waiting import wait_for

Make = Callable[[], RedisQueues]


@pytest.fixture
def name(address: Address) -> Address:
    return Address(address.twin, "@billing")


@pytest.fixture
def make_bounded(server: RedisServer) -> Iterator[Callable[[NameBounds], RedisQueues]]:
    made: list[RedisQueues] = []

    def queues(bounds: NameBounds) -> RedisQueues:
        made.append(RedisQueues(server.client(), bounds))
        return made[-1]

    yield queues
    for each in made:
        each.close(Deadline(WAIT))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_shared, "LEASE", 0.5)
    monkeypatch.setattr(redis_shared, "RENEWAL", 0.1)
    monkeypatch.setattr(redis_shared, "LOOK", 0.1)


def key_of(name: Address, part: str) -> bytes:
    return rounds_key(name) + b":" + part.encode()


def pending(client: library.Redis, name: Address) -> int:
    return int(client.zcard(key_of(name, "taken")))


def left(client: library.Redis, name: Address) -> int:
    return int(client.hlen(key_of(name, "data")))


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
    assert mailbox.waiting()
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


def test_a_first_bell_between_two_reads_is_heard(
    make_queues: Make, name: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_shared, "LOOK", 1000.0)
    monkeypatch.setattr(redis_shared, "BLOCK", 1)  # there are many reads before the first bell
    other = make_queues()
    for number in range(10):
        listening = make_queues()
        mailbox = listening.open_shared(name, nothing)
        put(listening, name, "own")
        assert ack_all(mailbox, 1) == [b"own"]
        put(other, name, str(number))
        assert ack_all(mailbox, 1) == [str(number).encode()]
        mailbox.close()


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


def abandon(client: library.Redis, name: Address, count: int, lease: float = 0.5) -> None:
    """Take entries as a relay that is killed then."""
    _, taken, _ = client.execute_command(*take(rounds_key(name), "killed", count, lease))
    assert len(taken) == 2 * count


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


def test_what_another_relay_has_taken_meanwhile_is_not_given_back(
    make_queues: Make, name: Address, client: library.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a relay that stood still for longer than its entries were its own."""
    monkeypatch.setattr(redis_shared, "RENEWAL", 1e6)
    stalled = make_queues()
    put(stalled, name, "0")
    take_all(stalled.open_shared(name, nothing), 1)
    (entry,) = client.hkeys(key_of(name, "info"))
    client.zadd(key_of(name, "taken"), {entry: 0})  # its time is over
    abandon(client, name, 1, lease=60)
    stalled.close(Deadline(WAIT))
    assert (pending(client, name), left(client, name)) == (1, 1)
    assert client.hget(key_of(name, "info"), entry).endswith(b" killed")


@pytest.mark.usefixtures("short")
def test_what_was_not_renewed_in_time_is_renewed_unless_another_relay_has_it(
    make_queues: Make, name: Address, client: library.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_shared, "LEASE", 0.1)
    monkeypatch.setattr(redis_shared, "RENEWAL", 0.3)
    queues = make_queues()
    put(queues, name, "0")
    assert data(queues.open_shared(name, nothing), 1) == [b"0"]

    def left_of_it() -> float:
        ((_, until),) = client.zrange(key_of(name, "taken"), 0, -1, withscores=True)
        return float(until) / 1000 - time.time()

    wait_for(lambda: left_of_it() < 0, WAIT)
    wait_for(lambda: left_of_it() > 0, WAIT)


@pytest.mark.usefixtures("short")
def test_a_queue_that_was_dropped_is_made_again(
    make_queues: Make, name: Address, client: library.Redis
) -> None:
    queues = make_queues()
    mailbox = queues.open_shared(name, nothing)
    put(queues, name, "0")
    assert data(mailbox, 1) == [b"0"]
    client.delete(*client.keys(rounds_key(name) + b":*"))
    put(queues, name, "1")
    assert data(mailbox, 1) == [b"1"]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("part", ["data", "info"])
def test_what_redis_has_half_forgotten_is_forgotten(
    make_queues: Make, name: Address, client: library.Redis, part: str
) -> None:
    queues = make_queues()
    put(queues, name, *numbers(2))
    first, _ = sorted(client.hkeys(key_of(name, part)))
    client.hdel(key_of(name, part), first)
    mailbox = queues.open_shared(name, nothing)
    assert ack_all(mailbox, 1) == [b"1"]
    wait_for(lambda: not client.exists(key_of(name, "waiting"), key_of(name, "taken")), WAIT)


@pytest.mark.usefixtures("short")
def test_a_key_of_another_type_harms_no_other_name(
    make_queues: Make, name: Address, client: library.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    queues, other = make_queues(), Address(name.twin, "@other")
    client.set(key_of(name, "info"), "text")
    bad, good = queues.open_shared(name, nothing), queues.open_shared(other, nothing)
    assert bad.take(1) == []
    put(queues, other, "0")
    assert data(good, 1) == [b"0"]
    wait_for(lambda: "is not the queue of a name" in caplog.text, WAIT)


# Round trips


def test_what_is_wanted_is_taken_in_the_step_that_adds_it(
    make_queues: Make, name: Address, client: library.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No further round trip, and no bell that wakes other relays for nothing."""
    monkeypatch.setattr(redis_shared, "LOOK", 1000.0)
    # A relay that begins to listen looks once more, and does not want what it asks for then.
    monkeypatch.setattr(redis_shared.SharedMailboxes, "_listen", lambda _: None)
    queues = make_queues()
    mailbox = queues.open_shared(name, nothing)
    assert mailbox.take(3) == []
    wait_for(lambda: not mailbox.waiting(), WAIT)
    rung = client.xlen(BELL)
    put(queues, name, "0", "1")
    assert [each.data for each in mailbox.take(3)] == [b"0", b"1"]
    assert client.xlen(BELL) == rung
    put(queues, name, "2")
    assert client.xlen(BELL) == rung
    put(queues, name, "3")  # what was wanted is there
    assert client.xlen(BELL) == rung + 1
    assert data(mailbox, 2) == [b"2", b"3"]


def test_scripts_that_redis_has_forgotten_are_sent_again(
    make_queues: Make, name: Address, client: library.Redis
) -> None:
    queues = make_queues()
    mailbox = queues.open_shared(name, nothing)
    put(queues, name, "0")
    assert ack_all(mailbox, 1) == [b"0"]
    client.script_flush()
    put(queues, name, "1")
    assert ack_all(mailbox, 1) == [b"1"]
    wait_for(lambda: left(client, name) == 0, WAIT)


# Fair shares


def test_twins_take_turns(make_queues: Make, name: Address) -> None:
    first, second = make_queues(), make_queues()
    put(first, name, *numbers(20), source=1)
    put(second, name, "a", "b", source=2)
    put(first, name, "x", source=3)
    mailbox = second.open_shared(name, nothing)
    assert data(mailbox, 6) == [b"0", b"a", b"x", b"1", b"b", b"2"]


def test_who_comes_later_waits_for_no_more_than_a_round(make_queues: Make, name: Address) -> None:
    queues = make_queues()
    put(queues, name, *numbers(20), source=1)
    mailbox = queues.open_shared(name, nothing)
    assert data(mailbox, 5) == encoded(numbers(5))
    put(queues, name, "a", "b", source=2)
    assert data(mailbox, 4) == [b"5", b"a", b"6", b"b"]


def test_what_is_given_back_has_the_place_that_it_had(make_queues: Make, name: Address) -> None:
    one, other = make_queues(), make_queues()
    put(one, name, *numbers(6), source=1)
    put(one, name, "a", source=2)
    mailbox = one.open_shared(name, nothing)
    assert data(mailbox, 3) == [b"0", b"a", b"1"]
    put(one, name, "b", source=2)
    mailbox.close()
    wait_for(lambda: data(other.open_shared(name, nothing), 5) == [b"0", b"a", b"1", b"2", b"b"])


def test_a_twin_has_no_more_than_its_share(
    make_bounded: Callable[[NameBounds], RedisQueues], name: Address, client: library.Redis
) -> None:
    queues = make_bounded(NameBounds(of_twin=2, in_all=3))
    put(queues, name, "0", "1", source=1)
    with pytest.raises(QueueFull, match="twin 1 has as many requests in the queue of 'billing'"):
        put(queues, name, "2", source=1)
    put(queues, name, "a", source=2)
    with pytest.raises(QueueFull, match="all twins together have as many requests") as caught:
        put(queues, name, "b", source=2)
    assert (caught.value.code, caught.value.retry_safe) == (429, True)
    mailbox = queues.open_shared(name, nothing)
    assert ack_all(mailbox, 3) == [b"0", b"a", b"1"]
    wait_for(lambda: not left(client, name), WAIT)
    put(queues, name, "2", "3", source=1)
    assert ack_all(mailbox, 2) == [b"2", b"3"]


def test_bytes_are_bounded_too_but_for_a_single_request(
    make_bounded: Callable[[NameBounds], RedisQueues], name: Address
) -> None:
    queues = make_bounded(NameBounds(twin_bytes=10, all_bytes=30))
    put(queues, name, "x" * 25, source=1)
    with pytest.raises(QueueFull, match="twin 1"):
        put(queues, name, "x", source=1)
    put(queues, name, "y" * 5, source=2)
    with pytest.raises(QueueFull, match="all twins"):
        put(queues, name, "y" * 5, source=2)


def test_what_has_run_out_takes_no_room(
    make_bounded: Callable[[NameBounds], RedisQueues], name: Address
) -> None:
    queues = make_bounded(NameBounds(of_twin=2))
    for text in ("0", "1"):
        queues.put(name, text.encode(), 1, Deadline(WAIT), 1)
    put(queues, name, "2", source=1)
    assert data(queues.open_shared(name, nothing), 1) == [b"2"]


def test_nothing_is_left_in_redis_when_all_is_answered(
    make_queues: Make, name: Address, client: library.Redis
) -> None:
    queues = make_queues()
    mailbox = queues.open_shared(name, nothing)
    for source in (1, 2):
        put(queues, name, *numbers(3), source=source)
    keys = client.keys(rounds_key(name) + b":*")
    assert keys
    assert all(0 < client.ttl(each) <= LIFE for each in keys)
    assert len(ack_all(mailbox, 6)) == 6
    wait_for(lambda: not client.keys(rounds_key(name) + b":*"), WAIT)


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


def test_a_queue_is_not_empty_before_redis_says_so(own_server: RedisServer, name: Address) -> None:
    queues = RedisQueues(own_server.client())
    try:
        put(queues, name, "0")
        own_server.kill()
        mailbox = queues.open_shared(name, nothing)
        assert mailbox.take(1) == []
        wait_for(lambda: queues.trouble() is not None, WAIT)
        assert mailbox.waiting()
        own_server.start()
        assert ack_all(mailbox, 1) == [b"0"]
        assert mailbox.take(1) == []
        wait_for(lambda: not mailbox.waiting(), WAIT)
    finally:
        queues.close(Deadline(WAIT))
