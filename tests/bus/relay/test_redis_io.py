"""The threads behind queues in Redis: they go on when Redis fails, and end when told."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis as library

from wsmux.bus.relay import redis_io, redis_puts
from wsmux.bus.relay.queues import QueueUnavailable
from wsmux.bus.relay.redis_io import FIRST_PAUSE, LONGEST_PAUSE, RetryPause, parse_id
from wsmux.bus.relay.redis_queues import EACH, FULL, RedisQueues
from wsmux.bus.wire.address import Address
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.parking import OneShotEvent
from wsmux.storage import redis_client as redis_client_module
from wsmux.storage.redis_client import redis_client

from ...helpers.bus.captured import COMPUTED
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
from ...helpers.redis_server import RedisServer
from ...helpers.waiting import wait_for

Make = Callable[[], RedisQueues]


def test_an_entry_that_was_dropped_is_not_waited_for(
    make_queues: Make, client: library.Redis, address: Address
) -> None:
    queues = make_queues()
    mailbox = queues.open(address, nothing)
    wait_for(lambda: not mailbox.waiting())
    put(queues, address, *numbers(2 * FULL))  # of which the buffer takes a part
    client.delete(address.stream_key())
    assert mailbox.waiting()
    while mailbox.take(FULL):
        pass
    wait_for(lambda: not mailbox.waiting())
    mailbox.close()


def test_more_sessions_than_a_reader_takes_have_a_second(
    make_queues: Make, address: Address
) -> None:
    queues = make_queues()
    addresses = [Address(address.twin, str(number)) for number in range(EACH + 1)]
    mailboxes = [queues.open(address, nothing) for address in addresses]
    assert "readers=2" in repr(queues)
    for address in (addresses[0], addresses[-1]):
        put(queues, address, "here")
    assert take_all(mailboxes[0], 1)[0].data == b"here"
    assert take_all(mailboxes[-1], 1)[0].data == b"here"
    for mailbox in mailboxes:
        mailbox.close()


def test_closed_queues_keep_nothing(server: RedisServer, address: Address) -> None:
    queues = RedisQueues(server.client())
    before = queues.open(address, nothing)
    queues.close(Deadline(WAIT))
    with pytest.raises(QueueUnavailable, match="closed"):
        put(queues, address, "data")
    late = queues.open(address, nothing)
    for mailbox in (before, late):
        assert (mailbox.take(1), mailbox.waiting()) == ([], False)
        mailbox.close()


def test_closing_deletes_what_was_acknowledged(
    server: RedisServer, client: library.Redis, address: Address
) -> None:
    queues = RedisQueues(server.client())
    put(queues, address, *numbers(5))
    mailbox = queues.open(address, nothing)
    mailbox.ack([entry.id for entry in take_all(mailbox, 5)])
    queues.close(Deadline(WAIT))
    assert left(client, address) == 0


def test_a_forked_child_has_none_and_the_parent_goes_on(
    make_queues: Make, address: Address
) -> None:
    queues = make_queues()
    mailbox = queues.open(address, nothing)
    pid = os.fork()
    if not pid:
        try:
            queues.close(Deadline(WAIT))
            put(queues, address, "child")
        except QueueUnavailable:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    put(queues, address, "parent")
    assert take_all(mailbox, 1)[0].data == b"parent"
    mailbox.close()


def test_a_reader_that_failed_goes_on(
    make_queues: Make, address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    queues, other = make_queues(), make_queues()
    mistakes = [RuntimeError("a mistake")]

    def wake() -> None:
        if mistakes:
            raise mistakes.pop()

    mailbox = queues.open(address, wake)
    put(other, address, "first")
    wait_for(lambda: "a mistake" in caplog.text)
    put(other, address, "second")
    assert [entry.data for entry in take_all(mailbox, 2)] == [b"first", b"second"]
    mailbox.close()


def test_a_session_that_fails_to_wake_does_not_harm_who_puts(
    make_queues: Make, address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    queues = make_queues()

    def wake() -> None:
        raise RuntimeError("a mistake")

    mailbox = queues.open(address, wake)
    wait_for(lambda: not mailbox.waiting())
    put(queues, address, "first", "second")
    assert "a mistake" in caplog.text
    assert [entry.data for entry in take_all(mailbox, 2)] == [b"first", b"second"]
    mailbox.close()


@pytest.mark.parametrize("connects", ["before", "after"])
def test_a_key_that_is_no_stream_fails_its_session_alone(
    make_queues: Make,
    client: library.Redis,
    address: Address,
    caplog: pytest.LogCaptureFixture,
    connects: str,
) -> None:
    queues, other = make_queues(), address._replace(session="other")
    good = Taker(queues, other)
    if connects == "before":
        bad = Taker(queues, address)
    client.set(address.stream_key(), "text")
    if connects == "after":
        bad = Taker(queues, address)
    wait_for(lambda: f"{address.stream_key().encode()!r} is not a stream" in caplog.text)
    assert not bad.mailbox.waiting()
    put(queues, other, "goes", "on")
    wait_for(lambda: good.data() == [b"goes", b"on"])
    assert queues.trouble() is None
    client.delete(address.stream_key())
    put(queues, address, "it", "too")
    wait_for(lambda: bad.data() == [b"it", b"too"])
    assert caplog.text.count("is not a stream") == 1
    good.close()
    bad.close()


def test_a_refused_deletion_is_logged_once(
    make_queues: Make, client: library.Redis, address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    queues = make_queues()
    put(queues, address, "envelope", "another")
    mailbox = queues.open(address, nothing)
    first, second = take_all(mailbox, 2)
    client.set(address.stream_key(), "text")
    mailbox.ack([first.id])
    wait_for(lambda: "Redis refused permanently: " in caplog.text)
    client.delete(address.stream_key())
    mailbox.ack([second.id])
    wait_for(lambda: not queues._writer._deleting)
    assert caplog.text.count("Redis refused permanently: ") == 1
    mailbox.close()


def test_a_deletion_that_fails_for_now_is_tried_again(
    make_queues: Make, client: library.Redis, address: Address
) -> None:
    queues = make_queues()
    put(queues, address, "envelope")
    mailbox = queues.open(address, nothing)
    (entry,) = take_all(mailbox, 1)
    client.config_set("min-replicas-to-write", 1)  # writes are refused, reads are not
    try:
        mailbox.ack([entry.id])
        wait_for(lambda: "NOREPLICAS" in str(queues.trouble()))
    finally:
        client.config_set("min-replicas-to-write", 0)
    wait_for(lambda: left(client, address) == 0)
    mailbox.close()


def test_closing_without_redis_says_what_stays(
    tmp_path: Path, address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer(tmp_path) as server:
        queues = RedisQueues(server.client())
        put(queues, address, "envelope")
        mailbox = queues.open(address, nothing)
        (entry,) = take_all(mailbox, 1)
        server.kill()
        mailbox.ack([entry.id])
        queues.close(Deadline(WAIT))
    assert "delivered entries stay in Redis" in caplog.text


@pytest.mark.parametrize("row", COMPUTED["message_ids"])
def test_ids_are_read_as_by_the_known_relay(row: dict[str, Any]) -> None:
    if "error" in row:
        with pytest.raises(ValueError, match="milliseconds-sequence"):
            parse_id(row["text"].encode())
    else:
        assert list(parse_id(row["text"].encode())) == row["value"]


@pytest.mark.parametrize("text", ["", "-", "-1", "1-", "1-x", "1--1", " 1", "1-1-1", "+1"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="milliseconds-sequence"):
        parse_id(text.encode())


def test_pauses_grow_up_to_a_bound_and_begin_anew() -> None:
    pause = RetryPause()
    first, *_, last = [pause.next() for _ in range(20)]
    assert FIRST_PAUSE / 2 <= first <= FIRST_PAUSE
    assert LONGEST_PAUSE / 2 <= last <= LONGEST_PAUSE
    pause.reset()
    assert pause.next() <= FIRST_PAUSE


def test_a_redis_that_is_away_is_reported(tmp_path: Path, address: Address) -> None:
    queues = RedisQueues(redis_client("redis://127.0.0.1:1/0"))
    assert queues.trouble() is None
    mailbox = queues.open(address, nothing)
    with pytest.raises(QueueUnavailable, match="Redis failed"):
        queues.put(address, b"data", 2**40, Deadline(0.2))
    assert "refused" in str(queues.trouble())
    assert mailbox.waiting()  # nobody knows
    mailbox.close()
    queues.close(Deadline(WAIT))


def test_a_put_whose_time_passes_while_nothing_is_asked_is_not_given_up(
    make_queues: Make, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a relay that was stopped, and goes on."""
    queues = make_queues()
    sent, go = OneShotEvent(), OneShotEvent()
    run_together = redis_puts.run_together

    def stands_still(*arguments: Any) -> Any:
        sent.set()
        assert go.wait(WAIT)
        return run_together(*arguments)

    monkeypatch.setattr(redis_puts, "run_together", stands_still)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(queues.put, address, b"first", 2**40, Deadline(WAIT))
        assert sent.wait(WAIT)
        ends = Deadline(0.05)
        second = pool.submit(queues.put, address, b"second", 2**40, ends)
        wait_for(ends.expired)
        go.set()
        first.result(WAIT)
        second.result(WAIT)


@pytest.mark.parametrize(
    "away", [0.0, pytest.param(30.0, marks=[pytest.mark.long, pytest.mark.hang_bound(300)])]
)
def test_nothing_is_lost_when_redis_is_killed(tmp_path: Path, away: float) -> None:
    """Entries are put, delivered and acknowledged while the server dies and comes back."""
    address = Address(1, "killed")
    with RedisServer(tmp_path, durable=True) as server:
        queues = RedisQueues(server.client())
        taker = Taker(queues, address)
        done: list[str] = []

        def run() -> None:
            for text in numbers(300):
                queues.put(address, text.encode(), 2**40, Deadline(away + WAIT))
                done.append(text)

        thread = threading.Thread(target=run)
        thread.start()
        for progress in (50, 150):
            wait_for(lambda progress=progress: len(done) >= progress)  # type: ignore[misc]
            server.kill()
            wait_for(lambda: queues.trouble() is not None)
            time.sleep(away)
            server.start()
        thread.join(WAIT)
        wait_for(lambda: set(taker.data()) >= set(encoded(numbers(300))))
        order = list(dict.fromkeys(taker.data()))
        assert order == encoded(numbers(300))
        wait_for(lambda: queues.trouble() is None)
        client = server.client()
        wait_for(lambda: left(client, address) == 0)
        client.close()
        taker.close()
        queues.close(Deadline(WAIT))


def test_a_new_session_does_not_wait_for_the_reads_of_others(
    server: RedisServer, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_io, "BLOCK", 1_000_000)
    monkeypatch.setattr(redis_client_module, "REPLY_TIME", 1_000.0)
    queues = RedisQueues(server.client())
    first = queues.open(address, nothing)
    for number in range(20):
        mailbox = queues.open(Address(address.twin, str(number)), nothing)
        wait_for(lambda mailbox=mailbox: not mailbox.waiting())  # type: ignore[misc]
        mailbox.close()
    first.close()
    queues.close(Deadline(WAIT))
